"""Backfill of event queries: new ones run over all that is kept, in a kernel of their own, up to the horizon.

What waits there then joins what waits for the others, so that they go on as if they had been there from the beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

from mmqjp.answers.patterns.kept import KeptDocuments
from mmqjp.answers.patterns.results import FormResults
from mmqjp.answers.patterns.running import Running
from mmqjp.queries.event_compile import read_by
from mmqjp.queries.event_registry import EventForm
from pattern_stage.adopt import adopted
from pattern_stage.assemble import Assembled
from pattern_stage.horizon import START
from pattern_stage.limits import Excess
from templates.catalog import Catalog, Change
from templates.event_places import EventPlacement, place_events
from xscl.algebra.event_pattern import EventPattern


class EventBackfill:
    """Forms in a kernel of their own. `told` are the ids of those that the backfill is for; the others publish what
    these read."""

    def __init__(
        self,
        forms: Mapping[str, EventForm],
        told: Collection[str],
        definitions: Mapping[str, EventPattern],
        own: Running,
        kept: KeptDocuments,
        horizon: int,
    ) -> None:
        """Takes the events of documents that are kept, up to the horizon."""
        self.running, self._told, self._horizon = own, told, horizon
        self._placements: dict[str, EventPlacement] = {}
        needs: dict[str, Change] = {}
        catalog = Catalog()
        for form in forms.values():
            for name in read_by(form.stream):
                if name in definitions and name not in needs:
                    self._placements[name], needs[name] = place_events(catalog, definitions[name])
        own.follow(forms, forms)
        for name, found in kept.events(self._placements, needs.__getitem__, range(START, horizon), own.texts):
            own.take(name, found)

    def take(self, name: str, found: Assembled) -> None:
        """Takes events in documents that are published meanwhile: those before the horizon."""
        if name in self._placements and (before := found.t1 < self._horizon).any():
            self.running.take(name, found.take(before))

    def release(self) -> Iterator[list[FormResults]]:
        """Yields the results of new queries, of a stratum each, which the caller answers before it goes on."""
        for results in self.running.run(self._horizon, self._placements):
            yield [found for found in results if found.form_id in self._told]

    def exceeded(self) -> dict[str, Excess]:
        """Returns the new forms that have exceeded a limit, and all of them if one behind them has."""
        found = self.running.exceeded
        behind = [excess for form_id, excess in found.items() if form_id not in self._told]
        return {
            form_id: min(known)
            for form_id in self._told
            if (known := [*behind, *([found[form_id]] if form_id in found else [])])
        }

    def join(self, others: Running) -> None:
        """Lets what waits here wait among others, where the same queries are, too."""
        kernel = self.running.kernel
        state: Mapping[str, pa.Table] = others.kernel.state()
        others.take_over(adopted(state, kernel.state(), kernel.parts(), self.running.lineage, others.lineage))
