"""How much is kept for each row: events of trails and ways to them, as long as a run that began in the row's window
leads there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pattern_stage.columns import Ints
from pattern_stage.matching.masks import rows_of
from pattern_stage.matching.nodes import ALWAYS, Trail, top_of
from pattern_stage.matching.row_windows import RowWindows


class Ages:
    """What is kept for sets of rows, by when its latest run began."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[int, int]] = {}

    def add(self, rows: int, start: int, weight: int) -> None:
        """Counts what is kept for all of these rows."""
        ages = self._kept.setdefault(rows, {})
        ages[start] = ages.get(start, 0) + weight

    def counts(self, now: int, windows: RowWindows) -> Ints:
        """Returns how much of it began in the window of each row, which ends now. Rows past the end have nothing."""
        found = np.zeros(max((rows.bit_length() for rows in self._kept), default=0), np.int64)
        for mask, ages in self._kept.items():
            rows = rows_of(mask)
            starts = np.array(sorted(ages), np.int64)
            younger = np.append(np.cumsum([ages[start] for start in starts[::-1].tolist()])[::-1], 0)
            found[rows] += younger[np.searchsorted(starts, now - windows.of(rows))]
        return found


def weights(trail: Trail) -> Iterator[tuple[int, int]]:
    """Yields what a trail takes, and when the latest run of it began: an event and the way to it each count one, as do
    the ways to the first event."""
    before = ALWAYS
    for segment in trail.segments:
        top = top_of(segment)
        yield top, 1
        before = max(before, top)
    place = trail.forgotten
    for root in trail.roots:
        if root.place > place:
            yield before, 2 * (root.place - place)
            place = root.place
        before = max(before, root.start)
    yield before, 2 * (trail.last + 1 - place)
