"""Event patterns: many statements over streams of events, as the papers measure them.

    mmqjp bench patterns NAME [--queries N,N] [--events N] [--quick] [--json FILE] [--csv FILE] [--plot PREFIX]
                              [--flink-python PATH]

Beside statements that run together stand one statement at a time, for a sample that is scaled up, other ways to match,
and a floor. Before a time is reported, the results are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.harness import Line, TableColumn, benchmark_parser, parse_options, report, with_progress
from bench.patterns_kernel import PatternOptions
from bench.patterns_peers import (
    PEER_COLUMNS,
    PLACES_COLUMNS,
    measure_all_peers,
    measure_all_places,
    pattern_peer_cases,
    places_cases,
)
from bench.patterns_sequences import (
    ERRORS_COLUMNS,
    KLEENE_COLUMNS,
    errors_cases,
    kleene_cases,
    measure_all_errors,
    measure_kleene,
)
from bench.patterns_streams import (
    AGGREGATE_COLUMNS,
    DOUBLE_TOP_COLUMNS,
    STREAM_COLUMNS,
    aggregate_cases,
    double_top_cases,
    measure_aggregates,
    measure_double_tops,
    measure_streams,
    stream_cases,
)
from bench.patterns_synthetic import (
    MEMORY_COLUMNS,
    SYNTHETIC_COLUMNS,
    index_cases,
    measure_registration,
    measure_synthetic,
    memory_cases,
    technical_sweeps,
)
from bench.patterns_windows import WINDOWS_COLUMNS, measure_windows, windows_cases
from bench.plots import draw_patterns


@dataclass(frozen=True)
class PatternBenchmark:
    """The cases that options choose, what measures them, and the columns of their table."""

    cases: Callable[[PatternOptions], Sequence[Any]]
    measure: Callable[[Sequence[Any], PatternOptions], Iterator[Line]]
    columns: tuple[TableColumn, ...]
    drawn: bool = True


def _each(measure: Callable[[Any, bool], Iterator[Line]]) -> Callable[[Sequence[Any], PatternOptions], Iterator[Line]]:
    """Measures cases that do not depend on each other, given whether they are quick."""
    return lambda cases, options: (line for case in with_progress(cases) for line in measure(case, options.quick))


BENCHMARKS = {
    "technical": PatternBenchmark(technical_sweeps, _each(measure_synthetic), SYNTHETIC_COLUMNS),
    "indexes": PatternBenchmark(index_cases, _each(measure_synthetic), SYNTHETIC_COLUMNS),
    "double-top": PatternBenchmark(double_top_cases, _each(measure_double_tops), DOUBLE_TOP_COLUMNS),
    "feeds": PatternBenchmark(partial(stream_cases, "feeds"), _each(measure_streams), STREAM_COLUMNS),
    "rumor": PatternBenchmark(partial(stream_cases, "rumor"), _each(measure_streams), STREAM_COLUMNS),
    "hybrid": PatternBenchmark(partial(stream_cases, "hybrid"), _each(measure_streams), STREAM_COLUMNS),
    "kleene": PatternBenchmark(kleene_cases, _each(measure_kleene), KLEENE_COLUMNS),
    "errors": PatternBenchmark(errors_cases, measure_all_errors, ERRORS_COLUMNS),
    "windows": PatternBenchmark(windows_cases, _each(measure_windows), WINDOWS_COLUMNS),
    "places": PatternBenchmark(places_cases, measure_all_places, PLACES_COLUMNS, drawn=False),
    "peers": PatternBenchmark(pattern_peer_cases, measure_all_peers, PEER_COLUMNS),
    "memory": PatternBenchmark(memory_cases, _each(measure_registration), MEMORY_COLUMNS, drawn=False),
    "aggregates": PatternBenchmark(aggregate_cases, _each(measure_aggregates), AGGREGATE_COLUMNS),
}


def bench_patterns() -> None:
    parser = benchmark_parser("patterns", "event patterns, as the thesis measures")
    parser.add_argument("name", choices=BENCHMARKS, help="what to measure; --plot draws all but places and memory")
    parser.add_argument("--events", type=int, metavar="N", help="how many events")
    parser.add_argument("--flink-python", metavar="PATH", help="peers: the interpreter that has apache-flink")
    options = parse_options(parser)
    chosen = BENCHMARKS[options.name]
    if options.plot and not chosen.drawn:
        parser.error(f"--plot does not draw {options.name}")
    selected = PatternOptions(options.queries, options.events, options.quick, options.flink_python)
    lines = list(chosen.measure(chosen.cases(selected), selected))
    report(lines, f"event patterns, {options.name}", chosen.columns, options, draw_patterns)
