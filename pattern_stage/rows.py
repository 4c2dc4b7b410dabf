"""The rows of an m-op: its distinct vectors of left row, right row and parameters, counted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.distinct import distinct
from pattern_stage.columns import NULL_TEXT, Column, Ints, Mask
from pattern_stage.constant_columns import room, written
from pattern_stage.flow import numbered, same
from pattern_stage.hash_table import HashTable, hashes_of
from pattern_stage.slots import Slots
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
    that are equal otherwise. Columns are longer than there are rows, and cannot be written to. The number of a row
    that has gone is given to a new one.
    """

    def __init__(self) -> None:
        self.left, self.right, self.shape, self.within, self.apart, self.count = (
            np.zeros(0, np.int64) for _ in range(6)
        )
        self.parameters: tuple[Column, ...] = ()
        self._numbers = HashTable()
        self._slots = Slots()

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def end(self) -> int:
        """One more than the greatest number of a row."""
        return self._slots.end

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
                self.parameters += (nulls(dtype, self.end),)
            found.append(place)
        return found

    def add(self, vectors: Vectors, shape: int = 0, places: Sequence[int] | None = None) -> tuple[Ints, Ints]:
        """Counts a use of each of these rows. Returns the number of each, and the numbers that are new.

        `places` are the columns of the parameters; without it, they are all there are.
        """
        keys = list(map(same, _columns(vectors)))
        hashes = _hashes(keys, shape)
        found = self._find(keys, hashes, shape, places)
        lacking = np.flatnonzero(found < 0)
        new = lacking
        if len(lacking):
            heads, of = numbered([key[lacking] for key in keys])
            first, new = lacking[heads], self._slots.take(len(heads))
            found[lacking] = new[of]
            left, right, parameters, within, apart = vectors
            values = tuple(column[first] for column in parameters)
            self._write(new, (left[first], right[first], values, within[first], apart[first]), shape, places)
            self._numbers.add(hashes[first], new)
        np.add.at(self.count, found, 1)
        return found, new

    def find(self, vectors: Vectors, shape: int = 0) -> Ints:
        """Returns the number of each of these rows, -1 for one that there is not."""
        keys = list(map(same, _columns(vectors)))
        return self._find(keys, _hashes(keys, shape), shape, None)

    def remove(self, rows: Ints, places: Sequence[int] | None = None) -> Ints:
        """Takes back a use of each of these rows, which have one shape. Returns those that have no more.

        Their columns stay as they are until `free`.
        """
        np.subtract.at(self.count, rows, 1)
        gone = distinct(rows[self.count[rows] == 0])
        if len(gone):
            keys = list(map(same, _columns(self.vectors(gone, places))))
            self._numbers.remove(_hashes(keys, int(self.shape[gone[0]])), gone)
        return gone

    def free(self, gone: Ints) -> None:
        """Lets the numbers of rows that have gone be given to new ones."""
        self._slots.give(gone)

    def vectors(self, rows: Ints, places: Sequence[int] | None = None) -> Vectors:
        """Returns what `add` was given for these rows, which have one shape."""
        used = range(len(self.parameters)) if places is None else places
        values = tuple(self.parameters[place][rows] for place in used)
        return self.left[rows], self.right[rows], values, self.within[rows], self.apart[rows]

    def _find(self, keys: list[Ints], hashes: Ints, shape: int, places: Sequence[int] | None) -> Ints:
        def equal(at: Ints, numbers: Ints) -> Mask:
            held: Mask = self.shape[numbers] == shape
            for key, column in zip(keys, _columns(self.vectors(numbers, places)), strict=True):
                held &= key[at] == same(column)
            return held

        return self._numbers.find(hashes, equal)

    def _write(self, new: Ints, vectors: Vectors, shape: int, places: Sequence[int] | None) -> None:
        left, right, parameters, within, apart = vectors
        size = self.end
        self.left, self.right = written(self.left, new, left, size), written(self.right, new, right, size)
        self.within, self.apart = written(self.within, new, within, size), written(self.apart, new, apart, size)
        self.shape = written(self.shape, new, np.full(len(new), shape), size)
        given = dict(zip(range(len(parameters)) if places is None else places, parameters, strict=True))
        self.parameters = tuple(
            written(column, new, given[at] if at in given else nulls(column.dtype, len(new)), size)
            for at, column in enumerate(self.parameters)
        )
        if size > len(self.count):
            self.count = np.append(self.count, np.zeros(room(size, len(self.count)) - len(self.count), np.int64))


def _columns(vectors: Vectors) -> list[Column]:
    left, right, parameters, within, apart = vectors
    return [left, right, within, apart, *parameters]


def _hashes(keys: Sequence[Ints], shape: int) -> Ints:
    return hashes_of([*keys, np.full(len(keys[0]), shape)])


def nulls(dtype: object, count: int) -> Column:
    """Returns a column of NULLs, of codes or of numbers."""
    return np.full(count, NULL_TEXT, np.int64) if dtype == np.int64 else np.full(count, np.nan)
