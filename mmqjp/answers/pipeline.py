"""From new documents to outputs: stage 1, stage 2 and expansion, repeated for the documents they publish. A step is a
batch or a backfill. If a query exceeds its quota, the step is rolled back and rerun with a cutoff for that query, so
nothing past it remains. Each batch commits atomically; on failure the engine returns to its previous state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from common.bounds import BEGINNING, DocId, Micros
from common.limits import Quota
from common.tools import defer_interrupts, gc_paused, interrupts_deferred
from feeds.documents import VISITS_STREAM, Now, SourceItem
from join_stage.plans import JoinEngine
from join_stage.store.protocol import StoreError, whole_batch
from mmqjp.answers.absence import AbsenceOperator
from mmqjp.answers.accounts import Accounts, Cutoff, Cutoffs, EarlierUsage, StoredUsage
from mmqjp.answers.events import EventOutput, Patterns
from mmqjp.answers.events_run import MakeKernel
from mmqjp.answers.fan_out import Outbox, Outputs, number_outputs
from mmqjp.answers.isolation import MOST_FAILING, FailedPatterns, failing_queries, failure_reason, may_be_of_query
from mmqjp.answers.operators import (
    Components,
    Expansion,
    InnerJoinOperator,
    MatchReader,
    OfRow,
    QueryOperator,
    QuotaExceeded,
    StepContext,
    StepResult,
    StoredTies,
    Telling,
    backfilled_matches,
    known_tuples,
)
from mmqjp.answers.output import AnswerColumns
from mmqjp.answers.quota import Arrivals
from mmqjp.documents.admission import Admission, EvaluatedDocuments
from mmqjp.documents.record import Record, Records
from mmqjp.documents.watermarks import Progress, StreamTimes, Timing, Watermarks, latest_ends
from mmqjp.queries.changes import QueryChanges, SubscribeMode, no_action
from mmqjp.queries.model import (
    EventSubscription,
    JoinSubscription,
    Members,
    Owner,
    Pause,
    Registered,
    Subscription,
    UnreadableQuery,
)
from mmqjp.queries.registry import Registry, forms_to_backfill
from mmqjp.queries.stored import Compiler, StoredQueries
from mmqjp.state.engine_choice import migrate
from mmqjp.state.eviction import JoinState, arriving
from mmqjp.tables.schema import (
    DEAD_LETTERS,
    NO_METADATA,
    CommitMetadata,
    Ledger,
    MetadataOf,
    NextIds,
    rows_table,
    save_belated,
)
from templates.witness import NO_WITNESSES, R_DOCTS, Witnesses
from xpath_stage.evaluator import XPathStage
from xpath_stage.spark import SparkStage
from xscl.algebra.joins import NEGATED
from xscl.syntax import Script

if TYPE_CHECKING:
    from mmqjp.answers.spread import SpreadAnswers

logger = logging.getLogger("mmqjp")

WitnessSource = Callable[[int], Witnesses | None]
"""Returns the witnesses of documents with consecutive docids, given the first; None if a pattern failed."""


class Pipeline:
    """Answers documents within a batch of the store and writes their matches; returns the outputs."""

    def __init__(self, shared: Components, state: JoinState, patterns: Patterns, spread: SpreadAnswers | None) -> None:
        store, ledger, registry, records, _, quota = shared
        self._stage1, self._store, self._ledger, self._state = registry.stage1, store, ledger, state
        self._registry, self._records, self.outbox = registry, records, Outbox(store, ledger, spread)
        self._quota, self._telling, self._spread = quota, Telling(registry, store), spread
        self.patterns, self._event_output = patterns, EventOutput(registry, records, ledger)
        self._queries, self._inner = QueryOperator(registry, records, quota), InnerJoinOperator(records, quota)
        self.absences = AbsenceOperator(shared, self._queries, self._inner)
        self._usage = StoredUsage(store, ledger)
        self.ties = StoredTies(ledger)
        self._arrivals = Arrivals()
        self._failed_patterns = FailedPatterns(registry)
        self.blamed: Mapping[Subscription, Exception] = {}
        """The queries whose patterns failed in the last batch."""

    # ------------------------------------------------------------ batches

    def answer(
        self,
        records: list[Record],
        found: WitnessSource | None,
        progress: Progress,
        begin_again: Callable[[], None],
        clock: int | None = None,
        *,
        lasts: bool | None = None,
    ) -> StepResult:
        """Returns the answers that new documents complete, and the queries to pause.

        Includes outputs over documents published on the way, and decisions that `progress` allows. `found`
        returns witnesses evaluated elsewhere. `begin_again` rolls the batch back and begins a new one. `clock` is that
        of live streams. `lasts` says, at the end of a finite run, whether its state persists: if so, buffered events
        are released; if not, all absences are decided.
        """
        first, horizon = self._ledger.next_docid, self.patterns.horizon
        self.blamed = {}
        greatest = progress.greatest
        witnesses: Witnesses | None = None
        cutoffs: dict[int, Cutoff] = {}
        while True:
            accounts = Accounts(
                self._registry, self._quota, cutoffs, self._usage.before(), self._usage.block, looked=self.ties.looked()
            )
            self._arrivals = Arrivals()
            self._state.recall(records)
            self.patterns.begin(progress, clock)
            self._enter(records)
            if witnesses is None:
                witnesses = self._witnesses(records, found)
            elif records:  # the rollback has made groups new again, and they belong to the batch
                witnesses = replace(witnesses, r_group=self._stage1.new_groups())
            context = StepContext(accounts, progress=progress)
            reader = self._reader(context)
            joins = self.patterns.step(witnesses)
            answers = context.answers
            forms: Iterable[str] = ()
            if self._spread is None or not records:
                self._rounds(reader, records, joins)
            else:
                matches = self._store.join(joins, records[0].docid, self._registry.scope)
                rest, forms = self._spread.answer(matches, records, accounts, self._usage.block, cutoffs)
                self._rounds(reader, reader.read(rest))
            until = None if lasts is False else greatest
            self._settle(context, reader, until)
            for results in self.patterns.release(lasts=lasts):
                passed_by = self.patterns.passed_by
                if documents := self._event_output.add(results, self.patterns.running, answers, passed_by=passed_by):
                    self._rounds(reader, documents)
                    self._settle(context, reader, until)
            if self.patterns.horizon > horizon:  # which decides absences of what event statements publish
                self._settle(context, reader, until)
            if not (over := accounts.cutoffs()):
                break
            cutoffs |= {query.qid: cutoff for query, cutoff in over.items()}
            begin_again()
        arrived = {record.arrival: record.docid for record in records if record.kind == "external"} if cutoffs else {}
        # What the clock decides belongs to an earlier batch. Then no document of this one is answered.
        pauses = self._pauses(cutoffs, arrived, lambda qid, docid: max(docid or 0, first) - 1)
        pauses += self._event_output.pauses(self.patterns.exceeded(), self._quota, horizon)
        assert not records or records[0].docid == first, "documents that are admitted again get the same ids"
        accounts.belated.update((r.stream, None, 0, None) for r in records if r.watermark is not None)
        for queries, missed in self._event_output.missed(self.patterns.missed):
            accounts.note_missed(queries, missed)
        self._save(accounts, stops=self._registry.events.stops(pause.query for pause in pauses))
        return StepResult(answers, self._members(accounts, answers, forms), pauses)

    def _members(self, accounts: Accounts, answers: AnswerColumns, others: Iterable[str] = ()) -> dict[str, Members]:
        return accounts.members(answers.forms().union(others), self._ledger.batch)

    def _save(self, accounts: Accounts, *, stops: bool = False) -> None:
        """Writes operator state and quota usage up to the last arrival. `stops`: a publisher of events does."""
        self.absences.save()
        self.patterns.save(snapshot=stops)
        if self._ledger.next_arrival:
            self._usage.save(accounts, self._ledger.next_arrival - 1, self._ledger.batch)
            save_belated(self._store, accounts.belated, self._ledger.batch)
            self.ties.save(accounts.ties(), lambda id: tuple(self._registry.form(id) or ()))

    def finish_batch(self, *, committed: bool) -> None:
        for operator in (self.absences, self.patterns, self._usage, self.ties):
            operator.finish_batch(committed=committed)
        if self._spread is not None:
            self._spread.discard()

    # ------------------------------------------------------------ backfills

    def backfill(
        self,
        subscriptions: list[Subscription],
        fresh: Callable[[list[Record]], list[Record]],
        cutoffs: Cutoffs,
        greatest: Callable[[], Mapping[str, int]],
        until: Mapping[str, int],
    ) -> StepResult:
        """Returns the new queries' answers over stored documents, and the queries to pause: those with `cutoffs`.
        Absences are decided up to the times in `until`.

        `fresh` drops published documents that the store has; `greatest` returns external streams' greatest times.
        Raises QuotaExceeded if other queries exceed their quotas.
        """
        first_new = min(query.qid for query in subscriptions)
        if events := [query for query in subscriptions if isinstance(query, EventSubscription)]:
            self.patterns.begin_backfill(*forms_to_backfill(events, self._registry), first_new, greatest())
        hidden = {stream for s in subscriptions for stream in self._registry.inner_joins(s)}
        owners: set[Owner] = {*subscriptions, *hidden}
        known = set(known_tuples(self._store, {stream.stream for stream in hidden}))
        # Stored documents are counted apart. Only new queries start from that count.
        accounts = Accounts(self._registry, self._quota, cutoffs, EarlierUsage(), self._usage.block, first_new)
        last = self._ledger.next_docid - 1
        self._arrivals = Arrivals(self._ledger.arrivals)
        context = StepContext(accounts, owners, known, owners)
        reader = self._reader(context)
        answers = context.answers
        records: list[Record] = []
        for matches in backfilled_matches(self._store, self._registry, self._records, self._state, owners):
            records += reader.read(matches)
        accounts.serves_all = True
        shared = {name: getattr(context, name) for name in ("answers", "put_off", "deferred")}
        later = StepContext(accounts, None, known, owners, **shared)
        reader = self._reader(later)
        self._rounds(reader, fresh(records))
        self._settle(later, reader, until, fresh)
        for results, running in self.patterns.backfill() if events else ():
            if documents := fresh(self._event_output.add(results, running, answers, first_new)):
                self._rounds(reader, documents)
                self._settle(later, reader, until, fresh)
        if over := accounts.cutoffs():
            raise QuotaExceeded({query.qid: cutoff for query, cutoff in over.items()})
        new = {s.qid for s in subscriptions}
        pauses = self._pauses(cutoffs, {}, lambda qid, docid: last if docid is None or qid not in new else docid - 1)
        if events:
            pauses += self._event_output.pauses(self.patterns.exceeded_before, self._quota, BEGINNING, first_new)
        self._save(accounts)
        members = self._members(accounts, answers)
        self.outbox.withhold_told(answers, members, first_new)
        return StepResult(answers, members, pauses)

    def _pauses(
        self, cutoffs: Cutoffs, arrived: Mapping[int, DocId], last_seen: Callable[[int, DocId | None], int]
    ) -> list[Pause]:
        """Returns the pauses from cutoffs on. `arrived` has the docids of arrivals that are not stored yet; `last_seen`
        returns the last document that a query sees, given the one that arrived, None if that is gone."""
        pauses: list[Pause] = []
        for qid, cutoff in cutoffs.items():
            if (docid := arrived.get(cutoff.at)) is None:
                docid = self._ledger.docid_of_arrival(cutoff.at)
            reason = cutoff.reason(self._quota, "that is gone" if docid is None else self._records[docid].id)
            query = self._registry.subscriptions[qid]
            assert isinstance(query, JoinSubscription), "arrivals are of documents"
            pauses.append(Pause(query, DocId(last_seen(qid, docid)), cutoff.at, reason))
        return pauses

    # ------------------------------------------------------------ rounds

    def _enter(self, records: list[Record]) -> None:
        ledger, first = self._ledger, self._ledger.next_docid
        ledger.next_docid += len(records)
        docids: Sequence[Any] = range(first, ledger.next_docid)
        for record, docid in zip(records, docids, strict=True):
            record.number(docid, ledger.next_arrival)
            ledger.next_arrival += record.kind == "external"
        self._records.add(records)
        self._arrivals.extend(docids, [record.arrival for record in records])

    def _witnesses(self, records: list[Record], found: WitnessSource | None) -> Witnesses:
        """Raises what raised in stage 1, unless it was for paused queries only."""
        if not records:  # new groups, as after a rollback, wait for a batch that stores them
            return NO_WITNESSES
        witnesses = None if found is None else found(records[0].docid)
        if witnesses is None:
            witnesses = self._stage1.evaluate(map(arriving, records))
            if failures := self._stage1.failures:
                failed = dict(failures)
                failures.clear()
                self.blamed = self._failed_patterns.blamed(frozenset(failed), records)
                for error in self.blamed.values():
                    raise error
                if self._failed_patterns.of_events:
                    raise next(iter(failed.values()))
            return witnesses
        # The time of a feed's entry is final only now.
        times = {name: [getattr(record, name) for record in records] for name in R_DOCTS.names}
        return replace(witnesses, r_docts=pa.table(times, R_DOCTS))

    def _reader(self, context: StepContext) -> MatchReader:
        return MatchReader(self._registry, self._records, self._on_matches, context, self._arrivals, self.outbox)

    def _on_matches(self, parts: Sequence[OfRow], of: Expansion) -> None:
        absent: list[OfRow] = []
        of_queries: list[OfRow] = []
        inner: list[OfRow] = []
        for one in parts:
            if one[0].op in NEGATED:
                absent.append(one)
            else:
                (of_queries if isinstance(one[0].first.owner, Registered) else inner).append(one)
        for operator, some in ((self.absences, absent), (self._queries, of_queries), (self._inner, inner)):
            if some:
                operator.on_matches(some, of)

    def _settle(
        self,
        context: StepContext,
        reader: MatchReader,
        greatest: Mapping[str, int] | None,
        fresh: Callable[[list[Record]], list[Record]] = list,
    ) -> None:
        """Adds the operators' decisions at these greatest times, deferred answers once all else is found, and whatever
        follows from the documents both publish, except those that `fresh` drops. Nothing is decided before its
        inputs."""
        while True:
            if decided := self.absences.on_watermark(context, greatest):
                for one in decided:
                    reader.log(one)
                documents = [document for one in decided for document in one.documents]
            elif context.put_off:
                undecided = self.absences.undecided(greatest)
                documents = self._telling.decide(context.put_off, self._ledger.batch, undecided, context.answers)
            else:
                return
            self._rounds(reader, fresh(documents))

    def _rounds(self, reader: MatchReader, records: list[Record], witnesses: Witnesses | None = None) -> None:
        """Answers records, which have entered if `witnesses` are given, and what these publish."""
        while records:
            if witnesses is None:
                if (progress := reader.progress) is not None:
                    for record in records:
                        record.watermark = progress.belated_at(record.stream, record.t1, record.arrival)
                self._state.recall(records)
                self._enter(records)
                witnesses = self.patterns.step(self._witnesses(records, None))
            records = reader.read(self._store.join(witnesses, records[0].docid, self._registry.scope))
            witnesses = None


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Result of one batch: `outputs` in line order, rows of the table `dead_letters`, the number of admitted
    `documents` and of known `duplicates`, and the reason for each `paused` query by name."""

    outputs: Outputs
    dead_letters: list[dict[str, Any]]
    documents: int
    duplicates: int
    paused: dict[str, str]


class _Tried(Exception):
    """A trial of a batch succeeded, and is rolled back."""


def _end_trial(refused: object) -> CommitMetadata:
    """In place of a batch's metadata, which is asked for last."""
    raise _Tried


class Batches:
    """The components over a store, and batches over them. Each is committed when the call returns."""

    def __init__(
        self,
        store: JoinEngine,
        ledger: Ledger,
        stage1: XPathStage | SparkStage,
        timing: Timing,
        quota: Quota,
        max_document: int | None,
        max_nodes: int | None,
        now: Now,
        make_kernel: MakeKernel,
        *,
        spread: bool,
    ) -> None:
        """Registers the store's queries; migrates older formats.

        A document may have at most `max_document` bytes and `max_nodes` elements and attributes; None is unlimited.
        `make_kernel` creates the kernel of event queries. `spread`: executors answer large batches, since the store is
        on Spark. Raises StoreError if the store cannot be read.
        """
        self.store, self.ledger, self.stage1, self.now = store, ledger, stage1, now
        with gc_paused(lasting=True):
            self.stored_queries, compiler = StoredQueries(store), Compiler()
            self.registry = registry = Registry(self.stored_queries.catalog(), stage1, store)
            number = partial(number_outputs, store, ledger)
            if not migrate(store, ledger, self.stored_queries, registry, compiler, number):
                self.stored_queries.restore(registry, compiler)
        times = StreamTimes.stored(store, ledger, timing)
        self.watermarks, self.records = Watermarks(timing, times, registry.sources, now()), Records(store)
        patterns = Patterns(store, ledger, registry, self.records, make_kernel, self._made_of, timing, quota)
        self.watermarks.released, self.watermarks.released_by = patterns.horizon_at, patterns.passed_by
        self.watermarks.reads_visits = lambda: VISITS_STREAM in registry.outside()
        self.changes = QueryChanges(
            store, ledger, self.stored_queries, registry, compiler, now, self._event_time, self._keep_waiting
        )
        state = self.state = JoinState(store, ledger, registry, self.records, self.watermarks, now)
        self.admission = Admission(self.records.ids, stage1.outlines, timing, now, max_document, max_nodes)
        answers = None
        if spread:
            from join_stage.spark.engine import SparkEngine
            from mmqjp.answers.spread import SpreadAnswers

            answers = SpreadAnswers(cast(SparkEngine, store), ledger, registry, self.records, quota)
        shared = Components(store, ledger, registry, self.records, self.watermarks, quota)
        self.pipeline = Pipeline(shared, state, patterns, answers)
        self.outbox = self.pipeline.outbox

    def _made_of(self, stream: str) -> Collection[str] | None:
        joined = self.registry.joined_of(stream)
        return joined or (() if any(one.publishes for one in self.registry.named(stream)) else None)

    def _event_time(self, streams: Collection[str]) -> Micros:
        self.registry.events.settle()
        patterns = self.pipeline.patterns
        return patterns.first_since({} if patterns.moves else self._latest_times(), streams)

    def _latest_times(self) -> dict[str, int]:
        """Returns how far each stream has come; those that feeds have not brought anywhere, with their documents."""
        known = self.watermarks
        ends = {stream: t1 for stream, t1 in latest_ends(self.store).items() if not known.feeds_of(stream)}
        return ends | {stream: max(time, ends.get(stream, time)) for stream, time in known.greatest.items()}

    @interrupts_deferred()
    def _keep_waiting(self) -> None:
        patterns = self.pipeline.patterns
        try:
            with whole_batch(self.store):
                patterns.keep()
        except BaseException:
            patterns.finish_batch(committed=False)  # what waits may be restored in part
            raise

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Wraps a store's batch, committed inside. If the block raises, restores every component."""
        before = self.ledger.next_ids()
        with interrupts_deferred():
            try:
                yield
            except BaseException:
                defer_interrupts()
                self._roll_back(before)
                self.watermarks.undo()
                raise
            self._finish_batch(committed=True)
            self.ledger.batch += 1

    def _finish_batch(self, *, committed: bool) -> None:
        for component in (self.stage1, self.state, self.pipeline):
            component.finish_batch(committed=committed)

    def _roll_back(self, before: NextIds) -> None:
        self._finish_batch(committed=False)
        self.ledger.restore_next_ids(before)
        self.records.forget(self.ledger.next_docid)

    # ------------------------------------------------------------ documents

    def process(
        self,
        documents: Iterable[SourceItem],
        metadata: CommitMetadata | MetadataOf,
        evaluated: EvaluatedDocuments | None,
        *,
        lasts: bool | None = None,
    ) -> BatchResult:
        """Processes documents and commits `metadata` with them. `evaluated` has stage 1 results computed elsewhere.
        `lasts` says, at the end of a finite run, whether its state persists. Pauses queries whose own work fails, and
        tries again once the store has mended itself."""
        documents, paused, is_mended = list(documents), dict[str, str](), False
        for failures in range(MOST_FAILING + 1):
            try:
                done = self._process(documents, metadata, evaluated, lasts)
                return replace(done, paused=paused | done.paused)
            except Exception as error:
                if failures == MOST_FAILING:
                    raise
                if not is_mended and self.store.mends(error):
                    is_mended = True
                    continue
                failure = partial(self._failure, documents, evaluated, lasts)
                if not may_be_of_query(error) or not (blamed := self._to_blame(error, failure)):
                    raise
                logger.debug("a query failed", exc_info=error)
                paused |= self._set_aside(blamed)
        raise AssertionError("it counts without end")

    def _to_blame(self, error: Exception, failure: Callable[[], Exception | None]) -> dict[Subscription, str]:
        """Returns the queries whose own work made a batch fail, with the reason; none if it was something else."""
        registry = self.registry
        if isinstance(error, UnreadableQuery):
            return {query: why for query, why in registry.unreadable().items() if query.active or query.targets}
        if blamed := self.pipeline.blamed:
            return {query: failure_reason(error) for query, error in blamed.items()}
        failing = failing_queries(registry, error, self.changes.without, failure)
        return dict.fromkeys(failing, failure_reason(error))

    def _set_aside(self, blamed: Mapping[Subscription, str]) -> dict[str, str]:
        """Pauses queries, and takes the work from unreadable ones. Returns the reasons by name."""
        changes, registry = self.changes, self.registry
        if not any(query.active for query in blamed):
            return {}
        # Operators follow the change after its commit, where a text that cannot be read would leave the batch halfway.
        for target in (target for row in registry.absent for target in registry.rows[row]):
            with suppress(StoreError):
                _ = target.owner.conjuncts
        active = {query: reason for query, reason in {**registry.unreadable(), **blamed}.items() if query.active}
        with self.whole():
            changes.pause_queries(active)
            registry.set_aside()
        return {query.name: reason for query, reason in active.items()}

    def _failure(
        self, documents: list[SourceItem], evaluated: EvaluatedDocuments | None, lasts: bool | None
    ) -> Exception | None:
        """Returns the error of a batch that is rolled back in any case."""
        try:
            self._process(documents, _end_trial, evaluated, lasts)
        except Exception as error:
            return None if isinstance(error, _Tried) else error
        return None

    @interrupts_deferred()
    def _process(
        self,
        documents: list[SourceItem],
        metadata: CommitMetadata | MetadataOf,
        evaluated: EvaluatedDocuments | None,
        lasts: bool | None,
    ) -> BatchResult:
        self.registry.flush()
        taken_at = self.now()
        before = self.ledger.next_ids()

        def begin_again() -> None:
            self.store.rollback()
            self._roll_back(before)
            self.store.begin()

        with self.whole(), whole_batch(self.store):
            progress = self.watermarks.begin(self.ledger.next_arrival)
            admitted = self.admission.admit(documents, progress, evaluated)
            witnesses = None if evaluated is None else partial(evaluated.witnesses, admitted.indexes)
            progress.pass_clock(self.registry.outside(), taken_at)
            if lasts is not None:
                progress.finish()
            clock = None if self.watermarks.timing.max_ahead is None else taken_at
            answered = self.pipeline.answer(admitted.records, witnesses, progress, begin_again, clock, lasts=lasts)
            refused = ((self.records[docid], reason) for docid, reason in self.pipeline.patterns.refused.items())
            letters = [(r.id, r.stream, r.t0, why, r.xml.encode(), taken_at) for r, why in refused]
            self.records.flush()
            if answered.pauses:
                self.changes.save_pauses(answered.pauses)
            dead = pa.concat_tables([admitted.dead_letters, rows_table(letters, DEAD_LETTERS)])
            self.store.append("dead_letters", dead)
            outputs = self.outbox.save_answers(answered.answers, answered.members)
            answered.answers.clear()  # rows by now: a commit needs memory of its own
            self.ledger.save_metadata(metadata(admitted.fates) if callable(metadata) else metadata)
            self.state.evict_obsolete(progress)
            if self.stage1.groups.crowded:
                self.drop_groups()
            self.state.save_reach()
            counts = len(admitted.records), len(dead), len(outputs)
            moved = self.watermarks.save(self.store, self.ledger, progress, has_row=any(counts))
            self.ledger.save_batch(taken_at, *counts, moved)
        self.watermarks.advance(progress, self.now())
        paused = self.changes.apply(answered.pauses) if answered.pauses else {}
        return BatchResult(
            outputs, dead.to_pylist() if len(dead) else [], len(admitted.records), admitted.duplicates, paused
        )

    def load(self) -> None:
        """Loads what the first documents would load, in a batch of its own. What fails does so again for these."""
        self.registry.flush()
        with suppress(StoreError), self.whole(), whole_batch(self.store):
            self.store.plan.load(self.ledger.next_docid)
        for query in islice(self.registry.subscriptions.values(), 1):
            with suppress(StoreError):
                _ = query.normal  # the parser of queries takes long to make, and this query needs it if it is stored

    def pass_time(self) -> BatchResult | None:
        """Advances idle streams to the clock. Runs and returns an empty batch if that decides a query or lets join
        state be evicted; None otherwise."""
        known, now = self.watermarks, self.now()
        if known.timing.idle_after is None or not known.is_bounded:
            return None
        progress = known.begin(self.ledger.next_arrival)
        progress.pass_clock(self.registry.outside(), now)
        if self._is_due(progress.greatest, now) or self.state.is_due(progress.greatest):
            return self.process((), NO_METADATA, None)
        known.advance(progress, now)
        return None

    def _is_due(self, greatest: Mapping[str, int], now: int) -> bool:
        pipeline = self.pipeline
        try:
            return pipeline.absences.is_due(greatest) or pipeline.patterns.is_due(greatest, now)
        except Exception as error:
            if may_be_of_query(error):
                return True  # a batch finds the query
            raise

    # ------------------------------------------------------------ queries

    def set_aside(self, *, read_only: bool) -> dict[str, str]:
        """Pauses the queries that this version cannot read, and returns the reasons by name."""
        self.registry.set_aside()
        unreadable = self.registry.unreadable()
        if not read_only:
            return self._set_aside(unreadable)
        for query, reason in unreadable.items():
            if query.paused is None:
                query.paused = reason
        return {}

    def subscribe(
        self, script: Script, mode: SubscribeMode, *, backfill: bool
    ) -> tuple[list[str], int, dict[str, str]]:
        """Registers a script's queries. Returns their names, the backfill's number of outputs, and the paused queries'
        reasons by name. `backfill` first answers the new queries over stored documents. In live use, logs queries that
        wait without end."""
        cutoffs: dict[int, Cutoff] = {}
        pauses: list[Pause] = []
        count = 0

        def answer_stored(subscriptions: list[Subscription]) -> None:
            nonlocal count
            if not subscriptions:
                return
            taken_at = self.now()
            fresh, until = self.admission.fresh, self.watermarks.greatest
            greatest = self._latest_times
            answered = self.pipeline.backfill(subscriptions, fresh, cutoffs, greatest, until)
            pauses[:] = answered.pauses
            self.records.flush()
            self.changes.save_pauses(pauses)
            count = len(self.outbox.save_answers(answered.answers, answered.members))
            self.ledger.save_batch(taken_at, 0, 0, count)
            self.state.save_reach()

        within = answer_stored if backfill else no_action
        while True:  # until no query exceeds its quota
            try:
                with self.whole():
                    names = self.changes.subscribe(script, mode, backfills=backfill, within=within)
                break
            except QuotaExceeded as exceeded:
                cutoffs |= exceeded.cutoffs
        if self.registry.absent and self.watermarks.timing.idle_after is not None:
            never = self.pipeline.absences.never_decided()
            text = "%s: it is never decided that nothing came, because %s may be late without a limit; give a lateness"
            for name in dict.fromkeys(filter(never.__contains__, names)):
                logger.warning(text, name, never[name])
        return names, count, self.changes.apply(pauses)

    def drop_groups(self) -> None:
        """Drops unused groups of edges, within a batch."""
        self.stage1.keep_groups(self.store.drop_groups(self.registry.catalog.edges()))
