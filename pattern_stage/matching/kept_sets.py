"""The events that wait for sets to become complete, by key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import heappush

from pattern_stage.limits import Bound, Meter
from pattern_stage.matching.arrivals import Key
from pattern_stage.matching.masks import rows_of
from pattern_stage.matching.nodes import Event
from pattern_stage.matching.tally import Tally

_SWEEP = 100
"""Events are looked through for old ones when there are twice as many, and so many more."""

Kept = tuple[Event, tuple[int, ...], int]
"""An event that waits: with the rows that may have it in each role, and its input."""


class KeptSets:
    """The events of the rows with one window, by key."""

    def __init__(self, window: int, wait: int, meter: Meter) -> None:
        """`wait` says how long events are kept after they began."""
        self.window, self.wait, self._meter = window, wait, meter
        self.rows = 0
        self.kept: dict[Key, list[Kept]] = {}
        self.starts: list[int] = []
        self.keys_at: dict[int, set[Key]] = defaultdict(set)
        """For each time that an event of the first group begins at, keys."""
        self.passed = -(1 << 62)
        self._count = self._swept = 0
        self._room = meter.limits.partial
        """How many events may be added before a row may exceed the limit."""
        self._gone = 0
        """The rows that have exceeded a limit in this epoch."""
        self.found = Tally(meter.limits.matches)
        """What is tried in an epoch that may be a match."""

    def keep(self, key: Key, one: Kept) -> None:
        """Keeps an event."""
        self.kept.setdefault(key, []).append(one)
        self._count += 1
        self._room -= 1

    def due(self) -> int | None:
        """Returns a time: nothing becomes known before without another event. None if nothing waits for its window."""
        return self.starts[0] + self.window if self.starts else None

    def await_window(self, start: int, key: Key) -> None:
        """Has a key looked at when the window of an event that begins at `start` is over."""
        if start not in self.keys_at:
            heappush(self.starts, start)
        self.keys_at[start].add(key)

    # ------------------------------------------------------------ what goes

    def end_epoch(self, time: int) -> None:
        """Ends an epoch with events: forgets what is too old, from time to time, and rows that keep too much."""
        if self._count > 2 * self._swept + _SWEEP:
            low = time - self.wait
            kept = {key: [one for one in some if one[0][0] >= low] for key, some in self.kept.items()}
            self.kept = {key: some for key, some in kept.items() if some}
            self._count = self._swept = sum(map(len, self.kept.values()))
        if self._room < 0:
            self.exceed(self._over(time), time, "partial")
        self.end_found()

    def end_found(self) -> None:
        """Ends an epoch, whether there were events in it or not."""
        self.found.clear()
        if self._gone:
            self.remove_rows(self._gone)
            self._gone = 0

    def _over(self, time: int) -> int:
        """Returns the rows for which more events wait than the limit says."""
        tally, low = Tally(self._meter.limits.partial), time - self.wait
        for some in self.kept.values():
            for event, masks, _ in some:
                if event[0] >= low:
                    tally.add(together(masks) & self.rows)
        over = tally.over()
        self._room = tally.room
        return over

    def exceed(self, rows: int, time: int, bound: Bound) -> None:
        """Follows that rows exceed a limit: nothing more is tried for them."""
        if rows:
            self._meter.tell(rows_of(rows), time, bound)
            self.rows &= ~rows
            self._gone |= rows

    def remove_rows(self, gone: int) -> None:
        """Forgets rows, and what waits for them alone."""
        self.rows &= ~gone
        for key, kept in list(self.kept.items()):
            cleared = [(event, tuple([of & ~gone for of in masks]), stream) for event, masks, stream in kept]
            self.kept[key] = [one for one in cleared if any(one[1])]
            if not self.kept[key]:
                del self.kept[key]


def together(masks: Iterable[int]) -> int:
    """Returns the rows that any of these sets has."""
    found = 0
    for mask in masks:
        found |= mask
    return found
