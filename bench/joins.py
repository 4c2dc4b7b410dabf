"""What the benchmarks of stage 2 share: random queries (thesis, 6.6.1), witnesses, engines, Sequential, the floor.
Queries and documents are the same for a seed. Results are compared as multisets of rows, and query by query."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bench.harness import timed
from bench.workload import SECOND
from common.arrays import Ints
from common.bounds import INFINITE
from join_stage.duckdb import DuckDBEngine
from join_stage.plans import PLANS, JoinEngine
from join_stage.protocol import RESULT, JoinScope, TemplateTable
from join_stage.store.protocol import whole_batch
from mmqjp.tables.schema import SCHEMA
from templates.catalog import Catalog, Placement, StepEdge, TemplateRow
from templates.graph import Shape, canonical_shape
from templates.witness import R_BIN, R_DOC, R_DOCTS, R_GROUP, Witnesses
from xscl.algebra.joins import Conjunct, PatternNode, Side, Term, Test

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Words = npt.NDArray[np.uint64]

ROOT = "item"


@dataclass(frozen=True)
class DocumentSchema:
    paths: tuple[tuple[str, ...], ...]

    @cached_property
    def node_of(self) -> dict[str, int]:
        tags = dict.fromkeys((ROOT, *(tag for path in self.paths for tag in path)))
        return {tag: number for number, tag in enumerate(tags)}

    def leaf(self, number: int) -> str:
        return self.paths[number][-1]

    def above(self, number: int) -> str:
        path = self.paths[number]
        return path[-2] if len(path) > 1 else ROOT


def two_level(leaves: int) -> DocumentSchema:
    return DocumentSchema(tuple((f"leaf{i}",) for i in range(leaves)))


def three_level(branching: int = 4) -> DocumentSchema:
    """The root and the nodes below it have `branching` children each."""
    return DocumentSchema(tuple((f"part{i}", f"leaf{i}x{j}") for i in range(branching) for j in range(branching)))


LeafPairs = tuple[tuple[int, int], ...]
"""A query: pairs of leaves, left and right, whose values must be equal. No leaf occurs twice on a side."""


def draw_queries(schema: DocumentSchema, number: int, most: int, zipf: float, seed: int = 1) -> list[LeafPairs]:
    """`number` queries with 1 to `most` value joins, few of them more likely with a larger `zipf`; the leaves are drawn
    uniformly. Equal queries are the same object."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, most + 1) ** zipf
    joins = rng.choice(np.arange(1, most + 1), number, p=weights / weights.sum()).tolist()
    leaves = np.tile(np.arange(len(schema.paths)), (number, 1))
    lefts, rights = (rng.permuted(leaves, axis=1).tolist() for _ in range(2))
    drawn = (
        tuple(sorted(zip(left[:k], right[:k], strict=True)))
        for k, left, right in zip(joins, lefts, rights, strict=True)
    )
    known: dict[LeafPairs, LeafPairs] = {}
    return [known.setdefault(pairs, pairs) for pairs in drawn]


def _conjunct(schema: DocumentSchema, pairs: LeafPairs, streams: tuple[str, str]) -> Conjunct:
    left, right = (
        Side(stream, _pattern(schema, [pair[side] for pair in pairs], name))
        for side, (stream, name) in enumerate(zip(streams, "vw", strict=True))
    )
    return Conjunct(left, right, tuple((Term(f"v{i}"), Term(f"w{i}")) for i in range(1, len(pairs) + 1)))


def _pattern(schema: DocumentSchema, leaves: Sequence[int], name: str) -> PatternNode:
    parts: dict[str, list[PatternNode]] = {}
    for i, leaf in enumerate(leaves, 1):
        node = PatternNode("/", Test("element", "", schema.leaf(leaf)), var=f"{name}{i}")
        parts.setdefault(schema.above(leaf), []).append(node)
    top = parts.pop(ROOT, [])
    top += [PatternNode("/", Test("element", "", part), children=tuple(below)) for part, below in parts.items()]
    return PatternNode("//", Test("element", "", ROOT), children=tuple(top), var=f"{name}0")


@dataclass(frozen=True)
class RegisteredQueries:
    """Queries in a catalog: the placement of each distinct one, the patterns for stage 1, and the rows of R_T."""

    schema: DocumentSchema
    streams: tuple[str, str]
    queries: list[LeafPairs]
    catalog: Catalog
    placements: dict[LeafPairs, Placement]
    edges: frozenset[StepEdge]
    values: frozenset[int]
    tables: list[tuple[TemplateTable, list[TemplateRow]]]

    @property
    def rows(self) -> int:
        return sum(len(rows) for _, rows in self.tables)

    @property
    def scope(self) -> JoinScope:
        return JoinScope(INFINITE, frozenset({self.streams}))

    @cached_property
    def variables(self) -> dict[tuple[str, str], int]:
        """The variable that stands for a tag in documents of a stream."""
        return {(step.stream, step.node.test.local): number for number, step in self.catalog.steps.items()}


def register_queries(schema: DocumentSchema, queries: list[LeafPairs], streams: tuple[str, str]) -> RegisteredQueries:
    catalog = Catalog()
    conjuncts = {pairs: _conjunct(schema, pairs, streams) for pairs in dict.fromkeys(queries)}
    placements: dict[LeafPairs, Placement] = {}
    edges, values = set[StepEdge](), set[int]()
    rows: dict[int, TemplateRow] = {}
    for pairs in queries:
        placements[pairs], change = catalog.add(conjuncts[pairs], INFINITE, True)
        edges.update(change.edges)
        values.update(change.values)
        rows.update((row.id, row) for row in change.rows)
    by_template: dict[int, list[TemplateRow]] = {}
    for row in rows.values():
        by_template.setdefault(row.template, []).append(row)
    tables = [(TemplateTable(number, catalog.templates[number]), of) for number, of in sorted(by_template.items())]
    return RegisteredQueries(schema, streams, queries, catalog, placements, frozenset(edges), frozenset(values), tables)


def without_mirrors(shapes: Iterable[Shape]) -> int:
    """The number of templates if one and its mirror image count as one, as the thesis seems to count."""
    return len({frozenset((canonical_shape(s).key, canonical_shape(mirrored(s)).key)) for s in shapes})


def mirrored(shape: Shape) -> Shape:
    right = len(shape.parents) - shape.left

    def moved(node: int) -> int:
        return node + right if node < shape.left else node - shape.left

    parents = tuple(None if parent is None else moved(parent) for parent in shape.parents)
    swapped = (*parents[shape.left :], *parents[: shape.left])
    return Shape(right, swapped, tuple(sorted((moved(b), moved(a)) for a, b in shape.joins)))


def schema_witnesses(
    registered: RegisteredQueries, stream: str, leaves: Sequence[pa.Array], first_docid: int, *, groups: bool = True
) -> Witnesses:
    """The witnesses of documents that arrive a second apart, as stage 1 finds them: `leaves[i]` has the string values
    of leaf i. `groups`: groups, which hold the edges between two nodes, are named, as in a stream's first batch."""
    count = len(leaves[0])
    docids = np.arange(first_docid, first_docid + count, dtype=np.int64)
    by_nodes = _edges_by_nodes(registered, stream)
    # No other stream's groups have these numbers.
    numbers = range(registered.streams.index(stream) << 16, (registered.streams.index(stream) << 16) + len(by_nodes))
    edges = [(number, *edge) for number, of in zip(numbers, by_nodes.values(), strict=True) for edge in of]
    steps, schema = registered.catalog.steps, registered.schema
    tags = {steps[v].node.test.local for v in registered.values if steps[v].stream == stream}
    valued = [i for i in range(len(leaves)) if schema.leaf(i) in tags]
    times = docids * SECOND
    return Witnesses(
        _arrow_table(
            R_BIN,
            np.tile(docids, len(by_nodes)),
            np.repeat(np.array(numbers, np.int32), count),
            *(np.repeat(np.array([nodes[side] for nodes in by_nodes], np.int64), count) for side in (0, 1)),
        ),
        _arrow_table(R_GROUP, *zip(*edges, strict=True)) if groups and edges else R_GROUP.empty_table(),
        _arrow_table(
            R_DOC,
            np.tile(docids, len(valued)),
            np.repeat(np.array([schema.node_of[schema.leaf(i)] for i in valued], np.int64), count),
            pa.concat_arrays([leaves[i] for i in valued]) if valued else [],
            pa.repeat(stream, count * len(valued)),
        ),
        _arrow_table(R_DOCTS, docids, times, times),
    )


def _edges_by_nodes(registered: RegisteredQueries, stream: str) -> dict[tuple[int, int], list[tuple[int, int]]]:
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    steps, node_of = registered.catalog.steps, registered.schema.node_of
    for edge in sorted(registered.edges):
        if steps[edge[0]].stream == stream:
            above, below = (node_of[steps[variable].node.test.local] for variable in edge)
            found.setdefault((above, below), []).append(edge)
    return found


def _arrow_table(schema: pa.Schema, *columns: object) -> pa.Table:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


CHUNK = 1 << 20
_SEEDS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)


@dataclass(frozen=True)
class RowsDigest:
    """The number of rows and two 64-bit hashes of them: equal for equal multisets, and almost never for others."""

    rows: int
    sums: tuple[int, int]


def rows_digest(result: pa.Table) -> RowsDigest:
    sums = [0, 0]
    for batch in result.to_batches(max_chunksize=CHUNK):
        for i, seed in enumerate(_SEEDS):
            sums[i] = (sums[i] + _sum(_row_hashes(batch, np.uint64(seed)))) % 2**64
    return RowsDigest(result.num_rows, (sums[0], sums[1]))


def columns_digest(columns: Sequence[Ints]) -> RowsDigest:
    sums = []
    for seed in _SEEDS:
        hashed = np.full(len(columns[0]), seed, np.uint64)
        for column in columns:
            hashed = _mixed(hashed ^ column.view(np.uint64))
        sums.append(_sum(hashed))
    return RowsDigest(len(columns[0]), (sums[0], sums[1]))


def _sum(words: _Words) -> int:
    return int(np.add.reduce(words, dtype=np.uint64))


def _row_hashes(batch: pa.RecordBatch, seed: np.uint64) -> _Words:
    hashed = np.full(batch.num_rows, seed, np.uint64)
    for name in ("qid", "docid1", "docid2"):
        column = pc.fill_null(batch.column(name), -1)
        hashed = _mixed(hashed ^ column.to_numpy(zero_copy_only=False).view(np.uint64))
    nodes = batch.column("nodes")
    lengths = pc.list_value_length(nodes).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = nodes.flatten().to_numpy(zero_copy_only=False).view(np.uint64)
    begins = np.cumsum(lengths) - lengths
    places = (np.arange(len(flat)) - np.repeat(begins, lengths)).astype(np.uint64)
    of_nodes = _mixed(_mixed(flat ^ seed) + places)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(of_nodes, dtype=np.uint64)])
    return _mixed(hashed ^ (sums[begins + lengths] - sums[begins]))


def _mixed(words: _Words) -> _Words:
    """A bijection of 64-bit words that spreads every bit (the finalizer of splitmix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def query_digests(
    result: pa.Table, registered: RegisteredQueries, sample: Iterable[LeafPairs]
) -> dict[LeafPairs, RowsDigest]:
    """The results of each query of a sample, from the shared rows: documents, and nodes of leaves pair by pair."""
    expanded: dict[LeafPairs, RowsDigest] = {}
    for pairs in dict.fromkeys(sample):
        placement = registered.placements[pairs]
        slots = [
            placement.slots[side][placement.minors[side].node_of[Term(f"{name}{i}")]]
            for i in range(1, len(pairs) + 1)
            for side, name in enumerate("vw")
        ]
        found = result.filter(pc.equal(result["qid"], placement.row))
        nodes = pc.list_flatten(found["nodes"]).to_numpy().reshape(found.num_rows, -1 if found.num_rows else len(slots))
        documents = [found[name].to_numpy() for name in ("docid1", "docid2")]
        of_leaves = [np.ascontiguousarray(nodes[:, slot]) for slot in (slots if found.num_rows else range(len(slots)))]
        expanded[pairs] = columns_digest([*documents, *of_leaves])
    return expanded


def expanded_count(result: pa.Table, registered: RegisteredQueries) -> int:
    subscribers = Counter(registered.placements[pairs].row for pairs in registered.queries)
    counts = np.zeros(max(subscribers) + 1, np.int64)
    counts[list(subscribers)] = list(subscribers.values())
    return sum(int(counts[b.column("qid").to_numpy()].sum()) for b in result.to_batches(max_chunksize=CHUNK))


def check_equal(digests: Mapping[str, RowsDigest]) -> None:
    first = next(iter(digests))
    for name, found in digests.items():
        assert found == digests[first], f"{name} gave other rows than {first}"


def check_sample(expanded: Mapping[LeafPairs, RowsDigest], sequential: Mapping[LeafPairs, RowsDigest]) -> None:
    assert expanded.keys() == sequential.keys()
    for pairs, alone in sequential.items():
        assert expanded[pairs] == alone, f"the query {pairs} gets other rows than it does alone"


NOTHING = JoinScope(INFINITE, frozenset())  # the scope of documents that only become state: no streams are joined


def open_engine(engine: str, plan: str, directory: Path | None = None) -> JoinEngine:
    if engine == "duckdb":
        return DuckDBEngine(directory, plan, schema=SCHEMA)
    from join_stage.spark.engine import SparkEngine
    from join_stage.store.spark.session import spark_session

    return SparkEngine(spark_session(), directory, plan, schema=SCHEMA)


@contextmanager
def opened_engine(engine: str, plan: str, registered: RegisteredQueries | None = None) -> Iterator[JoinEngine]:
    with closing(open_engine(engine, plan)) as store:
        if registered:
            put_rows(store, registered)
        yield store


def put_rows(store: JoinEngine, registered: RegisteredQueries) -> None:
    for template, rows in registered.tables:
        store.plan.put_rows(template, rows)


def become_state(store: JoinEngine, batches: Iterable[tuple[int, Witnesses]]) -> None:
    """Makes documents state, without joining them: each batch with the id of its first document."""
    for first, batch in batches:
        with whole_batch(store):
            store.join(batch, first, NOTHING)


@dataclass(frozen=True)
class Joined:
    """The cost and rows of a join: `seconds` until all rows were listed, `call` until it returned; `table` if kept."""

    seconds: float
    call: float
    rows: int
    table: pa.Table


def timed_join(store: JoinEngine, batch: Witnesses, first: int, among: JoinScope, keep: bool = False) -> Joined:
    kept: list[pa.RecordBatch] = []
    begin = time.perf_counter()
    result = store.join(batch, first, among)
    called = time.perf_counter() - begin
    for rows in result.to_batches(max_chunksize=CHUNK):
        kept += [rows] * keep
    return Joined(time.perf_counter() - begin, called, result.num_rows, pa.Table.from_batches(kept, RESULT))


def plans_of(engine: str, wanted: str | None, *, quick: bool) -> Sequence[str]:
    """The plans to measure: the chosen one, or all. With `quick`, the slowest is left out."""
    if wanted:
        return [wanted]
    return [plan for plan in PLANS if not (quick and engine == "spark" and plan == "basic")]


class DuckDBSql:
    def __init__(self) -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET preserve_insertion_order = false")

    def load(self, name: str, table: pa.Table) -> None:
        self._connection.register("loaded", table)
        self.materialize(name, "SELECT * FROM loaded")
        self._connection.unregister("loaded")

    def materialize(self, name: str, statement: str) -> None:
        """Keeps the rows of a statement as a table."""
        self._connection.execute(f"CREATE OR REPLACE TABLE {name} AS {statement}")

    def answer(self, statement: str) -> pa.Table:
        return self._connection.sql(statement).to_arrow_table()

    def prepare(self, name: str, statement: str) -> None:
        self._connection.execute(f"PREPARE {name} AS {statement}")

    def close(self) -> None:
        self._connection.close()


class SparkSql:
    def __init__(self) -> None:
        from join_stage.store.spark.session import spark_session

        self._session = spark_session().newSession()
        self._session.conf.set("spark.sql.execution.arrow.localRelationThreshold", "256m")
        self._cached: dict[str, DataFrame] = {}

    def load(self, name: str, table: pa.Table) -> None:
        self._keep(name, self._session.createDataFrame(table))

    def materialize(self, name: str, statement: str) -> None:
        self._keep(name, self._session.sql(statement))

    def _keep(self, name: str, frame: DataFrame) -> None:
        frame.persist().count()  # which computes it
        frame.createOrReplaceTempView(name)
        if name in self._cached:
            self._cached[name].unpersist()
        self._cached[name] = frame

    def answer(self, statement: str) -> pa.Table:
        return self._session.sql(statement).toArrow()

    def close(self) -> None:
        for frame in self._cached.values():
            frame.unpersist()


Sql = DuckDBSql | SparkSql
SqlSide = tuple[Witnesses, pa.Table]


@contextmanager
def loaded_sql(engine: str, left: SqlSide, right: SqlSide) -> Iterator[Sql]:
    """A database of both sides, as witnesses and as columns (docid, leaves). The right side's tables end in _w."""
    with closing[Sql](DuckDBSql() if engine == "duckdb" else SparkSql()) as sql:
        for suffix, (witnesses, columns) in (("", left), ("_w", right)):
            sql.load("grouped", witnesses.r_bin)
            sql.load("edges", witnesses.r_group)
            sql.load(f"r_doc{suffix}", witnesses.r_doc.drop_columns("stream"))
            sql.load(f"items{suffix}", columns)
            sql.materialize(
                f"r_bin{suffix}",
                "SELECT g.docid, e.var1, e.var2, g.node1, g.node2 FROM grouped g JOIN edges e USING (grp)",
            )
            sql.materialize(
                f"leaves{suffix}",
                f"SELECT b.*, d.strval FROM r_bin{suffix} b "
                f"JOIN r_doc{suffix} d ON d.docid = b.docid AND d.node = b.node2",
            )
        yield sql


LAYOUTS = ("relations", "values", "columns")
"""R_bin and R_doc; R_bin with string values of lower nodes; or a column for each leaf, without repeated elements."""
PILOT = {"duckdb": 20, "spark": 5}  # the number of queries that each form is tried with
PATIENCE = 2.0  # A form that takes longer for one query, in seconds, is not tried further


@dataclass(frozen=True)
class Sequential:
    """The seconds that all queries would take one after the other, by form, and the results of the sample. Each is a
    statement with its constants, made without code of the engine, so that it also checks it. A form is a layout of the
    data and, on DuckDB, whether statements were prepared. `extrapolated`: the sample does not have all queries."""

    seconds: Mapping[str, float]
    fastest: str
    rows: Mapping[LeafPairs, RowsDigest]
    extrapolated: bool

    @property
    def best(self) -> float:
        return self.seconds[self.fastest]

    @property
    def over_relations(self) -> float:
        """The seconds of the fastest form over the thesis' relations, which all documents fit into."""
        return min(taken for form, taken in self.seconds.items() if not form.startswith("columns"))

    def by_form(self) -> dict[str, object]:
        return {f"sequential {form}": taken for form, taken in self.seconds.items()}


def measure_sequential(
    engine: str, registered: RegisteredQueries, sample: Sequence[LeafPairs], left: SqlSide, right: SqlSide
) -> Sequential:
    """Runs a sample in the form that is fastest with its first queries. The sides are those of `loaded_sql`."""
    pilots = sample[: PILOT[engine]]
    with loaded_sql(engine, left, right) as sql:
        ways = ("", ", prepared") if engine == "duckdb" else ("",)
        forms = [f"{layout}{way}" for layout in LAYOUTS for way in ways]
        warm = {form: _statement_seconds(sql, registered, sample[:1], form)[0] for form in forms}
        forms = [form for form in forms if warm[form] < max(PATIENCE, 2 * min(warm.values()))]
        pilot = {form: _statement_seconds(sql, registered, pilots, form)[0] for form in forms}
        fastest = min(pilot, key=pilot.__getitem__)
        seconds, rows = _statement_seconds(sql, registered, sample, fastest)
    number = len(registered.queries)
    scaled = {form: taken / len(pilots) * number for form, taken in pilot.items()}
    scaled[fastest] = seconds / len(sample) * number
    return Sequential(scaled, fastest, rows, len(sample) < number)


def _statement_seconds(
    sql: Sql, registered: RegisteredQueries, sample: Sequence[LeafPairs], form: str
) -> tuple[float, dict[LeafPairs, RowsDigest]]:
    layout, _, prepared = form.partition(", ")
    seconds, rows = 0.0, {}
    for i, pairs in enumerate(sample):
        text = sequential_statement(registered, pairs, layout)
        if prepared:
            assert isinstance(sql, DuckDBSql)
            sql.prepare(f"prepared{i}", text)
            text = f"EXECUTE prepared{i}"
        begin = time.perf_counter()
        result = sql.answer(text)
        seconds += time.perf_counter() - begin
        if pairs not in rows:
            rows[pairs] = columns_digest([column.to_numpy().astype(np.int64) for column in result.columns])
    return seconds, rows


def sequential_statement(registered: RegisteredQueries, pairs: LeafPairs, layout: str) -> str:
    if layout == "columns":
        leaf, node_of = registered.schema.leaf, registered.schema.node_of
        equal = "".join(f" AND a.{leaf(left)} = b.{leaf(right)}" for left, right in pairs)
        of_pairs = enumerate(node_of[leaf(side)] for pair in pairs for side in pair)
        numbers = [f"{node} AS n{i}" for i, node in of_pairs]
        selected = f"SELECT a.docid AS docid1, b.docid AS docid2, {', '.join(numbers)}"
        return f"{selected} FROM items a JOIN items_w b ON a.docid < b.docid{equal}"
    tables: list[str] = []
    where = ["l1.docid < r1.docid"]
    for side in (0, 1):
        part = _SideStatement(registered, side, [pair[side] for pair in pairs], layout)
        tables += part.tables
        where += part.where
    value = "" if layout == "values" else "d"
    where += [f"{value}l{i}.strval = {value}r{i}.strval" for i in range(1, len(pairs) + 1)]
    nodes = [f"{name}{i}.node2 AS {name}n{i}" for i in range(1, len(pairs) + 1) for name in "lr"]
    return (
        f"SELECT l1.docid AS docid1, r1.docid AS docid2, {', '.join(nodes)} "
        f"FROM {', '.join(tables)} WHERE {' AND '.join(where)}"
    )


class _SideStatement:
    def __init__(self, registered: RegisteredQueries, side: int, leaves: Sequence[int], layout: str) -> None:
        self._registered, self._stream, schema = registered, registered.streams[side], registered.schema
        self._place: dict[str, str] = {}
        self.tables, self.where = list[str](), list[str]()
        name, suffix = ("l", "r")[side], ("", "_w")[side]
        below = Counter(schema.above(leaf) for leaf in leaves)
        for i, leaf in enumerate(leaves, 1):
            part = schema.above(leaf)
            common = part if len(below) == 1 or below[part] > 1 else ROOT
            top = schema.leaf(leaf) if len(leaves) == 1 else common
            alias, table = f"{name}{i}", "leaves" if layout == "values" else "r_bin"
            self._edge(alias, f"{table}{suffix}", top, schema.leaf(leaf))
            if layout == "relations":
                self.tables.append(f"r_doc{suffix} d{alias}")
                self.where += [f"d{alias}.docid = {alias}.docid", f"d{alias}.node = {alias}.node2"]
        if len(below) > 1:
            for part, count in below.items():
                if count > 1 and part != ROOT:
                    self._edge(f"{name}{part}", f"r_bin{suffix}", ROOT, part)

    def _edge(self, alias: str, table: str, above: str, tag: str) -> None:
        self.tables.append(f"{table} {alias}")
        for column, name in (("var1", above), ("var2", tag)):
            self.where.append(f"{alias}.{column} = {self._registered.variables[self._stream, name]}")
        bound = {"docid": "docid", above: "node1", tag: "node2"}
        for what, column in bound.items():
            if what in self._place:
                self.where.append(f"{alias}.{column} = {self._place[what]}")
            else:
                self._place[what] = f"{alias}.{column}"


LEAF_BITS = 8
_MEMORY = Path("/dev/shm")

Postings = tuple[Ints, Ints]  # interned values, and the postings that have them: document and leaf as one integer


def postings(first_docid: int, matrix: npt.NDArray[np.integer]) -> Postings:
    documents, leaves = matrix.shape
    docids = np.arange(first_docid, first_docid + documents, dtype=np.int64)
    return matrix.astype(np.int64).ravel(), (docids[:, None] << LEAF_BITS | np.arange(leaves)).ravel()


class JoinFloor(AbstractContextManager["JoinFloor"]):
    """The floor of stage 2: what joining a batch by value must cost on this machine.

    Strings are interned beforehand, and postings kept in runs sorted by value. A batch is sorted, looked up in each run
    and in itself, and the pairs of postings with equal values, the older document's left, are written to memory-backed
    files. The floor decides neither which query they are for nor which belong together.
    """

    def __init__(self) -> None:
        self._runs: list[Postings] = []
        self._directory = tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None, prefix="mmqjp-floor-")
        self.files = tuple(Path(self._directory.name) / name for name in ("left", "right"))

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    def keep(self, values: Ints, arrived: Ints) -> None:
        order = np.argsort(values, kind="stable")
        self._add(values[order], arrived[order])

    def join(self, values: Ints, arrived: Ints) -> int:
        """Writes the pairs of a batch with the state and within itself, which becomes state; returns their number."""
        order = np.argsort(values, kind="stable")
        values, arrived = values[order], arrived[order]
        count = 0
        with ExitStack() as stack:
            left_file, right_file = (stack.enter_context(file.open("wb")) for file in self.files)
            within = _equal_pairs(values, arrived, values, arrived)
            older = within[0] >> LEAF_BITS < within[1] >> LEAF_BITS
            runs = (_equal_pairs(of_run, in_run, values, arrived) for of_run, in_run in self._runs)
            for left, right in chain(runs, [(within[0][older], within[1][older])]):
                left.tofile(left_file)
                right.tofile(right_file)
                count += len(left)
        self._add(values, arrived)
        return count

    def _add(self, values: Ints, arrived: Ints) -> None:
        """Keeps a sorted run; as long as the last run is not much shorter than the one before, they become one."""
        self._runs.append((values, arrived))
        while len(self._runs) > 1 and 2 * len(self._runs[-1][0]) > len(self._runs[-2][0]):
            (values1, arrived1), (values2, arrived2) = self._runs[-2:]
            merged = np.concatenate([values1, values2])
            order = np.argsort(merged, kind="stable")
            self._runs[-2:] = [(merged[order], np.concatenate([arrived1, arrived2])[order])]


def _equal_pairs(of_left: Ints, left: Ints, of_right: Ints, right: Ints) -> tuple[Ints, Ints]:
    """The pairs of postings with equal values: the left ones sorted by `of_left`."""
    low, high = (np.searchsorted(of_left, of_right, side) for side in ("left", "right"))
    counts = high - low
    begins = np.repeat(low - np.cumsum(counts) + counts, counts)
    return left[begins + np.arange(counts.sum())], np.repeat(right, counts)


def floor_seconds(state: Iterable[Postings], warm: Postings | None, measured: Postings) -> tuple[float, int]:
    with JoinFloor() as floor:
        for kept in state:
            floor.keep(*kept)
        if warm is not None:
            floor.join(*warm)
        return timed(lambda: floor.join(*measured))
