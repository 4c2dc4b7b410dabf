"""The table of what was told once: the keys of the outputs of queries with ONCE PER."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, schema
from mmqjp.tables.table_rows import TableRows

# A query told a key in an output that ended at `t1`. `high` and `low` are the halves of the key's digest. Outputs with
# the key are not told up to `until`; null is for ever.
TABLES = {"told": schema(qid=INT, high=INT, low=INT, t1=INT, until=INT)}

ASKED = schema(qid=INT, high=INT, low=INT, earliest=INT, latest=INT)

ToldRow = tuple[int, int, int, int, int | None]
"""A row of the table."""


def told_among(store: TableStore, asked: Sequence[tuple[int, int, int, int, int]]) -> pa.Table:
    """Returns `qid`, `high`, `low` and `t1` of what was told of some distinct keys, each with the query that asks, and
    the least and the greatest `t1` that matter to it."""
    columns = list(zip(*asked, strict=True)) or [()] * len(ASKED)
    keys = pa.table([pa.array(column, INT) for column in columns], schema=ASKED)
    sql = "SELECT qid, high, low, t1 FROM told JOIN asked USING (qid, high, low) WHERE t1 BETWEEN earliest AND latest"
    return store.select(sql, {"asked": keys})


def save_told(store: TableStore, rows: Sequence[ToldRow]) -> None:
    """Appends rows."""
    TableRows(store).append("told", rows)


def drop_told(store: TableStore, before: int) -> None:
    """Drops what matters only to outputs that end before a time."""
    store.drop_before("told", "until", before)


def drop_told_by_removed(store: TableStore) -> None:
    """Drops what queries told that are removed. Their qids are never used again."""
    qids = pc.unique(store.read("removed_queries", ["qid"])["qid"])
    if len(qids) and len(store.find("told", "qid", qids)):
        rows = store.read("told", TABLES["told"].names)
        store.drop_before("told", "qid", pc.max(rows["qid"]).as_py() + 1)
        store.append("told", rows.filter(pc.invert(pc.is_in(rows["qid"], qids))))
