"""Absences over documents of one channel, and of many: `c1 = c2` must not cost the square of a channel's documents.

`silent` asks for documents that none of their channel follows, `first` for those that none precedes, `alone` for those
that no other is near in time (OPERATORS). Each case runs in a process of its own."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.fanout import count_outputs, open_unlimited
from bench.harness import Line, beside, columns, engine_parser, in_fresh_process, parse_options, report, with_progress
from bench.plots import COLOURS, Panel, PlotSeries, draw_panels, grouped
from bench.workload import SECOND, START
from feeds.documents import Document
from join_stage.plans import DEFAULT_PLAN

COUNT, QUICK_COUNT, BATCH = 100_000, 10_000, 1_000
WINDOW = 10_000  # in seconds
OPERATORS = {"silent": "NOT FOLLOWED BY", "first": "NOT PRECEDED BY", "alone": "NOT JOIN"}


@dataclass(frozen=True)
class AbsenceCase:
    kind: str
    channels: int
    queries: int = 1
    count: int = COUNT
    engine: str = "duckdb"
    plan: str = DEFAULT_PLAN

    def script(self) -> str:
        return "".join(
            f"SELECT x FROM S//item->x[./channel->c1] {OPERATORS[self.kind]} {{c1 = c2, {WINDOW - n} s}}"
            f" S//item->y[./channel->c2] PUBLISH n{n};\n"
            for n in range(self.queries)
        )

    def channel_of(self) -> list[int]:
        """The channel of each document. With as many channels as documents, each has one of its own."""
        rng = Random(3)
        if self.channels >= self.count:
            return rng.sample(range(self.channels), self.count)
        return [rng.randrange(self.channels) for _ in range(self.count)]


def measure_absence(case: AbsenceCase) -> Line:
    documents = [
        Document(f"d{number}", f"<item><channel>c{channel}</channel></item>", time=START + number * SECOND)
        for number, channel in enumerate(case.channel_of())
    ]
    with open_unlimited(case.engine, case.plan, lateness=0) as engine:
        seconds, count = count_outputs(engine, case.script(), documents, BATCH)
        rows = engine.sql("SELECT documents FROM outputs WHERE query = 'n0'", trusted=True)["documents"].to_pylist()
    found = sorted(int(only[1:]) for (only,) in rows)
    assert found == expected_absences(case), f"{case}: other outputs than the times of each channel give"
    details = {"documents_a_second": case.count / seconds, "absences": len(found)}
    about = {"kind": case.kind, "channels": case.channels, "queries": case.queries, "documents": case.count}
    return Line("absence", about, case.engine, case.plan, seconds, count, details=details)


def expected_absences(case: AbsenceCase) -> list[int]:
    """The documents without a partner, of those for which the last document decides it."""
    by_channel = defaultdict(list)
    channels = case.channel_of()
    for number, channel in enumerate(channels):
        by_channel[channel].append(number)
    found = []
    for number, channel in enumerate(channels):
        times = by_channel[channel]
        before = bisect_left(times, number) - bisect_left(times, number - WINDOW)
        after = bisect_right(times, number + WINDOW) - bisect_right(times, number)
        partners = {"silent": after, "first": before, "alone": before + after}[case.kind]
        decided = case.kind == "first" or case.count - 1 > number + WINDOW
        if not partners and decided:
            found.append(number)
    return found


def beside_own_channels(lines: Sequence[Line]) -> list[Line]:
    """The lines, with the time of the case in which each document has a channel of its own as baseline."""
    return beside(
        lines,
        lambda line: (line.case["kind"], line.case["queries"]),
        lambda line: line.case["channels"] == line.case["documents"],
        *("own channels", "over_own_channels"),
    )


ABSENCE_COLUMNS = columns(
    "kind | channels | queries | documents | absences | outputs = rows | seconds | "
    "documents/s = documents_a_second | over own channels = over_own_channels"
)


def draw_absence(lines: Sequence[Line], prefix: Path) -> None:
    series = []
    for colour, (kind, some) in zip(COLOURS, grouped(lines, lambda line: line.case["kind"]).items(), strict=False):
        for queries, of in grouped(some, lambda line: line.case["queries"]).items():
            style, label = ("D-", kind) if queries == "1" else ("s:", f"{kind}, {int(queries):,} queries")
            series.append(PlotSeries(label, "documents_a_second", style, colour, of))
    draw_panels(lines, prefix, [Panel("channels", "channels", "documents a second of CPU", series)], (6.5, 3.6))


def bench_absence() -> None:
    parser = engine_parser("absence", "absences over documents of one channel, and of many")
    parser.add_argument("--count", type=int, metavar="N", help=f"number of documents; default: {COUNT:,}")
    options = parse_options(parser)
    count = options.count or (QUICK_COUNT if options.quick else COUNT)
    plan = options.plan or DEFAULT_PLAN
    channels = [1, count] if options.quick else sorted({1, min(100, count), min(10_000, count), count})
    cases = [
        AbsenceCase(kind, number_of_channels, number, count, options.engine, plan)
        for kind in OPERATORS
        for number in options.queries or ([1] if options.quick else [1, 10])
        for number_of_channels in channels
    ]
    lines = beside_own_channels([in_fresh_process(measure_absence, case) for case in with_progress(cases)])
    report(lines, f"absences, {options.engine}", ABSENCE_COLUMNS, options, draw_absence)
