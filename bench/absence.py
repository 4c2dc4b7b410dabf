"""Absences over documents of one channel, and of many: `c1 = c2` must not cost the square of a channel's documents.

The documents come a second apart, each in a channel taken at random. `silent` asks for those that no document of their
channel follows (NOT FOLLOWED BY), `first` for those that none precedes (NOT PRECEDED BY), `alone` for those that no
other one is near in time (NOT JOIN). The window is as long as 10,000 documents. Before a time is reported, the outputs
must be those that the times of each channel give. Each case runs in a process of its own. Times are seconds of CPU.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from bench.command import with_progress
from bench.fresh import in_fresh_process
from bench.stage2_report import Column, Line, keep, parsed, parser, show
from feeds.documents import Document
from join_stage.protocol import DEFAULT_PLAN
from mmqjp.engine import Session
from mmqjp.process import gc_frozen

START, SECOND = 1_780_000_000_000_000, 1_000_000
COUNT, QUICK_COUNT, BATCH = 100_000, 10_000, 1_000
WINDOW = 10_000
"""In seconds."""
OPERATORS = {"silent": "NOT FOLLOWED BY", "first": "NOT PRECEDED BY", "alone": "NOT JOIN"}


@dataclass(frozen=True)
class Case:
    """How much is measured: so many documents of so many channels, or queries whose windows differ."""

    kind: str
    channels: int
    queries: int = 1
    count: int = COUNT
    engine: str = "duckdb"
    plan: str = DEFAULT_PLAN


def script(case: Case) -> str:
    """The queries as a script: the window of query n is n seconds shorter than that of the first one."""
    return "".join(
        f"SELECT x FROM S//item->x[./channel->c1] {OPERATORS[case.kind]} {{c1 = c2, {WINDOW - n} s}}"
        f" S//item->y[./channel->c2] PUBLISH n{n};\n"
        for n in range(case.queries)
    )


def channels(case: Case) -> list[int]:
    """The channel of each document. With as many channels as documents, each has one of its own."""
    rng = Random(3)
    if case.channels >= case.count:
        return rng.sample(range(case.channels), case.count)
    return [rng.randrange(case.channels) for _ in range(case.count)]


def documents(case: Case) -> list[Document]:
    """The documents, a second apart."""
    return [
        Document(f"d{number}", f"<item><channel>c{channel}</channel></item>", time=START + number * SECOND)
        for number, channel in enumerate(channels(case))
    ]


def measure(case: Case) -> Line:
    """Runs one case. Raises AssertionError if the outputs of the first query are not those that the times give."""
    given = documents(case)
    unlimited = {"max_matches": None, "max_outputs": None, "max_work": None}
    with Session(case.engine, plan=case.plan, lateness=0, **unlimited) as engine:  # type: ignore[arg-type]
        engine.subscribe(script(case))
        with gc_frozen():
            engine.process([])  # what registration leaves to the first batch
            begin = time.process_time()
            count = sum(len(engine.process(given[at : at + BATCH])) for at in range(0, len(given), BATCH))
            seconds = time.process_time() - begin
        rows = engine.sql("SELECT documents FROM outputs WHERE query = 'n0'", trusted=True)["documents"].to_pylist()
    found = sorted(int(only[1:]) for (only,) in rows)
    assert found == expected(case), f"{case}: other outputs than the times of each channel give"
    details = {"documents_a_second": len(given) / seconds, "absences": len(found)}
    about = {"kind": case.kind, "channels": case.channels, "queries": case.queries, "documents": len(given)}
    return Line("absence", about, case.engine, case.plan, seconds, count, None, None, details=details)


def expected(case: Case) -> list[int]:
    """The documents without a partner, of those for which the last document decides it."""
    by_channel = defaultdict(list)
    places = channels(case)
    for number, channel in enumerate(places):
        by_channel[channel].append(number)
    found = []
    for number, channel in enumerate(places):
        times = by_channel[channel]
        before = bisect_left(times, number) - bisect_left(times, number - WINDOW)
        after = bisect_right(times, number + WINDOW) - bisect_right(times, number)
        partners = {"silent": after, "first": before, "alone": before + after}[case.kind]
        decided = case.kind == "first" or case.count - 1 > number + WINDOW
        if not partners and decided:
            found.append(number)
    return found


def beside_own_channels(lines: Sequence[Line]) -> Iterator[Line]:
    """Yields the lines, with the time of the case in which each document has a channel of its own as baseline."""
    own = {
        (line.case["kind"], line.case["queries"]): line.seconds
        for line in lines
        if line.case["channels"] == line.case["documents"]
    }
    for line in lines:
        base = own.get((line.case["kind"], line.case["queries"]))
        if base is None or line.case["channels"] == line.case["documents"]:
            yield line
        else:
            details = {**line.details, "over_own_channels": line.seconds / base}
            yield Line(
                line.bench, line.case, line.engine, line.plan, line.seconds, line.rows, "own channels",
                base / line.seconds, details=details,
            )  # fmt: skip


COLUMNS: tuple[Column, ...] = (
    ("kind", lambda line: line.case["kind"]),
    ("channels", lambda line: line.case["channels"]),
    ("queries", lambda line: line.case["queries"]),
    ("documents", lambda line: line.case["documents"]),
    ("absences", lambda line: line.details["absences"]),
    ("outputs", lambda line: line.rows),
    ("seconds", lambda line: line.seconds),
    ("documents/s", lambda line: line.details["documents_a_second"]),
    ("over own channels", lambda line: line.details.get("over_own_channels")),
)


def main() -> None:
    made = parser("absence", "absences over documents of one channel, and of many")
    made.add_argument("--count", type=int, metavar="N", help=f"so many documents; default: {COUNT:,}")
    options = parsed(made)
    count = options.count or (QUICK_COUNT if options.quick else COUNT)
    numbers = options.queries or ([1] if options.quick else [1, 10])
    plan = options.plan or DEFAULT_PLAN
    some = [1, count] if options.quick else sorted({1, min(100, count), min(10_000, count), count})
    cases = [
        Case(kind, number_of_channels, number, count, options.engine, plan)
        for kind in OPERATORS
        for number in numbers
        for number_of_channels in some
    ]
    lines = list(beside_own_channels([in_fresh_process(measure, case) for case in with_progress(cases, str)]))
    show(lines, f"absences, {options.engine}", COLUMNS)
    keep(lines, options)
    if options.plot:
        from bench.stage2_plot import draw_absence

        draw_absence(lines, options.plot)


if __name__ == "__main__":
    main()
