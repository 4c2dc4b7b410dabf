"""Where runs wait: those of one key in one state that remember the same are a cell.

The cells of a state by what their runs remember, and, where an edge asks a register to equal something of the event,
by the value in it: so an event finds the runs that it may concern, without a look at the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from pattern_stage.pattern.masks import EVERY, EventTuple, Segment, Trail, TrailEntry
from pattern_stage.plan import NO_BOUND

_TRIM = 32
"""A list is looked through for what is too old when it has grown to twice its size, and to so many."""


class Cell:
    """Runs of one key in one state with equal registers, sorted by the t1 of their last event."""

    __slots__ = ("_most_kills", "_trim", "entries", "kills", "name", "registers")

    def __init__(self, name: tuple[Any, ...], registers: tuple[Any, ...]) -> None:
        self.name, self.registers = name, registers
        self.entries: list[TrailEntry] = []
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

    def kill(self, event: EventTuple, rows: int) -> None:
        """Puts a negated event behind the entries before it."""
        if len(self.kills) >= self._most_kills:
            oldest = self.entries[0].t1 if self.entries else NO_BOUND
            self.kills = [one for one in self.kills if one[1] > oldest]
            self._most_kills = max(_TRIM, 2 * len(self.kills))
        self.kills.append((event[1], event[0], rows))

    def append(self, trail: Trail, rows: int, start: int, oldest: int) -> TrailEntry:
        """Adds runs that end with a trail, later than all others, and begin between two times."""
        last = self.entries[-1] if self.entries else None
        top, reach = (start, rows) if last is None else (max(start, last.top), rows | last.reach)
        entry = TrailEntry(trail.events[-1][1], trail, trail.last, rows, start, oldest, top, reach)
        self.entries.append(entry)
        return entry

    def crowded(self) -> bool:
        """Whether it is time to look for entries that are too old."""
        return len(self.entries) >= self._trim

    def drop_before(self, low: int) -> list[TrailEntry]:
        """Forgets entries that begin before a time. Trails still have the list as it was."""
        gone = [one for one in self.entries if one.start < low]
        if gone:
            self._put([one for one in self.entries if one.start >= low])
        self._trim = max(_TRIM, 2 * len(self.entries))
        return gone

    def take(self, stop: int, rows: int) -> list[TrailEntry]:
        """Takes rows out of the first entries; returns those that are left without."""
        head = self.entries[:stop]
        kept = [one for one in head if one.rows & ~rows] if rows != EVERY else []
        if not kept:
            del self.entries[:stop]
            return head
        gone = [one for one in head if not one.rows & ~rows]
        self._put([one._replace(rows=one.rows & ~rows) for one in kept] + self.entries[stop:])
        return gone

    def without(self, rows: int) -> list[TrailEntry]:
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

    def _put(self, entries: list[TrailEntry]) -> None:
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


_Name = tuple[Any, ...]


class RegisterTest(NamedTuple):
    """What an edge asks: that a register has the value in a slot of the event."""

    register: int
    slot: int


class CellTable(dict[_Name, Cell]):
    """Cells by name. `registers` are those of which there is a hash."""

    __slots__ = ("_by",)

    def __init__(self, registers: Iterable[int]) -> None:
        super().__init__()
        self._by: dict[int, dict[Any, dict[_Name, Cell]]] = {register: {} for register in registers}

    def __setitem__(self, name: _Name, cell: Cell) -> None:
        super().__setitem__(name, cell)
        for register, by in self._by.items():
            by.setdefault(cell.registers[register], {})[name] = cell

    def __delitem__(self, name: _Name) -> None:
        cell = self[name]
        super().__delitem__(name)
        for register, by in self._by.items():
            same = by[cell.registers[register]]
            del same[name]
            if not same:
                del by[cell.registers[register]]

    def asked(self, edges: Sequence[RegisterTest | None], event: Sequence[Any]) -> Collection[Cell]:
        """Returns the cells that have what one of some edges asks of an event; all, if one asks no equality."""
        found: dict[_Name, Cell] = {}
        for number, equal in enumerate(edges):
            if equal is None:
                return self.values()
            same = self._by[equal.register].get(event[equal.slot])
            if same:
                if number == len(edges) - 1 and not found:
                    return same.values()
                found |= same
        return found.values()
