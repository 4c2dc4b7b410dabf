"""A match of a pattern, and what waits for events of one key.

NON OVERLAPPING: of the matches of a key, in the order of being known, those that begin after the one told before.

The order of events of which none is first by time.

The roots of a trail as columns: so many are read at once.

Matches as columns: of each variable how many events it has, values of its first and last one, and all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np

from common.arrays import Ints
from pattern_stage.columns import Column, column_of
from pattern_stage.fan_out import grow_array
from pattern_stage.operators import OriginLookup
from pattern_stage.pattern.cells import CellTable
from pattern_stage.pattern.masks import EVERY, EventTuple, Root, expanded
from pattern_stage.pattern.rows import KeyValues
from templates.witness import plain_node
from xscl.algebra.events import Kind


class MatchCandidate(NamedTuple):
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

    def chosen(self, matches: Sequence[MatchCandidate]) -> list[int]:
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

    def _by_ids(self, matches: Sequence[MatchCandidate], places: Sequence[int]) -> Callable[[int], list[Any]]:
        order = self._order({number for place in places for number in matches[place].ids()})
        return lambda place: [order[number] for number in matches[place].ids()]

    def _left(self, one: MatchCandidate) -> int:
        """Returns the rows of a match that it may be told for."""
        rows = one.rows
        for end, of in self.ends.get(() if self._whole else one.key, ()):
            if one.t0 <= end:
                rows &= ~of
        return rows

    def _told(self, one: MatchCandidate) -> int:
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


class SetMatch(NamedTuple):
    """A match of some rows."""

    known: int
    t0: int
    t1: int
    rows: int
    events: list[EventTuple]
    components: list[int]
    """Of each event, ascending."""
    key: KeyValues

    def candidate(self) -> MatchCandidate:
        """Returns it as NON OVERLAPPING compares it."""
        return MatchCandidate(self.known, self.t0, self.t1, self.rows, 0, len(self.events), self.key, self._ids)

    def _ids(self) -> list[int]:
        return [event[2] for event in self.events]


class KeyState:
    """What waits for events of one key."""

    __slots__ = ("absent", "cells", "pending")

    def __init__(self, hashed: Sequence[Collection[int]], negations: int) -> None:
        self.cells = [CellTable(registers) for registers in hashed]
        self.pending = CellTable(hashed[-1])
        """Matches that a negated event may still kill, in cells."""
        self.absent: list[list[tuple[EventTuple, int]]] = [[] for _ in range(negations)]
        """Events of negated variables that matches have to be compared with, each with its rows, by t1."""

    def is_empty(self) -> bool:
        return not (any(self.cells) or self.pending or any(self.absent))


class Roles(NamedTuple):
    """Where the masks of an arrival are: those of begins, of takes (-1 for none) and of negations."""

    begins: tuple[int, ...]
    takes: tuple[int, ...]
    negations: tuple[int, ...]


def event_order(lineage: OriginLookup, numbers: Iterable[int]) -> dict[int, Any]:
    """Returns for each of these numbers what to sort by: t1, stream, document, nodes; or of a composed event its
    digest. It is the same in every store and process."""
    found = lineage.origins(np.array(list(numbers), np.int64))
    times = Counter(one.t1 for one in found.values())
    ids = lineage.document_ids({one.docid for one in found.values() if one.docid >= 0 and times[one.t1] > 1})
    return {
        number: (one.t1, one.stream, ids.get(one.docid), [plain_node(node) for node in one.nodes], one.digest)
        for number, one in found.items()
    }


_NONE = np.zeros(0, np.int64)


class RootColumns:
    """The first roots of a list that only grows. Its columns may be longer than the list."""

    def __init__(self) -> None:
        self.count = 0
        self.places, self.starts, self.bounds = _NONE, _NONE, _NONE
        self.firsts = np.zeros(1, np.int64)
        """Of each root where its rows begin, and where those of the last one end."""
        self.rows, self.of = _NONE, _NONE
        """Pairs: a row, and the root that has it."""

    def follow(self, roots: Sequence[Root]) -> None:
        """Takes in roots that were added."""
        new, count = roots[self.count :], len(roots)
        if not new:
            return
        places, starts, bounds, masks = zip(*new, strict=True)
        here = slice(self.count, count)
        self.places, self.starts, self.bounds = (
            grow_array(one, count) for one in (self.places, self.starts, self.bounds)
        )
        self.places[here], self.starts[here], self.bounds[here] = places, starts, bounds
        at, rows = expanded(masks)
        begin = int(self.firsts[self.count])
        self.rows, self.of = grow_array(self.rows, begin + len(rows)), grow_array(self.of, begin + len(rows))
        self.rows[begin : begin + len(rows)], self.of[begin : begin + len(rows)] = rows, at + self.count
        self.firsts = grow_array(self.firsts, count + 1)
        self.firsts[self.count + 1 : count + 1] = begin + np.cumsum(np.bincount(at, minlength=len(new)))
        self.count = count


@dataclass(frozen=True, slots=True)
class Items:
    """The events of a variable of matches, one match after the other. `starts` says where those of each begin."""

    events: Sequence[EventTuple]
    starts: Ints

    def column(self, slot: int, places: Ints, kind: Kind) -> Column:
        """Returns a value of the events at these places."""
        events = self.events
        return column_of([events[place][slot] for place in places.tolist()], are_texts=kind == "string")


class MatchList(Protocol):
    """Some matches. Variables are numbered, negated ones not counted."""

    @property
    def count(self) -> int:
        """How many matches there are."""

    def sizes(self, variable: int) -> Ints:
        """Returns how many events a variable of each match has."""

    def ends(self, variable: int, slot: int, kind: Kind, *, last: bool) -> Column:
        """Returns a value of the first or last event of a variable of each match."""

    def events(self, variable: int) -> Items:
        """Returns all events of a variable."""

    def parts(self, variable: int, lineage: OriginLookup) -> Ints:
        """Returns the number of the set of events of a variable of each match."""


class MatchTable:
    """Matches whose events are listed. `at` and `rows` are pairs: a match, and a row that has it."""

    def __init__(self, matches: Sequence[SetMatch], variables: int) -> None:
        self.count = len(matches)
        self.t0, self.t1, self.known = (
            np.fromiter((getattr(match, name) for match in matches), np.int64, len(matches))
            for name in ("t0", "t1", "known")
        )
        self.at, self.rows = expanded([match.rows for match in matches])
        self._events = [event for match in matches for event in match.events]
        sizes = np.zeros((len(matches), variables), np.int64)
        of = np.repeat(np.arange(len(matches)), [len(match.events) for match in matches])
        components = np.fromiter((one for match in matches for one in match.components), np.int64, len(self._events))
        np.add.at(sizes, (of, components), 1)
        self._starts = (np.cumsum(sizes.ravel()) - sizes.ravel()).reshape(sizes.shape)
        self._sizes = sizes

    def sizes(self, variable: int) -> Ints:
        """See Table."""
        return self._sizes[:, variable]

    def ends(self, variable: int, slot: int, kind: Kind, *, last: bool) -> Column:
        """See Table."""
        places = self._starts[:, variable] + (self._sizes[:, variable] - 1 if last else 0)
        return self.events(variable).column(slot, places, kind)

    def events(self, variable: int) -> Items:
        """See Table."""
        return Items(self._events, self._starts[:, variable])

    def parts(self, variable: int, lineage: OriginLookup) -> Ints:
        """See Table."""
        sizes, events = self._sizes[:, variable], self._events
        at = np.repeat(np.arange(self.count), sizes)
        places = np.arange(len(at)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + self._starts[at, variable]
        numbers = np.fromiter((events[place][2] for place in places.tolist()), np.int64, len(places))
        return lineage.together(numbers.reshape(-1, 1), at) if len(at) > self.count else numbers
