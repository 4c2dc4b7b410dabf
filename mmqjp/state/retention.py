"""What is let go of for good: documents that no join can need any more, and old outputs, matches and dead letters."""

from __future__ import annotations

from collections.abc import Collection

from join_stage.joiner import JoinEngine
from mmqjp.documents.watermarks import EARLIEST
from mmqjp.tables import documents
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.offsets import count, renew_offsets
from mmqjp.tables.settings import drop_superseded

ID_RETENTION = 30 * 24 * 3600 * 1_000_000
"""How long, microseconds of stream time, the ids of documents are known where nothing else is said."""

COMMAND_RETENTION = 7 * 24 * 3600 * 1_000_000
"""How long, microseconds, what was answered to a command is known: the command may come again only after a kill."""

SUPERSEDED = 1_000
"""So many offsets that count no longer are kept, at the least, before they are dropped."""


def prune(
    store: JoinEngine, ledger: Ledger, *, evictable: int, horizon: int, keep: int | None, keep_ids: int | None, now: int
) -> int | None:
    """Drops, within a batch, what is older than `keep` microseconds before the `horizon`, the time up to which all
    streams have come. Documents that begin from `evictable` on may still be joined and stay; ids stay for `keep_ids`
    (None: for ever).

    Everything must have been delivered. With no `keep` only what is superseded goes. Returns the time before which the
    documents that are dropped begin; None if none are.
    """
    ledger.keep_numbers()
    drop_superseded(store, ledger.batch)
    store.drop_before("commands", "noted_at", now - COMMAND_RETENTION)
    if keep is None:
        return None
    store.drop_before("dead_letters", "noted_at", now - keep)
    store.drop_before("batches", "committed_at", now - keep)
    if horizon <= EARLIEST:
        return None
    before = horizon - keep
    for table in ("outputs", "match_rows"):
        store.drop_before(table, "t1", before)
    for table in ("match_queries", "output_matches"):
        store.drop_before(table, "match", ledger.first_match())
    unneeded = min(before, evictable)
    documents.keep_ids(store, unneeded)
    if keep_ids is not None:
        store.drop_before("dropped_ids", "t1", horizon - keep_ids)
    if unneeded <= EARLIEST:
        return None
    store.drop_before("documents", "t0", unneeded)
    return unneeded


def prune_offsets(
    store: JoinEngine, ledger: Ledger, sources: Collection[str], files: Collection[tuple[str, str]]
) -> None:
    """Drops, within a batch, offsets that later ones have superseded, and those of files of `sources` that are gone:
    `files` are those that are there. Nothing, while they are few."""
    live = [
        offset
        for (source, file), offset in ledger.offsets().items()
        if source not in sources or (source, file) in files
    ]
    if count(store) > 2 * len(live) + SUPERSEDED:
        renew_offsets(store, live, ledger.batch)
