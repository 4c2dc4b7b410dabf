"""The table of offsets: how far sources are read. Of several rows of one file the one of the highest batch counts."""

from __future__ import annotations

from collections.abc import Iterable

from feeds.offsets import Offset
from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, TEXT, schema
from mmqjp.tables.table_rows import Rows

# `mark` is the fingerprint of the file, which tells it whatever its name is by now.
OFFSETS = schema(source=TEXT, file=TEXT, position=INT, batch=INT, mark=TEXT)

TABLES = {"offsets": OFFSETS}


def offsets(store: TableStore) -> dict[tuple[str, str], Offset]:
    """How far each file of each source was read, by source and file."""
    sql = """SELECT source, file, position, mark FROM offsets JOIN
(SELECT source, file, max(batch) AS batch FROM offsets GROUP BY source, file) latest USING (source, file, batch)"""
    return by_file(Offset(r["source"], r["file"], r["position"], r["mark"] or "") for r in Rows(store).of(sql))


def by_file(found: Iterable[Offset]) -> dict[tuple[str, str], Offset]:
    """Offsets by source and file; of several of one file the last."""
    return {(offset.source, offset.file): offset for offset in found}


def save_offsets(store: TableStore, found: Iterable[Offset], batch: int) -> None:
    """Writes offsets, in the batch of a number."""
    Rows(store).append("offsets", [(o.source, o.file, o.position, batch, o.fingerprint or None) for o in found])


def renew_offsets(store: TableStore, latest: Iterable[Offset], batch: int) -> None:
    """Writes the offsets that count anew, in the batch of a number, and drops all that were written before."""
    store.drop_before("offsets", "batch", batch)
    save_offsets(store, latest, batch)


def count(store: TableStore) -> int:
    """How many rows there are, those that count no longer included."""
    (rows,) = store.select("SELECT count(*) AS n FROM offsets")["n"].to_pylist()
    return int(rows)
