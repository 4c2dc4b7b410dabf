"""The table of offsets: how far each file is read. The row with the highest batch is the current one."""

from __future__ import annotations

from collections.abc import Iterable

from feeds.offsets import Offset
from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, TEXT, schema
from mmqjp.tables.table_rows import TableRows

# `mark` is the fingerprint of the file, which identifies it after it was renamed.
OFFSETS = schema(source=TEXT, file=TEXT, position=INT, batch=INT, mark=TEXT)

TABLES = {"offsets": OFFSETS}


def offsets(store: TableStore) -> dict[tuple[str, str], Offset]:
    """Returns the offset of each file, by source and file."""
    sql = """SELECT source, file, position, mark FROM offsets JOIN
(SELECT source, file, max(batch) AS batch FROM offsets GROUP BY source, file) latest USING (source, file, batch)"""
    return by_file(Offset(r["source"], r["file"], r["position"], r["mark"] or "") for r in TableRows(store).select(sql))


def by_file(found: Iterable[Offset]) -> dict[tuple[str, str], Offset]:
    """Returns offsets by source and file. Of several for one file the last one wins."""
    return {(offset.source, offset.file): offset for offset in found}


def save_offsets(store: TableStore, found: Iterable[Offset], batch: int) -> None:
    """Writes offsets in a batch."""
    TableRows(store).append("offsets", [(o.source, o.file, o.position, batch, o.fingerprint or None) for o in found])


def compact_offsets(store: TableStore, latest: Iterable[Offset], batch: int) -> None:
    """Writes the current offsets again, in a batch, and drops all earlier rows."""
    store.drop_before("offsets", "batch", batch)
    save_offsets(store, latest, batch)


def row_count(store: TableStore) -> int:
    """Returns the number of rows, superseded ones included."""
    (rows,) = store.select("SELECT count(*) AS n FROM offsets")["n"].to_pylist()
    return int(rows)
