"""Makes the tables of a store readable in other Spark sessions while a process writes it. A query sees whole batches.
Each table is a Python data source that reads the newest manifest when a query is planned. Of two tables in one query,
one may show a batch more than the other; the views join rows of one batch, so they show all of it or nothing."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from join_stage.store.protocol import StoreError, StoreSchema
from join_stage.store.spark.manifests import DataFile, FileTables, check_digest, newest_files, read_rows
from join_stage.store.spark.parquet_store import FIRST_INDEX, spark_columns

DATABASE = "mmqjp"


@dataclass
class _File(InputPartition):
    path: Path
    file: DataFile


class _Reader(DataSourceReader):
    def __init__(self, directory: Path, table: str, store: StoreSchema) -> None:
        # Only what concerns the table: it is pickled.
        former = {table: store.folder(table)}
        self._directory, self._table = directory, table
        self._store = StoreSchema({table: store.tables[table]}, former_names=former)
        self._schema = store.tables[table]

    def partitions(self) -> list[InputPartition]:
        files = newest_files(self._directory, self._store)[self._table]
        return [_File(self._directory / self._store.folder(self._table) / file.name, file) for file in files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _File):  # where there is none, Spark makes one of its own
            check_digest(partition.path, partition.file)
            yield from read_rows(partition.path, self._schema).to_batches()


def table_source(directory: Path, table: str, store: StoreSchema, database: str = DATABASE) -> type[DataSource]:
    """The data source of a table. All sessions share the catalog's table, which stores no options, so the source
    registered with a session for the database determines its store."""

    class TableSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return _source_name(table, database)

        def schema(self) -> str:
            return spark_columns(store.tables[table])

        def reader(self, schema: object) -> _Reader:
            return _Reader(directory, table, store)

    return TableSource


def _source_name(table: str, database: str) -> str:
    return f"mmqjp_{table}" + (f"_in_{database}" if database != DATABASE else "")


def attach_store(session: SparkSession, schema: StoreSchema, directory: Path, database: str) -> None:
    """Makes a database show the tables and views of a store, in this session. Raises StoreError if the directory holds
    no store, or the database has its own table of one of these names."""
    directory = directory.absolute()
    views = {**schema.views, **FileTables(schema, directory).numbered_views(FIRST_INDEX)}
    before = session.catalog.currentDatabase()
    session.sql(f"CREATE DATABASE IF NOT EXISTS {database}{_location(session)}")
    session.sql(f"USE {database}")
    try:
        with _quiet_registration(session):
            for table in schema.tables:
                session.dataSource.register(table_source(directory, table, schema, database))
        for table in schema.tables:
            _refuse_other(session, f"{database}.{table}")
            session.sql(f"CREATE TABLE IF NOT EXISTS {table} USING {_source_name(table, database)}")
        # A view refers to the tables of the database that is current when the view is made.
        for name, statement in views.items():
            _refuse_other(session, f"{database}.{name}")
            if name in schema.former_names.values() and _is_table(session, f"{database}.{name}"):
                session.sql(f"DROP TABLE {name}")  # of ours: older versions made it
            session.sql(f"CREATE OR REPLACE VIEW {name} AS {statement}")
    finally:
        session.catalog.setCurrentDatabase(before)


def _location(session: SparkSession) -> str:
    """Where Spark makes the directories of tables without files: not the working directory, if they are temporary."""
    if session.conf.get("spark.sql.catalogImplementation") != "in-memory":
        return ""
    directory = mkdtemp(prefix="mmqjp-database-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return f" LOCATION '{directory}'"


@contextmanager
def _quiet_registration(session: SparkSession) -> Iterator[None]:
    """Spark warns of each source that replaces another; here it is one of ours."""
    log4j = session.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    name = "org.apache.spark.sql.execution.datasources.DataSourceManager"
    level = log4j.LogManager.getLogger(name).getLevel()
    log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)
    try:
        yield
    finally:
        log4j.core.config.Configurator.setLevel(name, level)


def _is_table(session: SparkSession, name: str) -> bool:
    return session.catalog.tableExists(name) and session.catalog.getTable(name).tableType != "VIEW"


def _refuse_other(session: SparkSession, table: str) -> None:
    """Raises StoreError if the catalog has a table of this name. Spark describes no provider for ours."""
    if session.catalog.tableExists(table):
        described = session.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
        if any(row["col_name"] == "Provider" for row in described):
            raise StoreError(f"{table} is a table of its own: attach to another database")
