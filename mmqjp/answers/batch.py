"""Runs batches. Everything in a batch is committed together; if it fails, the engine returns to its state before it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from feeds.document import Document, Reject
from join_stage.store.protocol import whole_batch
from mmqjp.answers.answered import Pause, QuotaExceeded
from mmqjp.answers.components import Components
from mmqjp.answers.operators import warn_of_waiting
from mmqjp.answers.outputs import Outputs
from mmqjp.answers.usage import Cutoff
from mmqjp.documents.admission import EvaluatedBatch
from mmqjp.documents.watermarks import greatest_times, is_bounded
from mmqjp.queries.changes import MetadataFor, SubscribeMode
from mmqjp.queries.model import Subscription
from mmqjp.state.retention import prune, prune_offsets
from mmqjp.tables.commit_metadata import NO_METADATA, CommitMetadata, MetadataOf
from mmqjp.tables.deliveries import Owed
from mmqjp.tables.ledger import NextIds
from xscl import Script


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of one batch.

    `outputs` are in the order of output lines. `dead_letters` are rows of that table. `documents` counts the documents
    that were admitted and `duplicates` those that were already known. `paused` maps names of queries to the reason why
    they were paused.
    """

    outputs: Outputs
    dead_letters: list[dict[str, Any]]
    documents: int
    duplicates: int
    paused: dict[str, str]


class Batches:
    """Runs batches over an engine's components. Each is committed when the call returns."""

    def __init__(self, components: Components) -> None:
        self._components = components

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Wraps a batch of the store, which is committed inside. If the block raises, restores every component."""
        components = self._components
        before = components.ledger.next_ids()
        try:
            yield
        except BaseException:
            self._roll_back(before)
            raise
        for component in (components.stage1, components.state, components.pipeline):
            component.finish_batch(committed=True)
        components.ledger.batch += 1

    def _roll_back(self, before: NextIds) -> None:
        """Undoes the in-memory effects of a batch that was rolled back."""
        components = self._components
        for component in (components.stage1, components.state, components.pipeline):
            component.finish_batch(committed=False)
        components.ledger.restore_next_ids(before)
        components.records.forget(components.ledger.next_docid)

    # ------------------------------------------------------------ documents

    def process(
        self,
        documents: Iterable[Document | Reject],
        metadata: CommitMetadata | MetadataOf,
        evaluated: EvaluatedBatch | None,
        *,
        lasts: bool | None = None,
    ) -> BatchResult:
        """Processes documents and commits `metadata` with them. `evaluated` has their results of stage 1 if they were
        evaluated elsewhere. At the end of a finite run, `lasts` says whether its state does."""
        components = self._components
        components.registry.flush()
        taken_at = components.now()
        before = components.ledger.next_ids()

        def begin_again() -> None:
            components.store.rollback()
            self._roll_back(before)
            components.store.begin()

        with self.whole(), whole_batch(components.store):
            admitted = components.admission.admit(documents, evaluated)
            witnesses = None if evaluated is None else partial(evaluated.witnesses, admitted.indexes)
            arrived = admitted.greatest()
            greatest = components.watermarks.after(arrived, components.registry.outside(), taken_at)
            clock = None if components.watermarks.timing.max_ahead is None else taken_at
            answered = components.pipeline.answer(
                admitted.records, witnesses, greatest, begin_again, clock, lasts=lasts
            )
            late = components.pipeline.late_for_patterns(taken_at)
            components.records.flush()
            self._save_pauses(answered.pauses)
            components.store.append("dead_letters", dead := pa.concat_tables([admitted.dead_letters, late]))
            outputs = components.outbox.save_answers(answered.answers, answered.members)
            components.ledger.save_metadata(metadata(admitted.refused()) if callable(metadata) else metadata)
            components.eviction.evict(greatest)
            if components.stage1.crowded:
                self._drop_groups()
            components.state.save_reach()
            components.ledger.save_batch(taken_at, len(admitted.records), len(dead), len(outputs))
        components.watermarks.advance(greatest, arrived, components.now())
        return BatchResult(
            outputs,
            dead.to_pylist() if len(dead) else [],
            len(admitted.records),
            admitted.duplicates,
            self._set_paused(answered.pauses),
        )

    def pass_time(self) -> BatchResult | None:
        """Advances idle streams to the clock. If this decides a query or lets join state be evicted, runs an empty
        batch and returns its result; otherwise returns None."""
        components = self._components
        timing, now = components.watermarks.timing, components.now()
        if timing.idle_after is None or not is_bounded(timing.lateness):
            return None
        greatest = components.watermarks.after({}, components.registry.outside(), now)
        if components.pipeline.is_due(greatest, now) or components.eviction.is_due(greatest):
            return self.process((), NO_METADATA, None)
        components.watermarks.advance(greatest, {}, now)
        return None

    # ------------------------------------------------------------ queries

    def subscribe(
        self, script: Script, mode: SubscribeMode, metadata_for: MetadataFor, *, backfill: bool
    ) -> tuple[list[str], int, dict[str, str]]:
        """Registers the queries of a script. Returns their names, the number of outputs of the backfill, and the
        queries that it paused, by name, with the reason. `backfill` answers the new queries over stored documents
        first. In live use, logs which of them wait without end."""
        if backfill:
            subscribed = self._subscribe_with_backfill(script, mode, metadata_for)
        else:
            with self.whole():
                subscribed = self._components.changes.subscribe(script, mode, metadata_for=metadata_for), 0, {}
        if self._components.watermarks.timing.idle_after is not None:
            warn_of_waiting(subscribed[0], self._components.pipeline.operators.never_decided())
        return subscribed

    def _subscribe_with_backfill(
        self, script: Script, mode: SubscribeMode, metadata_for: MetadataFor
    ) -> tuple[list[str], int, dict[str, str]]:
        """Runs the backfill again, with cutoffs, until no query exceeds its quota."""
        components = self._components
        cutoffs: dict[int, Cutoff] = {}
        pauses: list[Pause] = []
        count = 0

        def greatest() -> Mapping[str, int]:
            return greatest_times(components.store, components.ledger)

        def backfill(subscriptions: list[Subscription]) -> None:
            nonlocal count
            if not subscriptions:
                return
            taken_at = components.now()
            fresh, until = components.admission.fresh, components.watermarks.greatest
            answered = components.pipeline.backfill(subscriptions, fresh, cutoffs, greatest, until)
            pauses[:] = answered.pauses
            components.records.flush()
            self._save_pauses(pauses)
            count = len(components.outbox.save_answers(answered.answers, answered.members))
            components.ledger.save_batch(taken_at, 0, 0, count)
            components.state.save_reach()

        while True:
            try:
                with self.whole():
                    names = components.changes.subscribe(
                        script, mode, since=-1, metadata_for=metadata_for, within=backfill
                    )
                break
            except QuotaExceeded as exceeded:
                cutoffs |= exceeded.cutoffs
        return names, count, self._set_paused(pauses)

    def _save_pauses(self, pauses: Iterable[Pause]) -> None:
        for pause in pauses:
            self._components.changes.save_pauses([pause.query.qid], pause.docid, pause.reason, pause.arrival)

    def _set_paused(self, pauses: Iterable[Pause]) -> dict[str, str]:
        """Pauses queries whose pauses are committed. Returns their names and the reasons."""
        for pause in pauses:
            self._components.registry.deactivate(pause.query)
            pause.query.pause(pause.docid, pause.reason)
        return {pause.query.name: pause.reason for pause in pauses}

    # ------------------------------------------------------------ maintenance

    def commit_metadata(self, metadata: CommitMetadata) -> None:
        """Commits metadata in a batch of its own."""
        with self.whole(), whole_batch(self._components.store):
            self._components.ledger.save_metadata(metadata)

    def prune(
        self,
        keep: int | None,
        keep_ids: int | None,
        sources: Collection[str],
        files: Collection[tuple[str, str]],
        owed: Owed | None,
    ) -> None:
        """See `mmqjp.session.Session.prune`."""
        components = self._components
        horizon = components.watermarks.of(components.registry.outside())
        with self.whole(), whole_batch(components.store):
            evictable, now = components.eviction.before(horizon), components.now()
            if (waiting := components.pipeline.patterns.oldest()) is not None:
                evictable = min(evictable, waiting)
            dropped = prune(
                components.store,
                components.ledger,
                evictable=evictable,
                horizon=horizon,
                keep=keep,
                keep_ids=keep_ids,
                now=now,
                owed=owed,
            )
            if dropped is not None:
                components.eviction.evict_for_good(dropped)
                components.state.record_dropped(dropped)
            components.records.ids.forget()
            prune_offsets(components.store, components.ledger, sources, files)
            self._drop_groups()
            components.state.save_reach()

    def _drop_groups(self) -> None:
        """Drops, within a batch, groups of edges that nothing refers to any more."""
        components = self._components
        components.stage1.keep_groups(components.store.drop_groups(components.registry.catalog.edges()))
