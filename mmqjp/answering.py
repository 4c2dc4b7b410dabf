"""From new documents to outputs: both stages, and delivery, again and again for the documents published on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from join_stage.engine import JoinEngine, Matches
from mmqjp.backfill import Backfill, known_tuples
from mmqjp.delivery import Delivery, Match
from mmqjp.join_state import JoinState
from mmqjp.ledger import Ledger
from mmqjp.outputs import Output
from mmqjp.records import Record, Records
from mmqjp.registry import Registry
from mmqjp.subscriptions import HiddenStream, Subscription
from templates.witness import PLAIN, R_DOCTS, Witnesses
from xpath_stage.evaluator import XPathStage

Evaluated = Callable[[int], Witnesses]
"""The witnesses of documents that get docids from this one on."""

MATCH_CHUNK = 2_000
"""Matches delivered at a time: their documents are held in memory together."""


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
    ) -> None:
        self._stage1, self._store, self._ledger, self._state = stage1, store, ledger, state
        self._registry, self._records = registry, records

    def answer(self, delivery: Delivery, records: list[Record], found: Evaluated | None = None) -> list[Output]:
        """The outputs that new documents complete, those over documents published on the way included. `found` gives
        the witnesses of the new ones if these were evaluated elsewhere."""
        outputs: list[Output] = []
        while records:
            matches = self._join(records, found)
            records, found = [], None
            for chunk in matches.to_batches(max_chunksize=MATCH_CHUNK):
                records += self._deliver(delivery, chunk, outputs)
        return outputs

    def backfill(
        self, subscriptions: list[Subscription], fresh: Callable[[list[Record]], list[Record]]
    ) -> list[Output]:
        """The outputs of new queries over the documents that are kept. `fresh` leaves of published documents those that
        the store does not have."""
        self._registry.flush()
        hidden = {stream for s in subscriptions for stream in self._registry.inner_joins(s)}
        owners: set[Subscription | HiddenStream] = {*subscriptions, *hidden}
        known = known_tuples(self._store, {stream.stream for stream in hidden})
        delivery = Delivery(self._registry, self._records, owners, known)
        outputs: list[Output] = []
        records: list[Record] = []
        for matches in Backfill(owners, self._registry, self._state, self._records).matches():
            for chunk in matches.to_batches(max_chunksize=MATCH_CHUNK):
                records += self._deliver(delivery, chunk, outputs)
        outputs += self.answer(Delivery(self._registry, self._records), fresh(records))
        return outputs

    def _join(self, records: list[Record], found: Evaluated | None) -> Matches:
        """Stages 1 and 2 for documents that enter together."""
        self._state.recall(records)
        first = self._ledger.next_docid
        for docid, record in enumerate(records, first):
            record.docid = docid
            record.parts = record.parts or (docid,)
            self._records.add(record)
        self._ledger.next_docid += len(records)
        if found is not None:
            # Of an entry of a feed it is settled only now when it was.
            times = {name: [getattr(record, name) for record in records] for name in R_DOCTS.names}
            witnesses = replace(found(first), r_docts=pa.table(times, R_DOCTS))
        else:
            witnesses = self._stage1.evaluate((r.docid, r.stream, r.t0, r.t1, r.tree) for r in records)
        return self._store.join(witnesses, first, self._registry.scope)

    def _deliver(self, delivery: Delivery, chunk: pa.RecordBatch, outputs: list[Output]) -> list[Record]:
        """Delivers matches: appends to `outputs`, notes the matches, and returns the documents that are published."""
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
        self._ledger.save_matches(rows, users)
        return published
