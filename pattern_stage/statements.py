"""The statements of a kernel as arrays, and the plan as text. Of each statement: its number, form, row in the last
m-op, and since. Also the users of each row, that is, which statements share it; and a description of m-ops: what they
do, their number of rows, and what they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from common.arrays import Ints
from common.bounds import BEGINNING, Micros
from pattern_stage.aggregate import all_measures, finest
from pattern_stage.clauses import expression_text
from pattern_stage.columns import NO_ROWS
from pattern_stage.definition import AlgebraOp, FormStatements, StatementForms
from pattern_stage.fan_out import Slots, grow_array
from pattern_stage.index import each_shape
from pattern_stage.plan import BoundForm, Changes, EventPlan, MOp, add_statements
from xscl.algebra import events as algebra
from xscl.algebra.values import call_text


@dataclass(frozen=True, slots=True)
class Described:
    """An m-op, a node of the plan; its edges are `reads`. `title` is the stream of a source, or the kind of operator,
    whose `shapes` have `?1` for the first parameter."""

    number: int
    title: str
    shapes: tuple[str, ...]
    rows: int
    reads: tuple[int, ...]


def described(plan: EventPlan) -> list[Described]:
    """Returns the m-ops of a plan, inputs first; partial aggregates shared by AGGREGATEs are one, too."""
    partials = plan.partials()
    number_of = {mop.number: number for number, mops in partials.items() for mop in mops}
    found: dict[int, Described] = {}
    for mop in plan:
        reads, shapes, title, rows = mop.inputs, tuple(map(_shape, mop.definitions)), mop.stream, 1
        if mop.placement is not None:
            title, rows = algebra.operator_name(mop.definitions[0]), len(mop.rows)
        if (number := number_of.get(mop.number)) is not None:
            found.setdefault(number, _partial(number, partials[number]))
            reads = (number,)
        found[mop.number] = Described(mop.number, title, shapes, rows, reads)
    return list(found.values())


def _shape(operator: AlgebraOp) -> str:
    has_window = isinstance(operator, algebra.Aggregate) and operator.over is not None
    return operator_text(operator, _parameter, f" OVER {session_word(operator)}?" * has_window)


def session_word(operator: object) -> str:
    return "SESSION " if isinstance(operator, algebra.Sessions) else ""


def _partial(number: int, mops: Sequence[MOp]) -> Described:
    definitions = [one for mop in mops for one in mop.definitions if isinstance(one, algebra.Aggregate)]
    measures = [one for definition in definitions for one in all_measures(definition)]
    functions = dict.fromkeys(
        f"{'count' if one.what == 'known' else one.what}({expression_text(one.of, _parameter, True)})"
        for one in measures
    )
    by = finest(definitions)
    shape = f"AGGREGATE{{{', '.join(['count()', *functions])}{' BY ' * bool(by)}{', '.join(by)}}}"
    rows = len({row for mop in mops for row in mop.rows.left[mop.rows.numbers()].tolist()})
    return Described(number, "PARTIAL AGGREGATES", (shape,), rows, mops[0].inputs)


def operator_text(operator: AlgebraOp, parameter: Callable[[algebra.Parameter], str], over: str = "") -> str:
    """Returns an operator in statement syntax, without its inputs; `over` is the text of a window of AGGREGATE."""

    def condition(one: algebra.EventCondition, bare: bool = False) -> str:
        text = expression_text(one, parameter, bare)
        return "" if text == "TRUE" else text

    def items(named: Iterable[tuple[str, algebra.Value]], bare: bool = True) -> str:
        written = ((expression_text(value, parameter, bare), name) for name, value in named)
        return ", ".join(text if text == name else f"{text} AS {name}" for text, name in written)

    match operator:
        case algebra.Select(_, values):
            return f"SELECT {items(values)}"
        case algebra.Filter(_, one):
            return f"FILTER{{{condition(one, bare=True)}}}"
        case algebra.Union():
            return "UNION"
        case algebra.Next(condition=one):
            text = condition(one)
            name = algebra.operator_name(operator)
            return f"{name}{{{text}}}" if text else name
        case algebra.Fold(chooses=chooses, continues=continues, sets=sets):
            return f"FOLD{{{condition(chooses)}, {condition(continues)}, {items(sets, bare=False)}}}"
        case algebra.Aggregate(_, functions, by):
            written = (
                f"{call_text(one.name, (expression_text(arg, parameter, True) for arg in one.args))} AS {name}"
                for name, one in functions
            )
            return f"AGGREGATE{{{', '.join(written)}{' BY ' * bool(by)}{', '.join(by)}{over}}}"
        case algebra.Stories(counts=counts, having=having, tell=tell):
            parts = [f"count(DISTINCT {value}) AS {name}" for name, value in counts]
            parts = [", ".join(parts)] * bool(parts) + ["LASTING ?"]
            text = condition(having, bare=True)
            parts += [f"HAVING {text}"] * bool(text) + [f"TELL {', '.join(tell)}"] * bool(tell)
            return f"STORIES{{{' '.join(parts)}}}"
        case algebra.Pattern(variables=variables, strategy=strategy, keys=keys):
            names = ", ".join(
                f"~({one.name})" if one.negated else f"{one.name}[]" if one.kleene else one.name for one in variables
            )
            return f"SEQ({names}) {strategy} [{', '.join(keys)}]"
        case algebra.NearPattern(errors=errors, keys=keys):
            return f"SEQ ERRORS <= {errors} [{', '.join(keys)}]"


def _parameter(parameter: algebra.Parameter) -> str:
    return f"?{parameter.index + 1}"


_MANY = 4_000  # number of statements planned together; until then their constants are Python objects


class Statements:
    """All statements. Each has a slot, which is reused after removal."""

    def __init__(self, plan: EventPlan) -> None:
        self.ids, self.since, self.rows, self._of = (np.full(16, -1, np.int64) for _ in range(4))
        self.newest: int = BEGINNING  # the greatest `since` of any statement ever
        self.plan = plan
        self._forms = StatementForms()
        self.bound_forms: dict[int, BoundForm] = {}  # by the identity of a form, which `_of` has
        self._slot_of: dict[int, int] = {}
        self._slots = Slots()
        self._waiting: dict[int, FormStatements] = {}
        self._waiting_count = 0
        # What came into the plan since the last `settle`.
        self._placed: dict[int, list[tuple[Ints, Ints]]] = {}
        self._new: dict[int, list[Ints]] = {}

    def add(self, statement: int, stream: algebra.Statement, since: Micros) -> None:
        """Adds a statement, which is in the plan after the next `settle`."""
        form, constants, windows = self._forms.form(stream)
        self._waiting.setdefault(id(form), FormStatements(form)).add(statement, since, constants, windows)
        self._waiting_count += 1
        if self._waiting_count == _MANY:
            self._place()

    def settle(self) -> tuple[dict[int, tuple[Ints, Ints]], Changes]:
        """Adds waiting statements to the plan. Returns all additions since the last call: statement slots and rows by
        last m-op, and new rows by m-op."""
        self._place()
        slots = {}
        for number, pairs in self._placed.items():
            places, rows = zip(*pairs, strict=True)
            slots[number] = np.concatenate(places), np.concatenate(rows)
        new = {number: np.concatenate(arrays) for number, arrays in self._new.items()}
        self._placed, self._new = {}, {}
        return slots, new

    def _place(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_count = list(self._waiting.values()), {}, 0
        for one in waiting:
            if id(one.form) not in self.bound_forms:
                self.bound_forms[id(one.form)] = self.plan.bind(one.form)
        groups = [(self.bound_forms[id(one.form)], one) for one in waiting]
        counts = list(map(len, waiting))
        ids = np.fromiter(chain.from_iterable(one.numbers for one in waiting), np.int64, sum(counts))
        since = np.fromiter(chain.from_iterable(one.since for one in waiting), np.int64, len(ids))
        rows, new = add_statements(self.plan, groups, ids, since)
        for number, made in new.items():
            self._new.setdefault(number, []).append(made)
        self.newest = max(self.newest, int(since.max()))
        slots = self._slots.take(len(ids))
        self._slot_of.update(zip(ids.tolist(), slots.tolist(), strict=True))
        columns = self.ids, self.since, self.rows, self._of
        self.ids, self.since, self.rows, self._of = (grow_array(column, self._slots.end, -1) for column in columns)
        self.ids[slots], self.since[slots], self.rows[slots] = ids, since, rows
        self._of[slots] = np.repeat(np.array([id(one.form) for one in waiting], np.int64), counts)
        last = np.repeat(np.array([bound.mops[-1].number for bound, _ in groups], np.int64), counts)
        for number, places in each_shape(last):
            self._placed.setdefault(number, []).append((slots[places], rows[places]))

    def remove(self, statements: Sequence[int]) -> tuple[list[tuple[int, Ints]], Changes, list[MOp]]:
        """Removes planned statements. Returns slots with their last m-op, unused rows of other m-ops, unused m-ops."""
        slots = np.array([self._slot_of.pop(statement) for statement in statements], np.int64)
        removed, groups, mops = list[tuple[int, Ints]](), list[tuple[BoundForm, Ints]](), list[MOp]()
        for form, places in each_shape(self._of[slots]):
            bound = self.bound_forms[form]
            groups.append((bound, self.rows[slots[places]]))
            removed.append((bound.mops[-1].number, slots[places]))
        rows = self.plan.remove(groups)
        for bound, _ in groups:
            if bound.statements == 0:
                mops += self.plan.unbind(bound)
                del self.bound_forms[id(bound.form)]
                self._forms.forget(bound.form)
        for mop in mops:
            rows.pop(mop.number, None)
        self._slots.give(slots)
        self._of[slots] = -1
        return removed, rows, mops

    def narrow(self, statement: int, since: Micros) -> None:
        """Raises the `since` of a planned statement without AGGREGATE."""
        self.since[self._slot_of[statement]] = since
        self.newest = max(self.newest, since)

    def sums(self, counts: Mapping[int, Ints]) -> tuple[Ints, Ints]:
        """Returns statements and the sums of the counts of their rows, given by m-op; zeros are left out."""
        total = np.zeros(self._slots.end, np.int64)
        for bound in self.bound_forms.values():
            for slots, place, rows in self.rows_of(bound):
                of_row = counts.get(bound.mops[place].number, NO_ROWS)
                there = rows < len(of_row)
                total[slots[there]] += of_row[rows[there]]
        counted = np.flatnonzero(total)
        return self.ids[counted], total[counted]

    def rows_of(self, bound: BoundForm) -> Iterator[tuple[Ints, int, Ints]]:
        """Yields, for each node of a form, the slots of its statements, its place, and their rows in its m-op."""
        slots = np.flatnonzero(self._of[: self._slots.end] == id(bound.form))
        for place, rows in self.plan.rows_of(bound, self.rows[slots]):
            yield slots, place, rows

    def bound(self, statement: int) -> BoundForm:
        return self.bound_forms[int(self._of[self._slot_of[statement]])]

    def of_rows(self, mop: MOp, rows: Ints) -> tuple[Ints, Ints]:
        """Returns the slots of the statements that use any of these rows of an m-op, each with its row."""
        found = [(NO_ROWS, NO_ROWS)]
        for bound in self.bound_forms.values():
            for slots, place, used in self.rows_of(bound) if mop in bound.mops else ():
                if bound.mops[place] is mop:
                    held = np.isin(used, rows)
                    found.append((slots[held], used[held]))
        slots, used = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return slots, used


class RowUsers:
    """The rows of planned statements, and the statements of each row; computed at construction."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._rows: dict[int, dict[int, int]] = {}
        self._users: dict[tuple[int, int], set[int]] = {}
        for bound in statements.bound_forms.values():
            for slots, place, rows in statements.rows_of(bound):
                if (mop := bound.mops[place]).placement is not None:
                    for number, row in zip(statements.ids[slots].tolist(), rows.tolist(), strict=True):
                        self._rows.setdefault(number, {})[place] = row
                        self._users.setdefault((mop.number, row), set()).add(number)

    def rows(self, statement: int) -> dict[int, int]:
        """Returns the rows of a statement, by place in its form; sources have none."""
        return self._rows.get(statement, {})

    def of(self, mop: int, row: int) -> list[int]:
        """Returns the statements that have a row, by number."""
        return sorted(self._users.get((mop, row), ()))

    def sharing(self, statement: int) -> list[int]:
        """Returns the other statements that share a row with this one."""
        mops = self._statements.bound(statement).mops
        found = [self._users[mops[place].number, row] for place, row in self.rows(statement).items()]
        return sorted(set().union(*found) - {statement})
