"""The engine: registers standing queries, processes batches of documents, returns output documents. `CoreEngine` is the
library's interface; `Session` adds what services and commands use: metadata committed with batches, maintenance and
introspection."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from common.bounds import EARLIEST, Micros
from common.errors import InputError, InvalidValue
from common.files import share
from common.limits import Quota
from common.tools import gc_paused
from feeds.documents import Now, SourceItem, now_us
from join_stage.plans import DEFAULT_PLAN, PLANS, JoinEngine, UnknownPlan
from join_stage.protocol import Cost, times_rebuilt
from join_stage.store.protocol import UNBOUNDED, Bounds, Following, OtherEngine, Outdated, Question, whole_batch
from join_stage.views import CACHE_BYTES
from mmqjp.answers.absence import PendingAbsence
from mmqjp.answers.events_run import DRIVER, EXECUTORS, WaitingCounts, check_backfill, check_place, kernels
from mmqjp.answers.fan_out import Outputs, OutputStream, Position
from mmqjp.answers.output import Output
from mmqjp.answers.pipeline import Batches, BatchResult
from mmqjp.answers.quota import MAX_MATCHES, MAX_OUTPUTS, MAX_PARTIAL, MAX_WORK
from mmqjp.documents.admission import EvaluatedDocuments, EvaluatedRows, warn_of
from mmqjp.documents.watermarks import SETTLE, Belated, Lateness, Timing
from mmqjp.queries.changes import MetadataFor, SubscribeMode, no_metadata
from mmqjp.queries.model import Subscription
from mmqjp.queries.registry import Registry
from mmqjp.queries.stored import CompiledQuery
from mmqjp.state import engine_choice
from mmqjp.state.engine_choice import AUTO, DUCKDB, Ownership, ReadLock, choose_engine, open_session, stored_engine
from mmqjp.state.eviction import ID_RETENTION
from mmqjp.state.word_weights import StoreWeights
from mmqjp.tables.lookup import BelatedDocuments, belated_documents
from mmqjp.tables.schema import HIDDEN_SEQS, NO_METADATA, CommitMetadata, Ledger, MetadataOf, Owed, single_number
from pattern_stage.assemble import EVENT_TIME
from templates.witness import R_GROUP, edges_by_group
from xpath_stage.documents import DEFAULT, Limits
from xpath_stage.evaluator import XPathStage
from xpath_stage.spark import SparkStage, TaskReads, spread_past
from xscl.algebra.weights import chosen_weights
from xscl.parser import parse_script
from xscl.syntax import Script

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mmqjp.state.sql_worker import SqlWorkers


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since opening. `documents` excludes duplicates and dead letters."""

    documents: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    outputs: int = 0


class CoreEngine:
    """Standing XSCL queries over streams of documents.

    `engine` is "duckdb", "spark", a SparkSession, or "auto": the engine of the state; without one Spark if a `master`,
    its URL, is given, in spark-submit, or if this process has a Spark session; else DuckDB. `state` is a directory that
    keeps everything for the next time; without it, everything is gone after `close`. A new state directory is private
    to its owner. With `shared` it follows the umask instead, from then on. With `read_only` the state must exist and is
    not changed; write access is not needed. "auto" is then DuckDB, which also reads what Spark wrote.

    `lateness`, `idle_after` and `max_ahead`, in microseconds, say when a document is belated, when a silent stream
    follows the clock, and when a document is from the future (see `mmqjp.documents.watermarks.Timing`). `belated` says
    what is done with belated documents: "take" answers them, "drop" makes dead letters of them. `lateness` and
    `belated` may map streams to their own values; "*" stands for all others. `settle`, in microseconds, is how long
    events wait for earlier ones before event queries are answered, for all streams or by stream; None means until
    `finish`. `patterns` is where these are answered: "driver", "executors" of Spark, or "sql", which takes no `state`
    and needs `settle=None`. All give the same outputs. `now` is the clock, in microseconds.

    A document with more than `max_document` bytes, or more than `max_nodes` elements and attributes, becomes a dead
    letter. A query is paused if it would have more than `max_matches` outputs for one document that arrives or more
    than `max_outputs` for 10,000, or would take more than `max_work` steps for one; for event queries and `max_partial`
    see `common.limits.Quota`. None means unlimited. `limits` bounds what stage 1 caches.
    `plan` is the join plan, one of `join_stage.plans.PLANS`; a state may be opened with any of them. `cache_bytes`
    bounds the cache of the plan "views". With `quiet`, dead letters are not logged.

    Raises UnknownPlan for an unknown plan, InvalidValue for an unknown engine or `belated`, for `patterns` that cannot
    be here, or for `read_only` without `state`, and StoreError if the state cannot be opened: InUse if another process
    holds it, Outdated if it is `read_only` and has an older format. Raises OSError if the state cannot be made
    `shared`, JavaNotFound if Spark cannot start, and OtherSession if a Spark session with another master runs. On
    Spark, methods that raise StoreError may also raise Spark's own errors.
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
        belated: Belated = "take",
        patterns: str = DRIVER,
        quiet: bool = False,
        now: Now = now_us,
        read_only: bool = False,
        shared: bool = False,
    ) -> None:
        if plan not in PLANS:
            raise UnknownPlan(plan)
        self.plan, self._quiet = plan, quiet
        self._directory = directory = None if state is None else Path(state)
        if engine == AUTO:
            asked_by = "master" if master is not None else "patterns" if patterns == EXECUTORS else None
            engine = DUCKDB if read_only else choose_engine(AUTO, directory, asked_by).engine
        on_spark = engine != DUCKDB and not read_only
        self._place = patterns
        check_place(patterns, on_spark=on_spark, lasts=directory is not None, settle=settle)
        if engine != DUCKDB and directory is not None and stored_engine(directory) == DUCKDB:
            raise OtherEngine(directory, DUCKDB)  # before Spark has started
        session = None if engine == DUCKDB else open_session(engine, master)
        if directory is not None and shared:
            share(directory)
        self._ownership: Ownership | ReadLock | None = None
        if directory is not None and not read_only:
            self._ownership = Ownership(directory, now)
        elif directory is not None and stored_engine(directory) == DUCKDB:  # Spark's files stay while they are read
            self._ownership = ReadLock(directory)
        with ExitStack() as opened:
            opened.callback(self._release_lock)
            self._store = self._open_store(session, directory, plan, cache_bytes, read_only)
            opened.callback(self._store.close)
            ledger = Ledger(self._store, now)
            self._weights = StoreWeights(directory, ledger)
            opened.callback(self._weights.release)
            if read_only and not ledger.is_current:
                raise Outdated(f"the store in {directory} is of an older format: open it once with write access")
            quota = Quota.of(max_matches, max_outputs, max_work, max_partial)
            timing = Timing(lateness, idle_after, max_ahead, settle, belated)
            timing = timing.as_written(ledger) if read_only else timing
            with gc_paused(lasting=True):
                known = edges_by_group(self._store.read("groups", R_GROUP.names)).items()
                if session is None:
                    stage1 = XPathStage(known, limits=limits, failures={})
                else:
                    spread = spread_past(session)
                    stage1 = SparkStage(session, known, spread=spread, limits=limits, max_nodes=max_nodes, failures={})
            make_kernel = kernels(patterns, session, quota)
            self._batches = Batches(
                self._store, ledger, stage1, timing, quota, max_document, max_nodes, now, make_kernel, spread=on_spark
            )
            opened.pop_all()
        self._counters = Counters()
        self._paused = self._batches.set_aside(read_only=read_only)
        self._last_dead_letters: list[dict[str, Any]] = []
        self._is_closed = False

    def _open_store(
        self, session: SparkSession | None, directory: Path | None, plan: str, cache_bytes: int, read_only: bool
    ) -> JoinEngine:
        """Overridden in tests by a store that fails on demand."""
        return engine_choice.open_store(session, directory, plan, cache_bytes, read_only=read_only)

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
        """Closes the store; idempotent. A state directory keeps what was processed. Raises StoreError."""
        if self._is_closed:
            return
        try:
            if self._directory is not None and self._counters.documents and (costs := self._store.plan.costs):
                self._batches.ledger.save_costs(costs, self.plan)
        finally:
            self._close()

    def _close(self) -> None:
        self._is_closed = True
        if (workers := vars(self).get("_workers")) is not None:
            workers.close()
        try:
            self._batches.stage1.close()
        finally:
            self._store.close()
            self._weights.release()
            self._release_lock()

    def _release_lock(self) -> None:
        if self._ownership is not None:
            self._ownership.release()
            self._ownership = None

    # ------------------------------------------------------------ queries

    def subscribe(self, text: str, *, add: bool = False, backfill: bool = False) -> list[str]:
        """Registers the queries of a script and returns their names.

        They see documents that arrive from now on; with `backfill` also all stored documents, and the results are in
        `outputs` at once. They replace the queries registered under their PUBLISH names, except those with the same
        text; with `add`, none.

        On error, registers nothing and raises XsclErrors with every mistake in the text, PublishCycle if a stream would
        depend on itself through registered queries, NameTaken if a name is that of a query without PUBLISH,
        TooManyChains if the store has no number left for a chain of functions, or StoreError.
        """
        return self._subscribe(text, "add" if add else "replace", backfill=backfill)

    def _subscribe(self, script: str | Script, mode: SubscribeMode, *, backfill: bool = False) -> list[str]:
        with gc_paused(lasting=True):
            known = self._batches.registry.events.streams()
            parsed = parse_script(script, events=known) if isinstance(script, str) else script
            check_backfill(self._place, parsed, backfill=backfill)
            self._choose_weights(parsed)
            names, outputs, paused = self._batches.subscribe(parsed, mode, backfill=backfill)
        self._paused |= paused
        self._counters = replace(self._counters, outputs=self._counters.outputs + outputs)
        return names

    def _choose_weights(self, script: Script) -> None:
        name, chosen = script.weights, chosen_weights().name
        if name is None or name == chosen:
            return
        if self._batches.registry.subscriptions:
            hint = f'DECLARE WEIGHTS "{name}"; comes with the first ones'
            raise InvalidValue(f"the queries of this store weigh words by the table {chosen}: {hint}")
        with self._batches.whole(), ExitStack() as failed:
            with whole_batch(self._store):
                failed.callback(self._weights.choose(name))
            failed.pop_all()

    def unsubscribe(self, name: str) -> None:
        """Removes all queries of a name. Raises UnknownQuery if there is none, and StoreError."""
        with self._batches.whole():
            self._batches.changes.unsubscribe(name)

    def pause(self, name: str, reason: str = "asked to") -> None:
        """Pauses all queries of a name: they give no outputs and never see documents that arrive meanwhile. Raises
        UnknownQuery if there is none, and StoreError."""
        with self._batches.whole():
            self._batches.changes.pause(name, reason)

    def resume(self, name: str) -> None:
        """Resumes all queries of a name. They also see stored documents from before the pause. Raises UnknownQuery if
        there is none, and StoreError."""
        with self._batches.whole():
            self._batches.changes.resume(name)

    def queries(self) -> dict[str, list[str]]:
        """Returns the texts of the registered queries by name. Raises nothing."""
        texts: dict[str, list[str]] = {}
        for subscription in self._batches.registry.subscriptions.values():
            texts.setdefault(subscription.name, []).append(subscription.text)
        return texts

    # ------------------------------------------------------------ documents

    def process(self, documents: Iterable[SourceItem]) -> Outputs:
        """Processes a batch of documents and returns the outputs that it completes, in line order. A notebook shows
        them with their documents. A `feeds.documents.Visit` among them says how far a feed has been read: time moves
        with it, where it stands.

        A refused document becomes a dead letter: `last_dead_letters` returns those of the batch, and the logger "mmqjp"
        gets a warning. The batch commits atomically. Raises StoreError, OutOfMemory if the batch is too large, and
        whatever iterating `documents` raises.
        """
        return self._process(documents)

    def finish(self) -> Outputs:
        """Ends a finite run: answers event queries over all waiting events, if it began without `settle`; without a
        state, decides all absences. Later events follow these. Returns the outputs. Raises StoreError."""
        if (known := self._batches.registry).events.running or (known.absent and self._directory is None):
            return self._process((), lasts=self._directory is not None)
        self._last_dead_letters = []
        return Outputs()

    def _process(
        self,
        documents: Iterable[SourceItem],
        metadata: CommitMetadata | MetadataOf = NO_METADATA,
        evaluated: EvaluatedDocuments | None = None,
        *,
        lasts: bool | None = None,
    ) -> Outputs:
        with gc_paused():
            batch = self._batches.process(documents, metadata, evaluated, lasts=lasts)
        self._record(batch)
        return batch.outputs

    def _record(self, batch: BatchResult) -> None:
        self._paused |= batch.paused
        self._last_dead_letters = batch.dead_letters
        if not self._quiet:
            warn_of(self._last_dead_letters)
        known, dead, outputs = self._counters, len(batch.dead_letters), len(batch.outputs)
        self._counters = Counters(
            known.documents + batch.documents, known.duplicates + batch.duplicates,
            known.dead_letters + dead, known.outputs + outputs,
        )  # fmt: skip

    # ------------------------------------------------------------ results

    def outputs(self, after: int = -1) -> OutputStream:
        """Returns an iterable of the stored outputs whose `seq` is greater than `after`, by `seq`; a notebook shows
        them with their documents. A consumer that stores its last `seq` can resume from it, also after a restart.
        Raises StoreError."""
        return self._batches.outbox.outputs(after)

    @property
    def last_seq(self) -> int:
        """The `seq` of the last committed output; -1 if there is none."""
        return self._batches.ledger.next_seq - 1

    def dead_letters(self) -> Iterator[dict[str, Any]]:
        """Yields all stored dead letters, in no particular order. Raises StoreError."""
        return self._batches.ledger.dead_letters()

    def last_dead_letters(self) -> list[dict[str, Any]]:
        """Returns the dead letters of the last batch. Raises nothing."""
        return self._last_dead_letters

    def sql(self, query: str, *, trusted: bool = False) -> pa.Table:
        """Runs an SQL query over the tables of the engine, in the engine's dialect, and returns the result.

        Queries are read-only: DuckDB, and the check of Spark's plan, refuse whatever writes, reads files, or reveals
        details of the process. A `trusted` query may do whatever the engine can. Raises QuestionRefused, also for bad
        SQL, and StoreError; if `trusted`, the engine's own errors instead of QuestionRefused.
        """
        return self._store.select(query) if trusted else self._store.question(query).answer()


class NotOnSpark(InputError, TypeError):
    """The operation needs an engine on Spark."""


_SEQS = """(
  SELECT batch, first_seq AS low, last_seq AS high FROM answers
  UNION ALL SELECT batch, seq AS low, seq AS high FROM earlier_outputs
) o"""
"""The first and last output numbers of stored answers, and of outputs of earlier formats."""


class Session(CoreEngine):
    """An engine that commits metadata with changes and batches: source offsets, settings, answers to commands. It also
    advances time, prunes old data, and reports on its queries and store.

    Methods that access the store may raise StoreError, as in `CoreEngine`, and nothing else unless documented.
    `registry`, `take_paused`, `counters`, `lag` and `batch` raise nothing.
    """

    # ------------------------------------------------------------ queries

    @contextmanager
    def committing(self, metadata_for: MetadataFor) -> Iterator[None]:
        """Commits the result of `metadata_for` with the change of queries that is made inside."""
        changes = self._batches.changes
        changes.metadata_for = metadata_for
        try:
            yield
        finally:
            changes.metadata_for = no_metadata

    def ensure(self, script: Script, mode: SubscribeMode = "ensure") -> list[str]:
        """Registers a script's queries unless the same name and text is registered. With "renew" they replace others
        under their PUBLISH names, with "exact" all others. Raises PublishCycle, TooManyChains, StoreError."""
        return self._subscribe(script, mode)

    @property
    def registry(self) -> Registry:
        return self._batches.registry

    def ties(self, *, here: bool = False) -> dict[str, int]:
        """Returns the number of document pairs that FOLLOWED BY excluded only for equal times, by query name, most
        first. With `here`, only since the engine was opened."""
        return self._batches.pipeline.ties.of(self.registry.subscriptions.values(), here=here)

    def ties_at_least(self, *, here: bool = False) -> set[str]:
        return self._batches.pipeline.ties.at_least(self.registry.subscriptions.values(), here=here)

    def added_at(self, qid: int) -> int:
        return single_number(self._store, f"SELECT added_at FROM added_queries WHERE qid = {qid}") or 0

    def sources(self, queries: Collection[Subscription]) -> dict[int, str]:
        """Returns the texts of queries as they were typed, by qid."""
        noted = self._batches.stored_queries.sources("qid", [query.qid for query in queries])
        return {query.qid: noted.get(query.qid, query.text) for query in queries}

    def take_paused(self) -> dict[str, str]:
        """Returns and clears the queries paused for their quota since the last call: reasons by name."""
        paused, self._paused = self._paused, {}
        return paused

    # ------------------------------------------------------------ documents

    def process(
        self,
        documents: Iterable[SourceItem],
        metadata: CommitMetadata | MetadataOf = NO_METADATA,
        evaluated: EvaluatedDocuments | None = None,
    ) -> Outputs:
        """As in `Engine`; commits `metadata` with the batch, a function if it depends on refused documents. `evaluated`
        comes from `Session.evaluate`; queries must not have changed since."""
        return self._process(documents, metadata, evaluated)

    def evaluate(self, documents: DataFrame | TaskReads) -> EvaluatedRows:
        """Runs stage 1 over a data frame, or what tasks read themselves, on Spark's executors. Columns are `stream`,
        `xml` (null without a document), and any others, or they are packed (`xpath_stage.spark.PACKED`). Raises
        NotOnSpark on DuckDB."""
        if not isinstance(self._batches.stage1, SparkStage):
            raise NotOnSpark("only an engine on Spark can evaluate data frames")
        return EvaluatedRows(self._batches.stage1, documents)

    def load(self) -> None:
        """Loads what the first documents need, so that they are answered as soon as later ones."""
        with gc_paused(lasting=True):
            self._batches.load()

    def commit_metadata(self, metadata: CommitMetadata) -> None:
        with self._batches.whole(), whole_batch(self._store):
            self._batches.ledger.save_metadata(metadata)

    def pass_time(self) -> bool:
        """Advances idle streams to the clock. Returns whether anything changed; if queries are decided or join state
        can be evicted, commits a batch of its own."""
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
        """Drops old data in a batch of its own, but nothing `owed` to sinks.

        Drops outputs, matches and dead letters older than `keep` microseconds, and equally old documents that no join
        can need; their ids remain for `keep_ids` microseconds (None: forever). Also drops superseded settings, unused
        groups of edges, and superseded offsets of `sources`, whose existing `files` are given as (source, file).
        """
        batches = self._batches
        horizon = batches.watermarks.of(batches.registry.outside())
        with batches.whole(), whole_batch(self._store):
            batches.state.prune(horizon, batches.pipeline.patterns.oldest(), keep, keep_ids, owed)
            batches.records.ids.forget()
            batches.state.prune_offsets(sources, files)
            batches.drop_groups()
            batches.state.save_reach()

    # ------------------------------------------------------------ introspection

    def counters(self) -> Counters:
        return self._counters

    def stage1_counters(self) -> dict[str, int]:
        """Returns the counters of stage 1: cached automaton `states`; `groups` of edges that bind together; `flushes`
        of states and shapes; `shape_hits` and `shape_misses` of document shapes. On Spark these describe the driver,
        with `spread_documents` sent to executors and `broadcasts` of the patterns."""
        return self._batches.stage1.counters()

    def stage2_counters(self) -> dict[str, int]:
        """Returns the counters of stage 2, by plan.

        `views` counts string values of a batch that the state also has: cache `hits`, `misses` and `evictions` of their
        slices; `values` and approximate `bytes` are those cached. `signature` counts `documents`, `postings` and edge
        `groups` in its index; `values` and `posting_bytes` in memory, without indexes; `runs` on disk, their
        `run_bytes`, and `merges` under way. Evicted documents count until their run goes. `basic` has none.
        """
        return self._store.plan.counters()

    def times_rebuilt(self) -> int:
        """Returns how often damaged postings on disk were built anew, in the life of the store."""
        return times_rebuilt(self._store)

    def costs(self) -> tuple[str, dict[int, Cost]] | None:
        """Returns the last plan, and the cost of each template in the last batch that matched it; None before the first
        batch. Survives a restart after `close`."""
        return (self.plan, costs) if (costs := dict(self._store.plan.costs)) else self._batches.ledger.costs()

    def lines(self, after: int = -1) -> OutputStream:
        """Returns the same outputs as `outputs`, in line order: by t1, query, documents, nodes."""
        return self._batches.outbox.lines(after)

    def matches_behind(self, outputs: Sequence[Output]) -> dict[int, list[tuple[str | None, tuple[int, ...]]]]:
        """Returns candidate matches behind stored outputs, by `seq`: the form of its query (None in earlier formats),
        and its docids in the query's order."""
        return self._batches.outbox.matches_behind(outputs)

    def removed_queries(self, name: str) -> dict[str, CompiledQuery]:
        """Returns removed queries of a name by form id, except those that this version cannot read."""
        return self._batches.stored_queries.removed(name)

    def position(self, sink: str) -> Position:
        return self._batches.outbox.position(sink)

    def watermarks(self) -> dict[str, int]:
        """Returns the watermark of each external stream that has one."""
        return self._batches.watermarks.by_stream()

    def waiting_events(self) -> WaitingCounts | None:
        """Returns how far event queries are answered and what waits; None without event queries."""
        found, known = self._batches.pipeline.patterns.waiting(), self._batches.watermarks
        if found is None or found.stream is None:
            return found
        return replace(found, feed=known.slowest_feed(found.stream))

    def waiting_absences(self, name: str | None = None) -> dict[str, PendingAbsence]:
        """Returns what waits to be decided, by query name, of all queries or of those of a name."""
        return self._batches.pipeline.absences.waiting(name) if self.registry.absent else {}

    def belated(self, name: str | None = None) -> BelatedDocuments:
        """Counts belated documents, of all streams and queries or only of the queries of a name."""
        if self._store.highest("belated_counts", "batch") < 0:
            return BelatedDocuments({}, {})
        return belated_documents(self._store.select, name)

    def never_decided(self) -> dict[str, str]:
        """Returns the queries whose absences are never decided, each with the stream whose lateness is unlimited."""
        return self._batches.pipeline.absences.never_decided() if self.registry.absent else {}

    def horizon(self) -> tuple[int | None, int | None]:
        """Returns the least watermark of the streams that queries read, and the time before which no document can
        match; None where there is none."""
        known = self.watermarks()
        read = self._batches.registry.outside() - {EVENT_TIME}
        horizon = Micros(min((known.get(stream, EARLIEST) for stream in read), default=EARLIEST))
        evictable = self._batches.state.evictable_before(horizon)
        return None if horizon <= EARLIEST else horizon, None if evictable <= EARLIEST else evictable

    def lag(self) -> int | None:
        """Returns the microseconds from the newest document since opening to the clock, or None."""
        newest = self._batches.watermarks.newest
        return None if newest is None else self._batches.now() - newest

    def state_bytes(self) -> int | None:
        """Returns the total size of the state directory's files, or None without one. Raises OSError."""
        return None if self._directory is None else engine_choice.directory_bytes(self._directory)

    @property
    def ledger(self) -> Ledger:
        return self._batches.ledger

    @property
    def batch(self) -> int:
        return self._batches.ledger.batch

    @property
    def committed_at(self) -> int:
        return self._batches.ledger.committed_at

    def committed_between(self, first: int, last: int) -> list[tuple[int, int]]:
        """Returns, in order, the first output and commit time, if stored, of batches with outputs `first` to `last`."""
        sql = f"""SELECT min(o.low) AS low, b.committed_at FROM {_SEQS} JOIN batches b ON b.batch = o.batch
WHERE o.high >= {first} AND o.low <= {last} GROUP BY o.batch, b.committed_at ORDER BY low"""
        found = self._store.select(sql)
        return list(zip(found["low"].to_pylist(), found["committed_at"].to_pylist(), strict=True))

    def waiting_after(self, seq: int) -> list[tuple[str, int, int, int]]:
        """Returns, by query, the number of outputs numbered above `seq`, their least t0, and the first commit time."""
        if seq >= self.last_seq:
            return []
        sql = f"""SELECT o.query, count(*) AS n, min(o.t0) AS t0, coalesce(min(b.committed_at), 0) AS committed_at
FROM outputs o LEFT JOIN batches b ON b.batch = o.batch WHERE o.seq > {seq} AND o.seq NOT IN ({HIDDEN_SEQS})
GROUP BY o.query"""
        found = self._store.select(sql)
        return list(zip(*(found[name].to_pylist() for name in ("query", "n", "t0", "committed_at")), strict=True))

    def count_delivered(self, after: int) -> int:
        """Returns the number of outputs numbered above `after`, but those of hidden queries."""
        return sum(count for _, count, *_ in self.waiting_after(after))

    def first_seq(self) -> int:
        """Returns the first stored output's number, or the next number."""
        low = single_number(self._store, f"SELECT min(o.low) AS low FROM {_SEQS}")
        return self.last_seq + 1 if low is None else low

    def first_committed_from(self, time: int) -> int | None:
        """Returns the number of the first output committed at or after a time, or None."""
        sql = f"SELECT min(o.low) AS low FROM {_SEQS} JOIN batches b ON b.batch = o.batch WHERE committed_at >= {time}"
        return single_number(self._store, sql)

    def question(self, query: str, bounds: Bounds = UNBOUNDED, *, own: bool = False) -> Question:
        """Prepares a read-only SQL query to answer in any thread while this one continues. It sees the batches
        committed when it begins. `bounds` limit the answer; our `own` SQL is not vetted as strangers' is. Raises
        StoreError; `answer` raises the query's errors."""
        return self._store.question(query, bounds, own=own)

    def confined_question(self, query: str, bounds: Bounds = UNBOUNDED) -> Question:
        """Like `question`, for strangers' SQL, whatever it does: a process of its own judges and answers it, in the
        dialect of DuckDB, and may be killed. It is `question` in memory, and of a session that only reads."""
        if (workers := self._workers) is None:
            return self.question(query, bounds)
        return workers.question(query, bounds)

    def checkpoints_held(self) -> AbstractContextManager[object]:
        """Keeps the files of a store on DuckDB readable for others, for longer. Callable from any thread."""
        from join_stage.store.duckdb import DuckDBStore

        return self._store.checkpoints_held() if isinstance(self._store, DuckDBStore) else nullcontext()

    @cached_property
    def _workers(self) -> SqlWorkers | None:
        if self._directory is None or not isinstance(self._ownership, Ownership):
            return None
        from join_stage.store.duckdb import DuckDBStore
        from mmqjp.state.sql_worker import DuckDBSource, ParquetSource, SqlWorkers

        store = self._store
        return SqlWorkers(DuckDBSource(store) if isinstance(store, DuckDBStore) else ParquetSource(self._directory))

    def follow(self, tables: Collection[str]) -> Following | None:
        """Returns a follower of rows committed to some tables from now on; None on Spark."""
        return self._store.follow(tables)
