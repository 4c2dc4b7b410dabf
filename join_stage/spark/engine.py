"""The Spark engine: a store of Parquet files, and the joins of any plan over it in a Spark session."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkContext
from pyspark.sql import SparkSession

from common.private import make_inside
from join_stage.batch_sql import TemplateTable
from join_stage.costs import Cost
from join_stage.joiner import DEFAULT_PLAN, PLANS, Batch, Matches, Scope, UnknownPlan, has_many_values
from join_stage.near.key_sql import IN_SPARK, keyed_statement
from join_stage.near.keys import keyed
from join_stage.near.word_order import LONGEST_FIRST
from join_stage.near.word_sets import WordSets
from join_stage.spark.basic import SparkBasicPlan, SparkPlan
from join_stage.spark.signature import SparkSignaturePlan
from join_stage.spark.views import SparkViewsPlan
from join_stage.state_tables import FLAT_STORE, NOTHING_ELSE, RUNS, STATE, drop_runs_manifest, runs_manifest
from join_stage.store.reading import UNBOUNDED, Bounds
from join_stage.store.schema import StoreSchema
from join_stage.store.spark.loss import telling_loss
from join_stage.store.spark.manifests import DataFile
from join_stage.store.spark.parquet_store import ParquetStore
from join_stage.store.spark.question import SparkQuestion
from join_stage.store.spark.tables import TableViews, local_frame
from join_stage.views import CACHE_BYTES
from templates.catalog import Edge, Row
from templates.witness import Witnesses

_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    # The inputs of a batch are computed before it is planned, so that Spark knows what fits into a broadcast.
    "spark.sql.autoBroadcastJoinThreshold": "64m",
    # R_T and a batch come as local relations, the only ones of which Spark knows the size.
    "spark.sql.execution.arrow.localRelationThreshold": "256m",
    # Every join would get filters against nulls, of which there are none: 2.0 s a batch without, 2.6 s with them, for
    # twenty templates over hardly any data.
    "spark.sql.constraintPropagation.enabled": "false",
    # Then templates of one shape share compiled code, also from batch to batch, wherever they stand in the plan.
    "spark.sql.codegen.useIdInClassName": "false",
    # A table has dozens of files. Only thousands are worth a job that lists them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "4096",
}


VIEW_CACHE = "view_cache"
"""The folder of a store in which the plan `views` keeps its cache while the store is open."""


SCRATCH = "scratch"
"""The folder of a store for files that executors write for the driver."""


@telling_loss
class SparkEngine:
    """A `JoinEngine` on Spark, in a temporary directory if there is no `directory`.

    The engine makes a session of its own from the given one, with its own views and settings. `schema` declares the
    tables beside the join state. `plan` is one of PLANS, and may be another one than the last time. `cache_bytes`
    bounds the cache of the plan `views`. Raises StoreError if the store cannot be opened, and UnknownPlan.
    """

    def __init__(
        self,
        session: SparkSession,
        directory: Path | None = None,
        plan: str = DEFAULT_PLAN,
        *,
        schema: StoreSchema = NOTHING_ELSE,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.schema = FLAT_STORE | schema
        self._store = ParquetStore(self.schema, directory)
        try:
            self._session = session.newSession()
            for key, value in _SETTINGS.items():
                self._session.conf.set(key, value)
            self._views = TableViews(self._session, self._store)
            self._plan = self._make_plan(plan, cache_bytes)
            self._word_sets = WordSets(lambda docids: self.find("r_doc", "docid", docids))
        except BaseException:
            self._store.close()
            raise

    def _make_plan(self, name: str, cache_bytes: int) -> SparkPlan:
        """The plan of a name. Raises UnknownPlan if there is none."""
        cache = self._store.directory / VIEW_CACHE
        for left in (cache, self._store.directory / SCRATCH):  # by a killed run
            shutil.rmtree(left, ignore_errors=True)
        if name in PLANS and name != "signature" and runs_manifest(self) is None:
            shutil.rmtree(self._store.directory / RUNS, ignore_errors=True)
        if name == "basic":
            return SparkBasicPlan(self._session, self._views)
        if name == "views":
            return SparkViewsPlan(self._session, self._views, cache, cache_bytes)
        if name == "signature":
            runs = make_inside(self._store.directory, RUNS)
            return SparkSignaturePlan(self, self._store, runs, self.context)
        raise UnknownPlan(name)

    # ------------------------------------------------------------ R_T

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._plan.put_rows(template, rows)

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._plan.drop_rows(template, rows)

    # ------------------------------------------------------------ batches

    def begin(self) -> None:
        """Does nothing: appended rows are in memory until `commit`."""

    def commit(self) -> None:
        self._plan.settle()
        self._store.commit()
        self._plan.committed()

    def rollback(self) -> None:
        self._store.rollback()
        self._plan.rolled_back(whole=True)
        self._word_sets.forget()

    def append(self, table: str, rows: pa.Table) -> None:
        self._store.append(table, rows)

    # ------------------------------------------------------------ what executors write

    @property
    def context(self) -> SparkContext:
        """The context of the session."""
        return self._session.sparkContext

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at the same time."""
        return self.context.defaultParallelism

    def write_out(self, table: str) -> list[str]:
        """Writes to a file what was appended to a table in the running batch. Returns the paths of all its files, for
        `find_rows`."""
        self._store.write_out(table)
        return self._store.paths_to_look_up(table)

    def prefix_for_others(self, tables: Iterable[str]) -> str:
        """What the names of files begin with that executors write for these tables in the running batch."""
        return self._store.prefix_for_others(tables)

    def emptied_scratch(self) -> Path:
        """The folder of files of a batch that no table has, emptied of those of earlier batches."""
        shutil.rmtree(self._store.directory / SCRATCH, ignore_errors=True)
        return make_inside(self._store.directory, SCRATCH)

    def folder(self, table: str) -> Path:
        """Where the files of a table are."""
        return self._store.folder(table)

    def adopt(self, table: str, file: DataFile) -> None:
        """Adds a file that an executor has written to a table."""
        self._store.adopt(table, file)

    # ------------------------------------------------------------ the rest of a batch

    def evict(self, before: int) -> None:
        self._plan.evicted(self._store.evict(before), before)
        self._forget_runs()

    def _forget_runs(self) -> None:
        """Drops the runs of the plan `signature` if another plan is used, which does not keep them up to date."""
        if self._plan.in_sql:
            drop_runs_manifest(self)

    def drop_groups(self, edges: Collection[Edge]) -> Collection[int]:
        """Drops all groups: the join state has a row for each edge and needs none."""
        self._store.drop_unless("groups", "grp", lambda numbers: pc.less(numbers, 0))
        self._plan.regrouped((), edges)
        return ()

    def drop_derived(self, node: int) -> None:
        for table, columns in (("r_bin", ("node1", "node2")), ("r_doc", ("node",))):
            for column in columns:
                self._store.drop_unless(table, column, lambda ids: pc.less(ids, node))
        self._plan.forget()
        self._forget_runs()

    def drop_before(self, table: str, column: str, bound: int) -> None:
        self._store.drop_before(table, column, bound)

    def follow(self, tables: Collection[str]) -> None:
        """Cannot tell."""

    def counters(self) -> dict[str, int]:
        return self._plan.counters()

    def costs(self) -> dict[int, Cost]:
        return self._plan.costs()

    def close(self) -> None:
        try:
            self._plan.close()
        finally:
            shutil.rmtree(self._store.directory / SCRATCH, ignore_errors=True)
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

    def question(self, sql: str, bounds: Bounds = UNBOUNDED, *, own: bool = False) -> SparkQuestion:
        return SparkQuestion(self._session, self._store.snapshot(), sql, bounds)

    def read(self, table: str, columns: Sequence[str], key: str | None = None) -> pa.Table:
        return self._store.read(table, pa.schema([self.schema.tables[table].field(name) for name in columns]), key)

    def find(self, table: str, column: str, numbers: pa.Array) -> pa.Table:
        return self._store.find(table, column, numbers)

    def highest(self, table: str, column: str) -> int:
        found = self._store.highest(table, column)
        return -1 if found is None else found

    def join(self, batch: Witnesses, first_docid: int, scope: Scope) -> Matches:
        self._store.append("groups", batch.r_group)
        older = self._store.has_rows("r_docts")
        before = {name: self._views.frame(name) for name in STATE} if older and self._plan.in_sql else {}
        given = batch
        if self._plan.in_sql and has_many_values(batch):
            given = replace(batch, r_doc=keyed(batch.r_doc, LONGEST_FIRST))
            if before:
                before["r_doc"] = self._session.sql(keyed_statement("{values}", IN_SPARK), values=before["r_doc"])
        for name, rows in self._state_rows(batch).items():
            self._store.append(name, rows)
            if self._plan.in_sql:
                self._view(f"{name}_w", given.r_doc if name == "r_doc" else rows)
        found = self._plan.join(Batch(given, first_docid, older, scope), before)
        return self._word_sets.checked(found) if isinstance(found, pa.Table) else found

    def extend(self, witnesses: Witnesses, *, whole: bool = False) -> None:
        self._plan.extend(witnesses, whole=whole)
        self._forget_runs()
        self._store.append("groups", witnesses.r_group)
        for name, rows in self._state_rows(witnesses).items():
            self._store.append(name, rows)
        docids = pa.concat_tables(
            [rows.select(["docid"]) for rows in (witnesses.r_bin, witnesses.r_doc, witnesses.r_docts)]
        )
        if len(docids):
            sql = "SELECT min(t.t0) AS first, max(t.t0) AS last FROM r_docts t JOIN e ON t.docid = e.docid"
            (times,) = self.select(sql, {"e": docids}).to_pylist()
            self._store.cover(times["first"], times["last"])

    def _state_rows(self, batch: Witnesses) -> dict[str, pa.Table]:
        """The rows of the batch in the join state: r_bin has a row for each edge of each group."""
        groups, times = self._store.read("groups"), batch.r_docts
        return {
            "r_bin": batch.r_bin.join(groups, "grp", join_type="inner").select(STATE["r_bin"].names),
            "r_doc": batch.r_doc,
            "r_docts": times.add_column(1, "timestamp", times["t0"]),
        }

    def _view(self, name: str, rows: pa.Table) -> None:
        local_frame(self._session, rows).createOrReplaceTempView(name)
