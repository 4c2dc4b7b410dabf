"""The engine: queries are subscribed, batches of documents processed, output documents come back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from feeds.document import Clock, Document, Reject, now_us
from feeds.offsets import Offset
from join_stage.costs import Cost
from join_stage.engine import DEFAULT_PLAN, PLANS, unknown_plan, whole_batch
from join_stage.only_read import Outdated
from join_stage.private import share
from join_stage.reading import UNBOUNDED, Bounds, Question
from join_stage.views import CACHE_BYTES
from mmqjp.answers.allowance import MATCHES, OUTPUTS, WORK, Allowance
from mmqjp.answers.outbox import Outbox
from mmqjp.answers.output import Output, sorted_outputs
from mmqjp.answers.spending import Cut
from mmqjp.answers.step import Answering, Passed, Pause
from mmqjp.documents.admission import Admission, Found, warn_of
from mmqjp.documents.evaluated import EvaluatedRows
from mmqjp.documents.records import Records
from mmqjp.documents.watermarks import (
    EARLIEST,
    Lateness,
    Timing,
    Watermarks,
    by_stream,
    greatest_times,
    is_bounded,
    noted_watermarks,
)
from mmqjp.queries.changes import How, Noting, Subscribing, nothing_noted
from mmqjp.queries.model import Subscription
from mmqjp.queries.prepared import Preparation
from mmqjp.queries.registry import Registry
from mmqjp.queries.saved import KeptQueries
from mmqjp.state.eviction import Eviction
from mmqjp.state.join_state import JoinState
from mmqjp.state.migration import migrate
from mmqjp.state.opening import directory_bytes, open_session, open_store
from mmqjp.state.ownership import Looking, Ownership
from mmqjp.state.retention import ID_RETENTION, prune, prune_offsets
from mmqjp.tables.ledger import Ledger, Mark
from mmqjp.tables.notes import Notes
from templates.catalog import Catalog
from xpath_stage.evaluator import XPathStage
from xpath_stage.limits import DEFAULT, Limits
from xpath_stage.spark import SparkStage, spread_past
from xscl import Script, parse_script
from xscl.garbage import collector_passes_over, collector_paused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTHING = Notes()
"""No notes."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What an engine has seen since it was opened. Neither duplicates nor dead letters count as documents."""

    documents: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    outputs: int = 0


class Engine:
    """Standing XSCL queries over streams of documents.

    `engine` is "duckdb", "spark", or a SparkSession. With `state`, a directory, everything is kept there and found
    again; without, it is gone at `close`. `lateness`, `idle_after` and `max_ahead`, in microseconds, say what is too
    late, when a silent stream goes on, and what is from the future (see `mmqjp.documents.watermarks.Timing`);
    `lateness` may be a mapping of streams to their own, in which "*" is for all others. A document of more than
    `max_document` bytes, or `max_nodes` elements and attributes, is a dead letter. A query is paused that would have
    more than `max_matches` outputs for a document that arrives, or `max_outputs` for 10,000 of them, or would take more
    than `max_work` steps for one (see `mmqjp.answers.allowance`; None: no limit). `plan` is how the joins are done, one
    of `join_stage.engine.PLANS`; a state may be opened with any. `cache_bytes` bounds the slices that the plan "views"
    keeps. `master` is a Spark master URL. `limits` bound what stage 1 keeps. With `quiet` the log hears nothing of dead
    letters. `now` is the clock, in microseconds. With `read_only` the state, which must be there, is only looked at,
    also by who may not write it, and nothing can be processed or changed. What is made in a state directory is its
    owner's alone, unless it was opened as `shared` once: then the umask tells.

    Raises StoreError if the state cannot be opened (InUse if another process holds it, Outdated if one that is only
    read is of an older format), JavaNotFound if Spark cannot start, ValueError for an unknown plan.
    """

    def __init__(
        self,
        engine: str | SparkSession = "spark",
        *,
        state: Path | str | None = None,
        lateness: Lateness = None,
        idle_after: int | None = None,
        max_ahead: int | None = None,
        max_document: int | None = None,
        max_nodes: int | None = None,
        max_matches: int | None = MATCHES,
        max_outputs: int | None = OUTPUTS,
        max_work: int | None = WORK,
        plan: str = DEFAULT_PLAN,
        cache_bytes: int = CACHE_BYTES,
        master: str | None = None,
        limits: Limits = DEFAULT,
        quiet: bool = False,
        now: Clock = now_us,
        read_only: bool = False,
        shared: bool = False,
    ) -> None:
        if plan not in PLANS:
            raise unknown_plan(plan)
        self._now, self._plan, self._keeps, self._quiet = now, plan, state is not None, quiet
        session = None if engine == "duckdb" else open_session(engine, master)
        self._directory = directory = None if state is None else Path(state)
        if directory is not None and shared:
            share(directory)
        self._ownership: Ownership | Looking | None = None
        if directory is not None and not read_only:
            self._ownership = Ownership(directory, now)
        elif directory is not None and session is None:  # files of Spark's stay while they are read
            self._ownership = Looking(directory)
        try:
            self._store = open_store(session, directory, plan, cache_bytes, read_only=read_only)
        except BaseException:
            self._disown()
            raise
        try:
            self._open(session, limits, max_nodes, read_only=read_only)
            greatest = greatest_times(self._store, self._ledger) if is_bounded(lateness) else {}
            timing = Timing(lateness, idle_after, max_ahead)
            self._watermarks = Watermarks(timing, greatest, now())
            self._records = Records(self._store)
            self._state = JoinState(self._store, self._ledger, self._registry, self._stage1, self._records)
        except BaseException:
            self._store.close()
            self._disown()
            raise
        self._admission = Admission(
            self._store, self._watermarks, self._registry.sources, self._state.behind, now, max_document, max_nodes
        )
        allowance = Allowance(max_matches, max_outputs, max_work)
        self._outbox = Outbox(self._store, self._ledger)
        self._answering = Answering(
            self._stage1, self._store, self._ledger, self._registry, self._records, self._state, self._outbox, allowance
        )
        self._counters = Counters()
        self._eviction = Eviction(self._store, self._ledger, self._registry, self._watermarks, self._state, now)
        self._noted: dict[str, int] | None = None
        self._paused: dict[str, str] = {}
        self._last_dead_letters: list[dict[str, Any]] = []

    def _open(self, session: SparkSession | None, limits: Limits, max_nodes: int | None, *, read_only: bool) -> None:
        """Takes up what the store has."""
        with collector_passes_over():
            self._ledger = Ledger(self._store, self._now)
            if read_only and not self._ledger.is_current:
                raise Outdated(f"the store in {self._directory} is of an older format: open it once with write access")
            groups = self._ledger.groups()
            self._stage1 = (
                XPathStage(groups, limits=limits)
                if session is None
                else SparkStage(session, groups, spread=spread_past(session), limits=limits, max_nodes=max_nodes)
            )
            self._saved, preparation = KeptQueries(self._store), Preparation()
            self._registry = Registry(self._saved.catalog(), self._stage1, self._store)
            if not migrate(self._store, self._ledger, self._saved, self._registry, preparation):
                self._saved.restore(self._registry, preparation)
            self._subscribing = Subscribing(
                self._store, self._ledger, self._saved, self._registry, preparation, self._now
            )

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._close()  # in trouble nothing more is written

    def close(self) -> None:
        """Closes the store. What was processed is kept if there is a state directory."""
        try:
            if self._keeps and self._counters.documents and (costs := self._store.costs()):
                self._ledger.save_costs(costs, self._plan)
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self._stage1.close()
        finally:
            self._store.close()
            self._disown()

    def _disown(self) -> None:
        if self._ownership is not None:
            self._ownership.release()
            self._ownership = None

    # ------------------------------------------------------------ queries

    @property
    def registry(self) -> Registry:
        """The registered queries and what they share."""
        return self._registry

    @property
    def catalog(self) -> Catalog:
        """The shared variables, templates and rows of R_T."""
        return self._registry.catalog

    @property
    def records(self) -> Records:
        """The documents that are kept, by docid: to look at."""
        return self._records

    def subscribe(
        self, text: str, *, add: bool = False, backfill: bool = False, noting: Noting = nothing_noted
    ) -> list[str]:
        """Registers the queries of a script and returns their names. They see documents that arrive from now on; with
        `backfill` all that are kept too, and what these give is in `undelivered` at once.

        They take the place of the queries that are registered under the names they PUBLISH, of which those with the
        same text stay as they are; with `add` all of these stay. `noting` is committed along.
        Raises XsclErrors with every mistake in the text, and PublishCycle for one with queries
        registered earlier; then nothing is registered.
        """
        script = parse_script(text)
        how: How = "add" if add else "replace"
        if backfill:
            return self._subscribe_with_backfill(script, how, noting)
        with collector_paused(), self._batch():
            return self._subscribing.subscribe(script, how, noting=noting)

    def ensure(self, script: Script, how: How = "ensure") -> list[str]:
        """Registers the queries of a script that are not registered yet under the same name with the same text. With
        "renew" these take the place of others under the names that it PUBLISHes, with "exact" of all others."""
        with collector_paused(), self._batch():
            return self._subscribing.subscribe(script, how)

    def unsubscribe(self, name: str, *, noting: Noting = nothing_noted) -> None:
        """Removes all queries of a name. Raises UnknownQuery if there is none."""
        with self._batch():
            self._subscribing.unsubscribe(name, noting)

    def pause(self, name: str, reason: str = "asked to", *, noting: Noting = nothing_noted) -> None:
        """Lets all queries of a name rest: they give nothing, and will never see documents that arrive meanwhile.

        Raises UnknownQuery if there is none."""
        with self._batch():
            self._subscribing.pause(name, reason, noting)

    def resume(self, name: str, *, noting: Noting = nothing_noted) -> None:
        """Lets all queries of a name go on, also with the documents from before they were paused that are still kept.

        Raises UnknownQuery if there is none."""
        with self._batch():
            self._subscribing.resume(name, noting)

    @contextmanager
    def _batch(self) -> Iterator[None]:
        """What goes with a batch of the store, which is committed inside: if that fails, all is as it was before."""
        before = self._ledger.mark()
        try:
            yield
        except BaseException:
            self._go_back(before)
            raise
        self._stage1.finish_batch(committed=True)
        self._state.finish_batch(committed=True)
        self._answering.finish_batch(committed=True)
        self._ledger.batch += 1

    def _go_back(self, before: Mark) -> None:
        """Forgets what a batch brought that was rolled back."""
        self._stage1.finish_batch(committed=False)
        self._state.finish_batch(committed=False)
        self._answering.finish_batch(committed=False)
        self._ledger.back_to(before)
        self._records.forget(self._ledger.next_docid)

    def _subscribe_with_backfill(self, script: Script, how: How, noting: Noting) -> list[str]:
        """Registers queries and answers them over the documents that are kept; again without what passed a bound."""
        cuts: dict[int, Cut] = {}
        pauses: list[Pause] = []
        count = 0

        def backfill(subscriptions: list[Subscription]) -> None:
            nonlocal count
            taken_at = self._now()
            outputs, pauses[:] = self._answering.backfill(subscriptions, self._admission.fresh, cuts)
            self._records.flush()
            self._save_pauses(pauses)
            self._outbox.save_outputs(outputs)
            count = len(outputs)
            self._ledger.save_batch(taken_at, 0, 0, count)
            self._state.note()

        while True:
            try:
                with collector_paused(), self._batch():
                    names = self._subscribing.subscribe(script, how, since=-1, noting=noting, within=backfill)
                break
            except Passed as passed:
                cuts |= passed.cuts
        self._set_paused(pauses)
        self._counters = replace(self._counters, outputs=self._counters.outputs + count)
        return names

    def _save_pauses(self, pauses: Iterable[Pause]) -> None:
        for pause in pauses:
            self._subscribing.save_pauses([pause.query.qid], pause.docid, pause.reason)

    def _set_paused(self, pauses: Iterable[Pause]) -> None:
        """Lets queries rest whose pauses are committed."""
        for pause in pauses:
            self._registry.deactivate(pause.query)
            pause.query.pause(pause.docid, pause.reason)
            self._paused[pause.query.name] = pause.reason

    def queries(self) -> dict[str, list[str]]:
        """The texts of the registered queries by name."""
        found: dict[str, list[str]] = {}
        for subscription in self._registry.subscriptions.values():
            found.setdefault(subscription.name, []).append(subscription.text)
        return found

    def added_at(self, qid: int) -> int:
        """When a query was registered, microseconds."""
        return self._saved.added_at(qid)

    def answer_to(self, command: str) -> str | None:
        """What a command was answered that is done; None if it is not."""
        return self._ledger.answer_to(command)

    # ------------------------------------------------------------ documents

    def process(
        self, documents: Iterable[Document | Reject], notes: Notes = NOTHING, found: Found | None = None
    ) -> list[Output]:
        """Processes a batch of documents and returns the outputs that it completes, in the order of output lines.

        A document that cannot be taken in becomes a dead letter: `last_dead_letters` has those of the batch, and the
        logger "mmqjp" is warned of them. The batch is committed whole or not at all, `notes`
        along with it. `found` has what `evaluated` found in the documents, since when no query has come or gone.
        """
        with collector_paused():
            return self._process(documents, notes, found)

    def evaluated(self, documents: DataFrame) -> EvaluatedRows:
        """What stage 1 finds in the documents of a data frame, on Spark's executors: rows of `stream` and `xml` (none
        is no document) and any other columns. Raises TypeError if the engine is not on Spark."""
        if not isinstance(self._stage1, SparkStage):
            raise TypeError("data frames are evaluated by an engine on Spark")
        return EvaluatedRows(self._stage1, documents)

    def note(self, notes: Notes) -> None:
        """Commits notes in a batch of their own."""
        with self._batch(), whole_batch(self._store):
            self._ledger.save_notes(notes)

    def _process(self, documents: Iterable[Document | Reject], notes: Notes, found: Found | None) -> list[Output]:
        self._registry.flush()
        taken_at = self._now()
        before = self._ledger.mark()

        def begin_again() -> None:
            self._store.rollback()
            self._go_back(before)
            self._store.begin()

        with self._batch(), whole_batch(self._store):
            admitted = self._admission.admit(documents, found)
            witnesses = None if found is None else partial(found.witnesses, admitted.places)
            outputs, pauses = self._answering.answer(admitted.records, witnesses, begin_again)
            self._records.flush()
            self._save_pauses(pauses)
            self._store.append("dead_letters", admitted.dead_letters)
            self._outbox.save_outputs(outputs)
            self._ledger.save_notes(notes)
            arrived = admitted.greatest()
            greatest = self._watermarks.after(arrived, self._registry.outside(), self._now())
            self._eviction.evict(greatest)
            if self._stage1.crowded:
                self._drop_groups()
            self._state.note()
            self._ledger.save_batch(taken_at, len(admitted.records), len(admitted.dead_letters), len(outputs))
        self._watermarks.advance(greatest, arrived, self._now())
        self._set_paused(pauses)
        self._last_dead_letters = admitted.dead_letters.to_pylist()
        if not self._quiet:
            warn_of(self._last_dead_letters)
        seen = self._counters
        self._counters = Counters(
            seen.documents + len(admitted.records),
            seen.duplicates + admitted.duplicates,
            seen.dead_letters + len(admitted.dead_letters),
            seen.outputs + len(outputs),
        )
        return sorted_outputs(outputs)

    def pass_time(self) -> bool:
        """Lets silent streams go on with the clock although no document comes. What nothing can meet any more for that
        leaves the join state, in a batch of its own; whether there was anything."""
        timing, now = self._watermarks.timing, self._now()
        if timing.idle_after is None or not is_bounded(timing.lateness):
            return False
        greatest = self._watermarks.after({}, self._registry.outside(), now)
        if found := self._eviction.is_due(greatest):
            with self._batch(), whole_batch(self._store):
                self._eviction.evict(greatest)
                self._state.note()
        self._watermarks.advance(greatest, {}, now)
        return found

    def prune(
        self,
        keep: int | None,
        keep_ids: int | None = ID_RETENTION,
        sources: Collection[str] = (),
        files: Collection[tuple[str, str]] = (),
    ) -> None:
        """Drops, in a batch of its own, what is kept no longer. All outputs must have been delivered.

        Outputs, matches and dead letters go that are older than `keep` microseconds, and documents that are and that no
        join can need, whose ids are known for `keep_ids` (None: for ever). So does what is superseded of settings, and
        of the offsets of `sources`, whose files that are there are `files`, and what no query and no document needs of
        the groups of edges that stage 1 makes.
        """
        horizon = self._watermarks.of(self._registry.outside())
        with self._batch(), whole_batch(self._store):
            evictable, now = self._eviction.before(horizon), self._now()
            dropped = prune(
                self._store, self._ledger, evictable=evictable, horizon=horizon, keep=keep, keep_ids=keep_ids, now=now
            )
            if dropped is not None:
                self._state.dropped(dropped)
            prune_offsets(self._ledger, sources, files)
            self._drop_groups()
            self._state.note()

    def _drop_groups(self) -> None:
        """Drops, within a batch, what is kept of groups of edges that nothing refers to any more."""
        self._stage1.keep_groups(self._store.drop_groups(self.catalog.edges()))

    # ------------------------------------------------------------ what was done

    def counters(self) -> Counters:
        """Totals since the engine was opened."""
        return self._counters

    def stage1_counters(self) -> dict[str, int]:
        """Of stage 1: `states` of the automaton that are kept; `groups` of edges that bind together; `flushes` of
        states and of shapes; documents whose shape was met before, `shape_hits`, or was not, `shape_misses`. On Spark
        these are about this process, and with them come `spread_documents`, those that went to the executors, and
        `broadcasts`, how often the patterns did."""
        return self._stage1.counters()

    def stage2_counters(self) -> dict[str, int]:
        """Of stage 2. The plan `views` counts string values of a batch that were in the state too and whose slice was
        cached, `hits`, or was not, `misses`, and slices that were dropped or not kept for want of room, `evictions`;
        cached now are the slices of `values` string values, about `bytes` large. The plan `signature` counts the
        `documents` and their `postings` that it keeps, the `posting_bytes` of these without the indexes over them,
        their `values`, and the `groups` of edges that it knows. The plan `basic` counts nothing."""
        return self._store.counters()

    def costs(self) -> tuple[str, dict[int, Cost]] | None:
        """The plan that was used last, and what templates cost in the last batch that each was answered in, by their
        numbers; None before any batch. Of an earlier run they are known if it was closed."""
        return (self._plan, costs) if (costs := self._store.costs()) else self._ledger.costs()

    def undelivered(self) -> Iterator[Output]:
        """The outputs that were committed but not yet marked as delivered, in the order of output lines."""
        return self._outbox.undelivered()

    def outputs_after(self, batch: int) -> Iterator[list[Output]]:
        """The outputs of the batches after one, each list as `process` returned it, oldest first."""
        return self._outbox.outputs_after(batch)

    def offsets(self) -> dict[tuple[str, str], Offset]:
        """How far each file of each source was read, as noted along with the batches: by source and file."""
        return self._ledger.offsets()

    def setting(self, key: str) -> str | None:
        """What was noted last under a key."""
        return self._ledger.setting(key)

    def settings(self, prefix: str) -> dict[str, str]:
        """What was noted last under each key that begins so, by the rest of the key."""
        return self._ledger.settings(prefix)

    def watermarks(self) -> dict[str, int]:
        """The watermark of each stream from outside that has one; of a store that is opened without lateness, as it
        was with it the last time."""
        if is_bounded(self._watermarks.timing.lateness):
            return self._watermarks.by_stream()
        if self._noted is None:
            self._noted = by_stream(*noted_watermarks(self._ledger))
        return self._noted

    def horizon(self) -> tuple[int | None, int | None]:
        """The least watermark of the streams that queries read, and the time before which documents begin that nothing
        can meet any more; None where there is none."""
        known = self.watermarks()
        horizon = min((known.get(stream, EARLIEST) for stream in self._registry.outside()), default=EARLIEST)
        evictable = self._eviction.before(horizon)
        return None if horizon <= EARLIEST else horizon, None if evictable <= EARLIEST else evictable

    def lag(self) -> int | None:
        """By how many microseconds the newest document is older than the clock, of those since the engine was opened;
        None if there is none."""
        return None if self._watermarks.newest is None else self._now() - self._watermarks.newest

    def state_bytes(self) -> int | None:
        """How large the files of the state are; None without a state directory."""
        return None if self._directory is None else directory_bytes(self._directory)

    @property
    def batch(self) -> int:
        """The number of the next batch."""
        return self._ledger.batch

    def mark_delivered(self) -> None:
        """Notes that all outputs so far have reached their reader."""
        self._outbox.mark_delivered()

    def dead_letters(self) -> Iterator[dict[str, Any]]:
        """All dead letters of the store, in no particular order."""
        return self._ledger.dead_letters()

    def last_dead_letters(self) -> list[dict[str, Any]]:
        """The dead letters of the last batch that was processed."""
        return self._last_dead_letters

    def take_paused(self) -> dict[str, str]:
        """The names of the queries that passed a bound since this was last asked, with the reasons."""
        taken, self._paused = self._paused, {}
        return taken

    def sql(self, query: str, *, trusted: bool = False) -> pa.Table:
        """Answers an SQL query over the engine's tables, in the words of its engine.

        It only reads them: what would write, read files, or tell of the process is refused with a ValueError, by DuckDB
        and by the plan that Spark makes of it. With `trusted` the query may do whatever the engine can.
        """
        return self._store.select(query) if trusted else self._store.question(query).answer()

    def question(self, query: str, bounds: Bounds = UNBOUNDED) -> Question:
        """A query like those of `sql` that is not `trusted`, to be answered in any thread while this one goes on: it
        sees the batches that are committed when it begins. `bounds` say how large the answer may be."""
        return self._store.question(query, bounds)
