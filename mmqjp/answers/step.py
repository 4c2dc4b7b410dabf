"""From new documents to outputs: both stages and expansion, again and again for the documents published on the way.

A step is a batch or a backfill. If a query passes a bound in it, the step is rolled back and answered again without
what that query would have had from there on: nothing of it stands, nor of what others made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from join_stage.joiner import JoinEngine, Matches
from mmqjp.answers.allowance import Allowance
from mmqjp.answers.arrivals import Arrivals
from mmqjp.answers.backfill import Backfill, known_tuples
from mmqjp.answers.expand import Expansion, Match
from mmqjp.answers.operators import Expanded, Operators, Scope
from mmqjp.answers.outbox import Outbox
from mmqjp.answers.output import Draft
from mmqjp.answers.spending import Accounts, Cut, Cuts, Spending
from mmqjp.documents.records import Record, Records
from mmqjp.queries.model import Owner, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.state.join_state import JoinState
from mmqjp.tables.ledger import Ledger
from templates.witness import PLAIN, R_DOCTS, Witnesses
from xpath_stage.evaluator import XPathStage

Evaluated = Callable[[int], Witnesses]
"""The witnesses of documents that get docids from this one on."""

MATCH_CHUNK = 2_000
"""Matches expanded at a time: their documents are held in memory together."""


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
        operators: Operators,
        allowance: Allowance,
    ) -> None:
        self._stage1, self._store, self._ledger, self._state = stage1, store, ledger, state
        self._registry, self._records, self._outbox, self._operators = registry, records, outbox, operators
        self._allowance = allowance
        self._spending = Spending(store, ledger.next_arrival)
        self._arrivals = Arrivals()

    # ------------------------------------------------------------ batches

    def answer(
        self,
        records: list[Record],
        found: Evaluated | None,
        greatest: Mapping[str, int],
        begin_again: Callable[[], None],
    ) -> tuple[list[Draft], list[Pause]]:
        """The outputs that new documents complete, those over documents published on the way included, and what is
        decided once streams from outside have come to their `greatest` times; and the queries that they paused. `found`
        gives the witnesses of the new ones if these were evaluated elsewhere; `begin_again` rolls the batch back."""
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
            scope = Scope(accounts)
            expansion = self._expansion(scope)
            drafts = self._rounds(expansion, records, witnesses)
            drafts += self._decided(scope, expansion, greatest)
            passed = accounts.passed()
            if not passed:
                break
            cuts |= {query.qid: cut for query, cut in passed.items()}
            begin_again()
        arrived = {record.arrival: record for record in records if record.kind == "external"}
        pauses = []
        for qid, cut in cuts.items():
            # What is decided now may be about a document of an earlier batch: then all of this one is not answered.
            record = arrived.get(cut.arrival)
            reason = cut.reason(self._allowance, "of an earlier batch" if record is None else record.id)
            docid = (first if record is None else record.docid) - 1
            pauses.append(Pause(self._registry.subscriptions[qid], docid, reason))
        assert not records or records[0].docid == first, "documents that enter again get the same ids"
        self._operators.save()
        if records:
            self._spending.save(accounts, records[-1].arrival, self._ledger.batch, cuts)
        return drafts, pauses

    def is_due(self, greatest: Mapping[str, int]) -> bool:
        """Whether anything is decided once streams from outside have come to these greatest times, without another
        document."""
        return self._operators.is_due(greatest)

    def finish_batch(self, *, committed: bool) -> None:
        """Tells whether what the step wrote is there."""
        self._operators.finish_batch(committed=committed)
        if committed:
            self._spending.saved()
        else:
            self._spending.dropped()

    # ------------------------------------------------------------ backfills

    def backfill(
        self, subscriptions: list[Subscription], fresh: Callable[[list[Record]], list[Record]], cuts: Cuts
    ) -> tuple[list[Draft], list[Pause]]:
        """The outputs of new queries over the documents that are kept, and the queries that are paused for them: those
        of `cuts`. `fresh` leaves of published documents those that the store does not have.

        Raises Passed if others pass a bound.
        """
        hidden = {stream for s in subscriptions for stream in self._registry.inner_joins(s)}
        owners: set[Owner] = {*subscriptions, *hidden}
        known = set(known_tuples(self._store, {stream.stream for stream in hidden}))
        # What is kept is counted by itself: only new queries go on from there.
        accounts = Accounts(self._registry, self._allowance, cuts, {}, self._spending.block, new=subscriptions)
        last = self._ledger.next_docid - 1
        expansion = self._expansion(Scope(accounts, owners, known))
        drafts: list[Draft] = []
        records: list[Record] = []
        self._arrivals = Arrivals(self._ledger.arrivals)
        for matches in Backfill(owners, self._registry, self._state, self._records).matches():
            records += self._expand(expansion, matches, drafts)
        records = fresh(records)
        if records:
            accounts.serve_all()
            drafts += self._rounds(self._expansion(Scope(accounts)), records, self._published(records))
        if passed := accounts.passed():
            raise Passed({query.qid: cut for query, cut in passed.items()})
        new = {s.qid for s in subscriptions}
        pauses = []
        for qid, cut in cuts.items():
            arrived = self._ledger.docid_of_arrival(cut.arrival)
            reason = cut.reason(self._allowance, "that is gone" if arrived is None else self._records[arrived].id)
            docid = arrived - 1 if arrived is not None and qid in new else last
            pauses.append(Pause(self._registry.subscriptions[qid], docid, reason))
        self._operators.save()
        if self._ledger.next_arrival:
            self._spending.save(accounts, self._ledger.next_arrival - 1, self._ledger.batch, cuts)
        return drafts, pauses

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

    def _expansion(self, scope: Scope) -> Expansion:
        return Expansion(self._registry, self._records, self._operators, scope)

    def _decided(self, scope: Scope, expansion: Expansion, greatest: Mapping[str, int]) -> list[Draft]:
        """What operators decide once streams have come to these times, and what follows from what they publish."""
        drafts: list[Draft] = []
        while found := list(self._operators.on_watermark(scope, greatest)):
            drafts += _new_drafts(found)
            records = [item.document for item in found if item.document is not None]
            if records:
                drafts += self._rounds(expansion, records, self._published(records))
        return drafts

    def _rounds(self, expansion: Expansion, records: list[Record], witnesses: Witnesses) -> list[Draft]:
        """What documents complete that have entered, and those that are published on the way."""
        drafts: list[Draft] = []
        while records:
            matches = self._store.join(witnesses, records[0].docid, self._registry.scope)
            records = self._expand(expansion, matches, drafts)
            if records:
                witnesses = self._published(records)
        return drafts

    def _published(self, records: list[Record]) -> Witnesses:
        """Takes in documents that were published in this step; what stage 1 finds in them."""
        self._state.recall(records)
        self._enter(records)
        return self._witnesses(records, None)

    def _expand(self, expansion: Expansion, matches: Matches, drafts: list[Draft]) -> list[Record]:
        """Expands matches: appends to `drafts`, writes the matches, and returns the documents that are published."""
        published: list[Record] = []
        for chunk in matches.to_batches(max_chunksize=MATCH_CHUNK):
            closed = expansion.closed(chunk["qid"].unique().to_pylist())
            open_ones = self._arrivals.before(chunk, closed) if closed else chunk
            if open_ones.num_rows:
                published += self._expand_chunk(expansion, open_ones, drafts)
        return published

    def _expand_chunk(self, expansion: Expansion, chunk: pa.RecordBatch, drafts: list[Draft]) -> list[Record]:
        """The same for some of them."""
        matches = [Match(m["qid"], m["docid1"], m["docid2"], m["nodes"]) for m in chunk.to_pylist()]
        self._records.load(docid for match in matches for docid in match.docids)
        published: list[Record] = []
        rows: list[tuple[object, ...]] = []
        users: list[tuple[object, ...]] = []
        for match, found in expansion.expand(matches):
            drafts += _new_drafts(found)
            published += [item.document for item in found if item.document is not None]
            queries = {query.qid: query for item in found if (query := item.query) is not None}
            if queries:
                number = self._ledger.next_match + len(rows)
                for item in found:
                    if item.draft is not None:
                        item.draft.matches.append(number)
                rows.append((number, *self._match_row(match)))
                users += [(number, query.name, query.qid) for query in queries.values()]
        self._outbox.save_matches(rows, users)
        return published

    def _match_row(self, match: Match) -> tuple[object, ...]:
        """A match as the columns of the table `match_rows` behind its number."""
        inputs = [self._records[docid] for docid in match.docids]
        template = self._registry.template_of(match.row)
        t0, t1 = min(r.t0 for r in inputs), max(r.t1 for r in inputs)
        return template, match.docid1, match.docid2, t0, t1, [node & PLAIN for node in match.nodes]


def _new_drafts(found: Iterable[Expanded]) -> list[Draft]:
    return [item.draft for item in found if item.draft is not None and not item.again]
