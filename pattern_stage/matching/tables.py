"""Matches as columns: of each variable how many events it has, values of its first and last one, and all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pattern_stage.columns import Column, Ints, column_of
from pattern_stage.matching.masks import expanded
from pattern_stage.matching.match import Match
from pattern_stage.matching.nodes import Event
from pattern_stage.operators import Origins
from xscl.algebra.events import Kind


@dataclass(frozen=True, slots=True)
class Items:
    """The events of a variable of matches, one match after the other. `starts` says where those of each begin."""

    events: Sequence[Event]
    starts: Ints

    def column(self, slot: int, places: Ints, kind: Kind) -> Column:
        """Returns a value of the events at these places."""
        events = self.events
        return column_of([events[place][slot] for place in places.tolist()], are_texts=kind == "string")


class Table(Protocol):
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

    def parts(self, variable: int, lineage: Origins) -> Ints:
        """Returns the number of the set of events of a variable of each match."""


class MatchTable:
    """Matches whose events are listed. `at` and `rows` are pairs: a match, and a row that has it."""

    def __init__(self, matches: Sequence[Match], variables: int) -> None:
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

    def parts(self, variable: int, lineage: Origins) -> Ints:
        """See Table."""
        sizes, events = self._sizes[:, variable], self._events
        at = np.repeat(np.arange(self.count), sizes)
        places = np.arange(len(at)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + self._starts[at, variable]
        numbers = np.fromiter((events[place][2] for place in places.tolist()), np.int64, len(places))
        return lineage.together(numbers.reshape(-1, 1), at) if len(at) > self.count else numbers
