"""The table of batches that brought something."""

from __future__ import annotations

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, schema
from mmqjp.tables.table_rows import Rows

# When a batch was taken in and committed, and what it brought. Batches that only note something have no row.
TABLES = {
    "batches": schema(batch=INT, taken_at=INT, committed_at=INT, documents=INT, dead_letters=INT, outputs=INT),
}


def save_batch(
    store: TableStore, batch: int, taken_at: int, committed_at: int, documents: int, dead_letters: int, outputs: int
) -> None:
    """Writes of a batch, if it brought anything, how much; times in microseconds."""
    if documents or dead_letters or outputs:
        Rows(store).append("batches", [(batch, taken_at, committed_at, documents, dead_letters, outputs)])
