"""The protocol of a store: tables whose batches become visible atomically, with its schema, questions and errors. A
question is untrusted SQL, answered if it is a single SELECT over the store's relations. A schema has tables as Arrow
schemas and views over them. `Following` collects rows committed since a reader's last look, which saves it a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property, wraps
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from common.errors import InputError, OperationalError
from common.files import read_mark
from common.tools import defer_interrupts, interrupts_deferred

MOST_BYTES = 64 << 20  # bytes collected until a look; past it all is dropped


class Committed(NamedTuple):
    """The rows appended to tables, by name, up to a mark; None if incomplete, so that the store must be queried."""

    mark: int
    rows: dict[str, pa.Table] | None


class Following:
    """Follows some tables of a store for one reader. Batches come from one thread; `since` is called in any."""

    def __init__(self, tables: Iterable[str]) -> None:
        self._tables = frozenset(tables)
        self._batch: dict[str, list[pa.Table]] | None = None
        self._lock = Lock()
        self._rows: dict[str, list[pa.Table]] = {}
        self._size = self._mark = 0
        self._is_whole = False

    def since(self, mark: int) -> Committed:
        """Returns, and drops, what was committed since the look that returned `mark`, the last one."""
        with self._lock:
            rows, is_whole = self._rows, self._is_whole and mark == self._mark
            self._rows, self._size, self._is_whole = {}, 0, True
            self._mark += 1
            committed = self._mark
        return Committed(committed, {name: pa.concat_tables(some) for name, some in rows.items()} if is_whole else None)

    # ------------------------------------------------------------ what a store tells

    def begin(self) -> None:
        self._batch = {}

    def append(self, table: str, rows: pa.Table) -> None:
        """Rows appended outside a batch count as committed."""
        if table in self._tables and len(rows):
            if self._batch is None:
                self._lose()
            else:
                self._batch.setdefault(table, []).append(rows)

    def drop(self, table: str) -> None:
        """Called when rows of a table were dropped."""
        if table in self._tables:
            if self._batch is None:
                self._lose()
            self._batch = None

    def commit(self) -> None:
        batch, self._batch = self._batch, None
        if batch is None:
            self._lose()
            return
        with self._lock:
            for table, some in batch.items() if self._is_whole else ():
                self._rows.setdefault(table, []).extend(some)
                self._size += sum(rows.nbytes for rows in some)
        if self._size > MOST_BYTES:
            self._lose()

    def rollback(self) -> None:
        self._batch = None

    def _lose(self) -> None:
        with self._lock:
            self._rows, self._size, self._is_whole = {}, 0, False


@dataclass(frozen=True, slots=True)
class NumberedViews:
    """A view for each row of a table, named by `prefix` and a number, such as `r_t_0`. `numbers` is the table's column
    with the numbers. `statement` builds the SELECT from the number, the value of column `argument`, and the index of
    the first array element in the engine's SQL."""

    prefix: str
    table: str
    numbers: str
    argument: str
    statement: Callable[[int, list[int | None], int], str]

    def has(self, name: str) -> bool:
        """Whether a name is of this form."""
        return re.fullmatch(rf"{self.prefix}\d{{1,9}}", name) is not None

    def of_rows(self, rows: pa.Table, first_index: int) -> dict[str, str]:
        """The SELECTs of the views for rows of the table, by name."""
        numbered = zip(rows[self.numbers].to_pylist(), rows[self.argument].to_pylist(), strict=True)
        return {f"{self.prefix}{number}": self.statement(number, value, first_index) for number, value in numbered}


@dataclass(frozen=True, slots=True)
class Dated:
    """Tables whose rows expire with their documents; column `start` of `times`, one of them, has when these begin."""

    tables: tuple[str, ...]
    times: str
    start: str


@dataclass(frozen=True)
class StoreSchema:
    """The tables of a store and the SELECTs of its views, by name; both engines must understand the SELECTs.
    `documented` are the names suggested for an unknown table. `former_names` maps tables to their names in older
    formats. SELECTs may call `sha2(text, 256)` and `unix_micros(time)`, as in Spark, and name other views."""

    tables: Mapping[str, pa.Schema] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)
    numbered: NumberedViews | None = None
    dated: Dated | None = None
    documented: tuple[str, ...] = ()
    former_names: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: StoreSchema) -> StoreSchema:
        """The tables and views of both."""
        return StoreSchema(
            {**self.tables, **other.tables},
            {**self.views, **other.views},
            other.numbered or self.numbered,
            other.dated or self.dated,
            (*self.documented, *other.documented),
            {**self.former_names, **other.former_names},
        )

    def folder(self, table: str) -> str:
        """The folder of a table in a store of files, as in older stores."""
        return self.former_names.get(table, table)

    @cached_property
    def relations(self) -> frozenset[str]:
        """The relations that a question may name, beside the numbered views."""
        return frozenset((*self.tables, *self.views))

    def has(self, name: str) -> bool:
        """Whether a question may name this relation, in lower case."""
        return name in self.relations or (self.numbered is not None and self.numbered.has(name))


LONGEST = 100_000  # maximum number of characters of a question

ONLY_READ = "the tables are read-only: write a SELECT"

_OF_THE_ENGINE = re.compile(r"^(?:duckdb|pragma|pg|sqlite)_|\W")
"""Names of an engine's own relations and of files, which CTEs must not shadow: elsewhere they mean the relation."""


class QuestionRefused(InputError, ValueError):
    """A question that is rejected; the message says why and what to do, in one line."""


class QuestionInterrupted(OperationalError, RuntimeError):
    """A question was interrupted before it was answered."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Maximum answer: `rows`, and `size` in bytes of Arrow. None is unbounded."""

    rows: int | None = None
    size: int | None = None

    def check(self, rows: int, size: int) -> None:
        """Raises QuestionRefused for an answer past the bounds."""
        if self.rows is not None and rows > self.rows:
            raise QuestionRefused(f"the answer has more than {self.rows:,} rows: narrow it down, or raise --most-rows")
        if self.size is not None and size > self.size:
            raise QuestionRefused(
                f"the answer has more than {self.size:,} bytes: narrow it down, or raise --most-bytes"
            )


UNBOUNDED = Bounds()


class Question(Protocol):
    """A question over the batches committed when it begins, answered once, in any thread, beside other uses."""

    def answer(self) -> pa.Table:
        """Raises QuestionRefused (invalid, or too large an answer), QuestionInterrupted, or, if damaged, StoreError."""

    def interrupt(self) -> None:
        """Makes `answer` raise QuestionInterrupted soon. Callable from any thread, at any time, repeatedly."""


def check_known(name: str, schema: StoreSchema, made: Collection[str]) -> None:
    """Raises QuestionRefused for a relation neither in the schema nor in `made`, the question's CTEs."""
    lower = name.lower()
    if schema.has(lower) or (lower in made and not _OF_THE_ENGINE.search(lower)):
        return
    close = get_close_matches(lower, [*schema.relations, *made], 1)
    numbered = f" and {schema.numbered.prefix}0, {schema.numbered.prefix}1, ..." if schema.numbered else ""
    advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(schema.documented)}{numbered}"
    raise QuestionRefused(f"there is no table {name!r:.80}; {advice}")


def name_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def short_enough(sql: str) -> None:
    """Raises QuestionRefused for SQL that is too long."""
    if len(sql) > LONGEST:
        raise QuestionRefused(f"the question has {len(sql):,} characters, and at most {LONGEST:,} are read")


def measured(chunks: pa.RecordBatchReader, bounds: Bounds) -> pa.Table:
    """Reads rows no further than the bounds. Raises QuestionRefused."""
    found: list[pa.RecordBatch] = []
    rows = size = 0
    for chunk in chunks:
        rows, size = rows + chunk.num_rows, size + chunk.nbytes
        bounds.check(rows, size)
        found.append(chunk)
    return pa.Table.from_batches(found, chunks.schema)


def json_objects(root: Any) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value, such as a parsed question."""
    waiting = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


DUCKDB_FILE, SPARK_MANIFESTS = "mmqjp.duckdb", "manifests"
"""Marker of a store on DuckDB (a file) and on Spark (a folder)."""


def manifest_batches(directory: Path) -> list[int]:
    """The batches of a store on Spark whose manifests are there, the newest last."""
    return sorted(int(one.stem) for one in (directory / SPARK_MANIFESTS).glob("*.json") if one.stem.isdecimal())


COMMITTED = "committed"
"""The mark of a store, a file that records its last commit: never later than the store itself."""

CopyFile = Callable[..., None]
"""Copies a file of a store, given its path there, or its first bytes, given their number."""

RUNS = "postings"  # the folder of a store for runs of postings, by plan `signature`


class OtherSession(InputError, ValueError):
    """Another Spark session than the requested one runs in this process."""


class StoreError(OperationalError, RuntimeError):
    """A store cannot be opened, read or written: it is damaged, missing, full, or of a newer version."""


class DamagedRun(StoreError):
    """A file of postings, which derive from the tables, is missing or damaged."""


class OutOfMemory(StoreError):
    """A batch needs more memory than the store has."""


def check_not_lost(directory: Path) -> None:
    """Called if a directory has no store. Raises StoreError if it has parts of one."""
    for part in (COMMITTED, RUNS, f"{DUCKDB_FILE}.wal"):
        if (directory / part).exists():
            raise StoreError(
                f"the store in {directory} has lost its data: {part} is there, but neither {DUCKDB_FILE} nor "
                f"{SPARK_MANIFESTS} is; put them back, restore an older copy of the directory, or name another one"
            )


def last_commit(directory: Path) -> tuple[int, ...] | None:
    """The mark of a store, if any. Raises StoreError if it is damaged."""
    try:
        return read_mark(directory / COMMITTED)
    except ValueError as error:
        raise StoreError(
            f"the store is damaged: {directory / COMMITTED}, which records the last commit, is not "
            "what was written; restore an older copy of the store, or, if nothing else has changed, remove this file"
        ) from error


LOST = "mmqjp check-store {} --repair goes on without the lost commits, so outputs may be reported again"
"""The alternative to restoring a store that is older than its mark."""


class OtherEngine(StoreError):
    """A store is of another engine. The arguments are its directory and its engine."""

    def __str__(self) -> str:
        directory, engine = self.args
        return f"{directory} holds a store of the engine {engine}: use that engine or another directory"


class Outdated(StoreError):
    """A store of an older format, which must be opened for writing once."""


class TableStore(Protocol):
    """Tables with atomic batches: `begin`, any number of `append` and `drop_before`, and `commit` or `rollback`."""

    @property
    def schema(self) -> StoreSchema:
        """The tables and views of the store."""

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """Undoes the batch, also after a failed `commit`."""

    def append(self, table: str, rows: pa.Table) -> None:
        """Appends rows to a table of the schema. Raises StoreError if there is no room."""

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        """Answers a trusted query over the tables, the running batch included, and over named `views`."""

    def question(self, sql: str, bounds: Bounds = UNBOUNDED, *, own: bool = False) -> Question:
        """Prepares an untrusted, read-only query of committed data. An `own` one is trusted, but still read-only."""

    def read(self, table: str, columns: Sequence[str], key: str | None = None) -> pa.Table:
        """Columns of a table, unordered, with the running batch; with `key`, only its rows. Faster than a query."""

    def find(self, table: str, column: str, numbers: pa.Array, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows whose column has one of these distinct numbers, with the running batch: all columns, or those given,
        which include it. Faster than a query."""

    def highest(self, table: str, column: str) -> int:
        """The greatest number in a column, -1 if there is none. Faster than a query."""

    def drop_before(self, table: str, column: str, bound: int) -> None:
        """Drops rows with a number less than `bound`. The table is not part of the join state."""

    def follow(self, tables: Collection[str]) -> Following | None:
        """Follows the rows committed to some tables from now on, while the result is referenced; None if unsupported.
        Callable from any thread; a batch then being written is left out."""

    def close(self) -> None: ...


@contextmanager
def whole_batch(store: TableStore) -> Iterator[None]:
    """A batch, committed at the end or rolled back after any exception."""
    with interrupts_deferred():
        store.begin()
        try:
            yield
            defer_interrupts()
            store.commit()
        except BaseException:
            defer_interrupts()
            store.rollback()
            raise


@contextmanager
def writing(*errors: type[Exception]) -> Iterator[None]:
    """Translates errors while a batch is written, such as a full disk, to StoreError."""
    try:
        yield
    except errors as error:
        raise StoreError(f"the store cannot be written: {error}; make room, and run it again") from error


_Kind = TypeVar("_Kind", bound=Callable[..., Any])


def telling(
    kind: _Kind, errors: tuple[type[Exception], ...], convert: Callable[[Exception], StoreError | None]
) -> _Kind:
    """Decorates a function or a class's public methods: `errors` become StoreErrors, unless `convert` returns None."""

    def translated(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return method(*arguments, **options)
            except errors as error:
                found = convert(error)
                if found is None:
                    raise
                raise found from error

        return call

    if not isinstance(kind, type):
        return translated(kind)  # type: ignore[return-value]  # of its type
    for name, method in list(vars(kind).items()):
        if callable(method) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, translated(method))
    return kind
