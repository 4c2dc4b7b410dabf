"""The statements of a kernel as arrays: of each its number, its form, its row in the last m-op, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from pattern_stage.adding import Alike, add
from pattern_stage.columns import Ints, Mask
from pattern_stage.definition import Form, Forms
from pattern_stage.fan_out import grown
from pattern_stage.plan import Bound, Changes, MOp, Plan
from xscl.algebra.event_sequences import Statement

_NONE = np.zeros(0, np.int64)

_MANY = 4_000
"""So many statements come into the plan together: their constants are objects until then."""


@dataclass(slots=True)
class Added:
    """What came into the plan: for last m-ops the slots of statements and their rows, and for all m-ops new rows."""

    slots: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)
    rows: Changes = field(default_factory=dict)


@dataclass(slots=True)
class Removed:
    """What left the plan: slots by last m-op, rows by m-op, and m-ops."""

    slots: dict[int, Ints] = field(default_factory=dict)
    rows: Changes = field(default_factory=dict)
    mops: list[MOp] = field(default_factory=list)


@dataclass(slots=True)
class _Waiting:
    """Statements of one form that have not come into the plan yet."""

    ids: list[int] = field(default_factory=list)
    since: list[int] = field(default_factory=list)
    constants: list[tuple[str | float, ...]] = field(default_factory=list)
    windows: list[tuple[int, ...]] = field(default_factory=list)


class Statements:
    """All statements. Each has a slot, which is free once it is removed."""

    def __init__(self, plan: Plan) -> None:
        self.ids, self.since, self.rows, self._of = (np.full(16, -1, np.int64) for _ in range(4))
        self.newest = -(1 << 62)
        """The greatest `since` that any has had."""
        self._plan = plan
        self._forms = Forms()
        self._bound: dict[int, Bound] = {}
        self._numbers: dict[int, int] = {}
        self._next_form = 0
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._waiting: dict[int, tuple[Form, _Waiting]] = {}
        self._waiting_count = 0
        # What came into the plan since the last `settle`, as parts of `Added`.
        self._placed: dict[int, list[tuple[Ints, Ints]]] = {}
        self._new: dict[int, list[Ints]] = {}

    def __len__(self) -> int:
        return len(self._slots) + self._waiting_count

    def add(self, statement: int, stream: Statement, since: int) -> None:
        """Adds a statement, which is in the plan after the next `settle`."""
        form, constants, windows = self._forms.form(stream)
        _, waiting = self._waiting.setdefault(id(form), (form, _Waiting()))
        waiting.ids.append(statement)
        waiting.since.append(since)
        waiting.constants.append(constants)
        waiting.windows.append(windows)
        self._waiting_count += 1
        if self._waiting_count == _MANY:
            self._place()

    def settle(self) -> Added:
        """Brings those that wait into the plan. Returns what has come into it since the last time."""
        self._place()
        added = Added()
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
        bound = [self._bind(form) for form, _ in waiting]
        groups = [Alike(of, one.constants, one.windows) for (_, of), (_, one) in zip(bound, waiting, strict=True)]
        counts = np.array(list(map(len, groups)), np.int64)
        ids = np.fromiter(chain.from_iterable(one.ids for _, one in waiting), np.int64, int(counts.sum()))
        since = np.fromiter(chain.from_iterable(one.since for _, one in waiting), np.int64, len(ids))
        rows, new = add(self._plan, groups, ids, since)
        for number, made in new.items():
            self._new.setdefault(number, []).append(made)
        self.newest = max(self.newest, int(since.max()))
        slots = self._take(ids)
        forms = np.repeat(np.array([number for number, _ in bound], np.int64), counts)
        self.ids[slots], self.since[slots], self.rows[slots], self._of[slots] = ids, since, rows, forms
        last = np.repeat(np.array([of.mops[-1].number for _, of in bound], np.int64), counts)
        for number, places in _by_value(last):
            self._placed.setdefault(number, []).append((slots[places], rows[places]))

    def remove(self, statements: Sequence[int]) -> Removed:
        """Removes statements, all of which have come into the plan."""
        slots = np.array([self._slots.pop(statement) for statement in statements], np.int64)
        removed = Removed()
        groups, numbers, ends = list[tuple[Bound, Ints]](), list[int](), dict[int, list[Ints]]()
        for number, places in _by_value(self._of[slots]):
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
        """Returns the `since` of a statement in the plan."""
        return int(self.since[self._slots[statement]])

    def narrow(self, statement: int, since: int) -> None:
        """Sets a later `since` of a statement in the plan, which has no AGGREGATE."""
        self.since[self._slots[statement]] = since
        self.newest = max(self.newest, since)

    def sums(self, counts: Mapping[int, Ints]) -> tuple[Ints, Ints]:
        """Returns statements and for each the sum of the counts of its rows, which are given by m-op; 0 is left out."""
        found: list[tuple[Ints, Ints]] = [(_NONE, _NONE)]
        end = self._end()
        for number, bound in self._bound.items():
            slots = np.flatnonzero(self._of[:end] == number)
            total = np.zeros(len(slots), np.int64)
            for place, rows in self._plan.rows_of(bound, self.rows[slots]):
                of_row = counts.get(bound.mops[place].number, _NONE)
                if len(of_row):
                    there = rows < len(of_row)
                    total[there] += of_row[rows[there]]
            found.append((self.ids[slots[total > 0]], total[total > 0]))
        ids, sums = zip(*found, strict=True)
        return np.concatenate(ids), np.concatenate(sums)

    def bound(self, statement: int) -> tuple[Bound, int]:
        """Returns the form of a statement in the plan, and its row in the last m-op."""
        slot = self._slots[statement]
        return self._bound[int(self._of[slot])], int(self.rows[slot])

    def bound_forms(self) -> Iterable[Bound]:
        """Returns the forms of all statements in the plan."""
        return self._bound.values()

    def of_rows(self, mop: int, rows: Ints) -> tuple[list[int], list[int]]:
        """Returns the statements that have any of these rows of an m-op, each with its row."""
        ids: list[int] = []
        found: list[int] = []
        end = self._end()
        for number, bound in self._bound.items():
            if all(one.number != mop for one in bound.mops):
                continue
            slots = np.flatnonzero(self._of[:end] == number)
            for place, of in self._plan.rows_of(bound, self.rows[slots]):
                if bound.mops[place].number == mop:
                    held = np.isin(of, rows)
                    ids += self.ids[slots[held]].tolist()
                    found += of[held].tolist()
        return ids, found

    def of_row(self, mop: int, row: int) -> Ints:
        """Returns the statements that are a row of a last m-op."""
        numbers = [number for number, bound in self._bound.items() if bound.mops[-1].number == mop]
        end = self._end()
        held: Mask = (self.rows[:end] == row) & np.isin(self._of[:end], numbers)
        return self.ids[:end][held]

    def _end(self) -> int:
        return len(self._slots) + len(self._free)

    def _bind(self, form: Form) -> tuple[int, Bound]:
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
        self.ids, self.since = grown(self.ids, end + len(ids)), grown(self.since, end + len(ids))
        self.rows, self._of = grown(self.rows, end + len(ids)), grown(self._of, end + len(ids), -1)
        self._slots.update(zip(ids.tolist(), slots, strict=True))
        return np.array(slots, np.int64)


def _by_value(values: Ints) -> Iterator[tuple[int, Ints]]:
    """Yields each of some values with its places, which ascend."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
    yield from zip(ordered[firsts].tolist(), np.split(order, firsts[1:]), strict=True)
