"""The `views` plan on Spark (thesis 6.5, Algorithms 4 and 5), with the view cache in Parquet files.

One job computes the slices of a batch and those of the state that are not cached. The driver fetches them, and they are
broadcast like the batch. The tasks read the cached slices from the files of the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from join_stage.batch_sql import NEW_LEFT, NEW_RIGHT, TemplateTable
from join_stage.joiner import Batch
from join_stage.spark.basic import SparkBasicPlan, persisted
from join_stage.spark.view_cache import ViewCache
from join_stage.state_tables import STATE
from join_stage.store.spark.tables import TableViews, file_urls, local_frame, spark_columns
from join_stage.views import SLICE, JoinedEdges, joined_slices_statement, slices_statement
from templates.catalog import Row
from templates.conjunctive import executable_views_query
from templates.witness import Witnesses

_VALUES = pa.schema([("strval", pa.string()), ("value", pa.int64())])


class SparkViewsPlan(SparkBasicPlan):
    """The plan `views`: the queries of the templates over R_LR, which joins slices. The cache is in `directory`;
    `cache_bytes` bounds it."""

    def __init__(self, session: SparkSession, views: TableViews, directory: Path, cache_bytes: int) -> None:
        super().__init__(session, views)
        self._cache = ViewCache(directory, cache_bytes)
        self._edges = JoinedEdges()

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        super().put_rows(template, rows)
        self._edges.put(template, rows)

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        super().drop_rows(template, rows)
        self._edges.drop(template, rows)

    def join(self, batch: Batch, before: Mapping[str, DataFrame]) -> pa.Table:
        templates = list(self._templates.values())
        if not any(template.shape.joins for template in templates):
            self._cache.clear()  # its slices would lack the rows of this batch, and no template needs them
            return super().join(batch, before)
        self._refresh_rows()
        numbers = self._cache.numbered(pc.unique(batch.witnesses.r_doc["strval"]).to_pylist())
        for name, frame in before.items():
            frame.createOrReplaceTempView(f"{name}_old")
        computed, fresh = self._slices(batch, numbers)
        with ExitStack() as cached:
            self._prepare_views(batch, before, numbers, computed, fresh, cached)
            found = self._answer(batch, executable_views_query)
        if batch.older:
            self._cache.update(numbers, computed, fresh)
        return found

    def _slices(self, batch: Batch, numbers: Mapping[str, tuple[int, bool]]) -> tuple[pa.Table, pa.Table]:
        """The slices of the state without the batch that are not cached, and the slices of the batch, in one job."""
        self._view("batch_values", _relation({value: number for value, (number, _) in numbers.items()}))
        statement = slices_statement("batch_values", "_w")
        missing = {value: number for value, (number, cached) in numbers.items() if not cached}
        if batch.older and missing:
            self._view("missing_values", _relation(missing))
            statement += "\nUNION ALL\n" + slices_statement("missing_values", "_old")
        rows = self._session.sql(statement).toArrow().cast(SLICE)
        old = pc.less(rows["docid"], batch.first_docid)
        return rows.filter(old), rows.filter(pc.invert(old))

    def _prepare_views(
        self,
        batch: Batch,
        before: Mapping[str, DataFrame],
        numbers: Mapping[str, tuple[int, bool]],
        computed: pa.Table,
        fresh: pa.Table,
        cached: ExitStack,
    ) -> None:
        """Makes the views that the statement of a batch reads: R_LR, and R_bin if there are inner edges."""
        session, joined = self._session, {"r_bin_w": self._session.table("r_bin_w")}
        state = rows = local_frame(session, fresh)
        rows.createOrReplaceTempView("slices_w")
        if before:
            old = local_frame(session, computed)
            hits = pa.array([number for number, hit in numbers.values() if hit], pa.int64())
            if len(hits):
                found = session.read.schema(spark_columns(SLICE)).parquet(*file_urls(self._cache.paths))
                old = old.unionAll(found.join(local_frame(session, pa.table({"value": hits})), "value", "left_semi"))
            old = persisted(old, cached)
            old.createOrReplaceTempView("slices_old")
            state = old.unionAll(rows)
            if self._has_inner_edges():
                joined["r_bin_old"] = persisted(before["r_bin"].join(old.select("docid"), "docid", "left_semi"), cached)
        state.createOrReplaceTempView("slices")
        joined["r_bin"] = (
            joined["r_bin_old"].unionAll(joined["r_bin_w"]) if "r_bin_old" in joined else joined["r_bin_w"]
        )
        self._views.forget("r_bin")
        self._view("joined_streams", batch.scope.joined_streams())
        self._view("joined_edges", self._edges.table())
        for side in (NEW_RIGHT, NEW_LEFT) if before else (NEW_RIGHT,):
            statement = joined_slices_statement(side, batch.scope.window, many=batch.has_many_values)
            joined[side.edges] = persisted(session.sql(statement), cached)
        self._measure(joined)

    def _has_inner_edges(self) -> bool:
        """Whether some template has an edge that does not end at a leaf."""
        return any(
            parent is not None and place in template.shape.parents
            for template in self._templates.values()
            for place, parent in enumerate(template.shape.parents)
        )

    def evicted(self, files: Mapping[str, Sequence[Path]], before: int) -> None:
        dropped = [path for name in STATE for path in files[name]]
        if dropped and len(self._cache):
            docids = [pq.ParquetFile(path).read(["docid"])["docid"] for path in dropped]
            self._cache.evict(pc.unique(pa.chunked_array([c for column in docids for c in column.chunks], pa.int64())))

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        self.forget()

    def forget(self) -> None:
        self._cache.clear()

    def committed(self) -> None:
        self._cache.commit()

    def rolled_back(self, *, whole: bool) -> None:
        self._cache.rollback()

    def close(self) -> None:
        self._cache.close()

    def counters(self) -> dict[str, int]:
        cache = self._cache
        return {
            "hits": cache.hits,
            "misses": cache.misses,
            "evictions": cache.evictions,
            "values": len(cache),
            "bytes": cache.size,
        }

    def view_cache(self) -> pa.Table:
        """The rows of the cached slices, for inspection."""
        return self._cache.table()


def _relation(numbers: Mapping[str, int]) -> pa.Table:
    columns = [pa.array(numbers.keys(), pa.string()), pa.array(numbers.values(), pa.int64())]
    return pa.table(columns, schema=_VALUES)
