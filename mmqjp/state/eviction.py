"""When join state goes: behind the watermarks by more than the widest window, with a batch, or with the clock alone."""

from __future__ import annotations

from collections.abc import Mapping

from feeds.document import Clock
from join_stage.joiner import JoinEngine
from join_stage.state_tables import has_documents_between
from mmqjp.documents.watermarks import EARLIEST, WATERMARKS, Watermarks, is_bounded, to_setting
from mmqjp.queries.registry import Registry
from mmqjp.state.join_state import JoinState
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.notes import Notes
from templates.catalog import INFINITE

LOOKS = 60
"""How often at the most, in the time after which a stream is silent, it is looked whether something can go."""


class Eviction:
    """Drops the join state that nothing can meet any more."""

    def __init__(
        self,
        store: JoinEngine,
        ledger: Ledger,
        registry: Registry,
        watermarks: Watermarks,
        state: JoinState,
        now: Clock,
    ) -> None:
        self._store, self._ledger, self._registry, self._watermarks = store, ledger, registry, watermarks
        self._state = state
        self._now = now
        self._looked = now()

    def before(self, horizon: int) -> int:
        """The time before which documents begin that nothing can meet any more, if all streams have come up to the
        horizon; EARLIEST if there is none."""
        window = self._registry.window
        return EARLIEST if horizon <= EARLIEST or window == INFINITE else horizon - window

    def evict(self, greatest: Mapping[str, int]) -> None:
        """Drops, within a batch, what can go once streams have had these greatest times, and notes why: what is late
        must stay late."""
        lateness = self._watermarks.timing.lateness
        if not is_bounded(lateness):
            return
        self._ledger.save_notes(Notes(settings={WATERMARKS: to_setting(lateness, greatest)}))
        before = self._before(greatest)
        if before > EARLIEST:
            self._state.evict(before)

    def is_due(self, greatest: Mapping[str, int]) -> bool:
        """Whether documents in the join state begin before the time up to which none is needed, but not before that up
        to which they were dropped as far as it was practical. Not when that was looked for a short while ago."""
        idle_after, now = self._watermarks.timing.idle_after, self._now()
        # To look into the join state takes long on Spark.
        if idle_after is None or now - self._looked < idle_after // LOOKS:
            return False
        self._looked = now
        before, done = self._before(greatest), self._state.evicted_before
        if before <= done:
            return False
        return has_documents_between(self._store, done, before)

    def _before(self, greatest: Mapping[str, int]) -> int:
        return self.before(self._watermarks.of(self._registry.outside(), greatest))
