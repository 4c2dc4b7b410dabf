"""A store of Parquet files: a batch becomes visible when its manifest is renamed into place. The directory has a folder
for each table and the folder `manifests`; the newest manifest names all valid files. Files without a manifest stem from
a killed run and are removed when the store is opened. Superseded manifests and their files stay for GRACE, for readers
that use them; the newest superseded one always stays. Temporary views show files and the running batch to Spark.

Other Spark sessions may attach the store while a process writes it: each table is a Python data source that reads the
newest manifest when a query is planned. Two tables in one query may differ by a batch; the views join rows of one
batch, so they show all of it or nothing."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count, groupby, pairwise
from pathlib import Path
from secrets import token_hex
from tempfile import mkdtemp
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from common.files import drafts, is_shared, keep_private, make_inside, make_state
from join_stage.store.protocol import (
    COMMITTED,
    DUCKDB_FILE,
    SPARK_MANIFESTS,
    OtherEngine,
    StoreError,
    StoreSchema,
    check_not_lost,
    last_commit,
    manifest_batches,
)
from join_stage.store.spark import manifests as manifest_files


class Drafts:
    """The files written in the running batch. Names are globally unique, so their content may be cached."""

    def __init__(self) -> None:
        self._numbers, self._own = count(), token_hex(4)
        self._paths: list[Path] = []
        self._others: dict[Path, str] = {}
        """Folders in which other processes may have written files, with the prefix of their names."""

    def new(self, folder: Path, batch: int) -> Path:
        path = folder / f"{batch}-{next(self._numbers)}-{self._own}.parquet"
        self._paths.append(path)
        return path

    def prefix(self, folders: Iterable[Path], batch: int) -> str:
        """The file name prefix for other writers in these folders."""
        prefix = f"{batch}-{self._own}-"
        self._others |= dict.fromkeys(folders, prefix)
        return prefix

    def end(self, named: Container[Path]) -> None:
        """Ends the batch: removes files that are not `named`."""
        for folder, prefix in self._others.items():
            self._paths += folder.glob(f"{prefix}*")
        for path in self._paths:
            if path not in named:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
        self._paths.clear()
        self._others.clear()


MERGE = 16  # number of small files of one level that are merged into one of the next, which keeps reading fast

MERGED_BYTES = 64 << 20  # maximum bytes of a merged file


MERGED_HERE = 2 << 20
"""Files of at most this many bytes in total are merged in this process: shipping the work takes longer."""

GRACE = 600 * 1_000_000  # microseconds for which superseded files stay: a query planned before may run that long


_GONE = "the store is damaged: {} is gone; restore an older copy of the store"


class Superseded(NamedTuple):
    """Files, in the order in which to remove them, with the time of their successors."""

    at: int
    paths: list[Path]


class ParquetStore(manifest_files.FileTables):
    """Tables in a directory, or a temporary one that `close` removes. Appended rows stay in memory until `commit`. The
    process must own the directory (see `mmqjp.state.engine_choice`): files without a manifest are removed. `now` is the
    clock, in microseconds. Raises StoreError if the store cannot be opened."""

    def __init__(
        self, schema: StoreSchema, directory: Path | None, now: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        self._tables, self._now = schema.tables, now
        self._grace = GRACE if directory else 0
        self._superseded: deque[Superseded] = deque()  # oldest first
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="mmqjp-")
            directory = Path(self._temporary.name)
        # The files of each table as the running batch sees them.
        super().__init__(schema, directory, dict.fromkeys(self._tables, ()))
        self._buffers: dict[str, list[pa.Table]] = {}
        self._covered: list[int] = []
        try:
            if (self.directory / DUCKDB_FILE).exists():
                raise OtherEngine(directory, "duckdb")
            make_state(self.directory)
            if not (self.directory / SPARK_MANIFESTS).exists():
                check_not_lost(self.directory)
            make_inside(self.directory, SPARK_MANIFESTS)
        except OSError as error:
            raise StoreError(f"cannot open the store in {self.directory}: {error}") from error
        if not is_shared(self.directory):
            keep_private(self.directory / COMMITTED)
        read = manifest_files.read_manifest
        kept = {batch: read(self._manifest(batch), schema) for batch in manifest_batches(self.directory)}
        self._batch = max(kept, default=0)
        manifest_files.check_newest(self.directory, self._batch, last_commit(self.directory))
        self._committed = self.files = kept[self._batch].files if kept else self.files
        self.merge_elsewhere: Callable[[manifest_files.Merging], manifest_files.DataFile] = manifest_files.merge_files
        """Merges files that are not small."""
        self._drafts = Drafts()
        for name in self._tables:
            make_inside(self.directory, schema.folder(name))
            for file in self.files[name]:
                manifest_files.look_at(self.folder(name) / file.name, file, gone=_GONE)
        for older, newer in pairwise(kept):
            self._supersede(older, kept[older].files, kept[newer])
        self._remove_unnamed(manifest.files for manifest in kept.values())
        self._sweep()

    @property
    def is_temporary(self) -> bool:
        return self._temporary is not None

    def append(self, table: str, rows: pa.Table) -> None:
        if len(rows):
            self._buffers.setdefault(table, []).append(rows.cast(self._tables[table]))

    def write_out(self, table: str) -> list[str]:
        """Writes the appended rows of a table before commit, for others. Returns its files, for `find_rows`."""
        self.files = {**self.files, table: self.files[table] + self._written(table, self._batch + 1)}
        self._buffers.pop(table, None)
        return self.paths(table, whole=False)

    def prefix_for_others(self, tables: Iterable[str]) -> str:
        """The file name prefix for others who write these tables in the running batch; unadopted files are removed."""
        return self._drafts.prefix(map(self.folder, tables), self._batch + 1)

    def adopt(self, table: str, file: manifest_files.DataFile) -> None:
        """Adds a file that another process wrote to a table."""
        self._whole.add(str(self.folder(table) / file.name))
        self.files = {**self.files, table: (*self.files[table], file)}

    def parts(self, table: str) -> tuple[pa.Table, ...]:
        return tuple(self._buffers.get(table, ()))

    def has_rows(self, table: str) -> bool:
        return bool(self.files[table]) or table in self._buffers

    def read_between(self, table: str, column: str, first: int, end: int) -> pa.Table:
        """The rows with `first` <= number < `end`, with the running batch; reads only row groups that may have them."""
        within = (pc.field(column) >= first) & (pc.field(column) < end)
        schema = self._tables[table]
        kept = (pq.read_table(path, columns=schema.names, filters=within) for path in self.paths(table))
        fresh = self.fresh(table).filter(within)
        return pa.concat_tables([schema.empty_table(), *(rows.cast(schema) for rows in kept), fresh])

    def snapshot(self) -> manifest_files.Snapshot:
        """The files after the last committed batch."""
        return manifest_files.Snapshot(self.schema, self.directory, self._committed)

    def cover(self, first: int, last: int) -> None:
        """Extends the times of dated rows in the running batch to documents that begin from `first` to `last`."""
        self._covered += first, last

    def drop_dated(self, before: int) -> list[Path]:
        """Drops and returns files of dated tables whose documents all begin before a time; they stay until commit."""
        dated = self.schema.dated.tables if self.schema.dated else ()
        kept = {name: tuple(f for f in self.files[name] if f.last is None or f.last >= before) for name in dated}
        gone = [self.folder(name) / f.name for name in dated for f in self.files[name] if f not in kept[name]]
        self.files = {**self.files, **kept}
        return gone

    def drop_before(self, table: str, column: str, bound: int) -> None:
        """Drops rows with a number less than `bound`."""
        self.drop_unless(table, column, lambda numbers: pc.greater_equal(numbers, bound))

    def drop_unless(self, table: str, column: str, test: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> None:
        """Drops rows whose number fails a test, but not null ones; files with remaining rows are rewritten."""
        kept: list[manifest_files.DataFile] = []
        for file in self.files[table]:
            path = self.path(table, file)
            numbers = manifest_files.read_rows(path, pa.schema([self._tables[table].field(column)]))[column]
            stays = pc.fill_null(test(numbers), True)
            count = pc.sum(stays).as_py() or 0
            if count == file.rows:
                kept.append(file)
            elif count:
                rows = manifest_files.read_rows(path, self._tables[table]).filter(stays)
                kept.append(self._write(table, self._batch + 1, [rows], file.level, file.first, file.last))
        self.files = {**self.files, table: tuple(kept)}
        if table in self._buffers:
            fresh = self.fresh(table)
            self._buffers[table] = [fresh.filter(pc.fill_null(test(fresh[column]), True))]

    def rollback(self) -> None:
        self._buffers.clear()
        self._covered.clear()
        self.files = self._committed
        self._remove_drafts()

    def commit(self) -> None:
        batch = self._batch + 1
        files = {
            name: self._merged(name, batch, self.files[name] + self._written(name, batch)) for name in self._tables
        }
        if files != self._committed or not self._batch:
            manifest = manifest_files.Manifest(files, self._now())
            manifest_files.write_manifest(self._manifest(batch), manifest, self.schema)
            if self._batch:
                self._supersede(self._batch, self._committed, manifest)
            self._committed = self.files = files
            self._batch = batch
            self._buffers.clear()
            self._covered.clear()
            there = {path for name in self._tables for path in self.unchecked_paths(name)}
            self._whole &= there
            self._footers &= there
            self._remove_drafts()
            with suppress(OSError):  # the batch is committed; what cannot be removed now is removed later
                self._sweep()

    def close(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def _written(self, table: str, batch: int) -> tuple[manifest_files.DataFile, ...]:
        rows = self.fresh(table)
        if not len(rows):
            return ()
        times: list[int] = []
        if (dated := self.schema.dated) is not None and table in dated.tables:
            times = [*self.fresh(dated.times)[dated.start].to_pylist(), *self._covered]
        return (self._write(table, batch, [rows], 0, min(times, default=None), max(times, default=None)),)

    def _merged(
        self, table: str, batch: int, files: tuple[manifest_files.DataFile, ...]
    ) -> tuple[manifest_files.DataFile, ...]:
        small = sorted((f for f in files if f.size <= MERGED_BYTES // MERGE), key=lambda f: f.level)
        for level, group in groupby(small, key=lambda f: f.level):
            members = list(group)
            if len(members) >= MERGE:
                inputs = tuple(self.path(table, f) for f in members)
                first = min((f.first for f in members if f.first is not None), default=None)
                last = max((f.last for f in members if f.last is not None), default=None)
                path = self._drafts.new(self.folder(table), batch)
                merging = manifest_files.Merging(path, inputs, self._tables[table], level + 1, first, last)
                is_small = sum(f.size for f in members) <= MERGED_HERE
                merged = manifest_files.merge_files(merging) if is_small else self.merge_elsewhere(merging)
                self._whole.add(str(path))
                rest = tuple(f for f in files if f not in members)
                return self._merged(table, batch, (merged, *rest))
        return files

    def _write(
        self, table: str, batch: int, parts: Iterable[pa.Table], level: int, first: int | None, last: int | None
    ) -> manifest_files.DataFile:
        path = self._drafts.new(self.folder(table), batch)
        file = manifest_files.write_data_file(path, parts, self._tables[table], level, first, last)
        self._whole.add(str(path))
        return file

    def _supersede(self, batch: int, older: manifest_files.Files, newer: manifest_files.Manifest) -> None:
        gone = [self.folder(name) / f.name for name in self._tables for f in set(older[name]) - set(newer.files[name])]
        self._superseded.append(Superseded(newer.written_at, [*gone, self._manifest(batch)]))  # which names them

    def _sweep(self) -> None:
        """Removes what was superseded GRACE ago, but not the last. Raises OSError."""
        now = self._now()
        while len(self._superseded) > 1 and self._superseded[0].at <= now - self._grace:
            for path in self._superseded[0].paths:
                path.unlink(missing_ok=True)
            self._superseded.popleft()

    def _remove_drafts(self) -> None:
        self._drafts.end({self.folder(name) / file.name for name in self._tables for file in self._committed[name]})

    def _remove_unnamed(self, kept: Iterable[manifest_files.Files]) -> None:
        named = {(name, f.name) for files in kept for name in self._tables for f in files[name]}
        for name in self._tables:
            for path in self.folder(name).iterdir():
                if (name, path.name) not in named:
                    path.unlink()
        manifests = self.directory / SPARK_MANIFESTS
        for draft in (*drafts(manifests), *manifests.glob("*.tmp")):  # as older versions called them
            draft.unlink()

    def _manifest(self, batch: int) -> Path:
        return self.directory / SPARK_MANIFESTS / f"{batch}.json"


_TYPES = {
    pa.int64(): "BIGINT",
    pa.int32(): "INT",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.list_(pa.int64()): "ARRAY<BIGINT>",
    pa.list_(pa.string()): "ARRAY<STRING>",
}

FIRST_INDEX = 0  # index of the first element of an array in SQL

_WORD = re.compile(r"\w+")


def file_urls(paths: Iterable[str]) -> list[str]:
    """URLs of the local file system, whatever Spark's default is."""
    return [f"file://{path}" for path in paths]


_OF_PATTERNS = re.compile(r"[\[\]{}*?\\]")
"""Characters that make a path a pattern to Spark, unless they are escaped."""


def local_frame(session: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows as a data frame, in one chunk: PySpark 4.3 drops what follows an empty chunk."""
    return session.createDataFrame(rows.combine_chunks())


class TableViews:
    """Keeps the temporary views of a session up to date; a view is replaced only if its table has changed."""

    def __init__(self, session: SparkSession, store: manifest_files.FileTables) -> None:
        self._session, self._store = session, store
        self._seen: dict[str, tuple[tuple[manifest_files.DataFile, ...], tuple[pa.Table, ...]]] = {}

    def frame(self, table: str) -> DataFrame:
        """A table with the running batch."""
        parts = []
        if paths := self._store.paths(table):
            escaped = [_OF_PATTERNS.sub(r"\\\g<0>", url) for url in file_urls(paths)]
            columns = spark_columns(self._store.schema.tables[table])
            parts.append(self._session.read.schema(columns).parquet(*escaped))
        fresh = self._store.fresh(table)
        if len(fresh) or not parts:
            parts.append(local_frame(self._session, fresh))
        return parts[0] if len(parts) == 1 else parts[0].unionAll(parts[1])

    def show(self, name: str, rows: pa.Table) -> None:
        local_frame(self._session, rows).createOrReplaceTempView(name)

    def select(self, sql: str, given: Mapping[str, pa.Table] | None = None) -> pa.Table:
        """Answers a query over the tables, and over `given` ones."""
        self.refresh(sql)
        for name, rows in (given or {}).items():
            self.show(name, rows)
        try:
            return self._session.sql(sql).toArrow()
        finally:
            for name in given or {}:
                self._session.catalog.dropTempView(name)

    def forget(self, table: str) -> None:
        """Called when the view of a table was replaced; a query that names the table recreates it."""
        self._seen.pop(table, None)

    def refresh(self, sql: str) -> None:
        """Updates the views of all relations that a query names."""
        words = set(_WORD.findall(sql.lower()))
        schema = self._store.schema
        views = {name: statement for name, statement in schema.views.items() if name in words}
        if schema.numbered is not None and any(map(schema.numbered.has, words)):
            numbered = self._store.numbered_views(FIRST_INDEX)
            views |= {name: numbered[name] for name in words & numbered.keys()}
        for name, statement in views.items():
            self.refresh(statement)  # it may name other views
            self._session.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {statement}")
        for table in words & schema.tables.keys():
            state = (self._store.files[table], self._store.parts(table))
            if self._seen.get(table) != state:
                self.frame(table).createOrReplaceTempView(table)
                self._seen[table] = state


def spark_columns(schema: pa.Schema) -> str:
    """A schema as DDL for Spark's readers."""
    return ", ".join(f"`{field.name}` {_TYPES[field.type]}" for field in schema)


DATABASE = "mmqjp"


@dataclass
class _File(InputPartition):
    path: Path
    file: manifest_files.DataFile


class _Reader(DataSourceReader):
    def __init__(self, directory: Path, table: str, store: StoreSchema) -> None:
        # Only what concerns the table: it is pickled.
        former = {table: store.folder(table)}
        self._directory, self._table = directory, table
        self._store = StoreSchema({table: store.tables[table]}, former_names=former)
        self._schema = store.tables[table]

    def partitions(self) -> list[InputPartition]:
        files = manifest_files.newest_files(self._directory, self._store)[self._table]
        return [_File(self._directory / self._store.folder(self._table) / file.name, file) for file in files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _File):  # where there is none, Spark makes one of its own
            manifest_files.check_digest(partition.path, partition.file)
            yield from manifest_files.read_rows(partition.path, self._schema).to_batches()


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
    views = {**schema.views, **manifest_files.FileTables(schema, directory).numbered_views(FIRST_INDEX)}
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
            former = name in schema.former_names.values() and session.catalog.tableExists(f"{database}.{name}")
            if former and session.catalog.getTable(f"{database}.{name}").tableType != "VIEW":
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


def _refuse_other(session: SparkSession, table: str) -> None:
    """Raises StoreError if the catalog has a table of this name. Spark describes no provider for ours."""
    if session.catalog.tableExists(table):
        described = session.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
        if any(row["col_name"] == "Provider" for row in described):
            raise StoreError(f"{table} is a table of its own: attach to another database")
