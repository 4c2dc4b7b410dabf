"""A store in a DuckDB file, or in memory; a batch is a transaction. Questions run read-only on cursors of their own.
After `seclude` the instance reaches no file but its own; questions may only be a SELECT over the store's relations,
with listed table functions and without functions that read process state. Statements over Arrow rows are prepared once,
since planning dominates small batches; rows of a batch wait so that one statement writes all tables, and those of small
batches in a journal, so that one statement writes several; rows are written by one thread, because others would spin.
Damage that DuckDB finds is reported as StoreError."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock, RLock
from typing import Any, NamedTuple, NoReturn, TypeVar
from weakref import finalize, ref
from zlib import crc32

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from common.arrays import unpacked
from common.files import is_shared, keep_private, make_state, write_mark
from common.tools import defer_interrupts, interrupts_deferred
from join_stage.store import protocol

ADVICE = "if it is damaged, restore an older copy of the store, or name another directory"

_Kind = TypeVar("_Kind", bound=type)

_FATAL = (duckdb.FatalException, duckdb.SerializationException)
_WORDS = ("corrupt", "could not read", "cannot read", "failure while replaying wal")


def telling_damage(kind: _Kind) -> _Kind:
    """Class decorator: public methods raise StoreError if DuckDB finds its file damaged."""
    return protocol.telling(kind, (duckdb.Error,), _told)


def _told(error: BaseException | None) -> protocol.StoreError | None:
    while error is not None:
        # Bad statements raise errors of another class, whose text may contain these words.
        of_file = isinstance(error, duckdb.IOException) or type(error) is duckdb.Error
        if isinstance(error, _FATAL) or (of_file and any(word in str(error).lower() for word in _WORDS)):
            cause = str(error).partition("\n")[0]
            return protocol.StoreError(
                f"the store is damaged, or its disk is: {cause}; restore an older copy of the store"
            )
        error = error.__context__
    return None


class RowSource:
    """A source that is registered once and reads the current `rows`, which always have one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._empty = self.rows = schema.empty_table()

    def clear(self) -> None:
        self.rows = self._empty

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


class StoreFiles(NamedTuple):
    """A store's file and log at the last commit: descriptors with lengths, a `mark` of the commit, the checkpoint."""

    opened: Sequence[tuple[int, int]]
    mark: tuple[int, int, int]
    checkpoint: int


MAX_STATEMENTS = 200  # with this many prepared statements, all are dropped


class PreparedStatements:
    """The prepared statements of a connection, and the rows that they read by name. Names are registered once and hold
    rows only while a statement runs: registering per statement would double its time. Keep the columns of a name
    constant: a change makes all statements be prepared again."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._sources: dict[str, RowSource] = {}
        self._names: dict[str, str] = {}

    def execute(self, sql: str, rows: Mapping[str, pa.Table]) -> None:
        """Runs a statement over named rows."""
        with self._holding(rows):
            self._connection.execute(f"EXECUTE {self._prepared(sql)}")

    def select(self, sql: str, rows: Mapping[str, pa.Table]) -> pa.Table:
        """Runs a query over named rows."""
        with self._holding(rows):
            return self._connection.sql(f"EXECUTE {self._prepared(sql)}").to_arrow_table()

    def forget(self) -> None:
        """Drops all statements and names: they may stem from a rolled-back transaction."""
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
        name = self._names.get(sql)
        if name is None:
            if len(self._names) >= MAX_STATEMENTS:
                self._drop_statements()
            name = f"statement_{len(self._names)}"
            self._connection.execute(f"PREPARE {name} AS {sql}")
            self._names[sql] = name
        return name


class Threads:
    """Adapts the threads of an instance. Rows are written by one: two take longer together, since workers that wait
    spin, and rows come through one stream. A change takes a fifth of a millisecond."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, most: int) -> None:
        self._connection, self._most = connection, most
        self._lock = Lock()
        self._now = most
        self._questions = 0

    def use_one(self, connection: duckdb.DuckDBPyConnection | None = None) -> None:
        """Called before rows are written; switches to one thread if no question is running."""
        with self._lock:
            if not self._questions:
                self._set(connection or self._connection, 1)

    def use_all(self) -> None:
        """Switches back to all threads, for other work."""
        with self._lock:
            self._set(self._connection, self._most)

    @contextmanager
    def for_question(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """Uses all threads while a question is answered, in any thread, over its own cursor."""
        with self._lock:
            self._questions += 1
            self._set(cursor, self._most)
        try:
            yield
        finally:
            with self._lock:
                self._questions -= 1

    def _set(self, connection: duckdb.DuckDBPyConnection, number: int) -> None:
        if self._now != number:
            connection.execute(f"SET threads = {number}")
            self._now = number


CHUNK = 2048  # rows between checks of the answer's size: a vector of DuckDB

MEMORY = "512MB"  # memory that sorts and hash tables of a question use before they spill

TABLE_FUNCTIONS = frozenset(("generate_series", "json_each", "json_tree", "range", "unnest"))

REFUSED_FUNCTIONS = protocol.name_set("""
current_connection_id current_query current_query_id current_setting current_transaction_id currval getenv getvariable
json_deserialize_sql json_execute_serialized_sql json_serialize_plan json_serialize_sql nextval query query_table
set_config setseed setval sleep_ms stats txid_current vector_type which_secret write_log
""")
"""Functions that read the state of the process, or do more than compute."""

UNBOUNDED_FUNCTIONS = protocol.name_set("""
array_resize bitstring damerau_levenshtein editdist3 format from_json from_json_strict generate_series json_pretty
json_transform json_transform_strict levenshtein list_resize lpad printf range repeat rpad
""")
"""Scalar functions with unbounded memory, time or stack depth that cannot be interrupted. In FROM, `range` and
`generate_series` produce rows, and are allowed."""

MOST_NAMES = 20  # maximum names in a chain like a.b.c: DuckDB's look-up is quadratic

_NODES = frozenset(("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"))
"""Nodes allowed for a query, also in WITH. All others write."""

_SOURCES = frozenset(
    ("BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "SHOW_REF", "PIVOT", "CTE")
)
"""Nodes allowed in FROM."""

_SHOWN = frozenset(("tables", "__show_tables_expanded"))  # arguments allowed for SHOW

_SCHEMAS = frozenset(("main", "mmqjp", "memory"))  # names that may qualify a table: those of the store


def seclude(connection: duckdb.DuckDBPyConnection) -> None:
    """Cuts an instance off from other files and Python variables, and locks its settings."""
    connection.execute("SET enable_external_access = false")
    connection.execute("SET allowed_configs = ['checkpoint_threshold', 'operator_memory_limit', 'threads']")
    connection.execute("SET lock_configuration = true")


_WRONG_VALUES = ("Conversion Error", "Invalid Input Error")


class RefusedByDuckDB(protocol.QuestionRefused, duckdb.Error):
    """A question that DuckDB rejects, in its words: bad SQL, or a value that cannot be computed."""


@telling_damage
class DuckDBQuestion:
    """A `Question` of the store that a connection has open."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        schema: protocol.StoreSchema,
        sql: str,
        bounds: protocol.Bounds,
        around: Callable[[duckdb.DuckDBPyConnection], AbstractContextManager[object]] = nullcontext,
        *,
        own: bool = False,
    ) -> None:
        """With `own`, the SQL is only checked to be a single SELECT. `around` makes a cursor's context."""
        self._cursor, self._schema, self._sql, self._bounds = connection.cursor(), schema, sql, bounds
        self._around, self._own = around, own
        self._cut = False

    def answer(self) -> pa.Table:
        try:
            with self._around(self._cursor):
                return self._answer()
        except duckdb.OutOfMemoryException:
            raise protocol.QuestionRefused(
                "the question needs more memory than there is: narrow it down, or ask again later"
            ) from None
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if self._cut:
                raise protocol.QuestionInterrupted("the question was interrupted") from None
            # Arrow turns some DuckDB errors into OSErrors while it reads.
            if isinstance(error, OSError) and not any(kind in str(error) for kind in _WRONG_VALUES):
                raise
            raise RefusedByDuckDB(str(error)) from error
        finally:
            with suppress(duckdb.Error):
                self._cursor.close()

    def _answer(self) -> pa.Table:
        self._cursor.execute(f"SET operator_memory_limit = '{MEMORY}'")
        if self._own:
            single_select(self._cursor, self._sql)
        else:
            check_question(self._cursor, self._sql, self._schema)
        self._cursor.execute("BEGIN TRANSACTION READ ONLY")
        if self._cut:
            raise duckdb.InterruptException
        answer = self._cursor.sql(self._sql)
        if answer is None:
            raise protocol.QuestionRefused(protocol.ONLY_READ)
        return protocol.measured(answer.to_arrow_reader(CHUNK), self._bounds)

    def interrupt(self) -> None:
        self._cut = True
        with suppress(duckdb.Error):  # it has been closed
            self._cursor.interrupt()


def check_question(parser: duckdb.DuckDBPyConnection, sql: str, schema: protocol.StoreSchema) -> None:
    """Raises QuestionRefused unless it is a single SELECT over a schema's relations, and DuckDB's error for bad SQL."""
    protocol.short_enough(sql)
    single_select(parser, sql)
    try:
        parsed = _parsed(parser, sql)
    except RecursionError:
        raise protocol.QuestionRefused("the question is nested too deeply") from None
    if parsed["error"]:  # classified by DuckDB as SELECT, but does more
        raise protocol.QuestionRefused(protocol.ONLY_READ)
    parts = list(protocol.json_objects(parsed["statements"]))
    made = {entry["key"].lower() for part in parts if "cte_map" in part for entry in part["cte_map"]["map"]}
    making_rows = {id(part["function"]) for part in parts if part.get("type") == "TABLE_FUNCTION"}
    for part in parts:
        _judge(part, schema, made, makes_rows=id(part) in making_rows)


def single_select(parser: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises QuestionRefused for anything but a single SELECT statement, and DuckDB's error for bad SQL."""
    statements = parser.extract_statements(sql)
    if len(statements) > 1:
        raise protocol.QuestionRefused(f"one SELECT is answered at a time, and this has {len(statements)} statements")
    if not statements or statements[0].type != duckdb.StatementType.SELECT:
        raise protocol.QuestionRefused(protocol.ONLY_READ)


def tables_in(parser: duckdb.DuckDBPyConnection, sql: str) -> set[str] | None:
    """The lower-case names of relations and CTEs that a SELECT reads; None for another statement."""
    try:
        parsed = _parsed(parser, sql)
    except (duckdb.Error, RecursionError):
        return None
    parts = [] if parsed["error"] else list(protocol.json_objects(parsed["statements"]))
    if parsed["error"] or any(part.get("type") == "SHOW_REF" for part in parts):
        return None
    return {part["qualified_name"]["path"][-1].lower() for part in parts if part.get("type") == "BASE_TABLE"}


def _parsed(parser: duckdb.DuckDBPyConnection, sql: str) -> Any:
    ((text,),) = parser.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    return json.loads(text)


def _judge(part: dict[str, Any], schema: protocol.StoreSchema, made: set[str], *, makes_rows: bool) -> None:
    kind = part.get("type")
    if "cte_map" in part and kind not in _NODES:
        raise protocol.QuestionRefused(protocol.ONLY_READ)
    if "sample" in part and "cte_map" not in part and kind is not None and kind not in _SOURCES:
        raise protocol.QuestionRefused(f"{kind} is not answered: ask in other words")
    if kind == "BASE_TABLE":
        _judge_table(part["qualified_name"]["path"], schema, made)
    elif kind == "TABLE_FUNCTION":
        name = part["function"].get("function_name", "")
        if name.lower() not in TABLE_FUNCTIONS:
            shown = ", ".join(sorted(TABLE_FUNCTIONS))
            raise protocol.QuestionRefused(f"the table function {name!r:.80} is not answered; these are: {shown}")
    elif kind == "SHOW_REF":
        if part["query"] is None and part["table_name"].strip('"').lower() not in _SHOWN:
            raise protocol.QuestionRefused(
                f"{part['table_name']!r:.80} is not shown; SHOW TABLES and DESCRIBE are answered"
            )
    elif part.get("class") == "FUNCTION":
        if (name := part["function_name"].lower()) in REFUSED_FUNCTIONS:
            raise protocol.QuestionRefused(
                f"the function {part['function_name']} is not answered: it does more than compute"
            )
        if name in UNBOUNDED_FUNCTIONS and not makes_rows:
            raise protocol.QuestionRefused(f"the function {name} is not answered: its values may be of any size")
    elif part.get("class") == "COLUMN_REF" and len(part["column_names"]) > MOST_NAMES:
        raise protocol.QuestionRefused(f"a chain of more than {MOST_NAMES} names is not answered")


def _judge_table(path: list[str], schema: protocol.StoreSchema, made: set[str]) -> None:
    *before, name = path
    if before and before[0].lower() == "information_schema" and len(path) == 2:
        return
    if not all(part.lower() in _SCHEMAS for part in before):
        raise protocol.QuestionRefused(f"there is no table {'.'.join(path)!r:.80}; write its name alone")
    protocol.check_known(name, schema, set() if before else made)


_HEADERS, _HEADER, _APART = 4096, struct.Struct("<QQ"), 4096
"""Where DuckDB's file has both headers of checkpoints, and their first numbers: checksum, and growing iteration."""


class CommitMark:
    """Records the state of DuckDB's file and log after each commit. DuckDB opens a file whose log is missing, ends
    early, or has damaged entries, as of an earlier commit; the mark shows that commits are missing."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._path, self._handle = directory, directory / protocol.COMMITTED, -1
        self._file, self._log = directory / protocol.DUCKDB_FILE, directory / f"{protocol.DUCKDB_FILE}.wal"
        self._last = (-1, 0, 0)  # the iteration of the file, the size of the log, and its checksum

    def note(self) -> None:
        """Called after a commit. A mark that cannot be written stays as it was, for an earlier commit."""
        with suppress(OSError):
            if self._handle < 0:  # stays open, since closing it would release DuckDB's locks
                self._handle = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
                self._end = finalize(self, os.close, self._handle)
            iteration = _iteration(self._handle)  # first: if DuckDB drops the log now, the mark is for an earlier state
            size = 0
            with suppress(FileNotFoundError):
                size = self._log.stat().st_size
            known, start, checksum = self._last
            if known != iteration or start > size:
                start = checksum = 0
            length, checksum = _summed(self._log, start, size, checksum)
            if start + length == size and (last := (iteration, size, checksum)) != self._last:
                write_mark(self._path, *last)
                self._last = last

    def close(self) -> None:
        """Called when DuckDB has closed its file."""
        self.note()
        if self._handle >= 0:
            self._end()
            self._handle = -1

    def check(self) -> None:
        """Raises StoreError if the file or its log is older than the last commit noted."""
        if (mark := protocol.last_commit(self._directory)) is None:
            return
        with self._file.open("rb") as file:
            found = _iteration(file.fileno())
        iteration, size, checksum = mark
        if found < iteration:
            self._raise(self._file, "is older than what was committed, or damaged")
        length, summed = _summed(self._log, 0, size if found == iteration else 0, 0)
        if found == iteration and (length, summed) != (size, checksum):
            state = "damaged" if length == size else "cut" if length else "gone"
            self._raise(self._log, f"has the last commits before a kill and is {state}")

    def _raise(self, file: Path, what: str) -> NoReturn:
        raise protocol.StoreError(
            f"the store in {self._directory} has lost commits: {file.name} {what}; put it back as it was, or take an "
            f"older copy of the directory; {protocol.LOST.format(self._directory)}"
        )


def _iteration(handle: int) -> int:
    content = os.pread(handle, _APART + _HEADER.size, _HEADERS)
    places = (place for place in (0, _APART) if len(content) >= place + _HEADER.size)
    return max((_HEADER.unpack_from(content, place)[1] for place in places), default=-1)


def _summed(path: Path, start: int, end: int, checksum: int) -> tuple[int, int]:
    """The number of bytes of a file in a range, and the checksum of all before `end`."""
    length = 0
    if start == end:
        return length, checksum
    with suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
        file.seek(start)
        while length < end - start and (some := file.read(min(end - start - length, 1 << 20))):
            checksum, length = crc32(some, checksum), length + len(some)
    return length, checksum


def copy_files(directory: Path, target: Path, copy: protocol.CopyFile) -> bool:
    """Copies a store's file and log, as of the last commit noted. Not for the process that holds the store: closing the
    file would release its locks. False after a checkpoint meanwhile. Raises StoreError if commits are lost."""
    file, log = protocol.DUCKDB_FILE, f"{protocol.DUCKDB_FILE}.wal"
    with (directory / file).open("rb") as opened:
        iteration = _iteration(opened.fileno())
        with suppress(FileNotFoundError):
            copy(protocol.COMMITTED)
        noted, size, _ = protocol.last_commit(target) or (-1, 0, 0)
        copy(file)
        if noted != iteration or size:
            with suppress(FileNotFoundError):
                copy(log, size if noted == iteration else None)
        if _iteration(opened.fileno()) != iteration:
            return False
    CommitMark(target).check()
    return True


MEMORY_LIMIT = "2GB"  # memory that DuckDB uses before it spills to disk

CHECKPOINT = "64MB"
"""Log size at which DuckDB checkpoints. Each checkpoint recompresses blocks that are not full: with four times the
default, 100,000 pairs of documents take 6% less time, and opening after a crash a few tenths of a second more."""

HELD_CHECKPOINT = "256MB"  # the same while another process copies the files: a checkpoint makes it start again

THREADS = 4  # maximum number of threads; each reserves buffers for each join of a statement


@telling_damage
class DuckDBTables:
    """The reading half of a store: reads over one connection, and answers questions over another to its instance."""

    schema: protocol.StoreSchema
    _connection: duckdb.DuckDBPyConnection
    _asked: duckdb.DuckDBPyConnection
    _prepared: PreparedStatements
    _spilled: tempfile.TemporaryDirectory[str] | None = None  # folder that DuckDB spills to, unless beside its file
    _empty: Collection[str] = ()  # tables known to be empty: querying them took a quarter of the time to open a store

    def _settle(self) -> None:
        """Hook: called before each read."""

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        self._settle()
        if views:
            return self._prepared.select(sql, views)
        return self._connection.sql(sql).to_arrow_table()

    def question(self, sql: str, bounds: protocol.Bounds = protocol.UNBOUNDED, *, own: bool = False) -> DuckDBQuestion:
        return DuckDBQuestion(self._asked, self.schema, sql, bounds, own=own)

    def read(self, table: str, columns: Sequence[str], key: str | None = None) -> pa.Table:
        if table in self._empty:
            return self.schema.tables[table].empty_table().select(columns)
        sql = f"SELECT {', '.join(columns)} FROM {table}"
        if key is None:
            return self.select(sql)
        self._settle()
        return self._connection.sql(f"{sql} WHERE key = ?", params=[key]).to_arrow_table()

    def find(self, table: str, column: str, numbers: pa.Array, columns: Sequence[str] | None = None) -> pa.Table:
        return self._find(self.select, table, column, numbers, columns)

    def _find(
        self,
        select: Callable[[str, Mapping[str, pa.Table]], pa.Table],
        table: str,
        column: str,
        numbers: pa.Array,
        columns: Sequence[str] | None,
    ) -> pa.Table:
        columns = columns or self.schema.tables[table].names
        if table in self._empty:
            return self.schema.tables[table].empty_table().select(columns)
        wanted = ", ".join(f"t.{name}" for name in columns)
        sql = f"SELECT {wanted} FROM {table} t JOIN wanted_rows w ON t.{column} = w.number"
        return select(sql, {"wanted_rows": pa.table({"number": numbers})})

    def highest(self, table: str, column: str) -> int:
        if table in self._empty:
            return -1
        (number,) = self.select(f"SELECT coalesce(max({column}), -1) AS number FROM {table}")["number"].to_pylist()
        return int(number)

    def close(self) -> None:
        with suppress(duckdb.ResourceInUseException):  # by a question that ends late; commits are already written
            self._connection.close()
        if self._spilled is not None:
            self._spilled.cleanup()


def most_threads() -> int:
    return min(THREADS, os.cpu_count() or 1)


UNIX_MICROS = "CREATE MACRO IF NOT EXISTS unix_micros(moment) AS epoch_us(moment)"
"""Named as in Spark, since views call it."""


def set_up(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
    connection.execute(f"SET checkpoint_threshold = '{CHECKPOINT}'")
    connection.execute(f"SET threads = {most_threads()}")
    connection.execute("SET preserve_insertion_order = false")
    # It would show in notebooks. In those without ipywidgets it is off, and setting it is an error.
    connection.execute("SELECT current_setting('enable_progress_bar')")
    if connection.fetchall() != [(False,)]:
        connection.execute("SET enable_progress_bar = false")


@contextmanager
def temporary_views(connection: duckdb.DuckDBPyConnection, views: Mapping[str, pa.Table]) -> Iterator[None]:
    """Registers tables by name for the duration of the context."""
    for name, table in views.items():
        connection.register(name, table)
    try:
        yield
    finally:
        for name in views:
            connection.unregister(name)


MOST_ROWS = 2_000
"""Maximum number of waiting rows. More are written at once: then rows dominate the time, not statements."""


class WaitingRows:
    """Rows to insert, by table. Statements name all `tables` in this order."""

    def __init__(self, prepared: PreparedStatements, tables: Iterable[str]) -> None:
        self._prepared = prepared
        self._tables = tuple(tables)
        self._rows: dict[str, list[pa.Table]] = {}
        self._count = 0

    def add(self, table: str, rows: pa.Table) -> None:
        if len(rows):
            self._rows.setdefault(table, []).append(rows)
            self._count += len(rows)

    def __len__(self) -> int:
        return self._count

    @property
    def are_many(self) -> bool:
        return self._count > MOST_ROWS

    def rows(self, table: str) -> list[pa.Table]:
        return self._rows.get(table, [])

    def tables(self) -> dict[str, pa.Table]:
        return {name: _in_one(self._rows[name]) for name in self._tables if name in self._rows}

    def write(self) -> None:
        """Writes the rows, and drops them even if that fails."""
        try:
            self.insert()
        finally:
            self.forget()

    def insert(self) -> None:
        if self._rows:
            rows = self.tables()
            *others, last = (f"INSERT INTO {name} SELECT * FROM {source_of(name)}" for name in rows)
            inner = ", ".join(f"into_{name} AS ({insert})" for name, insert in zip(rows, others, strict=False))
            self._prepared.execute(
                f"WITH {inner} {last}" if inner else last, {source_of(name): some for name, some in rows.items()}
            )

    def forget(self) -> None:
        self._rows.clear()
        self._count = 0


def _in_one(parts: Sequence[pa.Table]) -> pa.Table:
    # In one piece: DuckDB takes a fifth of a millisecond for each.
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts).combine_chunks()


def source_of(table: str) -> str:
    """The name under which a statement reads the rows for a table."""
    return f"{table}_fresh"


JOURNAL, MOST_JOURNALED, MOST_JOURNALED_BYTES = "internal.journal", 2_000, 4 << 20
"""The table of the journal, where questions do not reach it; maximum number of rows and bytes of a batch in it."""

FULL, FULL_BATCHES, FULL_BYTES = 6_000, 170, 16 << 20
"""Maximum number of rows, batches and bytes that wait in the journal: writing more rows would take long, as would
searching more batches, and more bytes would take memory."""

MOST_PASSED_OVER = 63  # maximum number of batches that skip it after it was useless


class Journal:
    """Committed rows of small batches that have not been written to their tables: a statement takes half a millisecond
    per table that it writes, however few rows there are, so a batch of one document is committed as one value of one
    table. The rows are moved to their tables before these are read, or when there are many; after a kill, when the
    store is opened. In memory they only wait. Not thread-safe."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, tables: Mapping[str, pa.Schema], *, lasts: bool) -> None:
        self.connection, self._tables, self._lasts = connection, tables, lasts
        connection.execute("PRAGMA disable_optimizer")  # it finds nothing in inserts, and takes a sixth of a small one
        self._prepared = PreparedStatements(connection)
        (self._insert,) = connection.extract_statements(f"INSERT INTO {JOURNAL} VALUES (?)")  # parsed once
        self._rows, self._batches, self._bytes = WaitingRows(self._prepared, tables), 0, 0
        self._left = self._passed_over = 0

    def __len__(self) -> int:
        return len(self._rows)

    def restore(self) -> None:
        """Writes the rows that a killed process left. Tables may have gained columns since."""
        if self._lasts:
            for (content,) in self.connection.execute(f"SELECT content FROM {JOURNAL}").fetchall():
                start = content.index(b"\n") + 1
                for table, head in json.loads(content[:start]).items():
                    length, *columns = head if isinstance(head, list) else [head]
                    schema = self._tables[table]
                    rows = _read_rows(content[start : start + length], schema, *columns)
                    both = [schema.empty_table(), rows]
                    self._rows.add(table, pa.concat_tables(both, promote_options="default"))
                    start += length
        self.write()

    def commit(self, batch: WaitingRows) -> bool:
        """Commits the rows of a batch, and forgets them there, if they are few and nobody has read lately."""
        if not len(batch) or len(batch) > MOST_JOURNALED:
            return False
        if self._left:
            self._left -= 1
            return False
        rows = batch.tables()
        if self._lasts:
            # Without their schema: with it, the value is half as long again, and takes a quarter more time.
            contents = [_written_rows(some, self._tables[table]) for table, some in rows.items()]
            if (size := sum(map(len, contents))) > MOST_JOURNALED_BYTES:
                return False
            heads = {table: (len(one), rows[table].num_columns) for table, one in zip(rows, contents, strict=True)}
            # One column, since a second would take as long again.
            self.connection.execute(self._insert, [json.dumps(heads).encode() + b"\n" + b"".join(contents)])
        elif (size := sum(some.get_total_buffer_size() for some in rows.values())) > MOST_JOURNALED_BYTES:
            return False
        for table, some in rows.items():
            self._rows.add(table, some)
        self._batches += 1
        self._bytes += size
        batch.forget()
        return True

    def rows(self, table: str) -> list[pa.Table]:
        return self._rows.rows(table)

    @property
    def is_full(self) -> bool:
        return len(self._rows) > FULL or self._batches > FULL_BATCHES or self._bytes > FULL_BYTES

    def write(self) -> None:
        """Writes all rows to their tables, in a transaction of its own. If that fails, they wait on."""
        if not len(self._rows):
            return
        with interrupts_deferred():
            defer_interrupts()
            self.connection.begin()
            try:
                self._rows.insert()
                if self._lasts:
                    self.connection.execute(f"DELETE FROM {JOURNAL}")
                self.connection.commit()
            except BaseException:
                with suppress(duckdb.TransactionException):  # a failed commit may have ended it
                    self.connection.rollback()
                self._prepared.forget()  # they may have been made in this transaction
                raise
            self._rows.forget()
        # If each batch reads, a journal is only overhead: then it is suspended, longer each time.
        self._passed_over = 0 if self._batches > 1 else min(2 * self._passed_over + 1, MOST_PASSED_OVER)
        self._left, self._batches, self._bytes = self._passed_over, 0, 0


def _written_rows(rows: pa.Table, schema: pa.Schema) -> pa.Buffer:
    """Rows as a batch without its schema."""
    rows = rows if rows.schema.equals(schema) else rows.cast(schema)
    batches = rows.to_batches()
    return (batches if len(batches) == 1 else rows.combine_chunks().to_batches())[0].serialize()


def _read_rows(content: bytes, schema: pa.Schema, columns: int | None = None) -> pa.Table:
    """Rows with the first columns of a table, since it gains columns at its end. Earlier versions wrote streams."""
    if columns is None:
        return unpacked(content)
    known = pa.schema(list(schema)[:columns])
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(content), known)])


def has_journal(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether a store has rows in its journal."""
    named = "SELECT count(*) FROM duckdb_tables() WHERE schema_name || '.' || table_name = ?"
    ((found,),) = connection.execute(named, [JOURNAL]).fetchall()
    return found > 0 and connection.execute(f"SELECT EXISTS (FROM {JOURNAL})").fetchall() == [(True,)]


TYPES = {
    pa.int64(): "BIGINT",
    pa.int32(): "INTEGER",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.bool_(): "BOOLEAN",
    pa.list_(pa.int64()): "BIGINT[]",
    pa.list_(pa.string()): "VARCHAR[]",
}

FIRST_INDEX = 1  # index of the first element of an array in SQL


@telling_damage
class DuckDBStore(DuckDBTables):
    """A `TableStore` on DuckDB, in memory without a directory, spilling past MEMORY_LIMIT; it reaches no other file."""

    _empty: set[str]

    def __init__(self, schema: protocol.StoreSchema, directory: Path | None = None) -> None:
        self.schema = schema
        if directory is not None and (directory / protocol.SPARK_MANIFESTS).exists():
            raise protocol.OtherEngine(directory, "spark")
        try:
            if directory is not None:
                make_state(directory)
            self._is_new = directory is None or not (directory / protocol.DUCKDB_FILE).exists()
            self._mark = None if directory is None else CommitMark(directory)
            if directory is not None and self._is_new:
                protocol.check_not_lost(directory)
            elif self._mark is not None:
                self._mark.check()
            file = ":memory:" if directory is None else str(directory / protocol.DUCKDB_FILE)
            # By default a database in memory spills to the user's working directory.
            self._spilled = tempfile.TemporaryDirectory(prefix="mmqjp-") if directory is None else None
            self._connection = duckdb.connect(file)
            self._file, self._descriptor = None if directory is None else Path(file), -1
            self._commits, self._readers, self._reading = RLock(), 0, Lock()
            self._private = () if directory is None or is_shared(directory) else (Path(file), Path(f"{file}.wal"))
            self._keep_private()
            if self._private and directory is not None:
                keep_private(directory / protocol.COMMITTED)
            if self._spilled is not None:
                self._connection.execute(f"SET temp_directory = '{self._spilled.name}'")
        except (duckdb.Error, OSError) as error:
            raise protocol.StoreError(f"cannot open the store in {directory}: {error}; {ADVICE}") from error
        try:
            self._prepared = PreparedStatements(self._connection)
            self._waiting = WaitingRows(self._prepared, self.schema.tables)
            self._threads = Threads(self._connection, most_threads())
            self._in_batch = self._begun = False
            self._empty = set(schema.tables) if self._is_new else set[str]()
            self._followers, self._follows = tuple[ref[protocol.Following], ...](), Lock()
            self._journal = Journal(self._connection.cursor(), schema.tables, lasts=directory is not None)
            self._prepare()
            if not self._is_new:
                sized = "SELECT table_name FROM duckdb_tables() WHERE estimated_size = 0 AND NOT temporary"
                self._empty = {name for (name,) in self._connection.execute(sized).fetchall()} & schema.tables.keys()
            # Cursors are made from a connection that is idle; that of the batches may not be.
            self._asked = self._connection.cursor()
            if self._mark is not None:
                self._mark.note()
        except BaseException:
            self.close()
            raise

    def _keep_private(self) -> None:
        """Restricts file permissions: DuckDB follows the umask, and replaces the log now and then."""
        for path in self._private:
            keep_private(path)

    def _prepare(self) -> None:
        run = self._connection.execute
        set_up(self._connection)
        # Statements name their joins in the order to run them. The optimizer does not know how many documents share a
        # value, and chose orders that were a thousand times slower.
        run("SET disabled_optimizers = 'join_order'")
        seclude(self._connection)
        columns = self._columns()
        former = self._rename(columns)
        self._connection.begin()  # one write to disk for all tables
        run(f"CREATE SCHEMA IF NOT EXISTS {JOURNAL.partition('.')[0]}")
        run(f"CREATE TABLE IF NOT EXISTS {JOURNAL} (content BLOB)")
        for name, schema in self.schema.tables.items():
            known = columns.get(former.get(name, name))
            if known is None:
                run(f"CREATE TABLE {name} ({columns_of(schema)})")
                continue
            for field in schema:
                if field.name not in known:  # a column added after the store was created
                    run(f"ALTER TABLE {name} ADD COLUMN {field.name} {TYPES[field.type]}")
        self._connection.commit()
        self._journal.restore()
        self._upgrade(columns)
        self._connection.begin()  # one write to disk for all views
        run("CREATE MACRO IF NOT EXISTS sha2(text, bits) AS sha256(text)")
        run(UNIX_MICROS)
        self._make_views(self.schema.views)
        if (numbered := self.schema.numbered) is not None:
            rows = self.read(numbered.table, [numbered.numbers, numbered.argument])
            self._make_views(numbered.of_rows(rows, FIRST_INDEX))
        self._connection.commit()

    def _columns(self) -> Mapping[str, Collection[str]]:
        """The columns of existing tables. Asking in a new store would take longer than creating all tables."""
        columns = defaultdict[str, set[str]](set)
        if not self._is_new:
            asked = """SELECT table_name, column_name
                FROM duckdb_columns() SEMI JOIN duckdb_tables() USING (database_oid, table_oid)"""
            for table, column in self._connection.execute(asked).fetchall():
                columns[table].add(column)
        return columns

    def _rename(self, known: Collection[str]) -> Mapping[str, str]:
        run = self._connection.execute
        renamed = {new: old for new, old in self.schema.former_names.items() if old in known and new not in known}
        if renamed:
            for (view,) in run("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall():
                run(f"DROP VIEW {view}")  # they are made again
        for name, former in renamed.items():
            run(f"ALTER TABLE {former} RENAME TO {name}")
        return renamed

    def _upgrade(self, known: Collection[str]) -> None:
        """Hook: upgrades tables of older stores before views are created. `known` are the names of existing tables."""

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
            self._in_batch = False
        with translate_write_errors(), self._commits:
            if self._begun:
                self._write()
                self._connection.commit()
            else:
                if self._journal.is_full:
                    self._write_journal()
                if not self._journal.commit(self._waiting):
                    self._write_journal()
                    self._write()
            self._in_batch = self._begun = False
            if self._mark is not None:
                self._mark.note()  # before another thread moves the journal's rows
        for one in self._following():
            one.commit()
        self._keep_private()

    def rollback(self) -> None:
        self._take_back()

    def _take_back(self) -> bool:
        """Rolls back the batch. False if there is none: a failed commit may have ended it."""
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
            self._write_waiting()
        if (numbered := self.schema.numbered) is not None and table == numbered.table:
            self._settle()
            with self._committing():
                self._make_views(numbered.of_rows(rows, FIRST_INDEX))
        for one in self._following():
            one.append(table, rows)

    def find(self, table: str, column: str, numbers: pa.Array, columns: Sequence[str] | None = None) -> pa.Table:
        """Waiting rows are searched in place: writing them first would take longer."""
        with self._commits:  # otherwise rows could move from the journal to their table meanwhile
            waiting = [*self._journal.rows(table), *self._waiting.rows(table)]
            found = self._find(self._prepared.select, table, column, numbers, columns)
        if waiting:
            rows = pa.concat_tables(waiting)
            rows = rows.filter(pc.is_in(rows[column], numbers)).select(found.schema.names)
            found = pa.concat_tables([found, rows])
        return found

    def _settle(self) -> None:
        """Called before other statements."""
        self._write_waiting()
        self._threads.use_all()

    def _write_waiting(self) -> None:
        """Begins the batch's transaction if need be and writes waiting rows, after those of the journal."""
        if not self._begun:
            self._write_journal()
        if self._in_batch and not self._begun:
            self._begun = True  # first: the next line may be interrupted
            self._connection.begin()
        with translate_write_errors(), self._committing():
            self._write()

    def _write(self) -> None:
        if len(self._waiting):
            self._threads.use_one()
            self._waiting.write()

    def _write_journal(self) -> None:
        """Callable from any thread."""
        if len(self._journal):
            with translate_write_errors(), self._commits:
                self._threads.use_one(self._journal.connection)
                self._journal.write()

    @contextmanager
    def _around_question(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
        self._write_journal()
        with self._threads.for_question(cursor):
            yield

    def _committing(self) -> AbstractContextManager[object]:
        """While a statement may commit: outside of a batch, each does."""
        return nullcontext() if self._in_batch else self._commits

    def _run(self, sql: str) -> duckdb.DuckDBPyConnection:
        self._settle()
        with self._committing():
            return self._connection.execute(sql)

    def question(self, sql: str, bounds: protocol.Bounds = protocol.UNBOUNDED, *, own: bool = False) -> DuckDBQuestion:
        return DuckDBQuestion(self._asked, self.schema, sql, bounds, self._around_question, own=own)

    # ------------------------------------------------------------ other processes

    @contextmanager
    def files(self) -> Iterator[StoreFiles]:
        """The file and log, for another process. Blocks that the last checkpoint names are not overwritten before the
        next, so they are valid while `checkpoint` stays the same. Callable from any thread; needs a directory."""
        with ExitStack() as opened_here:
            with self._commits:
                self._write_journal()
                checkpoint = self.checkpoint()
                opened = [(self._descriptor, os.fstat(self._descriptor).st_size)]
                mark = checkpoint, 0, 0
                with suppress(FileNotFoundError):
                    log = os.open(f"{self._file}.wal", os.O_RDONLY | os.O_CLOEXEC)
                    opened_here.callback(os.close, log)
                    found = os.fstat(log)
                    opened.append((log, found.st_size))
                    mark = checkpoint, found.st_ino, found.st_size
            yield StoreFiles(opened, mark, checkpoint)

    def checkpoint(self) -> int:
        with self._reading:
            if self._descriptor < 0:
                # Stays open: closing any descriptor of a file releases the process's locks on it.
                self._descriptor = os.open(str(self._file), os.O_RDONLY | os.O_CLOEXEC)
        return _iteration(self._descriptor)

    @contextmanager
    def checkpoints_held(self) -> Iterator[None]:
        """Puts checkpoints off, up to HELD_CHECKPOINT of log. Callable from any thread."""
        self._count_readers(1, HELD_CHECKPOINT)
        try:
            yield
        finally:
            self._count_readers(-1, CHECKPOINT)

    def _count_readers(self, step: int, threshold: str) -> None:
        with self._reading, suppress(duckdb.Error):  # it may have been closed
            self._readers += step
            if self._readers == max(step, 0):
                with closing(self._asked.cursor()) as cursor:
                    cursor.execute(f"SET checkpoint_threshold = '{threshold}'")

    def follow(self, tables: Collection[str]) -> protocol.Following:
        made = protocol.Following(tables)
        with self._follows:
            self._followers = (*(one for one in self._followers if one() is not None), ref(made))
        return made

    def _following(self) -> list[protocol.Following]:
        return [one for follower in self._followers if (one := follower()) is not None]

    def drop_before(self, table: str, column: str, bound: int) -> None:
        self._run(f"DELETE FROM {table} WHERE {column} < {bound}")
        for one in self._following():
            one.drop(table)

    def close(self) -> None:
        if hasattr(self, "_journal"):  # else opening has failed
            with suppress(protocol.StoreError, duckdb.Error):  # written when the store is opened again
                self._write_journal()
        super().close()
        if self._mark is not None:
            self._mark.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextmanager
def translate_write_errors() -> Iterator[None]:
    """Translates DuckDB errors while a batch is written to StoreError."""
    try:
        with protocol.writing(duckdb.IOException, duckdb.TransactionException):
            yield
    except duckdb.OutOfMemoryException as error:
        raise protocol.OutOfMemory(
            f"the store needs more memory than its {MEMORY_LIMIT}: {error}; take smaller batches"
        ) from error


def columns_of(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {TYPES[field.type]}" for field in schema)
