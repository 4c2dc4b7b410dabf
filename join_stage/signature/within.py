"""Which rows of several joins a set of pairs of classes satisfies: looked up once for each distinct set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from join_stage.signature.arrays import Ints
from join_stage.signature.classes import Classes
from join_stage.signature.rows import Rows

Kind = tuple[int, int]
"""A pair of classes, left and right."""

MOST_SETS = 100_000
"""Sets whose rows are remembered."""


@dataclass(frozen=True, slots=True, eq=False)
class Within:
    """The places of rows, and for each row and each of its joins the pairs of classes that satisfy the join."""

    places: Ints
    choices: list[list[list[Kind]]]


class Sets:
    """Remembers what sets of pairs of classes mean to the rows as they are now."""

    def __init__(self, rows: Rows, classes: Classes) -> None:
        self._rows, self._classes = rows, classes
        self._version = rows.version
        self._within: dict[frozenset[Kind], Within] = {}
        self._promoted: dict[frozenset[Kind], list[Kind]] = {}

    def within(self, kinds: frozenset[Kind]) -> Within:
        """The rows of several joins that a set satisfies, if documents are near enough in time."""
        self._renew()
        found = self._within.get(kinds)
        if found is None:
            if len(self._within) >= MOST_SETS:
                self._within.clear()
            found = self._within[kinds] = self._find(kinds)
        return found

    def forming(self, kinds: Sequence[Kind], totals: Sequence[int], most: int) -> list[int]:
        """The places of the pairs of classes of which pairs of documents have to be formed, for no row to be missed.

        `totals` has for each how many pairs of postings it is met in. Those met more often than `most` are left out,
        but for one edge, the rarest, of each row that has no other.
        """
        self._renew()
        heavy = {kind: total for kind, total in zip(kinds, totals, strict=True) if total > most}
        key = frozenset(heavy)
        promoted = self._promoted.get(key)
        if promoted is None:
            promoted = self._promoted[key] = self._promote(heavy)
        formed = set(promoted)
        return [place for place, kind in enumerate(kinds) if kind not in heavy or kind in formed]

    def _promote(self, heavy: dict[Kind, int]) -> list[Kind]:
        having = self._having(heavy)
        cost = {edge: sum(heavy[kind] for kind in kinds) for edge, kinds in having.items()}
        promoted: set[Kind] = set()
        for place in self._rows.within(having):
            edges = self._rows.edges_at(place)
            if len(edges) > 1:
                promoted.update(having[min(edges, key=lambda edge: (cost[edge], edge))])
        return sorted(promoted)

    def _find(self, kinds: frozenset[Kind]) -> Within:
        having = self._having(sorted(kinds))
        places = [place for place in self._rows.within(having) if len(self._rows.edges_at(place)) > 1]
        choices = [[having[edge] for edge in self._rows.edges_at(place)] for place in places]
        return Within(np.array(places, np.int64), choices)

    def _having(self, kinds: Iterable[Kind]) -> dict[int, list[Kind]]:
        """For each edge the pairs of classes that it is between."""
        having: dict[int, list[Kind]] = {}
        for kind in kinds:
            pair = self._classes.pair(*kind)
            for edge in pair.edges if pair else ():
                having.setdefault(edge, []).append(kind)
        return having

    def _renew(self) -> None:
        if self._version != self._rows.version:
            self._version = self._rows.version
            self._within.clear()
            self._promoted.clear()
