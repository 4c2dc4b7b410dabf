"""Which of too many partial matches are kept for BUDGET: greedily, those that lead to most bundles that the ones chosen
before do not lead to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple
from zlib import crc32

from pattern_stage.matching.letters import Vector
from pattern_stage.matching.vectors import Seen

Name = tuple[Vector, int]
"""Tells a partial match among those of a key: its place in the expression, and the number of its last event."""


class Candidate(NamedTuple):
    """A partial match that may be kept: when it begins at most and ends, and its rank where nothing is known."""

    name: Name
    start: int
    t1: int
    rank: Any


class Cover:
    """A choice among candidates, which are given by rank, each with its vector."""

    def __init__(
        self, ranked: Sequence[Candidate], seen: Sequence[Seen], bundles: int, hash_of: Callable[[Candidate], int]
    ) -> None:
        """`bundles` says how many have begun."""
        self._ranked, self._hash_of = ranked, hash_of
        self._taken = [False] * len(ranked)
        self._next = 0
        self._hashed: list[int] | None = None
        self._alike: dict[Seen, list[int]] = {}
        """The candidates of each vector, the first one at the end."""
        for at in range(len(ranked) - 1, -1, -1):
            self._alike.setdefault(seen[at], []).append(at)
        known = {one: one.known() for one in self._alike}
        promises = {one: (what.value, what.map(bundles)) for one, what in known.items() if what.value > 0}
        self._promises = {one: promise for one, promise in promises.items() if promise[1]}
        self._every = 0
        for _, leads in self._promises.values():
            self._every |= leads
        self._waiting: list[tuple[float, int, Seen]] = []
        """Vectors, what they promise at most, and their first candidate: a heap."""
        self._covered = 0

    def by_hash(self) -> int:
        """Returns one that has nothing to do with what is known."""
        if self._hashed is None:
            hashes = list(map(self._hash_of, self._ranked))
            self._hashed = sorted(range(len(hashes)), key=lambda at: (hashes[at], at), reverse=True)
        while self._taken[self._hashed[-1]]:
            self._hashed.pop()
        return self._take(self._hashed.pop())

    def best(self) -> int:
        """Returns the one that promises most. When all bundles are covered, it begins anew."""
        if self._covered == self._every or not self._has_more():
            self._covered, self._waiting = 0, self._round()
        if not self._waiting:
            while self._taken[self._next]:
                self._next += 1
            return self._take(self._next)
        _, at, seen = heappop(self._waiting)
        self._covered |= self._promises[seen][1]
        return self._take(at)

    def _take(self, at: int) -> int:
        self._taken[at] = True
        return at

    def _has_more(self) -> bool:
        """Brings the vector that promises most to the front; returns whether it promises anything more."""
        while self._waiting:
            promised, first, seen = self._waiting[0]
            value, leads = self._promises[seen]
            gain, at = value * (leads & ~self._covered).bit_count(), self._first(seen)
            if at is None or not gain:
                heappop(self._waiting)
            elif (-gain, at) == (promised, first):
                return True
            else:
                heapreplace(self._waiting, (-gain, at, seen))
        return False

    def _round(self) -> list[tuple[float, int, Seen]]:
        found = [
            (-value * leads.bit_count(), at, seen)
            for seen, (value, leads) in self._promises.items()
            if (at := self._first(seen)) is not None
        ]
        heapify(found)
        return found

    def _first(self, seen: Seen) -> int | None:
        """Returns the first candidate of a vector that was not taken."""
        some = self._alike[seen]
        while some and self._taken[some[-1]]:
            some.pop()
        return some[-1] if some else None


def hashed(one: Candidate) -> int:
    """Returns a number that has nothing to do with what a candidate is."""
    return crc32(repr((one.name[0], one.start, one.t1)).encode())
