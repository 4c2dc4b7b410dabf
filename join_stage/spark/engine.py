"""The Spark engine: a store of Parquet files, and the joins of any plan over it in a Spark session. For `basic` and
`views`, one job computes the slices of a batch and the uncached ones of the state; the driver broadcasts them and the
cached ones like the batch. For `signature`, the driver keeps the postings; tasks join large batches."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from common.arrays import dictionary_encode
from common.files import make_inside
from join_stage import protocol
from join_stage.near_candidates import IN_SPARK, LONGEST_FIRST, WordSets, keyed, keyed_statement
from join_stage.plans import DEFAULT_PLAN, JoinPlan, OnlyRead, opened_plan
from join_stage.signature.plan import SignaturePlan
from join_stage.spark.tasks import SparkMerger, Spread, merge_on_executor
from join_stage.store.protocol import UNBOUNDED, Bounds, StoreError, StoreSchema, TableStore, writing
from join_stage.store.spark.manifests import FileTables, read_rows
from join_stage.store.spark.parquet_store import ParquetStore, TableViews, local_frame
from join_stage.store.spark.question import SparkQuestion
from join_stage.store.spark.session import loss, telling_loss
from join_stage.views import CACHE_BYTES, CachedViews, SQLPlan, ViewCache, joined_slices_statement
from templates.catalog import StepEdge, TemplateRow
from templates.witness import R_DOC, R_GROUP, Witnesses

TASK_ROWS = 100_000  # number of rows of R_vj and R_bin, in each template, that justify a task


class SparkBasicPlan(SQLPlan):
    """The plan `basic`: the queries of all templates over the join state. Views with suffix _w hold the batch."""

    def __init__(self, store: TableStore, session: SparkSession, views: TableViews) -> None:
        super().__init__(store)
        self._session, self._views = session, views
        self._rows: dict[int, dict[int, TemplateRow]] = {}
        self._dirty: set[int] = set()

    def put_rows(self, template: protocol.TemplateTable, rows: Sequence[TemplateRow]) -> None:
        self.version += 1
        self._templates[template.number] = template
        self._rows.setdefault(template.number, {}).update((row.id, row) for row in rows)
        self._dirty.add(template.number)

    def drop_rows(self, template: protocol.TemplateTable, rows: Sequence[TemplateRow]) -> None:
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

    def join(self, batch: protocol.Batch) -> pa.Table:
        self._refresh_rows()
        if not self._templates:
            return protocol.RESULT.empty_table()
        with ExitStack() as cached:
            if self.has_joins:
                self._prepare(batch, cached)
            return self._answer(batch)

    def _answer(self, batch: protocol.Batch, *, views: bool = False) -> pa.Table:
        templates = list(self._templates.values())
        ((statement, numbers),) = protocol.batch_statements(templates, "array({})", with_old=batch.older, views=views)
        begin = time.perf_counter()
        found = self._session.sql(statement).toArrow().cast(protocol.RESULT)
        self.costs.add(protocol.Cost(time.perf_counter() - begin, len(found), numbers))
        return found

    def _prepare(self, batch: protocol.Batch, cached: ExitStack) -> None:
        """Creates the views that the statement of a batch reads. Only documents that share a value with the batch can
        match; their rows and R_vj are read once and cached for all templates while `cached` is open."""
        joined = {f"{name}_w": self._session.table(f"{name}_w") for name in protocol.STATE}
        if before := batch.before:
            values = joined["r_doc_w"].select("strval")
            docs = persisted(before["r_doc"].join(values, "strval", "left_semi"), cached)
            joined["r_doc_old"] = docs.select(protocol.STATE["r_doc"].names)
            for name in ("r_bin", "r_docts"):
                joined[f"{name}_old"] = persisted(before[name].join(docs.select("docid"), "docid", "left_semi"), cached)
        for name in protocol.STATE:
            rows = joined[f"{name}_w"]
            joined[name] = joined[f"{name}_old"].unionAll(rows) if before else rows
            self._views.forget(name)
        for name, frame in joined.items():
            frame.createOrReplaceTempView(name)
        self._views.show("joined_streams", batch.scope.joined_streams())
        for side in (protocol.NEW_RIGHT, protocol.NEW_LEFT) if before else (protocol.NEW_RIGHT,):
            statement = protocol.value_pairs_statement(side, batch.scope.window, many=batch.witnesses.has_many_values)
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

    def join(self, batch: protocol.Batch) -> protocol.Matches:
        self._refresh_rows()
        for name, frame in batch.before.items():
            frame.createOrReplaceTempView(f"{name}_old")
        return super().join(batch)

    def _joined(self, batch: protocol.Batch, views: Mapping[str, pa.Table]) -> pa.Table:
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
            for side in (protocol.NEW_RIGHT, protocol.NEW_LEFT) if batch.before else (protocol.NEW_RIGHT,):
                statement = joined_slices_statement(side, batch.scope.window, many=batch.witnesses.has_many_values)
                joined[side.edges] = persisted(self._session.sql(statement), cached)
            self._measure(joined)
            return self._answer(batch, views=True)

    def _select(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        return self._views.select(sql, tables)


_EDGE = 1 << 30  # first number of single-edge groups; the numbers of stage 1 are less


class SparkSignaturePlan(SignaturePlan):
    """The plan `signature` over the engine's tables. Executors join large batches unless the store is temporary, since
    outputs may be read after it is gone."""

    _store: SparkEngine

    def __init__(self, store: SparkEngine, directory: Path) -> None:
        # With one local core, a batch would have to wait for a merge.
        context = store.context
        merger = SparkMerger(context) if not store.is_temporary and context.defaultParallelism > 1 else None
        if merger is not None:
            store.merge_elsewhere = partial(merge_on_executor, context)
        super().__init__(store, directory, merger, is_indexed=store.is_temporary)
        self._spread = None if store.is_temporary else Spread(context, self._join.rows, self._join.costs)
        self._numbers: dict[int, int] = {}
        """Stable numbers of edges as groups, by both variables packed into one number."""

    def _matches(self, batch: Witnesses, scope: protocol.JoinScope) -> protocol.Matches:
        docids = batch.r_docts["docid"]
        if self._spread is None or not self._spread.takes(len(docids), self._join.stored.now.runs):
            return super()._matches(batch, scope)
        with writing(OSError):
            run, others, filtered = self._join.write(batch, scope, self._end - 1)
        docids = sorted(docids.to_pylist())
        texts = self._store.write_out("r_doc") if batch.has_many_values else ()
        return self._spread.matches(docids, run, others, filtered, scope, texts)

    def _between(self, first: int, end: int) -> Witnesses:
        r_bin, r_doc, r_docts = (self._store.read_between(name, "docid", first, end) for name in protocol.STATE)
        return edge_by_edge(r_bin, r_doc, r_docts, self._numbers)

    def close(self) -> None:
        super().close()
        if self._spread is not None:
            self._spread.close()


def edge_by_edge(r_bin: pa.Table, r_doc: pa.Table, r_docts: pa.Table, known: dict[int, int]) -> Witnesses:
    """The flat join state as witnesses with a group per edge. `known`, the numbers of known edges, is extended."""
    code, edges = dictionary_encode((r_bin["var1"].to_numpy().astype(np.int64) << 32) | r_bin["var2"].to_numpy())
    numbers = np.array([known.setdefault(edge, _EDGE + len(known)) for edge in edges.tolist()], np.int64)
    columns = (numbers, edges >> 32, edges & 0xFFFFFFFF)
    groups = pa.table([pa.array(column.astype(np.int32)) for column in columns], R_GROUP)
    bound = r_bin.select(["docid", "node1", "node2"]).add_column(1, "grp", pa.array(numbers[code].astype(np.int32)))
    return Witnesses(bound, groups, r_doc, r_docts)


_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    # The inputs of a batch are computed before it is planned, so that Spark knows what fits into a broadcast.
    "spark.sql.autoBroadcastJoinThreshold": "64m",
    # R_T and a batch are local relations, the only ones whose size Spark knows.
    "spark.sql.execution.arrow.localRelationThreshold": "256m",
    # Every join would get filters against nulls, of which there are none: 2.0 s a batch without, 2.6 s with them, for
    # twenty templates over hardly any data.
    "spark.sql.constraintPropagation.enabled": "false",
    # With this, templates of one shape share compiled code across batches, wherever they are in the plan.
    "spark.sql.codegen.useIdInClassName": "false",
    # A table has dozens of files. Only thousands are worth a job that lists them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "4096",
}


VIEW_CACHE = "view_cache"
"""The folder that earlier versions had in a store for the cache of plan `views` while the store was open."""


SCRATCH = "scratch"  # the folder of a store for files that executors write for the driver


@telling_loss
class SparkEngine(ParquetStore):
    """A `JoinEngine` on Spark, in a temporary directory without a `directory`. It creates its own session from the
    given one, with its own views and settings. `schema` declares the tables beside the join state; `plan`, one of
    PLANS, may change between openings; `cache_bytes` bounds the cache of `views`. Raises StoreError and UnknownPlan."""

    def __init__(
        self,
        session: SparkSession,
        directory: Path | None = None,
        plan: str = DEFAULT_PLAN,
        *,
        schema: StoreSchema = protocol.NOTHING_ELSE,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        super().__init__(protocol.FLAT_STORE | schema, directory)
        try:
            self._session = session.newSession()
            for key, value in _SETTINGS.items():
                self._session.conf.set(key, value)
            self._views = TableViews(self._session, self)
            for left in (VIEW_CACHE, SCRATCH):  # by a killed run
                shutil.rmtree(self.directory / left, ignore_errors=True)
            plans: dict[str, Callable[..., JoinPlan]] = {
                "basic": partial(SparkBasicPlan, self, self._session, self._views),
                "views": partial(SparkViewsPlan, self, self._session, self._views, cache_bytes),
                "signature": partial(SparkSignaturePlan, self),
            }
            self.plan = opened_plan(self, plan, self.directory, plans)
            self._word_sets = WordSets(lambda docids: self.find("r_doc", "docid", docids))
        except BaseException:
            super().close()
            raise

    # ------------------------------------------------------------ batches

    def begin(self) -> None:
        """Does nothing: appended rows stay in memory until `commit`."""

    def commit(self) -> None:
        self.plan.settle()
        super().commit()
        self.plan.committed()

    def rollback(self) -> None:
        super().rollback()
        self.plan.rolled_back(whole=True)
        self._word_sets.forget()

    # ------------------------------------------------------------ what executors write

    @property
    def context(self) -> SparkContext:
        return self._session.sparkContext

    def emptied_scratch(self, name: str) -> Path:
        """A folder for files of the batch that belong to no table, emptied."""
        scratch = make_inside(self.directory, SCRATCH)
        shutil.rmtree(scratch / name, ignore_errors=True)
        return make_inside(scratch, name)

    # ------------------------------------------------------------ the rest of a batch

    def evict(self, before: int) -> None:
        gone = self.drop_dated(before)
        schema = pa.schema([R_DOC.field("docid")])
        tables = (read_rows(path, schema) for path in gone)
        self.plan.evicted(lambda: pa.concat_tables([schema.empty_table(), *tables])["docid"], before)

    def drop_groups(self, edges: Collection[StepEdge]) -> Collection[int]:
        """Drops all groups: the join state has a row per edge."""
        self.drop_unless("groups", "grp", lambda numbers: pc.less(numbers, 0))
        self.plan.regrouped((), edges)
        return ()

    def drop_derived(self, node: int) -> None:
        for table, columns in (("r_bin", ("node1", "node2")), ("r_doc", ("node",))):
            for column in columns:
                self.drop_unless(table, column, lambda ids: pc.less(ids, node))
        self.plan.forget()

    def follow(self, tables: Collection[str]) -> None:
        """Returns None: the store cannot follow tables."""

    def mends(self, error: Exception) -> bool:
        found = error if isinstance(error, StoreError) else loss(error)
        return found is not None and self.plan.mends(found)

    def close(self) -> None:
        try:
            self.plan.close()
        finally:
            shutil.rmtree(self.directory / SCRATCH, ignore_errors=True)
            super().close()

    # ------------------------------------------------------------ queries and joins

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        return self._views.select(sql, views)

    def question(self, sql: str, bounds: Bounds = UNBOUNDED, *, own: bool = False) -> SparkQuestion:
        return SparkQuestion(self._session, self.snapshot(), sql, bounds)

    def join(self, batch: Witnesses, first_docid: int, scope: protocol.JoinScope) -> protocol.Matches:
        self.append("groups", batch.r_group)
        older = self.has_rows("r_docts")
        before = {name: self._views.frame(name) for name in protocol.STATE} if older and self.plan.in_sql else {}
        given = batch
        if self.plan.in_sql and batch.has_many_values:
            given = replace(batch, r_doc=keyed(batch.r_doc, LONGEST_FIRST))
            if before:
                before["r_doc"] = self._session.sql(keyed_statement("{values}", IN_SPARK), values=before["r_doc"])
        for name, rows in self._state_rows(batch).items():
            self.append(name, rows)
            if self.plan.in_sql:
                self._views.show(f"{name}_w", given.r_doc if name == "r_doc" else rows)
        found = self.plan.join(protocol.Batch(given, first_docid, older, scope, before))
        return self._word_sets.checked(found) if isinstance(found, pa.Table) else found

    def extend(self, witnesses: Witnesses, *, whole: bool = False) -> None:
        self.plan.extend(witnesses, whole=whole)
        self.append("groups", witnesses.r_group)
        for name, rows in self._state_rows(witnesses).items():
            self.append(name, rows)
        docids = pa.concat_tables(
            [rows.select(["docid"]) for rows in (witnesses.r_bin, witnesses.r_doc, witnesses.r_docts)]
        )
        if len(docids):
            sql = "SELECT min(t.t0) AS first, max(t.t0) AS last FROM r_docts t JOIN e ON t.docid = e.docid"
            (times,) = self.select(sql, {"e": docids}).to_pylist()
            self.cover(times["first"], times["last"])

    def _state_rows(self, batch: Witnesses) -> dict[str, pa.Table]:
        """The rows of the batch in the join state; r_bin has a row for each edge of each group."""
        times = batch.r_docts
        return {
            "r_bin": protocol.flatten_edges(batch.r_bin, self.read("groups")),
            "r_doc": batch.r_doc,
            "r_docts": times.add_column(1, "timestamp", times["t0"]),
        }


class SparkReader(OnlyRead, FileTables):
    """A read-only `JoinEngine`; others may write the store."""

    def __init__(self, session: SparkSession, schema: StoreSchema, directory: Path) -> None:
        """Raises StoreError if there is no store. `schema` declares the tables beside the join state."""
        super().__init__(protocol.FLAT_STORE | schema, directory)
        self._session = session.newSession()
        self._views = TableViews(self._session, self)

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        return self._views.select(sql, views)

    def question(self, sql: str, bounds: Bounds = UNBOUNDED, *, own: bool = False) -> SparkQuestion:
        return SparkQuestion(self._session, self, sql, bounds)

    def close(self) -> None: ...
