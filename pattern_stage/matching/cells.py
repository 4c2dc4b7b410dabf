"""Where runs wait: those of one key in one state that remember the same are a cell."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from pattern_stage.matching.nodes import EVERY, Entry, Event, Segment, Trail
from pattern_stage.operators import NO_BOUND

_TRIM = 32
"""A list is looked through for what is too old when it has grown to twice its size, and to so many."""


class Cell:
    """Runs of one key in one state with equal registers, sorted by the t1 of their last event."""

    __slots__ = ("_most_kills", "_trim", "entries", "kills", "name", "registers")

    def __init__(self, name: tuple[Any, ...], registers: tuple[Any, ...]) -> None:
        self.name, self.registers = name, registers
        self.entries: list[Entry] = []
        self.kills: list[tuple[int, int, int]] = []
        """Negated events that lie behind some entries: t1, t0, and for which rows."""
        self._trim = self._most_kills = _TRIM

    def before(self, t0: int) -> int:
        """Returns how many entries end before a time."""
        return bisect_left(self.entries, (t0,))

    def killed(self, t0: int, stop: int) -> list[tuple[int, int]]:
        """Returns from which place on entries, up to `stop`, may proceed to an event that begins at t0, and which rows
        they lack: ranges begin at each place."""
        reaching = [(min(bisect_left(self.entries, (begin,)), stop), rows) for t1, begin, rows in self.kills if t1 < t0]
        places = sorted({0, *(place for place, _ in reaching if place < stop)})
        found = []
        for at in places:
            lacking = 0
            for place, rows in reaching:
                if place > at:
                    lacking |= rows
            found.append((at, lacking))
        return found

    def kill(self, event: Event, rows: int) -> None:
        """Puts a negated event behind the entries before it."""
        if len(self.kills) >= self._most_kills:
            oldest = self.entries[0].t1 if self.entries else NO_BOUND
            self.kills = [one for one in self.kills if one[1] > oldest]
            self._most_kills = max(_TRIM, 2 * len(self.kills))
        self.kills.append((event[1], event[0], rows))

    def append(self, trail: Trail, rows: int, start: int, oldest: int) -> Entry:
        """Adds runs that end with a trail, later than all others, and begin between two times."""
        last = self.entries[-1] if self.entries else None
        top, reach = (start, rows) if last is None else (max(start, last.top), rows | last.reach)
        entry = Entry(trail.events[-1][1], trail, trail.last, rows, start, oldest, top, reach)
        self.entries.append(entry)
        return entry

    def crowded(self) -> bool:
        """Whether it is time to look for entries that are too old."""
        return len(self.entries) >= self._trim

    def drop_before(self, low: int) -> list[Entry]:
        """Forgets entries that begin before a time. Trails still have the list as it was."""
        gone = [one for one in self.entries if one.start < low]
        if gone:
            self._put([one for one in self.entries if one.start >= low])
        self._trim = max(_TRIM, 2 * len(self.entries))
        return gone

    def take(self, stop: int, rows: int) -> list[Entry]:
        """Takes rows out of the first entries; returns those that are left without."""
        head = self.entries[:stop]
        kept = [one for one in head if one.rows & ~rows] if rows != EVERY else []
        if not kept:
            del self.entries[:stop]
            return head
        gone = [one for one in head if not one.rows & ~rows]
        self._put([one._replace(rows=one.rows & ~rows) for one in kept] + self.entries[stop:])
        return gone

    def without(self, rows: int) -> list[Entry]:
        """Takes rows out of all entries; returns those that are left without."""
        gone = [one for one in self.entries if not one.rows & ~rows]
        # The list itself is changed, in place: trails have it, and the rows may be others soon.
        self.entries[:] = [one._replace(rows=one.rows & ~rows) for one in self.entries]
        self._put([one for one in self.entries if one.rows])
        self.kills = [(t1, t0, of & ~rows) for t1, t0, of in self.kills if of & ~rows]
        return gone

    def only(self, places: set[int]) -> None:
        """Forgets all entries but those at these places. Trails still have the list as it was."""
        if len(places) < len(self.entries):
            self._put([one for at, one in enumerate(self.entries) if at in places])

    def _put(self, entries: list[Entry]) -> None:
        self.entries = []
        for one in entries:
            last = self.entries[-1] if self.entries else None
            top = one.start if last is None else max(one.start, last.top)
            reach = one.rows if last is None else one.rows | last.reach
            is_same = top == one.top and reach == one.reach
            self.entries.append(one if is_same else one._replace(top=top, reach=reach))

    def segments(self, ranges: list[tuple[int, int]], stop: int, rows: int, *, shared: bool) -> list[Segment]:
        """Returns the first entries as what leads to an event: those of `ranges`, each without the rows that it lacks.
        `shared`: the entries stay, and the list only grows."""
        found: list[Segment] = []
        for at, (begin, lacking) in enumerate(ranges):
            end = ranges[at + 1][0] if at + 1 < len(ranges) else stop
            left = rows & ~lacking
            if begin < end and left:
                if shared:
                    found.append((self.entries, begin, end, left))
                else:
                    found.append((self.entries[begin:end], 0, end - begin, left))
        return found
