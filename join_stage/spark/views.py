"""The plans `basic` (thesis, Algorithm 1) and `views` (6.5, Algorithms 4 and 5) on Spark. One job computes the slices
of a batch and the uncached ones of the state; the driver broadcasts them and the cached ones like the batch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from join_stage.protocol import (
    NEW_LEFT,
    NEW_RIGHT,
    RESULT,
    Batch,
    Cost,
    Matches,
    TemplateTable,
    batch_statements,
    value_pairs_statement,
)
from join_stage.store.protocol import TableStore
from join_stage.store.spark.parquet_store import TableViews, local_frame
from join_stage.tables import STATE
from join_stage.views import CachedViews, SQLPlan, ViewCache, joined_slices_statement
from templates.catalog import TemplateRow

TASK_ROWS = 100_000
"""Number of rows of R_vj and R_bin, in each template, that justify a task."""


class SparkBasicPlan(SQLPlan):
    """The plan `basic`: the queries of all templates over the join state. Views with suffix _w hold the batch."""

    def __init__(self, store: TableStore, session: SparkSession, views: TableViews) -> None:
        super().__init__(store)
        self._session, self._views = session, views
        self._rows: dict[int, dict[int, TemplateRow]] = {}
        self._dirty: set[int] = set()

    def put_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        self.version += 1
        self._templates[template.number] = template
        self._rows.setdefault(template.number, {}).update((row.id, row) for row in rows)
        self._dirty.add(template.number)

    def drop_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        self.version += 1
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
            self._views.show(template.name, pa.table(arrays, names=template.columns))
        self._dirty.clear()

    def join(self, batch: Batch) -> pa.Table:
        self._refresh_rows()
        if not self._templates:
            return RESULT.empty_table()
        with ExitStack() as cached:
            if self.has_joins:
                self._prepare(batch, cached)
            return self._answer(batch)

    def _answer(self, batch: Batch, *, views: bool = False) -> pa.Table:
        templates = list(self._templates.values())
        ((statement, numbers),) = batch_statements(templates, "array({})", with_old=batch.older, views=views)
        begin = time.perf_counter()
        found = self._session.sql(statement).toArrow().cast(RESULT)
        self.costs.add(Cost(time.perf_counter() - begin, len(found), numbers))
        return found

    def _prepare(self, batch: Batch, cached: ExitStack) -> None:
        """Creates the views that the statement of a batch reads. Only documents that share a value with the batch can
        match; their rows and R_vj are read once and cached for all templates while `cached` is open."""
        joined = {f"{name}_w": self._session.table(f"{name}_w") for name in STATE}
        if before := batch.before:
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
        self._views.show("joined_streams", batch.scope.joined_streams())
        for side in (NEW_RIGHT, NEW_LEFT) if before else (NEW_RIGHT,):
            statement = value_pairs_statement(side, batch.scope.window, many=batch.witnesses.has_many_values)
            joined[side.pairs] = persisted(self._session.sql(statement), cached)
        self._measure(joined)

    def _measure(self, joined: Mapping[str, DataFrame]) -> None:
        # One job fills the caches. Spark plans by size, and knows the size of a cached frame once it is computed.
        streamed = {name: frame for name, frame in joined.items() if name.startswith(("r_vj", "r_lr", "r_bin"))}
        size = reduce(DataFrame.unionAll, [frame.select(lit(1)) for frame in streamed.values()]).count()
        for name, frame in streamed.items():
            frame.coalesce(1 + size // TASK_ROWS).createOrReplaceTempView(name)


def persisted(frame: DataFrame, cached: ExitStack) -> DataFrame:
    """Caches the frame in memory from its first computation until `cached` is closed."""
    frame.persist()
    cached.callback(frame.unpersist)
    return frame


class SparkViewsPlan(CachedViews, SparkBasicPlan):
    """The plan `views`. `cache_bytes` bounds the cache."""

    def __init__(self, store: TableStore, session: SparkSession, views: TableViews, cache_bytes: int) -> None:
        SparkBasicPlan.__init__(self, store, session, views)
        self._cache = ViewCache(cache_bytes)

    def join(self, batch: Batch) -> Matches:
        self._refresh_rows()
        for name, frame in batch.before.items():
            frame.createOrReplaceTempView(f"{name}_old")
        return super().join(batch)

    def _joined(self, batch: Batch, views: Mapping[str, pa.Table]) -> pa.Table:
        with ExitStack() as cached:
            joined = {"r_bin_w": self._session.table("r_bin_w")}
            for name, rows in views.items():
                self._views.show(name, rows)
            inner = any(
                parent is not None and place in template.shape.parents
                for template in self._templates.values()
                for place, parent in enumerate(template.shape.parents)
            )
            if batch.before and inner:
                docids = local_frame(self._session, views["slices_old"].select(["docid"]))
                joined["r_bin_old"] = persisted(batch.before["r_bin"].join(docids, "docid", "left_semi"), cached)
            joined["r_bin"] = reduce(DataFrame.unionAll, joined.values())
            self._views.forget("r_bin")
            for side in (NEW_RIGHT, NEW_LEFT) if batch.before else (NEW_RIGHT,):
                statement = joined_slices_statement(side, batch.scope.window, many=batch.witnesses.has_many_values)
                joined[side.edges] = persisted(self._session.sql(statement), cached)
            self._measure(joined)
            return self._answer(batch, views=True)

    def _select(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        return self._views.select(sql, tables)
