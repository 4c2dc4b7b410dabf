"""The tables of matches and outputs. A match is a pair of documents on a row of R_T, shared by all its subscribers."""

from __future__ import annotations

import pyarrow as pa

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, INTS, TEXT, TEXTS, schema

TABLES = {
    # `seq` numbers outputs in the order in which they are committed. `id` is the same on every engine.
    "outputs": schema(
        query=TEXT, t0=INT, t1=INT, documents=TEXTS, streams=TEXTS, nodes=TEXT, xml=TEXT, batch=INT, seq=INT, id=TEXT
    ),
    "match_rows": schema(match=INT, template=INT, docid1=INT, docid2=INT, t0=INT, t1=INT, bindings=INTS),
    "match_queries": schema(match=INT, query=TEXT, qid=INT),
    # The matches behind an output: one for each row of R_T that gave it.
    "output_matches": schema(seq=INT, match=INT),
}

VIEWS = {
    "matches": """SELECT q.query, m.docid1, m.docid2, m.t0, m.t1, m.bindings, m.match
FROM match_rows m JOIN match_queries q USING (match)""",
}

DOCIDS_OF_OUTPUTS = """SELECT o.seq, m.docid1, m.docid2 FROM output_matches o JOIN match_rows m ON o.match = m.match
ORDER BY m.match"""
"""For each output, the pairs of docids of its matches."""


def outputs_between(store: TableStore, low: int, high: int) -> pa.Table:
    """Returns the outputs with `low` <= seq < `high`, in the order of seq."""
    return store.select(f"SELECT * FROM outputs WHERE seq >= {low} AND seq < {high} ORDER BY seq")


def outputs_by_time(store: TableStore, after: int) -> pa.Table:
    """Returns the outputs with seq > `after`, in the order of t1, query, documents."""
    return store.select(f"SELECT * FROM outputs WHERE seq > {after} ORDER BY t1, query, documents")


def lowest(store: TableStore, table: str, column: str) -> int | None:
    """Returns the lowest number in a column of one of these tables, or None if the table is empty."""
    (least,) = store.select(f"SELECT min({column}) AS least FROM {table}")["least"].to_pylist()
    return None if least is None else int(least)
