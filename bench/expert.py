"""From bytes to output lines, for subscriptions to one channel each: our engine beside the program that an expert
would write by hand for these kinds of subscription.

Both take the same batches in the same process, in turns, and write a line with an XML body for each match. The lines
are compared before a time is reported. Times are seconds of CPU, of all threads.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.command import with_progress
from bench.expert_workload import Expert, Parameters, parameters, script
from bench.stage2_report import Column, Line, keep, parsed, parser, show
from bench.workload import items
from feeds.documents import Document
from join_stage.protocol import DEFAULT_PLAN
from mmqjp.answers.outbox import Position
from mmqjp.engine import Session
from mmqjp.process import gc_frozen
from mmqjp.sinks.files import GrowingFile

NUMBERS = [1, 100, 1_000, 10_000]
QUICK_NUMBERS = [1, 1_000]
ITEMS, QUICK_ITEMS = 20_000, 5_000
BATCH = 5_000
SINGLE_DOCUMENTS = 200
"""The number of documents that are also processed one at a time."""
ROUNDS = 3


@dataclass(frozen=True)
class Case:
    """How much is measured."""

    queries: int
    items: int = ITEMS
    batch: int = BATCH
    singles: int = SINGLE_DOCUMENTS


@dataclass(frozen=True)
class Run:
    """A run of one way: seconds of CPU of all batches, and seconds of CPU of each document that came alone after
    them."""

    seconds: float
    singles: list[float]
    registering: float = 0.0


Batches = Sequence[Sequence[Document]]


def by_engine(
    engine: str, plan: str, batches: Batches, singles: Sequence[Document], asked: Sequence[Parameters], to: Path
) -> Run:
    """Runs the engine. Registration is timed apart."""
    with Session(engine, plan=plan) as opened:
        begin = time.process_time()
        opened.subscribe(script(asked))
        opened.registry.flush()
        registering = time.process_time() - begin
        sink = GrowingFile(to, Position())
        sink.prepare(list)

        def process(batch: Sequence[Document]) -> None:
            sink.write(opened.process(batch))

        with gc_frozen():
            run = Run(*_timed(process, batches, singles), registering)
        sink.close()
        return run


def by_expert(batches: Batches, singles: Sequence[Document], asked: Sequence[Parameters], to: Path) -> Run:
    """Runs the program without mmqjp."""
    expert = Expert(asked, to)
    try:
        return Run(*_timed(expert.process, batches, singles))
    finally:
        expert.close()


def _timed(
    process: Callable[[Sequence[Document]], None], batches: Batches, singles: Sequence[Document]
) -> tuple[float, list[float]]:
    def clocked(batch: Sequence[Document]) -> float:
        begin = time.process_time()
        process(batch)
        return time.process_time() - begin

    return sum(map(clocked, batches)), [clocked([document]) for document in singles]


def compared_lines(path: Path) -> Iterator[tuple[object, ...]]:
    """The lines of a file without what the expert does not write: id, number, nodes."""
    with path.open("rb") as lines:
        for line in lines:
            o = json.loads(line)
            yield o["query"], o["t0"], o["t1"], *o["documents"], *o["streams"], o["xml"]


def digests(path: Path) -> list[bytes]:
    """The digests of a file's lines, sorted: the lines themselves may be too many for the memory."""
    return sorted(blake2b(repr(line).encode(), digest_size=16).digest() for line in compared_lines(path))


def measure(case: Case, engine: str = "duckdb", plan: str = DEFAULT_PLAN, rounds: int = ROUNDS) -> list[Line]:
    """Lines for all batches and for single documents. Raises AssertionError if the two ways differ in a line."""
    documents = list(items(case.items + case.singles))
    batches = [documents[start : min(start + case.batch, case.items)] for start in range(0, case.items, case.batch)]
    singles, asked = documents[case.items :], parameters(case.queries)
    ours: list[Run] = []
    experts: list[Run] = []
    rows = 0
    with TemporaryDirectory(prefix="mmqjp-expert-") as directory:
        for number in range(rounds):
            mine, his = Path(directory) / f"ours{number}", Path(directory) / f"expert{number}"
            ours.append(by_engine(engine, plan, batches, singles, asked, mine))
            experts.append(by_expert(batches, singles, asked, his))
            if number == 0:
                expected, found = digests(his), digests(mine)
                assert found == expected, "the engine and the expert write different lines"
                rows = len(found)
            mine.unlink()
            his.unlink()
    seconds = statistics.median(run.seconds for run in ours)
    baseline = statistics.median(run.seconds for run in experts)
    one = [statistics.median(second for run in runs for second in run.singles) for runs in (ours, experts)]
    registering = statistics.median(run.registering for run in ours)
    about = {"queries": case.queries, "items": case.items, "batch": case.batch}
    details = {"items_a_second": case.items / seconds, "expert": baseline, "over_expert": seconds / baseline}
    details |= {"document_ms": one[0] * 1000, "expert_document_ms": one[1] * 1000, "registering": registering}
    return [Line("expert", about, engine, plan, seconds, rows, "expert", baseline / seconds, details=details)]


COLUMNS: tuple[Column, ...] = (
    ("queries", lambda line: line.case["queries"]),
    ("items", lambda line: line.case["items"]),
    ("lines", lambda line: line.rows),
    ("seconds of CPU", lambda line: line.seconds),
    ("items/s", lambda line: line.details["items_a_second"]),
    ("expert, s", lambda line: line.details["expert"]),
    ("over expert", lambda line: line.details["over_expert"]),
    ("one document, ms", lambda line: line.details["document_ms"]),
    ("expert, ms", lambda line: line.details["expert_document_ms"]),
    ("registering, s", lambda line: line.details["registering"]),
)


def main() -> None:
    options = parsed(parser("expert", "from bytes to lines, beside a program written by hand"))
    numbers = options.queries or (QUICK_NUMBERS if options.quick else NUMBERS)
    plan = options.plan or DEFAULT_PLAN
    cases = [Case(number, QUICK_ITEMS if options.quick else ITEMS) for number in numbers]
    lines = [line for case in with_progress(cases, str) for line in measure(case, options.engine, plan)]
    show(lines, f"beside a program written by hand, {options.engine}", COLUMNS)
    keep(lines, options)
    if options.plot:
        from bench.stage2_plot import draw_expert

        draw_expert(lines, options.plot)


if __name__ == "__main__":
    main()
