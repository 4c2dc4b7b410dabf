"""The engine: queries are subscribed, batches of documents processed, output documents come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from common.private import share
from feeds.document import Clock, Document, Reject, now_us
from join_stage.joiner import DEFAULT_PLAN, PLANS, JoinEngine, UnknownPlan
from join_stage.state_tables import groups
from join_stage.store.protocol import Outdated
from join_stage.views import CACHE_BYTES
from mmqjp.answers.allowance import MATCHES, OUTPUTS, WORK, Allowance
from mmqjp.answers.batch import Batches, Processed
from mmqjp.answers.operators import MakeOperators, make_operators
from mmqjp.answers.output import Output
from mmqjp.answers.parts import assemble
from mmqjp.documents.admission import Found, warn_of
from mmqjp.documents.watermarks import Lateness, Timing
from mmqjp.garbage import collector_passes_over, collector_paused
from mmqjp.queries.changes import How, Noting, nothing_noted
from mmqjp.state.open_store import open_session, open_store
from mmqjp.state.ownership import Looking, Ownership
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.notes import NOTHING, Notes
from xpath_stage.evaluator import XPathStage
from xpath_stage.limits import DEFAULT, Limits
from xpath_stage.spark import SparkStage, spread_past
from xscl import Script, parse_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Counters:
    """What an engine has seen since it was opened. Neither duplicates nor dead letters count as documents."""

    documents: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    outputs: int = 0

    def after(self, batch: Processed) -> Counters:
        """With what a batch brought."""
        return Counters(
            self.documents + batch.documents,
            self.duplicates + batch.duplicates,
            self.dead_letters + len(batch.dead_letters),
            self.outputs + len(batch.outputs),
        )


class Engine:
    """Standing XSCL queries over streams of documents.

    `engine` is "duckdb", "spark", or a SparkSession. With `state`, a directory, everything is kept there and found
    again; without, it is gone at `close`. `lateness`, `idle_after` and `max_ahead`, in microseconds, say what is too
    late, when a silent stream goes on, and what is from the future (see `mmqjp.documents.watermarks.Timing`);
    `lateness` may be a mapping of streams to their own, in which "*" is for all others. A document of more than
    `max_document` bytes, or `max_nodes` elements and attributes, is a dead letter. A query is paused that would have
    more than `max_matches` outputs for a document that arrives, or `max_outputs` for 10,000 of them, or would take more
    than `max_work` steps for one (see `mmqjp.answers.allowance`; None: no limit). `plan` is how the joins are done, one
    of `join_stage.joiner.PLANS`; a state may be opened with any. `cache_bytes` bounds the slices that the plan "views"
    keeps. `master` is a Spark master URL. `limits` bound what stage 1 keeps. With `quiet` the log hears nothing of dead
    letters. `now` is the clock, in microseconds. With `read_only` the state, which must be there, is only looked at,
    also by who may not write it, and nothing can be processed or changed. What is made in a state directory is its
    owner's alone, unless it was opened as `shared` once: then the umask tells.

    Raises UnknownPlan; InvalidValue for what is no engine, and if there is no `state` that could be only read;
    StoreError if the state cannot be opened (InUse if another process holds it, Outdated if one that is only read is of
    an older format); OSError if it cannot be made `shared`; JavaNotFound if Spark cannot start; OtherSession if a Spark
    session of another master runs. On Spark, methods that raise StoreError may raise Spark's own errors, too.
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
            raise UnknownPlan(plan)
        self._plan, self._quiet = plan, quiet
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
            self._store = self._open_store(session, directory, plan, cache_bytes, read_only)
        except BaseException:
            self._disown()
            raise
        try:
            ledger = Ledger(self._store, now)
            if read_only and not ledger.is_current:
                raise Outdated(f"the store in {directory} is of an older format: open it once with write access")
            stage1 = _stage1(session, self._store, limits, max_nodes)
            timing = Timing(lateness, idle_after, max_ahead)
            allowance = Allowance(max_matches, max_outputs, max_work)
            self._parts = assemble(
                self._store, ledger, stage1, timing, allowance, max_document, max_nodes, self._make_operators, now
            )
        except BaseException:
            self._store.close()
            self._disown()
            raise
        self._batches = Batches(self._parts)
        self._counters = Counters()
        self._paused: dict[str, str] = {}
        self._last_dead_letters: list[dict[str, Any]] = []

    _make_operators: MakeOperators = staticmethod(make_operators)
    """What the nodes of the plan do; tests have operators of their own."""

    def _open_store(
        self, session: SparkSession | None, directory: Path | None, plan: str, cache_bytes: int, read_only: bool
    ) -> JoinEngine:
        """What batches are written to. Tests put one in its place that fails where they tell it to."""
        return open_store(session, directory, plan, cache_bytes, read_only=read_only)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._close()  # in trouble nothing more is written

    def close(self) -> None:
        """Closes the store. What was processed is kept if there is a state directory. Raises StoreError."""
        try:
            if self._directory is not None and self._counters.documents and (costs := self._store.costs()):
                self._parts.ledger.save_costs(costs, self._plan)
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self._parts.stage1.close()
        finally:
            self._store.close()
            self._disown()

    def _disown(self) -> None:
        if self._ownership is not None:
            self._ownership.release()
            self._ownership = None

    # ------------------------------------------------------------ queries

    def subscribe(self, text: str, *, add: bool = False, backfill: bool = False) -> list[str]:
        """Registers the queries of a script and returns their names. They see documents that arrive from now on; with
        `backfill` all that are kept too, and what these give is among `outputs` at once.

        They take the place of the queries that are registered under the names they PUBLISH, of which those with the
        same text stay as they are; with `add` all of these stay.
        Raises XsclErrors with every mistake in the text, PublishCycle if a stream would be made of itself through
        queries registered earlier, TooManyChains if the store has no number left for a chain of functions, and
        StoreError. Then nothing is registered.
        """
        return self._subscribe(text, "add" if add else "replace", nothing_noted, backfill=backfill)

    def _subscribe(self, script: str | Script, how: How, noting: Noting, *, backfill: bool = False) -> list[str]:
        with collector_paused():
            parsed = parse_script(script) if isinstance(script, str) else script
            names, outputs, paused = self._batches.subscribe(parsed, how, noting, backfill=backfill)
        self._paused |= paused
        self._counters = replace(self._counters, outputs=self._counters.outputs + outputs)
        return names

    def unsubscribe(self, name: str) -> None:
        """Removes all queries of a name. Raises UnknownQuery if there is none, and StoreError."""
        with self._batches.whole():
            self._parts.changes.unsubscribe(name)

    def pause(self, name: str, reason: str = "asked to") -> None:
        """Lets all queries of a name rest: they give nothing, and will never see documents that arrive meanwhile.

        Raises UnknownQuery if there is none, and StoreError."""
        with self._batches.whole():
            self._parts.changes.pause(name, reason)

    def resume(self, name: str) -> None:
        """Lets all queries of a name go on, also with the documents from before they were paused that are still kept.

        Raises UnknownQuery if there is none, and StoreError."""
        with self._batches.whole():
            self._parts.changes.resume(name)

    def queries(self) -> dict[str, list[str]]:
        """The texts of the registered queries by name. Raises nothing."""
        found: dict[str, list[str]] = {}
        for subscription in self._parts.registry.subscriptions.values():
            found.setdefault(subscription.name, []).append(subscription.text)
        return found

    # ------------------------------------------------------------ documents

    def process(self, documents: Iterable[Document | Reject]) -> list[Output]:
        """Processes a batch of documents and returns the outputs that it completes, in the order of output lines.

        A document that cannot be taken in becomes a dead letter: `last_dead_letters` has those of the batch, and the
        logger "mmqjp" is warned of them. The batch is committed whole or not at all.
        Raises StoreError, OutOfMemory if the batch is too large, and what `documents` raises as it is gone through.
        """
        return self._process(documents)

    def _process(
        self, documents: Iterable[Document | Reject], notes: Notes = NOTHING, found: Found | None = None
    ) -> list[Output]:
        with collector_paused():
            batch = self._batches.process(documents, notes, found)
        self._take(batch)
        return batch.outputs

    def _take(self, batch: Processed) -> None:
        """Takes note of what a batch brought, and warns of its dead letters."""
        self._paused |= batch.paused
        self._last_dead_letters = batch.dead_letters
        if not self._quiet:
            warn_of(self._last_dead_letters)
        self._counters = self._counters.after(batch)

    # ------------------------------------------------------------ what was done

    def outputs(self, after: int = -1) -> Iterator[Output]:
        """The outputs that are kept whose `seq` is greater than `after`, in the order of `seq`. Who notes the last one
        that it has got goes on from there, also after a restart. Raises StoreError."""
        return self._parts.outbox.outputs(after)

    @property
    def last_seq(self) -> int:
        """The `seq` of the last output that is committed; -1 if there is none."""
        return self._parts.ledger.next_seq - 1

    def dead_letters(self) -> Iterator[dict[str, Any]]:
        """All dead letters of the store, in no particular order. Raises StoreError."""
        return self._parts.ledger.dead_letters()

    def last_dead_letters(self) -> list[dict[str, Any]]:
        """The dead letters of the last batch that was processed. Raises nothing."""
        return self._last_dead_letters

    def sql(self, query: str, *, trusted: bool = False) -> pa.Table:
        """Answers an SQL query over the engine's tables, in the words of its engine.

        It only reads them: what would write, read files, or tell of the process is refused, by DuckDB and by the plan
        that Spark makes of it. With `trusted` the query may do whatever the engine can.
        Raises QuestionRefused, also for bad SQL; with `trusted` what the engine raises; and StoreError.
        """
        return self._store.select(query) if trusted else self._store.question(query).answer()


def _stage1(
    session: SparkSession | None, store: JoinEngine, limits: Limits, max_nodes: int | None
) -> XPathStage | SparkStage:
    """Stage 1 with the groups of edges that the store knows."""
    with collector_passes_over():
        known = groups(store)
        if session is None:
            return XPathStage(known, limits=limits)
        return SparkStage(session, known, spread=spread_past(session), limits=limits, max_nodes=max_nodes)
