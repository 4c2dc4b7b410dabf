"""The events that runs are made of, and how runs share them.

A trail is events of one variable, each of them the only way on from the one before. Runs begin at some of its events,
or have come to its first one from other trails. So all runs that end with an event and remember the same are one entry,
with a place in a trail; and what they were is kept as segments of lists of entries, which costs no more than the lists
that they were made of, whatever the number of runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pattern_stage.columns import Ints
from pattern_stage.fan_out import grown
from pattern_stage.operators import NO_BOUND

EVERY = -1
"""The set of all rows."""

ALWAYS = -NO_BOUND
"""A time before all others."""

Event = tuple[Any, ...]
"""An event: t0, t1, the number of its part, and values."""

_LONG = 64
"""So many events make a trail long."""


class Root(NamedTuple):
    """Runs that begin with an event of a trail."""

    place: int
    start: int
    """The event's t0."""
    bound: int
    """A time that matches have to end after."""
    rows: int


class Entry(NamedTuple):
    """Runs that remember the same and end with one event of a trail: those that begin between `oldest` and `start`, or
    a little more."""

    t1: int
    trail: Trail
    place: int
    rows: int
    start: int
    oldest: int
    top: int
    """The greatest start of this entry and of those before it in its list; or more."""
    reach: int
    """The rows of all of these; or more."""


Segment = tuple[list[Entry], int, int, int]
"""A list of entries, from where to where, and the rows that went on from there."""


def top_of(segment: Segment) -> int:
    """Returns when the runs of a segment begin at most."""
    entries, begin, stop, _ = segment
    return entries[stop - 1].top if begin == 0 else max(entries[at].start for at in range(begin, stop))


class Trail:
    """Events of a variable. Places are counted from where the trail began, also when the first events are forgotten."""

    __slots__ = ("_known", "_numbers", "component", "events", "forgotten", "roots", "rows", "segments")

    def __init__(self, component: int, events: list[Event], rows: int, forgotten: int = 0) -> None:
        self.component, self.events, self.rows, self.forgotten = component, events, rows, forgotten
        self.roots: list[Root] = []
        """By place."""
        self.segments: list[Segment] = []
        """The runs before the first event."""
        self._numbers: Ints | None = None
        self._known = 0

    @property
    def last(self) -> int:
        """The last place."""
        return self.forgotten + len(self.events) - 1

    def event(self, place: int) -> Event:
        """Returns the event at a place."""
        return self.events[place - self.forgotten]

    def until(self, place: int, begin: int | None = None) -> list[Event]:
        """Returns the events up to a place: all that are there, or those from another place on."""
        first = 0 if begin is None else begin - self.forgotten
        return self.events[first : place + 1 - self.forgotten]

    def numbers(self, begin: int, place: int) -> Ints:
        """Returns the numbers of the events from one place to another, which never change."""
        first, end = begin - self.forgotten, place + 1 - self.forgotten
        if self._known < end:
            known = np.zeros(0, np.int64) if self._numbers is None else self._numbers
            self._numbers = grown(known, len(self.events))
            self._numbers[self._known : len(self.events)] = [event[2] for event in self.events[self._known :]]
            self._known = len(self.events)
        assert self._numbers is not None
        return self._numbers[first:end]

    @property
    def is_long(self) -> bool:
        """Whether it is to be trimmed from time to time."""
        return len(self.events) >= _LONG

    def trim(self, low: int) -> None:
        """Forgets the first events, if many of them are of runs alone that began before a time. Bundles of matches lose
        what they refer to."""
        if self.segments:
            return
        gone = 0
        while gone < len(self.roots) and self.roots[gone].start < low:
            gone += 1
        first = self.roots[gone].place if gone < len(self.roots) else self.last
        if 2 * (first - self.forgotten) >= len(self.events):
            self.events = self.events[first - self.forgotten :]
            self.roots = self.roots[gone:]
            self.forgotten, self._numbers, self._known = first, None, 0


class Draft:
    """Runs that end with an event as a variable and remember the same, as they are put together."""

    __slots__ = ("before", "component", "event", "oldest", "roots", "segments")

    def __init__(self, event: Event, component: int) -> None:
        self.event, self.component = event, component
        self.segments: list[Segment] = []
        self.roots: list[tuple[int, int]] = []
        """If runs begin with this event: their rows, each with a time that matches have to end after."""
        self.before, self.oldest = ALWAYS, NO_BOUND
        """When the runs before the event begin at most, and all runs at least; or a little more."""

    @property
    def start(self) -> int:
        """When the runs begin at most."""
        return self.event[0] if self.roots else self.before

    @property
    def rows(self) -> int:
        """The rows of all of these runs; or more."""
        rows = 0
        for _, of in self.roots:
            rows |= of
        for entries, begin, stop, of in self.segments:
            rows |= of & (entries[begin].rows if stop - begin == 1 else entries[stop - 1].reach)
        return rows

    def trail(self, rows: int) -> Trail:
        """Returns the trail that now ends with the event."""
        trail = self._before()
        if trail is None:
            trail = Trail(self.component, [self.event], rows)
            trail.segments = self.segments
        else:
            trail.events.append(self.event)
            trail.rows |= rows
        place = trail.last
        trail.roots += [Root(place, self.event[0], bound, of) for bound, of in self.roots]
        return trail

    def _before(self) -> Trail | None:
        """Returns the trail that goes on here with all of its rows."""
        if len(self.segments) != 1:
            return None
        entries, begin, stop, of = self.segments[0]
        if stop - begin != 1:
            return None
        one = entries[begin]
        trail = one.trail
        if one.place != trail.last or trail.component != self.component or trail.rows & ~(of & one.rows):
            return None
        return trail
