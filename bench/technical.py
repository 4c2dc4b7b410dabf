"""The technical benchmark of the thesis (6.6.1, 6.6.2): many queries over two fixed documents, Figures 6.8 to 6.15.

Each plan joins one document, which is the state, with the other, and lists (pair of documents, row of R_T); to expand
these to queries has its own column. Figures 6.14 and 6.15 tell what views save, in the thesis' SQL, not our plans.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

import numpy as np
import pyarrow as pa

from bench import harness, joins
from bench.harness import Line, columns
from bench.joins import opened_engine, timed_join
from bench.plots import Panel, PlotSeries, by_plan, draw_panels, grouped, new_figure, save_figure, stack_bars
from join_stage.plans import JoinEngine
from templates.graph import R_BIN, ConjunctiveQuery, RelationAtom, Shape, conjunctive_query

STREAMS = ("S", "T")
QUERIES, QUICK_QUERIES = [10, 100, 1000, 10_000, 100_000], [10, 1000, 100_000]
ROUNDS = {"duckdb": 9, "spark": 3}
SAMPLE = 100
SPLIT_QUERIES = 100_000


@dataclass(frozen=True)
class TechnicalCase:
    """`max_joins` is K of the thesis; on the two-level schema it is N, the number of `leaves`."""

    schema: str
    queries: int
    leaves: int
    max_joins: int
    zipf: float = 0.8

    def shape(self) -> joins.DocumentSchema:
        return joins.two_level(self.leaves) if self.schema == "two-level" else joins.three_level()


TWO_LEVEL, THREE_LEVEL = TechnicalCase("two-level", 1000, 6, 6), TechnicalCase("three-level", 1000, 16, 4)
"""The thesis' defaults."""


def technical_cases(numbers: Sequence[int], *, sweeps: bool) -> list[TechnicalCase]:
    chosen = [replace(base, queries=number) for base in (TWO_LEVEL, THREE_LEVEL) for number in numbers]
    if sweeps:
        chosen += [replace(TWO_LEVEL, leaves=n, max_joins=n) for n in (4, 6, 8, 10, 12)]
        chosen += [replace(THREE_LEVEL, max_joins=k) for k in (2, 3, 4, 5)]
        zipfs = (0.0, 0.4, 0.8, 1.2, 1.6)
        chosen += [replace(base, zipf=zipf) for base in (TWO_LEVEL, THREE_LEVEL) for zipf in zipfs]
    return list(dict.fromkeys(chosen))


def thesis_templates(case: TechnicalCase) -> int | None:
    if case.zipf != 0.8:
        return None
    if case.schema == "two-level":
        return case.leaves if case.queries >= 1000 else None
    known = {(10, 4): 6, (100_000, 4): 22, (1000, 2): 2, (1000, 3): 6, (1000, 4): 20, (1000, 5): 39}
    return known.get((case.queries, case.max_joins))


@dataclass(frozen=True)
class TwoDocuments:
    registered: joins.RegisteredQueries
    left: joins.SqlSide
    right: joins.SqlSide


def technical_workload(case: TechnicalCase) -> TwoDocuments:
    schema = case.shape()
    queries = joins.draw_queries(schema, case.queries, case.max_joins, case.zipf)
    registered = joins.register_queries(schema, queries, STREAMS)
    values = [pa.array([f"value {i}"]) for i in range(len(schema.paths))]
    names = ["docid", *(schema.leaf(i) for i in range(len(schema.paths)))]
    left, right = (
        (joins.schema_witnesses(registered, stream, values, docid), pa.table([pa.array([docid]), *values], names=names))
        for docid, stream in enumerate(STREAMS)
    )
    return TwoDocuments(registered, left, right)


def measure_technical(
    case: TechnicalCase, engine: str, plans: Sequence[str], rounds: int, sample: int = SAMPLE
) -> list[Line]:
    work = technical_workload(case)
    registered = work.registered
    chosen = Random(3).sample(registered.queries, min(sample, len(registered.queries)))
    sequential = joins.measure_sequential(engine, registered, chosen, work.left, work.right)
    joined: dict[str, joins.Joined] = {}
    calls: dict[str, list[float]] = {plan: [] for plan in plans}
    with ExitStack() as stack:
        ways: dict[str, Callable[[], float]] = {}
        for plan in plans:
            store = stack.enter_context(opened_engine(engine, plan, registered))
            joins.become_state(store, [(0, work.left[0])])
            joined[plan] = _join(store, work, [], True)  # also warms it up
            ways[plan] = lambda store=store, plan=plan: _join(store, work, calls[plan]).seconds  # type: ignore[misc]
        joins.check_equal({plan: joins.rows_digest(one.table) for plan, one in joined.items()})
        joins.check_sample(joins.query_digests(joined[plans[0]].table, registered, chosen), sequential.rows)
        seconds = harness.medians(ways, rounds)
    shapes = registered.catalog.templates
    shared: dict[str, object] = {
        "templates": len(shapes),
        "without_mirrors": joins.without_mirrors(shapes),
        "thesis_templates": thesis_templates(case),
        "distinct": registered.rows,
    }
    line = partial(Line, "technical", asdict(case), engine, extrapolated=sequential.extrapolated)
    lines = []
    for plan in plans:
        expansion, (places, _) = harness.timed(partial(expand, joined[plan].table, registered))
        details = {
            **shared,
            "call": median(calls[plan]),
            "expanded": len(places),
            "expansion": expansion,
            "baseline_form": sequential.fastest,
            "speedup_relations": harness.speedup(sequential.over_relations, seconds[plan]),
        }
        faster = harness.speedup(sequential.best, seconds[plan])
        lines.append(line(plan, seconds[plan], joined[plan].rows, "sequential", faster, details=details))
    count = joins.expanded_count(joined[plans[0]].table, registered)
    details = {**shared, **sequential.by_form(), "expanded": count, "baseline_form": sequential.fastest}
    return [*lines, line("sequential", sequential.best, count, details=details)]


def _join(store: JoinEngine, work: TwoDocuments, calls: list[float], keep: bool = False) -> joins.Joined:
    """Joins the second document with the first, and forgets it again."""
    store.begin()
    joined = timed_join(store, work.right[0], 1, work.registered.scope, keep)
    store.rollback()
    calls.append(joined.call)
    return joined


def expand(result: pa.Table, registered: joins.RegisteredQueries) -> tuple[np.ndarray, np.ndarray]:
    """The place of a row in the result, and a query, for each query of the row: what the subscribers get."""
    rows = np.array([registered.placements[pairs].row for pairs in registered.queries])
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    qids = result["qid"].to_numpy()
    low, high = (np.searchsorted(sorted_rows, qids, side) for side in ("left", "right"))
    counts = high - low
    starts = np.repeat(low - np.cumsum(counts) + counts, counts)
    return np.repeat(np.arange(len(qids)), counts), order[starts + np.arange(counts.sum())]


TECHNICAL_COLUMNS = columns(
    "schema | queries | N = leaves | K = max_joins | zipf | templates | without mirrors = without_mirrors | "
    "thesis = thesis_templates | rows of R_T = distinct | plan | ms | rows | expansion, ms = expansion * 1e3 | "
    "times faster = marked | over relations = speedup_relations | sequential = baseline_form",
    ms=lambda line: "~" * (line.plan == "sequential" and line.extrapolated) + harness.format_figure(line.seconds * 1e3),
)


TABLES = {"R_doc": "r_doc", "R_docW": "r_doc_w", "R_bin": "r_bin", "R_binW": "r_bin_w", "R_L": "r_l", "R_R": "r_r"}

_VIEWS = {
    "r_vj": "SELECT a.docid AS docid1, a.node AS node1, b.docid AS docid2, b.node AS node2, a.strval "
    "FROM r_doc a JOIN r_doc_w b ON b.strval = a.strval",
    "r_l": "SELECT b.*, v.strval FROM (SELECT DISTINCT docid1, node1, strval FROM r_vj) v "
    "JOIN r_bin b ON b.docid = v.docid1 AND b.node2 = v.node1",
    "r_r": "SELECT b.*, v.strval FROM (SELECT DISTINCT docid2, node2, strval FROM r_vj) v "
    "JOIN r_bin_w b ON b.docid = v.docid2 AND b.node2 = v.node2",
}


PlanSeconds = dict[str, float]
"""Seconds of each part, by its name: `queries` alone without views; `r_vj`, `r_l`, `r_r`, `queries` with them."""


def split_times(sql: joins.Sql, registered: joins.RegisteredQueries) -> tuple[PlanSeconds, PlanSeconds, int]:
    """Runs the conjunctive query of each template over R_doc, R_docW, R_bin, R_binW and R_T; then over R_L and R_R,
    materialized with R_vj, where edges have string values. Raises AssertionError if the two ways differ in a row."""
    for template, rows in registered.tables:
        constants = zip(*((row.id, *row.variables, row.window) for row in rows), strict=True)
        sql.load(template.name, pa.table([pa.array(column) for column in constants], names=template.columns[:-1]))
    without, plain = harness.timed(lambda: _answers(sql, registered, conjunctive_query))
    parts = {name: harness.timed(partial(sql.materialize, name, text))[0] for name, text in _VIEWS.items()}
    parts["queries"], viewed = harness.timed(lambda: _answers(sql, registered, view_query))
    assert plain == viewed, "the conjunctive queries gave other rows over the views"
    return {"queries": without}, parts, len(plain)


def view_query(shape: Shape, template: str) -> ConjunctiveQuery:
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


def _answers(
    sql: joins.Sql, registered: joins.RegisteredQueries, make: Callable[[Shape, str], ConjunctiveQuery]
) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for template, _ in registered.tables:
        query = make(template.shape, f"T{template.number}")
        result = sql.answer(query.sql(TABLES | {f"R_T{template.number}": template.name}))
        found += zip(*(column.to_pylist() for column in result.drop_columns("wl").columns), strict=True)
    return sorted(found)


def measure_split(case: TechnicalCase, engine: str, rounds: int) -> list[Line]:
    work = technical_workload(case)
    with joins.loaded_sql(engine, work.left, work.right) as sql:
        splits = [split_times(sql, work.registered) for _ in range(rounds)]
    lines = []
    for place, plan in enumerate(("without views", "with views")):
        parts = [(one[0], one[1])[place] for one in splits]
        of = {name: median(part[name] for part in parts) for name in parts[0]}
        lines.append(Line("technical-split", asdict(case), engine, plan, sum(of.values()), splits[0][2], details=of))
    return lines


_PARTS = ("r_vj", "r_l", "r_r", "queries")
SPLIT_COLUMNS = columns(
    "schema | queries | = plan | r_vj, ms = r_vj * 1e3 | r_l, ms = r_l * 1e3 | r_r, ms = r_r * 1e3 | "
    "queries, ms = parts | all, ms = seconds * 1e3",
    parts=lambda line: float(str(line.details["queries"])) * 1e3,
)


STYLES = {
    "sequential": ("dimgrey", "s:"),
    "floor": ("black", "x--"),
    "basic": ("tab:blue", "o-"),
    "views": ("tab:orange", "^-"),
    "signature": ("tab:green", "D-"),
}
"""The colour and the style of each plan, also in other benchmarks."""

_FIGURES = (
    ("6.8", "two-level", "queries", "queries", True),
    ("6.9", "two-level", "leaves", "leaves, N", False),
    ("6.10", "two-level", "zipf", "Zipf parameter", False),
    ("6.11", "three-level", "queries", "queries", True),
    ("6.12", "three-level", "max_joins", "most value joins a query, K", False),
    ("6.13", "three-level", "zipf", "Zipf parameter", False),
)


def draw_technical(lines: Sequence[Line], prefix: Path) -> None:
    """Draws Figures 6.8 to 6.13, as far as they were measured: at least the points of Figures 6.8 and 6.11."""
    panels = []
    for number, schema, key, label, log in _FIGURES:
        of = _of_figure(lines, schema, key)
        panels.append(Panel(key, label, "ms", plan_series(of), "xy" if log else "y", f"{number}: {schema}"))
    drawn = varied_panels(panels) or [panel for panel in panels if panel.curves and panel.x == "queries"]
    size = 4 * min(3, max(2, len(drawn))), 3.4 * (1 + (len(drawn) > 3))
    draw_panels(lines, prefix, drawn, size, across=3)


def plan_series(lines: Sequence[Line], y: str | Callable[[Line], float] = "seconds * 1e3") -> list[PlotSeries]:
    return [PlotSeries(plan, y, STYLES[plan][1], STYLES[plan][0], some) for plan, some in by_plan(lines).items()]


def varied_panels(panels: Sequence[Panel]) -> list[Panel]:
    """The panels of which curves have more than one value of x."""
    return [p for p in panels if len({line.case[p.x] for curve in p.curves for line in curve.lines or ()}) > 1]


def _of_figure(lines: Iterable[Line], schema: str, key: str) -> list[Line]:
    base = asdict(TWO_LEVEL if schema == "two-level" else THREE_LEVEL)
    fixed = base.keys() - {key} - ({"max_joins"} if key == "leaves" else set())
    return [line for line in lines if all(line.case[name] == base[name] for name in fixed)]


def draw_split(lines: Sequence[Line], prefix: Path) -> None:
    schemas = grouped(lines, lambda line: line.case["schema"])
    figure = new_figure(4 * len(schemas), 3.6)
    below = figure.subplots(1, len(schemas), squeeze=False).flat
    for axes, (schema, of), number in zip(below, schemas.items(), ("6.14", "6.15"), strict=False):
        stack_bars(axes.bar, "bottom", [str(line.plan) for line in of], of, _PARTS, 1e3, width=0.5)
        axes.set(title=f"{number}: {schema}", ylabel="ms")
    save_figure(figure, prefix)


def bench_technical() -> None:
    parser = harness.engine_parser("technical", "joins two fixed documents for many queries, as the thesis (6.6.1)")
    options = harness.parse_options(parser)
    numbers = options.queries or (QUICK_QUERIES if options.quick else QUERIES)
    cases = technical_cases(numbers, sweeps=not options.quick and not options.queries)
    plans = joins.plans_of(options.engine, options.plan, quick=options.quick)
    rounds = ROUNDS[options.engine]
    lines = [
        line for case in harness.with_progress(cases) for line in measure_technical(case, options.engine, plans, rounds)
    ]
    splits: list[Line] = []
    if not options.queries and not options.plan:
        for base in (TWO_LEVEL, THREE_LEVEL):
            splits += measure_split(replace(base, queries=SPLIT_QUERIES), options.engine, rounds)
    harness.print_table(lines, f"two fixed documents, {options.engine}", TECHNICAL_COLUMNS)
    if splits:
        harness.print_table(splits, f"with and without materialized views, {options.engine}", SPLIT_COLUMNS)
    harness.save([*lines, *splits], options)
    if options.plot:
        draw_technical(lines, options.plot)
        if splits:
            draw_split(splits, options.plot.with_name(f"{options.plot.name}-split"))
