"""The tables of the join state (thesis 6.3.1), as Arrow schemas, and what a store of each engine has of them."""

from __future__ import annotations

import pyarrow as pa

from join_stage.store.schema import Dated, StoreSchema
from templates.witness import R_BIN, R_DOC, R_GROUP

R_BIN_FLAT = pa.schema(
    [
        ("docid", pa.int64()),
        ("var1", pa.int32()),
        ("var2", pa.int32()),
        ("node1", pa.int64()),
        ("node2", pa.int64()),
    ]
)
"""R_bin with a row for each edge."""

R_DOCTS_STORED = pa.schema([("docid", pa.int64()), ("timestamp", pa.int64()), ("t0", pa.int64()), ("t1", pa.int64())])
"""R_docTS; `timestamp` is the thesis' name for t0."""

STATE = {"r_bin": R_BIN_FLAT, "r_doc": R_DOC, "r_docts": R_DOCTS_STORED}
"""The join state, which each batch extends and eviction shortens."""

BOUND_STATE = {"bound": R_BIN, "r_doc": R_DOC, "r_docts": R_DOCTS_STORED}
"""The same as it comes from stage 1: R_bin by groups of edges, which the table `groups` has."""

_GROUPS = {"groups": R_GROUP}

_R_BIN = "SELECT docid, var1, var2, node1, node2 FROM bound JOIN groups USING (grp)"

_DATED = Dated(tuple(STATE), "r_docts", "t0")

FLAT_STORE = StoreSchema(STATE | _GROUPS, dated=_DATED)
"""What a store has that keeps R_bin by edges, on Spark."""

BOUND_STORE = StoreSchema(BOUND_STATE | _GROUPS, {"r_bin": _R_BIN})
"""What a store has that keeps R_bin by groups, on DuckDB: r_bin is a view."""

NOTHING_ELSE = StoreSchema()
"""That of a store of the join state alone."""
