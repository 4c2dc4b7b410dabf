"""The table of batches."""

from __future__ import annotations

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, schema
from mmqjp.tables.table_rows import TableRows

# When a batch was received and committed, and how many rows it added. Batches of metadata alone have no row.
TABLES = {
    "batches": schema(batch=INT, taken_at=INT, committed_at=INT, documents=INT, dead_letters=INT, outputs=INT),
}


def save_batch(
    store: TableStore, batch: int, taken_at: int, committed_at: int, documents: int, dead_letters: int, outputs: int
) -> None:
    """Writes the row of a batch, unless it added nothing. Times are in microseconds."""
    if documents or dead_letters or outputs:
        TableRows(store).append("batches", [(batch, taken_at, committed_at, documents, dead_letters, outputs)])
