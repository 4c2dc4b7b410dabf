"""Eviction and retention. The join state is a cache of `documents`: documents further behind the watermarks than the
widest window are evicted, and recalled when a new document or query could match them. Retention drops what no join
needs for good: a belated document pairs with nothing that old. Gaps record how far back the join state reaches."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from common.bounds import EARLIEST, INFINITE, Micros
from common.tools import from_json
from feeds.documents import Now
from join_stage.plans import JoinEngine
from join_stage.protocol import STATE, docids_between, flatten_edges, has_documents_between, missing
from mmqjp.documents.record import Record, Records, docid_batches
from mmqjp.documents.watermarks import Progress, Watermarks, compact_feeds
from mmqjp.queries.registry import Registry
from mmqjp.tables import schema
from mmqjp.tables.schema import (
    DELIVERY_TABLES,
    Ledger,
    Owed,
    compact_belated,
    compact_sources,
    drop_told_by_removed,
    join_gaps,
)
from pattern_stage.assemble import told_apart
from templates.witness import R_BIN, R_GROUP, Witnesses
from xpath_stage.documents import Arriving

REACH = "reach"

MAX_GAPS = 16  # maximum number of gaps; beyond it the two oldest are merged into one that covers both


class CoverageGap(NamedTuple):
    """Documents before `before` may be missing, unseen by later queries; `window` is the widest query window then."""

    before: Micros
    window: Micros


Gaps = tuple[CoverageGap, ...]  # gaps in opening order: `before` falls, `window` grows


@dataclass(frozen=True, slots=True)
class Reach:
    """Gaps of the join state."""

    evicted: Gaps = ()


def with_gap(gaps: Gaps, gap: CoverageGap) -> Gaps:
    """Adds a gap, which replaces those that it covers."""
    if any(old.before >= gap.before and old.window >= gap.window for old in gaps):
        return gaps
    kept = [*(old for old in gaps if old.before > gap.before), gap]
    if len(kept) > MAX_GAPS:
        first, second, *rest = kept
        kept = [CoverageGap(first.before, max(first.window, second.window)), *rest]
    return tuple(kept)


def missed_from(gaps: Gaps, time: int) -> Micros | None:
    """Returns the start of the earliest missing documents that a document ending at `time` could match, or None."""
    return min((Micros(time - gap.window) for gap in gaps if time - gap.window < gap.before), default=None)


def with_recalled(gaps: Gaps, low: Micros) -> Gaps:
    return tuple(dict.fromkeys(CoverageGap(min(gap.before, low), gap.window) for gap in gaps))


CHECKS_PER_IDLE = 60  # maximum number of eviction checks per `idle_after` while no documents arrive

WORTH_EVICTING = 64
"""Evict once one part in this many of the widest window is obsolete: eviction costs as much as several documents."""

ID_RETENTION = 30 * 24 * 3600 * 1_000_000  # default retention of document ids, in microseconds of stream time

COMMAND_RETENTION = 7 * 24 * 3600 * 1_000_000
"""Retention of answers to commands, in microseconds. Commands are repeated only after a crash."""

OFFSETS_COMPACTED_AFTER = 1_000  # number of superseded rows at which offsets are compacted


class JoinState:
    """The join state over time: eviction, recall and retention."""

    def __init__(
        self, store: JoinEngine, ledger: Ledger, registry: Registry, records: Records, watermarks: Watermarks, now: Now
    ) -> None:
        self._store, self._ledger, self._registry, self._stage1 = store, ledger, registry, registry.stage1
        self._records, self._watermarks, self._now, self._checked = records, watermarks, now, now()
        self.reach = from_json(Reach, json.loads(ledger.setting(REACH) or "{}"))
        """Reach including the running batch's changes."""
        self.evicted_before = EARLIEST
        """Time before which this engine has evicted documents, as far as practical."""
        self._committed = self.reach, self.evicted_before
        self._sources = 0  # number of texts that were compacted

    def save_reach(self) -> None:
        """Writes the reach if changed; called once, at the end of the batch."""
        if self.reach != self._committed[0]:
            self._ledger.save_settings({REACH: json.dumps(asdict(self.reach), default=sorted, ensure_ascii=False)})

    def finish_batch(self, *, committed: bool) -> None:
        if committed:
            self._committed = self.reach, self.evicted_before
        else:
            self.reach, self.evicted_before = self._committed

    # ------------------------------------------------------------ eviction

    def evictable_before(self, horizon: Micros) -> Micros:
        """Returns the time before which documents are unmatchable once all streams reach `horizon`, or EARLIEST."""
        window = self._registry.window
        return EARLIEST if horizon <= EARLIEST or window == INFINITE else Micros(horizon - window)

    def evict_obsolete(self, progress: Progress) -> None:
        """Evicts, within a batch, what is obsolete after it."""
        if self._watermarks.is_bounded and self._is_worth_it(before := self._obsolete_before(progress.greatest)):
            self._evict(before)

    def is_due(self, greatest: Mapping[str, int]) -> bool:
        """Whether documents can be evicted at these greatest times; False if checked recently."""
        idle_after, now = self._watermarks.timing.idle_after, self._now()
        # Reading the join state is slow on Spark.
        if idle_after is None or now - self._checked < idle_after // CHECKS_PER_IDLE:
            return False
        self._checked = now
        before = self._obsolete_before(greatest)
        return self._is_worth_it(before) and has_documents_between(self._store, self.evicted_before, before)

    def _is_worth_it(self, before: Micros) -> bool:
        return before > self.evicted_before + self._registry.window // WORTH_EVICTING

    def _obsolete_before(self, greatest: Mapping[str, int]) -> Micros:
        return self.evictable_before(self._watermarks.of(self._registry.outside(), greatest))

    def _evict(self, before: Micros) -> None:
        """Evicts documents that begin before a time, as far as practical."""
        self._store.evict(before)
        gap = CoverageGap(before, self._registry.window)
        self.reach = replace(self.reach, evicted=with_gap(self.reach.evicted, gap))
        self.evicted_before = before

    # ------------------------------------------------------------ retention

    def prune(
        self, horizon: Micros, needed: Micros | None, keep: int | None, keep_ids: int | None, owed: Owed | None
    ) -> None:
        """Drops, within a batch, what is older than `keep` microseconds before `horizon`, which all streams have
        reached.

        Documents stay that may still be joined, or that begin at `needed` or later, and so does whatever is behind
        outputs `owed` to sinks. Document ids stay for `keep_ids` microseconds (None: forever). Without `keep`, drops
        only superseded rows.
        """
        store, ledger, now = self._store, self._ledger, self._now()
        ledger.save_next_ids()
        ledger.compact_settings(self._watermarks.setting())
        compact_feeds(store, ledger.batch)
        drop_told_by_removed(store)
        store.drop_before("commands", "noted_at", now - COMMAND_RETENTION)
        join_gaps(store)
        compact_belated(store)
        self._sources = compact_sources(store, self._sources)
        if keep is None:
            return
        for table in ("dead_letters", *DELIVERY_TABLES):
            store.drop_before(table, "noted_at", now - keep)
        store.drop_before("batches", "committed_at", now - keep if owed is None else min(now - keep, owed.committed_at))
        if horizon <= EARLIEST:
            return
        before = Micros(horizon - keep if owed is None else min(horizon - keep, owed.t0))
        for table in ("answers", "match_rows", "earlier_outputs"):
            store.drop_before(table, "t1", before)
        first_match = schema.lowest(store, "match_rows", "match", ledger.next_match)
        for table in ("answer_matches", "untold", "earlier_match_queries", "earlier_output_matches"):
            store.drop_before(table, "match", first_match)
        store.drop_before("withheld", "answer", schema.lowest(store, "answers", "answer", ledger.next_answer))
        unneeded = min(before, self.evictable_before(horizon), before if needed is None else needed)
        gone = f"SELECT id, stream, t1 FROM documents WHERE kind = 'external' AND t0 < {unneeded}"
        store.append("dropped_ids", store.select(gone))
        if keep_ids is not None:
            store.drop_before("dropped_ids", "t1", horizon - keep_ids)
        if unneeded > EARLIEST:
            store.drop_before("documents", "t0", unneeded)
            # No output over what is kept, not even one of a backfill, ends before this.
            store.drop_before("told", "until", unneeded)
            if unneeded > self.evicted_before:
                self._evict(unneeded)

    def prune_offsets(self, sources: Collection[str], files: Collection[tuple[str, str]]) -> None:
        """Drops, within a batch, superseded offsets, and those of `sources` without existing `files` (source, file)."""
        known = self._ledger.offsets().items()
        live = [offset for key, offset in known if key[0] not in sources or key in files]
        rows = len(self._store.read("offsets", ["batch"]))
        if rows > 2 * len(live) + OFFSETS_COMPACTED_AFTER:
            self._ledger.compact_offsets(live)

    # ------------------------------------------------------------ recall

    def recall(self, arriving: Iterable[Record]) -> None:
        """Restores evicted documents that these could match, if still in `documents`. What a belated one could match
        depends on its watermark."""
        if not self.reach.evicted:
            return
        joined = self._registry.joined_streams()
        records = (record for record in arriving if record.stream in joined)
        time = min((one.t1 if one.watermark is None else one.watermark for one in records), default=None)
        if time is None or (low := missed_from(self.reach.evicted, time)) is None:
            return
        high = max(gap.before for gap in self.reach.evicted)
        # Documents that were not practical to evict, or that a backfill has added since, are there in part.
        partial = docids_between(self._store, low, high)
        for docids in docid_batches(self._store, joined, starts=range(low, high)):
            whole = [docid for docid in docids if docid not in partial]
            self._store.extend(self._evaluated(whole), whole=True)
            if len(whole) < len(docids):
                found = self._evaluated([docid for docid in docids if docid in partial])
                self._store.append("groups", found.r_group)
                flat = flatten_edges(found.r_bin, self._store.read("groups", R_GROUP.names))
                self.extend(flat, found.r_doc, found.r_docts)
            self._records.release_trees()
        self.reach = replace(self.reach, evicted=with_recalled(self.reach.evicted, low))
        self.evicted_before = min(self.evicted_before, low)

    def _evaluated(self, docids: Sequence[int]) -> Witnesses:
        found = self._stage1.evaluate(map(arriving, self._records.parsed(docids)))
        return told_apart(found, self._registry.catalog.chains)[0]

    def extend(self, flat: pa.Table, r_doc: pa.Table, r_docts: pa.Table) -> None:
        """Adds missing rows of earlier documents. `flat` has the columns docid, var1, var2, node1, node2 of R_bin."""
        found = zip(STATE, (flat, r_doc, r_docts), strict=True)
        edges, r_doc, r_docts = (missing(self._store, table, rows) for table, rows in found)
        # Each edge is a group of its own, because the groups of the other edges were made without it.
        pairs = zip(*(edges[name].to_pylist() for name in ("var1", "var2")), strict=True)
        numbers = [self._stage1.groups.number(frozenset((edge,))) for edge in pairs]
        grouped = edges.select(["docid", "node1", "node2"])
        r_bin = grouped.add_column(1, "grp", pa.array(numbers, pa.int32())).cast(R_BIN)
        self._store.extend(Witnesses(r_bin, self._stage1.new_groups(), r_doc, r_docts))


def arriving(record: Record) -> Arriving:
    return record.docid, record.stream, record.t0, record.t1, record.tree
