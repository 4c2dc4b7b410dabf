"""The Spark engine: the tables as Parquet files, the joins of a batch as one statement of Spark SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from join_stage.engine import RESULT, Scope
from join_stage.plan import NEW_LEFT, NEW_RIGHT, TemplateTable, batch_statements, value_pairs_statement
from join_stage.spark.store import TableStore
from join_stage.spark.tables import TableViews, local_frame
from join_stage.tables import STATE
from templates.catalog import Row
from templates.witness import Witnesses

_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    # What a batch joins is measured before it is planned, so that what fits is broadcast and nothing is shuffled.
    "spark.sql.autoBroadcastJoinThreshold": "64m",
    # R_T and a batch come as local relations: only of these Spark knows the size.
    "spark.sql.execution.arrow.localRelationThreshold": "256m",
    # Every join would get filters that drop nulls of which there are none: 2.0 s a batch without, 2.6 with them, for
    # twenty templates over next to no data.
    "spark.sql.constraintPropagation.enabled": "false",
    # Templates of one shape, and a batch after the other, then share their compiled code, whatever their place.
    "spark.sql.codegen.useIdInClassName": "false",
    # A table is read from dozens of files, in a job that lists them only if there are thousands.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "4096",
}


TASK_ROWS = 100_000
"""Rows of R_vj and R_bin worth a task of their own, in each template."""


class SparkEngine:
    """A `JoinEngine` on Spark; without a directory everything is in a temporary one.

    The engine works in a session of its own beside the one given, with views and settings of its own.
    """

    def __init__(self, session: SparkSession, directory: Path | None = None) -> None:
        self._store = TableStore(directory)
        try:
            self._session = session.newSession()
            for key, value in _SETTINGS.items():
                self._session.conf.set(key, value)
            self._views = TableViews(self._session, self._store)
            self._templates: dict[int, TemplateTable] = {}
            self._rows: dict[int, dict[int, Row]] = {}
            self._dirty: set[int] = set()
        except BaseException:
            self._store.close()
            raise

    # ------------------------------------------------------------ R_T

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

    # ------------------------------------------------------------ batches

    def begin(self) -> None:
        """Nothing: what is appended is in memory until `commit`."""

    def commit(self) -> None:
        self._store.commit()

    def rollback(self) -> None:
        self._store.rollback()

    def append(self, table: str, rows: pa.Table) -> None:
        self._store.append(table, rows)

    def evict(self, before: int) -> None:
        self._store.evict(before)

    def close(self) -> None:
        self._store.close()

    # ------------------------------------------------------------ queries and joins

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        self._views.refresh(sql)
        for name, table in (views or {}).items():
            self._view(name, table)
        try:
            return self._session.sql(sql).toArrow()
        finally:
            for name in views or {}:
                self._session.catalog.dropTempView(name)

    def join(self, batch: Witnesses, first_docid: int, scope: Scope) -> pa.Table:
        self._store.append("groups", batch.r_group)
        before = {name: self._views.frame(name) for name in STATE} if self._store.has_rows("r_docts") else {}
        for name, rows in self._state_rows(batch).items():
            self._store.append(name, rows)
            self._view(f"{name}_w", rows)
        self._refresh_rows()
        templates = list(self._templates.values())
        if not templates:
            return RESULT.empty_table()
        with ExitStack() as cached:
            if any(template.shape.joins for template in templates):
                self._prepare(before, scope, cached)
            (statement,) = batch_statements(templates, "array({})", with_old=bool(before))
            return self._session.sql(statement).toArrow().cast(RESULT)

    def _state_rows(self, batch: Witnesses) -> dict[str, pa.Table]:
        """The batch's rows of the join state: r_bin with a row for each edge of each group."""
        groups, times = self._store.read("groups"), batch.r_docts
        return {
            "r_bin": batch.r_bin.join(groups, "grp", join_type="inner").select(STATE["r_bin"].names),
            "r_doc": batch.r_doc,
            "r_docts": times.add_column(1, "timestamp", times["t0"]),
        }

    def _prepare(self, before: Mapping[str, DataFrame], scope: Scope, cached: ExitStack) -> None:
        """Makes the views that the statement of a batch reads beside the batch's own.

        `before` is the join state from before the batch, if there is any. Of it only documents that share a value with
        the batch can match: their rows are read from the files once and held in memory for all templates, as is R_vj,
        while `cached` is open.
        """
        session, joined = self._session, {f"{name}_w": self._session.table(f"{name}_w") for name in STATE}
        if before:
            values = joined["r_doc_w"].select("strval")
            docs = _persisted(before["r_doc"].join(values, "strval", "left_semi"), cached)
            joined["r_doc_old"] = docs.select(STATE["r_doc"].names)
            for name in ("r_bin", "r_docts"):
                joined[f"{name}_old"] = _persisted(
                    before[name].join(docs.select("docid"), "docid", "left_semi"), cached
                )
        for name in STATE:
            rows = joined[f"{name}_w"]
            joined[name] = joined[f"{name}_old"].unionAll(rows) if before else rows
            self._views.forget(name)
        for name, frame in joined.items():
            frame.createOrReplaceTempView(name)
        self._view("joined_streams", scope.joined_streams())
        for side in (NEW_RIGHT, NEW_LEFT) if before else (NEW_RIGHT,):
            joined[side.pairs] = _persisted(session.sql(value_pairs_statement(side, scope.window)), cached)
        # One job fills the caches: Spark plans by size, and knows that of a cached frame once it has been computed.
        streamed = {name: frame for name, frame in joined.items() if name.startswith(("r_vj", "r_bin"))}
        size = reduce(DataFrame.unionAll, [frame.select(lit(1)) for frame in streamed.values()]).count()
        for name, frame in streamed.items():
            frame.coalesce(1 + size // TASK_ROWS).createOrReplaceTempView(name)

    def _view(self, name: str, rows: pa.Table) -> None:
        local_frame(self._session, rows).createOrReplaceTempView(name)


def _persisted(frame: DataFrame, cached: ExitStack) -> DataFrame:
    frame.persist()
    cached.callback(frame.unpersist)
    return frame
