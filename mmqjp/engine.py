"""The engine: subscribes queries, processes batches of documents, returns output documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from common.private import share
from feeds.document import Document, Reject
from feeds.times import Now, now_us
from join_stage.joiner import DEFAULT_PLAN, PLANS, JoinEngine, UnknownPlan
from join_stage.state_tables import groups
from join_stage.store.protocol import Outdated
from join_stage.views import CACHE_BYTES
from mmqjp.answers.batch import Batches, BatchResult
from mmqjp.answers.components import assemble, make_operators
from mmqjp.answers.operators import MakeOperators
from mmqjp.answers.outputs import Outputs, OutputStream
from mmqjp.answers.patterns.places import DRIVER, EXECUTORS, check_backfill, check_place, kernels
from mmqjp.answers.quota import MAX_MATCHES, MAX_OUTPUTS, MAX_PARTIAL, MAX_WORK, Quota
from mmqjp.documents.admission import EvaluatedBatch, warn_of
from mmqjp.documents.watermarks import SETTLE, Lateness, Timing
from mmqjp.garbage import gc_paused
from mmqjp.queries.changes import MetadataFor, SubscribeMode, no_metadata
from mmqjp.state.choice import AUTO, DUCKDB, choose, stored_engine
from mmqjp.state.open_store import open_session, open_store
from mmqjp.state.ownership import Ownership, ReadLock
from mmqjp.tables.commit_metadata import NO_METADATA, CommitMetadata, MetadataOf
from mmqjp.tables.ledger import Ledger
from xpath_stage.evaluator import XPathStage
from xpath_stage.limits import DEFAULT, Limits
from xpath_stage.spark import SparkStage, spread_past
from xscl import Script, parse_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


class Engine:
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
    `plan` is the join plan, one of `join_stage.joiner.PLANS`; a state may be opened with any of them. `cache_bytes`
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
            engine = DUCKDB if read_only else choose(AUTO, directory, asked_by).engine
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
            self._components = assemble(
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
