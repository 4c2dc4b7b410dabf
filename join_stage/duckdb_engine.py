"""The embedded engine: state, tables and joins in one DuckDB file, a batch a transaction."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb
import pyarrow as pa

from join_stage.engine import DUCKDB_FILE, RESULT, SPARK_MANIFESTS, Scope, StoreError
from join_stage.plan import NEW_LEFT, NEW_RIGHT, TemplateTable, batch_statements, value_pairs_statement
from join_stage.tables import STATE, TABLES
from templates.catalog import Row
from templates.witness import Witnesses

MEMORY_LIMIT = "2GB"
"""What DuckDB may hold in memory before it spills to disk."""

THREADS = 4
"""At most so many threads: each reserves buffers for each join of a statement."""

JOINS = 40
"""Joins in one statement. DuckDB starts all branches of a union at once and reserves up to 4 MiB for each join and
thread, which it cannot spill: sixty templates in one statement were past MEMORY_LIMIT over next to no data. Statements
of 40 joins were also a tenth to a fifth faster than ones of 80 or 160."""

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
CREATE OR REPLACE VIEW queries AS
  SELECT a.qid, a.name, a.text, a.template, a.window_us, a.added_at, r.removed_at
  FROM added_queries a LEFT JOIN removed_queries r USING (qid);
CREATE OR REPLACE VIEW matches AS
  SELECT q.query, m.docid1, m.docid2, m.t0, m.t1, m.bindings
  FROM match_rows m JOIN match_queries q USING (match);
"""


class DuckDBEngine:
    """A `JoinEngine` on DuckDB; without a directory everything is in memory, and spills past MEMORY_LIMIT."""

    def __init__(self, directory: Path | None = None) -> None:
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
            raise StoreError(f"cannot open the store in {directory}: {error}") from error
        self._templates: dict[int, TemplateTable] = {}
        run = self._connection.execute
        run(f"SET memory_limit = '{MEMORY_LIMIT}'")
        run(f"SET threads = {min(THREADS, os.cpu_count() or 1)}")
        run("SET preserve_insertion_order = false")
        run("SET enable_progress_bar = false")  # it would show in a notebook
        # The statements name their joins in the order in which they are to be run: the optimizer, which knows
        # nothing of how many documents share a value, was seen to choose orders a thousand times slower.
        run("SET disabled_optimizers = 'join_order'")
        for name, schema in TABLES.items():
            run(f"CREATE TABLE IF NOT EXISTS {name} ({_columns(schema)})")
            if name in STATE:
                run(f"CREATE TEMP TABLE {name}_w ({_columns(schema)})")
        run(_VIEWS)

    # ------------------------------------------------------------ R_T

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        if template.number not in self._templates:
            self._templates[template.number] = template
            columns = ", ".join(f"{c} {'INTEGER' if c.startswith('var') else 'BIGINT'}" for c in template.columns[:-1])
            self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {template.name} ({columns}, ordered BOOLEAN)")
            self._connection.execute(_row_view(template))
        self._delete_rows(template, rows)
        values = zip(*((row.id, *row.variables, row.window, row.ordered) for row in rows), strict=True)
        table = pa.table([pa.array(column) for column in values], names=template.columns)
        with self._registered({"fresh_rows": table}):
            self._connection.execute(f"INSERT INTO {template.name} SELECT * FROM fresh_rows")

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._delete_rows(template, rows)
        if self._connection.execute(f"SELECT count(*) FROM {template.name}").fetchall() == [(0,)]:
            del self._templates[template.number]

    def _delete_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        ids = pa.table({"qid": pa.array([row.id for row in rows], pa.int64())})
        with self._registered({"stale_rows": ids}):
            self._connection.execute(f"DELETE FROM {template.name} WHERE qid IN (SELECT qid FROM stale_rows)")

    # ------------------------------------------------------------ batches

    def begin(self) -> None:
        self._connection.begin()

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        with suppress(duckdb.TransactionException):  # a commit that failed has ended the transaction
            self._connection.rollback()

    def append(self, table: str, rows: pa.Table) -> None:
        with self._registered({"appended": rows}):
            self._connection.execute(f"INSERT INTO {table} SELECT * FROM appended")

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        with self._registered(views or {}):
            return self._connection.sql(sql).to_arrow_table()

    def join(self, batch: Witnesses, first_docid: int, scope: Scope) -> pa.Table:
        run = self._connection.execute
        self.append("groups", batch.r_group)
        sources = {
            "r_bin": "SELECT docid, var1, var2, node1, node2 FROM witnesses JOIN groups USING (grp)",
            "r_doc": "SELECT docid, node, strval, stream FROM witnesses",
            "r_docts": "SELECT docid, t0 AS timestamp, t0, t1 FROM witnesses",
        }
        for name, source in sources.items():
            run(f"DELETE FROM {name}_w")
            with self._registered({"witnesses": getattr(batch, name)}):
                run(f"INSERT INTO {name}_w {source}")
            run(f"INSERT INTO {name} SELECT * FROM {name}_w")
            run(f"CREATE OR REPLACE TEMP VIEW {name}_old AS SELECT * FROM {name} WHERE docid < {first_docid}")
        old = run(f"SELECT EXISTS (FROM r_docts WHERE docid < {first_docid})").fetchall() == [(True,)]
        with self._registered({"joined_streams": scope.joined_streams()}):
            for side in (NEW_RIGHT, NEW_LEFT) if old else (NEW_RIGHT,):
                run(f"CREATE OR REPLACE TEMP TABLE {side.pairs} AS {value_pairs_statement(side, scope.window)}")
        statements = batch_statements(list(self._templates.values()), "[{}]", with_old=old, joins=JOINS)
        results = [self._connection.sql(statement).to_arrow_table() for statement in statements]
        return pa.concat_tables([RESULT.empty_table(), *results])

    def evict(self, before: int) -> None:
        for name in ("r_bin", "r_doc", "r_docts"):
            self._connection.execute(
                f"DELETE FROM {name} WHERE docid IN (SELECT docid FROM documents WHERE t0 < {before})"
            )

    def close(self) -> None:
        self._connection.close()
        if self._spilled is not None:
            self._spilled.cleanup()

    @contextmanager
    def _registered(self, views: Mapping[str, pa.Table]) -> Iterator[None]:
        for name, table in views.items():
            self._connection.register(name, table)
        try:
            yield
        finally:
            for name in views:
                self._connection.unregister(name)


def _row_view(template: TemplateTable) -> str:
    """R_T as in Table 6.4(a): a row for each conjunctive query of each query."""
    variables = ", ".join(f"variables[{i + 1}] AS var{i + 1}" for i in range(len(template.shape.parents)))
    return f"""CREATE OR REPLACE VIEW r_t_{template.number} AS SELECT qid, {variables}, window_us AS wl
FROM placements WHERE template = {template.number} AND qid NOT IN (SELECT qid FROM removed_queries)"""


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {_TYPES[field.type]}" for field in schema)
