"""Running services: from the appearance of a file to its output line, and what visitors of the page cost the engine.

Visitors are a thread of the benchmark, which takes part of the processors, too. Times are of the clock.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from html import unescape
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

import httpx

from bench import harness
from bench.fanout import open_unlimited
from bench.harness import Line, columns
from bench.plots import Panel, PlotSeries, draw_panels, grouped
from bench.spark_cluster import free_ports
from bench.workload import document_line, items, parameters, read_documents, script_of, write_documents
from common.tools import gc_frozen
from feeds.documents import Document
from join_stage.plans import DEFAULT_PLAN
from mmqjp.commands.console import interruptible
from mmqjp.engine import Session

READ_EVERY = 0.001  # seconds between two readings of the output file, which bound the error of latencies
LOG_EVERY = 0.01  # seconds between two readings of the log
STOP_SECONDS = 60.0  # seconds until a process that was asked to end is killed


class ServiceFailed(RuntimeError):
    """The process has ended, or has missed a deadline. The message has the end of its log."""


class ServiceFiles:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.queries, self.drops = directory / "queries.xscl", directory / "drops"
        self.lines, self.log = directory / "lines.jsonl", directory / "log.jsonl"


def mmqjp_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "mmqjp", *map(str, arguments)]


class RunningService(AbstractContextManager["RunningService"]):
    """`mmqjp stream`, or `serve` without output lines, over a place's drops, with `options`, until the context ends."""

    def __init__(self, place: ServiceFiles, options: Sequence[object], command: str = "stream") -> None:
        self._place, self._documents, self._read = place, 0, 0
        line = mmqjp_command(command, "--source", place.drops, "--queries", place.queries)
        line += ["--output", str(place.lines)] if command == "stream" else []
        with place.log.open("wb") as log:
            self._process = subprocess.Popen([*line, *map(str, options), "--log", "json"], stderr=log)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def wait_until_ready(self, seconds: float) -> None:
        self.wait_until(lambda: b'"event": "started"' in self._place.log.read_bytes(), seconds, "start")

    def wait_until(self, is_done: Callable[[], bool], seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while not is_done():
            if self._process.poll() is not None:
                raise ServiceFailed(f"the service has ended with status {self._process.returncode}: {self._end()}")
            if time.monotonic() > until:
                raise ServiceFailed(f"the service did not {what} within {seconds:,.0f} s: {self._end()}")
            time.sleep(LOG_EVERY)

    def documents(self) -> int:
        with self._place.log.open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                if not line.startswith(b"{"):  # the link of `serve`
                    continue
                event = json.loads(line)
                self._documents += event["documents"] if event["event"] == "batch" else 0
        return self._documents

    def stop(self) -> None:
        self._process.terminate()
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise ServiceFailed(f"the service did not end within {STOP_SECONDS:g} s: {self._end()}") from None
        if status:
            raise ServiceFailed(f"the service has ended with status {status}: {self._end()}")

    def _end(self) -> str:
        return self._place.log.read_bytes()[-2_000:].decode("utf-8", "replace")


class _Threaded(AbstractContextManager[Any]):
    """Inside the context, a thread works until it is stopped."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._stop, self._thread = Event(), Thread(target=work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class LineTimes(_Threaded):
    """Inside the context, a thread notes when each part of a growing file arrives, but keeps no lines."""

    def __init__(self, path: Path) -> None:
        super().__init__(self._work)
        self._path = path
        self._times, self._ends = list[float](), list[int]()

    def is_at_end(self) -> bool:
        size = self._path.stat().st_size if self._path.exists() else 0
        return size == (self._ends[-1] if self._ends else 0)

    def lines(self) -> Iterator[tuple[float, bytes]]:
        end = 0
        with self._path.open("rb") as file:
            for line in file:
                end += len(line)
                yield self._times[bisect_left(self._ends, end)], line

    def _work(self) -> None:
        while not self._path.exists():
            if self._stop.wait(READ_EVERY):
                return
        with self._path.open("rb", buffering=0) as file:
            while not self._stop.wait(READ_EVERY):
                while part := file.read(1 << 20):
                    self._times.append(time.perf_counter())
                    self._ends.append((self._ends[-1] if self._ends else 0) + len(part))


def percentile(values: Sequence[float], share: int) -> float:
    """The smallest of the values that at least `share` per cent of them do not exceed.

    >>> percentile([3.0, 1.0, 2.0, 4.0], 50), percentile([3.0, 1.0, 2.0, 4.0], 95)
    (2.0, 4.0)
    """
    return sorted(values)[max(-(-len(values) * share // 100), 1) - 1]


NUMBERS, QUICK_NUMBERS = [1_000, 100_000], [1_000]
READY, BATCH_RUN, PROCESSED = 1_800.0, 1_800.0, 600.0
"""The most seconds until the service has started, a batch run has ended, and what was dropped is processed."""
GAP = 0.05, 0.55  # the range of the seconds between the end of one document and the next, when the service is idle
HALF_SECONDS, LEAST = 15.0, 200
"""The seconds of documents at half the throughput, if there are enough; and the least number of these documents."""


@dataclass(frozen=True)
class LatencyCase:
    """The documents before all else, at once, one by one, and at most at half the rate."""

    queries: int
    engine: str = "duckdb"
    plan: str = DEFAULT_PLAN
    trigger: str = "1s"
    before: int = 1_000
    at_once: int = 1_000
    idle: int = 200
    half: int = 8_000


LatencyPhase = tuple[int, list[float]]
"""Documents that were dropped one after the other: the number of the first, and the time of each."""


def measure_latency(case: LatencyCase) -> list[Line]:
    """Lines for an idle service and for one at half its throughput."""
    with TemporaryDirectory(prefix="mmqjp-latency-") as directory:
        place, waiting = ServiceFiles(Path(directory)), Path(directory) / "waiting"
        place.drops.mkdir()
        place.queries.write_text(script_of(parameters(case.queries)), encoding="utf-8")
        waiting.mkdir()
        for number, item in enumerate(items(case.before + case.at_once + case.idle + case.half)):
            path = waiting / f"{number:07}.xml"
            path.write_bytes(item.xml_bytes())
            os.utime(path, ns=(item.t0 * 1000, item.t0 * 1000))
        options = ["--engine", case.engine, "--plan", case.plan, "--state", place.directory / "state"]
        # The documents are older than the clock, and the batch run knows no lateness.
        options += ["--trigger", case.trigger, "--lateness", "INF", "--idle-after", "INF", "--max-ahead", "INF"]
        with RunningService(place, options) as service, LineTimes(place.lines) as arrivals:
            service.wait_until_ready(READY)
            phases, rate = _phases(case, place, waiting, service)
            service.wait_until(arrivals.is_at_end, PROCESSED, "write its lines")
            service.stop()
        same = _line_ids(place.lines) == _line_ids(_batch_run(place))
        assert same, "the service and a batch run write different lines"
        # Of the documents that a match is about, the last to come completes it.
        last = {max(int(Path(of).stem) for of in json.loads(line)["documents"]): at for at, line in arrivals.lines()}
        return [_latency_line(case, load, phase, last, rate) for load, phase in phases.items()]


def _phases(
    case: LatencyCase, place: ServiceFiles, waiting: Path, service: RunningService
) -> tuple[dict[str, LatencyPhase], float]:
    rng = Random(3)
    dropped = 0

    def drop() -> float:
        nonlocal dropped
        name = f"{dropped:07}.xml"
        now = time.perf_counter()
        os.rename(waiting / name, place.drops / name)  # noqa: PTH104  # the fastest way
        dropped += 1
        return now

    def settle() -> None:
        service.wait_until(lambda: service.documents() >= dropped, PROCESSED, f"process {dropped:,} documents")

    def drop_many(count: int) -> None:
        for _ in range(count):
            drop()
        settle()

    drop_many(case.before)
    rate = case.at_once / harness.seconds_of(lambda: drop_many(case.at_once))
    idle: LatencyPhase = dropped, []
    for _ in range(case.idle):
        time.sleep(rng.uniform(*GAP))
        idle[1].append(drop())
        settle()
    half: LatencyPhase = dropped, []
    due = time.perf_counter()
    for _ in range(min(case.half, max(round(HALF_SECONDS * rate / 2), LEAST))):
        due += rng.expovariate(rate / 2)
        time.sleep(max(due - time.perf_counter(), 0))
        half[1].append(drop())
    settle()
    return {"idle": idle, "half": half}, rate


def _batch_run(place: ServiceFiles) -> Path:
    lines = place.directory / "expected.jsonl"
    files = ["--queries", place.queries, "--documents", place.drops, "--output", lines]
    subprocess.run(mmqjp_command("run", "--engine", "duckdb", *files), check=True, timeout=BATCH_RUN)
    return lines


def _line_ids(lines: Path) -> list[str]:
    with lines.open("rb") as found:
        return sorted(str(json.loads(line)["id"]) for line in found)


def _latency_line(case: LatencyCase, load: str, phase: LatencyPhase, last: dict[int, float], rate: float) -> Line:
    first, times = phase
    seconds = [last[number] - at for number, at in enumerate(times, first) if number in last]
    assert seconds, f"no document that came in the phase {load!r} has a line"
    details: dict[str, object] = {f"p{share}_ms": 1000 * percentile(seconds, share) for share in (50, 95, 99)}
    offered = len(times) / (times[-1] - times[0]) if len(times) > 1 else None
    details |= {"most_ms": 1000 * max(seconds), "throughput": rate, "documents_a_second": offered}
    about = {"queries": case.queries, "load": load, "trigger": case.trigger, "documents": len(times)}
    return Line("latency", about, case.engine, case.plan, percentile(seconds, 50), len(seconds), details=details)


LATENCY_COLUMNS = columns(
    "queries | load | documents | with lines = rows | throughput, documents/s = throughput | "
    "documents/s = documents_a_second | p50, ms = p50_ms | p95, ms = p95_ms | p99, ms = p99_ms | most, ms = most_ms"
)


def draw_latency(lines: Sequence[Line], prefix: Path) -> None:
    panels = []
    for load, of in grouped(lines, lambda line: line.case["load"]).items():
        series = [PlotSeries(share, f"{share}_ms", lines=of) for share in ("p50", "p95", "p99")]
        panels.append(Panel("queries", "queries", "ms", series, "xy", load))
    draw_panels(lines, prefix, panels)


def bench_latency() -> None:
    parser = harness.engine_parser("latency", "from the appearance of a file to its output line")
    parser.add_argument("--trigger", default="1s", metavar="DURATION", help="the service's --trigger; default: 1s")
    options = harness.parse_options(parser)
    numbers = options.queries or (QUICK_NUMBERS if options.quick else NUMBERS)
    plan = options.plan or DEFAULT_PLAN
    cases = [LatencyCase(number, options.engine, plan, options.trigger) for number in numbers]
    with interruptible():  # so that the service is ended on SIGTERM, too
        lines = [line for case in harness.with_progress(cases) for line in measure_latency(case)]
    harness.report(lines, f"from a file to its line, {options.engine}", LATENCY_COLUMNS, options, draw_latency)


PAGE_SECONDS = 30.0  # seconds after which a request has failed
CONNECTIONS = 20

PageRequest = tuple[str, str]  # the name of the kind of page, and the path


@dataclass(slots=True)
class PageTimes:
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    put_off: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Visitors(_Threaded):
    def __init__(self, url: str, token: str, requests: Iterator[PageRequest], rate: float, times: PageTimes) -> None:
        super().__init__(lambda: asyncio.run(self._work()))
        self._url, self._requests, self._rate, self._times = url, requests, rate, times
        self._headers = {"Authorization": f"Bearer {token}"}

    async def _work(self) -> None:
        """Puts each request into a queue when it is due. As many tasks as there are connections send them: were all
        sent at once, those that wait would cost the client's pool time, and so the server its processor."""
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        waiting = asyncio.Queue[tuple[PageRequest, float]]()
        async with (
            httpx.AsyncClient(base_url=self._url, headers=self._headers, limits=limits, timeout=PAGE_SECONDS) as client,
            asyncio.TaskGroup() as group,  # if one fails, all end
        ):
            sending = [group.create_task(self._send(client, waiting)) for _ in range(CONNECTIONS)]
            due = time.perf_counter()
            while not self._stop.is_set():
                waiting.put_nowait((next(self._requests), due))
                due += 1 / self._rate
                await asyncio.sleep(max(due - time.perf_counter(), 0))
            await waiting.join()
            for task in sending:
                task.cancel()

    async def _send(self, client: httpx.AsyncClient, waiting: asyncio.Queue[tuple[PageRequest, float]]) -> None:
        while True:
            await self._ask(client, *await waiting.get())
            waiting.task_done()

    async def _ask(self, client: httpx.AsyncClient, request: PageRequest, due: float) -> None:
        """Sends a request. Its time begins when it was due: that it had to wait for others counts."""
        page, path = request
        try:
            answer = await client.get(path)
        except httpx.HTTPError as error:
            self._times.wrong.append(f"{path}: {error!r}")
            return
        self._times.seconds[page].append(time.perf_counter() - due)
        self._times.put_off[page] += answer.status_code == 503
        if answer.status_code not in (200, 503) and page != HOSTILE:
            self._times.wrong.append(f"{path}: {answer.status_code} {answer.text[:200]}")


HOSTILE = "hostile SQL"
_CTES = "".join(f", c{n} AS (SELECT x.a FROM c{n - 1} x, c{n - 1} y)" for n in range(1, 26))
STATEMENTS = (
    "SELECT json_contains(repeat('[', 4000000) || repeat(']', 4000000), '1')",
    f"WITH c0 AS (SELECT 1 AS a){_CTES} SELECT count(*) FROM c25",
    "SELECT length(replace(repeat('a', 60000000), 'a', repeat('b', 100)))",
    "SELECT len(list_distinct(range(400000000)))",
)
PAGE_SAMPLE = 60  # the number of queries whose matches and feeds are asked for


class Pages:
    def __init__(self, url: str, state: Path, names: Sequence[str], seed: int = 5) -> None:
        self.url, self.state, self.token = url, state, (state / "secrets" / "token").read_text().strip()
        self._names, self._rng = names, Random(seed)
        headers = {"Authorization": f"Bearer {self.token}"}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=PAGE_SECONDS)
        self._sample = sorted(self._rng.sample(names, min(PAGE_SAMPLE, len(names))))

    def _get(self, path: str) -> httpx.Response:
        return self._client.get(path).raise_for_status()

    def check(self, unvisited: Session) -> None:
        shown = {name: self._get(f"/api/v1/queries/{name}/outputs").json()["outputs"] for name in self._sample}
        listed = ", ".join(f"'{name}'" for name in self._sample)
        sql = f"SELECT query, id FROM outputs WHERE query IN ({listed}) ORDER BY seq"
        rows = unvisited.sql(sql, trusted=True).to_pylist()
        kept: dict[str, list[str]] = {name: [] for name in self._sample}
        for row in rows:
            kept[row["query"]].append(row["id"])
        for name, outputs in shown.items():
            ids = [output["id"] for output in outputs]
            assert set(ids) == set(kept[name][-len(ids) or len(kept[name]) :]), f"/q/{name} shows other outputs"
            total = self._get(f"/api/v1/queries/{name}").json()["row"]["total"]
            assert total == len(kept[name]), f"/q/{name} counts {total} outputs of {len(kept[name])}"

    def requests(self, *, hostile: bool) -> Iterator[PageRequest]:
        """Asks for addresses of matches and feeds. Returns requests without end: each kind in turn, some more often."""
        pages = [self._get(f"/q/{name}").text for name in self._sample]
        matches = [unescape(found) for page in pages for found in re.findall(r'"(/o/[^"]+)"', page)]
        feeds = [urlsplit(self._get(f"/api/v1/queries/{name}/feed").json()["url"]).path for name in self._sample]
        return self._requests(matches, feeds, STATEMENTS if hostile else ())

    def _requests(self, matches: Sequence[str], feeds: Sequence[str], others: Sequence[str]) -> Iterator[PageRequest]:
        rng = self._rng
        count = urlencode({"sql": "SELECT count(*) AS answers, max(t1) AS newest FROM answers"})
        while True:
            yield from ((HOSTILE, f"/api/v1/sql?{urlencode({'sql': sql})}") for sql in others)
            for _ in range(3):
                yield ("/q/NAME", f"/q/{rng.choice(self._names)}")
                yield ("/o/ID", rng.choice(matches))
                yield ("/f/KEY/NAME.atom", rng.choice(feeds))
            yield ("/", "/")
            yield ("/?search=", f"/?{urlencode({'search': rng.choice(self._names)})}")
            for page in ("/live", "/new", "/feeds", "/engine", "/sinks"):
                yield (page, page)
            yield ("/api/v1/sql", f"/api/v1/sql?{count}")


QUERIES, OUTPUTS, RATE = 10_000, 1_000_000, 50.0
TURNS, QUICK_TURNS = 12, 4
SERVE_READY, SERVE_PROCESSED = 600.0, 300.0
"""The most seconds until the service has started, and until what was dropped is processed."""
STEP = 1_000  # documents that are processed at once before the service starts
MOST_SLOWER, MOST_P95_MS = 1.1, 200.0
"""What is promised: the engine is slowed down by a tenth at most, and of any kind of page 95 of 100 are as fast."""


@dataclass(frozen=True)
class ServeCase:
    queries: int = QUERIES
    engine: str = "duckdb"
    outputs: int = OUTPUTS
    rate: float = RATE
    turns: int = TURNS
    files: int = 10
    documents: int = 1_000
    hostile: bool = False

    def about(self, page: str) -> dict[str, object]:
        return {"page": page, "queries": self.queries, "outputs": self.outputs, "pages_a_second": self.rate}


def measure_serve(case: ServeCase, kept: Path | None = None) -> list[Line]:
    """A line for the engine and one for each kind of page. Raises AssertionError if visitors change what comes out or a
    page shows something else; ServiceFailed. The filled store is `kept` in a directory for the next time."""
    with TemporaryDirectory(prefix="mmqjp-serve-") as directory:
        place, waiting = ServiceFiles(Path(directory)), Path(directory) / "waiting"
        place.drops.mkdir()
        waiting.mkdir()
        place.queries.write_text(script_of(parameters(case.queries)), encoding="utf-8")
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
        names = [f"{number:05}.jsonl" for number in range(2 * case.turns * case.files + 1)]  # one more to begin with
        for name in names:
            write_documents(islice(documents, case.documents), waiting / name)
        address = f"127.0.0.1:{free_ports(1)[0]}"
        options = ["--engine", case.engine, "--state", state, "--address", address, "--lateness", "INF"]
        options += ["--idle-after", "INF", "--max-ahead", "INF", "--batch-size", case.documents]
        with RunningService(place, options, "serve") as service:
            service.wait_until_ready(SERVE_READY)
            pages = Pages(f"http://{address}", state, [f"q{n + 1}" for n in range(case.queries)])
            with _opened(case, unvisited) as engine:
                pages.check(engine)
            times = PageTimes()
            alone, visited = _turns(case, place, [waiting / name for name in names], service, pages, times)
            service.stop()
        with _opened(case, unvisited) as engine, gc_frozen():
            for name in names:
                engine.process(list(read_documents(waiting / name)))
        outputs = _output_ids(case, state)
        assert outputs == _output_ids(case, unvisited), "visitors have changed what comes out"
        assert not times.wrong, times.wrong[:10]
        return [_engine_line(case, alone, visited, len(outputs)), *_page_lines(case, times)]


def _opened(case: ServeCase, state: Path) -> Session:
    return open_unlimited(case.engine, DEFAULT_PLAN, state)


def _fill(case: ServeCase, state: Path, documents: Iterator[Document]) -> None:
    count = 0
    with _opened(case, state) as engine, gc_frozen():
        engine.subscribe(script_of(parameters(case.queries)))
        while count < case.outputs:
            count += len(engine.process([next(documents) for _ in range(STEP)]))


def _pass_over(case: ServeCase, state: Path, documents: Iterator[Document]) -> None:
    """Skips the documents of a store that was filled before. Raises AssertionError if that was for another case."""
    sql = "SELECT (SELECT count(*) FROM documents) AS documents, (SELECT max(last_seq) FROM answers) AS seq"
    with _opened(case, state) as engine:
        (told,) = engine.sql(sql, trusted=True).to_pylist()
        assert told["seq"] >= case.outputs - 1 and len(engine.queries()) == case.queries, "the store is another one"
    next(islice(documents, told["documents"] - 1, None), None)


def _turns(
    case: ServeCase, place: ServiceFiles, files: Sequence[Path], service: RunningService, pages: Pages, times: PageTimes
) -> tuple[list[float], list[float]]:
    left, dropped = iter(files), 0

    def process(file: Path) -> None:
        nonlocal dropped
        draft = file.with_suffix(".tmp")
        shutil.copyfile(file, draft)
        draft.rename(place.drops / file.name)
        dropped += case.documents
        service.wait_until(lambda: service.documents() >= dropped, SERVE_PROCESSED, f"process {dropped:,} documents")

    def turn_of(files: Iterator[Path]) -> list[float]:
        return [harness.seconds_of(partial(process, file)) for file in islice(files, case.files)]

    process(next(left))
    alone, visited = list[float](), list[float]()
    requests = pages.requests(hostile=case.hostile)
    for turn in range(case.turns):
        for with_visitors in (False, True) if turn % 2 == 0 else (True, False):
            if not with_visitors:
                alone += turn_of(left)
                continue
            with Visitors(pages.url, pages.token, requests, case.rate, times):
                visited += turn_of(left)
    return alone, visited


def _output_ids(case: ServeCase, state: Path) -> list[str]:
    with _opened(case, state) as engine:
        return sorted(engine.sql("SELECT id FROM outputs", trusted=True)["id"].to_pylist())


def _engine_line(case: ServeCase, alone: list[float], visited: list[float], outputs: int) -> Line:
    # Two turns at a time: with visitors first in one and last in the other, so that what comes back in each second
    # turn, such as a checkpoint of the store, is in both.
    two = 2 * case.files
    slower = median(sum(visited[at : at + two]) / sum(alone[at : at + two]) for at in range(0, len(visited), two))
    details = {"slower": slower, "most_slower": MOST_SLOWER}
    for seconds, where in ((visited, ""), (alone, "_alone")):
        details[f"documents_a_second{where}"] = case.documents / median(seconds)
        details[f"p95_ms{where}"] = 1000 * percentile(seconds, 95)
    middle, beside = median(visited), "nobody visits"
    return Line(
        "serve", case.about(""), case.engine, DEFAULT_PLAN, middle, outputs, beside, 1 / slower, details=details
    )


def _page_lines(case: ServeCase, times: PageTimes) -> Iterator[Line]:
    for page, seconds in sorted(times.seconds.items()):
        details: dict[str, object] = {f"p{share}_ms": 1000 * percentile(seconds, share) for share in (50, 95)}
        details |= {"most_p95_ms": MOST_P95_MS, "put_off": times.put_off[page]}
        middle, visits = percentile(seconds, 50), len(seconds)
        yield Line("serve", case.about(page), case.engine, DEFAULT_PLAN, middle, visits, details=details)


PUSHED, BATCHES, BATCH, AT_ONCE = 500, 200, 100, 4
"""Single documents that are pushed, batches, documents in each, and how many of these are sent at a time."""
PUSHES_A_SECOND, PAGES_BESIDE, PUSH_PAUSE = 50.0, 10.0, 5.0
"""The rates of single documents and of pages, and the seconds that pages are asked for before."""
MOST_PUSH_P95_MS, LEAST_PUSHED = 50.0, 2_000.0
"""What is promised: of single documents 95 of 100 are answered in that time, and a client pushes so many a second."""


def measure_push(case: ServeCase) -> list[Line]:
    """Lines for documents that one client pushes while pages are open: one by one, and in batches. Raises
    AssertionError if one is not accepted, ServiceFailed."""
    with TemporaryDirectory(prefix="mmqjp-push-") as directory:
        place, documents = ServiceFiles(Path(directory)), items(1 << 40)
        place.drops.mkdir()
        place.queries.write_text(script_of(parameters(case.queries)), encoding="utf-8")
        state, address = place.directory / "state", f"127.0.0.1:{free_ports(1)[0]}"
        with _opened(case, state) as engine, gc_frozen():
            engine.subscribe(script_of(parameters(case.queries)))
            for _ in range(10):
                engine.process([next(documents) for _ in range(STEP)])
        options = ["--engine", case.engine, "--state", state, "--address", address, "--lateness", "INF"]
        options += ["--idle-after", "INF", "--max-ahead", "INF"]
        with RunningService(place, options, "serve") as service:
            service.wait_until_ready(SERVE_READY)
            pages = Pages(f"http://{address}", state, [f"q{n + 1}" for n in range(case.queries)])
            times = PageTimes()
            with Visitors(pages.url, pages.token, pages.requests(hostile=False), case.rate, times):
                time.sleep(PUSH_PAUSE)
                alone = asyncio.run(_push(pages, documents, [1] * PUSHED, 1 / PUSHES_A_SECOND, PUSHED))
                begun = time.perf_counter()
                together = asyncio.run(_push(pages, documents, [BATCH] * BATCHES, 0.0, AT_ONCE))
                seconds = time.perf_counter() - begun
            service.stop()
        assert not times.wrong, times.wrong[:10]
    rate = BATCH * BATCHES / seconds
    lines = []
    pushed: list[tuple[str, list[float], dict[str, object]]] = [
        ("pushed, one", alone, {"promised_p95_ms": MOST_PUSH_P95_MS}),
        (f"pushed, {BATCH}", together, {"documents_a_second": rate, "promised": LEAST_PUSHED}),
    ]
    for what, took, more in pushed:
        details = more | {f"p{share}_ms": 1000 * percentile(took, share) for share in (50, 95)}
        lines.append(
            Line("serve", case.about(what), case.engine, DEFAULT_PLAN, median(took), len(took), details=details)
        )
    return [*lines, *_page_lines(case, times)]


async def _push(
    pages: Pages, documents: Iterator[Document], sizes: Sequence[int], every: float, at_once: int
) -> list[float]:
    """Pushes documents in requests of these sizes, each when it is due or, at most so many at a time, at once. Returns
    the seconds that each took from when it was due."""
    token, seconds = (pages.state / "secrets" / "push-token").read_text().strip(), list[float]()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-ndjson"}
    bodies = ["".join(document_line(next(documents)) for _ in range(size)).encode() for size in sizes]
    free = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=pages.url, headers=headers, timeout=PAGE_SECONDS) as client:

        async def send(body: bytes, size: int, due: float) -> None:
            answer = await client.post("/api/v1/documents", content=body)
            free.release()
            seconds.append(time.perf_counter() - due)
            assert answer.status_code == 200 and answer.json()["accepted"] == size, answer.text[:500]

        due = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for body, size in zip(bodies, sizes, strict=True):
                await free.acquire()
                due = due + every if every else time.perf_counter()
                await asyncio.sleep(max(due - time.perf_counter(), 0))
                group.create_task(send(body, size, due))
    return seconds


SERVE_COLUMNS = columns(
    "page | queries | pages/s = pages_a_second | visits | p50, ms = p50_ms | p95, ms = p95_ms | put off = put_off | "
    "p95 alone, ms = p95_ms_alone | documents/s = documents_a_second | alone = documents_a_second_alone | slower",
    page=lambda line: line.case["page"] or "the engine",
    visits=lambda line: line.rows if line.case["page"] else None,
)


def bench_serve() -> None:
    parser = harness.benchmark_parser("serve", "what visitors of the page cost the engine", plot=False)
    parser.add_argument("--engine", choices=harness.ENGINES, default="duckdb", help="default: duckdb")
    parser.add_argument(
        "--outputs", type=int, default=OUTPUTS, metavar="N", help="before it starts; default: 1,000,000"
    )
    parser.add_argument("--rate", type=float, metavar="N", help="pages a second; default: 50, with --push 10")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the filled store in DIR, and begin with it")
    parser.add_argument("--push", action="store_true", help="measure documents that a client pushes instead")
    parser.add_argument("--hostile", action="store_true", help="some visitors ask SQL that takes all there is")
    options = parser.parse_args()
    turns, rate = QUICK_TURNS if options.quick else TURNS, options.rate or (PAGES_BESIDE if options.push else RATE)
    cases = [
        ServeCase(queries, options.engine, options.outputs, rate, turns, hostile=options.hostile)
        for queries in options.queries or [QUERIES]
    ]
    with interruptible():  # so that the service is ended on SIGTERM, too
        measure = measure_push if options.push else partial(measure_serve, kept=options.keep)
        lines = [line for case in harness.with_progress(cases) for line in measure(case)]
    harness.report(lines, "the page beside the engine", SERVE_COLUMNS, options)
