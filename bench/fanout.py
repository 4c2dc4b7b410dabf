"""What many queries over the same matches cost, beside one of them alone and beside writing the same lines.

Pairs of documents match for all queries of a kind. Each case has its own process. A sample is also run alone."""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from resource import RUSAGE_SELF, getrusage

from bench import harness
from bench.harness import Line, columns
from bench.plots import Panel, PlotSeries, draw_panels, grouped
from bench.workload import SECOND, START
from common.tools import gc_frozen
from feeds.documents import Document
from join_stage.plans import DEFAULT_PLAN
from mmqjp.answers.fan_out import Chunk, OutputStream, Position
from mmqjp.engine import Session
from mmqjp.sinks.files import GrowingFile

PAIRS, NUMBERS, QUICK_NUMBERS = 1_000, [1, 100, 10_000, 100_000], [1, 100]
SAMPLE = 3  # the number of queries that are run alone
WORDS, SELECTS = 1_000, 100
READ_ROWS = WRITTEN_LINES = 1_000_000  # the most outputs that are read, and written


def followed_by(predicate: str = "t = u", window: str = "60 min") -> str:
    return f"FROM S//a->x[./t->t][./w->w] FOLLOWED BY {{{predicate}, {window}}} S//b->y[./t->u]"


FANOUT_KINDS: dict[str, Callable[[int], str]] = {
    "same": lambda n: followed_by(),
    "windows": lambda n: followed_by(window=f"{3_600 + n} s"),
    "selects": lambda n: f"SELECT t AS k{n % SELECTS}, y {followed_by()}",
    "keywords": lambda n: followed_by(f't = u AND contains(w, "word{n % WORDS:03}.")'),
    "chains": lambda n: f"{followed_by()} FOLLOWED BY {{u = v, 60 min}} S//c[./t->v]",
}


@dataclass(frozen=True)
class FanoutCase:
    kind: str
    queries: int
    pairs: int = PAIRS
    engine: str = "duckdb"
    plan: str = DEFAULT_PLAN

    def script(self, numbers: Iterable[int]) -> str:
        return "".join(f"{FANOUT_KINDS[self.kind](n)} PUBLISH n{n};\n" for n in numbers)

    def documents(self) -> list[Document]:
        rng = Random(7)
        found = []
        for place, name in enumerate("abc" if self.kind == "chains" else "ab"):
            for n in range(self.pairs):
                text = f"<w>word{rng.randrange(WORDS):03}. {'some more words ' * 5}</w>"
                xml = f"<{name}><t>value {n}</t>{text}</{name}>"
                found.append(Document(f"{name}{n}", xml, time=START + place * 60 * SECOND + n))
        return found


def measure_fanout(case: FanoutCase) -> Line:
    """Runs one case. Raises AssertionError if a query of the sample gets something else alone."""
    documents = case.documents()
    sample = sorted({*Random(case.queries).sample(range(case.queries), min(SAMPLE, case.queries))})
    cpu = partial(harness.seconds_of, clock=time.process_time)
    with tempfile.TemporaryDirectory(prefix="mmqjp-fanout-") as name:
        directory = Path(name)
        with open_unlimited(case.engine, case.plan, directory / "state") as engine:
            registering = cpu(lambda: engine.subscribe(case.script(range(case.queries))))
            with gc_frozen():
                engine.process([])  # what registration leaves to the first batch
                before = _state_bytes(case, engine)
                seconds, outputs = harness.timed(partial(engine.process, documents), time.process_time)
            memory = getrusage(RUSAGE_SELF).ru_maxrss >> 10
            for n in sample:
                assert _rows(engine, n) == _alone(case, n, documents), f"{case.kind}: n{n} gets something else alone"
            reading = cpu(lambda: sum(1 for _ in islice(engine.outputs(), READ_ROWS)))
            sink = GrowingFile(directory / "lines", Position())
            sink.prepare(list)
            writing = cpu(lambda: sink.write(_first(outputs, WRITTEN_LINES)))
            sink.close()
            written = getrusage(RUSAGE_SELF).ru_maxrss >> 10
            size = _state_bytes(case, engine) - before
        lines = (directory / "lines").read_bytes().splitlines(keepends=True)
        with (directory / "floor").open("wb", buffering=1 << 20) as out:  # as many lines at a time as the sink writes
            floor = cpu(lambda: (out.writelines(lines), out.flush()))
    count = len(outputs)

    def rate(number: int, taken: float) -> float:
        return number / taken if taken else 0.0

    details = {
        "registering": registering,
        "outputs_a_second": count / seconds,
        "rows_read_a_second": rate(min(count, READ_ROWS), reading),
        "lines_a_second": rate(len(lines), writing),
        "floor_lines_a_second": rate(len(lines), floor),
        "state_bytes": size,
        "rss_mib": memory,
        "rss_written_mib": written,
    }
    about = {"kind": case.kind, "queries": case.queries, "pairs": case.pairs}
    return Line("fanout", about, case.engine, case.plan, seconds, count, details=details)


def open_unlimited(engine: str, plan: str, state: Path | None = None, lateness: int | None = None) -> Session:
    return Session(engine, state=state, plan=plan, lateness=lateness, max_matches=None, max_outputs=None, max_work=None)


def count_outputs(engine: Session, script: str, documents: Sequence[Document], batch: int) -> tuple[float, int]:
    """Registers queries and processes documents in batches. Returns the seconds of CPU, and the number of outputs."""
    engine.subscribe(script)
    with gc_frozen():
        engine.process([])  # what registration leaves to the first batch
        parts = [documents[at : at + batch] for at in range(0, len(documents), batch)]
        return harness.timed(lambda: sum(len(engine.process(part)) for part in parts), time.process_time)


def _state_bytes(case: FanoutCase, engine: Session) -> int:
    """The size of the state. What DuckDB has only logged so far would count with all that the log has beside."""
    if case.engine == "duckdb":
        engine.sql("CHECKPOINT", trusted=True)
    return engine.state_bytes() or 0


def _alone(case: FanoutCase, number: int, documents: list[Document]) -> list[dict[str, object]]:
    with open_unlimited(case.engine, case.plan) as engine:
        engine.subscribe(case.script([number]))
        engine.process(documents)
        return _rows(engine, number)


def _rows(engine: Session, number: int) -> list[dict[str, object]]:
    names = "query, t0, t1, documents, streams, nodes, xml, id"
    sql = f"SELECT {names} FROM outputs WHERE query = 'n{number}' ORDER BY t1, t0, id"
    rows: list[dict[str, object]] = engine.sql(sql, trusted=True).to_pylist()
    return rows


def _first(outputs: OutputStream, count: int) -> OutputStream:
    """The first outputs, to the end of the chunk in which there are enough."""

    def chunks() -> Iterator[Chunk]:
        left = count
        for chunk in outputs.chunks():
            if left <= 0:
                return
            left -= len(chunk)
            yield chunk

    return OutputStream(chunks)


def beside_one(lines: Sequence[Line]) -> list[Line]:
    kind, one = (lambda line: line.case["kind"]), (lambda line: line.case["queries"] == 1)
    return harness.beside(lines, kind, one, "one query", "over_one_query")


FANOUT_COLUMNS = columns(
    "kind | queries | outputs = rows | registering, s = registering | commit, s = seconds | "
    "over one query = over_one_query | outputs/s = outputs_a_second | rows read/s = rows_read_a_second | "
    "lines/s = lines_a_second | floor, lines/s = floor_lines_a_second | state, bytes = state_bytes | "
    "memory, MiB = rss_mib | ... written = rss_written_mib"
)


def draw_fanout(lines: Sequence[Line], prefix: Path) -> None:
    kinds = grouped(lines, lambda line: line.case["kind"])
    panels = [
        Panel("queries", "queries", label, [PlotSeries(kind, key, lines=of) for kind, of in kinds.items()], log)
        for label, key, log in (
            ("seconds of CPU to commit", "seconds", "xy"),
            ("lines a second of CPU", "lines_a_second", "x"),
        )
    ]
    draw_panels(lines, prefix, panels)


def bench_fanout() -> None:
    parser = harness.engine_parser("fanout", "many queries over the same matches")
    parser.add_argument("--kind", choices=list(FANOUT_KINDS), help="measure one kind; default: all")
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help="pairs of documents that match")
    options = harness.parse_options(parser)
    cases = [
        FanoutCase(kind, number, options.pairs, options.engine, options.plan or DEFAULT_PLAN)
        for kind in ([options.kind] if options.kind else FANOUT_KINDS)
        for number in options.queries or (QUICK_NUMBERS if options.quick else NUMBERS)
    ]
    lines = beside_one([harness.in_fresh_process(measure_fanout, case) for case in harness.with_progress(cases)])
    harness.report(lines, f"many queries over the same matches, {options.engine}", FANOUT_COLUMNS, options, draw_fanout)
