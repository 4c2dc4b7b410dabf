"""The plans `basic` (thesis, Algorithm 1) and `views` (6.5, Algorithms 4 and 5) on Spark. One job computes the slices
of a batch and the uncached ones of the state; the driver broadcasts them and the cached ones like the batch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from join_stage.protocol import (
    NEW_LEFT,
    NEW_RIGHT,
    RESULT,
    Batch,
    Cost,
    JoinPlan,
    Matches,
    QueryForm,
    SQLPlan,
    TemplateTable,
    batch_statements,
    value_pairs_statement,
)
from join_stage.store.spark.parquet_store import TableViews, local_frame
from join_stage.tables import STATE
from join_stage.views import CachedViews, ViewCache, joined_slices_statement
from templates.catalog import TemplateRow
from templates.graph import executable_query, executable_views_query

TASK_ROWS = 100_000
"""Number of rows of R_vj and R_bin, in each template, that justify a task."""


class SparkPlan(JoinPlan, Protocol):
    """A plan in the session of the engine. The views r_bin_w, r_doc_w and r_docts_w hold the batch."""

    def join(self, batch: Batch, before: Mapping[str, DataFrame]) -> Matches:
        """Answers all templates for a batch. `before` is the join state without the batch, by table; empty if there is
        none or the plan is not `in_sql`."""

    def evicted(self, files: Mapping[str, Sequence[Path]], before: int) -> None:
        """Called when files leave the join state, by table; their documents all begin before a time. The files stay
        readable until the end of the batch."""


class SparkBasicPlan(SQLPlan):
    """The plan `basic`: the conjunctive queries of all templates over the join state."""

    def __init__(self, session: SparkSession, views: TableViews) -> None:
        super().__init__()
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

    def join(self, batch: Batch, before: Mapping[str, DataFrame]) -> pa.Table:
        self._refresh_rows()
        templates = list(self._templates.values())
        if not templates:
            return RESULT.empty_table()
        with ExitStack() as cached:
            if self.has_joins:
                self._prepare(before, batch, cached)
            return self._answer(batch)

    def _answer(self, batch: Batch, form: QueryForm = executable_query) -> pa.Table:
        templates = list(self._templates.values())
        ((statement, numbers),) = batch_statements(templates, "array({})", with_old=batch.older, form=form)
        begin = time.perf_counter()
        found = self._session.sql(statement).toArrow().cast(RESULT)
        self._costs.add(Cost(time.perf_counter() - begin, len(found), numbers))
        return found

    def _prepare(self, before: Mapping[str, DataFrame], batch: Batch, cached: ExitStack) -> None:
        """Creates the views that the statement of a batch reads. `before` is the join state without the batch, if any.
        Only documents that share a value with the batch can match; their rows and R_vj are read once and cached for all
        templates while `cached` is open."""
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
        self._views.show("joined_streams", batch.scope.joined_streams())
        for side in (NEW_RIGHT, NEW_LEFT) if before else (NEW_RIGHT,):
            statement = value_pairs_statement(side, batch.scope.window, many=batch.has_many_values)
            joined[side.pairs] = persisted(session.sql(statement), cached)
        self._measure(joined)

    def _measure(self, joined: Mapping[str, DataFrame]) -> None:
        # One job fills the caches. Spark plans by size, and knows the size of a cached frame once it is computed.
        streamed = {name: frame for name, frame in joined.items() if name.startswith(("r_vj", "r_lr", "r_bin"))}
        size = reduce(DataFrame.unionAll, [frame.select(lit(1)) for frame in streamed.values()]).count()
        for name, frame in streamed.items():
            frame.coalesce(1 + size // TASK_ROWS).createOrReplaceTempView(name)

    def evicted(self, files: Mapping[str, Sequence[Path]], before: int) -> None: ...


def persisted(frame: DataFrame, cached: ExitStack) -> DataFrame:
    """Caches the frame in memory from its first computation until `cached` is closed."""
    frame.persist()
    cached.callback(frame.unpersist)
    return frame


class SparkViewsPlan(CachedViews, SparkBasicPlan):
    """The plan `views`: the queries of the templates over R_LR, which joins slices. `cache_bytes` bounds the cache."""

    def __init__(self, session: SparkSession, views: TableViews, cache_bytes: int) -> None:
        SparkBasicPlan.__init__(self, session, views)
        self._cache = ViewCache(cache_bytes)

    def join(self, batch: Batch, before: Mapping[str, DataFrame]) -> pa.Table:
        if not self.has_joins:
            self._cache.clear()  # its slices would lack the rows of this batch, and no template needs them
            return super().join(batch, before)
        self._refresh_rows()
        values = self._cache.numbered(pc.unique(batch.witnesses.r_doc["strval"]).to_pylist())
        for name, frame in before.items():
            frame.createOrReplaceTempView(f"{name}_old")
        computed, fresh = self._slices(batch, values)
        with ExitStack() as cached:
            self._prepare_views(batch, before, pa.concat_tables([computed, self._cache.slices(values)]), fresh, cached)
            found = self._answer(batch, executable_views_query)
        if batch.older:
            self._cache.update(values, computed, fresh)
        return found

    def _select(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        return self._views.select(sql, tables)

    def _prepare_views(
        self, batch: Batch, before: Mapping[str, DataFrame], old: pa.Table, fresh: pa.Table, cached: ExitStack
    ) -> None:
        session, joined = self._session, {"r_bin_w": self._session.table("r_bin_w")}
        self._views.show("slices_w", fresh)
        self._views.show("slices_old", old)
        self._views.show("slices", pa.concat_tables([old, fresh]))
        if before and self._has_inner_edges():
            docids = local_frame(session, old.select(["docid"]))
            joined["r_bin_old"] = persisted(before["r_bin"].join(docids, "docid", "left_semi"), cached)
        joined["r_bin"] = (
            joined["r_bin_old"].unionAll(joined["r_bin_w"]) if "r_bin_old" in joined else joined["r_bin_w"]
        )
        self._views.forget("r_bin")
        self._views.show("joined_streams", batch.scope.joined_streams())
        self._views.show("joined_edges", self._joined_edges())
        for side in (NEW_RIGHT, NEW_LEFT) if before else (NEW_RIGHT,):
            statement = joined_slices_statement(side, batch.scope.window, many=batch.has_many_values)
            joined[side.edges] = persisted(session.sql(statement), cached)
        self._measure(joined)

    def _has_inner_edges(self) -> bool:
        return any(
            parent is not None and place in template.shape.parents
            for template in self._templates.values()
            for place, parent in enumerate(template.shape.parents)
        )

    def evicted(self, files: Mapping[str, Sequence[Path]], before: int) -> None:
        if dropped := [path for name in STATE for path in files[name]]:
            docids = [pq.ParquetFile(path).read(["docid"])["docid"] for path in dropped]
            self._cache.evict(pa.chunked_array([chunk for column in docids for chunk in column.chunks], pa.int64()))
