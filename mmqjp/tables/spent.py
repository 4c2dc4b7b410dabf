"""The table of usage: what queries have used of their quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, TEXT, schema
from mmqjp.tables.table_rows import TableRows

# What the members of a form, a query, or a group of readers of a hidden stream used up to an arrival. `owner` is the id
# of a form, the qid of a query, or the key of a group. What members of a form used counts for those with a window of at
# least `width`, that see documents after `since`, have at least `first_qid`, and began in the batch `begun` or before.
# What a query used is added to that.
TABLES = {
    "spent": schema(
        owner=TEXT, arrival=INT, outputs=INT, work=INT, batch=INT, width=INT, since=INT, first_qid=INT, begun=INT
    )
}

UsageKey = tuple[str, int, int, int, int]
"""Owner, width, since, first_qid, begun."""

NO_FORM = (-1, -1, -1, 0)
"""All but the owner, if it is no form. Of a query, the last number is the batch in which it began."""


def spent(store: TableStore) -> Iterator[tuple[UsageKey, int, int, int]]:
    """Yields all rows as (key, arrival, outputs, work), in no particular order."""
    columns = "owner width since first_qid begun arrival outputs work"
    for owner, width, since, first_qid, begun, arrival, outputs, work in TableRows(store).tuples("spent", columns):
        key = NO_FORM if width is None else (width, since, first_qid, begun)  # null in earlier formats
        yield (owner, *key), arrival, outputs, work


def save_spent(store: TableStore, rows: Sequence[tuple[UsageKey, int, int, int]], batch: int) -> None:
    """Appends rows like those of `spent`, in a batch."""
    TableRows(store).append(
        "spent", [(owner, arrival, outputs, work, batch, *key) for (owner, *key), arrival, outputs, work in rows]
    )


def drop_spent(store: TableStore, batch: int) -> None:
    """Drops the rows written before a batch."""
    store.drop_before("spent", "batch", batch)
