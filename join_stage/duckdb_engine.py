"""The embedded engine: state, tables and joins in one DuckDB file, a batch a transaction."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from join_stage.costs import Cost
from join_stage.duckdb_plans import BasicPlan, DuckDBPlan, registered
from join_stage.duckdb_signature import SignaturePlan
from join_stage.duckdb_views import ViewsPlan
from join_stage.engine import (
    DEFAULT_PLAN,
    DUCKDB_FILE,
    SPARK_MANIFESTS,
    Batch,
    Matches,
    Scope,
    StoreError,
    unknown_plan,
)
from join_stage.plan import TemplateTable
from join_stage.tables import BOUND_STATE, RECORDS, STATE
from join_stage.views import CACHE_BYTES
from templates.catalog import Edge, Row
from templates.witness import Witnesses

MEMORY_LIMIT = "2GB"
"""What DuckDB may hold in memory before it spills to disk."""

THREADS = 4
"""At most so many threads: each reserves buffers for each join of a statement."""

_TYPES = {
    pa.int64(): "BIGINT",
    pa.int32(): "INTEGER",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.bool_(): "BOOLEAN",
    pa.list_(pa.int64()): "BIGINT[]",
    pa.list_(pa.string()): "VARCHAR[]",
}

_VIEWS = """
CREATE OR REPLACE VIEW r_bin AS SELECT docid, var1, var2, node1, node2 FROM bound JOIN groups USING (grp);
CREATE OR REPLACE VIEW queries AS
  SELECT a.qid, a.name, a.text, a.template, a.window_us, a.added_at, r.removed_at
  FROM added_queries a LEFT JOIN removed_queries r USING (qid);
CREATE OR REPLACE VIEW matches AS
  SELECT q.query, m.docid1, m.docid2, m.t0, m.t1, m.bindings
  FROM match_rows m JOIN match_queries q USING (match);
"""

_REGROUP = """
BEGIN TRANSACTION;
CREATE TEMP TABLE edges AS
  SELECT var1, var2, ((SELECT coalesce(max(grp), -1) FROM groups) + row_number() OVER ())::INTEGER AS grp
  FROM (SELECT DISTINCT var1, var2 FROM r_bin);
INSERT INTO groups SELECT grp, var1, var2 FROM edges;
INSERT INTO bound SELECT docid, grp, node1, node2 FROM r_bin JOIN edges USING (var1, var2);
DROP TABLE edges;
DROP TABLE r_bin;
COMMIT;
"""
"""Brings a store up to date that has R_bin as a table: each of its edges becomes a group."""


_DROP_UNUSED = """
DELETE FROM bound WHERE grp NOT IN (SELECT grp FROM groups JOIN used USING (var1, var2))
"""


class DuckDBEngine:
    """A `JoinEngine` on DuckDB; without a directory everything is in memory, and spills past MEMORY_LIMIT.

    A store may be opened with another `plan` than the last time. `cache_bytes` bounds what the plan `views` caches.
    """

    def __init__(
        self, directory: Path | None = None, plan: str = DEFAULT_PLAN, *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        if directory is not None and (directory / SPARK_MANIFESTS).exists():
            raise StoreError(f"{directory} holds a store of the engine spark: use that engine or another directory")
        try:
            if directory is not None:
                directory.mkdir(parents=True, exist_ok=True)
            file = ":memory:" if directory is None else str(directory / DUCKDB_FILE)
            # By default a database in memory spills into the working directory, which is the user's.
            self._spilled = tempfile.TemporaryDirectory(prefix="mmqjp-") if directory is None else None
            self._connection = duckdb.connect(file)
            if self._spilled is not None:
                self._connection.execute(f"SET temp_directory = '{self._spilled.name}'")
        except (duckdb.Error, OSError) as error:
            advice = "take an older copy, or name another directory"
            raise StoreError(f"cannot open the store in {directory}: {error}; {advice}") from error
        try:
            self._prepare()
            self._plan = _make_plan(plan, self._connection, cache_bytes)
        except BaseException:
            self.close()
            raise
        self._viewed: set[int] = set()
        self._older = False

    def _prepare(self) -> None:
        """Sets up the connection and the tables."""
        run = self._connection.execute
        run(f"SET memory_limit = '{MEMORY_LIMIT}'")
        run(f"SET threads = {min(THREADS, os.cpu_count() or 1)}")
        run("SET preserve_insertion_order = false")
        run("SET enable_progress_bar = false")  # it would show in a notebook
        # The statements name their joins in the order in which they are to be run: the optimizer, which knows
        # nothing of how many documents share a value, was seen to choose orders a thousand times slower.
        run("SET disabled_optimizers = 'join_order'")
        for name, schema in (BOUND_STATE | RECORDS).items():
            run(f"CREATE TABLE IF NOT EXISTS {name} ({_columns(schema)})")
        made = set(run("SELECT table_name, column_name FROM duckdb_columns()").fetchall())
        for name, schema in (BOUND_STATE | RECORDS).items():
            for field in schema:
                if (name, field.name) not in made:  # a column that is younger than the store
                    run(f"ALTER TABLE {name} ADD COLUMN {field.name} {_TYPES[field.type]}")
        if run("SELECT 1 FROM duckdb_tables() WHERE table_name = 'r_bin'").fetchall():
            run(_REGROUP)
        for name, schema in STATE.items():
            run(f"CREATE TEMP TABLE {name}_w ({_columns(schema)})")
        run(_VIEWS)

    # ------------------------------------------------------------ R_T

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        if template.number not in self._viewed:
            self._connection.execute(_row_view(template))
            self._viewed.add(template.number)
        self._plan.put_rows(template, rows)

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._plan.drop_rows(template, rows)

    # ------------------------------------------------------------ batches

    def begin(self) -> None:
        self._connection.begin()

    def commit(self) -> None:
        with _written():
            self._connection.commit()
        self._plan.committed()

    def rollback(self) -> None:
        try:
            self._connection.rollback()
        except duckdb.TransactionException:  # a commit that failed has ended the transaction
            self._plan.rolled_back(whole=False)
        else:
            self._plan.rolled_back(whole=True)

    def append(self, table: str, rows: pa.Table) -> None:
        self._insert(f"INSERT INTO {table} SELECT * FROM appended", rows)

    def _insert(self, statement: str, appended: pa.Table) -> None:
        """Inserts rows, which the statement calls `appended`: DuckDB finds the variable. To register them takes as long
        again."""
        if len(appended):
            with _written():
                self._connection.execute(statement)

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        with registered(self._connection, views or {}):
            return self._connection.sql(sql).to_arrow_table()

    def read(self, table: str, columns: Sequence[str]) -> pa.Table:
        return self.select(f"SELECT {', '.join(columns)} FROM {table}")

    def highest(self, table: str, column: str) -> int:
        (number,) = self.select(f"SELECT coalesce(max({column}), -1) AS number FROM {table}")["number"].to_pylist()
        return int(number)

    def join(self, batch: Witnesses, first_docid: int, scope: Scope) -> Matches:
        self._add(batch)
        if self._plan.in_sql:
            self._split_state(first_docid)
        # Once there were older documents it is taken that there are: a join with none finds none.
        self._older = self._older or self._has_documents_before(first_docid)
        return self._plan.join(Batch(batch, first_docid, self._older, scope))

    def extend(self, witnesses: Witnesses) -> None:
        self._add(witnesses)
        self._plan.extended()

    def _add(self, batch: Witnesses) -> None:
        """Adds witnesses to the join state."""
        self.append("groups", batch.r_group)
        self.append("bound", batch.r_bin)
        self.append("r_doc", batch.r_doc)
        self._insert("INSERT INTO r_docts SELECT docid, t0 AS timestamp, t0, t1 FROM appended", batch.r_docts)

    def _has_documents_before(self, docid: int) -> bool:
        return self._connection.execute(f"SELECT EXISTS (FROM r_docts WHERE docid < {docid})").fetchall() == [(True,)]

    def _split_state(self, first_docid: int) -> None:
        """Makes of the join state the batch's part (r_bin_w and so on), and the part from before it (r_bin_old ...)."""
        for name in STATE:
            self._connection.execute(f"DELETE FROM {name}_w")
            self._connection.execute(f"INSERT INTO {name}_w SELECT * FROM {name} WHERE docid >= {first_docid}")
            older = f"SELECT * FROM {name} WHERE docid < {first_docid}"
            self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {name}_old AS {older}")

    def evict(self, before: int) -> None:
        docids = f"SELECT docid FROM r_docts WHERE t0 < {before}"
        self._plan.evicted(docids, before)
        for name in BOUND_STATE:  # r_docts, which tells the documents, goes last
            self._connection.execute(f"DELETE FROM {name} WHERE docid IN ({docids})")

    def drop_groups(self, edges: Collection[Edge]) -> Collection[int]:
        used = pa.table([pa.array([edge[side] for edge in edges], pa.int32()) for side in (0, 1)], ["var1", "var2"])
        with registered(self._connection, {"used": used}):
            self._connection.execute(_DROP_UNUSED)
        self._connection.execute("DELETE FROM groups WHERE grp NOT IN (SELECT grp FROM bound)")
        kept = {number for (number,) in self._connection.execute("SELECT DISTINCT grp FROM groups").fetchall()}
        self._plan.regrouped(kept, edges)
        return kept

    def drop_derived(self, node: int) -> None:
        self._connection.execute(f"DELETE FROM bound WHERE node1 >= {node} OR node2 >= {node}")
        self._connection.execute(f"DELETE FROM r_doc WHERE node >= {node}")
        self._plan.extended()

    def drop_before(self, table: str, column: str, bound: int) -> None:
        self._connection.execute(f"DELETE FROM {table} WHERE {column} < {bound}")

    def counters(self) -> dict[str, int]:
        return self._plan.counters()

    def costs(self) -> dict[int, Cost]:
        return self._plan.costs()

    def close(self) -> None:
        self._connection.close()
        if self._spilled is not None:
            self._spilled.cleanup()


@contextmanager
def _written() -> Iterator[None]:
    """Says of a write that fails, for want of room above all, that it is the store's."""
    try:
        yield
    except (duckdb.IOException, duckdb.TransactionException) as error:
        raise StoreError(f"the store cannot be written: {error}; make room, and run it again") from error


def _make_plan(name: str, connection: duckdb.DuckDBPyConnection, cache_bytes: int) -> DuckDBPlan:
    """The plan of a name. Raises ValueError if there is none."""
    if name == "basic":
        return BasicPlan(connection)
    if name == "views":
        return ViewsPlan(connection, cache_bytes)
    if name == "signature":
        return SignaturePlan(connection)
    raise unknown_plan(name)


def _row_view(template: TemplateTable) -> str:
    """R_T as in Table 6.4(a): a row for each conjunctive query of each query."""
    variables = ", ".join(f"variables[{i + 1}] AS var{i + 1}" for i in range(len(template.shape.parents)))
    return f"""CREATE OR REPLACE VIEW r_t_{template.number} AS SELECT qid, {variables}, window_us AS wl
FROM placements WHERE template = {template.number} AND qid NOT IN (SELECT qid FROM removed_queries)"""


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {_TYPES[field.type]}" for field in schema)
