"""A store's tables for readers in other Spark sessions, while a pipeline writes: each query sees whole batches.

A table is a Python data source. Whenever a query is planned it reads the newest manifest, so it sees the batches that
are committed then. Each table is read by itself: of two tables in one query the one may show a batch more than the
other. The views join rows that came with one batch, so they show none of it by half.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from join_stage.store.protocol import StoreError
from join_stage.store.spark.manifests import DataFile, newest_files, read_checked
from join_stage.store.spark.tables import VIEWS, row_view, spark_columns
from join_stage.store.tables import TABLES

_COSTS = """SELECT kept.batch, kept.cost.plan, CAST(template AS BIGINT) AS template, measured.seconds, measured.matches
FROM (
  SELECT batch, from_json(value, 'plan STRING, templates MAP<STRING, STRUCT<seconds: DOUBLE, matches: BIGINT>>') AS cost
  FROM settings WHERE key = 'costs') AS kept
LATERAL VIEW explode(kept.cost.templates) AS template, measured"""
"""What templates cost in the last batch that each was answered in, for each run that was closed."""


@dataclass
class _File(InputPartition):
    path: Path
    file: DataFile


class _Reader(DataSourceReader):
    """The rows of the files that a table has now."""

    def __init__(self, directory: Path, table: str) -> None:
        self._directory, self._table = directory, table

    def partitions(self) -> list[InputPartition]:
        files = newest_files(self._directory)[self._table]
        return [_File(self._directory / self._table / file.name, file) for file in files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _File):  # where there is none, Spark makes one of its own
            yield from read_checked(partition.path, partition.file).to_batches()


def table_source(directory: Path, table: str) -> type[DataSource]:
    """The data source of a store's table. A catalog table keeps no options of its source, and all sessions share it: a
    session reads the store for which it has the source."""

    class TableSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return _source_name(table)

        def schema(self) -> str:
            return spark_columns(TABLES[table])

        def reader(self, schema: object) -> _Reader:
            return _Reader(directory, table)

    return TableSource


def _source_name(table: str) -> str:
    return f"mmqjp_{table}"


def attach(session: SparkSession, directory: Path, database: str) -> None:
    """Makes the tables and views of a store those of a database, for this session.

    Raises StoreError if the directory holds no store, or the database a table that is not ours.
    """
    directory = directory.absolute()
    templates = _templates(directory)
    before = session.catalog.currentDatabase()
    session.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    session.sql(f"USE {database}")
    try:
        for table in TABLES:
            session.dataSource.register(table_source(directory, table))
            _refuse_other(session, f"{database}.{table}")
            session.sql(f"CREATE TABLE IF NOT EXISTS {table} USING {_source_name(table)}")
        # What a view's tables are is settled when it is made: those of the current database.
        views = VIEWS | {"costs": _COSTS} | {f"r_t_{n}": row_view(n, nodes) for n, nodes in templates.items()}
        for name, statement in views.items():
            session.sql(f"CREATE OR REPLACE VIEW {name} AS {statement}")
    finally:
        session.catalog.setCurrentDatabase(before)


def _templates(directory: Path) -> dict[int, int]:
    """The templates of a store by number, and how many nodes each has."""
    files = newest_files(directory)["templates"]
    tables = (read_checked(directory / "templates" / file.name, file) for file in files)
    return {row["template"]: len(row["parents"]) for table in tables for row in table.to_pylist()}


def _refuse_other(session: SparkSession, table: str) -> None:
    """Raises StoreError if there is a table that is kept in the catalog. Of one of ours Spark tells no provider."""
    if session.catalog.tableExists(table):
        described = session.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
        if any(row["col_name"] == "Provider" for row in described):
            raise StoreError(f"{table} is a table of its own: attach to another database")
