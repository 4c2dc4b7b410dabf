"""Counts what sets of rows have, and finds the rows that have too much."""

from __future__ import annotations

import numpy as np

from pattern_stage.columns import Ints
from pattern_stage.matching.masks import mask_of, rows_of


class Tally:
    """Counts what sets of rows have, and finds the rows that have more than `most`. It looks at single rows only when
    one of them may have more."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: dict[int, int] = {}
        self._room = most

    def add(self, rows: int, amount: int = 1) -> None:
        """Counts something that all of these rows have."""
        self._counts[rows] = self._counts.get(rows, 0) + amount
        self._room -= amount

    def clear(self) -> None:
        """Begins anew."""
        if self._counts:
            self._counts, self._room = {}, self._most

    def over(self) -> int:
        """Returns the rows that have more than `most`, and forgets them."""
        if self._room >= 0:
            return 0
        counts = self._by_row()
        found = mask_of(np.flatnonzero(counts > self._most))
        if found:
            before, self._counts = self._counts, {}
            for mask, amount in before.items():
                if left := mask & ~found:
                    self._counts[left] = self._counts.get(left, 0) + amount
        self._room = self._most - int(counts[counts <= self._most].max(initial=0))
        return found

    @property
    def room(self) -> int:
        """How much more may be counted before a row may have too much; or less."""
        return self._room

    def _by_row(self) -> Ints:
        size = max((mask.bit_length() for mask in self._counts), default=0)
        found = np.zeros(size, np.int64)
        for mask, amount in self._counts.items():
            found[rows_of(mask)] += amount
        return found
