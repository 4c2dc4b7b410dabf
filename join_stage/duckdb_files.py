"""Read-only `JoinEngine`s on DuckDB, over the Parquet files that Spark writes and over a DuckDB store. Neither needs
Java, nor write access to the directory."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import duckdb
import pyarrow as pa

from join_stage.store.duckdb import (
    ADVICE,
    FIRST_INDEX,
    TYPES,
    CommitMark,
    DuckDBQuestion,
    DuckDBTables,
    PreparedStatements,
    seclude,
    set_up,
    tables_in,
    telling_damage,
)
from join_stage.store.protocol import DUCKDB_FILE, UNBOUNDED, Bounds, Outdated, StoreError, StoreSchema, check_not_lost
from join_stage.store.spark.manifests import FileTables
from join_stage.tables import BOUND_STORE, FLAT_STORE, OnlyRead

_WORD = re.compile(r"\w+")

_LISTING = frozenset(("show", "describe", "summarize", "information_schema"))
"""Words of statements that list relations."""

_GLOB = re.compile(r"([*?\[])")

_ERRORS = (duckdb.Error, OSError)


@telling_damage
class DuckDBFilesReader(OnlyRead, FileTables, DuckDBTables):
    """A read-only `JoinEngine` over Parquet files, as of the last batch when it was opened; others may write the store.
    A relation is a view over files, created when a statement first names it: then DuckDB reads all files below it."""

    def __init__(
        self,
        schema: StoreSchema,
        directory: Path,
        limit: Callable[[duckdb.DuckDBPyConnection], object] = lambda connection: None,
    ) -> None:
        """Raises StoreError if there is no store. `schema` has tables beside the join state, `limit` sets limits."""
        super().__init__(FLAT_STORE | schema, directory)
        self._made, self._below = set[str](), dict[str, frozenset[str]]()
        self._numbered: dict[str, str] | None = None
        self._spilled = tempfile.TemporaryDirectory(prefix="mmqjp-")
        # In a file, and not in memory, because relations may be qualified by its name.
        self._connection = duckdb.connect(str(Path(self._spilled.name) / DUCKDB_FILE))
        self._asked, self._prepared = self._connection, PreparedStatements(self._connection)
        try:
            set_up(self._connection)
            run = self._connection.execute
            run(f"SET temp_directory = {_text(self._spilled.name)}")
            limit(self._connection)
            run("SET parquet_metadata_cache = true")  # files never change
            paths = [path for table in self.schema.tables for path in self.unchecked_paths(table)]
            run(f"SET allowed_paths = {_texts((*paths, *map(_literal, paths)))}")
            seclude(self._connection)
            run(
                "CREATE MACRO sha2(text, bits) AS "
                "CASE WHEN bits IN (0, 256) THEN sha256(text) ELSE error('sha2: only 256 bits are made') END"
            )
        except BaseException:
            self.close()
            raise

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        with self.reading(self._prepare(sql), _ERRORS):
            return super().select(sql, views)

    def question(self, sql: str, bounds: Bounds = UNBOUNDED, *, own: bool = False) -> DuckDBQuestion:
        tables = self._prepare(sql)
        return DuckDBQuestion(self._asked, self.schema, sql, bounds, lambda _: self.reading(tables, _ERRORS), own=own)

    def _prepare(self, sql: str) -> frozenset[str]:
        """Creates the relations that a statement names, and checks the files that it reads. Returns their tables."""
        words = set(_WORD.findall(sql.lower()))
        if words & _LISTING:
            words |= self.schema.relations | self._numbered_views().keys()
        tables = frozenset[str]().union(*map(self._tables_below, self._named_in(sql, words)))
        for table in tables:
            self.paths(table)
        for name in words:
            self._make(name)
        return tables

    def _named_in(self, sql: str, words: set[str]) -> set[str]:
        named = tables_in(self._connection, sql)
        return {name for name in (words if named is None else named) if self._statement(name) is not None}

    def _tables_below(self, name: str) -> frozenset[str]:
        if name in self.schema.tables:
            return frozenset((name,))
        if name not in self._below:
            inner = self._named_in(self._statement(name) or "", set())
            self._below[name] = frozenset().union(*map(self._tables_below, inner))
        return self._below[name]

    def _make(self, name: str) -> None:
        if name in self._made or (statement := self._statement(name)) is None:
            return
        if name not in self.schema.tables:
            for inner in set(_WORD.findall(statement.lower())) - {name}:
                self._make(inner)
        try:
            self._connection.execute(f"CREATE VIEW {name} AS {statement}")
        except duckdb.Error:
            if name in self.schema.tables:
                self.paths(name)  # it tells why
            raise
        self._made.add(name)

    def _statement(self, name: str) -> str | None:
        if name in self.schema.tables:
            return self._table(name)
        return self.schema.views.get(name) or self._numbered_views(name).get(name)

    def _table(self, name: str) -> str:
        """Selects a table; columns that files lack are null."""
        fields = list(self.schema.tables[name])
        typed = ", ".join(f"CAST(NULL AS {TYPES[field.type]}) AS {field.name}" for field in fields)
        if not (paths := self.unchecked_paths(name)):
            return f"SELECT {typed} WHERE false"
        files = f"read_parquet({_texts(map(_literal, paths))}, union_by_name = true, hive_partitioning = false)"
        columns = ", ".join(field.name for field in fields)
        return f"SELECT {columns} FROM (SELECT {typed} WHERE false UNION ALL BY NAME SELECT * FROM {files})"

    def _numbered_views(self, name: str | None = None) -> dict[str, str]:
        numbered = self.schema.numbered
        if numbered is None or (name is not None and not numbered.has(name)):
            return {}
        if self._numbered is None:
            self._numbered = self.numbered_views(FIRST_INDEX)
        return self._numbered


def _literal(path: str) -> str:
    return _GLOB.sub(r"[\1]", path)


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _texts(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]"


@telling_damage
class DuckDBReader(OnlyRead, DuckDBTables):
    """A read-only `JoinEngine` over a DuckDB store; also reads the log that a killed process left beside the file."""

    def __init__(self, schema: StoreSchema, directory: Path) -> None:
        """Raises StoreError if there is no readable store in the directory, Outdated if it is of an older format.
        `schema` declares the tables beside the join state."""
        self.schema = BOUND_STORE | schema
        file = directory / DUCKDB_FILE
        if not file.exists():
            check_not_lost(directory)
            raise StoreError(f"{directory} holds no store of the engine duckdb")
        CommitMark(directory).check()
        try:
            self._connection = duckdb.connect(str(file), read_only=True)
        except duckdb.Error as error:
            raise StoreError(f"cannot read the store in {directory}: {error}; {ADVICE}") from error
        self._asked, self._prepared = self._connection, PreparedStatements(self._connection)
        self._spilled = tempfile.TemporaryDirectory(prefix="mmqjp-")
        try:
            # In a process that has the store open to read already, this is the same instance.
            if not self._connection.execute("SELECT current_setting('lock_configuration')").fetchall()[0][0]:
                set_up(self._connection)
                self._connection.execute(f"SET temp_directory = '{self._spilled.name}'")
                seclude(self._connection)
            self._check(directory)
        except BaseException:
            self.close()
            raise

    def _check(self, directory: Path) -> None:
        made = set(self._connection.execute("SELECT table_name, column_name FROM duckdb_columns()").fetchall())
        needed = {(name, field.name) for name, schema in self.schema.tables.items() for field in schema}
        views = {name for name, _ in made}
        if not needed <= made or not self.schema.views.keys() <= views:
            raise Outdated(
                f"the store in {directory} is of an older format: let who may write it open it once, "
                "with mmqjp list or any other command"
            )
