"""Keeps the newest rows of a table in Arrow: cheap to add, and read only when somebody wants them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Row = dict[str, Any]

AT_ONCE = 1_000
"""So many rows go together when there are too many."""


class RecentRows:
    """Rows by a column of numbers. Those that are added later have greater numbers. Not for several threads at once."""

    def __init__(self, column: str, most_bytes: int) -> None:
        """Keeps so many bytes, and the rows that were added last."""
        self._column, self._most = column, most_bytes
        self._bytes = 0
        self._begins: list[int] = []
        self._numbers: list[NDArray[np.int64]] = []
        self._rows: list[dict[str, pa.Array]] = []
        self._sizes: list[int] = []

    def add(self, rows: pa.Table) -> None:
        """Adds rows, in any order among themselves."""
        numbers = rows[self._column].to_numpy()
        order = np.argsort(numbers)
        for begin in range(0, len(order), AT_ONCE):
            some = order[begin : begin + AT_ONCE]
            self._begins.append(int(numbers[some[0]]))
            self._numbers.append(numbers[some])
            taken = rows.take(pa.array(some))  # a slice would hold all of the memory
            self._rows.append({name: taken[name].combine_chunks() for name in taken.column_names})
            self._sizes.append(taken.nbytes)
            self._bytes += taken.nbytes
        gone = 0
        while self._bytes > self._most and gone < len(self._rows) - 1:
            self._bytes -= self._sizes[gone]
            gone += 1
        del self._begins[:gone], self._numbers[:gone], self._rows[:gone], self._sizes[:gone]

    def rows(self, wanted: Iterable[int]) -> dict[int, Row]:
        """Returns those of some rows that are kept, by number."""
        found: dict[int, Row] = {}
        for number in wanted:
            some = bisect_right(self._begins, number) - 1
            if some >= 0:
                numbers = self._numbers[some]
                place = int(np.searchsorted(numbers, number))
                if place < len(numbers) and numbers[place] == number:
                    found[number] = {name: column[place].as_py() for name, column in self._rows[some].items()}
        return found

    def clear(self) -> None:
        """Forgets all."""
        self._begins, self._numbers, self._rows, self._sizes, self._bytes = [], [], [], [], 0
