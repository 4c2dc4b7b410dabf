"""The outputs of queries with bounds, by brute force: everything is counted anew for each document that arrives.

A query sees what arrived outside its gaps. What another query publishes arrives with the latest document behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from feeds.documents import Document
from tests.oracle.bindings import Answer, OutputRow, Stored
from tests.oracle.evaluation import Evaluation
from xscl.parser import parse_script

Gap = tuple[int, int | None]
"""The first arrival that is not seen, and the next one that is; None if there is none yet."""

Counted = tuple[dict[tuple[str, int], list[OutputRow]], dict[tuple[str, int], int]]
"""The outputs, and the number of tuples of the inner join, for each query and arrival."""


@dataclass
class Watched:
    """A query, its inner join as a query of its own, if it has one, and what was counted for it."""

    name: str
    text: str
    inner: str | None = None
    gaps: list[Gap] = field(default_factory=list)
    outputs: int = 0
    tuples: int = 0

    @property
    def paused(self) -> bool:
        return bool(self.gaps) and self.gaps[-1][1] is None

    def pause(self, arrival: int) -> None:
        self.gaps.append((arrival, None))
        self.outputs = self.tuples = 0

    def resume(self, arrival: int) -> None:
        self.gaps[-1] = self.gaps[-1][0], arrival


class _Seen(Evaluation):
    """The outputs of queries that each see what arrived outside their gaps."""

    def __init__(self, texts: Sequence[str], gaps: Sequence[Sequence[Gap]], documents: Sequence[Document]) -> None:
        super().__init__(parse_script("; ".join(texts)), documents)
        self._gaps, self._asking = gaps, -1
        self._arrival = {(document.id, document.stream): n for n, document in enumerate(documents)}

    def latest(self, stored: Stored) -> int:
        return max(self._arrival[external] for external in stored.externals)

    def outputs(self, index: int) -> list[Answer]:
        before, self._asking = self._asking, index
        try:
            return super().outputs(index)
        finally:
            self._asking = before

    def _stream(self, name: str) -> list[Stored]:
        gaps = self._gaps[self._asking]
        return [stored for stored in super()._stream(name) if not _within(self.latest(stored), gaps)]


def _within(arrival: int, gaps: Sequence[Gap]) -> bool:
    return any(low <= arrival and (high is None or arrival < high) for low, high in gaps)


class Model:
    """Queries with bounds: at most `matches` outputs, and tuples of an inner join, for an arrival, and at most `in_all`
    for `block` arrivals."""

    def __init__(self, matches: int, in_all: int, block: int, upstream: Mapping[str, Collection[str]]) -> None:
        """`upstream` has, for the name of a query, the names of those whose outputs it reads, directly or through
        others."""
        self._matches, self._in_all, self._block, self._upstream = matches, in_all, block, upstream
        self.queries: list[Watched] = []
        self._documents: list[Document] = []
        self.given: list[OutputRow] = []

    def arrive(self, document: Document) -> None:
        self._documents.append(document)
        arrival = len(self._documents) - 1
        if arrival % self._block == 0:
            for query in self.queries:
                query.outputs = query.tuples = 0
        while True:
            counted = self._counted([arrival])
            over = [query for query in self.queries if self._is_over(query, counted, arrival)]
            names = {query.name for query in over}
            first = [query for query in over if not names & set(self._upstream.get(query.name, ()))]
            for query in first:
                query.pause(arrival)
            if not first:
                break
        for query in self.queries:
            self._give(query, counted, arrival)

    def backfill(self, query: Watched) -> None:
        """Adds a query whose outputs nobody reads, and shows it all earlier documents."""
        self.queries.append(query)
        arrivals = range(len(self._documents))
        counted = self._counted(arrivals)
        for arrival in arrivals:
            if arrival % self._block == 0:
                query.outputs = query.tuples = 0
            if self._is_over(query, counted, arrival):
                query.pause(arrival)
                return
            self._give(query, counted, arrival)

    def named(self, name: str) -> Watched:
        return next(query for query in self.queries if query.name == name)

    @property
    def arrivals(self) -> int:
        return len(self._documents)

    def _give(self, query: Watched, counted: Counted, arrival: int) -> None:
        outputs, tuples = counted
        self.given += outputs[query.name, arrival]
        query.outputs += len(outputs[query.name, arrival])
        query.tuples += tuples[query.name, arrival]

    def _is_over(self, query: Watched, counted: Counted, arrival: int) -> bool:
        outputs, tuples = counted
        found, inner = len(outputs[query.name, arrival]), tuples[query.name, arrival]
        if max(found, inner) > self._matches:
            return True
        return query.outputs + found > self._in_all or query.tuples + inner > self._in_all

    def _counted(self, arrivals: Collection[int]) -> Counted:
        joining = [query for query in self.queries if query.inner]
        texts = [query.text for query in self.queries] + [str(query.inner) for query in joining]
        owners = [*self.queries, *joining]
        seen = _Seen(texts, [query.gaps for query in owners], self._documents)
        outputs: dict[tuple[str, int], list[OutputRow]] = {(q.name, a): [] for q in self.queries for a in arrivals}
        tuples = dict.fromkeys(outputs, 0)
        for index, query in enumerate(owners):
            for output in seen.outputs(index):
                key = query.name, seen.latest(output.stored)
                if key in outputs and index < len(self.queries):
                    outputs[key].append(output.row)
                elif key in outputs:
                    tuples[key] += 1
        return outputs, tuples
