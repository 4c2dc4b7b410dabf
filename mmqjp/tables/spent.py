"""The table of usage: what queries have used of their quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, TEXT, schema
from mmqjp.tables.table_rows import TableRows

# What a query, or a group of readers of a hidden stream, used up to an arrival.
TABLES = {"spent": schema(owner=TEXT, arrival=INT, outputs=INT, work=INT, batch=INT)}


def spent(store: TableStore) -> Iterator[tuple[str, int, int, int]]:
    """Yields all rows as (owner, arrival, outputs, work), in no particular order."""
    return TableRows(store).tuples("spent", "owner arrival outputs work")


def save_spent(store: TableStore, rows: Sequence[tuple[str, int, int, int]], batch: int) -> None:
    """Appends rows like those of `spent`, in a batch."""
    TableRows(store).append("spent", [(*row, batch) for row in rows])


def drop_spent(store: TableStore, batch: int) -> None:
    """Drops the rows written before a batch."""
    store.drop_before("spent", "batch", batch)
