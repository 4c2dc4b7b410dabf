"""The tables of a store beside the join state, as Arrow schemas, and the views over them: what a store is opened with.

Tables are append-only: each row is written by one batch.
"""

from __future__ import annotations

import pyarrow as pa

from join_stage.store.schema import StoreSchema
from mmqjp.tables import batches, commands, dead_letters, documents, offsets, queries, settings, spent

_INT, _TEXT = pa.int64(), pa.string()
_INTS, _TEXTS = pa.list_(_INT), pa.list_(_TEXT)


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


_ANSWERS = {
    "outputs": _schema(
        query=_TEXT, t0=_INT, t1=_INT, documents=_TEXTS, streams=_TEXTS, nodes=_TEXT, xml=_TEXT, batch=_INT
    ),
    "match_rows": _schema(match=_INT, template=_INT, docid1=_INT, docid2=_INT, t0=_INT, t1=_INT, bindings=_INTS),
    "match_queries": _schema(match=_INT, query=_TEXT, qid=_INT),
}

_ANSWERS_VIEWS = {
    "matches": """SELECT q.query, m.docid1, m.docid2, m.t0, m.t1, m.bindings
FROM match_rows m JOIN match_queries q USING (match)""",
}

TABLES = (
    documents.TABLES
    | dead_letters.TABLES
    | _ANSWERS
    | batches.TABLES
    | queries.TABLES
    | settings.TABLES
    | offsets.TABLES
    | spent.TABLES
    | commands.TABLES
)

_DOCUMENTED = ("documents", "queries", "matches", "outputs", "dead_letters", "batches", "r_bin", "r_doc", "r_docts")

SCHEMA = StoreSchema(TABLES, queries.VIEWS | _ANSWERS_VIEWS, queries.R_T, documented=_DOCUMENTED)
"""What a store has beside the join state."""
