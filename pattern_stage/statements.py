"""The statements of a kernel as arrays, and the plan as text. Of each statement: its number, form, row in the last
m-op, and since. Also the users of each row, that is, which statements share it; and a description of m-ops: what they
do, their number of rows, and what they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from common.arrays import Ints, distinct
from common.bounds import BEGINNING
from pattern_stage.aggregate import all_measures, finest
from pattern_stage.clauses import condition_text, value_text
from pattern_stage.definition import AlgebraOp, FormStatements, StatementForm, StatementForms
from pattern_stage.fan_out import grow_array
from pattern_stage.index import each_shape
from pattern_stage.plan import BoundForm, Changes, EventPlan, MOp, add_statements
from xscl.algebra.events import (
    Aggregate,
    EventCondition,
    Filter,
    Fold,
    NearPattern,
    Next,
    Parameter,
    Pattern,
    Select,
    Statement,
    Union,
    Value,
)


@dataclass(frozen=True, slots=True)
class Described:
    """An m-op, a node of the plan; its edges are `reads`."""

    number: int
    title: str
    """The stream of a source, or the operators, each shape once, with `?1` for the first parameter."""
    shapes: tuple[str, ...]
    rows: int
    forms: int
    """Number of forms that share it."""
    reads: tuple[int, ...]


def described(plan: EventPlan) -> list[Described]:
    """Returns the m-ops of a plan, inputs first; partial aggregates shared by AGGREGATEs are one, too."""
    partials = plan.partials()
    number_of = {mop.number: number for number, mops in partials.items() for mop in mops}
    found: dict[int, Described] = {}
    for mop in plan:
        one, number = _described(mop), number_of.get(mop.number)
        if number is not None:
            found.setdefault(number, _partial(number, partials[number]))
            one = replace(one, reads=(number,))
        found[mop.number] = one
    return list(found.values())


def _partial(number: int, mops: Sequence[MOp]) -> Described:
    definitions = [one for mop in mops for one in mop.definitions if isinstance(one, Aggregate)]
    names = {"known": "count"}
    functions = dict.fromkeys(
        f"{names.get(one.what, one.what)}({value_text(one.of, _parameter, True)})"
        for definition in definitions
        for one in all_measures(definition)
    )
    by = finest(definitions)
    shape = f"AGGREGATE{{{', '.join(['count()', *functions])}{' BY ' * bool(by)}{', '.join(by)}}}"
    rows = len({row for mop in mops for row in mop.rows.left[mop.rows.numbers()].tolist()})
    forms = sum(mop.users for mop in mops)
    return Described(number, "PARTIAL AGGREGATES", (shape,), rows, forms, mops[0].inputs)


def _described(mop: MOp) -> Described:
    if mop.placement is None:
        return Described(mop.number, mop.stream, (), 1, mop.users, ())
    shapes = tuple(
        operator_text(one, _parameter, " OVER ?" if isinstance(one, Aggregate) and one.over is not None else "")
        for one in mop.definitions
    )
    title = type(mop.definitions[0]).__name__.upper()
    return Described(mop.number, title, shapes, len(mop.rows), mop.users, mop.inputs)


def operator_text(operator: AlgebraOp, parameter: Callable[[Parameter], str], over: str = "") -> str:
    """Returns an operator in statement syntax, without its inputs; `over` is the text of a window of AGGREGATE."""

    def condition(one: EventCondition, bare: bool = False) -> str:
        text = condition_text(one, parameter, bare)
        return "" if text == "TRUE" else text

    def items(named: Iterable[tuple[str, Value]], bare: bool = True) -> str:
        written = ((value_text(value, parameter, bare), name) for name, value in named)
        return ", ".join(text if text == name else f"{text} AS {name}" for text, name in written)

    match operator:
        case Select(_, values):
            return f"SELECT {items(values)}"
        case Filter(_, one):
            return f"FILTER{{{condition(one, bare=True)}}}"
        case Union():
            return "UNION"
        case Next(condition=one):
            text = condition(one)
            return f"NEXT{{{text}}}" if text else "NEXT"
        case Fold(chooses=chooses, continues=continues, sets=sets):
            return f"FOLD{{{condition(chooses)}, {condition(continues)}, {items(sets, bare=False)}}}"
        case Aggregate(_, functions, by):
            written = (
                f"{one.name}({', '.join(value_text(arg, parameter, True) for arg in one.args)}) AS {name}"
                for name, one in functions
            )
            groups = f" BY {', '.join(by)}" if by else ""
            return f"AGGREGATE{{{', '.join(written)}{groups}{over}}}"
        case Pattern(variables=variables, strategy=strategy, keys=keys):
            names = ", ".join(
                f"~({one.name})" if one.negated else f"{one.name}[]" if one.kleene else one.name for one in variables
            )
            return f"SEQ({names}) {strategy} [{', '.join(keys)}]"
        case NearPattern(errors=errors, keys=keys):
            return f"SEQ ERRORS <= {errors} [{', '.join(keys)}]"


def _parameter(parameter: Parameter) -> str:
    return f"?{parameter.index + 1}"


_MANY = 4_000
"""Number of statements planned together; until then their constants are Python objects."""


@dataclass(slots=True)
class PlanAdditions:
    """Additions to the plan: statement slots and rows by last m-op, new rows by m-op."""

    slots: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)
    rows: Changes = field(default_factory=dict)


@dataclass(slots=True)
class Removed:
    """Removals from the plan: slots by last m-op, rows by m-op, and m-ops."""

    slots: dict[int, Ints] = field(default_factory=dict)
    rows: Changes = field(default_factory=dict)
    mops: list[MOp] = field(default_factory=list)


class Statements:
    """All statements. Each has a slot, which is reused after removal."""

    def __init__(self, plan: EventPlan) -> None:
        self.ids, self.since, self.rows, self._of = (np.full(16, -1, np.int64) for _ in range(4))
        self.newest = BEGINNING
        """The greatest `since` of any statement ever."""
        self._plan = plan
        self._forms = StatementForms()
        self._bound: dict[int, BoundForm] = {}
        self._numbers: dict[int, int] = {}
        self._next_form = 0
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._waiting: dict[int, FormStatements] = {}
        self._waiting_count = 0
        # What came into the plan since the last `settle`, as parts of `PlanAdditions`.
        self._placed: dict[int, list[tuple[Ints, Ints]]] = {}
        self._new: dict[int, list[Ints]] = {}

    def __len__(self) -> int:
        return len(self._slots) + self._waiting_count

    def add(self, statement: int, stream: Statement, since: int) -> None:
        """Adds a statement, which is in the plan after the next `settle`."""
        form, constants, windows = self._forms.form(stream)
        self._waiting.setdefault(id(form), FormStatements(form)).add(statement, since, constants, windows)
        self._waiting_count += 1
        if self._waiting_count == _MANY:
            self._place()

    def settle(self) -> PlanAdditions:
        """Adds waiting statements to the plan. Returns all additions since the last call."""
        self._place()
        added = PlanAdditions()
        for number, pairs in self._placed.items():
            slots, rows = zip(*pairs, strict=True)
            added.slots[number] = np.concatenate(slots), np.concatenate(rows)
        added.rows = {number: np.concatenate(arrays) for number, arrays in self._new.items()}
        self._placed, self._new = {}, {}
        return added

    def _place(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_count = list(self._waiting.values()), {}, 0
        bound = [self._bind(one.form) for one in waiting]
        counts = np.array(list(map(len, waiting)), np.int64)
        ids = np.fromiter(chain.from_iterable(one.numbers for one in waiting), np.int64, int(counts.sum()))
        since = np.fromiter(chain.from_iterable(one.since for one in waiting), np.int64, len(ids))
        groups = [(of, group) for (_, of), group in zip(bound, waiting, strict=True)]
        rows, new = add_statements(self._plan, groups, ids, since)
        for number, made in new.items():
            self._new.setdefault(number, []).append(made)
        self.newest = max(self.newest, int(since.max()))
        slots = self._take(ids)
        forms = np.repeat(np.array([number for number, _ in bound], np.int64), counts)
        self.ids[slots], self.since[slots], self.rows[slots], self._of[slots] = ids, since, rows, forms
        last = np.repeat(np.array([of.mops[-1].number for _, of in bound], np.int64), counts)
        for number, places in each_shape(last):
            self._placed.setdefault(number, []).append((slots[places], rows[places]))

    def remove(self, statements: Sequence[int]) -> Removed:
        """Removes statements that are in the plan."""
        slots = np.array([self._slots.pop(statement) for statement in statements], np.int64)
        removed = Removed()
        groups, numbers, ends = list[tuple[BoundForm, Ints]](), list[int](), dict[int, list[Ints]]()
        for number, places in each_shape(self._of[slots]):
            bound, mine = self._bound[number], slots[places]
            groups.append((bound, self.rows[mine]))
            numbers.append(number)
            ends.setdefault(bound.mops[-1].number, []).append(mine)
        removed.rows = self._plan.remove(groups)
        for number, (bound, _) in zip(numbers, groups, strict=True):
            if bound.statements == 0:
                removed.mops += self._plan.unbind(bound)
                del self._bound[number], self._numbers[id(bound.form)]
                self._forms.forget(bound.form)
        for mop in removed.mops:
            removed.rows.pop(mop.number, None)
            ends.pop(mop.number, None)
        removed.slots = {number: np.concatenate(arrays) for number, arrays in ends.items()}
        self._free.extend(slots.tolist())
        self._of[slots] = -1
        return removed

    def since_of(self, statement: int) -> int:
        return int(self.since[self._slots[statement]])

    def narrow(self, statement: int, since: int) -> None:
        """Raises the `since` of a planned statement without AGGREGATE."""
        self.since[self._slots[statement]] = since
        self.newest = max(self.newest, since)

    def sums(self, counts: Mapping[int, Ints]) -> tuple[Ints, Ints]:
        """Returns statements and the sums of the counts of their rows, given by m-op; zeros are left out."""
        total = np.zeros(self._end(), np.int64)
        for slots, mop, rows in self._rows_of_forms(self._bound.values()):
            of_row = counts.get(mop.number, _NONE)
            there = rows < len(of_row)
            total[slots[there]] += of_row[rows[there]]
        counted = np.flatnonzero(total)
        return self.ids[counted], total[counted]

    def _rows_of_forms(self, forms: Iterable[BoundForm]) -> Iterator[tuple[Ints, MOp, Ints]]:
        """Yields slots, and the rows that they have in an m-op."""
        of = self._of[: self._end()]
        for bound in forms:
            slots = np.flatnonzero(of == self._numbers[id(bound.form)])
            for place, rows in self._plan.rows_of(bound, self.rows[slots]):
                yield slots, bound.mops[place], rows

    def bound(self, statement: int) -> tuple[BoundForm, int]:
        """Returns the form of a planned statement, and its row in the last m-op."""
        slot = self._slots[statement]
        return self._bound[int(self._of[slot])], int(self.rows[slot])

    def bound_forms(self) -> Iterable[BoundForm]:
        return self._bound.values()

    def of_rows(self, mop: int, rows: Ints) -> tuple[list[int], list[int]]:
        """Returns the statements that use any of these rows of an m-op, each with its row."""
        ids: list[int] = []
        found: list[int] = []
        forms = [bound for bound in self._bound.values() if any(one.number == mop for one in bound.mops)]
        for slots, of, used in self._rows_of_forms(forms):
            if of.number == mop:
                held = np.isin(used, rows)
                ids += self.ids[slots[held]].tolist()
                found += used[held].tolist()
        return ids, found

    def _end(self) -> int:
        return len(self._slots) + len(self._free)

    def _bind(self, form: StatementForm) -> tuple[int, BoundForm]:
        number = self._numbers.get(id(form))
        if number is None:
            number = self._numbers[id(form)] = self._next_form
            self._next_form += 1
            self._bound[number] = self._plan.bind(form)
        return number, self._bound[number]

    def _take(self, ids: Ints) -> Ints:
        used = min(len(self._free), len(ids))
        end = self._end()
        slots = [self._free.pop() for _ in range(used)]
        slots += range(end, end + len(ids) - used)
        self.ids, self.since = grow_array(self.ids, end + len(ids)), grow_array(self.since, end + len(ids))
        self.rows, self._of = grow_array(self.rows, end + len(ids)), grow_array(self._of, end + len(ids), -1)
        self._slots.update(zip(ids.tolist(), slots, strict=True))
        return np.array(slots, np.int64)


_NONE = np.zeros(0, np.int64)


class RowUsers:
    """The rows of planned statements, and the statements of each row; computed at construction."""

    def __init__(self, plan: EventPlan, statements: Statements, numbers: Iterable[int]) -> None:
        self._rows: dict[int, dict[int, int]] = {}
        self._bound: dict[int, BoundForm] = {}
        by_form: dict[int, tuple[BoundForm, list[int], list[int]]] = {}
        for number in numbers:
            bound, row = statements.bound(number)
            self._bound[number] = bound
            _, ids, rows = by_form.setdefault(id(bound), (bound, [], []))
            ids.append(number)
            rows.append(row)
        users: dict[int, list[tuple[Ints, Ints]]] = {}
        for bound, ids, rows in by_form.values():
            for place, of in plan.rows_of(bound, np.array(rows, np.int64)):
                if bound.mops[place].placement is None:
                    continue
                users.setdefault(bound.mops[place].number, []).append((of, np.array(ids, np.int64)))
                for number, row in zip(ids, of.tolist(), strict=True):
                    self._rows.setdefault(number, {})[place] = row
        self._users: dict[int, tuple[Ints, Ints]] = {}
        for mop, pairs in users.items():
            keys, values = (np.concatenate(column) for column in zip(*pairs, strict=True))
            order = np.lexsort((values, keys))
            self._users[mop] = keys[order], values[order]

    def bound(self, statement: int) -> BoundForm:
        return self._bound[statement]

    def rows(self, statement: int) -> dict[int, int]:
        """Returns the rows of a statement, by place in its form; sources have none."""
        return self._rows.get(statement, {})

    def of(self, mop: int, row: int) -> Ints:
        """Returns the statements that have a row, by number."""
        rows, ids = self._users.get(mop, (_NONE, _NONE))
        first, last = np.searchsorted(rows, [row, row + 1])
        return distinct(ids[first:last])

    def sharing(self, statement: int) -> list[int]:
        """Returns the other statements that share a row with this one."""
        bound = self._bound[statement]
        found = [self.of(bound.mops[place].number, row) for place, row in self.rows(statement).items()]
        return [number for number in distinct(np.concatenate([_NONE, *found])).tolist() if number != statement]
