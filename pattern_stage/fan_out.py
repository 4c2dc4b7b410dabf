"""From rows of an input to the rows of an m-op that read them."""

from __future__ import annotations

import numpy as np

from pattern_stage.columns import Ints
from pattern_stage.flow import spread

_NONE = np.zeros(0, np.int64)


class FanOut:
    """Which rows read which source. To add or remove a row costs the same however many there are, if seen over many."""

    def __init__(self) -> None:
        self._base = _BySource(_NONE, _NONE)
        self._recent = _BySource(_NONE, _NONE)
        self._added: list[Ints] = []
        self._source = np.full(16, -1, np.int64)
        self._source_in_base = np.full(16, -1, np.int64)
        self._gone = 0

    def add(self, rows: Ints, sources: Ints) -> None:
        """Adds rows that are not there, each with its source."""
        needed = int(rows.max(initial=-1)) + 1
        if needed > len(self._source):
            self._source = grown(self._source, needed, -1)
            self._source_in_base = grown(self._source_in_base, needed, -1)
        self._source[rows] = sources
        # A row that was removed and has come back may be in the base still.
        self._added.append(rows[self._source_in_base[rows] != sources])

    def remove(self, rows: Ints) -> None:
        """Removes rows."""
        self._build()
        self._source[rows] = -1
        self._gone += len(rows)

    def of(self, sources: Ints) -> tuple[Ints, Ints]:
        """Returns pairs: the place of a source among those given, ascending, and a row that reads it."""
        self._build()
        places, rows = self._base.of(sources)
        if len(self._recent.rows):
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
        """Returns how many rows read each source, or a few more."""
        self._build()
        return self._base.counts(sources) + self._recent.counts(sources)

    def _build(self) -> None:
        if not self._added and 2 * self._gone <= len(self._base.rows) + len(self._recent.rows):
            return
        kept = self._recent.rows[self._source[self._recent.rows] == self._recent.sources]
        recent = np.unique(np.concatenate([kept, *self._added]))
        recent = recent[self._source[recent] >= 0]
        self._added = []
        if 8 * len(recent) <= len(self._base.rows) and 2 * self._gone <= len(self._base.rows):
            self._recent = _BySource(recent, self._source[recent])
            return
        kept = self._base.rows[self._source[self._base.rows] == self._base.sources]
        rows = np.concatenate([kept, recent])
        self._base, self._recent = _BySource(rows, self._source[rows]), _BySource(_NONE, _NONE)
        self._source_in_base[:] = -1
        self._source_in_base[rows] = self._source[rows]
        self._gone = 0


class _BySource:
    """Rows sorted by source."""

    def __init__(self, rows: Ints, sources: Ints) -> None:
        order = np.argsort(sources, kind="stable")
        self.rows, self.sources = rows[order], sources[order]
        count = int(self.sources[-1]) + 3 if len(rows) else 2
        # The last two are those of any source that is past the end.
        self._starts = np.searchsorted(self.sources, np.arange(count))

    def counts(self, sources: Ints) -> Ints:
        here = np.minimum(sources, len(self._starts) - 2)
        counts: Ints = self._starts[here + 1] - self._starts[here]
        return counts

    def of(self, sources: Ints) -> tuple[Ints, Ints]:
        here = np.minimum(sources, len(self._starts) - 2)
        starts = self._starts[here]
        places, place_of = spread(starts, self._starts[here + 1] - starts)
        return place_of, self.rows[places]


def grown(array: Ints, needed: int, fill: int = 0) -> Ints:
    """Returns an array that begins with `array` and has at least `needed` places, the others filled."""
    if needed <= len(array):
        return array
    result = np.full(max(needed, 2 * len(array)), fill, np.int64)
    result[: len(array)] = array
    return result
