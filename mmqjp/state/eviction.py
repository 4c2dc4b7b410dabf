"""Eviction: drops join state that is further behind the watermarks than the widest window."""

from __future__ import annotations

from collections.abc import Mapping

from feeds.times import Now
from join_stage.joiner import JoinEngine
from join_stage.state_tables import has_documents_between
from mmqjp.documents.watermarks import EARLIEST, WATERMARKS, Watermarks, is_bounded, to_setting
from mmqjp.queries.registry import Registry
from mmqjp.state.join_state import JoinState
from mmqjp.tables.commit_metadata import CommitMetadata
from mmqjp.tables.ledger import Ledger
from templates.catalog import INFINITE

CHECKS_PER_IDLE = 60
"""While no documents come, eviction is checked at most this many times per `idle_after`."""


WORTH_EVICTING = 64
"""Join state is evicted when this part of the widest window can go, because that takes as long as several documents."""


class Eviction:
    """Evicts join state that no document can match any more."""

    def __init__(
        self,
        store: JoinEngine,
        ledger: Ledger,
        registry: Registry,
        watermarks: Watermarks,
        state: JoinState,
        now: Now,
    ) -> None:
        self._store, self._ledger, self._registry, self._watermarks = store, ledger, registry, watermarks
        self._state, self._now = state, now
        self._checked = now()

    def before(self, horizon: int) -> int:
        """Returns the time before which documents begin that nothing can match any more, once all streams have come up
        to `horizon`. Returns EARLIEST if there is none."""
        window = self._registry.window
        return EARLIEST if horizon <= EARLIEST or window == INFINITE else horizon - window

    def evict(self, greatest: Mapping[str, int]) -> None:
        """Evicts, within a batch, what is obsolete at these greatest times. Stores the times, so that what is late
        stays late."""
        lateness = self._watermarks.timing.lateness
        if not is_bounded(lateness):
            return
        self._ledger.save_metadata(CommitMetadata(settings={WATERMARKS: to_setting(lateness, greatest)}))
        before = self._before(greatest)
        if self._is_worth_it(before):
            self._state.evict(before)

    def evict_for_good(self, before: int) -> None:
        """Evicts, within a batch, all documents that begin before a time: they are about to be dropped."""
        if before > self._state.evicted_before:
            self._state.evict(before)

    def is_due(self, greatest: Mapping[str, int]) -> bool:
        """Returns whether the join state has documents to evict at these greatest times. Returns False if this was
        checked a short while ago."""
        idle_after, now = self._watermarks.timing.idle_after, self._now()
        # Reading the join state is slow on Spark.
        if idle_after is None or now - self._checked < idle_after // CHECKS_PER_IDLE:
            return False
        self._checked = now
        before, done = self._before(greatest), self._state.evicted_before
        return self._is_worth_it(before) and has_documents_between(self._store, done, before)

    def _is_worth_it(self, before: int) -> bool:
        """Returns whether enough has become obsolete since documents were last evicted."""
        return before > self._state.evicted_before + self._registry.window // WORTH_EVICTING

    def _before(self, greatest: Mapping[str, int]) -> int:
        return self.before(self._watermarks.of(self._registry.outside(), greatest))
