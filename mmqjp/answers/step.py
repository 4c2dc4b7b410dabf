"""From new documents to outputs: both stages, and delivery, again and again for the documents published on the way.

A step is a batch or a backfill. If a query passes a bound in it, the step is rolled back and answered again without
what that query would have had from there on: nothing of it stands, nor of what others made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from join_stage.joiner import JoinEngine, Matches
from mmqjp.answers.allowance import Allowance
from mmqjp.answers.arrivals import Arrivals
from mmqjp.answers.backfill import Backfill, known_tuples
from mmqjp.answers.expand import Delivery, Match
from mmqjp.answers.outbox import Outbox
from mmqjp.answers.output import Output
from mmqjp.answers.spending import Accounts, Cut, Cuts, Spending
from mmqjp.documents.records import Record, Records
from mmqjp.queries.model import HiddenStream, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.state.join_state import JoinState
from mmqjp.tables.ledger import Ledger
from templates.witness import PLAIN, R_DOCTS, Witnesses
from xpath_stage.evaluator import XPathStage

Evaluated = Callable[[int], Witnesses]
"""The witnesses of documents that get docids from this one on."""

MATCH_CHUNK = 2_000
"""Matches delivered at a time: their documents are held in memory together."""


class Passed(Exception):
    """Queries passed bounds in a step, which has to be taken again with them cut. It never leaves `mmqjp.answers`."""

    def __init__(self, cuts: dict[int, Cut]) -> None:
        super().__init__(f"{len(cuts)} queries passed a bound")
        self.cuts = cuts


@dataclass(frozen=True, slots=True)
class Pause:
    """A query that a step paused: from behind which document on, and why."""

    query: Subscription
    docid: int
    reason: str


class Answering:
    """Answers documents within a batch of the store, and writes their matches; the outputs are for the caller."""

    def __init__(
        self,
        stage1: XPathStage,
        store: JoinEngine,
        ledger: Ledger,
        registry: Registry,
        records: Records,
        state: JoinState,
        outbox: Outbox,
        allowance: Allowance,
    ) -> None:
        self._stage1, self._store, self._ledger, self._state = stage1, store, ledger, state
        self._registry, self._records, self._outbox, self._allowance = registry, records, outbox, allowance
        self._spending = Spending(store, ledger.next_arrival)
        self._arrivals = Arrivals()

    # ------------------------------------------------------------ batches

    def answer(
        self, records: list[Record], found: Evaluated | None, begin_again: Callable[[], None]
    ) -> tuple[list[Output], list[Pause]]:
        """The outputs that new documents complete, those over documents published on the way included, and the queries
        that they paused. `found` gives the witnesses of the new ones if these were evaluated elsewhere; `begin_again`
        rolls the batch back."""
        first = self._ledger.next_docid
        witnesses: Witnesses | None = None
        cuts: dict[int, Cut] = {}
        while True:
            accounts = Accounts(self._registry, self._allowance, cuts, self._spending.before(), self._spending.block)
            self._arrivals = Arrivals()
            self._state.recall(records)
            self._enter(records)
            if witnesses is None:
                witnesses = self._witnesses(records, found)
            else:  # the groups, of which those of the rounds that are rolled back are new again, belong to the batch
                witnesses = replace(witnesses, r_group=self._stage1.new_groups())
            outputs = self._rounds(Delivery(self._registry, self._records, accounts), records, witnesses)
            passed = accounts.passed()
            if not passed:
                break
            cuts |= {query.qid: cut for query, cut in passed.items()}
            begin_again()
        pauses = []
        for qid, cut in cuts.items():
            record = next(record for record in records if record.arrival == cut.arrival)
            reason = cut.reason(self._allowance, record.id)
            pauses.append(Pause(self._registry.subscriptions[qid], record.docid - 1, reason))
        assert not records or records[0].docid == first, "documents that enter again get the same ids"
        if records:
            self._spending.save(accounts, records[-1].arrival, self._ledger.batch, cuts)
        return outputs, pauses

    def finish_batch(self, *, committed: bool) -> None:
        """Tells whether what the step wrote is there."""
        if committed:
            self._spending.saved()
        else:
            self._spending.dropped()

    # ------------------------------------------------------------ backfills

    def backfill(
        self, subscriptions: list[Subscription], fresh: Callable[[list[Record]], list[Record]], cuts: Cuts
    ) -> tuple[list[Output], list[Pause]]:
        """The outputs of new queries over the documents that are kept, and the queries that are paused for them: those
        of `cuts`. `fresh` leaves of published documents those that the store does not have.

        Raises Passed if others pass a bound.
        """
        hidden = {stream for s in subscriptions for stream in self._registry.inner_joins(s)}
        owners: set[Subscription | HiddenStream] = {*subscriptions, *hidden}
        known = known_tuples(self._store, {stream.stream for stream in hidden})
        # What is kept is counted by itself: only new queries go on from there.
        accounts = Accounts(self._registry, self._allowance, cuts, {}, self._spending.block, new=subscriptions)
        last = self._ledger.next_docid - 1
        delivery = Delivery(self._registry, self._records, accounts, owners, known)
        outputs: list[Output] = []
        records: list[Record] = []
        self._arrivals = Arrivals(self._ledger.arrivals)
        for matches in Backfill(owners, self._registry, self._state, self._records).matches():
            records += self._delivered(delivery, matches, outputs)
        records = fresh(records)
        if records:
            accounts.serve_all()
            self._state.recall(records)
            self._enter(records)
            witnesses = self._witnesses(records, None)
            outputs += self._rounds(Delivery(self._registry, self._records, accounts), records, witnesses)
        if passed := accounts.passed():
            raise Passed({query.qid: cut for query, cut in passed.items()})
        new = {s.qid for s in subscriptions}
        pauses = []
        for qid, cut in cuts.items():
            arrived = self._ledger.docid_of_arrival(cut.arrival)
            reason = cut.reason(self._allowance, "that is gone" if arrived is None else self._records[arrived].id)
            docid = arrived - 1 if arrived is not None and qid in new else last
            pauses.append(Pause(self._registry.subscriptions[qid], docid, reason))
        if self._ledger.next_arrival:
            self._spending.save(accounts, self._ledger.next_arrival - 1, self._ledger.batch, cuts)
        return outputs, pauses

    # ------------------------------------------------------------ rounds

    def _enter(self, records: list[Record]) -> None:
        """Takes in documents that enter together."""
        ledger = self._ledger
        for record in records:
            record.number(ledger.next_docid, ledger.next_arrival)
            ledger.next_docid += 1
            if record.kind == "external":
                ledger.next_arrival += 1
            self._records.add(record)
            self._arrivals.add(record.docid, record.arrival)

    def _witnesses(self, records: list[Record], found: Evaluated | None) -> Witnesses:
        """What stage 1 finds in documents that have entered."""
        if found is None or not records:
            return self._stage1.evaluate((r.docid, r.stream, r.t0, r.t1, r.tree) for r in records)
        # Of an entry of a feed it is settled only now when it was.
        times = {name: [getattr(record, name) for record in records] for name in R_DOCTS.names}
        return replace(found(records[0].docid), r_docts=pa.table(times, R_DOCTS))

    def _rounds(self, delivery: Delivery, records: list[Record], witnesses: Witnesses) -> list[Output]:
        """What documents complete that have entered, and those that are published on the way."""
        outputs: list[Output] = []
        while records:
            matches = self._store.join(witnesses, records[0].docid, self._registry.scope)
            records = self._delivered(delivery, matches, outputs)
            if records:
                self._state.recall(records)
                self._enter(records)
                witnesses = self._witnesses(records, None)
        return outputs

    def _delivered(self, delivery: Delivery, matches: Matches, outputs: list[Output]) -> list[Record]:
        """Delivers matches: appends to `outputs`, notes the matches, and returns the documents that are published."""
        published: list[Record] = []
        for chunk in matches.to_batches(max_chunksize=MATCH_CHUNK):
            closed = delivery.closed(chunk["qid"].unique().to_pylist())
            wanted = self._arrivals.before(chunk, closed) if closed else chunk
            if wanted.num_rows:
                published += self._deliver(delivery, wanted, outputs)
        return published

    def _deliver(self, delivery: Delivery, chunk: pa.RecordBatch, outputs: list[Output]) -> list[Record]:
        """The same for some of them."""
        matches = [Match(m["qid"], m["docid1"], m["docid2"], m["nodes"]) for m in chunk.to_pylist()]
        self._records.load(docid for match in matches for docid in match.docids)
        published: list[Record] = []
        rows: list[tuple[object, ...]] = []
        users: list[tuple[object, ...]] = []
        for match, delivered in delivery.deliver(matches):
            outputs += [item.output for item in delivered if item.output is not None]
            published += [item.document for item in delivered if item.document is not None]
            queries = {s.qid: s for item in delivered if (s := item.subscription) is not None}
            if queries:
                number = self._ledger.next_match + len(rows)
                inputs = [self._records[docid] for docid in match.docids]
                template = self._registry.template_of(match.row)
                times = min(r.t0 for r in inputs), max(r.t1 for r in inputs)
                rows.append(
                    (number, template, match.docid1, match.docid2, *times, [node & PLAIN for node in match.nodes])
                )
                users += [(number, s.name, s.qid) for s in queries.values()]
        self._outbox.save_matches(rows, users)
        return published
