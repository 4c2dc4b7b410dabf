"""The tables of queries: texts, memberships of forms, shared catalog, placements, pauses."""

from __future__ import annotations

import pyarrow as pa

from join_stage.store.protocol import TableStore
from join_stage.store.schema import NumberedViews
from mmqjp.tables.columns import INT, INTS, TEXT, TEXTS, schema
from templates.catalog import INFINITE

TABLES = {
    # `form` is the id of the query's form, and `identity` the part of its outputs' ids that they share.
    "added_queries": schema(
        qid=INT,
        name=TEXT,
        text=TEXT,
        occurrence=INT,
        template=INTS,
        window_us=INT,
        added_at=INT,
        since=INT,
        form=TEXT,
        identity=TEXT,
    ),
    # A query is a member of its form from a batch on, if `begins` is 1, or, if it is 0, up to an arrival of a batch.
    "memberships": schema(qid=INT, batch=INT, begins=INT, arrival=INT),
    # `place` numbers the conjunctive queries of a query or inner join from 0; `streams` has one stream per side.
    "placements": schema(qid=INT, template=INT, variables=INTS, window_us=INT, place=INT, op=TEXT, streams=TEXTS),
    # The hidden streams behind a query. A stream that several queries share has rows for each of them.
    "inner_placements": schema(
        qid=INT, stream=TEXT, template=INT, variables=INTS, window_us=INT, place=INT, op=TEXT, streams=TEXTS
    ),
    "removed_queries": schema(qid=INT, removed_at=INT),
    # `node` is the last step of the definition, written by `xscl.algebra.pattern_json`. One row per variable has it.
    "variables": schema(var=INT, parent=INT, stream=TEXT, definition=TEXT, node=TEXT),
    # The chains of functions whose numbers are part of node ids in the join state.
    "chains": schema(chain=INT, functions=TEXTS),
    "templates": schema(template=INT, left_nodes=INT, parents=INTS, joins=INTS),
    # A query is paused after a document for a reason, or, if the reason is null, resumed after it.
    "pauses": schema(qid=INT, docid=INT, reason=TEXT, noted_at=INT, batch=INT),
}

VIEWS = {
    "queries": """SELECT a.qid, a.name, a.text, a.template, a.window_us, a.added_at, r.removed_at
FROM added_queries a LEFT JOIN removed_queries r USING (qid)""",
    # The times at which queries were members of their forms (see `mmqjp.queries.members`).
    "members": f"""SELECT q.qid, q.name, q.form, q.identity, q.since, coalesce(q.window_us, {INFINITE}) AS widest,
m.begun, coalesce(m.ended, {INFINITE}) AS ended, coalesce(m.ended_at, {INFINITE}) AS ended_at
FROM (
  SELECT qid, begins, batch AS begun, lead(batch) OVER (PARTITION BY qid ORDER BY batch, begins DESC) AS ended,
  lead(arrival) OVER (PARTITION BY qid ORDER BY batch, begins DESC) AS ended_at FROM memberships
) m JOIN added_queries q ON m.qid = q.qid WHERE m.begins = 1""",
}


def _r_t(template: int, parents: list[int | None], first_index: int) -> str:
    """R_T as in the thesis, Table 6.4(a): a row for each conjunctive query of each query."""
    variables = ", ".join(f"variables[{first_index + i}] AS var{i + 1}" for i in range(len(parents)))
    return f"""SELECT qid, {variables}, window_us AS wl
FROM placements WHERE template = {template} AND qid NOT IN (SELECT qid FROM removed_queries)"""


R_T = NumberedViews("r_t_", "templates", "template", "parents", _r_t)


def added_at(store: TableStore, qid: int) -> int:
    """Returns when a query was added, in microseconds."""
    (time,) = store.select(f"SELECT added_at FROM added_queries WHERE qid = {qid}")["added_at"].to_pylist()
    return int(time)


def removed_texts(store: TableStore, name: str) -> list[str]:
    """Returns the distinct texts of the queries that were registered under a name and removed."""
    sql = """SELECT DISTINCT q.text FROM added_queries q JOIN asked a ON q.name = a.name
JOIN removed_queries r ON q.qid = r.qid ORDER BY q.text"""
    texts: list[str] = store.select(sql, {"asked": pa.table({"name": [name]})})["text"].to_pylist()
    return texts
