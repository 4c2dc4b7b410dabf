"""The technical benchmark of the thesis (6.6.1, 6.6.2): many queries over two fixed documents, Figures 6.8 to 6.15.

    mmqjp bench technical [--engine duckdb|spark] [--plan NAME] [--queries N,N] [--quick] [--json FILE] [--csv FILE]
                          [--plot PREFIX]

Each plan joins one document, which is the state, with the other, and lists (pair of documents, row of R_T). The time to
expand these to queries has its own column. Sequential is one statement per query, in the fastest form that we found;
for many queries it is measured on a sample and scaled up. Before a time is reported, the rows of all plans are
compared, and the results of the sample's queries with what each gets when it runs alone.

Figures 6.14 and 6.15 tell where the time goes with and without views, in the SQL of the thesis, not in our plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

import numpy as np
import pyarrow as pa

from bench.harness import (
    Line,
    columns,
    engine_parser,
    format_figure,
    medians,
    parse_options,
    print_table,
    save,
    speedup,
    timed,
    with_progress,
)
from bench.joins import (
    DocumentSchema,
    Joined,
    RegisteredQueries,
    Sql,
    become_state,
    check_equal,
    check_sample,
    draw_queries,
    expanded_count,
    loaded_sql,
    measure_sequential,
    opened_engine,
    plans_of,
    query_digests,
    register_queries,
    rows_digest,
    schema_witnesses,
    three_level,
    timed_join,
    two_level,
    without_mirrors,
)
from bench.plots import Panel, PlotSeries, by_plan, draw_panels, new_figure, save_figure
from join_stage.protocol import JoinEngine
from templates.graph import R_BIN, ConjunctiveQuery, RelationAtom, Shape, conjunctive_query
from templates.witness import Witnesses

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

    def shape(self) -> DocumentSchema:
        return two_level(self.leaves) if self.schema == "two-level" else three_level()


TWO_LEVEL, THREE_LEVEL = TechnicalCase("two-level", 1000, 6, 6), TechnicalCase("three-level", 1000, 16, 4)
"""The thesis' defaults."""


def technical_cases(numbers: Sequence[int], *, sweeps: bool) -> list[TechnicalCase]:
    """Figures 6.8 and 6.11, and with `sweeps` 6.9, 6.10, 6.12 and 6.13."""
    chosen = [replace(base, queries=number) for base in (TWO_LEVEL, THREE_LEVEL) for number in numbers]
    if sweeps:
        chosen += [replace(TWO_LEVEL, leaves=n, max_joins=n) for n in (4, 6, 8, 10, 12)]
        chosen += [replace(THREE_LEVEL, max_joins=k) for k in (2, 3, 4, 5)]
        zipfs = (0.0, 0.4, 0.8, 1.2, 1.6)
        chosen += [replace(base, zipf=zipf) for base in (TWO_LEVEL, THREE_LEVEL) for zipf in zipfs]
    return list(dict.fromkeys(chosen))


def thesis_templates(case: TechnicalCase) -> int | None:
    """The number of templates that the thesis reports, where it does."""
    if case.zipf != 0.8:
        return None
    if case.schema == "two-level":
        return case.leaves if case.queries >= 1000 else None
    known = {(10, 4): 6, (100_000, 4): 22, (1000, 2): 2, (1000, 3): 6, (1000, 4): 20, (1000, 5): 39}
    return known.get((case.queries, case.max_joins))


@dataclass(frozen=True)
class TwoDocuments:
    """The queries, and the two documents: the witnesses of each, and its values as columns."""

    registered: RegisteredQueries
    left: tuple[Witnesses, pa.Table]
    right: tuple[Witnesses, pa.Table]


def technical_workload(case: TechnicalCase) -> TwoDocuments:
    """The queries of a case, and the two documents: leaf i has the same value in both, and no other leaf has it."""
    schema = case.shape()
    registered = register_queries(schema, draw_queries(schema, case.queries, case.max_joins, case.zipf), STREAMS)
    values = [pa.array([f"value {i}"]) for i in range(len(schema.paths))]
    names = ["docid", *(schema.leaf(i) for i in range(len(schema.paths)))]
    left, right = (
        (schema_witnesses(registered, stream, values, docid), pa.table([pa.array([docid]), *values], names=names))
        for docid, stream in enumerate(STREAMS)
    )
    return TwoDocuments(registered, left, right)


def measure_technical(
    case: TechnicalCase, engine: str, plans: Sequence[str], rounds: int, sample: int = SAMPLE
) -> list[Line]:
    """A line for each plan, and one for Sequential. Raises AssertionError if any two ways differ in a row."""
    work = technical_workload(case)
    registered = work.registered
    chosen = Random(3).sample(registered.queries, min(sample, len(registered.queries)))
    sequential = measure_sequential(engine, registered, chosen, work.left, work.right)
    joined: dict[str, Joined] = {}
    calls: dict[str, list[float]] = {plan: [] for plan in plans}
    with ExitStack() as stack:
        ways: dict[str, Callable[[], float]] = {}
        for plan in plans:
            store = stack.enter_context(opened_engine(engine, plan, registered))
            become_state(store, [(0, work.left[0])])
            joined[plan] = _join(store, work, True)  # also warms it up
            ways[plan] = partial(_seconds, store, work, calls[plan])
        check_equal({plan: rows_digest(one.table) for plan, one in joined.items()})
        check_sample(query_digests(joined[plans[0]].table, registered, chosen), sequential.rows)
        seconds = medians(ways, rounds)
    shapes = registered.catalog.templates
    shared: dict[str, object] = {
        "templates": len(shapes),
        "without_mirrors": without_mirrors(shapes),
        "thesis_templates": thesis_templates(case),
        "distinct": registered.rows,
    }
    line = partial(Line, "technical", asdict(case), engine, extrapolated=sequential.extrapolated)
    lines = []
    for plan in plans:
        expansion, places = timed(partial(_expanded_rows, joined[plan].table, registered))
        details = {
            **shared,
            "call": median(calls[plan]),
            "expanded": places,
            "expansion": expansion,
            "baseline_form": sequential.fastest,
            "speedup_relations": speedup(sequential.over_relations, seconds[plan]),
        }
        faster = speedup(sequential.best, seconds[plan])
        lines.append(line(plan, seconds[plan], joined[plan].rows, "sequential", faster, details=details))
    count = expanded_count(joined[plans[0]].table, registered)
    details = {**shared, **sequential.by_form(), "expanded": count, "baseline_form": sequential.fastest}
    return [*lines, line("sequential", sequential.best, count, details=details)]


def _seconds(store: JoinEngine, work: TwoDocuments, calls: list[float]) -> float:
    joined = _join(store, work, False)
    calls.append(joined.call)
    return joined.seconds


def _join(store: JoinEngine, work: TwoDocuments, keep: bool) -> Joined:
    """Joins the second document with the first, and forgets it again."""
    store.begin()
    joined = timed_join(store, work.right[0], 1, work.registered.scope, keep)
    store.rollback()
    return joined


def _expanded_rows(result: pa.Table, registered: RegisteredQueries) -> int:
    return len(expand(result, registered)[0])


def expand(result: pa.Table, registered: RegisteredQueries) -> tuple[np.ndarray, np.ndarray]:
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
    ms=lambda line: (
        ("~" if line.plan == "sequential" and line.extrapolated else "") + format_figure(line.seconds * 1e3)
    ),
)


# ---------------------------------------------------------------- with and without views

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


def split_times(sql: Sql, registered: RegisteredQueries) -> ViewTimes:
    """Runs the conjunctive query of each template over R_doc, R_docW, R_bin, R_binW and R_T; then over R_L and R_R,
    which are materialized with R_vj. An edge between two inner nodes of a template has no string value, so it
    is read from R_bin either way. Raises AssertionError if the two ways differ in a row."""
    for template, rows in registered.tables:
        constants = zip(*((row.id, *row.variables, row.window) for row in rows), strict=True)
        sql.load(template.name, pa.table([pa.array(column) for column in constants], names=template.columns[:-1]))
    without, plain = timed(lambda: _answers(sql, registered, conjunctive_query))
    parts = {name: timed(partial(sql.materialize, name, text))[0] for name, text in _VIEWS.items()}
    parts["queries"], viewed = timed(lambda: _answers(sql, registered, view_query))
    assert plain == viewed, "the conjunctive queries gave other rows over the views"
    return ViewTimes({"queries": without}, parts, len(plain))


def view_query(shape: Shape, template: str) -> ConjunctiveQuery:
    """CQ_T over R_L and R_R: R_doc and the edge that ends in its node become one atom."""
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
    sql: Sql, registered: RegisteredQueries, make: Callable[[Shape, str], ConjunctiveQuery]
) -> list[tuple[int, ...]]:
    """The rows of all templates, each query's (row of R_T, documents, nodes)."""
    found: list[tuple[int, ...]] = []
    for template, _ in registered.tables:
        query = make(template.shape, f"T{template.number}")
        result = sql.answer(query.sql(TABLES | {f"R_T{template.number}": template.name}))
        found += zip(*(column.to_pylist() for column in result.drop_columns("wl").columns), strict=True)
    return sorted(found)


def measure_split(case: TechnicalCase, engine: str, rounds: int) -> list[Line]:
    """A line for the time without materialized views, and one for that with them."""
    work = technical_workload(case)
    with loaded_sql(engine, work.left, work.right) as sql:
        splits = [split_times(sql, work.registered) for _ in range(rounds)]
    lines = []
    for plan, parts in (
        ("without views", [one.without for one in splits]),
        ("with views", [one.with_views for one in splits]),
    ):
        of = {name: median(part[name] for part in parts) for name in parts[0]}
        lines.append(Line("technical-split", asdict(case), engine, plan, sum(of.values()), splits[0].rows, details=of))
    return lines


_PARTS = ("r_vj", "r_l", "r_r", "queries")
SPLIT_COLUMNS = columns(
    "schema | queries | = plan | r_vj, ms = r_vj * 1e3 | r_l, ms = r_l * 1e3 | r_r, ms = r_r * 1e3 | "
    "queries, ms = parts | all, ms = seconds * 1e3",
    parts=lambda line: float(str(line.details["queries"])) * 1e3,
)


# ---------------------------------------------------------------- plots

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
    """Draws Figures 6.8 to 6.13, as far as they were measured. Where nothing varies, the points of Figures 6.8 and
    6.11."""
    panels = []
    for number, schema, key, label, log in _FIGURES:
        of = _of_figure(lines, schema, key)
        series = [
            PlotSeries(plan, "seconds * 1e3", STYLES[plan][1], STYLES[plan][0], some)
            for plan, some in by_plan(of).items()
        ]
        panel = Panel(key, label, "ms", series, "xy" if log else "y", f"{number}: {schema}")
        panels.append((len({line.case[key] for line in of}), panel))
    drawn = [panel for values, panel in panels if values > 1]
    drawn = drawn or [panel for values, panel in panels if values and panel.x == "queries"]
    size = 4 * min(3, max(2, len(drawn))), 3.4 * (1 + (len(drawn) > 3))
    draw_panels(lines, prefix, drawn, size, across=3)


def _of_figure(lines: Iterable[Line], schema: str, key: str) -> list[Line]:
    """The lines of a figure: those where the other parameters have their defaults."""
    base = asdict(TWO_LEVEL if schema == "two-level" else THREE_LEVEL)
    fixed = base.keys() - {key} - ({"max_joins"} if key == "leaves" else set())
    return [line for line in lines if all(line.case[name] == base[name] for name in fixed)]


def draw_split(lines: Sequence[Line], prefix: Path) -> None:
    """Draws Figures 6.14 and 6.15, stacked."""
    schemas = list(dict.fromkeys(str(line.case["schema"]) for line in lines))
    figure = new_figure(4 * len(schemas), 3.6)
    for axes, schema, number in zip(
        figure.subplots(1, len(schemas), squeeze=False).flat, schemas, ("6.14", "6.15"), strict=False
    ):
        of = [line for line in lines if line.case["schema"] == schema]
        below = [0.0] * len(of)
        for part in _PARTS:
            heights = [1e3 * float(str(line.details.get(part, 0.0))) for line in of]
            axes.bar([line.plan for line in of], heights, bottom=below, width=0.5, label=part)
            below = [a + b for a, b in zip(below, heights, strict=True)]
        axes.set(title=f"{number}: {schema}", ylabel="ms")
    save_figure(figure, prefix)


def bench_technical() -> None:
    parser = engine_parser("technical", "joins two fixed documents for many queries, as section 6.6.1 of the thesis")
    options = parse_options(parser)
    numbers = options.queries or (QUICK_QUERIES if options.quick else QUERIES)
    cases = technical_cases(numbers, sweeps=not options.quick and not options.queries)
    plans = plans_of(options.engine, options.plan, quick=options.quick)
    rounds = ROUNDS[options.engine]
    lines = [line for case in with_progress(cases) for line in measure_technical(case, options.engine, plans, rounds)]
    splits: list[Line] = []
    if not options.queries and not options.plan:
        for base in (TWO_LEVEL, THREE_LEVEL):
            splits += measure_split(replace(base, queries=SPLIT_QUERIES), options.engine, rounds)
    print_table(lines, f"two fixed documents, {options.engine}", TECHNICAL_COLUMNS)
    if splits:
        print_table(splits, f"with and without materialized views, {options.engine}", SPLIT_COLUMNS)
    save([*lines, *splits], options)
    if options.plot:
        draw_technical(lines, options.plot)
        if splits:
            draw_split(splits, options.plot.with_name(f"{options.plot.name}-split"))
