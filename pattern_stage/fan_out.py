"""Arrays that grow in amortised constant time: places in columns, numbered distinct vectors, reference-counted events,
and which rows of an m-op read the rows of an input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from common.arrays import Ints, Mask, distinct
from pattern_stage import columns as cols

Short = NDArray[np.int32]

Grown = TypeVar("Grown", Ints, Short, Mask)
R = TypeVar("R", bound=cols.ColumnRecord)


class RowReaders:
    """The rows that read each source. Adding or removing a row takes amortised constant time."""

    def __init__(self) -> None:
        self._base = self._recent = _BySource(cols.NO_ROWS, cols.NO_ROWS)
        self._added: list[Ints] = []
        self._source: Short = np.full(16, -1, np.int32)
        self._source_in_base: Short = np.full(16, -1, np.int32)
        self._gone = 0

    def add(self, rows: Ints, sources: Ints) -> None:
        """Adds new rows, each with its source."""
        needed = int(rows.max(initial=-1)) + 1
        if needed > len(self._source):
            self._source = grow_array(self._source, needed, -1)
            self._source_in_base = grow_array(self._source_in_base, needed, -1)
        self._source[rows] = sources
        # A row that was removed and has come back may be in the base still.
        self._added.append(rows[self._source_in_base[rows] != sources])

    def remove(self, rows: Ints) -> None:
        self._build()
        self._source[rows] = -1
        self._gone += len(rows)

    def of(self, sources: Ints) -> tuple[Ints, Ints]:
        """Returns pairs: index of a given source, ascending, and a row that reads it."""
        self._build()
        places, rows = self._base.of(sources)
        if len(self._recent):
            more_places, more_rows = self._recent.of(sources)
            if len(more_rows):
                places, rows = np.concatenate([places, more_places]), np.concatenate([rows, more_rows])
                order = np.argsort(places, kind="stable")
                places, rows = places[order], rows[order]
        if self._gone:
            alive = self._source[rows] == sources[places]
            places, rows = places[alive], rows[alive]
        return places, rows

    def counts(self, sources: Ints) -> Ints:
        """Returns the number of readers of each source, which may count removed ones."""
        self._build()
        return self._base.counts(sources) + self._recent.counts(sources)

    def _build(self) -> None:
        if not self._added and 2 * self._gone <= len(self._base) + len(self._recent):
            return
        recent = distinct(np.concatenate([self._kept(self._recent), *self._added]))
        recent = recent[self._source[recent] >= 0]
        self._added = []
        if 8 * len(recent) <= len(self._base) and 2 * self._gone <= len(self._base):
            self._recent = _BySource(recent, self._source[recent])
            return
        rows = np.concatenate([self._kept(self._base), recent])
        self._base, self._recent = _BySource(rows, self._source[rows]), _BySource(cols.NO_ROWS, cols.NO_ROWS)
        self._source_in_base[:] = -1
        self._source_in_base[rows] = self._source[rows]
        self._gone = 0

    def _kept(self, some: _BySource) -> Ints:
        rows, sources = some.all()
        kept: Ints = rows[self._source[rows] == sources]
        return kept


class _BySource:
    def __init__(self, rows: Ints, sources: Ints | Short) -> None:
        count = int(sources.max(initial=-1)) + 3
        # The last two are those of any source that is past the end.
        self._starts: Short = np.zeros(count, np.int32)
        np.cumsum(np.bincount(sources, minlength=count - 1), out=self._starts[1:])
        if np.any(sources[1:] < sources[:-1]):
            rows = rows[np.argsort(sources, kind="stable")]
        self._rows: Short = rows.astype(np.int32)

    def __len__(self) -> int:
        return len(self._rows)

    def all(self) -> tuple[Ints, Ints]:
        return self._rows.astype(np.int64), np.repeat(np.arange(len(self._starts) - 1), np.diff(self._starts))

    def counts(self, sources: Ints) -> Ints:
        return self._ranges(sources)[1]

    def of(self, sources: Ints) -> tuple[Ints, Ints]:
        places, place_of = cols.spread(*self._ranges(sources))
        return place_of, self._rows[places].astype(np.int64)

    def _ranges(self, sources: Ints) -> tuple[Ints, Ints]:
        here = np.minimum(sources, len(self._starts) - 2)
        starts = self._starts[here].astype(np.int64)
        return starts, self._starts[here + 1] - starts


def grow_array(array: Grown, needed: int, fill: int = 0) -> Grown:
    """Returns `array`, extended to at least `needed` places by `fill`."""
    if needed <= len(array):
        return array
    result = np.full((cols.room(needed, len(array)), *array.shape[1:]), fill, array.dtype)
    result[: len(array)] = array
    return cast(Grown, result)


def grow_record(record: R, needed: int) -> R:
    return record.mapped(partial(grow_array, needed=needed))


class Slots:
    """Allocates places; freed ones first."""

    def __init__(self) -> None:
        self.end = 0  # one past the greatest place in use
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


class Interned:
    """Distinct vectors by number, with use counts. A vector has integers, in the columns `names`, and parameters, NULL
    where it lacks them; more columns may come. Columns are read-only and longer than needed; numbers are reused."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        for name in names:
            setattr(self, name, cols.NO_ROWS)
        self.parameters: tuple[cols.Column, ...] = ()
        self.count = np.zeros(0, np.int64)
        self._numbers = cols.HashTable()
        self._slots = Slots()

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def end(self) -> int:
        """One past the greatest number."""
        return self._slots.end

    def numbers(self) -> Ints:
        return np.flatnonzero(self.count[: self.end])

    def add_parameters(self, dtypes: Iterable[object]) -> None:
        for dtype in dtypes:
            nulls = np.full(self.end, cols.NULL_TEXT, np.int64) if dtype == np.int64 else np.full(self.end, np.nan)
            self.parameters += (nulls,)

    def intern(self, columns: Sequence[Ints], parameters: Sequence[cols.Column] = ()) -> tuple[Ints, Ints, Ints]:
        """Counts a use of each vector. Returns their numbers, the new ones, and the first place of each of these."""
        keys = [*columns, *map(cols.same, parameters)]
        hashes = self._hashes(keys)

        def equal(at: Ints, numbers: Ints) -> Mask:
            held: Mask = np.ones(len(at), np.bool_)
            for key, column in zip(keys, self._keys(numbers), strict=True):
                held &= key[at] == column
            return held

        found = self._numbers.find(hashes, equal)
        first = new = np.flatnonzero(found < 0)
        if len(new):
            lacking = new
            heads, of = cols.number_distinct([key[lacking] for key in keys])
            first, new = lacking[heads], self._slots.take(len(heads))
            found[lacking] = new[of]
            for name, values in zip(self._names, columns, strict=True):
                setattr(self, name, cols.scatter(getattr(self, name), new, values[first], self.end))
            pairs = zip(self.parameters, parameters, strict=True)
            self.parameters = tuple([cols.scatter(column, new, values[first], self.end) for column, values in pairs])
            self.count = grow_array(self.count, self.end)
            self._numbers.add(hashes[first], new)
        np.add.at(self.count, found, 1)
        return found, new, first

    def release(self, numbers: Ints) -> Ints:
        """Drops a use of each vector. Returns the unused ones, whose columns stay until `free`."""
        np.subtract.at(self.count, numbers, 1)
        gone = distinct(numbers[self.count[numbers] == 0])
        if len(gone):
            self._numbers.remove(self._hashes(self._keys(gone)), gone)
        return gone

    def free(self, gone: Ints) -> None:
        self._slots.give(gone)

    def _keys(self, numbers: Ints) -> list[Ints]:
        columns = [getattr(self, name)[numbers] for name in self._names]
        return columns + [cols.same(column[numbers]) for column in self.parameters]

    def _hashes(self, keys: Sequence[Ints]) -> Ints:
        return cols.hashes_of(keys[: len(self._names)], keys[len(self._names) :])


class CountedPlaces(Slots):
    """Allocates places with reference counts, which are 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self._uses = np.zeros(16, np.int64)

    def take(self, count: int) -> Ints:
        places = super().take(count)
        self._uses = grow_array(self._uses, self.end)
        self._uses[places] = 0
        return places

    def use(self, places: Ints) -> None:
        np.add.at(self._uses, places, 1)

    def leave(self, places: Ints) -> None:
        np.subtract.at(self._uses, places, 1)

    def sweep(self, places: Ints) -> Ints:
        """Frees those of these places without uses. Returns them."""
        unused = distinct(places[self._uses[places] == 0])
        self.give(unused)
        return unused


class KeptEvents(CountedPlaces):
    """Reference-counted events, possibly with several sides, as FOLD's."""

    def __init__(self) -> None:
        super().__init__()
        self.sides: list[cols.Columns] = []  # the columns of each side, longer than there are events

    def put(self, sides: Sequence[cols.Columns]) -> Ints:
        """Adds events without uses; returns their places."""
        places = self.take(len(sides[0]))
        self.sides = [grow_record(side, self.end) for side in self.sides or [side.take(slice(0)) for side in sides]]
        for kept, side in zip(self.sides, sides, strict=True):
            kept.put(places, side)
        return places
