"""What many queries over the same matches cost, beside one of them alone and beside writing the same lines.

Pairs of documents match for all queries of a kind: queries whose names differ (`same`), whose windows differ, too
(`windows`), with one of 100 different SELECTs (`selects`), for a word in the text (`keywords`), of three blocks
(`chains`). Each case runs in a process of its own. Before a time is reported, some of the queries are run alone, and
must get the same outputs. Times are seconds of CPU.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from resource import RUSAGE_SELF, getrusage

from bench.command import with_progress
from bench.fresh import in_fresh_process
from bench.stage2_report import Column, Line, keep, parsed, parser, show
from feeds.documents import Document
from join_stage.protocol import DEFAULT_PLAN
from mmqjp.answers.fan_out import Chunk, OutputStream
from mmqjp.answers.outbox import Position
from mmqjp.engine import Session
from mmqjp.process import gc_frozen
from mmqjp.sinks.files import GrowingFile

START, SECOND = 1_780_000_000_000_000, 1_000_000
PAIRS, NUMBERS, QUICK_NUMBERS = 1_000, [1, 100, 10_000, 100_000], [1, 100]
SAMPLE = 3
"""The number of queries that are run alone."""
WORDS, SELECTS = 1_000, 100
READ_ROWS = WRITTEN_LINES = 1_000_000
"""At most so many outputs are read, and written."""

_LEFT, _RIGHT = "S//a->x[./t->t][./w->w]", "S//b->y[./t->u]"


def _same(n: int) -> str:
    return f"FROM {_LEFT} FOLLOWED BY {{t = u, 60 min}} {_RIGHT}"


def _windows(n: int) -> str:
    return f"FROM {_LEFT} FOLLOWED BY {{t = u, {3_600 + n} s}} {_RIGHT}"


def _selects(n: int) -> str:
    return f"SELECT t AS k{n % SELECTS}, y {_same(n)}"


def _keywords(n: int) -> str:
    return f'FROM {_LEFT} FOLLOWED BY {{t = u AND contains(w, "word{n % WORDS:03}."), 60 min}} {_RIGHT}'


def _chains(n: int) -> str:
    return f"{_same(n)} FOLLOWED BY {{u = v, 60 min}} S//c[./t->v]"


KINDS: dict[str, Callable[[int], str]] = {
    "same": _same,
    "windows": _windows,
    "selects": _selects,
    "keywords": _keywords,
    "chains": _chains,
}


@dataclass(frozen=True)
class Case:
    """How much is measured: `queries` of a kind over `pairs` of documents."""

    kind: str
    queries: int
    pairs: int = PAIRS
    engine: str = "duckdb"
    plan: str = DEFAULT_PLAN


def script(case: Case, numbers: range | list[int]) -> str:
    """The queries with these numbers as a script. Query number 7 is called n7."""
    return "".join(f"{KINDS[case.kind](n)} PUBLISH n{n};\n" for n in numbers)


def documents(case: Case) -> list[Document]:
    """Documents that match by twos, or by threes for chains. Each has one of the words that `keywords` ask for."""
    rng = Random(7)
    found = []
    for place, name in enumerate("abc" if case.kind == "chains" else "ab"):
        for n in range(case.pairs):
            text = f"<w>word{rng.randrange(WORDS):03}. {'some more words ' * 5}</w>"
            xml = f"<{name}><t>value {n}</t>{text}</{name}>"
            found.append(Document(f"{name}{n}", xml, time=START + place * 60 * SECOND + n))
    return found


def measure(case: Case) -> Line:
    """Runs one case. Raises AssertionError if a query of the sample gets something else alone."""
    with tempfile.TemporaryDirectory(prefix="mmqjp-fanout-") as directory:
        return _measure(case, Path(directory))


def _measure(case: Case, directory: Path) -> Line:
    given = documents(case)
    sample = sorted({*Random(case.queries).sample(range(case.queries), min(SAMPLE, case.queries))})
    with _opened(case, directory / "state") as engine:
        registering = _clocked(lambda: engine.subscribe(script(case, range(case.queries))))
        with gc_frozen():
            engine.process([])  # what registration leaves to the first batch
            before = _state_bytes(case, engine)
            begin = time.process_time()
            outputs = engine.process(given)
            seconds = time.process_time() - begin
        memory = getrusage(RUSAGE_SELF).ru_maxrss >> 10
        for n in sample:
            assert _rows(engine, n) == _alone(case, n, given), f"{case.kind}: n{n} gets something else alone"
        reading = _clocked(lambda: sum(1 for _ in islice(engine.outputs(), READ_ROWS)))
        sink = GrowingFile(directory / "lines", Position())
        sink.prepare(list)
        writing = _clocked(lambda: sink.write(_first(outputs, WRITTEN_LINES)))
        sink.close()
        written = getrusage(RUSAGE_SELF).ru_maxrss >> 10
        size = _state_bytes(case, engine) - before
    lines = (directory / "lines").read_bytes().splitlines(keepends=True)
    floor = _clocked(lambda: _write(lines, directory / "floor"))
    count = len(outputs)
    details = {
        "registering": registering,
        "outputs_a_second": count / seconds,
        "rows_read_a_second": min(count, READ_ROWS) / reading if reading else 0.0,
        "lines_a_second": len(lines) / writing if writing else 0.0,
        "floor_lines_a_second": len(lines) / floor if floor else 0.0,
        "state_bytes": size,
        "rss_mib": memory,
        "rss_written_mib": written,
    }
    about = {"kind": case.kind, "queries": case.queries, "pairs": case.pairs}
    return Line("fanout", about, case.engine, case.plan, seconds, count, None, None, details=details)


def _opened(case: Case, state: Path | None) -> Session:
    return Session(case.engine, state=state, plan=case.plan, max_matches=None, max_outputs=None, max_work=None)


def _state_bytes(case: Case, engine: Session) -> int:
    """The size of the state. What DuckDB has only logged so far would count with all that the log has beside."""
    if case.engine == "duckdb":
        engine.sql("CHECKPOINT", trusted=True)
    return engine.state_bytes() or 0


def _alone(case: Case, number: int, given: list[Document]) -> list[dict[str, object]]:
    with _opened(case, None) as engine:
        engine.subscribe(script(case, [number]))
        engine.process(given)
        return _rows(engine, number)


def _rows(engine: Session, number: int) -> list[dict[str, object]]:
    columns = "query, t0, t1, documents, streams, nodes, xml, id"
    sql = f"SELECT {columns} FROM outputs WHERE query = 'n{number}' ORDER BY t1, t0, id"
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


def _clocked(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _write(lines: list[bytes], path: Path) -> None:
    """The floor: writes lines that are ready, as many at a time as the sink does."""
    with path.open("wb", buffering=1 << 20) as out:
        out.writelines(lines)


def beside_one(lines: list[Line]) -> Iterator[Line]:
    """Yields the lines, those for many queries with the time of one query of their kind as baseline."""
    alone = {line.case["kind"]: line.seconds for line in lines if line.case["queries"] == 1}
    for line in lines:
        one = alone.get(line.case["kind"])
        if one is None or line.case["queries"] == 1:
            yield line
        else:
            details = {**line.details, "over_one_query": line.seconds / one}
            yield Line(
                line.bench, line.case, line.engine, line.plan, line.seconds, line.rows, "one query",
                one / line.seconds, details=details,
            )  # fmt: skip


COLUMNS: tuple[Column, ...] = (
    ("kind", lambda line: line.case["kind"]),
    ("queries", lambda line: line.case["queries"]),
    ("outputs", lambda line: line.rows),
    ("registering, s", lambda line: line.details["registering"]),
    ("commit, s", lambda line: line.seconds),
    ("over one query", lambda line: line.details.get("over_one_query")),
    ("outputs/s", lambda line: line.details["outputs_a_second"]),
    ("rows read/s", lambda line: line.details["rows_read_a_second"]),
    ("lines/s", lambda line: line.details["lines_a_second"]),
    ("floor, lines/s", lambda line: line.details["floor_lines_a_second"]),
    ("state, bytes", lambda line: line.details["state_bytes"]),
    ("memory, MiB", lambda line: line.details["rss_mib"]),
    ("... written", lambda line: line.details["rss_written_mib"]),
)


def main() -> None:
    made = parser("fanout", "many queries over the same matches")
    made.add_argument("--kind", choices=list(KINDS), help="measure one kind; default: all")
    made.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help="pairs of documents that match")
    options = parsed(made)
    numbers = options.queries or (QUICK_NUMBERS if options.quick else NUMBERS)
    kinds = [options.kind] if options.kind else list(KINDS)
    cases = [
        Case(kind, number, options.pairs, options.engine, options.plan or DEFAULT_PLAN)
        for kind in kinds
        for number in numbers
    ]
    lines = list(beside_one([in_fresh_process(measure, case) for case in with_progress(cases, str)]))
    show(lines, f"many queries over the same matches, {options.engine}", COLUMNS)
    keep(lines, options)
    if options.plot:
        from bench.stage2_plot import draw_fanout

        draw_fanout(lines, options.plot)


if __name__ == "__main__":
    main()
