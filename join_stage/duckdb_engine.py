"""The embedded engine: state, tables and joins in one DuckDB file, a batch a transaction."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb
import pyarrow as pa

from join_stage.costs import Cost
from join_stage.duckdb_damage import ADVICE, telling_damage
from join_stage.duckdb_plans import BasicPlan, DuckDBPlan, registered
from join_stage.duckdb_question import DuckDBQuestion, seclude
from join_stage.duckdb_rows import RowSource
from join_stage.duckdb_signature import SignaturePlan
from join_stage.duckdb_views import ViewsPlan
from join_stage.engine import (
    DEFAULT_PLAN,
    DUCKDB_FILE,
    SPARK_MANIFESTS,
    Batch,
    Matches,
    OutOfMemory,
    Scope,
    StoreError,
    unknown_plan,
)
from join_stage.plan import TemplateTable
from join_stage.private import is_shared, keep_private, make_state
from join_stage.reading import UNBOUNDED, Bounds
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


@telling_damage
class DuckDBEngine:
    """A `JoinEngine` on DuckDB; without a directory everything is in memory, and spills past MEMORY_LIMIT.

    A store may be opened with another `plan` than the last time. `cache_bytes` bounds what the plan `views` caches.
    The instance reaches no file but its own, whatever it is asked.
    """

    def __init__(
        self, directory: Path | None = None, plan: str = DEFAULT_PLAN, *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        if directory is not None and (directory / SPARK_MANIFESTS).exists():
            raise StoreError(f"{directory} holds a store of the engine spark: use that engine or another directory")
        try:
            if directory is not None:
                make_state(directory)
            file = ":memory:" if directory is None else str(directory / DUCKDB_FILE)
            # By default a database in memory spills into the working directory, which is the user's.
            self._spilled = tempfile.TemporaryDirectory(prefix="mmqjp-") if directory is None else None
            self._connection = duckdb.connect(file)
            self._private = () if directory is None or is_shared(directory) else (Path(file), Path(f"{file}.wal"))
            self._keep_private()
            if self._spilled is not None:
                self._connection.execute(f"SET temp_directory = '{self._spilled.name}'")
        except (duckdb.Error, OSError) as error:
            raise StoreError(f"cannot open the store in {directory}: {error}; {ADVICE}") from error
        try:
            self._prepare()
            # Cursors of a connection are made where it is not at work, which the batches' may be.
            self._asked = self._connection.cursor()
            self._plan = _make_plan(plan, self._connection, cache_bytes)
        except BaseException:
            self.close()
            raise
        self._viewed: set[int] = set()
        self._sources: dict[str, RowSource] = {}
        self._older = False

    def _keep_private(self) -> None:
        """Takes the files from all others. DuckDB makes them as the umask says, and the log anew now and then."""
        for path in self._private:
            keep_private(path)

    def _prepare(self) -> None:
        """Sets up the connection and the tables."""
        run = self._connection.execute
        set_up(self._connection)
        # The statements name their joins in the order in which they are to be run: the optimizer, which knows
        # nothing of how many documents share a value, was seen to choose orders a thousand times slower.
        run("SET disabled_optimizers = 'join_order'")
        seclude(self._connection)
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
        self._keep_private()
        self._plan.committed()

    def rollback(self) -> None:
        self._sources.clear()  # they may have been registered in the transaction that goes
        try:
            self._connection.rollback()
        except duckdb.TransactionException:  # a commit that failed has ended the transaction
            self._plan.rolled_back(whole=False)
        else:
            self._plan.rolled_back(whole=True)

    def append(self, table: str, rows: pa.Table) -> None:
        self._insert(table, rows)

    def _insert(self, table: str, rows: pa.Table, columns: str = "*") -> None:
        """Inserts rows into a table, or what the expressions `columns` make of them. What stands for them is registered
        once for each table: to do so for each insert takes as long again."""
        if not len(rows):
            return
        with _written():
            source = self._sources.get(table)
            if source is None or source.schema != rows.schema:
                source = self._sources[table] = RowSource(rows.schema)
                self._connection.register(f"{table}_fresh", source)
            source.rows = rows
            try:
                self._connection.execute(f"INSERT INTO {table} SELECT {columns} FROM {table}_fresh")
            finally:
                source.rows = source.schema.empty_table()

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        with registered(self._connection, views or {}):
            return self._connection.sql(sql).to_arrow_table()

    def question(self, sql: str, bounds: Bounds = UNBOUNDED) -> DuckDBQuestion:
        return DuckDBQuestion(self._asked, sql, bounds)

    def read(self, table: str, columns: Sequence[str], key: str | None = None) -> pa.Table:
        sql = f"SELECT {', '.join(columns)} FROM {table}"
        if key is None:
            return self.select(sql)
        return self.select(f"{sql} WHERE key = (SELECT w.key FROM wanted w)", {"wanted": pa.table({"key": [key]})})

    def highest(self, table: str, column: str) -> int:
        (number,) = self.select(f"SELECT coalesce(max({column}), -1) AS number FROM {table}")["number"].to_pylist()
        return int(number)

    def join(self, batch: Witnesses, first_docid: int, scope: Scope) -> Matches:
        self._add(batch)
        if self._plan.in_sql:
            self._split_state(first_docid)
        # Once there were older documents it is taken that there are: a join with none finds none.
        self._older = self._older or self._has_documents_before(first_docid)
        with _written():
            return self._plan.join(Batch(batch, first_docid, self._older, scope))

    def extend(self, witnesses: Witnesses) -> None:
        self._add(witnesses)
        self._plan.extended()

    def _add(self, batch: Witnesses) -> None:
        """Adds witnesses to the join state."""
        self.append("groups", batch.r_group)
        self.append("bound", batch.r_bin)
        self.append("r_doc", batch.r_doc)
        self._insert("r_docts", batch.r_docts, "docid, t0 AS timestamp, t0, t1")

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
        with suppress(duckdb.ResourceInUseException):  # by a question that ends late: what is committed is written
            self._connection.close()
        if self._spilled is not None:
            self._spilled.cleanup()


def set_up(connection: duckdb.DuckDBPyConnection) -> None:
    """How an instance of ours works."""
    connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
    connection.execute(f"SET threads = {min(THREADS, os.cpu_count() or 1)}")
    connection.execute("SET preserve_insertion_order = false")
    connection.execute("SET enable_progress_bar = false")  # it would show in a notebook


@contextmanager
def _written() -> Iterator[None]:
    """Says of what fails in a batch, for want of room above all, that it is the store's."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise OutOfMemory(
            f"the store needs more memory than its {MEMORY_LIMIT}: {error}; take smaller batches"
        ) from error
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
