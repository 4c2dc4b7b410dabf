"""NON OVERLAPPING: of the matches of a key, in the order of being known, those that begin after the one told before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from pattern_stage.matching.nodes import EVERY


class Candidate(NamedTuple):
    """A match that may be told: when it is known, from when to when it is, its rows, how many letters it lacks, how
    many events it has, the values of the keys, and what returns the numbers of its events, variable by variable."""

    known: int
    t0: int
    t1: int
    rows: int
    errors: int
    length: int
    key: Any
    ids: Callable[[], Sequence[int]]


class Apart:
    """When the last match of each key ended that was told, by rows."""

    def __init__(self, order: Callable[[Iterable[int]], dict[int, Any]], *, whole: bool) -> None:
        """`order` says of events by their numbers which come first. `whole`: all keys are one."""
        self._order, self._whole = order, whole
        self.ends: dict[Any, list[tuple[int, int]]] = {}
        """For each key ends of matches, each with its rows."""
        self._swept = 0

    def chosen(self, matches: Sequence[Candidate]) -> list[int]:
        """Returns for each of some matches, all that become known at some times, the rows that it is told for."""
        found = [0] * len(matches)

        def rank(place: int) -> tuple[int, int, int, int]:
            one = matches[place]
            return one.known, one.errors, one.t0, -one.length

        for _, equal in groupby(sorted(range(len(matches)), key=rank), key=rank):
            left = [place for place in equal if self._left(matches[place])]
            by_ids = self._by_ids(matches, left) if len(left) > 1 else None
            while left:
                first = min(left, key=by_ids)
                found[first] = self._told(matches[first])
                left = [place for place in left if place != first and self._left(matches[place])]
        return found

    def _by_ids(self, matches: Sequence[Candidate], places: Sequence[int]) -> Callable[[int], list[Any]]:
        order = self._order({number for place in places for number in matches[place].ids()})
        return lambda place: [order[number] for number in matches[place].ids()]

    def _left(self, one: Candidate) -> int:
        """Returns the rows of a match that it may be told for."""
        rows = one.rows
        for end, of in self.ends.get(() if self._whole else one.key, ()):
            if one.t0 <= end:
                rows &= ~of
        return rows

    def _told(self, one: Candidate) -> int:
        key, rows = () if self._whole else one.key, self._left(one)
        others = [(end, of & ~rows) for end, of in self.ends.get(key, ()) if of & ~rows]
        self.ends[key] = [*others, (one.t1, rows)]
        return rows

    def forget_before(self, time: int) -> None:
        """Forgets ends before a time, from time to time: all that comes begins then or later."""
        if len(self.ends) > 2 * self._swept + 100:
            self.ends = {key: some for key, some in self.ends.items() if any(end >= time for end, _ in some)}
            self._swept = len(self.ends)

    def without(self, rows: int) -> None:
        """Forgets rows."""
        if rows != EVERY:
            kept = {key: [(end, of & ~rows) for end, of in some if of & ~rows] for key, some in self.ends.items()}
            self.ends = {key: some for key, some in kept.items() if some}
