"""The events of new definitions in documents that are kept: those that end at the horizon or later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from join_stage.joiner import JoinEngine
from mmqjp.documents.records import Records, kept_documents
from mmqjp.state.join_state import arriving
from pattern_stage.assemble import Assembled, assemble
from pattern_stage.values import Texts
from pattern_stage.witnessed import Witnessed
from templates.catalog import Change
from templates.event_places import EventPlacement
from xpath_stage.evaluator import XPathStage


class KeptDocuments:
    """The stored documents, as events of definitions. `needs_of` returns what a definition needs of stage 1."""

    def __init__(self, store: JoinEngine, records: Records, needs_of: Callable[[str], Change]) -> None:
        self._store, self._records, self._needs_of = store, records, needs_of

    def events(
        self, placements: Mapping[str, EventPlacement], horizon: int, texts: Texts
    ) -> Iterator[tuple[str, Assembled]]:
        """Yields the events of definitions, by their names, in parts. Only these are evaluated, in a stage 1 of their
        own."""
        for name, placement in placements.items():
            stage = XPathStage()
            stage.add(self._needs_of(name))
            for docids in kept_documents(self._store, [placement.stream], ends_from=horizon):
                found = stage.evaluate(map(arriving, self._records.parsed(docids)))
                yield name, assemble(placement, Witnessed(found, stage.edges_of, texts), texts)
                self._records.release_trees()
