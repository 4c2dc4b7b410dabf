"""The tables of a store beside the join state, as Arrow schemas, and the views over them: what a store is opened with.

Tables are append-only: each row is written by one batch.
"""

from __future__ import annotations

import pyarrow as pa

from join_stage.store.schema import NumberedViews, StoreSchema

_INT, _TEXT = pa.int64(), pa.string()
_INTS, _TEXTS = pa.list_(_INT), pa.list_(_TEXT)


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


TABLES = {
    # `kind` is external, published or hidden. `parts` and `part_ids` tell documents of a chain apart; `source_*`
    # the external documents behind one; `bound_*` what each child of a hidden stream's tuple stands for. `arrival` is
    # the place of the latest external document behind one among all of them, `appeared` when each part came in.
    "documents": _schema(
        docid=_INT,
        id=_TEXT,
        stream=_TEXT,
        t0=_INT,
        t1=_INT,
        xml=_TEXT,
        kind=_TEXT,
        parts=_INTS,
        part_ids=_TEXTS,
        source_ids=_TEXTS,
        source_streams=_TEXTS,
        bound_docids=_INTS,
        bound_nodes=_INTS,
        arrival=_INT,
        appeared=_INTS,
    ),
    # External documents that were met and are not kept any more.
    "dropped_ids": _schema(id=_TEXT, stream=_TEXT, t1=_INT),
    "dead_letters": _schema(id=_TEXT, stream=_TEXT, time=_INT, reason=_TEXT, raw=pa.binary(), noted_at=_INT),
    "outputs": _schema(
        query=_TEXT, t0=_INT, t1=_INT, documents=_TEXTS, streams=_TEXTS, nodes=_TEXT, xml=_TEXT, batch=_INT
    ),
    # When a batch was taken in and committed, and what it brought. Batches that only note something have no row.
    "batches": _schema(batch=_INT, taken_at=_INT, committed_at=_INT, documents=_INT, dead_letters=_INT, outputs=_INT),
    "match_rows": _schema(match=_INT, template=_INT, docid1=_INT, docid2=_INT, t0=_INT, t1=_INT, bindings=_INTS),
    "match_queries": _schema(match=_INT, query=_TEXT, qid=_INT),
    "added_queries": _schema(
        qid=_INT, name=_TEXT, text=_TEXT, occurrence=_INT, template=_INTS, window_us=_INT, added_at=_INT, since=_INT
    ),
    # `place` counts the conjunctive queries of a query or of an inner join from 0; `streams` are what it reads.
    "placements": _schema(
        qid=_INT, template=_INT, variables=_INTS, window_us=_INT, place=_INT, op=_TEXT, streams=_TEXTS
    ),
    # The hidden streams behind a query: those of several queries are there for each.
    "inner_placements": _schema(
        qid=_INT, stream=_TEXT, template=_INT, variables=_INTS, window_us=_INT, place=_INT, op=_TEXT, streams=_TEXTS
    ),
    "removed_queries": _schema(qid=_INT, removed_at=_INT),
    # `node` is the definition's last step as `xscl.algebra.pattern_json` writes it. One row of a variable has it.
    "variables": _schema(var=_INT, parent=_INT, stream=_TEXT, definition=_TEXT, node=_TEXT),
    # The chains of functions whose numbers stand in the ids of nodes of the join state.
    "chains": _schema(chain=_INT, functions=_TEXTS),
    "templates": _schema(template=_INT, left_nodes=_INT, parents=_INTS, joins=_INTS),
    "settings": _schema(key=_TEXT, value=_TEXT, batch=_INT),
    # `mark` tells which file it was, whatever its name is by now.
    "offsets": _schema(source=_TEXT, file=_TEXT, position=_INT, batch=_INT, mark=_TEXT),
    # A query rests from behind a document on, for a reason, or goes on from there: then the reason is null.
    "pauses": _schema(qid=_INT, docid=_INT, reason=_TEXT, noted_at=_INT, batch=_INT),
    # What a query, or those who read a hidden stream alike, took up to an arrival, of what is bounded.
    "spent": _schema(owner=_TEXT, arrival=_INT, outputs=_INT, work=_INT, batch=_INT),
    "commands": _schema(id=_TEXT, answer=_TEXT, noted_at=_INT, batch=_INT),
}
"""Of several `settings` of one key the one of the highest batch counts, and so with `offsets` of one
source and file: how far a service has read it."""

VIEWS = {
    "queries": """SELECT a.qid, a.name, a.text, a.template, a.window_us, a.added_at, r.removed_at
FROM added_queries a LEFT JOIN removed_queries r USING (qid)""",
    "matches": """SELECT q.query, m.docid1, m.docid2, m.t0, m.t1, m.bindings
FROM match_rows m JOIN match_queries q USING (match)""",
}
"""What stands over the tables, beside R_T."""


def _r_t(template: int, parents: list[int | None], first_index: int) -> str:
    """R_T as in Table 6.4(a): a row for each conjunctive query of each query."""
    variables = ", ".join(f"variables[{first_index + i}] AS var{i + 1}" for i in range(len(parents)))
    return f"""SELECT qid, {variables}, window_us AS wl
FROM placements WHERE template = {template} AND qid NOT IN (SELECT qid FROM removed_queries)"""


R_T = NumberedViews("r_t_", "templates", "template", "parents", _r_t)

_DOCUMENTED = ("documents", "queries", "matches", "outputs", "dead_letters", "batches", "r_bin", "r_doc", "r_docts")

SCHEMA = StoreSchema(TABLES, VIEWS, R_T, documented=_DOCUMENTED)
"""What a store has beside the join state."""
