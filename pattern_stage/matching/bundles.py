"""Matches as they are found: many that end alike and begin at different events of one trail are one bundle.

What a bundle has is told apart only when it is read: how many matches it has for which rows, when each begins, and
which events it is of.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from pattern_stage.matching.nodes import Event, Root, Trail

_AT_ONCE = 50_000
"""About how many matches are read at a time."""

_place, _t1 = attrgetter("place"), itemgetter(1)


class Ending(NamedTuple):
    """What matches have in common that end with an event: when they are known, between which times they begin, when
    they end, and the values of the keys; the negated events that they have to be compared with, for each negation; and
    how many letters they lack."""

    known: int
    low: int
    high: int
    t1: int
    key: Any
    absent: Sequence[Sequence[tuple[Event, int]]] = ()
    errors: int = 0


class Later:
    """The last events of matches: those of a trail up to a place, and those behind them."""

    __slots__ = ("behind", "bound", "length", "place", "trail")

    def __init__(self, trail: Trail, place: int, behind: Later | None) -> None:
        self.trail, self.place, self.behind = trail, place, behind
        self.length: int = place + 1 - trail.forgotten + (behind.length if behind else 0)
        """How many events there are."""
        self.bound: dict[int, list[Later]] | None = None

    def by_variable(self) -> dict[int, list[Later]]:
        """Returns the pieces of each variable, in order of time."""
        if self.bound is None:
            self.bound = {}
            piece: Later | None = self
            while piece is not None:
                self.bound.setdefault(piece.trail.component, []).append(piece)
                piece = piece.behind
        return self.bound


class Bundle(NamedTuple):
    """Matches that begin at some of the roots of a trail, go on to a place in it, and end alike. The roots are between
    the places `first` and `stop` of their list; not all of these are begins of a match."""

    ending: Ending
    trail: Trail
    place: int
    first: int
    stop: int
    rows: int
    later: Later | None

    def roots(self) -> Iterator[Root]:
        """Yields the roots that they begin at, each with the rows that have the match."""
        low, high, t1, rows = self.ending.low, self.ending.high, self.ending.t1, self.rows
        for root in self.trail.roots[self.first : self.stop]:
            if (held := rows & root.rows) and low <= root.start <= high and root.bound < t1:
                yield root._replace(rows=held)

    def events(self, begin: int) -> list[Event]:
        """Returns the events of the match that begins at a place of the trail."""
        found = self.trail.until(self.place, begin)
        piece = self.later
        while piece is not None:
            found += piece.trail.until(piece.place)
            piece = piece.behind
        return found


def bundles(ending: Ending, trail: Trail, place: int, rows: int, alive: Callable[[], int]) -> Iterator[Bundle]:
    """Yields the matches that end at a place of a trail, with these rows as long as they are `alive`."""
    low, high = ending.low, ending.high
    stack: list[tuple[Trail, int, int, Later | None]] = [(trail, place, rows, None)]
    while stack:
        trail, place, rows, later = stack.pop()
        rows &= alive()
        if not rows:
            continue
        if trail.roots:
            first, stop = _range(trail, place, low)
            if first < stop:
                yield Bundle(ending, trail, place, first, stop, rows, later)
        if not trail.segments:
            continue
        behind = Later(trail, place, later)
        for entries, begin, stop, of in trail.segments:
            if here := rows & of:
                for at in range(begin, stop):
                    one = entries[at]
                    if one.start >= low and one.oldest <= high and (held := here & one.rows):
                        stack.append((one.trail, one.place, held, behind))


def _range(trail: Trail, place: int, low: int) -> tuple[int, int]:
    """Returns between which places of their list the roots are that lead to a place, and begin at a time or later."""
    roots = trail.roots
    first, stop = 0, len(roots)
    if roots[-1].place > place:
        stop = bisect_right(roots, place, key=_place)
    if stop and roots[0].start < low:
        # No event begins after its end.
        oldest = trail.forgotten + bisect_left(trail.events, low, key=_t1)
        first = bisect_left(roots, oldest, 0, stop, key=_place)
    return first, stop


def parted(bundles: Sequence[Bundle]) -> Iterator[Sequence[Bundle]]:
    """Yields bundles, so many at a time that what is made of them takes little memory."""
    begin = matches = 0
    for end, one in enumerate(bundles, 1):
        matches += one.stop - one.first
        if matches >= _AT_ONCE:
            yield bundles[begin:end]
            begin, matches = end, 0
    if begin < len(bundles):
        yield bundles[begin:]
