"""The technical benchmark of the thesis (6.6.1, 6.6.2): many queries over two fixed documents, Figures 6.8 to 6.15.

    mmqjp bench technical [--engine duckdb|spark] [--plan NAME] [--queries N,N] [--quick] [--json FILE] [--csv FILE]
                          [--plot PREFIX]

Each plan joins one document, which is the state, with the other, and lists (pair of documents, row of R_T). The time to
expand these to queries has its own column. Sequential is one statement per query, in the fastest form that we found;
for many queries it is measured on a sample and scaled up. Before a time is reported, the rows of all plans are
compared, and the results of the sample's queries with what each gets when it runs alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from statistics import median

import numpy as np
import pyarrow as pa

from bench.command import with_progress
from bench.stage2_engines import Joined, become_state, medians, open_sql, opened, plans_of, put_rows, scope, timed_join
from bench.stage2_queries import Registered, Schema, draw, register, three_level, two_level, without_mirrors
from bench.stage2_report import Column, Line, keep, marked, parsed, parser, show, shown, speedup
from bench.stage2_rows import check_equal, check_sample, expanded_count, of_queries, rows_digest
from bench.stage2_sequential import Sequential, load
from bench.stage2_sequential import measure as measure_sequential
from bench.stage2_witnesses import witnesses
from bench.technical_split import split
from join_stage.protocol import JoinEngine
from templates.witness import Witnesses

STREAMS = ("S", "T")
QUERIES, QUICK_QUERIES = [10, 100, 1000, 10_000, 100_000], [10, 1000, 100_000]
ROUNDS = {"duckdb": 9, "spark": 3}
SAMPLE = 100
SPLIT_QUERIES = 100_000


@dataclass(frozen=True)
class Case:
    """`max_joins` is K of the thesis; on the two-level schema it is N, the number of `leaves`."""

    schema: str
    queries: int
    leaves: int
    max_joins: int
    zipf: float = 0.8

    def shape(self) -> Schema:
        return two_level(self.leaves) if self.schema == "two-level" else three_level()


TWO_LEVEL, THREE_LEVEL = Case("two-level", 1000, 6, 6), Case("three-level", 1000, 16, 4)
"""The thesis' defaults."""

_ZIPFS = (0.0, 0.4, 0.8, 1.2, 1.6)


def cases(numbers: Sequence[int], *, sweeps: bool) -> list[Case]:
    """Figures 6.8 and 6.11, and with `sweeps` 6.9, 6.10, 6.12 and 6.13."""
    chosen = [replace(base, queries=number) for base in (TWO_LEVEL, THREE_LEVEL) for number in numbers]
    if sweeps:
        chosen += [replace(TWO_LEVEL, leaves=n, max_joins=n) for n in (4, 6, 8, 10, 12)]
        chosen += [replace(THREE_LEVEL, max_joins=k) for k in (2, 3, 4, 5)]
        chosen += [replace(base, zipf=zipf) for base in (TWO_LEVEL, THREE_LEVEL) for zipf in _ZIPFS]
    return list(dict.fromkeys(chosen))


def thesis_templates(case: Case) -> int | None:
    """How many templates the thesis reports, where it does."""
    if case.zipf != 0.8:
        return None
    if case.schema == "two-level":
        return case.leaves if case.queries >= 1000 else None
    known = {(10, 4): 6, (100_000, 4): 22, (1000, 2): 2, (1000, 3): 6, (1000, 4): 20, (1000, 5): 39}
    return known.get((case.queries, case.max_joins))


# ------------------------------------------------------------ measuring


@dataclass(frozen=True)
class TwoDocuments:
    """The queries, and the two documents: the witnesses of each, and its values as columns."""

    registered: Registered
    left: tuple[Witnesses, pa.Table]
    right: tuple[Witnesses, pa.Table]


def workload(case: Case) -> TwoDocuments:
    """The queries of a case, and the two documents: leaf i has the same value in both, and no other leaf has it."""
    schema = case.shape()
    registered = register(schema, draw(schema, case.queries, case.max_joins, case.zipf), STREAMS)
    values = [pa.array([f"value {i}"]) for i in range(len(schema.paths))]
    names = ["docid", *(schema.leaf(i) for i in range(len(schema.paths)))]
    left, right = (
        (witnesses(registered, stream, values, docid), pa.table([pa.array([docid]), *values], names=names))
        for docid, stream in enumerate(STREAMS)
    )
    return TwoDocuments(registered, left, right)


def measure(case: Case, engine: str, plans: Sequence[str], rounds: int, sample: int = SAMPLE) -> list[Line]:
    """A line for each plan, and one for Sequential. Raises AssertionError if any two ways differ in a row."""
    work = workload(case)
    registered = work.registered
    chosen = Random(3).sample(registered.queries, min(sample, len(registered.queries)))
    sequential = measure_sequential(engine, registered, chosen, work.left, work.right)
    joined: dict[str, Joined] = {}
    calls: dict[str, list[float]] = {plan: [] for plan in plans}
    with ExitStack() as stack:
        ways: dict[str, Callable[[], float]] = {}
        for plan in plans:
            store = stack.enter_context(opened(engine, plan))
            put_rows(store, registered)
            become_state(store, [(0, work.left[0])])
            joined[plan] = _join(store, work, True)  # also warms it up
            ways[plan] = partial(_seconds, store, work, calls[plan])
        check_equal({plan: rows_digest(one.table) for plan, one in joined.items()})
        check_sample(of_queries(joined[plans[0]].table, registered, chosen), sequential.rows)
        seconds = medians(ways, rounds)
    shared = _shared(case, registered)
    lines = []
    for plan in plans:
        begin = time.perf_counter()
        expanded = len(expand(joined[plan].table, registered)[0])
        details = {
            **shared,
            "call": median(calls[plan]),
            "expanded": expanded,
            "expansion": time.perf_counter() - begin,
            "baseline_form": sequential.fastest,
            "speedup_relations": speedup(sequential.over_relations, seconds[plan]),
        }
        lines.append(_line(case, engine, plan, seconds[plan], joined[plan].rows, sequential, details))
    forms: dict[str, object] = {f"sequential {form}": taken for form, taken in sequential.seconds.items()}
    count = expanded_count(joined[plans[0]].table, registered)
    details = {**shared, **forms, "expanded": count, "baseline_form": sequential.fastest}
    return [*lines, _line(case, engine, "sequential", sequential.best, count, sequential, details)]


def _seconds(store: JoinEngine, work: TwoDocuments, calls: list[float]) -> float:
    joined = _join(store, work, False)
    calls.append(joined.call)
    return joined.seconds


def _join(store: JoinEngine, work: TwoDocuments, keep: bool) -> Joined:
    """Joins the second document with the first, and forgets it again."""
    store.begin()
    joined = timed_join(store, work.right[0], 1, scope(work.registered), keep)
    store.rollback()
    return joined


def expand(result: pa.Table, registered: Registered) -> tuple[np.ndarray, np.ndarray]:
    """What the subscribers get: the place of a row in the result, and a query, for each query of the row."""
    rows = np.array([registered.placements[pairs].row for pairs in registered.queries])
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    qids = result["qid"].to_numpy()
    low, high = (np.searchsorted(sorted_rows, qids, side) for side in ("left", "right"))
    counts = high - low
    starts = np.repeat(low - np.cumsum(counts) + counts, counts)
    return np.repeat(np.arange(len(qids)), counts), order[starts + np.arange(counts.sum())]


def _shared(case: Case, registered: Registered) -> dict[str, object]:
    shapes = registered.catalog.templates
    return {
        "templates": len(shapes),
        "without_mirrors": without_mirrors(shapes),
        "thesis_templates": thesis_templates(case),
        "distinct": registered.rows,
    }


def _line(
    case: Case, engine: str, plan: str, seconds: float, rows: int, sequential: Sequential, details: dict[str, object]
) -> Line:
    over = None if plan == "sequential" else speedup(sequential.best, seconds)
    baseline = None if plan == "sequential" else "sequential"
    return Line(
        "technical",
        asdict(case),
        engine,
        plan,
        seconds,
        rows,
        baseline,
        over,
        None,
        sequential.extrapolated,
        details,
    )


def measure_split(case: Case, engine: str, rounds: int) -> list[Line]:
    """Where the time goes with and without materialized views: a line for each of the two."""
    work = workload(case)
    sql = open_sql(engine)
    try:
        for suffix, (of_side, columns) in (("", work.left), ("_w", work.right)):
            load(sql, suffix, of_side, columns)
        splits = [split(sql, work.registered) for _ in range(rounds)]
    finally:
        sql.close()
    lines = []
    for plan, parts in (
        ("without views", [one.without for one in splits]),
        ("with views", [one.with_views for one in splits]),
    ):
        of = {name: median(part[name] for part in parts) for name in parts[0]}
        rows = splits[0].rows
        lines.append(
            Line("technical-split", asdict(case), engine, plan, sum(of.values()), rows, None, None, details=of)
        )
    return lines


# ------------------------------------------------------------ the report

COLUMNS: tuple[Column, ...] = (
    ("schema", lambda line: line.case["schema"]),
    ("queries", lambda line: line.case["queries"]),
    ("N", lambda line: line.case["leaves"]),
    ("K", lambda line: line.case["max_joins"]),
    ("zipf", lambda line: line.case["zipf"]),
    ("templates", lambda line: line.details["templates"]),
    ("without mirrors", lambda line: line.details["without_mirrors"]),
    ("thesis", lambda line: line.details["thesis_templates"]),
    ("rows of R_T", lambda line: line.details["distinct"]),
    ("plan", lambda line: line.plan),
    ("ms", lambda line: ("~" if line.plan == "sequential" and line.extrapolated else "") + shown(line.seconds * 1e3)),
    ("rows", lambda line: line.rows),
    ("expansion, ms", lambda line: _ms(line.details.get("expansion"))),
    ("times faster", marked),
    ("over relations", lambda line: line.details.get("speedup_relations")),
    ("sequential", lambda line: line.details["baseline_form"]),
)

_PARTS = ("r_vj", "r_l", "r_r", "queries")
SPLIT_COLUMNS: tuple[Column, ...] = (
    ("schema", lambda line: line.case["schema"]),
    ("queries", lambda line: line.case["queries"]),
    ("", lambda line: line.plan),
    *((f"{name}, ms", lambda line, name=name: _ms(line.details.get(name))) for name in _PARTS),
    ("all, ms", lambda line: line.seconds * 1e3),
)


def _ms(seconds: object) -> float | None:
    return seconds * 1e3 if isinstance(seconds, float) else None


def main() -> None:
    options = parsed(parser("technical", "joins two fixed documents for many queries, as section 6.6.1 of the thesis"))
    numbers = options.queries or (QUICK_QUERIES if options.quick else QUERIES)
    chosen = cases(numbers, sweeps=not options.quick and not options.queries)
    plans = plans_of(options.engine, options.plan, quick=options.quick)
    rounds = ROUNDS[options.engine]
    lines = [line for case in with_progress(chosen, str) for line in measure(case, options.engine, plans, rounds)]
    splits = []
    if not options.queries and not options.plan:
        splits = [
            line
            for base in (TWO_LEVEL, THREE_LEVEL)
            for line in measure_split(replace(base, queries=SPLIT_QUERIES), options.engine, rounds)
        ]
    show(lines, f"two fixed documents, {options.engine}", COLUMNS)
    if splits:
        show(splits, f"with and without materialized views, {options.engine}", SPLIT_COLUMNS)
    keep([*lines, *splits], options)
    if options.plot:
        from bench.stage2_plot import draw_split, draw_technical

        draw_technical(lines, options.plot)
        if splits:
            draw_split(splits, options.plot.with_name(f"{options.plot.name}-split"))


if __name__ == "__main__":
    main()
