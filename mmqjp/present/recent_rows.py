"""Keeps the newest rows of a table in Arrow: cheap to add, and read only when somebody wants them."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Row = dict[str, Any]

AT_ONCE = 1_000
"""So many rows go together when there are too many."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows in the order of their numbers, and the number of their bytes."""

    numbers: NDArray[np.int64]
    columns: dict[str, pa.Array]
    size: int

    @property
    def first(self) -> int:
        """The least number."""
        return int(self.numbers[0])

    def row(self, number: int) -> Row | None:
        """Returns the row with a number, if it is here."""
        place = int(np.searchsorted(self.numbers, number))
        if place == len(self.numbers) or self.numbers[place] != number:
            return None
        return {name: column[place].as_py() for name, column in self.columns.items()}


def blocks(rows: pa.Table, column: str) -> list[Block]:
    """Returns rows, in any order, in blocks: in the order of the numbers in a column."""
    numbers = rows[column].to_numpy()
    order = np.argsort(numbers)
    made: list[Block] = []
    for begin in range(0, len(order), AT_ONCE):
        some = order[begin : begin + AT_ONCE]
        taken = rows.take(pa.array(some))  # a slice would hold all of the memory
        columns = {name: taken[name].combine_chunks() for name in taken.column_names}
        made.append(Block(numbers[some], columns, taken.nbytes))
    return made


class RecentRows:
    """Rows by their numbers. Those that are added later have greater numbers. Not for several threads at once."""

    def __init__(self, most_bytes: int) -> None:
        """Keeps so many bytes, and the rows that were added last."""
        self._most, self._bytes = most_bytes, 0
        self._blocks = deque[Block]()

    def add(self, rows: Iterable[Block]) -> None:
        """Adds rows in order."""
        for block in rows:
            self._blocks.append(block)
            self._bytes += block.size
        while self._bytes > self._most and len(self._blocks) > 1:
            self._bytes -= self._blocks.popleft().size

    def rows(self, wanted: Iterable[int]) -> dict[int, Row]:
        """Returns those of some rows that are kept, by number."""
        found: dict[int, Row] = {}
        for number in wanted:
            place = bisect_right(self._blocks, number, key=lambda block: block.first) - 1
            if place >= 0 and (row := self._blocks[place].row(number)) is not None:
                found[number] = row
        return found

    def clear(self) -> None:
        """Forgets all."""
        self._blocks.clear()
        self._bytes = 0
