"""What visitors of the page cost the engine, and how long they wait: `mmqjp serve` beside a running engine.

`mmqjp serve` runs in a process of its own, over 10,000 subscriptions that have a million outputs. Documents come in
files, each as soon as the one before is processed: in turns nobody visits, and 50 pages a second are asked for. What
visitors cost is the time of the files with them over that of those without, the median over pairs of turns. The outputs
must be those of an engine that nobody visits, and each page must show what the store has. Times are of the clock;
visitors are a thread of the benchmark, which takes part of the processors, too.
"""

from __future__ import annotations

import json
import shutil
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.command import with_progress
from bench.expert_workload import parameters, script
from bench.latency import percentile
from bench.latency_service import Place, RunningService
from bench.serve_pages import Pages
from bench.serve_visitors import Times, Visitors
from bench.stage2_report import Column, Line, keep, plain_parser, show
from bench.workload import items
from feeds.documents import Document
from join_stage.protocol import DEFAULT_PLAN
from mmqjp.commands.console import interruptible
from mmqjp.engine import Session
from mmqjp.process import gc_frozen

QUERIES, OUTPUTS, RATE = 10_000, 1_000_000, 50.0
TURNS, QUICK_TURNS = 12, 4
READY, PROCESSED = 600.0, 300.0
"""The most seconds until the service has started, and until what was dropped is processed."""
STEP = 1_000
"""So many documents are processed at once before the service starts."""
MOST_SLOWER, MOST_P95_MS = 1.1, 200.0
"""What is promised: the engine is slowed down by a tenth at most, and of any kind of page 95 of 100 are as fast."""


@dataclass(frozen=True)
class Case:
    """So many queries and outputs, and turns of so many files of documents with and without visitors."""

    queries: int = QUERIES
    outputs: int = OUTPUTS
    rate: float = RATE
    turns: int = TURNS
    files: int = 10
    documents: int = 1_000
    """The documents of a file."""


def measure(case: Case, kept: Path | None = None) -> list[Line]:
    """A line for the engine and one for each kind of page. Raises AssertionError if visitors change what comes out, or
    if a page does not show what the store has; ServiceFailed. The store that is filled is `kept` in a directory for the
    next time, which begins with it."""
    with TemporaryDirectory(prefix="mmqjp-serve-") as directory:
        place, made = Place(Path(directory)), Path(directory) / "made"
        place.drops.mkdir()
        made.mkdir()
        place.queries.write_text(script(parameters(case.queries)), encoding="utf-8")
        state, unvisited = place.directory / "state", place.directory / "unvisited"
        documents = items(1 << 40)
        if kept is None or not kept.exists():
            _fill(case, unvisited, documents)
            if kept is not None:
                shutil.copytree(unvisited, kept)
        else:
            shutil.copytree(kept, unvisited)
            _pass_over(case, unvisited, documents)
        shutil.copytree(unvisited, state)
        names = _make_files(case, made, documents)
        address = f"127.0.0.1:{_free_port()}"
        options = ["--engine", "duckdb", "--state", state, "--address", address, "--lateness", "INF"]
        options += ["--idle-after", "INF", "--max-ahead", "INF", "--batch-size", case.documents]
        with RunningService(place, options, "serve") as service:
            service.wait_until_ready(READY)
            pages = Pages(f"http://{address}", state, [f"q{n + 1}" for n in range(case.queries)])
            pages.check(unvisited)
            times = Times()
            alone, visited = _turns(case, place, made, names, service, pages, times)
            service.stop()
        _process(unvisited, [made / name for name in names])
        outputs = _ids(state)
        assert outputs == _ids(unvisited), "visitors have changed what comes out"
        assert not times.wrong, times.wrong[:10]
        return [*_report(case, alone, visited, len(outputs)), *_page_lines(case, times)]


def _fill(case: Case, state: Path, documents: Iterator[Document]) -> None:
    """Makes a store with the outputs of the case."""
    count = 0
    with _opened(state) as engine, gc_frozen():
        engine.subscribe(script(parameters(case.queries)))
        while count < case.outputs:
            count += len(engine.process([next(documents) for _ in range(STEP)]))


def _pass_over(case: Case, state: Path, documents: Iterator[Document]) -> None:
    """Passes over the documents of a store that was filled before. Raises AssertionError if that was for another
    case."""
    with _opened(state) as engine:
        (told,) = engine.sql(
            "SELECT (SELECT count(*) FROM documents) AS documents, (SELECT max(last_seq) FROM answers) AS seq",
            trusted=True,
        ).to_pylist()
        assert told["seq"] >= case.outputs - 1 and len(engine.queries()) == case.queries, "the store is another one"
    next(islice(documents, told["documents"] - 1, None), None)


def _opened(state: Path) -> Session:
    return Session("duckdb", state=state, max_matches=None, max_outputs=None, max_work=None)


def _make_files(case: Case, directory: Path, documents: Iterator[Document]) -> list[str]:
    """Writes the files of all turns, one more to begin with, and returns their names."""
    names = []
    for number in range(2 * case.turns * case.files + 1):
        names.append(f"{number:05}.jsonl")
        with (directory / names[-1]).open("w", encoding="utf-8") as lines:
            for document in (next(documents) for _ in range(case.documents)):
                fields = {"id": document.id, "stream": document.stream, "time": document.t0, "xml": document.xml}
                lines.write(json.dumps(fields) + "\n")
    return names


def _turns(
    case: Case,
    place: Place,
    made: Path,
    names: Sequence[str],
    service: RunningService,
    pages: Pages,
    times: Times,
) -> tuple[list[float], list[float]]:
    """The seconds of each turn without and with visitors."""
    left, dropped = iter(names), 0

    def is_processed() -> bool:
        return service.documents() >= dropped

    def process(files: int) -> float:
        nonlocal dropped
        begin = time.perf_counter()
        for _ in range(files):
            name = next(left)
            shutil.copyfile(made / name, made / f"{name}.tmp")
            (made / f"{name}.tmp").rename(place.drops / name)
            dropped += case.documents
            service.wait_until(is_processed, PROCESSED, f"process {dropped:,} documents")
        return time.perf_counter() - begin

    process(1)
    alone, visited = list[float](), list[float]()
    requests = pages.requests()
    for turn in range(case.turns):
        for with_visitors in (False, True) if turn % 2 == 0 else (True, False):
            if not with_visitors:
                alone.append(process(case.files))
                continue
            with Visitors(pages.url, pages.token, requests, case.rate, times):
                visited.append(process(case.files))
    return alone, visited


def _process(state: Path, files: Sequence[Path]) -> None:
    """Has an engine without visitors process the files."""
    with _opened(state) as engine, gc_frozen():
        for file in files:
            lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
            engine.process(
                [Document(line["id"], line["xml"], stream=line["stream"], time=line["time"]) for line in lines]
            )


def _ids(state: Path) -> list[str]:
    """The ids of all outputs of a store, sorted."""
    with _opened(state) as engine:
        return sorted(engine.sql("SELECT id FROM outputs", trusted=True)["id"].to_pylist())


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _report(case: Case, alone: list[float], visited: list[float], outputs: int) -> Iterator[Line]:
    ratios = [sum(one) / sum(other) for one, other in zip(_paired(visited), _paired(alone), strict=True)]
    documents = case.files * case.documents
    details = {
        "slower": statistics.median(ratios),
        "most_slower": MOST_SLOWER,
        "documents_a_second": documents / statistics.median(visited),
        "documents_a_second_alone": documents / statistics.median(alone),
    }
    about = {"page": "", **_about(case)}
    seconds = statistics.median(visited)
    speedup = 1 / statistics.median(ratios)
    yield Line("serve", about, "duckdb", DEFAULT_PLAN, seconds, outputs, "nobody visits", speedup, details=details)


def _paired(turns: Sequence[float]) -> Iterator[Sequence[float]]:
    """Two turns at a time: with visitors first in one and last in the other, so that what comes back in each second
    turn, such as a checkpoint of the store, is in both."""
    return (turns[first : first + 2] for first in range(0, len(turns), 2))


def _page_lines(case: Case, times: Times) -> Iterator[Line]:
    for page, seconds in sorted(times.seconds.items()):
        shares = {f"p{share}_ms": 1000 * percentile(seconds, share) for share in (50, 95)}
        about, middle = {"page": page, **_about(case)}, percentile(seconds, 50)
        yield Line(
            "serve", about, "duckdb", DEFAULT_PLAN, middle, len(seconds), None, None,
            details={**shares, "most_p95_ms": MOST_P95_MS, "put_off": times.put_off.get(page, 0)},
        )  # fmt: skip


def _about(case: Case) -> dict[str, object]:
    return {"queries": case.queries, "outputs": case.outputs, "pages_a_second": case.rate}


COLUMNS: tuple[Column, ...] = (
    ("page", lambda line: line.case["page"] or "the engine"),
    ("queries", lambda line: line.case["queries"]),
    ("pages/s", lambda line: line.case["pages_a_second"]),
    ("visits", lambda line: line.rows if line.case["page"] else None),
    ("p50, ms", lambda line: line.details.get("p50_ms")),
    ("p95, ms", lambda line: line.details.get("p95_ms")),
    ("put off", lambda line: line.details.get("put_off")),
    ("documents/s", lambda line: line.details.get("documents_a_second")),
    ("alone", lambda line: line.details.get("documents_a_second_alone")),
    ("slower", lambda line: line.details.get("slower")),
)


def main() -> None:
    made = plain_parser("serve", "what visitors of the page cost the engine, and how long they wait")
    made.add_argument("--rate", type=float, default=RATE, metavar="N", help="pages a second; default: 50")
    made.add_argument("--keep", type=Path, metavar="DIR", help="keep the filled store in DIR, and begin with it")
    options = made.parse_args()
    turns = QUICK_TURNS if options.quick else TURNS
    cases = [Case(queries, rate=options.rate, turns=turns) for queries in options.queries or [QUERIES]]
    with interruptible():  # so that the service is ended on SIGTERM, too
        lines = [line for case in with_progress(cases, str) for line in measure(case, options.keep)]
    show(lines, "the page beside the engine", COLUMNS)
    keep(lines, options)


if __name__ == "__main__":
    main()
