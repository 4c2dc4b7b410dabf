"""The events of definitions in documents that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from join_stage.joiner import JoinEngine
from mmqjp.answers.patterns.results import LATE
from mmqjp.documents.records import Records, kept_documents
from mmqjp.state.join_state import arriving
from pattern_stage.assemble import Assembled, assemble
from pattern_stage.values import Texts
from pattern_stage.witnessed import Witnessed
from templates.catalog import Change
from templates.event_places import EventPlacement
from xpath_stage.evaluator import XPathStage

NeedsOf = Callable[[str], Change]
"""Returns what a definition needs of stage 1, given its name."""


class KeptDocuments:
    """The stored documents, as events of definitions."""

    def __init__(self, store: JoinEngine, records: Records) -> None:
        self._store, self._records = store, records

    def events(
        self, placements: Mapping[str, EventPlacement], needs_of: NeedsOf, ends: range, texts: Texts
    ) -> Iterator[tuple[str, Assembled]]:
        """Yields the events of definitions that end in a range of times, by the names of these, in parts. Those of
        documents that came too late for event queries are left out. Only these definitions are evaluated, in a stage 1
        of their own."""
        for name, placement in placements.items():
            stage = XPathStage()
            stage.add(needs_of(name))
            for docids in kept_documents(self._store, [placement.stream], ends=ends, refused=LATE):
                found = stage.evaluate(map(arriving, self._records.parsed(docids)))
                yield name, assemble(placement, Witnessed(found, stage.edges_of, texts), texts)
                self._records.release_trees()
