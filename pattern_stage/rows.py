"""The rows of an m-op: its distinct vectors of left row, right row and parameters, counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


class Vectors(NamedTuple):
    """Rows as columns. See `Rows`."""

    left: Ints
    right: Ints
    shape: Ints
    within: Ints
    apart: Ints
    parameters: tuple[Column, ...]
    """All columns of the m-op."""

    def take(self, places: Ints) -> Vectors:
        """Returns the vectors at these places."""
        parameters = tuple(column[places] for column in self.parameters)
        left, right, shape, within, apart = (column[places] for column in self[:5])
        return Vectors(left, right, shape, within, apart, parameters)

    def keys(self) -> list[Ints]:
        """Returns columns of numbers, which are equal where vectors are."""
        return [*self[:5], *map(same, self.parameters)]


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

    def add(self, vectors: Vectors) -> tuple[Ints, Ints]:
        """Counts a use of each of these rows. Returns the number of each, and the numbers that are new."""
        keys = vectors.keys()
        hashes = _hashes(keys)
        found = self._find(keys, hashes)
        lacking = np.flatnonzero(found < 0)
        new = lacking
        if len(lacking):
            heads, of = numbered([key[lacking] for key in keys])
            first, new = lacking[heads], self._slots.take(len(heads))
            found[lacking] = new[of]
            self._write(new, vectors.take(first))
            self._numbers.add(hashes[first], new)
        np.add.at(self.count, found, 1)
        return found, new

    def find(self, vectors: Vectors) -> Ints:
        """Returns the number of each of these rows, -1 for one that there is not."""
        keys = vectors.keys()
        return self._find(keys, _hashes(keys))

    def remove(self, rows: Ints) -> Ints:
        """Takes back a use of each of these rows. Returns those that have no more.

        Their columns stay as they are until `free`.
        """
        np.subtract.at(self.count, rows, 1)
        gone = distinct(rows[self.count[rows] == 0])
        if len(gone):
            self._numbers.remove(_hashes(self._all().take(gone).keys()), gone)
        return gone

    def free(self, gone: Ints) -> None:
        """Lets the numbers of rows that have gone be given to new ones."""
        self._slots.give(gone)

    def _all(self) -> Vectors:
        return Vectors(self.left, self.right, self.shape, self.within, self.apart, self.parameters)

    def _find(self, keys: list[Ints], hashes: Ints) -> Ints:
        def equal(at: Ints, numbers: Ints) -> Mask:
            held: Mask = np.ones(len(at), np.bool_)
            for key, column in zip(keys, self._all().take(numbers).keys(), strict=True):
                held &= key[at] == column
            return held

        return self._numbers.find(hashes, equal)

    def _write(self, new: Ints, vectors: Vectors) -> None:
        size = self.end
        self.left, self.right, self.shape, self.within, self.apart = (
            written(column, new, values, size) for column, values in zip(self._all()[:5], vectors[:5], strict=True)
        )
        self.parameters = tuple(
            written(column, new, values, size)
            for column, values in zip(self.parameters, vectors.parameters, strict=True)
        )
        if size > len(self.count):
            self.count = np.append(self.count, np.zeros(room(size, len(self.count)) - len(self.count), np.int64))


def _hashes(keys: Sequence[Ints]) -> Ints:
    return hashes_of(keys[:5], keys[5:])


def nulls(dtype: object, count: int) -> Column:
    """Returns a column of NULLs, of codes or of numbers."""
    return np.full(count, NULL_TEXT, np.int64) if dtype == np.int64 else np.full(count, np.nan)
