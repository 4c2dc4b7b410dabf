"""The protocol of stores: tables behind batches that become visible whole; and the errors of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from common.errors import InputError, OperationalError
from join_stage.store.reading import UNBOUNDED, Bounds, Question
from join_stage.store.schema import StoreSchema

DUCKDB_FILE, SPARK_MANIFESTS = "mmqjp.duckdb", "manifests"
"""What a directory holds that is a store of the one engine or of the other."""


class OtherSession(InputError, ValueError):
    """A Spark session runs in this process that is not the one asked for."""


class StoreError(OperationalError, RuntimeError):
    """A store cannot be opened, read or written: it is damaged, missing, full, or of a newer version."""


class OutOfMemory(StoreError):
    """A batch needs more memory than the store has."""


class Outdated(StoreError):
    """A store of an older format, which has to be opened for writing once."""


class TableStore(Protocol):
    """Tables, in which a batch becomes visible whole.

    **Batches**: `begin`, any number of `append` and `drop_before`, then `commit`; or `rollback`, which leaves
    everything as it was at `begin`.
    """

    @property
    def schema(self) -> StoreSchema:
        """The tables and views of the store."""

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """Takes back the batch, also one whose `commit` failed."""

    def append(self, table: str, rows: pa.Table) -> None:
        """Appends rows to a table of the schema."""

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        """Answers a query of ours over the tables, the current batch's rows included, and over `views` given along."""

    def question(self, sql: str, bounds: Bounds = UNBOUNDED) -> Question:
        """A question of somebody's, who may only read, over what is committed."""

    def read(self, table: str, columns: Sequence[str], key: str | None = None) -> pa.Table:
        """Some columns of a table that is not join state: all rows in no particular order, or those whose column
        `key` has this value; those of the current batch included. It is sooner there than a query."""

    def highest(self, table: str, column: str) -> int:
        """The greatest number in a column of such a table, -1 if there is none: also sooner there
        than a query."""

    def drop_before(self, table: str, column: str, bound: int) -> None:
        """Drops the rows of a table, none of the join state, in which a number is less than `bound`."""

    def close(self) -> None: ...


@contextmanager
def whole_batch(store: TableStore) -> Iterator[None]:
    """A batch that is committed if all goes well and rolled back otherwise."""
    store.begin()
    try:
        yield
        store.commit()
    except BaseException:
        store.rollback()
        raise
