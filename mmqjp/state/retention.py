"""Retention: drops documents that no join needs, and old outputs, matches and dead letters, for good."""

from __future__ import annotations

from collections.abc import Collection

from join_stage.joiner import JoinEngine
from mmqjp.documents.watermarks import EARLIEST
from mmqjp.tables import documents
from mmqjp.tables.deliveries import Owed, drop_deliveries, join_gaps
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.offsets import compact_offsets, row_count
from mmqjp.tables.settings import compact_settings
from mmqjp.tables.told import drop_told, drop_told_by_removed

ID_RETENTION = 30 * 24 * 3600 * 1_000_000
"""How long ids of documents are kept by default, in microseconds of stream time."""

COMMAND_RETENTION = 7 * 24 * 3600 * 1_000_000
"""How long answers to commands are kept, in microseconds. A command is repeated only after a crash."""

OFFSETS_COMPACTED_AFTER = 1_000
"""The table of offsets is compacted when it has at least this many superseded rows."""


def prune(
    store: JoinEngine,
    ledger: Ledger,
    *,
    evictable: int,
    horizon: int,
    keep: int | None,
    keep_ids: int | None,
    now: int,
    owed: Owed | None = None,
) -> int | None:
    """Drops, within a batch, what is older than `keep` microseconds before `horizon`, the time that all streams have
    reached.

    Documents that begin at `evictable` or later may still be joined and stay. Ids of documents stay for `keep_ids`
    microseconds; None means forever. Without `keep`, only superseded rows are dropped. What is behind outputs that are
    `owed` to sinks stays. Returns the time before which the dropped documents begin, or None if none were dropped.
    """
    ledger.save_next_ids()
    compact_settings(store, ledger.batch)
    drop_told_by_removed(store)
    store.drop_before("commands", "noted_at", now - COMMAND_RETENTION)
    join_gaps(store)
    if keep is None:
        return None
    store.drop_before("dead_letters", "noted_at", now - keep)
    drop_deliveries(store, now - keep)
    store.drop_before("batches", "committed_at", now - keep if owed is None else min(now - keep, owed.committed_at))
    if horizon <= EARLIEST:
        return None
    before = horizon - keep if owed is None else min(horizon - keep, owed.t0)
    for table in ("answers", "match_rows", "earlier_outputs"):
        store.drop_before(table, "t1", before)
    for table in ("answer_matches", "untold", "earlier_match_queries", "earlier_output_matches"):
        store.drop_before(table, "match", ledger.first_match())
    store.drop_before("withheld", "answer", ledger.first_answer())
    unneeded = min(before, evictable)
    documents.keep_ids(store, unneeded)
    if keep_ids is not None:
        store.drop_before("dropped_ids", "t1", horizon - keep_ids)
    if unneeded <= EARLIEST:
        return None
    store.drop_before("documents", "t0", unneeded)
    # No output over what is kept, not even one of a backfill, ends before this.
    drop_told(store, unneeded)
    return unneeded


def prune_offsets(
    store: JoinEngine, ledger: Ledger, sources: Collection[str], files: Collection[tuple[str, str]]
) -> None:
    """Drops, within a batch, superseded offsets, and those of files of `sources` that are gone. `files` are the files
    that exist, as (source, file). Does nothing while there are few."""
    live = [
        offset
        for (source, file), offset in ledger.offsets().items()
        if source not in sources or (source, file) in files
    ]
    if row_count(store) > 2 * len(live) + OFFSETS_COMPACTED_AFTER:
        compact_offsets(store, live, ledger.batch)
