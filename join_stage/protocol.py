"""What all plans share: the tables of the join state (thesis 6.3.1), batches and their matches, SQL, and the costs of
templates. The conjunctive queries of all templates form one union-all statement (thesis, Algorithm 1). A batch is
joined as the right side with the state that includes it, then as the left side with the state before it. So each pair
of documents with a new one is found exactly once, whichever arrived first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from common.bounds import INFINITE
from join_stage.store.protocol import Dated, StoreSchema, TableStore
from templates.graph import ConjunctiveQuery, RelationAtom, Shape, executable_query
from templates.witness import MANY, R_BIN, R_DOC, R_GROUP, Witnesses


@dataclass(frozen=True, slots=True)
class Orientation:
    """The tables left and right of the joins, by name suffix, and the names of R_vj and R_LR."""

    left: str
    right: str
    pairs: str
    edges: str


NEW_RIGHT = Orientation("", "_w", "r_vj", "r_lr")  # the state, batch included, on the left; the batch on the right

NEW_LEFT = Orientation("_w", "_old", "r_vj_old", "r_lr_old")  # the batch on the left; the state without it on the right


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
    (`mmqjp.answers.operators`) and are not matches of FOLLOWED BY. With `many`, nodes may have several values, and
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
    adds the second orientation. `joins` limits the joins per statement, for engines that run unions in parallel."""
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


R_BIN_FLAT = pa.schema(
    [("docid", pa.int64()), ("var1", pa.int32()), ("var2", pa.int32()), ("node1", pa.int64()), ("node2", pa.int64())]
)
"""R_bin with a row for each edge."""

R_DOCTS_STORED = pa.schema([("docid", pa.int64()), ("timestamp", pa.int64()), ("t0", pa.int64()), ("t1", pa.int64())])
"""R_docTS; `timestamp` is the thesis' name for t0."""

STATE = {"r_bin": R_BIN_FLAT, "r_doc": R_DOC, "r_docts": R_DOCTS_STORED}
"""The join state, which batches extend and eviction shortens."""

BOUND_STATE = {"bound": R_BIN, "r_doc": R_DOC, "r_docts": R_DOCTS_STORED}
"""The join state as stage 1 gives it: R_bin by groups of edges, which table `groups` has."""

POSTING_RUNS = pa.schema([("version", pa.int64()), ("manifest", pa.string())])
"""Manifests of the runs of postings, by plan `signature`; the row with the greatest version counts."""

WORD_ORDER = pa.schema([("version", pa.int64()), ("frequent", pa.list_(pa.int64()))])
"""The word order for keys of texts (`join_stage.near_candidates`): the words that come last. Empty until learnt."""

_BESIDE = {"groups": R_GROUP, "posting_runs": POSTING_RUNS, "word_order": WORD_ORDER}

_R_BIN = "SELECT docid, var1, var2, node1, node2 FROM bound JOIN groups USING (grp)"

_DATED = Dated(tuple(STATE), "r_docts", "t0")

FLAT_STORE = StoreSchema(STATE | _BESIDE, dated=_DATED)  # the tables of a store with R_bin by edges, on Spark

BOUND_STORE = StoreSchema(BOUND_STATE | _BESIDE, {"r_bin": _R_BIN})
"""The tables of a store with R_bin by groups, on DuckDB: r_bin is a view."""

NOTHING_ELSE = StoreSchema()

_KEYS = {"r_bin": ("docid", "var1", "var2", "node1", "node2"), "r_doc": ("docid", "node"), "r_docts": ("docid",)}
"""The key columns of the tables of the join state."""

DOCUMENTS = "SELECT count(*) AS n FROM r_docts"  # the number of documents in the join state

EQUAL_VALUES = """
WITH postings AS (
  SELECT b.var2 AS var, d.strval, count(*) AS n
  FROM r_bin b JOIN r_doc d ON d.docid = b.docid AND d.node = b.node2 GROUP BY b.var2, d.strval
)
SELECT l.var AS var1, r.var AS var2, sum(l.n * r.n) AS pairs
FROM postings l JOIN postings r ON l.strval = r.strval GROUP BY l.var, r.var"""
"""The number of pairs of nodes with equal values, by variables, in the join state."""


def docids_between(store: TableStore, first: int, before: int) -> set[int]:
    """The docids of documents with `first` <= begin < `before`, in microseconds."""
    rows = store.select(f"SELECT docid FROM r_docts WHERE t0 >= {first} AND t0 < {before}")
    return set(rows["docid"].to_pylist())


def has_documents_between(store: TableStore, first: int, before: int) -> bool:
    """Whether documents have `first` <= begin < `before`, in microseconds."""
    return len(store.select(f"SELECT docid FROM r_docts WHERE t0 >= {first} AND t0 < {before} LIMIT 1")) > 0


def flatten_edges(r_bin: pa.Table, r_group: pa.Table) -> pa.Table:
    """Expands rows of R_BIN to R_BIN_FLAT, in any order; R_GROUP has their groups."""
    return r_bin.join(r_group, "grp", join_type="inner").select(R_BIN_FLAT.names)


def missing(store: TableStore, table: str, rows: pa.Table) -> pa.Table:
    """The rows that a table of STATE lacks."""
    same = " AND ".join(f"f.{column} = s.{column}" for column in _KEYS[table])
    return store.select(f"SELECT f.* FROM found f LEFT JOIN {table} s ON {same} WHERE s.docid IS NULL", {"found": rows})


def latest_texts(store: TableStore, most: int) -> list[str]:
    """At most `most` word-joined texts, the latest ones, as in R_doc."""
    order = f"ORDER BY docid DESC LIMIT {most}"
    rows = store.select(f"SELECT strval FROM r_doc WHERE node >= {MANY} AND strval <> '' {order}")
    return list(rows["strval"].to_pylist())


def dated_texts(store: TableStore, first: int, before: int) -> pa.Table:
    """The word-joined texts of documents with `first` <= docid < `before`, and when these begin, in microseconds."""
    texts = f"node >= {MANY} AND strval <> '' AND docid >= {first} AND docid < {before}"
    return store.select(f"SELECT strval, t0 FROM r_doc JOIN r_docts USING (docid) WHERE {texts}")


def runs_manifest(store: TableStore) -> str | None:
    """The manifest of the runs of postings on disk, if any."""
    found: str | None = newest(store, "posting_runs")
    return found


def newest(store: TableStore, table: str) -> Any:
    """The second column of the row with the greatest version; None if there is no row."""
    rows = store.read(table, store.schema.tables[table].names).sort_by("version")
    return rows[1][-1].as_py() if len(rows) else None


def append_newest(store: TableStore, table: str, value: object) -> int:
    """Appends a row with the next version, which it returns."""
    version = store.highest(table, "version") + 1
    store.append(table, pa.table([[version], [value]], store.schema.tables[table]))
    return version


def times_rebuilt(store: TableStore) -> int:
    """The number of times that damaged runs of postings were rebuilt."""
    rebuilt: int = json.loads(runs_manifest(store) or "{}").get("rebuilt", 0)
    return rebuilt


def save_word_order(store: TableStore, frequent: list[int]) -> None:
    append_newest(store, "word_order", frequent)


def save_runs_manifest(store: TableStore, manifest: str) -> None:
    store.drop_before("posting_runs", "version", append_newest(store, "posting_runs", manifest))


def drop_runs_manifest(store: TableStore) -> None:
    """Makes the postings on disk be rebuilt when next needed."""
    if (version := store.highest("posting_runs", "version")) >= 0:
        store.drop_before("posting_runs", "version", version + 1)
