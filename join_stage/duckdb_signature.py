"""The `signature` plan on DuckDB: builds the postings from the tables of the connection."""

from __future__ import annotations

import duckdb

from join_stage.joiner import Batch, Matches
from join_stage.signature.signature_plan import SignaturePlan, StoredState
from join_stage.state_tables import BOUND_STATE
from templates.witness import R_GROUP, Witnesses


class DuckDBSignaturePlan(SignaturePlan):
    """A `DuckDBPlan`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        super().__init__()
        self._connection = connection

    def join(self, batch: Batch) -> Matches:
        return self.answer(batch, lambda: self._stored(batch))

    def evicted(self, docids: str, before: int) -> None:
        self.evict(before)

    def _stored(self, batch: Batch) -> StoredState:
        groups = self._connection.table("groups").to_arrow_table()
        if not batch.older:
            return StoredState(groups, None)
        older = (f"FROM {name} WHERE docid < {batch.first_docid}" for name in BOUND_STATE)
        bound, r_doc, r_docts = (self._connection.sql(query).to_arrow_table() for query in older)
        return StoredState(groups, Witnesses(bound, R_GROUP.empty_table(), r_doc, r_docts))
