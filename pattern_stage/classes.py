"""Rows that treat every event alike: those that differ in left input and window alone are one class."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pattern_stage.columns import NULL_TEXT, Column, Ints, Mask
from pattern_stage.fan_out import grown
from pattern_stage.flow import numbered, same
from pattern_stage.operators import RowVectors
from pattern_stage.rows import digest


class Classes:
    """The classes of the rows of an m-op. An event that several rows of a class have is looked at once.

    That is Cayuga's and RUMOR's sharing by channels: the rows of a class that have an event are its membership.
    """

    def __init__(self, rows: RowVectors) -> None:
        self._rows = rows
        self.of_row = np.full(16, -1, np.int64)
        """The class of each row; -1 for none."""
        self.right = np.zeros(16, np.int64)
        self.shape = np.zeros(16, np.int64)
        self.within = np.zeros(16, np.int64)
        """The greatest window of the rows that a class has had."""
        self.parameters: tuple[Column, ...] = ()
        self._sizes = np.zeros(16, np.int64)
        self._numbers: dict[bytes, int] = {}
        self._free: list[int] = []
        self.end = 0
        """A number past that of every class."""
        self._row_count = 0

    def add(self, new: Ints) -> Ints:
        """Takes in rows; returns the classes that are new."""
        rows = self._rows
        vectors: list[Column] = [rows.right[new], rows.shape[new]]
        vectors += [column[new] for column in rows.parameters]
        keys = [same(column) for column in vectors]
        heads, numbers = numbered(keys) if len(new) else (new, new)
        classes = np.empty(len(heads), np.int64)
        made: list[int] = []
        for place, vector in enumerate(self._vectors([key[heads] for key in keys])):
            number = self._numbers.get(vector)
            if number is None:
                number = self._free.pop() if self._free else self.end
                self.end = max(self.end, number + 1)
                self._numbers[vector] = number
                made.append(place)
            classes[place] = number
        self._grow(int(new.max(initial=-1)) + 1)
        places = np.array(made, np.int64)
        fresh = classes[places]
        for column, values in zip((self.right, self.shape, *self.parameters), vectors, strict=True):
            column[fresh] = values[heads[places]]
        self.of_row[new] = classes[numbers]
        self._row_count += len(new)
        self.within[fresh] = 0
        self.widen(new)
        np.add.at(self._sizes, self.of_row[new], 1)
        return fresh

    def _vectors(self, keys: list[Ints]) -> list[bytes]:
        """Returns digests of vectors, without the NULLs at their ends: a column that came later is NULL for the rows
        before."""
        packed = np.stack(keys, axis=1)
        is_value = np.ones(packed.shape, np.bool_)
        for place, column in enumerate(self._rows.parameters[: len(keys) - 2], 2):
            is_value[:, place] = packed[:, place] != same(_nulls(column, 1))[0]
        sizes = packed.shape[1] - np.argmax(is_value[:, ::-1], axis=1)
        data, step = packed.tobytes(), packed.shape[1] * 8
        ends = (np.arange(len(packed)) * step + sizes * 8).tolist()
        return [digest(data[place * step : end]) for place, end in enumerate(ends)]

    def widen(self, rows: Ints) -> None:
        """Learns that the windows of these rows may have grown."""
        np.maximum.at(self.within, self.of_row[rows], self._rows.within[rows])

    def remove(self, gone: Ints) -> Ints:
        """Forgets rows; returns the classes that have none left."""
        classes = self.of_row[gone]
        self.of_row[gone] = -1
        self._row_count -= len(gone)
        np.subtract.at(self._sizes, classes, 1)
        emptied = np.unique(classes[self._sizes[classes] == 0])
        if len(emptied):
            vectors: list[Column] = [self.right, self.shape, *self.parameters]
            for vector in self._vectors([same(column[emptied]) for column in vectors]):
                del self._numbers[vector]
            self._free.extend(emptied.tolist())
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

    def _grow(self, rows: int) -> None:
        self.of_row = grown(self.of_row, rows, -1)
        self.right, self.shape = grown(self.right, self.end), grown(self.shape, self.end)
        self.within, self._sizes = grown(self.within, self.end), grown(self._sizes, self.end)
        wanted = self._rows.parameters
        columns = self.parameters + tuple(_nulls(column, 0) for column in wanted[len(self.parameters) :])
        size = len(self.right)
        self.parameters = tuple(
            column if len(column) >= size else np.concatenate([column, _nulls(column, size - len(column))])
            for column in columns
        )


def _nulls(column: Column, count: int) -> Column:
    return np.full(count, NULL_TEXT, np.int64) if column.dtype == np.int64 else np.full(count, np.nan)


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
