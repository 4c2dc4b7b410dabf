"""Reading the tables of a DuckDB file, and the settings of an instance of DuckDB."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from join_stage.store.duckdb_damage import telling_damage
from join_stage.store.duckdb_prepared import PreparedStatements
from join_stage.store.duckdb_question import DuckDBQuestion
from join_stage.store.reading import UNBOUNDED, Bounds
from join_stage.store.schema import StoreSchema

MEMORY_LIMIT = "2GB"
"""The memory that DuckDB may use before it spills to disk."""

CHECKPOINT = "64MB"
"""The size of the log at which DuckDB writes it into the tables' file. Each time it compresses blocks anew that are not
full: with four times the default, 100,000 pairs of documents take 6% less time. To open a store after a crash takes a
few tenths of a second more."""

THREADS = 4
"""The largest number of threads. Each reserves buffers for each join of a statement."""


@telling_damage
class DuckDBTables:
    """The reading half of a store: reads over one connection, and answers questions over another to its instance."""

    schema: StoreSchema
    _connection: duckdb.DuckDBPyConnection
    _asked: duckdb.DuckDBPyConnection
    _prepared: PreparedStatements
    _empty: Collection[str] = ()
    """Tables that are known to have no rows: to ask them took a quarter of the time in which a new store is opened."""

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        if views:
            return self._prepared.select(sql, views)
        return self._connection.sql(sql).to_arrow_table()

    def question(self, sql: str, bounds: Bounds = UNBOUNDED, *, own: bool = False) -> DuckDBQuestion:
        return DuckDBQuestion(self._asked, self.schema, sql, bounds, own=own)

    def read(self, table: str, columns: Sequence[str], key: str | None = None) -> pa.Table:
        if table in self._empty:
            return self.schema.tables[table].empty_table().select(columns)
        sql = f"SELECT {', '.join(columns)} FROM {table}"
        if key is None:
            return self.select(sql)
        return self.select(
            f"{sql} WHERE key = (SELECT w.key FROM wanted_key w)", {"wanted_key": pa.table({"key": [key]})}
        )

    def find(self, table: str, column: str, numbers: pa.Array) -> pa.Table:
        if table in self._empty:
            return self.schema.tables[table].empty_table()
        columns = ", ".join(f"t.{name}" for name in self.schema.tables[table].names)
        sql = f"SELECT {columns} FROM {table} t JOIN wanted_rows w ON t.{column} = w.number"
        return self.select(sql, {"wanted_rows": pa.table({"number": numbers})})

    def highest(self, table: str, column: str) -> int:
        if table in self._empty:
            return -1
        (number,) = self.select(f"SELECT coalesce(max({column}), -1) AS number FROM {table}")["number"].to_pylist()
        return int(number)


def most_threads() -> int:
    """Returns the largest number of threads on this machine."""
    return min(THREADS, os.cpu_count() or 1)


def set_up(connection: duckdb.DuckDBPyConnection) -> None:
    """Sets up an instance."""
    connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
    connection.execute(f"SET checkpoint_threshold = '{CHECKPOINT}'")
    connection.execute(f"SET threads = {most_threads()}")
    connection.execute("SET preserve_insertion_order = false")
    # It would show in a notebook. In one without ipywidgets it is off, and setting it is an error.
    connection.execute("SELECT current_setting('enable_progress_bar')")
    if connection.fetchall() != [(False,)]:
        connection.execute("SET enable_progress_bar = false")


@contextmanager
def registered(connection: duckdb.DuckDBPyConnection, views: Mapping[str, pa.Table]) -> Iterator[None]:
    """Registers tables with a connection for a while, by name."""
    for name, table in views.items():
        connection.register(name, table)
    try:
        yield
    finally:
        for name in views:
            connection.unregister(name)
