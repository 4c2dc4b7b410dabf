"""The rows of an m-op: its distinct vectors of left row, right row and parameters, counted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from pattern_stage.columns import NULL_TEXT, Column, Ints
from xscl.algebra.events import Kind

NO_BOUND = 1 << 62
"""The window of a row without one."""

Vectors = tuple[Ints, Ints, tuple[Column, ...], Ints, Ints]
"""Rows as columns: their left and right rows, parameters, windows, and what keeps them apart."""


class Rows:
    """The rows of an m-op, as columns. Equal rows are one row, whose uses are counted.

    `left` and `right` are rows of the inputs, 0 where an input is a source or there is none. `shape` says which of the
    m-op's definitions a row has, and `parameters` has their columns; those that a definition does not use are NULL.
    `within` is the greatest DUR of a result, or the OVER of an AGGREGATE, in microseconds. `apart` keeps rows apart
    that are equal otherwise. Columns are longer than there are rows. The number of a row that has gone is given to a
    new one.
    """

    def __init__(self) -> None:
        self.left, self.right, self.shape, self.within, self.apart, self.count = (
            np.zeros(0, np.int64) for _ in range(6)
        )
        self.parameters: tuple[Column, ...] = ()
        self.end = 0
        """One more than the greatest number of a row."""
        self._numbers: dict[bytes, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self) -> Ints:
        """Returns the numbers of all rows."""
        return np.flatnonzero(self.count[: self.end])

    def places(self, kinds: Sequence[Kind]) -> list[int]:
        """Returns columns for the parameters of a definition, making those that it lacks."""
        found: list[int] = []
        for kind in kinds:
            dtype = np.int64 if kind == "string" else np.float64
            taken = (at for at, column in enumerate(self.parameters) if at not in found and column.dtype == dtype)
            place = next(taken, len(self.parameters))
            if place == len(self.parameters):
                self.parameters += (_nulls(dtype, len(self.count)),)
            found.append(place)
        return found

    def add(self, vectors: Vectors, shape: int = 0, places: Sequence[int] | None = None) -> tuple[Ints, Ints]:
        """Counts a use of each of these rows. Returns the number of each, and the numbers that are new.

        `places` are the columns of the parameters; without it, they are all there are.
        """
        left, right, parameters, within, apart = vectors
        keys = _keys(vectors, shape)
        numbers, free, end = self._numbers, self._free, self.end
        found = np.empty(len(keys), np.int64)
        new: list[int] = []
        firsts: list[int] = []
        for at, key in enumerate(keys):
            number = numbers.get(key)
            if number is None:
                number, end = (free.pop(), end) if free else (end, end + 1)
                numbers[key] = number
                new.append(number)
                firsts.append(at)
            found[at] = number
        added, first = np.array(new, np.int64), np.array(firsts, np.int64)
        self.end = end
        self._grow(end)
        self.left[added], self.right[added], self.shape[added] = left[first], right[first], shape
        self.within[added], self.apart[added] = within[first], apart[first]
        for column in self.parameters:
            column[added] = NULL_TEXT if column.dtype == np.int64 else np.nan
        for place, values in zip(range(len(parameters)) if places is None else places, parameters, strict=True):
            self.parameters[place][added] = values[first]
        np.add.at(self.count, found, 1)
        return found, added

    def find(self, vectors: Vectors, shape: int = 0) -> Ints:
        """Returns the number of each of these rows, -1 for one that there is not."""
        keys = _keys(vectors, shape)
        return np.fromiter((self._numbers.get(key, -1) for key in keys), np.int64, len(keys))

    def remove(self, rows: Ints, places: Sequence[int] | None = None) -> Ints:
        """Takes back a use of each of these rows, which have one shape. Returns those that have no more.

        Their columns stay as they are until `free`.
        """
        np.subtract.at(self.count, rows, 1)
        gone: Ints = np.unique(rows[self.count[rows] == 0])
        if len(gone):
            for key in _keys(self.vectors(gone, places), int(self.shape[gone[0]])):
                del self._numbers[key]
        return gone

    def free(self, gone: Ints) -> None:
        """Lets the numbers of rows that have gone be given to new ones."""
        self._free.extend(gone.tolist())

    def vectors(self, rows: Ints, places: Sequence[int] | None = None) -> Vectors:
        """Returns what `add` was given for these rows, which have one shape."""
        used = range(len(self.parameters)) if places is None else places
        values = tuple(self.parameters[place][rows] for place in used)
        return self.left[rows], self.right[rows], values, self.within[rows], self.apart[rows]

    def _grow(self, size: int) -> None:
        have = len(self.count)
        if size <= have:
            return
        more = max(size, have + have // 2, 16) - have
        for name in ("left", "right", "shape", "within", "apart", "count"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(more, np.int64)]))
        self.parameters = tuple(np.concatenate([column, _nulls(column.dtype, more)]) for column in self.parameters)


def _keys(vectors: Vectors, shape: int) -> list[bytes]:
    left, right, parameters, within, apart = vectors
    packed = np.empty((len(left), 5 + len(parameters)), np.int64)
    packed[:, 0], packed[:, 1], packed[:, 2], packed[:, 3], packed[:, 4] = left, right, shape, within, apart
    for place, column in enumerate(parameters, 5):
        # -0.0 equals 0.0, but has other bits.
        packed[:, place] = (column + 0.0).view(np.int64) if column.dtype == np.float64 else column
    data, step = packed.tobytes(), packed.shape[1] * 8
    return [digest(data[start : start + step]) for start in range(0, len(data), step)]


def digest(vector: bytes) -> bytes:
    """Returns what stands for a vector: as good as distinct, and short, as there is one for each row. With 16 bytes it
    would take 16 more in memory."""
    return hashlib.blake2b(vector, digest_size=15).digest()


def _nulls(dtype: object, count: int) -> Column:
    return np.full(count, NULL_TEXT, np.int64) if dtype == np.int64 else np.full(count, np.nan)
