"""The protocol of stage 2: what joiners do for the rest of the system, on Spark and on DuckDB, by any plan."""

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
from templates.witness import Witnesses

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


class UnknownPlan(InputError, ValueError):
    """No plan has the name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"a plan is one of {', '.join(PLANS)}, not {self.name!r}"


class Joiner(Protocol):
    """Join state, and the joins of a batch's documents with it. What changes the state belongs to the running batch of
    the store that it is kept in.

    **R_T**: `put_rows` and `drop_rows` take effect at the next `join`. They are not part of a batch: R_T follows from
    the registered queries, and is filled anew when a store is opened.
    """

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        """Adds rows to the template's R_T; a row with a known id replaces it."""

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        """Takes rows out of the template's R_T."""

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

    def costs(self) -> dict[int, Cost]:
        """What templates cost in the last batch that each of them was answered in, by the templates' numbers."""

    def counters(self) -> dict[str, int]:
        """What the plan counts, since the engine was opened; nothing, for a plan that counts nothing."""


class JoinEngine(TableStore, Joiner, Protocol):
    """A store and the joiner whose state it keeps."""
