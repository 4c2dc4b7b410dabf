"""The tables of queries: their texts, what they share, where they stand in it, and when they rest."""

from __future__ import annotations

from join_stage.store.protocol import TableStore
from join_stage.store.schema import NumberedViews
from mmqjp.tables.columns import INT, INTS, TEXT, TEXTS, schema

TABLES = {
    "added_queries": schema(
        qid=INT, name=TEXT, text=TEXT, occurrence=INT, template=INTS, window_us=INT, added_at=INT, since=INT
    ),
    # `place` counts the conjunctive queries of a query or of an inner join from 0; `streams` are what it reads.
    "placements": schema(qid=INT, template=INT, variables=INTS, window_us=INT, place=INT, op=TEXT, streams=TEXTS),
    # The hidden streams behind a query: those of several queries are there for each.
    "inner_placements": schema(
        qid=INT, stream=TEXT, template=INT, variables=INTS, window_us=INT, place=INT, op=TEXT, streams=TEXTS
    ),
    "removed_queries": schema(qid=INT, removed_at=INT),
    # `node` is the definition's last step as `xscl.algebra.pattern_json` writes it. One row of a variable has it.
    "variables": schema(var=INT, parent=INT, stream=TEXT, definition=TEXT, node=TEXT),
    # The chains of functions whose numbers stand in the ids of nodes of the join state.
    "chains": schema(chain=INT, functions=TEXTS),
    "templates": schema(template=INT, left_nodes=INT, parents=INTS, joins=INTS),
    # A query rests from behind a document on, for a reason, or goes on from there: then the reason is null.
    "pauses": schema(qid=INT, docid=INT, reason=TEXT, noted_at=INT, batch=INT),
}

VIEWS = {
    "queries": """SELECT a.qid, a.name, a.text, a.template, a.window_us, a.added_at, r.removed_at
FROM added_queries a LEFT JOIN removed_queries r USING (qid)""",
}


def _r_t(template: int, parents: list[int | None], first_index: int) -> str:
    """R_T as in Table 6.4(a): a row for each conjunctive query of each query."""
    variables = ", ".join(f"variables[{first_index + i}] AS var{i + 1}" for i in range(len(parents)))
    return f"""SELECT qid, {variables}, window_us AS wl
FROM placements WHERE template = {template} AND qid NOT IN (SELECT qid FROM removed_queries)"""


R_T = NumberedViews("r_t_", "templates", "template", "parents", _r_t)


def added_at(store: TableStore, qid: int) -> int:
    """When a query was added, microseconds."""
    (time,) = store.select(f"SELECT added_at FROM added_queries WHERE qid = {qid}")["added_at"].to_pylist()
    return int(time)
