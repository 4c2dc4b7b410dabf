"""Conditions on an event alone, with constants of rows: rows with equal constants are tested once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from pattern_stage.clauses import Clauses
from pattern_stage.columns import Columns, Ints
from pattern_stage.fan_out import grown
from pattern_stage.flow import numbered, same
from pattern_stage.formula import leaves, values_of
from pattern_stage.matching.masks import mask_of, mask_of_flags
from pattern_stage.operators import Index, RowVectors
from xscl.algebra.events import Condition, Parameter

_FEW = 16
"""So few sets of rows are united one by one."""


class StaticTest:
    """Rows by a condition. Those with equal constants are a class, which is what the index finds."""

    def __init__(self, conditions: Sequence[Condition], clauses: Clauses, index: Index) -> None:
        """`clauses` are these conditions in disjunctive normal form."""
        self._clauses, self._index = clauses, index
        every = [leaf for one in conditions for value in values_of(one) for leaf in leaves(value)]
        self._columns = sorted({leaf.index for leaf in every if isinstance(leaf, Parameter)})
        self._numbers: dict[tuple[int, ...], int] = {}
        self._constants: list[tuple[int, ...]] = []
        """Of each class, as `same` has them."""
        self._members: list[int] = []
        """The rows of each class, as a set."""
        self._free: list[int] = []
        self._class_of = np.full(16, -1, np.int64)

    def add_rows(self, new: Ints, rows: RowVectors) -> None:
        """Takes in rows."""
        columns = [same(rows.parameters[place][new]) for place in self._columns]
        heads, of = numbered(columns)
        order = np.argsort(of, kind="stable")
        ends = np.searchsorted(of[order], np.arange(len(heads) + 1))
        classes = np.empty(len(heads), np.int64)
        fresh: list[int] = []
        constants = zip(*(column[heads].tolist() for column in columns), strict=True)
        for place, (vector, (begin, end)) in enumerate(zip(constants, pairwise(ends.tolist()), strict=True)):
            number = self._numbers.get(vector)
            if number is None:
                number = self._added(vector)
                fresh.append(place)
            self._members[number] |= mask_of(new[order[begin:end]])
            classes[place] = number
        self._class_of = grown(self._class_of, int(new.max(initial=-1)) + 1, -1)
        self._class_of[new] = classes[of]
        if fresh:
            first = new[heads[fresh]]
            self._index.add(classes[fresh], self._clauses, tuple(column[first] for column in rows.parameters))
            self._index.settle()

    def _added(self, constants: tuple[int, ...]) -> int:
        number = self._free.pop() if self._free else len(self._members)
        if number == len(self._members):
            self._members.append(0)
            self._constants.append(())
        self._numbers[constants], self._constants[number] = number, constants
        return number

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows."""
        emptied = []
        for row, number in zip(gone.tolist(), self._class_of[gone].tolist(), strict=True):
            self._members[number] &= ~(1 << row)
            if not self._members[number]:
                del self._numbers[self._constants[number]]
                emptied.append(number)
        self._class_of[gone] = -1
        self._free += emptied
        self._index.remove(np.array(emptied, np.int64))

    def codes(self) -> Iterator[Ints]:
        """Yields the codes of the texts of its rows."""
        yield from self._index.used()

    def masks(self, events: Columns) -> list[int]:
        """Returns of each event the rows that it satisfies."""
        places, classes = self._index.hits(events)
        ends = np.searchsorted(places, np.arange(len(events) + 1)).tolist()
        return [self._united(classes[begin:end]) if begin < end else 0 for begin, end in pairwise(ends)]

    def _united(self, classes: Ints) -> int:
        if len(classes) <= _FEW:
            found = 0
            for number in classes.tolist():
                found |= self._members[number]
            return found
        flags = np.zeros(len(self._members) + 1, np.bool_)
        flags[classes] = True
        return mask_of_flags(flags[self._class_of])  # the last flag is that of rows without a class
