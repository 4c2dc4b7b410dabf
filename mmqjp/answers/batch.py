"""Batches: what belongs together is committed whole, and if that fails all is as it was before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from feeds.document import Document, Reject
from join_stage.store.protocol import whole_batch
from mmqjp.answers.output import Output
from mmqjp.answers.parts import Parts
from mmqjp.answers.spending import Cut
from mmqjp.answers.step import Passed, Pause
from mmqjp.documents.admission import Found
from mmqjp.documents.watermarks import is_bounded
from mmqjp.queries.changes import How, Noting
from mmqjp.queries.model import Subscription
from mmqjp.state.retention import prune, prune_offsets
from mmqjp.tables.ledger import Mark
from mmqjp.tables.notes import NOTHING, Notes
from xscl import Script


@dataclass(frozen=True, slots=True)
class Processed:
    """What a batch brought: its outputs in the order of output lines, its dead letters as rows of that table, how many
    documents entered and how many were met before, and the queries that were paused, by name, with the reasons."""

    outputs: list[Output]
    dead_letters: list[dict[str, Any]]
    documents: int
    duplicates: int
    paused: dict[str, str]


class Batches:
    """Runs batches of an engine's parts, each committed when the call returns."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @contextmanager
    def whole(self) -> Iterator[None]:
        """What goes with a batch of the store, which is committed inside: if that fails, all is as it was before."""
        parts = self._parts
        before = parts.ledger.mark()
        try:
            yield
        except BaseException:
            self._go_back(before)
            raise
        for part in (parts.stage1, parts.state, parts.answering):
            part.finish_batch(committed=True)
        parts.ledger.batch += 1

    def _go_back(self, before: Mark) -> None:
        """Forgets what a batch brought that was rolled back."""
        parts = self._parts
        for part in (parts.stage1, parts.state, parts.answering):
            part.finish_batch(committed=False)
        parts.ledger.back_to(before)
        parts.records.forget(parts.ledger.next_docid)

    # ------------------------------------------------------------ documents

    def process(self, documents: Iterable[Document | Reject], notes: Notes, found: Found | None) -> Processed:
        """Processes documents, and commits `notes` along with them. `found` has what was found in them elsewhere."""
        parts = self._parts
        parts.registry.flush()
        taken_at = parts.now()
        before = parts.ledger.mark()

        def begin_again() -> None:
            parts.store.rollback()
            self._go_back(before)
            parts.store.begin()

        with self.whole(), whole_batch(parts.store):
            admitted = parts.admission.admit(documents, found)
            witnesses = None if found is None else partial(found.witnesses, admitted.places)
            arrived = admitted.greatest()
            greatest = parts.watermarks.after(arrived, parts.registry.outside(), taken_at)
            drafts, pauses = parts.answering.answer(admitted.records, witnesses, greatest, begin_again)
            parts.records.flush()
            self._save_pauses(pauses)
            parts.store.append("dead_letters", admitted.dead_letters)
            outputs = parts.outbox.save_outputs(drafts)
            parts.ledger.save_notes(notes)
            parts.eviction.evict(greatest)
            if parts.stage1.crowded:
                self._drop_groups()
            parts.state.note()
            parts.ledger.save_batch(taken_at, len(admitted.records), len(admitted.dead_letters), len(outputs))
        parts.watermarks.advance(greatest, arrived, parts.now())
        return Processed(
            outputs,
            admitted.dead_letters.to_pylist(),
            len(admitted.records),
            admitted.duplicates,
            self._set_paused(pauses),
        )

    def pass_time(self) -> Processed | None:
        """Lets silent streams go on with the clock although no document comes. If something is decided by that, or
        nothing can meet some of the join state any more, that is a batch: what it brought; else None."""
        parts = self._parts
        timing, now = parts.watermarks.timing, parts.now()
        if timing.idle_after is None or not is_bounded(timing.lateness):
            return None
        greatest = parts.watermarks.after({}, parts.registry.outside(), now)
        if parts.answering.is_due(greatest) or parts.eviction.is_due(greatest):
            return self.process((), NOTHING, None)
        parts.watermarks.advance(greatest, {}, now)
        return None

    # ------------------------------------------------------------ queries

    def subscribe(
        self, script: Script, how: How, noting: Noting, *, backfill: bool
    ) -> tuple[list[str], int, dict[str, str]]:
        """Registers the queries of a script: their names. With `backfill` they are answered over the documents that are
        kept: how many outputs that gave, and the queries that were paused, by name, with the reasons."""
        if backfill:
            return self._subscribe_with_backfill(script, how, noting)
        with self.whole():
            return self._parts.changes.subscribe(script, how, noting=noting), 0, {}

    def _subscribe_with_backfill(
        self, script: Script, how: How, noting: Noting
    ) -> tuple[list[str], int, dict[str, str]]:
        """Answers queries over the documents that are kept; again without what passed a bound."""
        parts = self._parts
        cuts: dict[int, Cut] = {}
        pauses: list[Pause] = []
        count = 0

        def backfill(subscriptions: list[Subscription]) -> None:
            nonlocal count
            taken_at = parts.now()
            drafts, pauses[:] = parts.answering.backfill(subscriptions, parts.admission.fresh, cuts)
            parts.records.flush()
            self._save_pauses(pauses)
            parts.outbox.save_outputs(drafts)
            count = len(drafts)
            parts.ledger.save_batch(taken_at, 0, 0, count)
            parts.state.note()

        while True:
            try:
                with self.whole():
                    names = parts.changes.subscribe(script, how, since=-1, noting=noting, within=backfill)
                break
            except Passed as passed:
                cuts |= passed.cuts
        return names, count, self._set_paused(pauses)

    def _save_pauses(self, pauses: Iterable[Pause]) -> None:
        for pause in pauses:
            self._parts.changes.save_pauses([pause.query.qid], pause.docid, pause.reason)

    def _set_paused(self, pauses: Iterable[Pause]) -> dict[str, str]:
        """Lets queries rest whose pauses are committed; their names and the reasons."""
        for pause in pauses:
            self._parts.registry.deactivate(pause.query)
            pause.query.pause(pause.docid, pause.reason)
        return {pause.query.name: pause.reason for pause in pauses}

    # ------------------------------------------------------------ what is kept

    def note(self, notes: Notes) -> None:
        """Commits notes in a batch of their own."""
        with self.whole(), whole_batch(self._parts.store):
            self._parts.ledger.save_notes(notes)

    def prune(
        self, keep: int | None, keep_ids: int | None, sources: Collection[str], files: Collection[tuple[str, str]]
    ) -> None:
        """See `mmqjp.session.Session.prune`."""
        parts = self._parts
        horizon = parts.watermarks.of(parts.registry.outside())
        with self.whole(), whole_batch(parts.store):
            evictable, now = parts.eviction.before(horizon), parts.now()
            dropped = prune(
                parts.store, parts.ledger, evictable=evictable, horizon=horizon, keep=keep, keep_ids=keep_ids, now=now
            )
            if dropped is not None:
                parts.state.dropped(dropped)
            prune_offsets(parts.store, parts.ledger, sources, files)
            self._drop_groups()
            parts.state.note()

    def _drop_groups(self) -> None:
        """Drops, within a batch, what is kept of groups of edges that nothing refers to any more."""
        parts = self._parts
        parts.stage1.keep_groups(parts.store.drop_groups(parts.registry.catalog.edges()))
