"""The membership of instances: which rows have one."""

from __future__ import annotations

import numpy as np

from common.distinct import distinct
from pattern_stage.columns import Ints
from pattern_stage.fan_out import grown
from pattern_stage.slots import Slots
from pattern_stage.stretches import spread

_LITTLE = 4096
"""So many rows of sets that are gone are not worth clearing away."""


class Members:
    """Sets of rows, by codes: a row that is alone is its own code, the codes of sets are negative."""

    def __init__(self) -> None:
        self._rows = np.zeros(16, np.int64)
        self._end = 0
        self._waste = 0
        self._slots = Slots()
        self._starts, self._sizes, self._uses = (np.zeros(16, np.int64) for _ in range(3))

    def put(self, rows: Ints, sizes: Ints) -> Ints:
        """Keeps sets, one after the other, none of them empty, which have no use yet; returns their codes."""
        firsts = np.cumsum(sizes) - sizes
        codes: Ints = rows[firsts]
        several = np.flatnonzero(sizes > 1)
        if len(several) == 0:
            return codes
        counts = sizes[several]
        taken, _ = spread(firsts[several], counts)
        places = self._slots.take(len(several))
        self._starts, self._sizes = grown(self._starts, self._slots.end), grown(self._sizes, self._slots.end)
        self._uses = grown(self._uses, self._slots.end)
        self._rows = grown(self._rows, self._end + len(taken))
        self._rows[self._end : self._end + len(taken)] = rows[taken]
        self._starts[places], self._sizes[places] = self._end + np.cumsum(counts) - counts, counts
        self._uses[places] = 0
        self._end += len(taken)
        codes[several] = -1 - places
        return codes

    def rows(self, codes: Ints) -> tuple[Ints, Ints]:
        """Returns pairs: the place of a code among these, ascending, and a row of its set."""
        sets = codes < 0
        if not np.any(sets):
            return np.arange(len(codes)), codes
        places = np.where(sets, -1 - codes, 0)
        numbers, place_of = spread(self._starts[places], np.where(sets, self._sizes[places], 1))
        numbers[~sets[place_of]] = 0
        return place_of, np.where(sets[place_of], self._rows[numbers], codes[place_of])

    def use(self, codes: Ints) -> None:
        """Counts a use of each of these sets."""
        np.add.at(self._uses, -1 - codes[codes < 0], 1)

    def leave(self, codes: Ints) -> None:
        """Takes back a use of each of these sets."""
        np.subtract.at(self._uses, -1 - codes[codes < 0], 1)

    def sweep(self, codes: Ints) -> None:
        """Forgets those of these sets that have no use."""
        places = -1 - codes[codes < 0]
        unused = distinct(places[self._uses[places] == 0])
        self._waste += int(self._sizes[unused].sum())
        self._sizes[unused] = 0
        self._slots.give(unused)
        self._tidy()

    def remove(self, gone: Ints) -> None:
        """Takes rows out of all sets, which may leave them empty."""
        there = np.flatnonzero(self._sizes[: self._slots.end])
        places, set_of = spread(self._starts[there], self._sizes[there])
        kept = ~np.isin(self._rows[places], gone)
        rows = self._rows[places[kept]]
        self._sizes[there] = np.bincount(set_of[kept], minlength=len(there))
        self._starts[there] = np.cumsum(self._sizes[there]) - self._sizes[there]
        self._rows[: len(rows)] = rows
        self._end, self._waste = len(rows), 0

    def empty(self, codes: Ints, gone: Ints) -> Ints:
        """Returns which of these sets had no rows but those, which `remove` was given."""
        sets = codes < 0
        sizes = self._sizes[np.where(sets, -1 - codes, 0)]
        return np.flatnonzero(np.where(sets, sizes == 0, np.isin(codes, gone)))

    def _tidy(self) -> None:
        if self._waste > max(_LITTLE, self._end // 2):
            self.remove(np.zeros(0, np.int64))
