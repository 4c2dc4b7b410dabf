"""Waiting: what the left inputs of absences have matched, until it is decided for all who ask."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NamedTuple


class Entry(NamedTuple):
    """A match of a left input: when its document begins, the document, and the nodes in the template's numbering."""

    t0: int
    docid: int
    nodes: tuple[int, ...]


class Waiting:
    """The entries of a row of R_T, in the order of their times. All absences with this left input share them."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self.fresh: list[Entry] = []
        """Those that were added in the running batch."""
        self.is_whole = False
        """Whether those of documents are there from before the engine was opened."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> Callable[[], None] | None:
        """Adds an entry. Returns what undoes that; None if it was there."""
        entries = self._entries
        if not entries or entries[-1] < entry:
            entries.append(entry)
        else:
            place = bisect_left(entries, entry)
            if place < len(entries) and entries[place] == entry:
                return None
            insort(entries, entry)
        self.fresh.append(entry)
        return lambda: self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        del self._entries[bisect_left(self._entries, entry)]

    def between(self, low: int, high: int) -> list[Entry]:
        """Returns the entries that begin at `low` or later, and before `high`."""
        return self._entries[bisect_left(self._entries, (low,)) : bisect_left(self._entries, (high,))]

    def drop_before(self, time: int, is_needed: Callable[[Entry], bool]) -> None:
        """Drops the entries that begin before a time, but for those that are needed."""
        place = bisect_left(self._entries, (time,))
        self._entries[:place] = filter(is_needed, self._entries[:place])
