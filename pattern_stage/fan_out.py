"""Maps rows of an input to the rows of an m-op that read them, with updates in amortised constant time."""

from __future__ import annotations

from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from common.arrays import Ints, distinct
from pattern_stage.columns import room, spread

_NONE = np.zeros(0, np.int64)

Short = NDArray[np.int32]

I = TypeVar("I", Ints, Short)  # noqa: E741


class RowReaders:
    """The rows that read each source. Adding or removing a row takes amortised constant time."""

    def __init__(self) -> None:
        self._base = _BySource(_NONE, _NONE)
        self._recent = _BySource(_NONE, _NONE)
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
        self._base, self._recent = _BySource(rows, self._source[rows]), _BySource(_NONE, _NONE)
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
        places, place_of = spread(*self._ranges(sources))
        return place_of, self._rows[places].astype(np.int64)

    def _ranges(self, sources: Ints) -> tuple[Ints, Ints]:
        here = np.minimum(sources, len(self._starts) - 2)
        starts = self._starts[here].astype(np.int64)
        return starts, self._starts[here + 1] - starts


def grow_array(array: I, needed: int, fill: int = 0) -> I:
    """Returns `array`, extended to at least `needed` places by `fill`."""
    if needed <= len(array):
        return array
    result = np.full(room(needed, len(array)), fill, array.dtype)
    result[: len(array)] = array
    return cast(I, result)
