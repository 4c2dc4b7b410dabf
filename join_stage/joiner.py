"""The protocol of stage 2: a joiner, on Spark or DuckDB and by any plan, and the store that keeps its state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from common.errors import InputError
from join_stage.batch_sql import TemplateTable
from join_stage.costs import Cost
from join_stage.store.protocol import TableStore
from templates.catalog import Edge, Row
from templates.witness import MANY, Witnesses

RESULT = pa.schema(
    [("qid", pa.int64()), ("docid1", pa.int64()), ("docid2", pa.int64()), ("nodes", pa.list_(pa.int64()))]
)
"""The result of a join: the id of a row of R_T, its documents (docid2 is null for a filter), and its nodes in the order
of the template."""


PLANS = ("basic", "views", "signature")
"""The names of the plans."""

DEFAULT_PLAN = "signature"


JOINED_STREAMS = pa.schema([("stream1", pa.string()), ("stream2", pa.string())])


@dataclass(frozen=True, slots=True)
class Scope:
    """A bound on what any query joins: documents of these pairs of streams, left and right, that together cover no more
    than `window` microseconds."""

    window: int
    streams: frozenset[tuple[str, str]]

    def joined_streams(self) -> pa.Table:
        """The pairs of streams as a relation."""
        rows = [dict(zip(JOINED_STREAMS.names, pair, strict=True)) for pair in sorted(self.streams)]
        return pa.Table.from_pylist(rows, schema=JOINED_STREAMS)


class Matches(Protocol):
    """The matches of a join. A plan need not hold all of them at once; a table of RESULT will do."""

    @property
    def num_rows(self) -> int:
        """The number of matches."""

    def to_batches(self, max_chunksize: int = ...) -> Iterable[pa.RecordBatch]:
        """The matches as batches of RESULT, of at most `max_chunksize` rows."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that a plan answers: witnesses, already in the join state, of documents from id `first_docid` on.

    `older` says whether the state also holds earlier documents.
    """

    witnesses: Witnesses
    first_docid: int
    older: bool
    scope: Scope

    @property
    def has_many_values(self) -> bool:
        """Whether nodes of the batch have several values."""
        return has_many_values(self.witnesses)


def has_many_values(witnesses: Witnesses) -> bool:
    """Whether nodes have several values: texts that are joined by their words."""
    return bool((witnesses.r_doc["node"].to_numpy() >= MANY).any())


class UnknownPlan(InputError, ValueError):
    """No plan has the name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"a plan is one of {', '.join(PLANS)}, not {self.name!r}"


class Joiner(Protocol):
    """Joins the documents of batches with the join state. Its changes belong to the running batch of the store.

    **R_T**: `put_rows` and `drop_rows` take effect at the next `join`. They are not part of a batch: R_T follows from
    the registered queries, and is filled anew when a store is opened.
    """

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        """Adds rows to the R_T of a template. A row replaces the one with its id."""

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        """Removes rows from the R_T of a template."""

    def join(self, batch: Witnesses, first_docid: int, scope: Scope) -> Matches:
        """Adds witnesses to the join state, and answers all templates for them.

        Their documents have ids from `first_docid` on, which are greater than all earlier ones. The matches must be
        read before the next call.
        """

    def extend(self, witnesses: Witnesses, *, whole: bool = False) -> None:
        """Adds witnesses of earlier documents that the join state lacks. Finds no matches. `r_docts` has only
        documents that the state does not have. If they are `whole`, the witnesses are all those of these documents."""

    def evict(self, before: int) -> None:
        """Drops the join state of documents that begin before a time, in microseconds, as far as it is practical."""

    def drop_groups(self, edges: Collection[Edge]) -> Collection[int]:
        """Drops the groups that no row of the join state has, and those with none of `edges`, with their rows. Returns
        the numbers of the groups that are left."""

    def drop_derived(self, node: int) -> None:
        """Drops the rows of the join state with node ids from `node` on: those of derived values."""

    def costs(self) -> dict[int, Cost]:
        """The cost of each template, by number, in the last batch in which it was answered."""

    def counters(self) -> dict[str, int]:
        """The counters of the plan, since the engine was opened. Which there are depends on the plan."""


class JoinEngine(TableStore, Joiner, Protocol):
    """A store and a joiner whose state the store keeps."""
