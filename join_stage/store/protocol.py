"""The protocol of a store: tables whose batches become visible as a whole. And the errors of stores."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from common.errors import InputError, OperationalError
from join_stage.store.following import Following
from join_stage.store.reading import UNBOUNDED, Bounds, Question
from join_stage.store.schema import StoreSchema

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
