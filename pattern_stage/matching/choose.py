"""NON OVERLAPPING: of the matches of a key, in the order of being known, those that begin after the one told before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Protocol, TypeVar

from pattern_stage.matching.nodes import EVERY


class Candidate(Protocol):
    """A match that may be told."""

    @property
    def known(self) -> int: ...

    @property
    def t0(self) -> int: ...

    @property
    def t1(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def errors(self) -> int: ...

    @property
    def events(self) -> Sequence[tuple[Any, ...]]: ...

    @property
    def key(self) -> Any: ...


C = TypeVar("C", bound=Candidate)


class Apart:
    """When the last match of each key ended that was told, by rows."""

    def __init__(self, order: Callable[[Iterable[int]], dict[int, Any]], *, whole: bool) -> None:
        """`order` says of events by their numbers which come first. `whole`: all keys are one."""
        self._order, self._whole = order, whole
        self.ends: dict[Any, list[tuple[int, int]]] = {}
        """For each key ends of matches, each with its rows."""
        self._swept = 0

    def chosen(self, matches: Sequence[C]) -> list[tuple[C, int]]:
        """Returns matches, all that become known at some times, with the rows that they are told for."""
        found = []
        for _, some in groupby(sorted(matches, key=lambda one: one.known), key=lambda one: one.known):
            candidates = sorted(some, key=lambda one: (one.errors, one.t0, -len(one.events)))
            for _, equal in groupby(candidates, key=lambda one: (one.errors, one.t0, len(one.events))):
                for one in self._by_ids(list(equal)):
                    rows = self._told(one)
                    if rows:
                        found.append((one, rows))
        return found

    def _by_ids(self, equal: list[C]) -> list[C]:
        if len(equal) == 1:
            return equal
        order = self._order(event[2] for one in equal for event in one.events)
        return sorted(equal, key=lambda one: [order[event[2]] for event in one.events])

    def _told(self, one: C) -> int:
        key = () if self._whole else one.key
        rows = one.rows
        ends = self.ends.get(key, [])
        for end, of in ends:
            if one.t0 <= end:
                rows &= ~of
        if rows:
            left = [(end, of & ~rows) for end, of in ends if of & ~rows]
            self.ends[key] = [*left, (one.t1, rows)]
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
