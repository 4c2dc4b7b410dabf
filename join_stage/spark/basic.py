"""The plans of the Spark engine: what they have in common, and `basic` (thesis, Algorithm 1)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from join_stage.batch_sql import NEW_LEFT, NEW_RIGHT, QueryForm, TemplateTable, batch_statements, value_pairs_statement
from join_stage.costs import Cost
from join_stage.joiner import RESULT, Batch, Matches
from join_stage.plan import Plan, SQLPlan
from join_stage.state_tables import STATE
from join_stage.store.spark.tables import TableViews, local_frame
from templates.catalog import Row
from templates.conjunctive import executable_query

TASK_ROWS = 100_000
"""The number of rows of R_vj and R_bin for which a task pays, in each template."""


class SparkPlan(Plan, Protocol):
    """A plan in the session of the engine. The views r_bin_w, r_doc_w and r_docts_w hold the batch."""

    def join(self, batch: Batch, before: Mapping[str, DataFrame]) -> Matches:
        """Answers all templates for a batch. `before` is the join state without the batch, by table; it is empty if
        there is none or the plan is not `in_sql`."""

    def evicted(self, files: Mapping[str, Sequence[Path]], before: int) -> None:
        """Is told which files leave the join state, by table. Their documents all begin before a time.

        The files can be read until the end of the batch.
        """


class SparkBasicPlan(SQLPlan):
    """The plan `basic`: the conjunctive queries of all templates over the join state. `SparkViewsPlan` extends it."""

    def __init__(self, session: SparkSession, views: TableViews) -> None:
        super().__init__()
        self._session, self._views = session, views
        self._rows: dict[int, dict[int, Row]] = {}
        self._dirty: set[int] = set()

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._templates[template.number] = template
        self._rows.setdefault(template.number, {}).update((row.id, row) for row in rows)
        self._dirty.add(template.number)

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        kept = self._rows[template.number]
        for row in rows:
            kept.pop(row.id, None)
        self._dirty.add(template.number)
        if not kept:
            del self._templates[template.number], self._rows[template.number]

    def _refresh_rows(self) -> None:
        for number in self._dirty & self._templates.keys():
            template = self._templates[number]
            rows = ((row.id, *row.variables, row.window, row.ordered) for row in self._rows[number].values())
            arrays = [
                pa.array(values, pa.int32() if column.startswith("var") else None)
                for column, values in zip(template.columns, zip(*rows, strict=True), strict=True)
            ]
            self._view(template.name, pa.table(arrays, names=template.columns))
        self._dirty.clear()

    def join(self, batch: Batch, before: Mapping[str, DataFrame]) -> pa.Table:
        self._refresh_rows()
        templates = list(self._templates.values())
        if not templates:
            return RESULT.empty_table()
        with ExitStack() as cached:
            if any(template.shape.joins for template in templates):
                self._prepare(before, batch, cached)
            return self._answer(batch)

    def _answer(self, batch: Batch, form: QueryForm = executable_query) -> pa.Table:
        """The matches of all templates, once the views that their queries read are there."""
        templates = list(self._templates.values())
        ((statement, numbers),) = batch_statements(templates, "array({})", with_old=batch.older, form=form)
        begin = time.perf_counter()
        found = self._session.sql(statement).toArrow().cast(RESULT)
        self._costs.add(Cost(time.perf_counter() - begin, len(found), numbers))
        return found

    def _prepare(self, before: Mapping[str, DataFrame], batch: Batch, cached: ExitStack) -> None:
        """Makes the views that the statement of a batch reads, beside those of the batch itself.

        `before` is the join state without the batch, if there is any. Only documents that share a value with the batch
        can match. Their rows, and R_vj, are read once and kept in memory for all templates while `cached` is open.
        """
        session, joined = self._session, {f"{name}_w": self._session.table(f"{name}_w") for name in STATE}
        if before:
            values = joined["r_doc_w"].select("strval")
            docs = persisted(before["r_doc"].join(values, "strval", "left_semi"), cached)
            joined["r_doc_old"] = docs.select(STATE["r_doc"].names)
            for name in ("r_bin", "r_docts"):
                joined[f"{name}_old"] = persisted(before[name].join(docs.select("docid"), "docid", "left_semi"), cached)
        for name in STATE:
            rows = joined[f"{name}_w"]
            joined[name] = joined[f"{name}_old"].unionAll(rows) if before else rows
            self._views.forget(name)
        for name, frame in joined.items():
            frame.createOrReplaceTempView(name)
        self._view("joined_streams", batch.scope.joined_streams())
        for side in (NEW_RIGHT, NEW_LEFT) if before else (NEW_RIGHT,):
            statement = value_pairs_statement(side, batch.scope.window, many=batch.has_many_values)
            joined[side.pairs] = persisted(session.sql(statement), cached)
        self._measure(joined)

    def _measure(self, joined: Mapping[str, DataFrame]) -> None:
        """Fills the caches, and makes views of what the templates join, in as many partitions as pay."""
        # One job fills the caches. Spark plans by size, and knows the size of a cached frame once it is computed.
        streamed = {name: frame for name, frame in joined.items() if name.startswith(("r_vj", "r_lr", "r_bin"))}
        size = reduce(DataFrame.unionAll, [frame.select(lit(1)) for frame in streamed.values()]).count()
        for name, frame in streamed.items():
            frame.coalesce(1 + size // TASK_ROWS).createOrReplaceTempView(name)

    def evicted(self, files: Mapping[str, Sequence[Path]], before: int) -> None:
        """Does nothing: the plan keeps nothing about documents."""

    def _view(self, name: str, rows: pa.Table) -> None:
        local_frame(self._session, rows).createOrReplaceTempView(name)


def persisted(frame: DataFrame, cached: ExitStack) -> DataFrame:
    """The frame, kept in memory from when it is first computed until `cached` is closed."""
    frame.persist()
    cached.callback(frame.unpersist)
    return frame
