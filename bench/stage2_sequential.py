"""Sequential: one query at a time, each in its own statement with its constants, in the forms that may be fastest.

The statements are made from the queries alone, without code of the engine, so they also check it. A form is a
layout of the data and, on DuckDB, whether each statement was prepared before it is timed:

- `relations`: R_bin and R_doc as they are;
- `values`: R_bin with the string values of its lower nodes;
- `columns`: a column for each leaf, which only documents without repeated elements fit into.

Documents lie in tables whose names end in `_w` for the right side.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bench.stage2_engines import DuckDBSql, Sql, open_sql
from bench.stage2_queries import ROOT, Pairs, Registered, Schema
from bench.stage2_rows import RowsDigest, of_columns
from templates.witness import Witnesses

LAYOUTS = ("relations", "values", "columns")
PILOT = {"duckdb": 20, "spark": 5}
"""The number of queries that each form is tried with."""

PATIENCE = 2.0
"""A form that takes longer for one query, in seconds, is not tried further."""


@dataclass(frozen=True)
class Sequential:
    """The seconds that all queries would take one after the other, by form, and the results of the sample.

    `extrapolated` says that the sample does not have all queries."""

    seconds: Mapping[str, float]
    fastest: str
    rows: Mapping[Pairs, RowsDigest]
    extrapolated: bool

    @property
    def best(self) -> float:
        return self.seconds[self.fastest]

    @property
    def over_relations(self) -> float:
        """The seconds of the fastest form over the thesis' relations, which all documents fit into."""
        return min(taken for form, taken in self.seconds.items() if not form.startswith("columns"))


def measure(
    engine: str,
    registered: Registered,
    sample: Sequence[Pairs],
    left: tuple[Witnesses, pa.Table],
    right: tuple[Witnesses, pa.Table],
) -> Sequential:
    """Runs a sample of the queries, in the form that is fastest with the first of them; the other forms run these only.

    Each side comes as witnesses and as `columns` (docid and a column for each leaf).
    """
    sql = open_sql(engine)
    pilots = sample[: PILOT[engine]]
    try:
        for suffix, (witnesses, columns) in (("", left), ("_w", right)):
            load(sql, suffix, witnesses, columns)
        ways = ("", ", prepared") if engine == "duckdb" else ("",)
        forms = [f"{layout}{way}" for layout in LAYOUTS for way in ways]
        warm = {form: _seconds(sql, registered, sample[:1], form)[0] for form in forms}
        forms = [form for form in forms if warm[form] < max(PATIENCE, 2 * min(warm.values()))]
        pilot = {form: _seconds(sql, registered, pilots, form)[0] for form in forms}
        fastest = min(pilot, key=pilot.__getitem__)
        seconds, rows = _seconds(sql, registered, sample, fastest)
    finally:
        sql.close()
    number = len(registered.queries)
    scaled = {form: taken / len(pilots) * number for form, taken in pilot.items()}
    scaled[fastest] = seconds / len(sample) * number
    return Sequential(scaled, fastest, rows, len(sample) < number)


def load(sql: Sql, suffix: str, witnesses: Witnesses, columns: pa.Table) -> None:
    """Fills the tables of one side."""
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
        f"SELECT b.*, d.strval FROM r_bin{suffix} b JOIN r_doc{suffix} d ON d.docid = b.docid AND d.node = b.node2",
    )


def _seconds(
    sql: Sql, registered: Registered, sample: Sequence[Pairs], form: str
) -> tuple[float, dict[Pairs, RowsDigest]]:
    layout, _, prepared = form.partition(", ")
    seconds, rows = 0.0, {}
    for i, pairs in enumerate(sample):
        text = statement(registered, pairs, layout)
        if prepared:
            assert isinstance(sql, DuckDBSql)
            sql.prepare(f"prepared{i}", text)
            text = f"EXECUTE prepared{i}"
        begin = time.perf_counter()
        result = sql.answer(text)
        seconds += time.perf_counter() - begin
        if pairs not in rows:
            rows[pairs] = of_columns([column.to_numpy().astype(np.int64) for column in result.columns])
    return seconds, rows


# ------------------------------------------------------------ the statements


def statement(registered: Registered, pairs: Pairs, layout: str) -> str:
    """A query in SQL: its documents, then the nodes of its leaves, pair by pair. The left document is the older."""
    if layout == "columns":
        return _over_columns(registered.schema, pairs)
    tables: list[str] = []
    where = ["l1.docid < r1.docid"]
    for side, (name, suffix) in enumerate((("l", ""), ("r", "_w"))):
        made = _SideStatement(registered, registered.streams[side], name, suffix, layout)
        made.add([pair[side] for pair in pairs])
        tables += made.tables
        where += made.where
    value = "" if layout == "values" else "d"
    where += [f"{value}l{i}.strval = {value}r{i}.strval" for i in range(1, len(pairs) + 1)]
    nodes = [f"{name}{i}.node2 AS {name}n{i}" for i in range(1, len(pairs) + 1) for name in "lr"]
    return (
        f"SELECT l1.docid AS docid1, r1.docid AS docid2, {', '.join(nodes)} "
        f"FROM {', '.join(tables)} WHERE {' AND '.join(where)}"
    )


def _over_columns(schema: Schema, pairs: Pairs) -> str:
    equal = [f"a.{schema.leaf(left)} = b.{schema.leaf(right)}" for left, right in pairs]
    numbers = [schema.node_of[schema.leaf(leaf)] for pair in pairs for leaf in pair]
    nodes = [f"{number} AS n{i}" for i, number in enumerate(numbers)]
    return (
        f"SELECT a.docid AS docid1, b.docid AS docid2, {', '.join(nodes)} FROM items a JOIN items_w b "
        f"ON {' AND '.join(equal)} AND a.docid < b.docid"
    )


class _SideStatement:
    """Tables and conditions for one side of a query."""

    def __init__(self, registered: Registered, stream: str, name: str, suffix: str, layout: str) -> None:
        self._registered, self._stream = registered, stream
        self._name, self._suffix, self._layout = name, suffix, layout
        self._place: dict[str, str] = {}
        self.tables: list[str] = []
        self.where: list[str] = []

    def add(self, leaves: Sequence[int]) -> None:
        """The leaves below their least common ancestor, and what lies between."""
        schema = self._registered.schema
        below = Counter(schema.above(leaf) for leaf in leaves)
        for i, leaf in enumerate(leaves, 1):
            part = schema.above(leaf)
            if len(leaves) == 1:
                top = schema.leaf(leaf)
            elif len(below) == 1 or below[part] > 1:
                top = part
            else:
                top = ROOT
            self._leaf(i, top, schema.leaf(leaf))
        if len(below) > 1:
            for part, count in below.items():
                if count > 1 and part != ROOT:
                    self._edge(f"{self._name}{part}", f"r_bin{self._suffix}", ROOT, part)

    def _leaf(self, i: int, above: str, tag: str) -> None:
        alias = f"{self._name}{i}"
        self._edge(alias, f"{'leaves' if self._layout == 'values' else 'r_bin'}{self._suffix}", above, tag)
        if self._layout == "relations":
            self.tables.append(f"r_doc{self._suffix} d{alias}")
            self.where += [f"d{alias}.docid = {alias}.docid", f"d{alias}.node = {alias}.node2"]

    def _edge(self, alias: str, table: str, above: str, tag: str) -> None:
        """One row of R_bin, with the constants of its variables; nodes and documents are those bound before."""
        variable = self._registered.variable
        self.tables.append(f"{table} {alias}")
        self.where += [
            f"{alias}.var1 = {variable(self._stream, above)}",
            f"{alias}.var2 = {variable(self._stream, tag)}",
        ]
        bound = {"docid": "docid", above: "node1", tag: "node2"}
        for what, column in bound.items():
            if what in self._place:
                self.where.append(f"{alias}.{column} = {self._place[what]}")
            else:
                self._place[what] = f"{alias}.{column}"
