"""The join state as a cache of `documents`: evicts old documents, recalls them, and adds older ones for new queries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from join_stage.joiner import JoinEngine
from join_stage.state_tables import STATE, by_edges, documents_between, missing
from mmqjp.documents.record import Record
from mmqjp.documents.records import Records, kept_documents
from mmqjp.documents.watermarks import EARLIEST
from mmqjp.queries.registry import Registry
from mmqjp.state.reach import REACH, Gap, Reach, missed_from, with_gap, with_recalled
from mmqjp.tables.commit_metadata import CommitMetadata
from mmqjp.tables.ledger import Ledger
from pattern_stage.witnessed import event_chains, told_apart
from templates.witness import R_BIN, Witnesses
from xpath_stage.evaluator import XPathStage
from xpath_stage.parse import Arriving


class JoinState:
    """Changes the join state within batches of the store, and tracks how far back it reaches."""

    def __init__(
        self, store: JoinEngine, ledger: Ledger, registry: Registry, stage1: XPathStage, records: Records
    ) -> None:
        self._store, self._ledger, self._registry = store, ledger, registry
        self._stage1, self._records = stage1, records
        self.reach = Reach.from_setting(ledger.setting(REACH))
        """How far back the store reaches, with the changes of the running batch."""
        self.evicted_before = EARLIEST
        """The time before which this engine has evicted documents, as far as that was practical."""
        self._committed = self.reach, self.evicted_before

    def save_reach(self) -> None:
        """Writes the reach if the running batch has changed it. Called once, at the end of the batch."""
        if self.reach != self._committed[0]:
            self._ledger.save_metadata(CommitMetadata(settings={REACH: self.reach.to_setting()}))

    def finish_batch(self, *, committed: bool) -> None:
        """Ends the batch. If it was not committed, restores the reach from before it."""
        if committed:
            self._committed = self.reach, self.evicted_before
        else:
            self.reach, self.evicted_before = self._committed

    # ------------------------------------------------------------ eviction

    def evict(self, before: int) -> None:
        """Evicts documents that begin before a time, as far as that is practical."""
        self._store.evict(before)
        self.reach = replace(self.reach, evicted=with_gap(self.reach.evicted, Gap(before, self._registry.window)))
        self.evicted_before = before

    def record_dropped(self, before: int) -> None:
        """Records that documents that begin before a time were dropped for good."""
        gap = Gap(before, self._registry.window)
        joined = self._registry.joined_streams()
        self.reach = replace(self.reach, dropped=with_gap(self.reach.dropped, gap), joined=joined)

    def late_by(self, stream: str, time: int) -> int:
        """Returns by how many microseconds a document of an external stream that ends at `time` is too old: it, or what
        is published from it, could miss dropped documents. Returns 0 if it is not."""
        late_by = self.reach.late_by(time)
        return late_by if late_by and stream in self._registry.sources_of(self.reach.joined) else 0

    # ------------------------------------------------------------ recall

    def recall(self, arriving: Iterable[Record]) -> None:
        """Brings back evicted documents that these documents could match, as far as `documents` has them."""
        if not self.reach.evicted:
            return
        joined = self._registry.joined_streams()
        time = min((record.t1 for record in arriving if record.stream in joined), default=None)
        if time is None or (low := missed_from(self.reach.evicted, time)) is None:
            return
        high = max(gap.before for gap in self.reach.evicted)
        # Documents that were not practical to evict, or that a backfill has added since, are there in part.
        partial = documents_between(self._store, low, high)
        for docids in kept_documents(self._store, joined, starts=range(low, high)):
            whole = [docid for docid in docids if docid not in partial]
            self._store.extend(self._evaluated(whole), whole=True)
            if len(whole) < len(docids):
                self._complete(self._evaluated([docid for docid in docids if docid in partial]))
            self._records.release_trees()
        self.reach = replace(self.reach, evicted=with_recalled(self.reach.evicted, low))
        self.evicted_before = min(self.evicted_before, low)

    def _evaluated(self, docids: Sequence[int]) -> Witnesses:
        """Returns the witnesses of stored documents that are for joins."""
        found = self._stage1.evaluate(map(arriving, self._records.parsed(docids)))
        return told_apart(found, event_chains(self._registry.catalog.chains))[0]

    def kept_documents_of(self, streams: Collection[str]) -> Iterator[list[int]]:
        """Yields the docids of stored documents of some streams in batches, oldest first."""
        return kept_documents(self._store, streams)

    # ------------------------------------------------------------ additions

    def _complete(self, witnesses: Witnesses) -> None:
        """Adds the witnesses that the state lacks. Their groups are those of this engine's stage 1."""
        self._store.append("groups", witnesses.r_group)
        self.extend(by_edges(self._store, witnesses.r_bin), witnesses.r_doc, witnesses.r_docts)

    def extend(self, flat: pa.Table, r_doc: pa.Table, r_docts: pa.Table) -> None:
        """Adds the rows that the state lacks of earlier documents. `flat` has the columns docid, var1, var2, node1,
        node2 of R_bin."""
        edges, r_doc, r_docts = (
            missing(self._store, table, rows) for table, rows in zip(STATE, (flat, r_doc, r_docts), strict=True)
        )
        # Each edge is a group of its own, because the groups of the other edges were made without it.
        pairs = zip(*(edges[name].to_pylist() for name in ("var1", "var2")), strict=True)
        numbers = [self._stage1.group(edge) for edge in pairs]
        grouped = edges.select(["docid", "node1", "node2"])
        r_bin = grouped.add_column(1, "grp", pa.array(numbers, pa.int32())).cast(R_BIN)
        self._store.extend(Witnesses(r_bin, self._stage1.new_groups(), r_doc, r_docts))


def arriving(record: Record) -> Arriving:
    """Returns a stored document as an input of stage 1."""
    return record.docid, record.stream, record.t0, record.t1, record.tree
