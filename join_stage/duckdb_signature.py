"""The `signature` plan of the DuckDB engine: postings in memory, made anew from the join state when in doubt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

import duckdb

from join_stage.costs import Cost
from join_stage.joiner import Batch, Matches
from join_stage.plan import TemplateTable
from join_stage.signature.joiner import Mark, SignatureJoin
from join_stage.state_tables import BOUND_STATE
from templates.catalog import Edge, Row
from templates.witness import R_GROUP, Witnesses


class SignaturePlan:
    """Joins in memory beside the connection, whose tables are what is kept for good."""

    in_sql: ClassVar[bool] = False

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._join = SignatureJoin()
        self._loaded = False
        self._before: Mark | None = None
        self._extended = False

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._join.put_rows(template.shape, rows)

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._join.drop_rows(rows)

    def join(self, batch: Batch) -> Matches:
        if not self._loaded:
            self._join.restart(self._connection.table("groups").to_arrow_table())
            if batch.older:
                older = (f"FROM {name} WHERE docid < {batch.first_docid}" for name in BOUND_STATE)
                bound, r_doc, r_docts = (self._connection.sql(query).to_arrow_table() for query in older)
                self._join.load(Witnesses(bound, R_GROUP.empty_table(), r_doc, r_docts))
            self._loaded = True
        self._note()
        return self._join.join(batch.witnesses, batch.scope)

    def evicted(self, docids: str, before: int) -> None:
        self._note()
        self._join.evict(before)

    def extended(self) -> None:
        """The postings lack what was added; those that are made from now on have it, and go if the batch does."""
        self._loaded, self._extended = False, True

    def regrouped(self, kept: Collection[int], edges: Collection[Edge]) -> None:
        self._note()
        self._join.keep_groups(kept, edges)

    def _note(self) -> None:
        """Notes what is kept before a batch changes it."""
        self._before = self._before or self._join.mark()

    def committed(self) -> None:
        self._before, self._extended = None, False

    def rolled_back(self, *, whole: bool) -> None:
        if self._before is not None:
            whole = whole and not self._extended
            self._loaded = whole and self._loaded and self._join.back_to(self._before)
        self._before, self._extended = None, False

    def counters(self) -> dict[str, int]:
        return self._join.counters()

    def costs(self) -> dict[int, Cost]:
        return self._join.costs.of_templates()
