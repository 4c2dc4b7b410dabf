"""The events in the windows of AGGREGATE, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pattern_stage.columns import Column, Ints
from pattern_stage.fan_out import grown
from pattern_stage.flow import mixed, same
from pattern_stage.slots import Slots


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of events: their row, t1, how many events it stands for, and some values."""

    rows: Ints
    times: Ints
    weights: Ints
    columns: tuple[Column, ...]


class WindowStore:
    """What windows hold. An interval looks at all marks, and takes the events of the groups that it is about."""

    def __init__(self, are_texts: Sequence[bool]) -> None:
        self.counts = np.zeros(16, np.int64)
        """How many events there are of each row."""
        self._slots = Slots()
        self._alive = np.zeros(16, np.bool_)
        self._rows, self._times, self._weights, self._marks = (np.zeros(16, np.int64) for _ in range(4))
        self._columns: list[Column] = [np.zeros(16, np.int64) if text else np.zeros(16) for text in are_texts]

    def all(self) -> Kept:
        """Returns all events."""
        return self._take(np.flatnonzero(self._alive[: self._slots.end]))

    def touched(self, rows: Ints, by: Sequence[Column]) -> Kept:
        """Returns the events of these groups, each a row and values of BY, and perhaps a few more."""
        marks = _marks(rows, by)
        table = np.zeros(1 << max(10, int(8 * len(marks)).bit_length()), np.bool_)
        table[marks & (len(table) - 1)] = True
        end = self._slots.end
        return self._take(np.flatnonzero(table[self._marks[:end] & (len(table) - 1)] & self._alive[:end]))

    def add(self, rows: Ints, times: Ints, weights: Ints, columns: Sequence[Column], by: Sequence[Column]) -> None:
        """Adds events, or what stands for so many of them."""
        places = self._slots.take(len(rows))
        if self._slots.end > len(self._alive):
            self._grow(self._slots.end)
        self._rows[places], self._times[places], self._marks[places] = rows, times, _marks(rows, by)
        self._weights[places], self._alive[places] = weights, True
        for mine, column in zip(self._columns, columns, strict=True):
            mine[places] = column
        self.counts = grown(self.counts, int(rows.max(initial=-1)) + 1)
        np.add.at(self.counts, rows, weights)

    def expire(self, over: Ints, until: int) -> None:
        """Forgets what is in no window that ends at `until` or later. `over` has the length of each row's."""
        end = self._slots.end
        alive = self._alive[:end]
        self._drop(np.flatnonzero((self._times[:end] + over[self._rows[:end]] <= until) & alive))

    def remove_rows(self, gone: Ints) -> None:
        """Forgets the events of rows."""
        end = self._slots.end
        self._drop(np.flatnonzero(np.isin(self._rows[:end], gone) & self._alive[:end]))

    def _drop(self, places: Ints) -> None:
        np.subtract.at(self.counts, self._rows[places], self._weights[places])
        self._alive[places] = False
        self._slots.give(places)

    def _take(self, places: Ints) -> Kept:
        columns = tuple(column[places] for column in self._columns)
        return Kept(self._rows[places], self._times[places], self._weights[places], columns)

    def _grow(self, size: int) -> None:
        self._rows, self._times = grown(self._rows, size), grown(self._times, size)
        self._weights, self._marks = grown(self._weights, size), grown(self._marks, size)
        more = len(self._rows) - len(self._alive)
        self._alive = np.concatenate([self._alive, np.zeros(more, np.bool_)])
        self._columns = [np.concatenate([column, np.zeros(more, column.dtype)]) for column in self._columns]


def _marks(rows: Ints, by: Sequence[Column]) -> Ints:
    return mixed([rows, *(same(column) for column in by)])
