"""The tables of a store in Spark: temporary views over the files and the rows of the running batch."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from join_stage.store.spark.manifests import DataFile
from join_stage.store.spark.snapshot import FileTables

_TYPES = {
    pa.int64(): "BIGINT",
    pa.int32(): "INT",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.list_(pa.int64()): "ARRAY<BIGINT>",
    pa.list_(pa.string()): "ARRAY<STRING>",
}

FIRST_INDEX = 0
"""The index of the first element of an array in SQL."""

_WORD = re.compile(r"\w+")


def file_urls(paths: Iterable[str]) -> list[str]:
    """Paths as URLs of the local file system, whatever the default of Spark is."""
    return [f"file://{path}" for path in paths]


def local_frame(session: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows as a data frame. They are put into one chunk: PySpark 4.3 drops what follows an empty chunk."""
    return session.createDataFrame(rows.combine_chunks())


class TableViews:
    """Keeps the temporary views of a session up to date. A view is replaced only if its table has changed."""

    def __init__(self, session: SparkSession, store: FileTables) -> None:
        self._session, self._store = session, store
        self._seen: dict[str, tuple[tuple[DataFile, ...], tuple[pa.Table, ...]]] = {}

    def frame(self, table: str) -> DataFrame:
        """A table as it is now, the running batch included."""
        parts = []
        if paths := self._store.paths(table):
            parts.append(
                self._session.read.schema(spark_columns(self._store.schema.tables[table])).parquet(*file_urls(paths))
            )
        fresh = self._store.fresh(table)
        if len(fresh) or not parts:
            parts.append(local_frame(self._session, fresh))
        return parts[0] if len(parts) == 1 else parts[0].unionAll(parts[1])

    def forget(self, table: str) -> None:
        """Notes that the view of a table was replaced: it is made again when a query names the table."""
        self._seen.pop(table, None)

    def refresh(self, sql: str) -> None:
        """Brings the views of all relations that a query names up to date."""
        words = set(_WORD.findall(sql.lower()))
        for name, statement in self._derived(words).items():
            self.refresh(statement)  # it may name other views
            self._session.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {statement}")
        self._refresh_tables(words)

    def _refresh_tables(self, words: set[str]) -> None:
        for table in words & self._store.schema.tables.keys():
            state = (self._store.files[table], self._store.parts(table))
            if self._seen.get(table) != state:
                self.frame(table).createOrReplaceTempView(table)
                self._seen[table] = state

    def _derived(self, words: set[str]) -> dict[str, str]:
        """The SELECTs of the named views over tables, by name."""
        schema = self._store.schema
        found = {name: statement for name, statement in schema.views.items() if name in words}
        if (numbered := schema.numbered) is not None and any(map(numbered.has, words)):
            made = numbered.of_rows(self._store.read(numbered.table), FIRST_INDEX)
            found |= {name: made[name] for name in words & made.keys()}
        return found


def spark_columns(schema: pa.Schema) -> str:
    """A schema in DDL, as the readers of Spark take it."""
    return ", ".join(f"`{field.name}` {_TYPES[field.type]}" for field in schema)
