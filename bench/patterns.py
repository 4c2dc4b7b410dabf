"""Event patterns: many statements over streams of events, as the papers measure them.

Beside statements that run together stand one statement at a time, for a sample that is scaled up, other ways to match,
and a floor. Before a time is reported, the results are compared."""

from bench import patterns_peers, patterns_sequences, patterns_streams, patterns_synthetic, patterns_windows
from bench.harness import benchmark_parser, parse_options, report
from bench.patterns_kernel import PatternOptions
from bench.plots import draw_patterns

BENCHMARKS = (
    patterns_synthetic.SYNTHETIC_BENCHMARKS
    | patterns_streams.STREAM_BENCHMARKS
    | patterns_sequences.SEQUENCE_BENCHMARKS
    | patterns_windows.WINDOW_BENCHMARKS
    | patterns_peers.PEER_BENCHMARKS
)


def bench_patterns() -> None:
    parser = benchmark_parser("patterns", "event patterns, as the thesis measures")
    parser.add_argument(
        "name", choices=BENCHMARKS, help="what to measure; --plot draws all but held, trends, places and memory"
    )
    parser.add_argument("--events", type=int, metavar="N", help="how many events")
    parser.add_argument("--flink-python", metavar="PATH", help="peers: the interpreter that has apache-flink")
    options = parse_options(parser)
    chosen = BENCHMARKS[options.name]
    if options.plot and not chosen.drawn:
        parser.error(f"--plot does not draw {options.name}")
    selected = PatternOptions(options.queries, options.events, options.quick, options.flink_python)
    lines = list(chosen.measure(chosen.cases(selected), selected))
    report(lines, f"event patterns, {options.name}", chosen.columns, options, draw_patterns)
