"""The tables of matches and outputs. A match is a pair of documents on a row of R_T, whoever reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, INTS, TEXT, TEXTS, schema
from mmqjp.tables.table_rows import Rows

TABLES = {
    # `seq` numbers the outputs in the order in which they are committed. `id` is the same wherever an output is made.
    "outputs": schema(
        query=TEXT, t0=INT, t1=INT, documents=TEXTS, streams=TEXTS, nodes=TEXT, xml=TEXT, batch=INT, seq=INT, id=TEXT
    ),
    "match_rows": schema(match=INT, template=INT, docid1=INT, docid2=INT, t0=INT, t1=INT, bindings=INTS),
    "match_queries": schema(match=INT, query=TEXT, qid=INT),
    # Which matches an output is of: one, or one for each row of R_T that gives it.
    "output_matches": schema(seq=INT, match=INT),
}

VIEWS = {
    "matches": """SELECT q.query, m.docid1, m.docid2, m.t0, m.t1, m.bindings, m.match
FROM match_rows m JOIN match_queries q USING (match)""",
}

DOCIDS_OF_OUTPUTS = """SELECT o.seq, m.docid1, m.docid2 FROM output_matches o JOIN match_rows m ON o.match = m.match
ORDER BY m.match"""
"""For each output the pairs of documents that its matches are of, as docids."""


def outputs_between(store: TableStore, low: int, high: int) -> Iterator[dict[str, Any]]:
    """The outputs numbered from `low` to before `high`, in the order of their numbers."""
    return Rows(store).of(f"SELECT * FROM outputs WHERE seq >= {low} AND seq < {high} ORDER BY seq")


def outputs_by_time(store: TableStore, after: int) -> Iterator[dict[str, Any]]:
    """The outputs with numbers greater than `after`, in the order of t1, query, documents."""
    return Rows(store).of(f"SELECT * FROM outputs WHERE seq > {after} ORDER BY t1, query, documents")


def first(store: TableStore, table: str, column: str) -> int | None:
    """The least number in a column of one of these tables; None if there is none."""
    (least,) = store.select(f"SELECT min({column}) AS least FROM {table}")["least"].to_pylist()
    return None if least is None else int(least)
