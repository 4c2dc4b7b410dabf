"""The engine: subscribes queries, processes batches of documents, returns output documents.

A session: the engine as services and commands use it, with metadata in commits, maintenance and introspection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from common.errors import InputError
from common.files import share
from feeds.documents import Document, Now, Reject, now_us
from feeds.readers import Offset
from join_stage.protocol import DEFAULT_PLAN, PLANS, Cost, JoinEngine, UnknownPlan
from join_stage.store.protocol import UNBOUNDED, Bounds, Following, Outdated, Question
from join_stage.tables import groups
from join_stage.views import CACHE_BYTES
from mmqjp.answers.events_run import DRIVER, EXECUTORS, check_backfill, check_place, kernels
from mmqjp.answers.fan_out import Outputs, OutputStream
from mmqjp.answers.kernels import WaitingCounts
from mmqjp.answers.operators import MakeOperators
from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.answers.pipeline import Batches, BatchResult, make_operators, open_components
from mmqjp.answers.quota import MAX_MATCHES, MAX_OUTPUTS, MAX_PARTIAL, MAX_WORK, Quota
from mmqjp.documents.admission import EvaluatedBatch, EvaluatedRows, warn_of
from mmqjp.documents.record import Records
from mmqjp.documents.watermarks import (
    EARLIEST,
    EVENT_TIME,
    SETTLE,
    Lateness,
    Timing,
    by_stream,
    is_lateness_bounded,
    saved_watermarks,
)
from mmqjp.process import gc_paused
from mmqjp.queries.changes import MetadataFor, SubscribeMode, no_metadata
from mmqjp.queries.compile import CompiledQuery
from mmqjp.queries.registry import Registry
from mmqjp.state.choice import (
    AUTO,
    DUCKDB,
    Ownership,
    ReadLock,
    choose_engine,
    directory_bytes,
    open_session,
    open_store,
    stored_engine,
)
from mmqjp.state.eviction import ID_RETENTION
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.schema import (
    NO_METADATA,
    CommitMetadata,
    MetadataOf,
    Owed,
    committed_between,
    documents_by_id,
    first_committed_from,
    first_seq,
    waiting_after,
)
from templates.catalog import Catalog
from xpath_stage.documents import DEFAULT, Limits
from xpath_stage.evaluator import XPathStage
from xpath_stage.spark import SparkStage, spread_past
from xscl.parser import parse_script
from xscl.syntax import Script

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the engine was opened. Duplicates and dead letters do not count as documents."""

    documents: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    outputs: int = 0

    def after(self, batch: BatchResult) -> Counters:
        """Returns the totals after a batch."""
        return Counters(
            self.documents + batch.documents,
            self.duplicates + batch.duplicates,
            self.dead_letters + len(batch.dead_letters),
            self.outputs + len(batch.outputs),
        )


class CoreEngine:
    """Standing XSCL queries over streams of documents.

    `engine` is "duckdb", "spark", a SparkSession, or "auto": the engine of the state; without one Spark if a `master`,
    its URL, is given, in spark-submit, or if this process has a Spark session; else DuckDB. `state` is a directory that
    keeps everything for the next time; without it, everything is gone after `close`. A new state directory is private
    to its owner. With `shared` it follows the umask instead, from then on. With `read_only` the state must exist and is
    not changed; write access is not needed. "auto" is then DuckDB, which also reads what Spark wrote.

    `lateness`, `idle_after` and `max_ahead`, in microseconds, say when a document is late, when a silent stream follows
    the clock, and when a document is from the future (see `mmqjp.documents.watermarks.Timing`). `lateness` may map
    streams to their own values; "*" stands for all others. `settle`, in microseconds, is how long events wait for
    earlier ones before event queries are answered, for all streams or by stream; None means until `finish`. `patterns`
    is where these are answered: "driver", "executors" of Spark, or "sql", which takes no `state` and needs
    `settle=None`. All give the same outputs. `now` is the clock, in microseconds.

    A document with more than `max_document` bytes, or more than `max_nodes` elements and attributes, becomes a dead
    letter. A query is paused if it would have more than `max_matches` outputs for one document that arrives or more
    than `max_outputs` for 10,000, or would take more than `max_work` steps for one; for event queries and `max_partial`
    see `mmqjp.answers.quota`. None means unlimited. `limits` bounds what stage 1 caches.
    `plan` is the join plan, one of `join_stage.protocol.PLANS`; a state may be opened with any of them. `cache_bytes`
    bounds the cache of the plan "views". With `quiet`, dead letters are not logged.

    Raises UnknownPlan for an unknown plan, InvalidValue for an unknown engine, for `patterns` that cannot be here, or
    for `read_only` without `state`, and StoreError if the state cannot be opened: InUse if another process holds it,
    Outdated if it is `read_only` and has an older format. Raises OSError if the state cannot be made `shared`,
    JavaNotFound if Spark cannot start, and OtherSession if a Spark session with another master runs. On Spark, methods
    that raise StoreError may also raise Spark's own errors.
    """

    def __init__(
        self,
        engine: str | SparkSession = AUTO,
        *,
        state: Path | str | None = None,
        lateness: Lateness = None,
        idle_after: int | None = None,
        max_ahead: int | None = None,
        max_document: int | None = None,
        max_nodes: int | None = None,
        max_matches: int | None = MAX_MATCHES,
        max_outputs: int | None = MAX_OUTPUTS,
        max_work: int | None = MAX_WORK,
        max_partial: int | None = MAX_PARTIAL,
        plan: str = DEFAULT_PLAN,
        cache_bytes: int = CACHE_BYTES,
        master: str | None = None,
        limits: Limits = DEFAULT,
        settle: Lateness = SETTLE,
        patterns: str = DRIVER,
        quiet: bool = False,
        now: Now = now_us,
        read_only: bool = False,
        shared: bool = False,
    ) -> None:
        if plan not in PLANS:
            raise UnknownPlan(plan)
        self._plan, self._quiet = plan, quiet
        self._directory = directory = None if state is None else Path(state)
        if engine == AUTO:
            asked_by = "master" if master is not None else "patterns" if patterns == EXECUTORS else None
            engine = DUCKDB if read_only else choose_engine(AUTO, directory, asked_by).engine
        on_spark = engine != DUCKDB and not read_only
        self._place = patterns
        check_place(patterns, on_spark=on_spark, lasts=directory is not None, settle=settle)
        session = None if engine == DUCKDB else open_session(engine, master)
        if directory is not None and shared:
            share(directory)
        self._ownership: Ownership | ReadLock | None = None
        if directory is not None and not read_only:
            self._ownership = Ownership(directory, now)
        elif directory is not None and stored_engine(directory) == DUCKDB:  # Spark's files stay while they are read
            self._ownership = ReadLock(directory)
        try:
            self._store = self._open_store(session, directory, plan, cache_bytes, read_only)
        except BaseException:
            self._release_lock()
            raise
        try:
            ledger = Ledger(self._store, now)
            if read_only and not ledger.is_current:
                raise Outdated(f"the store in {directory} is of an older format: open it once with write access")
            stage1 = _stage1(session, self._store, limits, max_nodes)
            timing = Timing(lateness, idle_after, max_ahead, settle)
            quota = Quota(max_matches, max_outputs, max_work, max_partial)
            self._components = open_components(
                self._store,
                ledger,
                stage1,
                timing,
                quota,
                max_document,
                max_nodes,
                self._make_operators,
                now,
                has_executors=on_spark,
                make_kernel=kernels(patterns, session, quota),
            )
        except BaseException:
            self._store.close()
            self._release_lock()
            raise
        self._batches = Batches(self._components)
        self._counters = Counters()
        self._paused: dict[str, str] = {}
        self._last_dead_letters: list[dict[str, Any]] = []
        self._is_closed = False

    _make_operators: MakeOperators = staticmethod(make_operators)
    """Creates the operators of the plan nodes. Tests replace it."""

    def _open_store(
        self, session: SparkSession | None, directory: Path | None, plan: str, cache_bytes: int, read_only: bool
    ) -> JoinEngine:
        """Opens the store. Tests replace it with one that fails on demand."""
        return open_store(session, directory, plan, cache_bytes, read_only=read_only)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif not self._is_closed:
            self._close()  # after an error, nothing more is written

    def close(self) -> None:
        """Closes the store. A state directory keeps what was processed. Does nothing if it is closed. Raises
        StoreError."""
        if self._is_closed:
            return
        try:
            if self._directory is not None and self._counters.documents and (costs := self._store.costs()):
                self._components.ledger.save_costs(costs, self._plan)
        finally:
            self._close()

    def _close(self) -> None:
        self._is_closed = True
        try:
            self._components.stage1.close()
        finally:
            self._store.close()
            self._release_lock()

    def _release_lock(self) -> None:
        if self._ownership is not None:
            self._ownership.release()
            self._ownership = None

    # ------------------------------------------------------------ queries

    def subscribe(self, text: str, *, add: bool = False, backfill: bool = False) -> list[str]:
        """Registers the queries of a script and returns their names.

        They see documents that arrive from now on. With `backfill` they also see all stored documents, and the results
        are in `outputs` at once. They replace the queries registered under their PUBLISH names, except those with the
        same text. With `add`, nothing is replaced.

        Raises XsclErrors with every mistake in the text, PublishCycle if a stream would depend on itself through
        queries registered earlier, NameTaken if a name is that of a query without PUBLISH, TooManyChains if the store
        has no number left for a chain of functions, and StoreError. Then nothing is registered.
        """
        return self._subscribe(text, "add" if add else "replace", no_metadata, backfill=backfill)

    def _subscribe(
        self, script: str | Script, mode: SubscribeMode, metadata_for: MetadataFor, *, backfill: bool = False
    ) -> list[str]:
        with gc_paused(lasting=True):
            known = self._components.registry.events.streams()
            parsed = parse_script(script, events=known) if isinstance(script, str) else script
            check_backfill(self._place, parsed, backfill=backfill)
            names, outputs, paused = self._batches.subscribe(parsed, mode, metadata_for, backfill=backfill)
        self._paused |= paused
        self._counters = replace(self._counters, outputs=self._counters.outputs + outputs)
        return names

    def unsubscribe(self, name: str) -> None:
        """Removes all queries of a name. Raises UnknownQuery if there is none, and StoreError."""
        with self._batches.whole():
            self._components.changes.unsubscribe(name)

    def pause(self, name: str, reason: str = "asked to") -> None:
        """Pauses all queries of a name: they give no outputs and never see documents that arrive meanwhile.

        Raises UnknownQuery if there is none, and StoreError.
        """
        with self._batches.whole():
            self._components.changes.pause(name, reason)

    def resume(self, name: str) -> None:
        """Resumes all queries of a name. They also see stored documents from before the pause.

        Raises UnknownQuery if there is none, and StoreError.
        """
        with self._batches.whole():
            self._components.changes.resume(name)

    def queries(self) -> dict[str, list[str]]:
        """Returns the texts of the registered queries by name. Raises nothing."""
        texts: dict[str, list[str]] = {}
        for subscription in self._components.registry.subscriptions.values():
            texts.setdefault(subscription.name, []).append(subscription.text)
        return texts

    # ------------------------------------------------------------ documents

    def process(self, documents: Iterable[Document | Reject]) -> Outputs:
        """Processes a batch of documents and returns the outputs that it completes, in the order of output lines.

        A document that is refused becomes a dead letter: `last_dead_letters` returns those of the batch, and the logger
        "mmqjp" gets a warning. The batch is committed whole or not at all. Raises StoreError, OutOfMemory if the batch
        is too large, and whatever iterating `documents` raises.
        """
        return self._process(documents)

    def finish(self) -> Outputs:
        """Ends a finite run: answers event queries over all events that wait, if it began without `settle`. Events that
        follow are later. Without a state decides all absences. Returns the outputs. Raises StoreError."""
        if (known := self._components.registry).events.running.forms or (known.absent and self._directory is None):
            return self._process((), lasts=self._directory is not None)
        self._last_dead_letters = []
        return Outputs()

    def _process(
        self,
        documents: Iterable[Document | Reject],
        metadata: CommitMetadata | MetadataOf = NO_METADATA,
        evaluated: EvaluatedBatch | None = None,
        *,
        lasts: bool | None = None,
    ) -> Outputs:
        with gc_paused():
            batch = self._batches.process(documents, metadata, evaluated, lasts=lasts)
        self._record(batch)
        return batch.outputs

    def _record(self, batch: BatchResult) -> None:
        """Adds a batch to the counters and warns about its dead letters."""
        self._paused |= batch.paused
        self._last_dead_letters = batch.dead_letters
        if not self._quiet:
            warn_of(self._last_dead_letters)
        self._counters = self._counters.after(batch)

    # ------------------------------------------------------------ results

    def outputs(self, after: int = -1) -> OutputStream:
        """Returns an iterable of the stored outputs whose `seq` is greater than `after`, in the order of `seq`.

        A consumer that remembers the last `seq` can resume from it, also after a restart. Raises StoreError.
        """
        return self._components.outbox.outputs(after)

    @property
    def last_seq(self) -> int:
        """The `seq` of the last committed output; -1 if there is none."""
        return self._components.ledger.next_seq - 1

    def dead_letters(self) -> Iterator[dict[str, Any]]:
        """Yields all stored dead letters, in no particular order. Raises StoreError."""
        return self._components.ledger.dead_letters()

    def last_dead_letters(self) -> list[dict[str, Any]]:
        """Returns the dead letters of the last batch. Raises nothing."""
        return self._last_dead_letters

    def sql(self, query: str, *, trusted: bool = False) -> pa.Table:
        """Runs an SQL query over the tables of the engine, in the engine's dialect, and returns the result.

        Queries are read-only: DuckDB, and the check of Spark's plan, refuse whatever writes, reads files, or reveals
        details of the process. With `trusted`, a query may do whatever the engine can. Raises QuestionRefused, also for
        bad SQL, and StoreError; with `trusted` it raises the engine's own errors instead of QuestionRefused.
        """
        return self._store.select(query) if trusted else self._store.question(query).answer()


def _stage1(
    session: SparkSession | None, store: JoinEngine, limits: Limits, max_nodes: int | None
) -> XPathStage | SparkStage:
    """Creates stage 1 with the stored groups of edges."""
    with gc_paused(lasting=True):
        known = groups(store)
        if session is None:
            return XPathStage(known, limits=limits)
        return SparkStage(session, known, spread=spread_past(session), limits=limits, max_nodes=max_nodes)


class NotOnSpark(InputError, TypeError):
    """The operation needs an engine on Spark."""


class Session(CoreEngine):
    """An engine that can commit metadata with changes and batches: offsets of sources, settings, answers to commands.
    It also advances time, drops old data, and reports on what it has registered and stored.

    Methods that access the store may raise StoreError, as in `CoreEngine`, and nothing else unless they say so.
    `registry`, `catalog`, `records`, `take_paused`, `counters`, `lag` and `batch` raise nothing.
    """

    # ------------------------------------------------------------ queries

    def subscribe(
        self, text: str, *, add: bool = False, backfill: bool = False, metadata_for: MetadataFor = no_metadata
    ) -> list[str]:
        """Like `Engine.subscribe`. Commits the result of `metadata_for` with it."""
        return self._subscribe(text, "add" if add else "replace", metadata_for, backfill=backfill)

    def ensure(self, script: Script, mode: SubscribeMode = "ensure") -> list[str]:
        """Registers the queries of a script that are not registered yet with the same name and text.

        With "renew" they replace others under their PUBLISH names, with "exact" all others. Raises PublishCycle,
        TooManyChains, StoreError.
        """
        return self._subscribe(script, mode, no_metadata)

    def unsubscribe(self, name: str, *, metadata_for: MetadataFor = no_metadata) -> None:
        """Like `Engine.unsubscribe`. Commits the result of `metadata_for` with it."""
        with self._batches.whole():
            self._components.changes.unsubscribe(name, metadata_for)

    def pause(self, name: str, reason: str = "asked to", *, metadata_for: MetadataFor = no_metadata) -> None:
        """Like `Engine.pause`. Commits the result of `metadata_for` with it."""
        with self._batches.whole():
            self._components.changes.pause(name, reason, metadata_for)

    def resume(self, name: str, *, metadata_for: MetadataFor = no_metadata) -> None:
        """Like `Engine.resume`. Commits the result of `metadata_for` with it."""
        with self._batches.whole():
            self._components.changes.resume(name, metadata_for)

    @property
    def registry(self) -> Registry:
        """The registered queries and what they share."""
        return self._components.registry

    @property
    def catalog(self) -> Catalog:
        """The shared variables, templates and rows of R_T."""
        return self._components.registry.catalog

    @property
    def records(self) -> Records:
        """The stored documents, by docid."""
        return self._components.records

    def ties(self, *, here: bool = False) -> dict[str, int]:
        """Returns how many pairs of documents FOLLOWED BY left out only because of equal times, by the names of the
        queries, the most first. With `here`, counts those found since the engine was opened."""
        return self._components.pipeline.ties.of(self.registry.subscriptions.values(), here=here)

    def ties_at_least(self, *, here: bool = False) -> set[str]:
        """Returns the names of queries that may have more pairs than `ties` says."""
        return self._components.pipeline.ties.at_least(self.registry.subscriptions.values(), here=here)

    def added_at(self, qid: int) -> int:
        """Returns when a query was registered, in microseconds."""
        return self._components.stored_queries.added_at(qid)

    def take_paused(self) -> dict[str, str]:
        """Returns the queries that were paused for their quota since the last call: reasons by name."""
        paused, self._paused = self._paused, {}
        return paused

    # ------------------------------------------------------------ documents

    def process(
        self,
        documents: Iterable[Document | Reject],
        metadata: CommitMetadata | MetadataOf = NO_METADATA,
        evaluated: EvaluatedBatch | None = None,
    ) -> Outputs:
        """Like `Engine.process`. Commits `metadata` with the batch. If it depends on what is refused, it is a function.

        `evaluated` has the results of stage 1 from `Session.evaluate`, after which no query may have come or gone.
        """
        return self._process(documents, metadata, evaluated)

    def evaluate(self, documents: DataFrame) -> EvaluatedRows:
        """Runs stage 1 over a data frame on Spark's executors.

        The data frame has the columns `stream`, `xml` (null for a row without a document), and any others. Raises
        NotOnSpark if the engine is on DuckDB.
        """
        if not isinstance(self._components.stage1, SparkStage):
            raise NotOnSpark("only an engine on Spark can evaluate data frames")
        return EvaluatedRows(self._components.stage1, documents)

    def commit_metadata(self, metadata: CommitMetadata) -> None:
        """Commits metadata in a batch of its own."""
        self._batches.commit_metadata(metadata)

    def pass_time(self) -> bool:
        """Advances idle streams to the clock, although no document came. Returns whether this changed anything.

        Commits a batch of its own if this decides queries or lets join state be evicted.
        """
        with gc_paused():
            batch = self._batches.pass_time()
        if batch is not None:
            self._record(batch)
        return batch is not None

    def prune(
        self,
        keep: int | None,
        keep_ids: int | None = ID_RETENTION,
        sources: Collection[str] = (),
        files: Collection[tuple[str, str]] = (),
        owed: Owed | None = None,
    ) -> None:
        """Drops old data in a batch of its own, but nothing that is `owed` to sinks.

        Drops outputs, matches and dead letters older than `keep` microseconds, and documents as old that no join can
        need. Their ids stay for `keep_ids` microseconds; None means forever. Also drops superseded settings, unused
        groups of edges, and superseded offsets of `sources`. `files` are the files of these sources that exist, as
        (source, file).
        """
        self._batches.prune(keep, keep_ids, sources, files, owed)

    # ------------------------------------------------------------ introspection

    def counters(self) -> Counters:
        """Returns the totals since the engine was opened."""
        return self._counters

    def stage1_counters(self) -> dict[str, int]:
        """Returns the counters of stage 1.

        `states` of the automaton that are cached; `groups` of edges that bind together; `flushes` of states and of
        shapes; `shape_hits` and `shape_misses`: documents whose shape was known, or was not. On Spark these describe
        the driver, and there are also `spread_documents`, which went to the executors, and `broadcasts` of the
        patterns.
        """
        return self._components.stage1.counters()

    def stage2_counters(self) -> dict[str, int]:
        """Returns the counters of stage 2, which depend on the plan.

        The plan `views` counts string values of a batch that the state also has: `hits` and `misses` of their slices in
        the cache, and `evictions` of slices for want of room. `values` and `bytes` are the number of cached slices and
        their approximate size. The plan `signature` counts the `documents`, `postings` and `groups` of edges in its
        index; of the postings in memory the `values` and the bytes without indexes over them, `posting_bytes`; and the
        `runs` on disk, their `run_bytes`, and the `merges` under way. Evicted documents count as long as their run is
        there. The plan `basic` has no counters.
        """
        return self._store.counters()

    def costs(self) -> tuple[str, dict[int, Cost]] | None:
        """Returns the plan that was used last, and the costs of templates in the last batch that matched each.

        Returns None before the first batch. Costs of an earlier run are known if it was closed.
        """
        return (self._plan, costs) if (costs := self._store.costs()) else self._components.ledger.costs()

    def lines(self, after: int = -1) -> OutputStream:
        """Returns the same outputs as `outputs`, in the order of output lines: by t1, query, documents, nodes."""
        return self._components.outbox.lines(after)

    def matches_behind(self, outputs: Sequence[Output]) -> dict[int, list[tuple[str | None, tuple[int, ...]]]]:
        """Returns the matches that may be behind some stored outputs, by `seq`: each as the form of its query, None in
        stores of earlier formats, and the docids of its documents, in the query's order."""
        return self._components.outbox.matches_behind(outputs)

    def removed_queries(self, name: str) -> dict[str, CompiledQuery]:
        """Returns the queries that were registered under a name and removed, by the ids of their forms. Those that
        this version cannot read are left out."""
        return self._components.stored_queries.removed(name)

    def documents(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, str]]:
        """Returns the t0 and the XML of the stored external documents among some, given as (stream, id), by these."""
        return documents_by_id(self._store, keys)

    def position(self, sink: str) -> Position:
        """Returns the stored position of a sink."""
        return self._components.outbox.position(sink)

    def offsets(self) -> dict[tuple[str, str], Offset]:
        """Returns the offset of each file, by source and file."""
        return self._components.ledger.offsets()

    def setting(self, key: str) -> str | None:
        """Returns the latest value of a setting, or None."""
        return self._components.ledger.setting(key)

    def settings(self, prefix: str) -> dict[str, str]:
        """Returns the latest values of all settings with a prefix, by the rest of their keys."""
        return self._components.ledger.settings(prefix)

    def answer_to(self, command: str) -> str | None:
        """Returns the stored answer to a command by its id, or None if the command is not done."""
        return self._components.ledger.answer_to(command)

    def watermarks(self) -> dict[str, int]:
        """Returns the watermark of each external stream that has one. Without lateness, returns the stored ones."""
        if is_lateness_bounded(self._components.watermarks.timing.lateness):
            return self._components.watermarks.by_stream()
        return self._stored_watermarks

    @cached_property
    def _stored_watermarks(self) -> dict[str, int]:
        """The stored watermarks, which do not change while there is no lateness."""
        return by_stream(*saved_watermarks(self._components.ledger))

    def waiting_events(self) -> WaitingCounts | None:
        """Returns how far event queries have been answered, and what waits; None if there is none."""
        return self._components.pipeline.patterns.waiting()

    def waiting_absences(self) -> dict[str, int]:
        """Returns, by the names of queries, how many documents wait for it to be decided that nothing came."""
        return self._components.pipeline.operators.waiting() if self.registry.absent else {}

    def never_decided(self) -> dict[str, str]:
        """Returns the queries for which it is never decided that nothing came, because a stream may be late without a
        limit: that stream, by their names."""
        return self._components.pipeline.operators.never_decided() if self.registry.absent else {}

    def horizon(self) -> tuple[int | None, int | None]:
        """Returns the least watermark of the streams that queries read, and the time before which no document can match
        any more. Each is None if there is none."""
        known = self.watermarks()
        horizon = min(
            (known.get(stream, EARLIEST) for stream in self._components.registry.outside() - {EVENT_TIME}),
            default=EARLIEST,
        )
        evictable = self._components.eviction.before(horizon)
        return None if horizon <= EARLIEST else horizon, None if evictable <= EARLIEST else evictable

    def lag(self) -> int | None:
        """Returns how many microseconds the newest document since the engine was opened is behind the clock, or
        None."""
        return (
            None
            if self._components.watermarks.newest is None
            else self._components.now() - self._components.watermarks.newest
        )

    def state_bytes(self) -> int | None:
        """Returns the total size of the state directory's files, or None without one. Raises OSError."""
        return None if self._directory is None else directory_bytes(self._directory)

    @property
    def plan(self) -> str:
        """The join plan."""
        return self._plan

    @property
    def batch(self) -> int:
        """The number of the next batch."""
        return self._components.ledger.batch

    @property
    def committed_at(self) -> int:
        """When the last batch of this process was committed, in microseconds; 0 before the first one."""
        return self._components.ledger.committed_at

    def committed_between(self, first: int, last: int) -> list[tuple[int, int]]:
        """Returns the number of the first output of each batch that has outputs with numbers from `first` to `last`,
        and when it was committed, in order."""
        return committed_between(self._store, first, last)

    def waiting_after(self, seq: int) -> list[tuple[str, int, int, int]]:
        """Returns, by query, how many outputs have greater numbers, the least t0 of them, and when the first of them
        was committed."""
        return waiting_after(self._store, seq) if seq < self.last_seq else []

    def first_seq(self) -> int:
        """Returns the number of the first stored output, or the next number if there is none."""
        first = first_seq(self._store)
        return self.last_seq + 1 if first is None else first

    def first_committed_from(self, time: int) -> int | None:
        """Returns the number of the first output that was committed at a time or later, or None."""
        return first_committed_from(self._store, time)

    def question(self, query: str, bounds: Bounds = UNBOUNDED, *, own: bool = False) -> Question:
        """Prepares a read-only SQL query that may be answered in any thread while this one continues.

        It sees the batches that are committed when it begins. `bounds` limit the size of the answer. SQL that is
        our `own` is not judged as that of strangers. Raises StoreError; `answer` raises the errors of the query.
        """
        return self._store.question(query, bounds, own=own)

    def follow(self, tables: Collection[str]) -> Following | None:
        """Returns what tells of the rows that are committed to some tables from now on. None on Spark."""
        return self._store.follow(tables)
