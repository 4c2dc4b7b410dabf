"""The rows of several joins that a set of kinds satisfies, looked up once for each distinct set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from join_stage.arrays import Ints
from join_stage.signature.path_classes import PathClasses
from join_stage.signature.row_index import RowIndex

PairKind = tuple[int, int]
"""The kind of a pair of postings: the numbers of their sets of asked paths, left and right."""

Streams = frozenset[tuple[str, str]]

MOST_SETS = 100_000
"""The number of sets whose rows are cached."""


@dataclass(frozen=True, slots=True, eq=False)
class SatisfiedRows:
    """Rows that a set of kinds satisfies. `places` has their indices; `choices` has for each of them, and each of its
    joins, the kinds that satisfy the join."""

    places: Ints
    choices: list[list[list[PairKind]]]


class SatisfiedRowsCache:
    """Looks up the rows that sets of kinds satisfy. It is cleared when the rows change."""

    def __init__(self, rows: RowIndex, classes: PathClasses) -> None:
        self._rows, self._classes = rows, classes
        self._version = rows.version
        self._within: dict[tuple[Streams, frozenset[PairKind]], SatisfiedRows] = {}

    def within(self, kinds: frozenset[PairKind], streams: Streams) -> SatisfiedRows:
        """The rows of several joins that a set of kinds satisfies, for documents of these pairs of streams. Times are
        not looked at."""
        if self._version != self._rows.version:
            self._version = self._rows.version
            self._within.clear()
        key = streams, kinds
        found = self._within.get(key)
        if found is None:
            if len(self._within) >= MOST_SETS:
                self._within.clear()
            found = self._within[key] = self._find(sorted(kinds), streams)
        return found

    def _find(self, kinds: Iterable[PairKind], streams: Streams) -> SatisfiedRows:
        having: dict[int, list[PairKind]] = {}
        for kind in kinds:
            pair = self._classes.pair(*kind, streams)
            for edge in pair.edges if pair else ():
                having.setdefault(edge, []).append(kind)
        places = [place for place in self._rows.covered_by(having) if len(self._rows.at(place).edges) > 1]
        choices = [[having[edge] for edge in self._rows.at(place).edges] for place in places]
        return SatisfiedRows(np.array(places, np.int64), choices)
