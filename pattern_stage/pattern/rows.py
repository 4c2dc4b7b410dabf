"""Evaluation of events and conditions for rows of patterns: arrivals by epoch, registers, and tests as row sets. A
register holds a value of one variable's events that later conditions need: set with the first event, updated with each
further one, dropped after the last read. Runs are tested event by event, where arrays of one would cost more than the
test, so expressions are compiled to Python once per template, over V, the registers, and E, the event's values, with
the NULL rules of `values`: numbers are floats, NaN for NULL; texts are codes. Rows with equal constants are tested
once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby, pairwise
from operator import or_
from typing import Any, Literal, NamedTuple

import numpy as np

from common.arrays import Ints
from pattern_stage.clauses import Clauses, TooManyClauses, dnf_clauses, has_parameters
from pattern_stage.columns import NULL_TEXT, Column, Columns, Flow, bare_columns, column_of, number_distinct, same
from pattern_stage.fan_out import Interned, grow_array
from pattern_stage.index import StaticIndex, each_shape
from pattern_stage.pattern.cells import mask_of_flags, rows_to_mask
from pattern_stage.plan import Rows
from pattern_stage.values import Pairs, Texts, compile_condition, compile_value, every_event, finite_or_nan
from xscl.algebra.events import AllOf, EventCondition, Kind, Parameter, Schema, Value, leaves
from xscl.algebra.values import number_text

_SCALAR_CLASSES = 16  # up to this number, sets of rows are united one by one


class StaticTest:
    """Finds rows by a condition on an event alone. Rows with equal constants form a class, which the index finds."""

    def __init__(self, conditions: Sequence[EventCondition], clauses: Clauses, index: StaticIndex) -> None:
        """`clauses` are these conditions in disjunctive normal form."""
        self._clauses, self._index = clauses, index
        every = [leaf for one in conditions for leaf in leaves(one)]
        self._columns = sorted({leaf.index for leaf in every if isinstance(leaf, Parameter)})
        self._classes = Interned([str(place) for place in self._columns])
        self._members: list[int] = []  # the set of rows of each class
        self._class_of = np.full(16, -1, np.int64)

    def add_rows(self, new: Ints, rows: Rows) -> None:
        classes, fresh, first = self._classes.intern([same(rows.parameters[place][new]) for place in self._columns])
        self._members += [0] * (self._classes.end - len(self._members))
        for number, places in each_shape(classes):
            self._members[number] |= rows_to_mask(new[places])
        self._class_of = grow_array(self._class_of, int(new.max(initial=-1)) + 1, -1)
        self._class_of[new] = classes
        if len(fresh):
            self._index.add(fresh, self._clauses, tuple(column[new[first]] for column in rows.parameters))
            self._index.settle()

    def remove_rows(self, gone: Ints) -> None:
        classes = self._class_of[gone]
        for number, places in each_shape(classes):
            self._members[number] &= ~rows_to_mask(gone[places])
        self._class_of[gone] = -1
        emptied = self._classes.release(classes)
        self._classes.free(emptied)
        self._index.remove(emptied)

    def codes(self) -> Iterable[Ints]:
        return self._index.used()

    def masks(self, events: Columns) -> list[int]:
        places, classes = self._index.hits(events)
        ends = np.searchsorted(places, np.arange(len(events) + 1)).tolist()
        return [self._united(classes[begin:end]) if begin < end else 0 for begin, end in pairwise(ends)]

    def _united(self, classes: Ints) -> int:
        if len(classes) <= _SCALAR_CLASSES:
            return reduce(or_, map(self._members.__getitem__, classes.tolist()), 0)
        flags = np.zeros(len(self._members) + 1, np.bool_)
        flags[classes] = True
        return mask_of_flags(flags[self._class_of])  # the last flag is that of rows without a class


KeyValues = Any  # the key values of an event; None if one is NULL

MakeIndex = Callable[[Schema, Texts], StaticIndex]


class Arrival(NamedTuple):
    """An event, and by role the rows that accept it. Roles are numbered across streams: `masks` is 0 for others."""

    key: KeyValues
    event: tuple[Any, ...]  # t0, t1, the number of its part, and values
    masks: tuple[int, ...]
    stream: int


def arrivals_by_key(arrivals: Iterable[Arrival]) -> dict[KeyValues, list[Arrival]]:
    """Groups arrivals by key, without those whose key is NULL."""
    found: dict[KeyValues, list[Arrival]] = {}
    for one in arrivals:
        if one.key is not None:
            found.setdefault(one.key, []).append(one)
    return found


class EventRole:
    """A role of a stream's events in a pattern, with the conditions on the event alone."""

    def __init__(
        self, stream: int, schema: Schema, conditions: Sequence[EventCondition], texts: Texts, index: MakeIndex
    ) -> None:
        self.stream = stream
        plain = [one for one in conditions if not has_parameters(one)]
        self._plain = compile_condition(AllOf(tuple(plain)), schema, None, texts) if plain else None
        self.tests = [
            StaticTest(some, clauses, index(schema, texts))
            for some, clauses in _clauses([one for one in conditions if has_parameters(one)])
        ]

    def masks(self, events: Columns, every: int) -> list[int]:
        """Returns for each event the rows of `every` that accept it."""
        found = [every] * len(events)
        if self._plain is not None:
            found = [every if held else 0 for held in self._plain(every_event(events)).tolist()]
        for test in self.tests:
            found = [one & other for one, other in zip(found, test.masks(events), strict=True)]
        return found


class RoleEvents:
    """Prepares the events of intervals for all roles of a pattern."""

    def __init__(
        self,
        schemas: Sequence[Schema],
        keys: Sequence[str],
        roles: Sequence[EventRole],
        texts: Texts,
        values: Mapping[int, Sequence[Value]],
        *,
        all_events: bool,
    ) -> None:
        """`values` are the values of events by stream."""
        self._roles, self._all = roles, all_events
        self._keys = [[[name for name, _ in schema].index(key) for key in keys] for schema in schemas]
        self._values = [
            [compile_value(one, schema, None, texts) for one in values.get(stream, ())]
            for stream, schema in enumerate(schemas)
        ]

    def epochs(
        self, inputs: Sequence[Flow], every: int, since: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, list[Arrival]]]:
        """Yields the t1 of each epoch with its events, in order. `since` has times and rows that see only events ending
        after them; other rows see all."""
        filled = [(stream, flow.events) for stream, flow in enumerate(inputs) if len(flow.events)]
        arrivals = [one for stream, events in filled for one in self._arrivals(stream, events, every, since)]
        if len(filled) > 1:
            arrivals.sort(key=_t1)
        for time, epoch in groupby(arrivals, key=_t1):
            yield time, list(epoch)

    def _arrivals(self, stream: int, events: Columns, every: int, since: Sequence[tuple[int, int]]) -> list[Arrival]:
        nothing = [0] * len(events)
        masks = [role.masks(events, every) if role.stream == stream else nothing for role in self._roles]
        if not self._all:
            chosen = [at for at, held in enumerate(map(any, zip(*masks, strict=True))) if held]
            if len(chosen) < len(events):
                events = events.take(np.array(chosen, np.int64))
                masks = [[column[at] for at in chosen] for column in masks]
        pairs = every_event(events)
        columns = [value(pairs).tolist() for value in self._values[stream]]
        tuples = zip(events.t0.tolist(), events.t1.tolist(), events.parts[:, 0].tolist(), *columns, strict=True)
        found = [
            Arrival(key, event, mask, stream)
            for key, event, mask in zip(self._key_of(stream, events), tuples, zip(*masks, strict=True), strict=True)
        ]
        if since and len(found) and found[0].event[1] <= max(time for time, _ in since):
            found = [_seen(one, since) for one in found]
        return found

    def _key_of(self, stream: int, events: Columns) -> list[KeyValues]:
        columns = []
        for place in self._keys[stream]:
            column = events.values[place]
            if column.dtype == np.int64:
                columns.append([code if code >= 0 else None for code in column.tolist()])
            else:
                columns.append([number + 0.0 if number == number else None for number in column.tolist()])
        if not columns:
            return [()] * len(events)
        return [None if None in values else values for values in zip(*columns, strict=True)]


def _t1(one: Arrival) -> int:
    return one.event[1]  # type: ignore[no-any-return]  # an int


def _seen(one: Arrival, since: Sequence[tuple[int, int]]) -> Arrival:
    hidden = reduce(or_, (rows for time, rows in since if one.event[1] <= time), 0)
    return one._replace(masks=tuple([mask & ~hidden for mask in one.masks]))


def _clauses(conditions: Sequence[EventCondition]) -> list[tuple[Sequence[EventCondition], Clauses]]:
    """Returns disjunctive normal forms: of the whole, if it has few clauses, else of each condition."""
    if not conditions:
        return []
    try:
        return [(conditions, dnf_clauses(AllOf(tuple(conditions))))]
    except TooManyClauses:
        return [([one], dnf_clauses(one)) for one in conditions]


def scalar_functions(texts: Texts) -> dict[str, Callable[..., Any]]:
    """Returns what the code of a `Writer` calls, for one event."""

    def one(code: int) -> Any:
        return np.array([code], np.int64)

    return {
        "same_text": lambda left, right: left == right and left != NULL_TEXT,
        "other_text": lambda left, right: left not in (right, NULL_TEXT) and right != NULL_TEXT,
        "other_number": lambda left, right: left < right or left > right,
        "null_text": lambda code: code == NULL_TEXT,
        "null_number": lambda number: number != number,
        "finite": finite_or_nan,
        "divided": lambda left, right: finite_or_nan(left / right) if right else math.nan,
        "rest": lambda left, right: math.fmod(left, right) if right and left == left else math.nan,
        "first_text": lambda *codes: next((code for code in codes if code != NULL_TEXT), NULL_TEXT),
        "first_number": lambda *numbers: next((number for number in numbers if number == number), math.nan),
        "code": texts.code,
        "written": lambda number: texts.code(None if number != number else number_text(number)),
        "number_of": lambda name, code: float(texts.derived_numbers(name, one(code))[0]),
        "derived": lambda name, code: int(texts.derived(name, one(code))[0]),
        "concatenated": lambda *codes: int(texts.concatenated(list(map(one, codes)))[0]),
        "tested": lambda name, wanted, *codes: texts.outcome(name, codes) == wanted,
    }


RegisterKind = Literal[
    "first", "last", "count", "known", "distinct", "sum", "numbers", "min", "max", "argmax", "every", "each"
]


@dataclass(frozen=True, slots=True)
class TupleField:
    """A component of a set's tuples: the event's value at `slot`, or read from a register before the event."""

    kind: Kind
    slot: int = -1
    read: RegisterRead | None = None


@dataclass(frozen=True, slots=True)
class Register:
    """A register. `slots` are the event's values that it stores, `kinds` their kinds; sets (`every`, `each`) store
    tuples of `parts` of each event, or each but the first."""

    kind: RegisterKind
    variable: int
    slots: tuple[int, ...] = ()
    kinds: tuple[Kind, ...] = ()
    parts: tuple[TupleField, ...] = ()

    def needs(self) -> Iterable[Register]:
        """Returns the registers that its update reads."""
        return [part.read.register for part in self.parts if part.read is not None]


@dataclass(frozen=True, slots=True)
class RegisterRead:
    """A read of a register: its value, the average of a sum, or what is at a `share` of sorted numbers."""

    register: Register
    average: bool = False
    share: float = 0.0

    def code(self, place: Callable[[Register], str]) -> str:
        """Returns Python for it; `place` gives the expression of a register."""
        at = place(self.register)
        match self.register.kind:
            case "sum":
                return f"{'average' if self.average else 'total'}({at})"
            case "argmax":
                return f"{at}[1]"
            case "distinct":
                return f"float(len({at}))"
            case "numbers":
                return f"quantile({at}, {self.share!r})"
        return at


def register_functions(texts: Texts) -> dict[str, Callable[..., Any]]:
    """Returns what the code of registers calls."""
    return scalar_functions(texts) | {
        "grown": add_to_sum,
        "total": total,
        "average": average,
        "least": lambda one, other: other if one != one or other < one else one,
        "most": lambda one, other: other if one != one or other > one else one,
        "better": _better(texts),
        "inserted": lambda numbers, number: tuple(sorted((*numbers, number))) if number == number else numbers,
        "quantile": quantile,
    }


_TUPLES = "{at} | {{{tuple}}}"

_UPDATES: dict[RegisterKind, tuple[str, str]] = {
    "first": ("{0}", "{at}"),
    "last": ("{0}", "{0}"),
    "min": ("{0}", "least({at}, {0})"),
    "max": ("{0}", "most({at}, {0})"),
    "count": ("1.0", "{at} + 1.0"),
    "known": ("({known})", "{at} + ({known})"),
    "sum": ("grown((0,), {0})", "grown({at}, {0})"),
    "argmax": ("better(None, {is_text}, {0}, {1})", "better({at}, {is_text}, {0}, {1})"),
    "distinct": ("frozenset(({0},) if ({known}) else ())", "{at} | ({{{0}}} if ({known}) else set())"),
    "numbers": ("inserted((), {0})", "inserted({at}, {0})"),
    "every": ("frozenset(({tuple},))", _TUPLES),
    "each": ("frozenset()", _TUPLES),
}
"""By kind, Python for a register at the first event of its variable, and at a further one, from its value `at`."""


def update_code(register: Register, place: Callable[[Register], str], *, first: bool) -> str:
    """Returns Python for a register at an event of its variable."""
    begin, take = _UPDATES[register.kind]
    slots = [f"E[{slot}]" for slot in register.slots]
    fields = [f"E[{part.slot}]" if part.read is None else part.read.code(place) for part in register.parts]
    is_text = register.kinds[:1] == ("string",)
    slot = slots[0] if slots else ""
    known = f"1.0 if {slot} {f'!= {NULL_TEXT}' if is_text else f'== {slot}'} else 0.0"
    return (begin if first else take).format(
        *slots, at="" if first else place(register), known=known, is_text=is_text, tuple=f"({', '.join(fields)},)"
    )


def add_to_sum(sum_: tuple[float, ...], number: float) -> tuple[float, ...]:
    """Adds a number, but not NULL, to a sum: the count, and numbers with the exact sum (Shewchuk, as `math.fsum`)."""
    if number != number:
        return sum_
    partials: list[float] = []
    for partial in sum_[1:]:
        if abs(number) < abs(partial):
            number, partial = partial, number
        high = number + partial
        low = partial - (high - number)
        if low:
            partials.append(low)
        number = high
    return (sum_[0] + 1, *partials, number)


def total(sum_: tuple[float, ...]) -> float:
    """Returns the value of a sum, NaN without numbers."""
    return _rounded(sum_) if sum_[0] else math.nan


def average(sum_: tuple[float, ...]) -> float:
    """Returns the average, NaN without numbers."""
    return finite_or_nan(_rounded(sum_) / sum_[0]) if sum_[0] else math.nan


def quantile(numbers: tuple[float, ...], share: float) -> float:
    """Returns what lies at a share of the way through sorted numbers, between the two nearest; NaN without numbers."""
    if not numbers:
        return math.nan
    place = (len(numbers) - 1) * share
    low, rest = numbers[math.floor(place)], place - math.floor(place)
    return low * (1 - rest) + numbers[math.ceil(place)] * rest


def _rounded(sum_: tuple[float, ...]) -> float:
    if len(sum_) == 2:
        return finite_or_nan(sum_[1])
    try:
        return finite_or_nan(math.fsum(sum_[1:]))
    except (OverflowError, ValueError):
        return math.nan


def _better(texts: Texts) -> Callable[..., tuple[float, Any]]:
    """Builds the update of argmax: the greatest y with the least x of it; without any, NaN and NULL."""

    def better(best: tuple[float, Any] | None, is_text: bool, x: Any, y: float) -> tuple[float, Any]:
        known = y == y and (x != NULL_TEXT if is_text else x == x)
        if best is None:
            return (y, x) if known else (math.nan, NULL_TEXT if is_text else math.nan)
        if not known or y < best[0]:
            return best
        if best[0] != best[0] or y > best[0]:
            return y, x
        less = (texts.text(x) or "") < (texts.text(best[1]) or "") if is_text else x < best[1]
        return (y, x) if less else best

    return better


_SCALAR_ROWS = 4  # up to this number, rows are tested one by one


_Code = Callable[[Any, Any], Any]


class RowTest:
    """A condition on a run, an event and parameters. Rows with equal parameters are tested once."""

    def __init__(self, texts: Texts, condition: EventCondition, values: Schema, gathered: _Code, scalar: _Code) -> None:
        """`gathered` returns, of registers and an event, the vectors of `values` for which the condition must hold."""
        self._values, self._gathered, self._scalar = values, gathered, scalar
        self._holds = compile_condition(condition, values, None, texts)
        self._columns = sorted({leaf.index for leaf in leaves(condition) if isinstance(leaf, Parameter)})
        self._few_rows: list[tuple[int, list[Any]]] = []
        """Bit and parameters of each row, if they are tested one by one."""
        self._heads = self._class_of = np.zeros(0, np.int64)
        self._parameters: tuple[Column, ...] = ()

    def follow(self, rows: Rows, numbers: Ints) -> None:
        self._parameters = rows.parameters
        few = numbers.tolist() if len(numbers) <= _SCALAR_ROWS else []
        self._few_rows = [(1 << row, [column[row].item() for column in rows.parameters]) for row in few]
        self._class_of = np.full(int(numbers.max(initial=-1)) + 1, -1, np.int64)
        if len(numbers):
            heads, of = number_distinct([same(rows.parameters[place][numbers]) for place in self._columns])
            self._heads = numbers[heads]
            self._class_of[numbers] = of

    def mask(self, registers: Any, event: Any, mask: int) -> int:
        """Returns the rows among `mask` for which the condition holds."""
        for vector in self._gathered(registers, event):
            if not mask:
                break
            if self._few_rows:
                held = (row for row, parameters in self._few_rows if mask & row and self._scalar(vector, parameters))
                mask = reduce(or_, held, 0)
            else:
                mask &= self._many(vector)
        return mask

    def holds(self, registers: Any, event: Any, row: int) -> bool:
        """Returns whether the condition holds for a row."""
        parameters = [column[row].item() for column in self._parameters]
        return all(self._scalar(vector, parameters) for vector in self._gathered(registers, event))

    def _many(self, vector: tuple[Any, ...]) -> int:
        one = columns_at([vector], range(len(vector)), self._values)
        held = self._holds(Pairs(one, np.zeros(len(self._heads), np.int64), self._heads, self._parameters))
        return mask_of_flags(np.append(held, False)[self._class_of])


def columns_at(events: Sequence[tuple[Any, ...]], slots: Sequence[int], schema: Schema) -> Columns:
    """Returns the values at some places of tuples as columns."""
    columns = [
        column_of([event[slot] for event in events], are_texts=kind == "string")
        for slot, (_, kind) in zip(slots, schema, strict=True)
    ]
    return bare_columns(columns, len(events))
