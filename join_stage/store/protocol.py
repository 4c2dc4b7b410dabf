"""The protocol of a store: tables whose batches become visible as a whole. And the errors of stores.

What was committed to some tables since somebody looked: whoever keeps up with a store need not ask it then.

Questions: untrusted SQL, of which a single SELECT over the relations of a store is answered. What engines share.

The schema that a store is opened with: its tables, as Arrow schemas, and the views over them.

Tells errors of a library as errors of ours, wherever a class lets them out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property, wraps
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from common.errors import InputError, OperationalError

MOST_BYTES = 64 << 20
"""So much is kept until somebody looks; then nothing is."""


class Committed(NamedTuple):
    """What was committed up to a mark: the rows that were appended to tables, by name. None if not all of them were
    kept, or if some were dropped: then the store is to be asked."""

    mark: int
    rows: dict[str, pa.Table] | None


class Following:
    """Follows some tables of a store for one reader. Batches are written in one thread; `since` is called in any."""

    def __init__(self, tables: Iterable[str]) -> None:
        self._tables = frozenset(tables)
        self._batch: dict[str, list[pa.Table]] | None = None
        self._lock = Lock()
        self._rows: dict[str, list[pa.Table]] = {}
        self._size = self._mark = 0
        self._is_whole = False

    def since(self, mark: int) -> Committed:
        """Returns what was committed since a look that returned a mark, the last one, and lets it go."""
        with self._lock:
            rows, is_whole = self._rows, self._is_whole and mark == self._mark
            self._rows, self._size, self._is_whole = {}, 0, True
            self._mark += 1
            committed = self._mark
        return Committed(committed, {name: pa.concat_tables(some) for name, some in rows.items()} if is_whole else None)

    # ------------------------------------------------------------ what a store tells

    def begin(self) -> None:
        """Is told that a batch begins."""
        self._batch = {}

    def append(self, table: str, rows: pa.Table) -> None:
        """Is told that rows were appended. Without a batch they are committed."""
        if table in self._tables and len(rows):
            if self._batch is None:
                self._lose()
            else:
                self._batch.setdefault(table, []).append(rows)

    def drop(self, table: str) -> None:
        """Is told that rows of a table were dropped."""
        if table in self._tables:
            if self._batch is None:
                self._lose()
            self._batch = None

    def commit(self) -> None:
        """Is told that the batch was committed."""
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
        """Is told that the batch is not committed."""
        self._batch = None

    def _lose(self) -> None:
        with self._lock:
            self._rows, self._size, self._is_whole = {}, 0, False


@dataclass(frozen=True, slots=True)
class NumberedViews:
    """A view for each row of a table, such as `r_t_0`, `r_t_1` and so on: `prefix` and a number.

    `numbers` is the column of the table with the numbers. `statement` makes the SELECT of a view from the number, the
    value in the column `argument`, and the index of the first element of an array in the SQL of the engine.
    """

    prefix: str
    table: str
    numbers: str
    argument: str
    statement: Callable[[int, list[int | None], int], str]

    def has(self, name: str) -> bool:
        """Whether a name has the form of these names."""
        return re.fullmatch(rf"{self.prefix}\d{{1,9}}", name) is not None

    def of_rows(self, rows: pa.Table, first_index: int) -> dict[str, str]:
        """The SELECTs of the views for rows of the table, by name."""
        numbered = zip(rows[self.numbers].to_pylist(), rows[self.argument].to_pylist(), strict=True)
        return {f"{self.prefix}{number}": self.statement(number, value, first_index) for number, value in numbered}


@dataclass(frozen=True, slots=True)
class Dated:
    """Tables whose rows are dropped when their documents are old. `times` is the one of them whose column `start` says
    when documents begin."""

    tables: tuple[str, ...]
    times: str
    start: str


@dataclass(frozen=True)
class StoreSchema:
    """The tables of a store and the SELECTs of its views, by name. Both engines must understand the SELECTs.

    `documented` are the names that a question about an unknown table is answered with. `former_names` has what tables
    are called in stores of older formats. The SELECTs may call `sha2(text, 256)`, as in Spark, and name other views.
    """

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
        """The folder of a table in a store of files: older stores have it, too."""
        return self.former_names.get(table, table)

    @cached_property
    def relations(self) -> frozenset[str]:
        """The relations that a question may name, beside the numbered views."""
        return frozenset((*self.tables, *self.views))

    def has(self, name: str) -> bool:
        """Whether a question may name a relation by this name, in lower case."""
        return name in self.relations or (self.numbered is not None and self.numbered.has(name))


LONGEST = 100_000
"""The largest number of characters of a question."""

ONLY_READ = "the tables are only read: write a SELECT"

_OF_THE_ENGINE = re.compile(r"^(?:duckdb|pragma|pg|sqlite)_|\W")
"""Matches the names of an engine's own relations and of files. A question must not give such a name to one of its CTEs:
elsewhere it could mean the other."""


class QuestionRefused(InputError, ValueError):
    """A question that is not answered; the message says why and what to do, in one line."""


class QuestionInterrupted(OperationalError, RuntimeError):
    """A question that was ended before it was answered."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The largest answer, in `rows` and in bytes (`size`) of Arrow. None is no bound."""

    rows: int | None = None
    size: int | None = None

    def check(self, rows: int, size: int) -> None:
        """Raises QuestionRefused for an answer of so many rows and bytes."""
        if self.rows is not None and rows > self.rows:
            raise QuestionRefused(f"the answer has more than {self.rows:,} rows: narrow it down, or raise --most-rows")
        if self.size is not None and size > self.size:
            raise QuestionRefused(
                f"the answer has more than {self.size:,} bytes: narrow it down, or raise --most-bytes"
            )


UNBOUNDED = Bounds()


class Question(Protocol):
    """A question over the tables. It sees the batches that are committed when it begins.

    It is answered once, in any thread, while other threads use the store.
    """

    def answer(self) -> pa.Table:
        """The answer. Raises QuestionRefused for what is no question or has too large an answer, QuestionInterrupted if
        it was interrupted, and StoreError if the store is damaged."""

    def interrupt(self) -> None:
        """Makes `answer` raise QuestionInterrupted soon. May be called from any thread, at any time, and repeatedly."""


def check_known(name: str, schema: StoreSchema, made: Collection[str]) -> None:
    """Raises QuestionRefused for the name of a relation that is neither in the schema nor in `made`, the CTEs of the
    question."""
    lower = name.lower()
    if schema.has(lower) or (lower in made and not _OF_THE_ENGINE.search(lower)):
        return
    close = get_close_matches(lower, [*schema.relations, *made], 1)
    numbered = f" and {schema.numbered.prefix}0, {schema.numbered.prefix}1, ..." if schema.numbered else ""
    advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(schema.documented)}{numbered}"
    raise QuestionRefused(f"there is no table {name!r:.80}; {advice}")


def short_enough(sql: str) -> None:
    """Raises QuestionRefused for SQL that is too long to be read."""
    if len(sql) > LONGEST:
        raise QuestionRefused(f"the question has {len(sql):,} characters, and at most {LONGEST:,} are read")


def measured(chunks: pa.RecordBatchReader, bounds: Bounds) -> pa.Table:
    """The rows of a reader, which is read no further than the bounds go. Raises QuestionRefused."""
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
"""The file that marks a store on DuckDB, and the folder that marks a store on Spark."""


class OtherSession(InputError, ValueError):
    """A Spark session runs in this process that is not the one asked for."""


class StoreError(OperationalError, RuntimeError):
    """A store cannot be opened, read or written: it is damaged, missing, full, or of a newer version."""


class OutOfMemory(StoreError):
    """A batch needs more memory than the store has."""


class Outdated(StoreError):
    """A store has an older format, and must be opened for writing once."""


class TableStore(Protocol):
    """Tables whose batches become visible as a whole.

    A batch is `begin`, any number of `append` and `drop_before`, and `commit`; or `rollback`, which leaves everything
    as it was at `begin`.
    """

    @property
    def schema(self) -> StoreSchema:
        """The tables and views of the store."""

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """Undoes the batch, also if its `commit` failed."""

    def append(self, table: str, rows: pa.Table) -> None:
        """Appends rows to a table of the schema. Raises StoreError if there is no room."""

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        """Answers a trusted query over the tables, the running batch included, and over `views`, given by name."""

    def question(self, sql: str, bounds: Bounds = UNBOUNDED, *, own: bool = False) -> Question:
        """Prepares an untrusted query, which may only read, over what is committed. An `own` one is not a stranger's:
        it need not be judged, but still only reads."""

    def read(self, table: str, columns: Sequence[str], key: str | None = None) -> pa.Table:
        """Some columns of a table: all rows, in no particular order, or those whose column `key` has this value. Rows
        of the running batch are included. It is faster than a query."""

    def find(self, table: str, column: str, numbers: pa.Array) -> pa.Table:
        """The rows of a table that have one of these numbers, which are distinct, in a column. Rows of the running
        batch are included. It is faster than a query."""

    def highest(self, table: str, column: str) -> int:
        """The greatest number in a column, -1 if there is none. It is faster than a query."""

    def drop_before(self, table: str, column: str, bound: int) -> None:
        """Drops the rows of a table in which a number is less than `bound`. The table is not part of the join state."""

    def follow(self, tables: Collection[str]) -> Following | None:
        """Returns what tells of the rows that are committed to some tables from now on, as long as somebody holds it.
        None if the store cannot tell. It may be called in any thread; a batch that is being written then is not
        told."""

    def close(self) -> None: ...


@contextmanager
def whole_batch(store: TableStore) -> Iterator[None]:
    """A batch that is committed at the end, or rolled back after any exception."""
    store.begin()
    try:
        yield
        store.commit()
    except BaseException:
        store.rollback()
        raise


_Kind = TypeVar("_Kind", bound=type)

_ErrorTranslator = Callable[[Exception], StoreError | None]
"""What an error is told as; None if it stays what it is."""


def telling(kind: _Kind, errors: type[Exception] | tuple[type[Exception], ...], told: _ErrorTranslator) -> _Kind:
    """Has the public methods of a class raise what errors are told as."""
    for name, method in list(vars(kind).items()):
        if callable(method) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, _telling(method, errors, told))
    return kind


def _telling(
    method: Callable[..., Any], errors: type[Exception] | tuple[type[Exception], ...], told: _ErrorTranslator
) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except errors as error:
            found = told(error)
            if found is None:
                raise
            raise found from error

    return call
