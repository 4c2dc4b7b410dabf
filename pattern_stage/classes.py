"""Rows that treat every event alike: those that differ in left input and window alone are one class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from common.distinct import distinct
from pattern_stage.columns import Column, Ints, Mask
from pattern_stage.constant_columns import written
from pattern_stage.fan_out import grown
from pattern_stage.flow import numbered, same
from pattern_stage.hash_table import HashTable, hashes_of
from pattern_stage.operators import RowVectors
from pattern_stage.rows import nulls
from pattern_stage.slots import Slots


class Classes:
    """The classes of the rows of an m-op. An event that several rows of a class have is looked at once.

    That is Cayuga's and RUMOR's sharing by channels: the rows of a class that have an event are its membership.
    """

    def __init__(self, rows: RowVectors) -> None:
        self._rows = rows
        self.of_row = np.full(16, -1, np.int64)
        """The class of each row; -1 for none."""
        self.right, self.shape, self.within = (np.zeros(0, np.int64) for _ in range(3))
        """The greatest window of the rows that a class has had."""
        self.parameters: tuple[Column, ...] = ()
        self._sizes = np.zeros(16, np.int64)
        self._numbers = HashTable()
        self._slots = Slots()
        self._row_count = 0

    @property
    def end(self) -> int:
        """A number past that of every class."""
        return self._slots.end

    def add(self, new: Ints) -> Ints:
        """Takes in rows; returns the classes that are new."""
        rows = self._rows
        lacking = rows.parameters[len(self.parameters) :]
        self.parameters += tuple(nulls(column.dtype, self.end) for column in lacking)
        vectors = [rows.right[new], rows.shape[new], *(column[new] for column in rows.parameters)]
        keys = list(map(same, vectors))
        hashes = hashes_of(keys[:2], keys[2:])

        def equal(at: Ints, classes: Ints) -> Mask:
            held: Mask = np.ones(len(at), np.bool_)
            for key, column in zip(keys, (self.right, self.shape, *self.parameters), strict=True):
                held &= key[at] == same(column[classes])
            return held

        classes = self._numbers.find(hashes, equal)
        unknown = np.flatnonzero(classes < 0)
        fresh = unknown
        if len(unknown):
            heads, of = numbered([key[unknown] for key in keys])
            first, fresh = unknown[heads], self._slots.take(len(heads))
            classes[unknown] = fresh[of]
            self._write(fresh, [column[first] for column in vectors], rows.within[new[first]])
            self._numbers.add(hashes[first], fresh)
        self.of_row = grown(self.of_row, int(new.max(initial=-1)) + 1, -1)
        self.of_row[new] = classes
        self._row_count += len(new)
        self._widen(classes, rows.within[new])
        np.add.at(self._sizes, classes, 1)
        return fresh

    def _write(self, fresh: Ints, vectors: Sequence[Column], within: Ints) -> None:
        right, shape, *parameters = vectors
        self.right = written(self.right, fresh, cast(Ints, right), self.end)
        self.shape = written(self.shape, fresh, cast(Ints, shape), self.end)
        self.parameters = tuple(
            written(column, fresh, values, self.end) for column, values in zip(self.parameters, parameters, strict=True)
        )
        self.within = written(self.within, fresh, within, self.end)
        self._sizes = grown(self._sizes, self.end)

    def _widen(self, classes: Ints, within: Ints) -> None:
        wider = np.flatnonzero(within > self.within[classes])
        if len(wider):
            if not self.within.flags.writeable:
                self.within = self.within.copy()
            np.maximum.at(self.within, classes[wider], within[wider])

    def remove(self, gone: Ints) -> Ints:
        """Forgets rows; returns the classes that have none left."""
        classes = self.of_row[gone]
        self.of_row[gone] = -1
        self._row_count -= len(gone)
        np.subtract.at(self._sizes, classes, 1)
        emptied = distinct(classes[self._sizes[classes] == 0])
        keys = [same(column[emptied]) for column in (self.right, self.shape, *self.parameters)]
        self._numbers.remove(hashes_of(keys[:2], keys[2:]), emptied)
        self._slots.give(emptied)
        return emptied

    @property
    def single(self) -> bool:
        """Whether each class has one row only."""
        return len(self._numbers) == self._row_count

    def all(self) -> Ints:
        """Returns all classes."""
        return np.flatnonzero(self._sizes[: self.end])

    def marked(self, classes: Ints) -> Mask:
        """Returns for every number of a class whether it is among these."""
        result = np.zeros(self.end, np.bool_)
        result[classes] = True
        return result


def each_shape(shapes: Ints) -> Iterator[tuple[int, Ints | slice]]:
    """Returns the shapes that are among these, each with its places."""
    if len(shapes) == 0:
        return
    first = int(shapes[0])
    if np.all(shapes == first):
        yield first, slice(None)
        return
    # Short integers are sorted by their digits, in linear time.
    order = np.argsort(shapes.astype(np.uint16) if int(shapes.max()) < 1 << 16 else shapes, kind="stable")
    ordered = shapes[order]
    bounds = np.flatnonzero(np.diff(ordered)) + 1
    for start, places in zip([0, *bounds.tolist()], np.split(order, bounds), strict=True):
        yield int(ordered[start]), places
