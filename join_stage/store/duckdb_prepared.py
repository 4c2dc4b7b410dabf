"""Statements over rows of Python that are prepared once: in small batches, planning would take most of the time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from join_stage.store.duckdb_row_source import RowSource

MAX_STATEMENTS = 200
"""When so many statements are prepared, they are dropped."""


class PreparedStatements:
    """The prepared statements of a connection, and the rows that they read by name.

    The names are registered once, and hold rows only while a statement runs: registering rows for each statement would
    double its time. Rows under one name should always have the same columns: others make all statements be prepared
    again.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._sources: dict[str, RowSource] = {}
        self._names: dict[str, str] = {}

    def execute(self, sql: str, rows: Mapping[str, pa.Table]) -> None:
        """Runs a statement over rows by name."""
        with self._holding(rows):
            self._connection.execute(f"EXECUTE {self._prepared(sql)}")

    def select(self, sql: str, rows: Mapping[str, pa.Table]) -> pa.Table:
        """Runs a query over rows by name and returns its result."""
        with self._holding(rows):
            return self._connection.sql(f"EXECUTE {self._prepared(sql)}").to_arrow_table()

    def forget(self) -> None:
        """Drops all statements and names. They may have been made in a transaction that was rolled back."""
        self._drop_statements()
        self._sources.clear()

    @contextmanager
    def _holding(self, rows: Mapping[str, pa.Table]) -> Iterator[None]:
        sources = [self._source(name, table.schema) for name, table in rows.items()]
        for source, table in zip(sources, rows.values(), strict=True):
            source.rows = table
        try:
            yield
        finally:
            for source in sources:
                source.clear()

    def _drop_statements(self) -> None:
        for name in self._names.values():
            self._connection.execute(f"DEALLOCATE {name}")
        self._names.clear()

    def _source(self, name: str, schema: pa.Schema) -> RowSource:
        source = self._sources.get(name)
        if source is None or source.schema != schema:
            if source is not None:
                self._drop_statements()  # they expect other columns
            source = self._sources[name] = RowSource(schema)
            self._connection.register(name, source)
        return source

    def _prepared(self, sql: str) -> str:
        """Returns the name of a statement, which is prepared when it is first run."""
        name = self._names.get(sql)
        if name is None:
            if len(self._names) >= MAX_STATEMENTS:
                self._drop_statements()
            name = f"statement_{len(self._names)}"
            self._connection.execute(f"PREPARE {name} AS {sql}")
            self._names[sql] = name
        return name
