"""The pipeline from new documents to outputs: stage 1, stage 2 and expansion, repeated for the documents they publish.

A step is a batch or a backfill. If a query exceeds its quota, the step is rolled back and run again with a cutoff for
that query, so that nothing past the cutoff remains, nor anything that others derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from join_stage.joiner import JoinEngine
from mmqjp.answers.answer import Answer
from mmqjp.answers.answered import Answered, Pause, QuotaExceeded
from mmqjp.answers.arrivals import Arrivals
from mmqjp.answers.backfill import Backfill, known_tuples
from mmqjp.answers.event_output import EventOutput
from mmqjp.answers.expand import Expansion
from mmqjp.answers.match import Match, as_batch, match_rows
from mmqjp.answers.match_reader import MatchReader
from mmqjp.answers.operators import Expanded, Operators, StepContext
from mmqjp.answers.outbox import Outbox
from mmqjp.answers.patterns.patterns import Patterns
from mmqjp.answers.quota import Quota
from mmqjp.answers.stored_ties import StoredTies
from mmqjp.answers.stored_usage import Before, StoredUsage
from mmqjp.answers.telling import Telling
from mmqjp.answers.usage import Accounts, Cutoff, Cutoffs
from mmqjp.documents.progress import Progress
from mmqjp.documents.record import Record
from mmqjp.documents.records import Records
from mmqjp.queries.event_backfill import forms_to_backfill
from mmqjp.queries.members import Members
from mmqjp.queries.model import Owner, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.state.join_state import JoinState
from mmqjp.tables.dead_letters import DEAD_LETTERS
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.table_rows import rows_table
from pattern_stage.horizon import START
from templates.witness import R_DOCTS, Witnesses
from xpath_stage.evaluator import XPathStage

if TYPE_CHECKING:
    from mmqjp.answers.spread.spread import SpreadAnswers

WitnessSource = Callable[[int], Witnesses]
"""Returns the witnesses of documents that get consecutive docids, given the first one."""


class Pipeline:
    """Answers documents within a batch of the store and writes their matches. Returns the outputs to the caller."""

    def __init__(
        self,
        stage1: XPathStage,
        store: JoinEngine,
        ledger: Ledger,
        registry: Registry,
        records: Records,
        state: JoinState,
        outbox: Outbox,
        operators: Operators,
        quota: Quota,
        telling: Telling,
        patterns: Patterns,
        event_output: EventOutput,
        spread: SpreadAnswers | None = None,
    ) -> None:
        """`spread` answers large batches on executors, if there are any."""
        self._stage1, self._store, self._ledger, self._state = stage1, store, ledger, state
        self._registry, self._records, self._outbox, self.operators = registry, records, outbox, operators
        self._quota, self._telling, self._spread = quota, telling, spread
        self.patterns, self._event_output = patterns, event_output
        self._usage = StoredUsage(store, ledger.next_arrival)
        self.ties = StoredTies(ledger)
        self._arrivals = Arrivals()

    # ------------------------------------------------------------ batches

    def answer(
        self,
        records: list[Record],
        found: WitnessSource | None,
        greatest: Mapping[str, int],
        begin_again: Callable[[], None],
        clock: int | None = None,
        *,
        lasts: bool | None = None,
    ) -> Answered:
        """Returns the answers that new documents complete, and the queries to pause.

        This includes outputs over documents published on the way, and what is decided at the `greatest` times, by
        stream. `found` returns the witnesses of the new documents if they were evaluated elsewhere. `begin_again` rolls
        the batch back and begins a new one. `clock` is that of live streams. `lasts` says, at the end of a finite run,
        whether its state does: then events that wait are released. If it does not, all absences are decided.
        """
        first, horizon = self._ledger.next_docid, self.patterns.horizon
        witnesses: Witnesses | None = None
        cutoffs: dict[int, Cutoff] = {}
        while True:
            accounts = Accounts(
                self._registry, self._quota, cutoffs, self._usage.before(), self._usage.block, looked=self.ties.looked()
            )
            self._arrivals = Arrivals()
            self._state.recall(records)
            self.patterns.follow()
            self._enter(records)
            if witnesses is None:
                witnesses = self._witnesses(records, found)
            else:  # the rollback has made groups new again, and they belong to the batch
                witnesses = replace(witnesses, r_group=self._stage1.new_groups())
            context = StepContext(accounts, progress=Progress(records, self._ledger.next_arrival))
            reader = self._reader(context)
            joins = self.patterns.step(witnesses)
            answers, spread = self._first_round(reader, records, joins, accounts, cutoffs)
            until = None if lasts is False else greatest
            answers += self._settled(context, reader, until)
            for results in self.patterns.release(greatest, clock, lasts=lasts):
                found_answers, documents = self._event_output.answers(results, self.patterns.running)
                answers += found_answers
                if documents:
                    answers += self._rounds(reader, documents, self._published(documents))
                    answers += self._settled(context, reader, until)
            exceeded = accounts.exceeded()
            if not exceeded:
                break
            cutoffs |= {query.qid: cutoff for query, cutoff in exceeded.items()}
            begin_again()
        arrived = {record.arrival: record for record in records if record.kind == "external"}
        pauses = []
        for qid, cutoff in cutoffs.items():
            # What the clock decides belongs to an earlier batch. Then no document of this one is answered.
            record = arrived.get(cutoff.arrival)
            reason = cutoff.reason(self._quota, self._id_of(cutoff) if record is None else record.id)
            docid = (first if record is None else record.docid) - 1
            pauses.append(Pause(self._registry.subscriptions[qid], docid, cutoff.arrival, reason))
        pauses += self._event_output.pauses(self.patterns.exceeded(), self._quota, horizon)
        assert not records or records[0].docid == first, "documents that are admitted again get the same ids"
        self._save(accounts)
        return Answered(answers, self._members(accounts, answers, spread), pauses)

    def _members(self, accounts: Accounts, answers: Iterable[Answer], others: Iterable[str] = ()) -> dict[str, Members]:
        """Returns the members of the forms that have answers, and of other forms."""
        return accounts.members({answer.form for answer in answers}.union(others), self._ledger.batch)

    def _save(self, accounts: Accounts) -> None:
        """Writes, within the batch, the state of operators and what queries have used of their quotas up to the last
        arrival, also if what was decided needed no new document."""
        self.operators.save()
        self.patterns.save()
        if self._ledger.next_arrival:
            self._usage.save(accounts, self._ledger.next_arrival - 1, self._ledger.batch)
            self.ties.save(accounts.ties(), lambda id: tuple(self._registry.form(id) or ()))

    def late_for_patterns(self, now: int) -> pa.Table:
        """Returns the dead letters of documents of the batch whose events came too late or are too many. Published
        ones, which nobody sent, are among them."""
        late = [(self._records[one.docid], one.reason) for one in self.patterns.late()]
        return rows_table([(r.id, r.stream, r.t0, why, r.xml.encode(), now) for r, why in late], DEAD_LETTERS)

    def is_due(self, greatest: Mapping[str, int], clock: int | None = None) -> bool:
        """Returns whether operators would decide anything at these greatest times without a new document."""
        return self.operators.is_due(greatest) or self.patterns.is_due(greatest, clock)

    def finish_batch(self, *, committed: bool) -> None:
        """Ends the batch. If it was not committed, discards what the step wrote."""
        self.operators.finish_batch(committed=committed)
        self.patterns.finish_batch(committed=committed)
        if self._spread is not None:
            self._spread.discard()
        if committed:
            self._usage.committed()
            self.ties.committed()
        else:
            self._usage.rolled_back()
            self.ties.rolled_back()

    # ------------------------------------------------------------ backfills

    def backfill(
        self,
        subscriptions: list[Subscription],
        fresh: Callable[[list[Record]], list[Record]],
        cutoffs: Cutoffs,
        greatest: Callable[[], Mapping[str, int]],
        until: Mapping[str, int],
    ) -> Answered:
        """Returns the answers of new queries over the stored documents, and the queries to pause: those with `cutoffs`.
        Of absences, those that are decided when streams have come to the times in `until`.

        `fresh` filters published documents down to those that the store does not have. `greatest` returns the greatest
        time of each external stream. Raises QuotaExceeded if other queries exceed their quotas.
        """
        if events := [query for query in subscriptions if query.is_events]:
            self.patterns.begin_backfill(*forms_to_backfill(events, self._registry), greatest())
        hidden = {stream for s in subscriptions for stream in self._registry.inner_joins(s)}
        owners: set[Owner] = {*subscriptions, *hidden}
        known = set(known_tuples(self._store, {stream.stream for stream in hidden}))
        # Stored documents are counted apart. Only new queries start from that count.
        first_new = min(query.qid for query in subscriptions)
        accounts = Accounts(self._registry, self._quota, cutoffs, Before(), self._usage.block, first_new)
        last = self._ledger.next_docid - 1
        self._arrivals = Arrivals(self._ledger.arrivals)
        context = StepContext(accounts, owners, known, owners)
        reader = self._reader(context)
        answers: list[Answer] = []
        records: list[Record] = []
        for matches in Backfill(owners, self._registry, self._state, self._records).matches():
            records += reader.read(matches, answers)
        accounts.serve_all()
        later = StepContext(accounts, known_tuples=known, backfilled=owners, put_off=context.put_off)
        reader = self._reader(later)
        if records := fresh(records):
            answers += self._rounds(reader, records, self._published(records))
        answers += self._settled(later, reader, until, fresh)
        for results, running in self.patterns.backfill() if events else ():
            found, documents = self._event_output.answers(results, running, first_new)
            answers += found
            if documents := fresh(documents):
                answers += self._rounds(reader, documents, self._published(documents))
                answers += self._settled(later, reader, until, fresh)
        if exceeded := accounts.exceeded():
            raise QuotaExceeded({query.qid: cutoff for query, cutoff in exceeded.items()})
        new = {s.qid for s in subscriptions}
        pauses = []
        for qid, cutoff in cutoffs.items():
            arrived = self._ledger.docid_of_arrival(cutoff.arrival)
            reason = cutoff.reason(self._quota, self._id_of(cutoff))
            docid = arrived - 1 if arrived is not None and qid in new else last
            pauses.append(Pause(self._registry.subscriptions[qid], docid, cutoff.arrival, reason))
        if events:
            pauses += self._event_output.pauses(self.patterns.exceeded_before, self._quota, START, first_new)
        self._save(accounts)
        return Answered(answers, self._members(accounts, answers), pauses)

    def _id_of(self, cutoff: Cutoff) -> str:
        """Returns the id of the stored document at a cutoff."""
        docid = self._ledger.docid_of_arrival(cutoff.arrival)
        return "that is gone" if docid is None else self._records[docid].id

    # ------------------------------------------------------------ rounds

    def _enter(self, records: list[Record]) -> None:
        """Numbers documents that enter together and makes them available."""
        ledger = self._ledger
        for record in records:
            record.number(ledger.next_docid, ledger.next_arrival)
            ledger.next_docid += 1
            if record.kind == "external":
                ledger.next_arrival += 1
            self._records.add(record)
            self._arrivals.add(record.docid, record.arrival)

    def _witnesses(self, records: list[Record], found: WitnessSource | None) -> Witnesses:
        """Returns the witnesses of documents that have entered."""
        if found is None or not records:
            return self._stage1.evaluate((r.docid, r.stream, r.t0, r.t1, r.tree) for r in records)
        # The time of a feed's entry is final only now.
        times = {name: [getattr(record, name) for record in records] for name in R_DOCTS.names}
        return replace(found(records[0].docid), r_docts=pa.table(times, R_DOCTS))

    def _reader(self, context: StepContext) -> MatchReader:
        expansion = Expansion(self._registry, self._records, self.operators.of, context)
        return MatchReader(expansion, self._records, self._arrivals, self._registry.template_of, self._outbox)

    def _settled(
        self,
        context: StepContext,
        reader: MatchReader,
        greatest: Mapping[str, int] | None,
        fresh: Callable[[list[Record]], list[Record]] = list,
    ) -> list[Answer]:
        """Returns what operators decide at these greatest times, which answers are told of those that were put off
        until all else is found, and what follows from the documents that both publish, but for those that `fresh`
        leaves out. Nothing is decided before what it is made of."""
        answers: list[Answer] = []
        while True:
            documents: list[Record] = []
            if found := list(self.operators.on_watermark(context, greatest)):
                answers += self._decided(found)
                documents = [document for item in found for document in item.documents]
            elif context.put_off:
                told = self._telling.decide(context.put_off, self._ledger.batch, self.operators.undecided(greatest))
                answers += told.answers
                self._outbox.save_untold(told.untold)
                documents = told.documents
            else:
                return answers
            if records := fresh(documents):
                answers += self._rounds(reader, records, self._published(records))

    def _decided(self, found: Iterable[Expanded]) -> list[Answer]:
        """Returns the answers that were not given before. Writes the matches behind them."""
        answers: list[Answer] = []
        rows: list[tuple[Match, Answer]] = []
        for item in found:
            if item.answer is None:
                continue
            if item.match is not None:
                item.answer.matches.append(self._outbox.next_match + len(rows))
                rows.append((item.match, item.answer))
            if not (item.duplicate or item.put_off):
                answers.append(item.answer)
        if rows:
            times = [(answer.t0, answer.t1) for _, answer in rows]
            template_of = self._registry.template_of
            matches = as_batch([match for match, _ in rows])
            self._outbox.save_matches(match_rows(matches, times, self._outbox.next_match, template_of))
        return answers

    def _first_round(
        self, reader: MatchReader, records: list[Record], witnesses: Witnesses, accounts: Accounts, cutoffs: Cutoffs
    ) -> tuple[list[Answer], Iterable[str]]:
        """Returns the outputs that entered documents complete, as `_rounds` does, but for those that executors find;
        and the forms that have outputs there."""
        if self._spread is None or not records:
            return self._rounds(reader, records, witnesses), ()
        matches = self._store.join(witnesses, records[0].docid, self._registry.scope)
        rest, forms = self._spread.answer(matches, records, accounts, self._usage.block, cutoffs)
        answers: list[Answer] = []
        if published := reader.read(rest, answers):
            answers += self._rounds(reader, published, self._published(published))
        return answers, forms

    def _rounds(self, reader: MatchReader, records: list[Record], witnesses: Witnesses) -> list[Answer]:
        """Returns the outputs that entered documents complete, and those of documents published on the way."""
        answers: list[Answer] = []
        while records:
            matches = self._store.join(witnesses, records[0].docid, self._registry.scope)
            records = reader.read(matches, answers)
            if records:
                witnesses = self._published(records)
        return answers

    def _published(self, records: list[Record]) -> Witnesses:
        """Enters documents that were published in this step. Returns their witnesses."""
        self._state.recall(records)
        self._enter(records)
        return self.patterns.step(self._witnesses(records, None))
