"""The table of what was spent of bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, TEXT, schema
from mmqjp.tables.table_rows import Rows

# What a query, or those who read a hidden stream alike, took up to an arrival, of what is bounded.
TABLES = {"spent": schema(owner=TEXT, arrival=INT, outputs=INT, work=INT, batch=INT)}


def spent(store: TableStore) -> Iterator[tuple[str, int, int, int]]:
    """All that is noted, in no particular order: owner, arrival, outputs, work."""
    return Rows(store).tuples("spent", "owner arrival outputs work")


def save_spent(store: TableStore, rows: Sequence[tuple[str, int, int, int]], batch: int) -> None:
    """Writes rows like those of `spent`, in the batch of a number."""
    Rows(store).append("spent", [(*row, batch) for row in rows])


def drop_spent(store: TableStore, batch: int) -> None:
    """Drops what was written before the batch of a number."""
    store.drop_before("spent", "batch", batch)
