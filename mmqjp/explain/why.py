"""Explains why outputs came about: looks up their documents and queries, many at a time, and finds their reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from mmqjp.answers.output import Output
from mmqjp.documents.record import Record
from mmqjp.explain.findings import filters_of
from mmqjp.explain.node_names import is_pattern, named_reason
from mmqjp.explain.reasons import Reason, ReasonSearch, TooMuchWork
from mmqjp.queries.compile import CompiledQuery
from mmqjp.queries.model import Subscription
from mmqjp.session import Session

MOST_STEPS = 200_000
"""The most steps that the search for one reason takes: about a second."""

MOST_QUERIES = 100
"""For an answer of an earlier store, at most so many queries of its name are tried."""

MOST_NAMES = 10_000
"""Removed queries are kept for so many names."""


HasText = CompiledQuery | Subscription


class Evidence:
    """Finds the reasons of outputs in the matches and documents that an engine stores."""

    def __init__(self, engine: Session) -> None:
        self._engine = engine
        self._removed: dict[str, dict[str, CompiledQuery]] = {}
        self._selecting: dict[str, bool] = {}

    def of(self, outputs: Sequence[Output]) -> list[Reason | None]:
        """Returns the reason of each output.

        None if it cannot be told: a document is no longer stored, or it has so many nodes that the search takes too
        long. Raises StoreError.
        """
        behind = self._engine.matches_behind(outputs)
        found = self._engine.records.found({docid for of_one in behind.values() for _, ids in of_one for docid in ids})
        known = found | self._engine.records.found({part for record in found.values() for part in record.parts})
        reasons = [self._reason(output, behind.get(output.seq, ()), known) for output in outputs]
        self._engine.records.release_trees()
        return reasons

    def has_select(self, name: str) -> bool:
        """Returns whether a query of a name selects values, instead of whole documents."""
        if name not in self._selecting:
            if len(self._selecting) >= MOST_NAMES:
                self._selecting.clear()
            self._selecting[name] = any(not query.normal.star for query in self._queries(name, None))
        return self._selecting[name]

    def _reason(
        self, output: Output, behind: Iterable[tuple[str | None, tuple[int, ...]]], known: dict[int, Record]
    ) -> Reason | None:
        if any(is_pattern(query.text) for query in self._queries(output.query, None)[:1]):
            return named_reason(output.nodes)
        sources = list(zip(output.documents, output.streams, strict=True))
        places = {source: place for place, source in reversed([*enumerate(sources)])}  # the first place of each
        for form, docids in behind:
            if not all(docid in known and all(part in known for part in known[docid].parts) for docid in docids):
                continue
            parts = [known[part] for docid in docids for part in known[docid].parts]
            placed = [(part, places.get(part.sources[0], -1) if part.kind == "external" else -1) for part in parts]
            for query in self._queries(output.query, form):
                try:
                    filters = filters_of(query.text) if query.normal.op is None else None
                    reason = ReasonSearch(query.normal, output.nodes, placed, MOST_STEPS).reason(filters)
                except TooMuchWork:
                    return None
                if reason is not None:
                    return reason
        return None

    def _queries(self, name: str, form: str | None) -> list[HasText]:
        """The queries of a name with the form of an answer. Answers of earlier stores have None: all of the name."""
        living = (query for query in self._engine.registry.named(name) if form in (None, query.form_id))
        found: list[HasText] = list(islice(living, 1 if form else MOST_QUERIES))
        if found:
            return found
        if name not in self._removed:
            if len(self._removed) >= MOST_NAMES:
                self._removed.clear()
            self._removed[name] = self._engine.removed_queries(name)
        return [query for known, query in self._removed[name].items() if form in (None, known)]
