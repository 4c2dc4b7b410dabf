"""A store in a DuckDB file, or in memory. A batch is a transaction."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from weakref import ref

import duckdb
import pyarrow as pa

from common.private import is_shared, keep_private, make_state
from join_stage.store.duckdb_damage import ADVICE, telling_damage
from join_stage.store.duckdb_prepared import PreparedStatements
from join_stage.store.duckdb_question import DuckDBQuestion, seclude
from join_stage.store.duckdb_tables import MEMORY_LIMIT, DuckDBTables, most_threads, set_up
from join_stage.store.duckdb_threads import Threads
from join_stage.store.duckdb_waiting import WaitingRows
from join_stage.store.following import Following
from join_stage.store.protocol import DUCKDB_FILE, SPARK_MANIFESTS, OutOfMemory, StoreError
from join_stage.store.reading import UNBOUNDED, Bounds
from join_stage.store.schema import StoreSchema

TYPES = {
    pa.int64(): "BIGINT",
    pa.int32(): "INTEGER",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.bool_(): "BOOLEAN",
    pa.list_(pa.int64()): "BIGINT[]",
    pa.list_(pa.string()): "VARCHAR[]",
}

FIRST_INDEX = 1
"""The index of the first element of an array in SQL."""


@telling_damage
class DuckDBStore(DuckDBTables):
    """A `TableStore` on DuckDB. Without a directory it is in memory, and spills past MEMORY_LIMIT.

    The instance cannot reach any file but its own, whatever SQL it is given.
    """

    _empty: set[str]

    def __init__(self, schema: StoreSchema, directory: Path | None = None) -> None:
        self.schema = schema
        if directory is not None and (directory / SPARK_MANIFESTS).exists():
            raise StoreError(f"{directory} holds a store of the engine spark: use that engine or another directory")
        try:
            if directory is not None:
                make_state(directory)
            self._is_new = directory is None or not (directory / DUCKDB_FILE).exists()
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
            self._prepared = PreparedStatements(self._connection)
            self._waiting = WaitingRows(self._prepared, self.schema.tables)
            self._threads = Threads(self._connection, most_threads())
            self._in_batch = self._begun = False
            self._empty = set(schema.tables) if self._is_new else set[str]()
            self._followers, self._follows = tuple[ref[Following], ...](), Lock()
            self._prepare()
            # Cursors of a connection are made where it is not at work, which the batches' may be.
            self._asked = self._connection.cursor()
        except BaseException:
            self.close()
            raise

    def _keep_private(self) -> None:
        """Makes the files private. DuckDB makes them as the umask says, and replaces the log now and then."""
        for path in self._private:
            keep_private(path)

    def _prepare(self) -> None:
        """Sets up the connection and the tables."""
        run = self._connection.execute
        set_up(self._connection)
        # Statements name their joins in the order to run them. The optimizer does not know how many documents share a
        # value, and chose orders that were a thousand times slower.
        run("SET disabled_optimizers = 'join_order'")
        seclude(self._connection)
        columns = self._columns()
        former = self._rename(columns)
        self._connection.begin()  # one write to disk for all tables
        for name, schema in self.schema.tables.items():
            known = columns.get(former.get(name, name))
            if known is None:
                run(f"CREATE TABLE {name} ({columns_of(schema)})")
                continue
            for field in schema:
                if field.name not in known:  # a column that is younger than the store
                    run(f"ALTER TABLE {name} ADD COLUMN {field.name} {TYPES[field.type]}")
        self._connection.commit()
        self._upgrade(columns)
        self._connection.begin()  # one write to disk for all views
        run("CREATE MACRO IF NOT EXISTS sha2(text, bits) AS sha256(text)")
        self._make_views(self.schema.views)
        if (numbered := self.schema.numbered) is not None:
            rows = self.read(numbered.table, [numbered.numbers, numbered.argument])
            self._make_views(numbered.of_rows(rows, FIRST_INDEX))
        self._connection.commit()

    def _columns(self) -> Mapping[str, Collection[str]]:
        """The columns of the tables that are there. A new store has none: to ask takes longer than to make
        them all, as DuckDB then makes all that describes its catalog."""
        columns = defaultdict[str, set[str]](set)
        if not self._is_new:
            asked = """SELECT table_name, column_name
                FROM duckdb_columns() SEMI JOIN duckdb_tables() USING (database_oid, table_oid)"""
            for table, column in self._connection.execute(asked).fetchall():
                columns[table].add(column)
        return columns

    def _rename(self, known: Collection[str]) -> Mapping[str, str]:
        """Gives tables of older stores the names that they have now. Returns their former names."""
        run = self._connection.execute
        renamed = {
            name: former for name, former in self.schema.former_names.items() if former in known and name not in known
        }
        if renamed:
            for (view,) in run("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall():
                run(f"DROP VIEW {view}")  # they are made again
        for name, former in renamed.items():
            run(f"ALTER TABLE {former} RENAME TO {name}")
        return renamed

    def _upgrade(self, known: Collection[str]) -> None:
        """Upgrades the tables of older stores, before the views over them are made. `known` are the names of those that
        were there. There is nothing to do here."""

    def _make_views(self, statements: Mapping[str, str]) -> None:
        for name, statement in statements.items():
            self._connection.execute(f"CREATE OR REPLACE VIEW {name} AS {statement}")

    # ------------------------------------------------------------ batches

    def begin(self) -> None:
        self._in_batch = True
        for one in self._following():
            one.begin()

    def commit(self) -> None:
        if not self._begun:  # nothing else was done: one statement, which is a transaction of its own, ends the batch
            self._threads.use_one()
            self._in_batch = False
        with written():
            self._waiting.write()
            if self._begun:
                self._connection.commit()
        self._in_batch = self._begun = False
        for one in self._following():
            one.commit()
        self._keep_private()

    def rollback(self) -> None:
        self._take_back()

    def _take_back(self) -> bool:
        """Rolls back the batch. False if there is none: a commit that failed may have ended it."""
        is_whole, begun = self._in_batch, self._begun
        self._in_batch = self._begun = False
        self._waiting.forget()
        for one in self._following():
            one.rollback()
        try:
            if begun:
                self._connection.rollback()
        except duckdb.TransactionException:
            return False
        finally:
            self._prepared.forget()  # they may have been made in this transaction
        return is_whole

    def append(self, table: str, rows: pa.Table) -> None:
        if len(rows):
            self._empty.discard(table)
        self._waiting.add(table, rows)
        if self._waiting.are_many or not self._in_batch:
            self._settle()
        if (numbered := self.schema.numbered) is not None and table == numbered.table:
            self._settle()
            self._make_views(numbered.of_rows(rows, FIRST_INDEX))
        for one in self._following():
            one.append(table, rows)

    def _settle(self) -> None:
        """Begins the transaction of the batch and writes the rows that wait, before anything else is done in it."""
        self._threads.use_all()
        if self._in_batch and not self._begun:
            self._connection.begin()
            self._begun = True
        with written():
            self._waiting.write()

    def _run(self, sql: str) -> duckdb.DuckDBPyConnection:
        """Runs a statement over the tables, the running batch included."""
        self._settle()
        return self._connection.execute(sql)

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        self._settle()
        return super().select(sql, views)

    def question(self, sql: str, bounds: Bounds = UNBOUNDED, *, own: bool = False) -> DuckDBQuestion:
        return DuckDBQuestion(self._asked, self.schema, sql, bounds, self._threads, own=own)

    def follow(self, tables: Collection[str]) -> Following:
        made = Following(tables)
        with self._follows:
            self._followers = (*(one for one in self._followers if one() is not None), ref(made))
        return made

    def _following(self) -> list[Following]:
        return [one for follower in self._followers if (one := follower()) is not None]

    def drop_before(self, table: str, column: str, bound: int) -> None:
        self._run(f"DELETE FROM {table} WHERE {column} < {bound}")
        for one in self._following():
            one.drop(table)

    def close(self) -> None:
        with suppress(duckdb.ResourceInUseException):  # by a question that ends late: what is committed is written
            self._connection.close()
        if self._spilled is not None:
            self._spilled.cleanup()


@contextmanager
def written() -> Iterator[None]:
    """Turns errors of DuckDB while a batch is written, such as a full disk, into StoreError."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise OutOfMemory(
            f"the store needs more memory than its {MEMORY_LIMIT}: {error}; take smaller batches"
        ) from error
    except (duckdb.IOException, duckdb.TransactionException) as error:
        raise StoreError(f"the store cannot be written: {error}; make room, and run it again") from error


def columns_of(schema: pa.Schema) -> str:
    """The column declarations of a table in SQL."""
    return ", ".join(f"{field.name} {TYPES[field.type]}" for field in schema)
