"""The SQL of a batch: the conjunctive queries of all templates as one union-all statement (thesis, Algorithm 1).

A batch joins the state, which already holds it, with the batch on the right; then the batch on the left with the state
as it was before. So each pair of documents with a new one in it is met exactly once, whichever arrived first.

The costs of templates, which the plans measure while they answer a batch.

The protocol of stage 2: a joiner, on Spark or DuckDB and by any plan, and the store that keeps its state.

What the plans of both engines have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import pyarrow as pa

from common.errors import InputError
from join_stage.store.protocol import TableStore
from templates.catalog import INFINITE, StepEdge, TemplateRow
from templates.graph import ConjunctiveQuery, RelationAtom, Shape, executable_query
from templates.witness import MANY, Witnesses


@dataclass(frozen=True, slots=True)
class Orientation:
    """The tables left and right of the joins, by the suffixes of their names, and the names of R_vj and R_LR."""

    left: str
    right: str
    pairs: str
    edges: str


NEW_RIGHT = Orientation("", "_w", "r_vj", "r_lr")
"""The state, which includes the batch, on the left, and the batch on the right."""

NEW_LEFT = Orientation("_w", "_old", "r_vj_old", "r_lr_old")
"""The batch on the left, and the state without it on the right."""

QueryForm = Callable[[Shape, str], ConjunctiveQuery]
"""Makes CQ_T from the shape and the name of a template: `executable_query` or `executable_views_query`."""


@dataclass(frozen=True, slots=True)
class TemplateTable:
    """A template whose relation R_T has rows: its number and shape."""

    number: int
    shape: Shape

    @property
    def name(self) -> str:
        """The table of its shared rows; `r_t_...` is the view of it in which each query has a row of its own."""
        return f"rows_t_{self.number}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Its attributes: qid (of the shared row), var1, ..., wl, and `ordered`: all subscribers are FOLLOWED BY."""
        return ("qid", *(f"var{i + 1}" for i in range(len(self.shape.parents))), "wl", "ordered")


SPAN = "greatest(l.t1, r.t1) - least(l.t0, r.t0)"
APART = "l.t1 <= r.t0"


def value_pairs_statement(side: Orientation, window: int, *, many: bool = False, state: str = "r_doc") -> str:
    """R_vj: the pairs of nodes with equal string values, of two documents that some query may join. With `many`, nodes
    may have several values, and a pair is there once however many it has in common. `state` is R_doc with the batch.

    Their streams are a pair of `joined_streams`, and they cover no more than the largest `window`, in microseconds.
    `span` is the time that both documents cover. `apart` says that the left one ends before the right one begins, or
    just then: such ties are counted (`mmqjp.answers.query_operators`), and are no matches of FOLLOWED BY.
    """
    within = "" if window == INFINITE else f" AND {SPAN} <= {window}"
    select = "SELECT DISTINCT" if many else "SELECT"
    return f"""{select} a.docid AS docid1, a.node AS node1, b.docid AS docid2, b.node AS node2,
  {SPAN} AS span, {APART} AS apart
FROM {f"r_doc{side.left}" if side.left else state} a JOIN joined_streams s ON s.stream1 = a.stream
JOIN r_doc{side.right} b ON b.strval = a.strval AND b.stream = s.stream2
JOIN r_docts{side.left} l ON l.docid = a.docid JOIN r_docts{side.right} r ON r.docid = b.docid
WHERE a.docid <> b.docid{within}"""


def timed_query(template: TemplateTable, form: QueryForm) -> tuple[ConjunctiveQuery, tuple[str, ...]]:
    """CQ_T as it is run, with the conditions of Algorithm 3, line 4, for the largest window of the row."""
    query = form(template.shape, f"T{template.number}")
    rows = RelationAtom(f"R_T{template.number}", template.columns, (*template.columns[:-1], "ordered"))
    body = [rows if atom.relation == rows.relation else atom for atom in query.body]
    if not template.shape.joins:
        return ConjunctiveQuery(query.head, tuple(body)), ()
    pairs = body[0]
    body[0] = RelationAtom(pairs.relation, (*pairs.attributes, "span", "apart"), (*pairs.args, "span", "apart"))
    return ConjunctiveQuery(query.head, tuple(body)), ("{span} <= {wl}", "({apart} OR NOT {ordered})")


def template_statement(
    template: TemplateTable, side: Orientation, array: str, form: QueryForm = executable_query
) -> str:
    """CQ_T in SQL. Its rows are those of RESULT. `array` is the array constructor of the engine, with `{}` for the
    elements."""
    query, conditions = timed_query(template, form)
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
    templates: Sequence[TemplateTable],
    array: str,
    *,
    with_old: bool,
    joins: int | None = None,
    form: QueryForm = executable_query,
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The union-all statement that answers all templates for a batch, and the numbers of the templates. `with_old` adds
    the second orientation.

    An engine that runs all branches of a union at once bounds the number of `joins` in a statement. It gets several
    statements if there are more.
    """
    selects: list[str] = []
    numbers: list[int] = []
    count = 0
    for template in templates:
        more = len(timed_query(template, form)[0].body) - 1
        for side in (NEW_RIGHT, NEW_LEFT) if with_old and template.shape.joins else (NEW_RIGHT,):
            if selects and joins is not None and count + more > joins:
                yield "\nUNION ALL\n".join(selects), tuple(dict.fromkeys(numbers))
                selects, numbers, count = [], [], 0
            selects.append(template_statement(template, side, array, form))
            numbers.append(template.number)
            count += more
    if selects:
        yield "\nUNION ALL\n".join(selects), tuple(dict.fromkeys(numbers))


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of the matches of some templates in a batch: `seconds`, the number of `matches`, and the `templates`.

    What a plan does once for all templates is not included.
    """

    seconds: float
    matches: int
    templates: tuple[int, ...]


class Costs:
    """The cost of each template in the last batch in which it was answered."""

    def __init__(self) -> None:
        self._of: dict[int, Cost] = {}

    def add(self, cost: Cost) -> None:
        for template in cost.templates:
            self._of[template] = cost

    def of_templates(self) -> dict[int, Cost]:
        return dict(self._of)


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
class JoinScope:
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
    scope: JoinScope

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

    def put_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        """Adds rows to the R_T of a template. A row replaces the one with its id."""

    def drop_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        """Removes rows from the R_T of a template."""

    def join(self, batch: Witnesses, first_docid: int, scope: JoinScope) -> Matches:
        """Adds witnesses to the join state, and answers all templates for them.

        Their documents have ids from `first_docid` on, which are greater than all earlier ones. The matches must be
        read before the next call.
        """

    def extend(self, witnesses: Witnesses, *, whole: bool = False) -> None:
        """Adds witnesses of earlier documents that the join state lacks. Finds no matches. `r_docts` has only
        documents that the state does not have. If they are `whole`, the witnesses are all those of these documents."""

    def evict(self, before: int) -> None:
        """Drops the join state of documents that begin before a time, in microseconds, as far as it is practical."""

    def drop_groups(self, edges: Collection[StepEdge]) -> Collection[int]:
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


class JoinPlan(Protocol):
    """A way to answer batches over the join state. The protocol of each engine adds how a plan reads it.

    What a plan keeps of documents is committed and rolled back with the batches of the store.
    """

    in_sql: ClassVar[bool]
    """Whether it reads the batch from the relations r_bin_w, r_doc_w and r_docts_w, and the join state from tables."""

    def put_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        """Adds rows to the R_T of a template. A row replaces the one with its id."""

    def drop_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        """Removes rows from the R_T of a template."""

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        """Is told that witnesses of earlier documents are about to be added to the join state. If they are `whole`,
        they are all those of documents of which it has nothing yet."""

    def forget(self) -> None:
        """Is told that the join state changes in other ways: what the plan keeps of it is to be read anew."""

    def regrouped(self, kept: Collection[int], edges: Collection[StepEdge]) -> None:
        """Is told that groups were dropped: all but those with numbers in `kept` and those that documents have. What
        the state had of groups with none of `edges` is gone, or is asked for no more."""

    def settle(self) -> None:
        """Is told that the batch is about to be committed. May append to tables. Raises StoreError."""

    def committed(self) -> None:
        """Is told that the batch is committed."""

    def rolled_back(self, *, whole: bool) -> None:
        """Is told that the batch is rolled back. If not `whole`, its commit failed, and only
        part of it may be undone."""

    def close(self) -> None:
        """Is told that the engine is closed."""

    def counters(self) -> dict[str, int]:
        """The counters of the plan, since the engine was opened."""

    def costs(self) -> dict[int, Cost]:
        """The cost of each template, by number, in the last batch in which it was answered."""


class SQLPlan:
    """The part of a plan in SQL that both engines share. It keeps nothing about documents or groups."""

    in_sql: ClassVar[bool] = True

    def __init__(self) -> None:
        self._templates: dict[int, TemplateTable] = {}
        self._costs = Costs()

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        """Does nothing: the plan keeps nothing about documents."""

    def forget(self) -> None:
        """Does nothing: the plan keeps nothing about documents."""

    def regrouped(self, kept: Collection[int], edges: Collection[StepEdge]) -> None:
        """Does nothing: the plan keeps nothing about groups."""

    def settle(self) -> None:
        """Does nothing: the plan keeps nothing from batch to batch."""

    def committed(self) -> None:
        """Does nothing: the plan keeps nothing from batch to batch."""

    def rolled_back(self, *, whole: bool) -> None:
        """Does nothing: the plan keeps nothing from batch to batch."""

    def close(self) -> None:
        """Does nothing: the plan holds nothing open."""

    def counters(self) -> dict[str, int]:
        return {}

    def costs(self) -> dict[int, Cost]:
        return self._costs.of_templates()
