"""The join state as a cache of `documents`: what leaves it, what comes back, and what is added of older documents."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from join_stage.joiner import JoinEngine
from join_stage.state_tables import STATE, by_edges, documents_between, missing
from mmqjp.documents.records import Record, Records, kept_documents
from mmqjp.documents.watermarks import EARLIEST
from mmqjp.queries.registry import Registry
from mmqjp.state.reach import REACH, Gap, Reach, filled, missed_from, opened
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.notes import Notes
from templates.witness import R_BIN, Witnesses
from xpath_stage.evaluator import XPathStage
from xpath_stage.parse import Arriving


class JoinState:
    """Changes the join state within batches of the store, and keeps in mind how far back it reaches."""

    def __init__(
        self, store: JoinEngine, ledger: Ledger, registry: Registry, stage1: XPathStage, records: Records
    ) -> None:
        self._store, self._ledger, self._registry = store, ledger, registry
        self._stage1, self._records = stage1, records
        self.reach = Reach.from_setting(ledger.setting(REACH))
        """What has left, the running batch included."""
        self.evicted_before = EARLIEST
        """The time up to which this engine has dropped what begins before it, as far as it was practical."""
        self._committed = self.reach, self.evicted_before

    def note(self) -> None:
        """Writes how far back the store reaches, if the running batch has changed that. Once a batch, at its end."""
        if self.reach != self._committed[0]:
            self._ledger.save_notes(Notes(settings={REACH: self.reach.to_setting()}))

    def finish_batch(self, *, committed: bool) -> None:
        """Takes note that the batch is committed, or was rolled back."""
        if committed:
            self._committed = self.reach, self.evicted_before
        else:
            self.reach, self.evicted_before = self._committed

    # ------------------------------------------------------------ what leaves

    def evict(self, before: int) -> None:
        """Drops the join state of documents that begin before a time, as far as it is practical."""
        self._store.evict(before)
        self.reach = replace(self.reach, evicted=opened(self.reach.evicted, Gap(before, self._registry.window)))
        self.evicted_before = before

    def dropped(self, before: int) -> None:
        """Takes note that documents that begin before a time are dropped for good."""
        gap = Gap(before, self._registry.window)
        joined = self._registry.joined_streams()
        self.reach = replace(self.reach, dropped=opened(self.reach.dropped, gap), joined=joined)

    def behind(self, stream: str, time: int) -> int:
        """By how many microseconds a document of a stream from outside, which ends at `time`, is too old: it, or what
        is published of it, could miss documents that were dropped. 0 if it is not."""
        late = self.reach.late(time)
        return late if late and stream in self._registry.sources_of(self.reach.joined) else 0

    # ------------------------------------------------------------ what comes back

    def recall(self, arriving: Iterable[Record]) -> None:
        """Brings back what was evicted and these documents could meet, as far as `documents` has it."""
        if not self.reach.evicted:
            return
        joined = self._registry.joined_streams()
        time = min((record.t1 for record in arriving if record.stream in joined), default=None)
        if time is None or (low := missed_from(self.reach.evicted, time)) is None:
            return
        high = max(gap.before for gap in self.reach.evicted)
        # What was not practical to drop, or what a backfill has added since, is there in part.
        partial = documents_between(self._store, low, high)
        for docids in kept_documents(self._store, joined, starts=range(low, high)):
            whole = [docid for docid in docids if docid not in partial]
            self._store.extend(self._evaluated(whole))
            self._complete(self._evaluated([docid for docid in docids if docid in partial]))
            self._records.rest()
        self.reach = replace(self.reach, evicted=filled(self.reach.evicted, low))
        self.evicted_before = min(self.evicted_before, low)

    def _evaluated(self, docids: Collection[int]) -> Witnesses:
        """What stage 1 finds in kept documents."""
        self._records.load(docids)
        return self._stage1.evaluate(arriving(self._records[docid]) for docid in docids)

    def kept(self, streams: Collection[str]) -> Iterator[list[int]]:
        """The kept documents of some streams, oldest first, a few at a time."""
        return kept_documents(self._store, streams)

    # ------------------------------------------------------------ what is added

    def _complete(self, witnesses: Witnesses) -> None:
        """Adds what the state lacks of witnesses whose groups this engine's stage 1 has made."""
        self._store.append("groups", witnesses.r_group)
        self.extend(by_edges(self._store, witnesses.r_bin), witnesses.r_doc, witnesses.r_docts)

    def extend(self, flat: pa.Table, r_doc: pa.Table, r_docts: pa.Table) -> None:
        """Adds what the state lacks of rows of R_bin (docid, var1, var2, node1, node2), R_doc and R_docts of documents
        that came before."""
        edges, r_doc, r_docts = (
            missing(self._store, table, rows) for table, rows in zip(STATE, (flat, r_doc, r_docts), strict=True)
        )
        # Each edge is a group of its own: which edges bind together was not known when the others came.
        pairs = zip(*(edges[name].to_pylist() for name in ("var1", "var2")), strict=True)
        numbers = [self._stage1.group(edge) for edge in pairs]
        grouped = edges.select(["docid", "node1", "node2"])
        r_bin = grouped.add_column(1, "grp", pa.array(numbers, pa.int32())).cast(R_BIN)
        self._store.extend(Witnesses(r_bin, self._stage1.new_groups(), r_doc, r_docts))


def arriving(record: Record) -> Arriving:
    """A kept document as stage 1 takes it."""
    return record.docid, record.stream, record.t0, record.t1, record.tree
