"""Event patterns: many statements over one stream of synthetic events, as the thesis measures them (4.4).

    mmqjp bench patterns NAME [--queries N,N] [--events N] [--quick] [--json FILE] [--csv FILE] [--plot PREFIX]
                              [--flink-python PATH]

`technical` is Figure 4.13: five templates, and for one of them other Zipf powers and selectivities. `indexes` is Figure
4.14: one template with parts of the optimiser switched off. `feeds`, `rumor` and `hybrid` are Figures 4.18 and 5.8 to
5.10: see `bench.patterns_thesis`. `double-top` is Figure 4.17: see `bench.patterns_double_top`. `places` is about
executors and SQL: see `bench.patterns_places`. `peers` compares with Flink and with an expert's SQL: see
`bench.patterns_peers`. `kleene` has the experiments of SASE+: see `bench.patterns_kleene`. `errors` is
about missing letters, and what a BUDGET leaves: see `bench.patterns_errors` and `bench.patterns_budget`. `windows` has
the experiments of match windows: see `bench.patterns_windows`. `memory` registers statements: see
`bench.patterns_memory`. `aggregates` is about partial aggregates: see `bench.patterns_aggregates`.

Beside the others stand one statement at a time, by a kernel of its own over the same intervals and, for the first two,
by hand in NumPy over all events, both for a sample, scaled up; and the floor: a dictionary probe for each attribute of
each event. Before a time is reported, the results of the sample are compared.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from bench import (
    patterns_aggregates,
    patterns_budget,
    patterns_double_top,
    patterns_errors,
    patterns_kleene,
    patterns_memory,
    patterns_peers,
    patterns_places,
    patterns_plot,
    patterns_sweeps,
    patterns_thesis,
    patterns_windows,
)
from bench.command import file, with_progress
from bench.patterns_alone import Found, alone
from bench.patterns_workload import (
    DOMAIN,
    SECOND,
    STREAM,
    TEMPLATES,
    Steps,
    Stocks,
    Template,
    events,
    planted,
    statements,
    stream_of,
)
from bench.stage2_report import Column, Line, add_outputs, keep, marked, numbers, parsed, show
from common.arrays import Ints
from pattern_stage.columns import Columns
from pattern_stage.kernel import Kernel
from pattern_stage.plan import RULE_NAMES, RuleName
from pattern_stage.values import Texts

INTERVAL = 1000
"""How many events an interval has."""

SAMPLE, QUICK_SAMPLE = 30, 10

NAMES = (
    "technical",
    "indexes",
    "double-top",
    "feeds",
    "rumor",
    "hybrid",
    "kleene",
    "errors",
    "windows",
    "places",
    "peers",
    "memory",
    "aggregates",
)


NOT_DRAWN = ("places", "memory")
"""Those without a plot."""


@dataclass(frozen=True)
class Case:
    template: Template
    queries: int
    events: int
    zipf: float = 1.0
    selectivity: float = 0.7
    domain: int = DOMAIN
    """How many values a discrete attribute has."""
    without: str = ""
    """What is switched off."""
    figure: str = "4.13a"


SWITCHES: dict[str, tuple[tuple[RuleName, ...], bool]] = {
    "": ((), True),
    "merging": (("cse",), True),
    "static index": (("s_sigma",), True),
    "dynamic index": ((), False),
    "all": (RULE_NAMES, False),
}
"""What is switched off: rules, and whether dynamic equalities are hashed."""


class Numbered:
    """The lineage of events whose parts are their numbers."""

    def ends(self, numbers: Ints) -> Ints:
        """Returns the times of events."""
        return (numbers + 1) * SECOND

    def together(self, parts: Ints, groups: Ints) -> Ints:
        """Only AGGREGATE makes sets of events."""
        raise AssertionError("no statement has an AGGREGATE")


@dataclass(frozen=True)
class Run:
    """Seconds of registration and of all intervals, CPU time of this thread, and results by statement."""

    registering: float
    seconds: float
    results: int
    found: dict[int, Found]


def run(case: Case, asked: Sequence[Steps], given: Stocks, sample: Iterable[int]) -> Run:
    """Runs statements together. Of those in the sample it keeps the results."""
    off, hashed = SWITCHES[case.without]
    kernel = Kernel(Texts(), Numbered(), rules=[rule for rule in RULE_NAMES if rule not in off], hashed=hashed)
    columns = given.columns(kernel.texts)
    streams = [stream_of(case.template, steps) for steps in asked]
    begin = time.thread_time()
    for place, stream in enumerate(streams):
        kernel.add(place, stream, -1)
    kernel.run({STREAM: columns.take(np.zeros(0, np.int64))}, 0)
    registering = time.thread_time() - begin
    wanted = np.array(sorted(sample), np.int64)
    found: dict[int, Found] = {place: set() for place in wanted.tolist()}
    count = 0
    seconds = 0.0
    for interval in _intervals(columns):
        begin = time.thread_time()
        results = kernel.run({STREAM: interval}, int(interval.t1[-1]) + 1)
        seconds += time.thread_time() - begin
        for one in results:
            count += len(one)
            for place in np.flatnonzero(np.isin(one.statements, wanted)).tolist():
                parts = tuple(one.events.parts[one.at[place]].tolist())
                assert len(parts) == 3
                found[int(one.statements[place])].add(parts)
    return Run(registering, seconds, count, found)


def _intervals(columns: Columns) -> Iterator[Columns]:
    for begin in range(0, len(columns), INTERVAL):
        yield columns.take(np.arange(begin, min(begin + INTERVAL, len(columns))))


def floor(given: Stocks) -> float:
    """Seconds for a dictionary probe for each attribute of each event."""
    rows = [column.tolist() for column in (*given.discrete, *given.continuous)]
    known = [dict.fromkeys(column, 1) for column in rows]
    begin = time.thread_time()
    for probed, column in zip(known, rows, strict=True):
        get = probed.get
        for value in column:
            get(value)
    return time.thread_time() - begin


def measure(case: Case, sample_size: int) -> Iterator[Line]:
    """Lines of a case. Raises AssertionError if a statement of the sample has other results alone."""
    asked = statements(case.queries, (case.zipf, 1, 0.8), case.selectivity, case.domain)
    chance = np.random.default_rng(3)
    sample = chance.choice(case.queries, min(sample_size, case.queries), replace=False).tolist()
    given = planted(events(case.events, case.domain), [asked[place] for place in sample])
    together = run(case, asked, given, sample)
    by_hand = by_kernel = 0.0
    for place in sample:
        begin = time.thread_time()
        expected = alone(case.template, asked[place], given)
        by_hand += time.thread_time() - begin
        assert together.found[place] == expected, f"statement {place} of {case} has something else alone"
        single = run(replace(case, queries=1), [asked[place]], given, [0])
        assert single.found[0] == expected, f"statement {place} of {case} has something else in a kernel of its own"
        by_kernel += single.seconds
    scale = case.queries / len(sample)
    lowest = floor(given)

    def line(plan: str, seconds: float, rows: int, extrapolated: bool, **details: object) -> Line:
        baseline = None if plan.startswith("one") else "one at a time"
        speedup = by_kernel * scale / seconds if baseline else None
        details = {"events_a_second": case.events / seconds, **details}
        return Line(
            "patterns", asdict(case), None, plan, seconds, rows, baseline, speedup, lowest, extrapolated, details
        )

    scaled = len(sample) < case.queries
    registered = case.queries / together.registering
    by_hand_times = by_hand * scale / together.seconds
    yield line("together", together.seconds, together.results, scaled, registered=registered, over_hand=by_hand_times)
    if not case.without:
        rows = sum(map(len, together.found.values()))
        yield line("one at a time", by_kernel * scale, rows, scaled)
        yield line("one by hand", by_hand * scale, rows, scaled)


def technical(queries: Sequence[int], count: int, *, sweeps: bool) -> list[Case]:
    """Figure 4.13: the number of statements, and with `sweeps` Zipf's power, the selectivity, and the number of
    statements again with attributes of more values the more there are."""
    cases = [Case(template, number, count) for template in TEMPLATES for number in queries]
    if sweeps:
        base = Case("LinearStat", queries[0], count)
        cases += [replace(base, zipf=zipf, figure="4.13b") for zipf in (0.8, 1.0, 1.2, 1.4)]
        cases += [replace(base, selectivity=one, figure="4.13c") for one in (0.5, 0.6, 0.7, 0.8, 0.9)]
        for number in queries:
            # A step asks for two discrete attributes: an event satisfies as many static conditions as with queries[0].
            domain = round(DOMAIN * (number / queries[0]) ** 0.5)
            cases.append(replace(base, queries=number, domain=domain, figure="4.13, equal hits"))
    return cases


def indexes(queries: Sequence[int], count: int) -> list[Case]:
    """Figure 4.14."""
    return [Case("Filter", number, count, without=one, figure="4.14") for number in queries for one in SWITCHES]


COLUMNS: tuple[Column, ...] = (
    ("template", lambda line: line.case["template"]),
    ("", lambda line: line.plan),
    ("without", lambda line: line.case["without"]),
    ("statements", lambda line: line.case["queries"]),
    ("zipf", lambda line: line.case["zipf"]),
    ("selectivity", lambda line: line.case["selectivity"]),
    ("values", lambda line: line.case["domain"]),
    ("events/s", lambda line: line.details["events_a_second"]),
    ("results", lambda line: line.rows),
    ("over floor", lambda line: line.over_floor),
    ("times faster", marked),
    ("than by hand", lambda line: line.details.get("over_hand")),
    ("registered/s", lambda line: line.details.get("registered")),
)


def main() -> None:
    made = argparse.ArgumentParser(prog="mmqjp bench patterns", description="event patterns, as the thesis measures")
    made.add_argument("name", choices=NAMES, help="what to measure")
    made.add_argument("--queries", type=numbers, metavar="N,N", help="numbers of statements, separated by commas")
    made.add_argument("--events", type=int, metavar="N", help="how many events")
    add_outputs(made)
    made.add_argument(
        "--plot", type=file, metavar="PREFIX", help="draw PREFIX.svg and PREFIX.png; not of places and memory"
    )
    made.add_argument("--flink-python", metavar="PATH", help="peers: the interpreter that has apache-flink")
    options = parsed(made)
    if options.plot and options.name in NOT_DRAWN:
        made.error(f"--plot does not draw {options.name}")
    lines, columns = _measured(options)
    show(lines, f"event patterns, {options.name}", columns)
    keep(lines, options)
    if options.plot:
        patterns_plot.draw(lines, options.plot)


def _measured(options: argparse.Namespace) -> tuple[list[Line], tuple[Column, ...]]:
    """The lines of a benchmark, and the columns of their table."""
    quick, queries, count = options.quick, options.queries, options.events

    def each(some: Sequence[Any], measured: Callable[[Any], Iterator[Line]]) -> list[Line]:
        return [line for one in with_progress(some, str) for line in measured(one)]

    match options.name:
        case "places":
            places = with_progress(patterns_places.cases(queries, count, quick=quick), str)
            return list(patterns_places.measured(places, quick=quick)), patterns_places.COLUMNS
        case "memory":
            return each(patterns_memory.cases(queries, quick=quick), patterns_memory.measure), patterns_memory.COLUMNS
        case "aggregates":
            shared = patterns_aggregates.cases(count, quick=quick)
            return each(shared, patterns_aggregates.measure), patterns_aggregates.COLUMNS
        case "double-top":
            turns = patterns_double_top.QUICK_TURNS if quick else patterns_double_top.TURNS
            tops = patterns_double_top.cases(count, quick=quick)
            return each(tops, lambda one: patterns_double_top.measure(one, turns)), patterns_double_top.COLUMNS
        case "peers":
            python = options.flink_python or sys.executable
            lacking = patterns_peers.FLINK.lacking(python)
            if lacking:
                print(f"Flink is left out: {lacking}", file=sys.stderr)
            turns = patterns_peers.QUICK_TURNS if quick else patterns_peers.TURNS
            peers = patterns_peers.cases(queries, count, flink=not lacking, quick=quick)
            return each(peers, lambda one: patterns_peers.measure(one, python, turns)), patterns_peers.COLUMNS_SHOWN
        case "kleene":
            turns, sample = (1, 2) if quick else (3, 5)
            kleene = patterns_kleene.cases(queries, count, quick=quick)
            return each(kleene, lambda one: patterns_kleene.measure(one, turns, sample)), patterns_kleene.COLUMNS
        case "errors":
            turns = 1 if quick else 3
            exact = patterns_errors.measured(patterns_errors.cases(count, quick=quick), turns)
            drifts = patterns_budget.measured(patterns_budget.cases(count, quick=quick), turns)
            return [*exact, *drifts], patterns_errors.COLUMNS
        case "windows":
            windows = patterns_windows.cases(count, quick=quick)
            return each(windows, lambda one: patterns_windows.measure(one, 1)), patterns_windows.COLUMNS
        case "feeds" | "rumor" | "hybrid":
            sweeps = patterns_thesis.cases(options.name, queries, count, quick=quick)
            sizes = (3, 1) if quick else (5, 3)
            return each(sweeps, lambda one: patterns_sweeps.measure(one, *sizes)), patterns_sweeps.COLUMNS
        case "technical":
            numbers = queries or ([20_000] if quick else [100_000, 400_000])
            cases = technical(numbers, count or (5_000 if quick else 20_000), sweeps=not quick)
        case _:
            numbers = queries or ([2_000] if quick else [10_000, 20_000, 40_000])
            cases = indexes(numbers, count or (1_000 if quick else 5_000))
    return each(cases, lambda one: measure(one, QUICK_SAMPLE if quick else SAMPLE)), COLUMNS


if __name__ == "__main__":
    main()
