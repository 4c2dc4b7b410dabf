"""A session: an engine as the service and the commands use it, with what is committed along and what is told of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from common.errors import InputError
from feeds.document import Document, Reject
from feeds.offsets import Offset
from join_stage.costs import Cost
from join_stage.store.reading import UNBOUNDED, Bounds, Question
from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.documents.admission import Found
from mmqjp.documents.evaluated import EvaluatedRows
from mmqjp.documents.records import Records
from mmqjp.documents.watermarks import EARLIEST, by_stream, is_bounded, noted_watermarks
from mmqjp.engine import Counters, Engine
from mmqjp.garbage import collector_paused
from mmqjp.queries.changes import How, Noting, nothing_noted
from mmqjp.queries.registry import Registry
from mmqjp.state.open_store import directory_bytes
from mmqjp.state.retention import ID_RETENTION
from mmqjp.tables.notes import NOTHING, Notes
from templates.catalog import Catalog
from xpath_stage.spark import SparkStage
from xscl import Script

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class NotOnSpark(InputError, TypeError):
    """Something was asked of an engine that only one on Spark can do."""


class Session(Engine):
    """An engine whose changes and batches can have notes committed along: offsets of sources, settings, answers to
    commands. It tells what it has registered and keeps, lets time pass, and drops what is kept no longer.

    Whatever goes to the store may raise StoreError, as for `Engine`: that is all where nothing else is said. What tells
    of the process alone (`registry`, `catalog`, `records`, `take_paused`, `counters`, `lag`, `batch`) raises nothing.
    """

    # ------------------------------------------------------------ queries

    def subscribe(
        self, text: str, *, add: bool = False, backfill: bool = False, noting: Noting = nothing_noted
    ) -> list[str]:
        """See `Engine.subscribe`; what `noting` gives for the names is committed along. It raises the same."""
        return self._subscribe(text, "add" if add else "replace", noting, backfill=backfill)

    def ensure(self, script: Script, how: How = "ensure") -> list[str]:
        """Registers the queries of a script that are not registered yet under the same name with the same text. With
        "renew" these take the place of others under the names that it PUBLISHes, with "exact" of all others.
        Raises PublishCycle, TooManyChains, StoreError."""
        return self._subscribe(script, how, nothing_noted)

    def unsubscribe(self, name: str, *, noting: Noting = nothing_noted) -> None:
        """See `Engine.unsubscribe`. Raises UnknownQuery, StoreError."""
        with self._batches.whole():
            self._parts.changes.unsubscribe(name, noting)

    def pause(self, name: str, reason: str = "asked to", *, noting: Noting = nothing_noted) -> None:
        """See `Engine.pause`. Raises UnknownQuery, StoreError."""
        with self._batches.whole():
            self._parts.changes.pause(name, reason, noting)

    def resume(self, name: str, *, noting: Noting = nothing_noted) -> None:
        """See `Engine.resume`. Raises UnknownQuery, StoreError."""
        with self._batches.whole():
            self._parts.changes.resume(name, noting)

    @property
    def registry(self) -> Registry:
        """The registered queries and what they share."""
        return self._parts.registry

    @property
    def catalog(self) -> Catalog:
        """The shared variables, templates and rows of R_T."""
        return self._parts.registry.catalog

    @property
    def records(self) -> Records:
        """The documents that are kept, by docid: to look at."""
        return self._parts.records

    def added_at(self, qid: int) -> int:
        """When a query was registered, microseconds. Raises StoreError."""
        return self._parts.saved.added_at(qid)

    def take_paused(self) -> dict[str, str]:
        """The names of the queries that passed a bound since this was last asked, with the reasons."""
        taken, self._paused = self._paused, {}
        return taken

    # ------------------------------------------------------------ documents

    def process(
        self, documents: Iterable[Document | Reject], notes: Notes = NOTHING, found: Found | None = None
    ) -> list[Output]:
        """See `Engine.process`; `notes` are committed along. `found` has what `evaluated` found in the documents, since
        when no query has come or gone. It raises the same."""
        return self._process(documents, notes, found)

    def evaluated(self, documents: DataFrame) -> EvaluatedRows:
        """What stage 1 finds in the documents of a data frame, on Spark's executors: rows of `stream` and `xml` (none
        is no document) and any other columns. Raises NotOnSpark if the engine is on DuckDB."""
        if not isinstance(self._parts.stage1, SparkStage):
            raise NotOnSpark("data frames are evaluated by an engine on Spark")
        return EvaluatedRows(self._parts.stage1, documents)

    def note(self, notes: Notes) -> None:
        """Commits notes in a batch of their own."""
        self._batches.note(notes)

    def pass_time(self) -> bool:
        """Lets silent streams go on with the clock although no document comes. What is decided by that is answered, and
        what nothing can meet any more leaves the join state, in a batch of its own; whether there was anything."""
        with collector_paused():
            batch = self._batches.pass_time()
        if batch is not None:
            self._take(batch)
        return batch is not None

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
        self._batches.prune(keep, keep_ids, sources, files)

    # ------------------------------------------------------------ what was done

    def counters(self) -> Counters:
        """Totals since the engine was opened."""
        return self._counters

    def stage1_counters(self) -> dict[str, int]:
        """Of stage 1: `states` of the automaton that are kept; `groups` of edges that bind together; `flushes` of
        states and of shapes; documents whose shape was met before, `shape_hits`, or was not, `shape_misses`. On Spark
        these are about this process, and with them come `spread_documents`, those that went to the executors, and
        `broadcasts`, how often the patterns did."""
        return self._parts.stage1.counters()

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
        return (self._plan, costs) if (costs := self._store.costs()) else self._parts.ledger.costs()

    def lines(self, after: int = -1) -> Iterator[Output]:
        """Like `outputs`, in the order of the output lines of a run: by t1, query, documents, nodes."""
        return self._parts.outbox.lines(after)

    def position(self, sink: str) -> Position:
        """How far a sink is, as noted last."""
        return self._parts.outbox.position(sink)

    def offsets(self) -> dict[tuple[str, str], Offset]:
        """How far each file of each source was read, as noted along with the batches: by source and file."""
        return self._parts.ledger.offsets()

    def setting(self, key: str) -> str | None:
        """What was noted last under a key."""
        return self._parts.ledger.setting(key)

    def settings(self, prefix: str) -> dict[str, str]:
        """What was noted last under each key that begins so, by the rest of the key."""
        return self._parts.ledger.settings(prefix)

    def answer_to(self, command: str) -> str | None:
        """What a command was answered that is done; None if it is not."""
        return self._parts.ledger.answer_to(command)

    def watermarks(self) -> dict[str, int]:
        """The watermark of each stream from outside that has one; of a store that is opened without lateness, as it
        was with it the last time."""
        if is_bounded(self._parts.watermarks.timing.lateness):
            return self._parts.watermarks.by_stream()
        return self._noted

    @cached_property
    def _noted(self) -> dict[str, int]:
        """The watermarks that the store has noted, which nothing changes where there is no lateness."""
        return by_stream(*noted_watermarks(self._parts.ledger))

    def horizon(self) -> tuple[int | None, int | None]:
        """The least watermark of the streams that queries read, and the time before which documents begin that nothing
        can meet any more; None where there is none."""
        known = self.watermarks()
        horizon = min((known.get(stream, EARLIEST) for stream in self._parts.registry.outside()), default=EARLIEST)
        evictable = self._parts.eviction.before(horizon)
        return None if horizon <= EARLIEST else horizon, None if evictable <= EARLIEST else evictable

    def lag(self) -> int | None:
        """By how many microseconds the newest document is older than the clock, of those since the engine was opened;
        None if there is none."""
        return None if self._parts.watermarks.newest is None else self._parts.now() - self._parts.watermarks.newest

    def state_bytes(self) -> int | None:
        """How large the files of the state are; None without a state directory. Raises OSError."""
        return None if self._directory is None else directory_bytes(self._directory)

    @property
    def batch(self) -> int:
        """The number of the next batch."""
        return self._parts.ledger.batch

    def question(self, query: str, bounds: Bounds = UNBOUNDED) -> Question:
        """A query like those of `sql` that is not `trusted`, to be answered in any thread while this one goes on: it
        sees the batches that are committed when it begins. `bounds` say how large the answer may be.
        Raises StoreError; what is wrong with the query its `answer` says."""
        return self._store.question(query, bounds)
