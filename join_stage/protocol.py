"""The protocol of stage 2: joiners and plans, their shared SQL, and the costs of templates. The conjunctive queries of
all templates form one union-all statement (thesis, Algorithm 1). A batch joins the state, which already holds it, with
the batch on the right; then the batch on the left with the state before it. So each pair of documents with a new one is
met exactly once, whichever arrived first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from common.bounds import INFINITE
from common.errors import InputError
from join_stage.store.protocol import StoreError, TableStore
from templates.catalog import StepEdge, TemplateRow
from templates.graph import ConjunctiveQuery, RelationAtom, Shape, executable_query
from templates.witness import Witnesses


@dataclass(frozen=True, slots=True)
class Orientation:
    """The tables left and right of the joins, by name suffix, and the names of R_vj and R_LR."""

    left: str
    right: str
    pairs: str
    edges: str


NEW_RIGHT = Orientation("", "_w", "r_vj", "r_lr")
"""The state, batch included, on the left; the batch on the right."""

NEW_LEFT = Orientation("_w", "_old", "r_vj_old", "r_lr_old")
"""The batch on the left; the state without it on the right."""


@dataclass(frozen=True, slots=True)
class TemplateTable:
    """A template whose relation R_T has rows."""

    number: int
    shape: Shape

    @property
    def name(self) -> str:
        """The table of shared rows; the view `r_t_...` has a row for each query."""
        return f"rows_t_{self.number}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Attributes: qid (of the shared row), var1, ..., wl, and `ordered`: all subscribers are FOLLOWED BY."""
        return ("qid", *(f"var{i + 1}" for i in range(len(self.shape.parents))), "wl", "ordered")


SPAN = "greatest(l.t1, r.t1) - least(l.t0, r.t0)"
APART = "l.t1 <= r.t0"


def value_pairs_statement(side: Orientation, window: int, *, many: bool = False, state: str = "r_doc") -> str:
    """R_vj: pairs of nodes with equal string values, of two documents that some query may join. Their streams are a
    pair of `joined_streams`, and they cover at most the largest `window`, in microseconds. `span` is the time that both
    cover. `apart` says that the left one ends no later than the right one begins: such ties are counted
    (`mmqjp.answers.query_operators`) and are no matches of FOLLOWED BY. With `many`, nodes may have several values, and
    each pair occurs once. `state` is R_doc with the batch."""
    within = "" if window == INFINITE else f" AND {SPAN} <= {window}"
    select = "SELECT DISTINCT" if many else "SELECT"
    return f"""{select} a.docid AS docid1, a.node AS node1, b.docid AS docid2, b.node AS node2,
  {SPAN} AS span, {APART} AS apart
FROM {f"r_doc{side.left}" if side.left else state} a JOIN joined_streams s ON s.stream1 = a.stream
JOIN r_doc{side.right} b ON b.strval = a.strval AND b.stream = s.stream2
JOIN r_docts{side.left} l ON l.docid = a.docid JOIN r_docts{side.right} r ON r.docid = b.docid
WHERE a.docid <> b.docid{within}"""


def timed_query(template: TemplateTable, views: bool) -> tuple[ConjunctiveQuery, tuple[str, ...]]:
    """CQ_T with the conditions of Algorithm 3, line 4, for the largest window of the row."""
    query = executable_query(template.shape, f"T{template.number}", views)
    rows = RelationAtom(f"R_T{template.number}", template.columns, (*template.columns[:-1], "ordered"))
    body = [rows if atom.relation == rows.relation else atom for atom in query.body]
    if not template.shape.joins:
        return ConjunctiveQuery(query.head, tuple(body)), ()
    pairs = body[0]
    body[0] = RelationAtom(pairs.relation, (*pairs.attributes, "span", "apart"), (*pairs.args, "span", "apart"))
    return ConjunctiveQuery(query.head, tuple(body)), ("{span} <= {wl}", "({apart} OR NOT {ordered})")


def template_statement(template: TemplateTable, side: Orientation, array: str, views: bool = False) -> str:
    """CQ_T in SQL, with rows of RESULT. `array` is the engine's array constructor, with `{}` for the elements."""
    query, conditions = timed_query(template, views)
    tables = {
        "R_vj": side.pairs,
        "R_LR": side.edges,
        "R_bin": f"r_bin{side.left}",
        "R_binW": f"r_bin{side.right}",
        f"R_T{template.number}": template.name,
    }
    nodes = array.format(", ".join(f"{{node{i + 1}}}" for i in range(len(template.shape.parents))))
    docid2 = "{docid2}" if template.shape.joins else "CAST(NULL AS BIGINT)"
    select = f"{{qid}} AS qid, {{docid1}} AS docid1, {docid2} AS docid2, {nodes} AS nodes"
    return query.sql(tables, select, conditions)


def batch_statements(
    templates: Sequence[TemplateTable], array: str, *, with_old: bool, joins: int | None = None, views: bool = False
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields union-all statements that answer all templates for a batch, each with its template numbers. `with_old`
    adds the second orientation. `joins` limits those of a statement, for engines that run all of a union at once."""
    selects: list[str] = []
    numbers: list[int] = []
    count = 0
    for template in templates:
        more = len(timed_query(template, views)[0].body) - 1
        for side in (NEW_RIGHT, NEW_LEFT) if with_old and template.shape.joins else (NEW_RIGHT,):
            if selects and joins is not None and count + more > joins:
                yield "\nUNION ALL\n".join(selects), tuple(dict.fromkeys(numbers))
                selects, numbers, count = [], [], 0
            selects.append(template_statement(template, side, array, views))
            numbers.append(template.number)
            count += more
    if selects:
        yield "\nUNION ALL\n".join(selects), tuple(dict.fromkeys(numbers))


@dataclass(frozen=True, slots=True)
class Cost:
    """`seconds` and `matches` of some templates in a batch, without work shared by all templates."""

    seconds: float
    matches: int
    templates: tuple[int, ...]


class Costs(dict[int, Cost]):
    """The cost of each template, by number, in the last batch that answered it."""

    def add(self, cost: Cost) -> None:
        self.update(dict.fromkeys(cost.templates, cost))


RESULT = pa.schema(
    [("qid", pa.int64()), ("docid1", pa.int64()), ("docid2", pa.int64()), ("nodes", pa.list_(pa.int64()))]
)
"""The result of a join: row id in R_T, documents (docid2 null for a filter), and nodes in template order."""


PLANS = ("basic", "views", "signature")

DEFAULT_PLAN = "signature"


JOINED_STREAMS = pa.schema([("stream1", pa.string()), ("stream2", pa.string())])


@dataclass(frozen=True, slots=True)
class JoinScope:
    """Bounds any join: documents of these (left, right) streams that together cover at most `window` microseconds."""

    window: int
    streams: frozenset[tuple[str, str]]

    def joined_streams(self) -> pa.Table:
        rows = [dict(zip(JOINED_STREAMS.names, pair, strict=True)) for pair in sorted(self.streams)]
        return pa.Table.from_pylist(rows, schema=JOINED_STREAMS)


class Matches(Protocol):
    """The matches of a join, possibly produced lazily; a table of RESULT will do."""

    @property
    def num_rows(self) -> int: ...

    def to_batches(self, max_chunksize: int = ...) -> Iterable[pa.RecordBatch]:
        """Batches of RESULT, of at most `max_chunksize` rows."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Witnesses, already in the join state, of documents from `first_docid` on; `older`: the state has others, too. For
    plans in SQL, a node may have a row for each key of its text, and `before` has the state before, on Spark."""

    witnesses: Witnesses
    first_docid: int
    older: bool
    scope: JoinScope
    before: Mapping[str, Any] = field(default_factory=dict)


class UnknownPlan(InputError, ValueError):
    """No plan has the name, the argument."""

    def __str__(self) -> str:
        return f"a plan is one of {', '.join(PLANS)}, not {self.args[0]!r}"


class JoinEngine(TableStore, Protocol):
    """A store that joins the documents of batches with the join state, which it keeps, within its running batch."""

    @property
    def plan(self) -> JoinPlan:
        """Has the rows of R_T. They are not stored, but rebuilt from queries when a store is opened."""

    def join(self, batch: Witnesses, first_docid: int, scope: JoinScope) -> Matches:
        """Adds witnesses to the join state, and answers all templates for them. Documents have ids from `first_docid`
        on, greater than all earlier ones. Read the matches before the next call."""

    def extend(self, witnesses: Witnesses, *, whole: bool = False) -> None:
        """Adds witnesses of earlier documents without finding matches. `r_docts` has only documents that the state
        lacks; with `whole`, the witnesses are all those of these documents."""

    def evict(self, before: int) -> None:
        """Drops the join state of documents that begin before a time in microseconds, as far as practical."""

    def drop_groups(self, edges: Collection[StepEdge]) -> Collection[int]:
        """Drops groups without rows in the join state, and groups with none of `edges` together with their rows.
        Returns the remaining group numbers."""

    def drop_derived(self, node: int) -> None:
        """Drops the join state's rows with node ids from `node` on, those of derived values."""

    def mends(self, error: Exception) -> bool:
        """Called after rollback with the error of the batch. Returns whether it came of damaged files that derive from
        the tables: the next batch builds them anew."""


class JoinPlan:
    """Answers batches over the join state, by default without keeping anything of documents or groups. What it keeps is
    committed and rolled back with the store's batches."""

    in_sql: ClassVar[bool] = True
    """Whether the plan reads the batch from r_bin_w, r_doc_w and r_docts_w, and the join state from tables."""

    def __init__(self) -> None:
        self.costs = Costs()

    def put_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        """Adds rows to the R_T of a template, replacing rows with the same id, from the next `join` on."""

    def drop_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        """Removes rows from the R_T of a template, from the next `join` on."""

    def join(self, batch: Batch) -> Matches:
        """Answers all templates for a batch, which the state already holds."""
        raise NotImplementedError

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        """Called before witnesses of earlier documents are added to the join state; `whole`: they are all of these."""

    def evicted(self, docids: Callable[[], pa.ChunkedArray], before: int) -> None:
        """Called when documents, all of which begin before a time, leave the state."""

    def forget(self) -> None:
        """Called when the join state changes otherwise: the plan reloads it."""

    def regrouped(self, kept: Collection[int], edges: Collection[StepEdge]) -> None:
        """Called after groups were dropped, all but those in `kept` and those of documents; state of groups with none
        of `edges` is gone or no longer used."""

    def settle(self) -> None:
        """Called before commit; may append to tables. Raises StoreError."""

    def committed(self) -> None: ...

    def rolled_back(self, *, whole: bool) -> None:
        """Called after rollback. Without `whole`, a commit failed and may be only partly undone."""

    def mends(self, error: StoreError) -> bool:
        """Called after rollback. Whether the error came of damaged files of the plan, which the next batch rebuilds."""
        return False

    def close(self) -> None: ...

    def counters(self) -> dict[str, int]:
        """Counters of the plan since the engine was opened."""
        return {}
