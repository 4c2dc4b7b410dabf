"""Where the time goes with and without views (Figures 6.14 and 6.15), in the SQL of the thesis, not in our plans.

Without views: the conjunctive query of each template over R_doc, R_docW, R_bin, R_binW and R_T. With them: R_vj, R_L
and R_R are materialized first, and the conjunctive queries read those. An edge between two inner nodes of a template
has no string value, so it is read from R_bin either way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from bench.stage2_engines import Sql
from bench.stage2_queries import Registered
from join_stage.protocol import TemplateTable
from templates.catalog import TemplateRow
from templates.graph import R_BIN, ConjunctiveQuery, RelationAtom, Shape, conjunctive_query

T = TypeVar("T")

TABLES = {"R_doc": "r_doc", "R_docW": "r_doc_w", "R_bin": "r_bin", "R_binW": "r_bin_w", "R_L": "r_l", "R_R": "r_r"}

_VIEWS = {
    "r_vj": "SELECT a.docid AS docid1, a.node AS node1, b.docid AS docid2, b.node AS node2, a.strval "
    "FROM r_doc a JOIN r_doc_w b ON b.strval = a.strval",
    "r_l": "SELECT b.*, v.strval FROM (SELECT DISTINCT docid1, node1, strval FROM r_vj) v "
    "JOIN r_bin b ON b.docid = v.docid1 AND b.node2 = v.node1",
    "r_r": "SELECT b.*, v.strval FROM (SELECT DISTINCT docid2, node2, strval FROM r_vj) v "
    "JOIN r_bin_w b ON b.docid = v.docid2 AND b.node2 = v.node2",
}


@dataclass(frozen=True)
class ViewTimes:
    """Seconds of each part, by its name: `queries` alone without views; `r_vj`, `r_l`, `r_r`, `queries` with them."""

    without: dict[str, float]
    with_views: dict[str, float]
    rows: int


def split(sql: Sql, registered: Registered) -> ViewTimes:
    """Measures both ways over tables that are loaded. Raises AssertionError if they differ in a row."""
    for template, rows in registered.tables:
        sql.load(template.name, _rows(template, rows))
    without, plain = _timed(lambda: _answers(sql, registered, conjunctive_query))
    parts = {name: _timed(_materializer(sql, name, text))[0] for name, text in _VIEWS.items()}
    parts["queries"], viewed = _timed(lambda: _answers(sql, registered, view_query))
    assert plain == viewed, "the conjunctive queries gave other rows over the views"
    return ViewTimes({"queries": without}, parts, len(plain))


def view_query(shape: Shape, template: str) -> ConjunctiveQuery:
    """CQ_T over R_L and R_R: what was R_doc and the edge that ends in its node is one atom."""
    query = conjunctive_query(shape, template)
    strval = {f"node{leaf + 1}": f"strval{i}" for i, pair in enumerate(shape.joins, 1) for leaf in pair}
    body = []
    for atom in query.body:
        if atom.relation in ("R_bin", "R_binW") and atom.args[-1] in strval:
            name = "R_L" if atom.relation == "R_bin" else "R_R"
            body.append(RelationAtom(name, (*R_BIN, "strval"), (*atom.args, strval[atom.args[-1]])))
        elif not atom.relation.startswith("R_doc"):
            body.append(atom)
    return ConjunctiveQuery(query.head, tuple(body))


def _answers(sql: Sql, registered: Registered, make: Callable[[Shape, str], ConjunctiveQuery]) -> list[tuple[int, ...]]:
    """The rows of all templates, each query's (row of R_T, documents, nodes)."""
    found: list[tuple[int, ...]] = []
    for template, _ in registered.tables:
        query = make(template.shape, f"T{template.number}")
        result = sql.answer(query.sql(TABLES | {f"R_T{template.number}": template.name}))
        found += zip(*(column.to_pylist() for column in result.drop_columns("wl").columns), strict=True)
    return sorted(found)


def _rows(template: TemplateTable, rows: list[TemplateRow]) -> pa.Table:
    columns = zip(*((row.id, *row.variables, row.window) for row in rows), strict=True)
    return pa.table([pa.array(column) for column in columns], names=template.columns[:-1])


def _materializer(sql: Sql, name: str, text: str) -> Callable[[], None]:
    return lambda: sql.materialize(name, text)


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result
