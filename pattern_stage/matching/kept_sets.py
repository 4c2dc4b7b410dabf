"""The events that wait for sets to become complete, by key."""

from __future__ import annotations

from collections import defaultdict
from heapq import heappush

from pattern_stage.matching.arrivals import Key
from pattern_stage.matching.nodes import Event

Kept = tuple[Event, tuple[int, ...], int]
"""An event that waits: with the rows that may have it in each role, and its input."""


class KeptSets:
    """The events of the rows with one window, by key."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.rows = 0
        self.kept: dict[Key, list[Kept]] = {}
        self.starts: list[int] = []
        self.keys_at: dict[int, set[Key]] = defaultdict(set)
        """For each time that an event of the first group begins at, keys."""
        self.passed = -(1 << 62)
        self.swept = 0

    def due(self) -> int | None:
        """Returns a time: nothing becomes known before without another event. None if nothing waits for its window."""
        return self.starts[0] + self.window if self.starts else None

    def await_window(self, start: int, key: Key) -> None:
        """Has a key looked at when the window of an event that begins at `start` is over."""
        if start not in self.keys_at:
            heappush(self.starts, start)
        self.keys_at[start].add(key)
