"""The windows of the rows that share runs: a match is of a row only if its span is within the row's window."""

from __future__ import annotations

from bisect import bisect_left

from common.distinct import distinct
from pattern_stage.columns import Ints
from pattern_stage.matching.masks import mask_of
from pattern_stage.matching.nodes import EVERY
from pattern_stage.operators import RowVectors


class RowWindows:
    """The windows of some rows."""

    def __init__(self, rows: RowVectors) -> None:
        self._rows = rows
        self._windows: list[int] = []
        self._fitting: list[int] = []
        """For each window, ascending, the rows with no smaller one."""

    def follow(self, numbers: Ints) -> None:
        """Takes in which rows there are."""
        within = self._rows.within[numbers]
        self._windows = distinct(within).tolist()
        self._fitting = [mask_of(numbers[within >= window]) for window in self._windows]

    def fitting(self, span: int) -> int:
        """Returns the rows that may have a match of a span."""
        place = bisect_left(self._windows, span)
        if place == 0:
            return EVERY
        return self._fitting[place] if place < len(self._windows) else 0

    def of(self, rows: Ints) -> Ints:
        """Returns the window of each of these rows."""
        return self._rows.within[rows]
