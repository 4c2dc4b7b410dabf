"""Allocation of places in columns, and reference-counted events."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.arrays import Ints, distinct
from pattern_stage.columns import Column, Columns
from pattern_stage.fan_out import grow_array


class Slots:
    """Allocates places; freed ones first."""

    def __init__(self) -> None:
        self.end = 0
        """One past the greatest place in use."""
        self._free = np.zeros(16, np.int64)
        self._free_count = 0

    def __len__(self) -> int:
        return self.end - self._free_count

    def take(self, count: int) -> Ints:
        again = min(count, self._free_count)
        self._free_count -= again
        fresh = np.arange(self.end, self.end + count - again)
        self.end += count - again
        return np.concatenate([self._free[self._free_count : self._free_count + again], fresh])

    def give(self, places: Ints) -> None:
        self._free = grow_array(self._free, self._free_count + len(places))
        self._free[self._free_count : self._free_count + len(places)] = places
        self._free_count += len(places)
        if self._free_count == self.end:
            self.end = self._free_count = 0


class KeptEvents:
    """Reference-counted events, possibly with several sides, as FOLD's."""

    def __init__(self, sides: int) -> None:
        self.sides: list[Columns] = []
        """The columns of each side, longer than there are events."""
        self._count = sides
        self._slots = Slots()
        self._uses = np.zeros(16, np.int64)

    def put(self, sides: Sequence[Columns]) -> Ints:
        """Adds events without uses; returns their places."""
        places = self._slots.take(len(sides[0]))
        self._uses = grow_array(self._uses, self._slots.end)
        self._uses[places] = 0
        if not self.sides:
            self.sides = [_room(side) for side in sides]
        if self._slots.end > len(self.sides[0]):
            self.sides = [_room(side, len(self._uses)) for side in self.sides]
        for kept, side in zip(self.sides, sides, strict=True):
            kept.t0[places], kept.t1[places], kept.parts[places] = side.t0, side.t1, side.parts
            for column, values in zip(kept.values, side.values, strict=True):
                column[places] = values
        return places

    def use(self, places: Ints) -> None:
        np.add.at(self._uses, places, 1)

    def leave(self, places: Ints) -> None:
        np.subtract.at(self._uses, places, 1)

    def sweep(self, places: Ints) -> None:
        """Frees those of these events without uses."""
        unused = places[self._uses[places] == 0]
        if len(unused):
            self._slots.give(distinct(unused))


def _room(columns: Columns, size: int = 16) -> Columns:
    def longer(column: Column) -> Column:
        result = np.zeros((max(size, len(column)), *column.shape[1:]), column.dtype)
        result[: len(column)] = column
        return result

    values = tuple(longer(column) for column in columns.values)
    return Columns(longer(columns.t0), longer(columns.t1), values, longer(columns.parts))  # type: ignore[arg-type]  # Ints
