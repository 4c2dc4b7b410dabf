"""Bit sets of rows (bit `r` is row `r`), and trails: the shared events of runs. A trail is events of one variable, each
the only continuation of the one before; runs begin at some of them, or came to the first from other trails. All runs
that end with an event and remember the same are one entry, with a place in a trail; their past is stored as segments of
lists of entries, whose size is that of the lists, whatever the number of runs. A cell has runs of one key in one state
with equal registers, hashed by register where an edge has an equality, so an event finds the runs that it may concern
without scanning the others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, reduce
from itertools import pairwise
from operator import or_
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from common.arrays import Ints, Mask
from common.bounds import BEGINNING, END
from pattern_stage.columns import NO_INTS
from pattern_stage.fan_out import grow_array

_FEW = 8  # up to this number, bits are set one by one


def rows_to_mask(rows: Ints) -> int:
    """Returns the bit set of rows.

    >>> rows_to_mask(np.array([0, 2]))
    5
    """
    if len(rows) <= _FEW:
        found = 0
        for row in rows.tolist():
            found |= 1 << row
        return found
    flags = np.zeros(int(rows.max()) + 1, np.bool_)
    flags[rows] = True
    return mask_of_flags(flags)


def mask_of_flags(flags: Mask) -> int:
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def mask_to_rows(mask: int) -> Ints:
    """Returns the rows of a bit set, ascending.

    >>> mask_to_rows(5).tolist()
    [0, 2]
    """
    if mask & (mask - 1) == 0:
        return np.array([mask.bit_length() - 1] if mask else [], np.int64)
    data = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(data, bitorder="little"))


def flags_of(mask: int, size: int) -> Mask:
    """Returns by row up to `size` whether it is in the set; EVERY has all.

    >>> flags_of(5, 4).tolist()
    [True, False, True, False]
    """
    if mask < 0:
        return np.ones(size, np.bool_)
    data = np.frombuffer((mask & (1 << size) - 1).to_bytes((size + 7) // 8, "little"), np.uint8)
    return np.unpackbits(data, count=size, bitorder="little").view(np.bool_)


def masks_by_place(places: Ints, rows: Ints, count: int) -> list[int]:
    """Returns the set of rows of each place, given pairs sorted by place."""
    found = [0] * count
    heads = np.flatnonzero(np.diff(places, prepend=-1))
    for place, some in zip(places[heads].tolist(), np.split(rows, heads[1:]), strict=False):  # no pairs have one part
        found[place] = rows_to_mask(some)
    return found


def expanded(masks: Sequence[int]) -> tuple[Ints, Ints]:
    """Returns pairs of a set's place and a row of it, sorted."""
    if all(mask == 1 for mask in masks):
        return np.arange(len(masks)), np.zeros(len(masks), np.int64)
    rows = list(map(cache(mask_to_rows), masks))
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.repeat(np.arange(len(rows)), sizes), np.concatenate([np.zeros(0, np.int64), *rows])


EVERY = -1


EventTuple = tuple[Any, ...]  # an event: t0, t1, the number of its part, and values


class Root(NamedTuple):
    """Runs that begin with an event of a trail."""

    place: int
    start: int
    bound: int  # matches end after this time
    rows: int


class TrailEntry(NamedTuple):
    """Runs with equal memory that end with one event of a trail and begin between `oldest` and `start`, or nearly."""

    t1: int
    trail: Trail
    place: int
    rows: int
    start: int
    oldest: int
    top: int  # upper bound of the starts up to this entry in its list
    reach: int  # superset of the rows up to this entry in its list

    @property
    def number(self) -> int:
        """The number of its event."""
        return self.trail.event(self.place)[2]  # type: ignore[no-any-return]  # an int


Segment = tuple[list[TrailEntry], int, int, int]
"""A list of entries, a range of it, and the rows that continued from there."""


def top_of(segment: Segment) -> int:
    """Returns an upper bound of when the runs of a segment begin."""
    entries, begin, stop, _ = segment
    return entries[stop - 1].top if begin == 0 else max(entries[at].start for at in range(begin, stop))


NOTHING: list[Any] = []  # what most trails share: each object less shortens the collector's scans of long windows


class Trail:
    """Events of a variable. Places count from the trail's begin, even after its first events are dropped."""

    __slots__ = ("_known", "_numbers", "component", "events", "forgotten", "roots", "rows", "segments")

    def __init__(self, component: int, events: list[EventTuple], rows: int, forgotten: int = 0) -> None:
        self.component, self.events, self.rows, self.forgotten = component, events, rows, forgotten
        self.roots: list[Root] = NOTHING
        self.segments: list[Segment] = NOTHING
        self._numbers, self._known = NO_INTS, 0

    @property
    def last(self) -> int:
        return self.forgotten + len(self.events) - 1

    def event(self, place: int) -> EventTuple:
        return self.events[place - self.forgotten]

    def until(self, place: int, begin: int | None = None) -> list[EventTuple]:
        """Returns the events up to a place: all remaining ones, or from `begin` on."""
        first = 0 if begin is None else begin - self.forgotten
        return self.events[first : place + 1 - self.forgotten]

    def numbers(self, begin: int, place: int) -> Ints:
        """Returns the immutable numbers of the events from `begin` to `place`."""
        first, end = begin - self.forgotten, place + 1 - self.forgotten
        if self._known < end:
            self._numbers = grow_array(self._numbers, len(self.events))
            self._numbers[self._known : len(self.events)] = [event[2] for event in self.events[self._known :]]
            self._known = len(self.events)
        return self._numbers[first:end]

    def trim(self, low: int) -> None:
        """Drops the first events if many belong only to runs begun before `low`. Invalidates bundles that use them."""
        if self.segments:
            return
        gone = 0
        while gone < len(self.roots) and self.roots[gone].start < low:
            gone += 1
        first = self.roots[gone].place if gone < len(self.roots) else self.last
        if 2 * (first - self.forgotten) >= len(self.events):
            self.events = self.events[first - self.forgotten :]
            self.roots = self.roots[gone:]
            self.forgotten, self._numbers, self._known = first, NO_INTS, 0


class Draft:
    """Runs under construction that end with an event as a variable and have equal memory."""

    __slots__ = ("before", "component", "event", "oldest", "roots", "segments")

    def __init__(self, event: EventTuple, component: int) -> None:
        self.event, self.component = event, component
        self.segments: list[Segment] = []
        self.roots: list[tuple[int, int]] = []
        """Runs that begin with this event: their rows, each with a time that matches end after."""
        self.before: int = BEGINNING  # latest begin of the runs before the event, or a bound of it
        self.oldest: int = END  # earliest begin of all runs, or a bound of it

    @property
    def start(self) -> int:
        return self.event[0] if self.roots else self.before

    @property
    def rows(self) -> int:
        """Superset of the rows of these runs."""
        rows = reduce(or_, (of for _, of in self.roots), 0)
        for entries, begin, stop, of in self.segments:
            rows |= of & (entries[begin].rows if stop - begin == 1 else entries[stop - 1].reach)
        return rows

    def trail(self, rows: int) -> Trail:
        """Returns the trail extended by the event."""
        trail = None
        if len(self.segments) == 1:
            entries, begin, stop, of = self.segments[0]
            one = entries[begin]
            if stop - begin == 1 and one.place == one.trail.last and one.trail.component == self.component:
                trail = one.trail if not one.trail.rows & ~(of & one.rows) else None
        if trail is None:
            trail = Trail(self.component, [self.event], rows)
            trail.segments = self.segments or NOTHING
        else:
            trail.events.append(self.event)
            trail.rows |= rows
        place = trail.last
        if self.roots:
            trail.roots = [] if trail.roots is NOTHING else trail.roots
            trail.roots += [Root(place, self.event[0], bound, of) for bound, of in self.roots]
        return trail


_OVER = Trail(0, [], 0)  # that of runs that are over


def forget_trails(entries: list[TrailEntry], low: int) -> None:
    """Forgets the trails of entries that begin before a time. Trails keep the list and need the rest of the entries."""
    entries[:] = [one if one.start >= low else one._replace(trail=_OVER) for one in entries]


_TRIM = 32  # lists are scanned for expired entries when they have doubled and reached this size


class Cell:
    """Runs of one key in one state with equal registers, sorted by the t1 of their last event."""

    __slots__ = ("_most_kills", "entries", "kills", "name", "registers", "trim_at")

    def __init__(self, name: tuple[Any, ...], registers: tuple[Any, ...]) -> None:
        self.name, self.registers = name, registers
        self.entries: list[TrailEntry] = []
        self.kills: list[tuple[int, int, int]] = []  # negated events behind some entries: t1, t0, and their rows
        self.trim_at = self._most_kills = _TRIM

    def before(self, t0: int) -> int:
        return bisect_left(self.entries, (t0,))

    def killed(self, t0: int, stop: int) -> list[tuple[int, int]]:
        """Returns places, up to `stop`, whose entries may proceed to an event beginning at t0, with excluded rows."""
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

    def drop_before(self, low: int) -> None:
        """Drops entries that begin before a time. Trails keep the old list."""
        kept = [one for one in self.entries if one.start >= low]
        if len(kept) < len(self.entries):
            self._put(kept)
        self.trim_at = max(_TRIM, 2 * len(self.entries))

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

    def only(self, is_kept: Callable[[TrailEntry], bool]) -> None:
        """Keeps only some entries. Trails keep the old list."""
        kept = list(filter(is_kept, self.entries))
        if len(kept) < len(self.entries):
            self._put(kept)

    def _put(self, entries: list[TrailEntry]) -> None:
        self.entries = []
        for one in entries:
            self.append(one)

    def append(self, one: TrailEntry) -> None:
        """Appends runs that end later than all others, with `top` and `reach` of their place."""
        top, reach = one.start, one.rows
        if self.entries:
            top, reach = max(top, self.entries[-1].top), reach | self.entries[-1].reach
        is_same = top == one.top and reach == one.reach
        self.entries.append(one if is_same else one._replace(top=top, reach=reach))

    def segments(self, stop: int, rows: int, t0: int | None = None, *, shared: bool) -> list[Segment]:
        """Returns the first entries as segments that lead to an event; with its `t0`, without the rows that events
        killed before. `shared`: entries stay, and the list only grows."""
        found: list[Segment] = []
        ranges = [(0, 0)] if t0 is None or not self.kills else self.killed(t0, stop)
        for (begin, lacking), (end, _) in pairwise([*ranges, (stop, 0)]):
            if begin < end and (left := rows & ~lacking):
                found.append((self.entries, begin, end, left))
        return found if shared else [(entries[begin:end], 0, end - begin, of) for entries, begin, end, of in found]


_Name = tuple[Any, ...]


class RegisterTest(NamedTuple):
    """An edge's equality of a register with a slot of the event."""

    register: int
    slot: int


class HasRegisters(Protocol):
    registers: tuple[Any, ...]


C = TypeVar("C", bound=HasRegisters)


class CellTable(dict[_Name, C], Generic[C]):
    """Cells by name; `registers` are hashed."""

    __slots__ = ("_by",)

    def __init__(self, registers: Iterable[int]) -> None:
        super().__init__()
        self._by: dict[int, dict[Any, dict[_Name, C]]] = {register: {} for register in registers}

    def __setitem__(self, name: _Name, cell: C) -> None:
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

    def asked(self, edges: Sequence[RegisterTest | None], event: Sequence[Any]) -> Collection[C]:
        """Returns the cells that satisfy the equality of some edge; all, if an edge has none."""
        found: dict[_Name, C] = {}
        for number, equal in enumerate(edges):
            if equal is None:
                return self.values()
            if same := self._by[equal.register].get(event[equal.slot]):
                if number == len(edges) - 1 and not found:
                    return same.values()
                found |= same
        return found.values()
