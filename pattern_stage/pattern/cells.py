"""Cells: runs of one key in one state with equal registers, hashed by register where an edge has an equality. So an
event finds the runs that it may concern without scanning the others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from common.bounds import END
from pattern_stage.pattern.masks import EVERY, EventTuple, Segment, Trail, TrailEntry

_TRIM = 32
"""Lists are scanned for expired entries when they have doubled and reached this size."""


class Cell:
    """Runs of one key in one state with equal registers, sorted by the t1 of their last event."""

    __slots__ = ("_most_kills", "_trim", "entries", "kills", "name", "registers")

    def __init__(self, name: tuple[Any, ...], registers: tuple[Any, ...]) -> None:
        self.name, self.registers = name, registers
        self.entries: list[TrailEntry] = []
        self.kills: list[tuple[int, int, int]] = []
        """Negated events behind some entries: t1, t0, and their rows."""
        self._trim = self._most_kills = _TRIM

    def before(self, t0: int) -> int:
        return bisect_left(self.entries, (t0,))

    def killed(self, t0: int, stop: int) -> list[tuple[int, int]]:
        """Returns places, up to `stop`, from which entries may proceed to an event beginning at t0, each with excluded
        rows."""
        reaching = [(min(bisect_left(self.entries, (begin,)), stop), rows) for t1, begin, rows in self.kills if t1 < t0]
        found, lacking = {stop: 0}, 0
        for place, rows in sorted(reaching, reverse=True):
            found.setdefault(place, lacking)
            lacking |= rows
        found.setdefault(0, lacking)
        return [(at, rows) for at, rows in reversed(found.items()) if at < stop]

    def kill(self, event: EventTuple, rows: int) -> None:
        """Puts a negated event behind the entries before it."""
        if len(self.kills) >= self._most_kills:
            oldest = self.entries[0].t1 if self.entries else END
            self.kills = [one for one in self.kills if one[1] > oldest]
            self._most_kills = max(_TRIM, 2 * len(self.kills))
        self.kills.append((event[1], event[0], rows))

    def append(self, trail: Trail, rows: int, start: int, oldest: int) -> TrailEntry:
        """Appends runs that end with a trail, later than all others, and begin between two times."""
        last = self.entries[-1] if self.entries else None
        top, reach = (start, rows) if last is None else (max(start, last.top), rows | last.reach)
        entry = TrailEntry(trail.events[-1][1], trail, trail.last, rows, start, oldest, top, reach)
        self.entries.append(entry)
        return entry

    def crowded(self) -> bool:
        """Whether to look for expired entries."""
        return len(self.entries) >= self._trim

    def drop_before(self, low: int) -> None:
        """Drops entries that begin before a time. Trails keep the old list."""
        kept = [one for one in self.entries if one.start >= low]
        if len(kept) < len(self.entries):
            self._put(kept)
        self._trim = max(_TRIM, 2 * len(self.entries))

    def take(self, stop: int, rows: int) -> None:
        """Removes rows from the first entries, and those that are left without rows."""
        kept = [one for one in self.entries[:stop] if one.rows & ~rows] if rows != EVERY else []
        if kept:
            self._put([one._replace(rows=one.rows & ~rows) for one in kept] + self.entries[stop:])
        else:
            del self.entries[:stop]

    def without(self, rows: int) -> None:
        """Removes rows from all entries, and those that are left without rows."""
        # The list itself is changed, in place: trails have it, and the rows may be others soon.
        self.entries[:] = [one._replace(rows=one.rows & ~rows) for one in self.entries]
        self._put([one for one in self.entries if one.rows])
        self.kills = [(t1, t0, of & ~rows) for t1, t0, of in self.kills if of & ~rows]

    def absorb(self, other: Cell) -> None:
        """Adds the runs of other rows. Trails keep the old lists."""
        self._put(sorted([*self.entries, *other.entries], key=lambda one: one.t1))
        self.kills += other.kills

    def only(self, places: set[int]) -> None:
        """Keeps only entries at these places. Trails keep the old list."""
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
        """Returns the first entries as segments that lead to an event: `ranges`, each without its excluded rows.
        `shared`: entries stay, and the list only grows."""
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


def merge_cell(cells: dict[Any, Cell], cell: Cell) -> Cell:
    """Adds a cell of other rows to a table. Returns the one that has its runs now."""
    known = cells.get(cell.name)
    if known is None:
        cells[cell.name] = cell
        return cell
    known.absorb(cell)
    return known


_Name = tuple[Any, ...]


class RegisterTest(NamedTuple):
    """An edge's equality of a register with a slot of the event."""

    register: int
    slot: int


class CellTable(dict[_Name, Cell]):
    """Cells by name; `registers` are hashed."""

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
        """Returns the cells that satisfy the equality of some edge; all, if an edge has none."""
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
