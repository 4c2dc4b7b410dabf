"""A session: the engine as services and commands use it, with metadata in commits, maintenance and introspection."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from common.errors import InputError
from feeds.document import Document, Reject
from feeds.offsets import Offset
from join_stage.costs import Cost
from join_stage.store.following import Following
from join_stage.store.reading import UNBOUNDED, Bounds, Question
from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.answers.outputs import Outputs, OutputStream
from mmqjp.answers.patterns.results import Waiting
from mmqjp.documents.admission import EvaluatedBatch
from mmqjp.documents.evaluated import EvaluatedRows
from mmqjp.documents.records import Records
from mmqjp.documents.watermarks import EARLIEST, EVENT_TIME, by_stream, is_bounded, saved_watermarks
from mmqjp.engine import Counters, Engine
from mmqjp.garbage import gc_paused
from mmqjp.queries.changes import MetadataFor, SubscribeMode, no_metadata
from mmqjp.queries.compile import CompiledQuery
from mmqjp.queries.registry import Registry
from mmqjp.state.open_store import directory_bytes
from mmqjp.state.retention import ID_RETENTION
from mmqjp.tables.commit_metadata import NO_METADATA, CommitMetadata, MetadataOf
from mmqjp.tables.deliveries import Owed, committed_between, first_committed_from, first_seq, waiting_after
from mmqjp.tables.documents import documents_by_id
from templates.catalog import Catalog
from xpath_stage.spark import SparkStage
from xscl import Script

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class NotOnSpark(InputError, TypeError):
    """The operation needs an engine on Spark."""


class Session(Engine):
    """An engine that can commit metadata with changes and batches: offsets of sources, settings, answers to commands.
    It also advances time, drops old data, and reports on what it has registered and stored.

    Methods that access the store may raise StoreError, as in `Engine`, and nothing else unless they say so. `registry`,
    `catalog`, `records`, `take_paused`, `counters`, `lag` and `batch` raise nothing.
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
        if is_bounded(self._components.watermarks.timing.lateness):
            return self._components.watermarks.by_stream()
        return self._stored_watermarks

    @cached_property
    def _stored_watermarks(self) -> dict[str, int]:
        """The stored watermarks, which do not change while there is no lateness."""
        return by_stream(*saved_watermarks(self._components.ledger))

    def waiting_events(self) -> Waiting | None:
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
