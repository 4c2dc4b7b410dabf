"""The definitions of events that event statements read: each stands in the catalog and in stage 1, once for all."""

from __future__ import annotations

from collections import Counter

from templates.catalog import Catalog, Change
from templates.event_places import EventPlacement, place_events
from xpath_stage.evaluator import XPathStage
from xscl.algebra.event_pattern import EventPattern


class DefinedEvents:
    """Registers definitions while they are read. `version` changes with every change."""

    def __init__(self, catalog: Catalog, stage1: XPathStage) -> None:
        self._catalog, self._stage1 = catalog, stage1
        self._readers: Counter[str] = Counter()
        self.placements: dict[str, EventPlacement] = {}
        self.version = 0

    def use(self, name: str, pattern: EventPattern) -> None:
        """Counts one more reader of a definition. Raises TooManyChains."""
        if name not in self.placements:
            self.placements[name], change = place_events(self._catalog, pattern)
            self._stage1.add(change)
            self.version += 1
        self._readers[name] += 1

    def release(self, name: str) -> None:
        """Counts one reader less."""
        self._readers[name] -= 1
        if not self._readers[name]:
            del self._readers[name]
            gone = self.placements.pop(name)
            self._stage1.remove(self._catalog.release(gone.variables, gone.edges, gone.values))
            self.version += 1

    def needs_of(self, name: str) -> Change:
        """Returns all that a definition needs of stage 1."""
        placement = self.placements[name]
        return self._catalog.held(placement.variables, placement.edges, placement.values)
