"""The plans of the DuckDB engine: what they have in common, and `basic` (thesis, Algorithm 1)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import duckdb
import pyarrow as pa

from join_stage.batch_sql import NEW_LEFT, NEW_RIGHT, QueryForm, TemplateTable, batch_statements, value_pairs_statement
from join_stage.costs import Cost
from join_stage.joiner import RESULT, Batch, Matches
from join_stage.plan import Plan, SQLPlan
from join_stage.store.duckdb_tables import registered
from templates.catalog import Row
from templates.conjunctive import executable_query

JOINS = 40
"""The number of joins in a statement. DuckDB starts all branches of a union at once and reserves up to 4 MiB for each
join and thread, which it cannot spill: sixty templates in one statement exceeded the memory limit over hardly any data.
Statements of 40 joins were also 10 to 20 % faster than statements of 80 or 160."""


class DuckDBPlan(Plan, Protocol):
    """A plan over the connection of the engine, whose tables r_bin, r_doc and r_docts are the join state.

    A batch is a transaction: what a plan writes to the database in it is rolled back with it. r_bin_w, r_doc_w and
    r_docts_w hold the batch; r_bin_old, r_doc_old and r_docts_old hold what was there before.
    """

    def join(self, batch: Batch) -> Matches:
        """Answers all templates for a batch, which the state already holds."""

    def evicted(self, docids: str, before: int) -> None:
        """Is told that the documents that begin before a time leave the state. The SQL query `docids` gives their
        ids."""


class DuckDBBasicPlan(SQLPlan):
    """The plan `basic`: the conjunctive queries of all templates over the join state. `DuckDBViewsPlan` extends it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        super().__init__()
        self._connection = connection

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        if template.number not in self._templates:
            self._templates[template.number] = template
            columns = ", ".join(f"{c} {'INTEGER' if c.startswith('var') else 'BIGINT'}" for c in template.columns[:-1])
            self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {template.name} ({columns}, ordered BOOLEAN)")
        self._delete_rows(template, rows)
        values = zip(*((row.id, *row.variables, row.window, row.ordered) for row in rows), strict=True)
        table = pa.table([pa.array(column) for column in values], names=template.columns)
        with registered(self._connection, {"fresh_rows": table}):
            self._connection.execute(f"INSERT INTO {template.name} SELECT * FROM fresh_rows")

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._delete_rows(template, rows)
        if self._connection.execute(f"SELECT count(*) FROM {template.name}").fetchall() == [(0,)]:
            del self._templates[template.number]

    def _delete_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        ids = pa.table({"qid": pa.array([row.id for row in rows], pa.int64())})
        with registered(self._connection, {"stale_rows": ids}):
            self._connection.execute(f"DELETE FROM {template.name} WHERE qid IN (SELECT qid FROM stale_rows)")

    def join(self, batch: Batch) -> pa.Table:
        with registered(self._connection, {"joined_streams": batch.scope.joined_streams()}):
            for side in (NEW_RIGHT, NEW_LEFT) if batch.older else (NEW_RIGHT,):
                state = "r_doc_all" if batch.has_many_values else "r_doc"
                pairs = value_pairs_statement(side, batch.scope.window, many=batch.has_many_values, state=state)
                self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {side.pairs} AS {pairs}")
        return self._answer(batch)

    def _answer(self, batch: Batch, form: QueryForm = executable_query) -> pa.Table:
        """The matches of all templates, once the tables that their queries read are there."""
        templates = list(self._templates.values())
        statements = batch_statements(templates, "[{}]", with_old=batch.older, joins=JOINS, form=form)
        results = [RESULT.empty_table()]
        for statement, numbers in statements:
            begin = time.perf_counter()
            results.append(self._connection.sql(statement).to_arrow_table())
            self._costs.add(Cost(time.perf_counter() - begin, len(results[-1]), numbers))
        return pa.concat_tables(results)

    def evicted(self, docids: str, before: int) -> None:
        """Does nothing: the plan keeps nothing about documents."""
