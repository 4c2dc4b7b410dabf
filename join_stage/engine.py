"""The protocol of stage 2: what both engines, Spark and DuckDB, do for the rest of the system."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from join_stage.costs import Cost
from join_stage.plan import TemplateTable
from join_stage.reading import UNBOUNDED, Bounds, Question
from templates.catalog import Edge, Row
from templates.witness import Witnesses

DUCKDB_FILE, SPARK_MANIFESTS = "mmqjp.duckdb", "manifests"
"""What a directory holds that is a store of the one engine or of the other."""


RESULT = pa.schema(
    [("qid", pa.int64()), ("docid1", pa.int64()), ("docid2", pa.int64()), ("nodes", pa.list_(pa.int64()))]
)
"""What a join gives: the id of a row of R_T, its documents (docid2 is null for a filter's), and the nodes by the
template's numbering."""


PLANS = ("basic", "views", "signature")
"""How the joins can be done."""

DEFAULT_PLAN = "signature"


JOINED_STREAMS = pa.schema([("stream1", pa.string()), ("stream2", pa.string())])


@dataclass(frozen=True, slots=True)
class Scope:
    """What any query joins at the most: documents of these pairs of streams, left and right, no further apart than
    `window` microseconds."""

    window: int
    streams: frozenset[tuple[str, str]]

    def joined_streams(self) -> pa.Table:
        """The pairs of streams as a relation."""
        rows = [dict(zip(JOINED_STREAMS.names, pair, strict=True)) for pair in sorted(self.streams)]
        return pa.Table.from_pylist(rows, schema=JOINED_STREAMS)


class Matches(Protocol):
    """What a join found. A plan need not hold all of it at once; a table of RESULT will do."""

    @property
    def num_rows(self) -> int:
        """How many matches there are."""

    def to_batches(self, max_chunksize: int = ...) -> Iterable[pa.RecordBatch]:
        """The matches as rows of RESULT, no more than so many at a time."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a plan answers: witnesses that the join state already holds, of documents with ids from `first_docid` on.

    `older` tells whether the state holds documents from before them.
    """

    witnesses: Witnesses
    first_docid: int
    older: bool
    scope: Scope


def unknown_plan(name: str) -> ValueError:
    """The error for a plan that an engine cannot make."""
    return ValueError(f"a plan is one of {', '.join(PLANS)}, not {name!r}")


@contextmanager
def whole_batch(store: JoinEngine) -> Iterator[None]:
    """A batch that is committed if all goes well and rolled back otherwise."""
    store.begin()
    try:
        yield
        store.commit()
    except BaseException:
        store.rollback()
        raise


class OtherSession(ValueError):
    """A Spark session runs in this process that is not the one asked for."""


class StoreError(RuntimeError):
    """A store cannot be opened, or was written by a program that this one does not understand."""


class OutOfMemory(StoreError):
    """A batch needs more memory than the store has."""


class JoinEngine(Protocol):
    """Join state and tables behind batches that become visible whole.

    **Batches**: `begin`, any number of `append`, `join` and `evict`, then `commit`; or `rollback`, which leaves
    everything as it was at `begin`.

    **R_T**: `put_rows` and `drop_rows` take effect at the next `join`. They are not part of a batch: R_T follows from
    the registered queries, and is filled anew when a store is opened.
    """

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        """Adds rows to the template's R_T; a row with a known id replaces it."""

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        """Takes rows out of the template's R_T."""

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """Takes back the batch, also one whose `commit` failed."""

    def append(self, table: str, rows: pa.Table) -> None:
        """Appends rows to one of `join_stage.tables.TABLES`."""

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        """Answers a query of ours over the tables, the current batch's rows included, and over `views` given along."""

    def question(self, sql: str, bounds: Bounds = UNBOUNDED) -> Question:
        """A question of somebody's, who may only read, over what is committed."""

    def read(self, table: str, columns: Sequence[str], key: str | None = None) -> pa.Table:
        """Some columns of one of `join_stage.tables.RECORDS`, all rows in no particular order, or those whose column
        `key` has this value; those of the current batch included. It is sooner there than a query."""

    def highest(self, table: str, column: str) -> int:
        """The greatest number in a column of one of `join_stage.tables.RECORDS`, -1 if there is none: also sooner there
        than a query."""

    def join(self, batch: Witnesses, first_docid: int, scope: Scope) -> Matches:
        """Adds the witnesses to the join state and answers all templates for them.

        The batch's documents have ids from `first_docid` on, greater than all earlier ones. What it returns is read
        before the next call.
        """

    def extend(self, witnesses: Witnesses) -> None:
        """Adds to the join state what it lacks of documents that came before, and answers nothing. A document that it
        has is not among those of `r_docts` again."""

    def evict(self, before: int) -> None:
        """Drops the join state of documents that begin before the time `before`, as far as it is practical."""

    def drop_groups(self, edges: Collection[Edge]) -> Collection[int]:
        """Drops the groups that no row of the join state is of, and with their rows those that have none of some
        `edges`; the numbers of those that are kept."""

    def drop_derived(self, node: int) -> None:
        """Drops the rows of the join state about nodes with ids from `node` on: those of derived values, which are to
        be found anew."""

    def drop_before(self, table: str, column: str, bound: int) -> None:
        """Drops the rows of a table, none of the join state, in which a number is less than `bound`."""

    def costs(self) -> dict[int, Cost]:
        """What templates cost in the last batch that each of them was answered in, by the templates' numbers."""

    def counters(self) -> dict[str, int]:
        """What the plan counts, since the engine was opened; nothing, for a plan that counts nothing."""

    def close(self) -> None: ...
