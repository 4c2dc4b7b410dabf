"""The benchmark of joins on a Spark cluster (docs/benchmarks.md): where the work is done, and what the driver needs.

Before anything is reported, the output lines are compared with those that follow from the values. Needs Java."""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench import harness
from bench.harness import Line, charged, columns
from bench.peer_protocol import processor_seconds
from bench.plots import Panel, PlotSeries, draw_panels, grouped
from bench.services import ServiceFailed, ServiceFiles
from bench.spark_cluster import SETTINGS, Cluster, environment, kill, processes_below, wait_until
from bench.state import CHUNK, LEAVES, drawn_chunks, kept_chunks, memory_of, shared_leaves
from bench.workload import SECOND
from common.arrays import Ints
from common.files import make_inside
from mmqjp.commands.serve import stream
from mmqjp.documents.admission import Admission
from mmqjp.engine import Session
from mmqjp.service.streaming import StreamingService
from mmqjp.state.engine_choice import directory_bytes

_T = TypeVar("_T")

ALIKE = 20
START = 1_700_000_000 * SECOND

PADDING = "what it says besides, which nobody asks for, takes about as many characters as a short item of a feed. " * 3

SETS = [leaves for count in range(2, LEAVES + 1) for leaves in combinations(range(LEAVES), count)]
"""The leaves that each query joins."""

ClusterRow = tuple[str, str, str]  # A query, and the earlier and the later document


def query_name(leaves: tuple[int, ...]) -> str:
    return "q" + "".join(map(str, leaves)) + "x"


def cluster_script() -> str:
    queries = []
    for leaves in SETS:
        one, other = ("".join(f"[./leaf{leaf}->{side}{leaf}]" for leaf in leaves) for side in "ab")
        equal = " AND ".join(f"a{leaf} = b{leaf}" for leaf in leaves)
        queries.append(f"FROM S//item{one} FOLLOWED BY {{{equal}, INF}} S//item{other} PUBLISH {query_name(leaves)}")
    return ";\n".join(queries)


def kept_values(count: int, first: int, end: int) -> Ints:
    """The values of stored documents `first` to `end` of `count`. A value is that of about ALIKE documents."""
    return drawn_chunks(count, first, end, lambda rng, shape: rng.integers(0, max(count // ALIKE, 1), shape))


def batch_values(count: int, number: int, size: int, share: float) -> Ints:
    """The values of a measured batch: a `share` of its documents have all values of a kept one, the others none."""
    rng = np.random.default_rng((count, 1, number))
    fresh = count + np.arange(size * LEAVES).reshape(size, LEAVES) + number * size * LEAVES
    chunk = rng.integers(0, -(-count // CHUNK), 1)[0] * CHUNK
    originals = kept_values(count, int(chunk), min(int(chunk) + CHUNK, count))
    chosen = originals[rng.integers(0, len(originals), size)]
    again = rng.random(size) < share
    return np.where(again[:, None], chosen, fresh)


def write_drop(path: Path, first: int, values: Ints) -> None:
    """Writes documents as a file that appears whole. They are numbered from `first` on, a second apart."""
    lines = []
    for number, row in enumerate(values.tolist(), first):
        leaves = "".join(f"<leaf{leaf}>leaf {leaf} says {value}</leaf{leaf}>" for leaf, value in enumerate(row))
        xml = f"<item>{leaves}<text>{PADDING}</text></item>"
        lines.append(json.dumps({"id": f"d{number}", "time": START + number * SECOND, "xml": xml}) + "\n")
    draft = path.with_suffix(".draft")
    draft.write_text("".join(lines), "utf-8")
    draft.rename(path)


def expected_rows(count: int, batches: list[Ints]) -> set[ClusterRow]:
    shared = shared_leaves(count, np.concatenate(batches), kept_values)
    masks = [(query_name(leaves), sum(1 << leaf for leaf in leaves)) for leaves in SETS]
    return {
        (name, f"d{one}", f"d{other}")
        for (one, other), found in shared.items()
        for name, mask in masks
        if found & mask == mask
    }


@dataclass(frozen=True)
class DriverCase:
    """A service on the cluster at `url` with the worker processes `workers`, or without a `url` on the embedded engine
    and one core; its `name` is unique in the directory."""

    url: str
    workers: tuple[int, ...]
    directory: Path
    batch_size: int
    name: str

    @property
    def pid(self) -> Path:
        return self.directory / f"{self.name}.pid"


@dataclass
class DriverRun:
    """By batch: its documents, and processor seconds of executors and driver for stage 2 and delivery. Seconds of empty
    triggers; peak memory of the driver's two processes, in bytes."""

    batches: list[dict[str, float]]
    empty: list[float]
    python: int
    jvm: int


def run_driver(case: DriverCase) -> DriverRun:
    with (case.directory / "driver.log").open("ab") as log:
        os.dup2(log.fileno(), 2)  # what its JVM says is not for the terminal
    os.environ.update(environment())
    settings: dict[str, bool | float | int | str | None] = {
        **SETTINGS,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    session = SparkSession.builder.master(case.url).config(map=settings).getOrCreate()
    observer = _Observer(case.workers)
    with observer.observing():
        _serve(case, "--engine", "spark", "--master", case.url)
    driven = observer.driven()
    session.stop()
    return driven


def run_embedded(case: DriverCase) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    _serve(case, "--engine", "duckdb")


def _serve(case: DriverCase, *options: str) -> None:
    place = ServiceFiles(case.directory)
    case.pid.write_text(str(os.getpid()))
    with place.log.open("a", buffering=1) as events:
        sys.stderr = events
        stream.main(
            [
                *(*options, "--source", str(place.drops), "--log", "json"),
                *("--queries", str(place.queries), "--state", str(case.directory / "state")),
                *("--output", str(place.lines), "--trigger", "100ms", "--lateness", "INF", "--max-ahead", "INF"),
                *("--batch-size", str(case.batch_size), "--batch-bytes", str(64 << 20)),
            ],
            standalone_mode=False,
        )
        sys.stderr = sys.__stderr__


class _Observer:
    """Measures processor time from the end of stage 1 to the end of a batch, without admission."""

    def __init__(self, workers: tuple[int, ...]) -> None:
        self._workers = workers
        self._batches: list[dict[str, float]] = []
        self._query: StreamingQuery | None = None
        self._since: tuple[float, float] | None = None
        self._admission: list[float] = []

    def _now(self) -> tuple[float, float]:
        return sum(map(processor_seconds, self._workers)), processor_seconds(os.getpid())

    @contextmanager
    def observing(self) -> Iterator[None]:
        observer = self

        def after_stage1(method: Any, *arguments: Any) -> Any:
            found = method(*arguments)
            observer._since = observer._now()
            return found

        def to_the_end(method: Any, service: StreamingService, read: Any) -> Any:
            before = observer._since or observer._now()  # one data frame may be several batches
            observer._since = None
            observer._admission.clear()
            found = method(service, read)
            executors, driver = (now - then for now, then in zip(observer._now(), before, strict=True))
            driver -= sum(observer._admission)
            if read.items:  # a micro-batch may have nothing that was not read
                observer._batches.append({"documents": len(read.items), "executors": executors, "driver": driver})
            return found

        def start(method: Any, *arguments: Any) -> Any:
            observer._query = method(*arguments)
            return observer._query

        def wrapped(owner: type, name: str, wrapper: Callable[..., Any]) -> Any:
            method = getattr(owner, name)
            return patch.object(owner, name, lambda *arguments: wrapper(method, *arguments))  # bound, as it was

        admit = charged(Admission.admit, self._admission.append, time.thread_time)
        with (
            wrapped(Session, "evaluate", after_stage1),
            wrapped(StreamingService, "_process", to_the_end),
            wrapped(StreamingService, "_start", start),
            patch.object(Admission, "admit", admit),
        ):
            yield

    def driven(self) -> DriverRun:
        assert self._query is not None, "the service has started"
        events = [json.loads(progress.json) for progress in self._query.recentProgress]
        empty = [
            event["durationMs"]["triggerExecution"] / 1e3 for event in events if "addBatch" not in event["durationMs"]
        ]
        lists = [(task / "children").read_text().split() for task in Path("/proc/self/task").iterdir()]
        jvms = [child for some in lists for child in some if Path(f"/proc/{child}/exe").resolve().name == "java"]
        return DriverRun(
            self._batches, empty, memory_of(os.getpid())["VmHWM"], max(memory_of(jvm)["VmHWM"] for jvm in jvms)
        )


QUIET = 12.0  # seconds without documents: Spark reports triggers without any every ten seconds
AMID = 1.2  # seconds after which a file is being processed
FILE_SECONDS = 600.0  # the most seconds that a file may take


@dataclass(frozen=True)
class Feeder:
    """Drops documents, numbered from `first` on, for a service: a file each time all earlier ones are processed."""

    place: ServiceFiles
    files: Sequence[Ints] | Iterator[Ints]
    first: int
    after_a_kill: bool = False
    rests: bool = False
    """Whether nothing comes for a while at the end, for empty triggers."""

    def feed(self, pid: Path) -> tuple[float, list[float]]:
        """Returns documents a second, and the seconds from each file to its batch in the log. Then asks the driver,
        whose id is in file `pid`, to end. Raises ServiceFailed."""
        wait_until(pid.exists, "the driver")
        try:
            self._wait_for_start()
            size = -1
            while self.after_a_kill and size != (size := self.place.log.stat().st_size):  # files that were there
                time.sleep(QUIET)
            begin, first = time.perf_counter(), self.first
            done, seconds = self._events("batch", "documents"), list[float]()
            for values in self.files:
                first, put = self._put(first, values), time.perf_counter()
                self._wait(done + first - self.first)
                seconds.append(time.perf_counter() - put)
            rate = (first - self.first) / (time.perf_counter() - begin)
            time.sleep(QUIET if self.rests else 0)
            return rate, seconds
        finally:
            os.kill(int(pid.read_text()), signal.SIGTERM)

    def feed_and_kill(self, pid: Path, executors: Callable[[], Sequence[int]]) -> None:
        """Puts two files: amid the first, an executor is killed, and amid the second the driver, with its JVM."""
        wait_until(pid.exists, "the driver")
        self._wait_for_start()
        one, other = self.files
        done, first = self._events("batch", "documents"), self._put(self.first, one)
        time.sleep(AMID)
        kill(executors()[0])
        self._wait(done + len(one))
        self._put(first, other)
        time.sleep(AMID)
        driver = int(pid.read_text())
        for process in [*processes_below(driver), driver]:
            kill(process)

    def _put(self, first: int, values: Ints) -> int:
        write_drop(self.place.drops / f"{first:012}.jsonl", first, values)
        return first + len(values)

    def _wait_for_start(self) -> None:
        started = self._events("started")
        wait_until(lambda: self._events("started") > started, "the service")

    def _wait(self, documents: int) -> None:
        until = time.monotonic() + FILE_SECONDS
        while (now := self._events("batch", "documents")) < documents:
            if time.monotonic() > until or self._events("batch", "dead_letters"):
                end = self.place.log.read_text("utf-8")[-2_000:]
                raise ServiceFailed(f"the service has processed {now:,} of {documents:,} documents: {end}")
            time.sleep(0.01)

    def _events(self, name: str, field: str | None = None) -> int:
        """The number of events of a name, or the sum of a field of theirs."""
        if not self.place.log.exists():
            return 0
        lines = self.place.log.read_text("utf-8").splitlines()
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return sum(event[field] if field else 1 for event in events if event["event"] == name)


NUMBERS, QUICK_NUMBERS = [100_000, 2_000_000], [20_000]
WORKERS = (2, 1)
LARGE, SMALL = 5_000, 100
SIZES, QUICK_SIZES = (LARGE,) * 8 + (SMALL,) * 4, (LARGE,) * 4 + (SMALL,) * 4
"""The files that a cluster gets. Of each size, the first half is not counted: the JVMs are compiling."""
SHARE = 0.5  # the share of the documents of measured batches that repeat values


def measure_cluster(
    documents: int, workers: Sequence[int] = WORKERS, sizes: Sequence[int] = SIZES, *, kills: bool = True
) -> Iterator[Line]:
    """A line for the embedded engine on one core, then for each number of workers over one store, each as soon as its
    outputs are compared; then `kills`. Raises AssertionError for a wrong output."""
    with tempfile.TemporaryDirectory(prefix="mmqjp-bench-") as name:
        embedded, place = (ServiceFiles(make_inside(Path(name), one)) for one in ("embedded", "spark"))
        for one in (embedded, place):
            make_inside(one.directory, "drops")
            one.queries.write_text(cluster_script())
        batches = [batch_values(documents, n, size, SHARE) for n, size in enumerate(sizes)]
        _embed(Feeder(embedded, _kept(documents), 0), CHUNK, "filling")
        rate, seconds = _embed(Feeder(embedded, batches, documents), max(sizes), "measured")
        found = check_lines(documents, batches, embedded.lines)
        details = {"filled_a_second": rate, "disk": directory_bytes(embedded.directory / "state")}
        yield _line(documents, None, sizes, found, seconds, details)
        _, rate, _ = _drive(Feeder(place, _kept(documents), 0), workers[0], CHUNK, "filling")
        every: list[Ints] = []
        found = 0
        for count in workers:
            batches = [batch_values(documents, len(every) + n, size, SHARE) for n, size in enumerate(sizes)]
            feeder = Feeder(place, batches, documents + sum(map(len, every)), rests=True)
            driven, _, seconds = _drive(feeder, count, max(sizes), f"workers{count}")
            every += batches
            before, found = found, check_lines(documents, every, place.lines)
            details = _details(sizes, driven)
            details |= {"filled_a_second": rate, "disk": directory_bytes(place.directory / "state")}
            yield _line(documents, count, sizes, found - before, seconds, details)
        if kills:
            every += _kill_amid(place, documents, every, workers[0], max(sizes))
            check_lines(documents, every, place.lines)


def _kept(documents: int) -> Iterator[Ints]:
    return (kept_values(documents, *part) for part in kept_chunks(documents))


def _embed(feeder: Feeder, batch_size: int, name: str) -> tuple[float, list[float]]:
    case = DriverCase("", (), feeder.place.directory, batch_size, name)
    with ThreadPoolExecutor(1) as beside:
        fed = beside.submit(feeder.feed, case.pid)
        harness.in_fresh_process(run_embedded, case)
        return fed.result()


def _kill_amid(place: ServiceFiles, documents: int, before: Sequence[Ints], workers: int, size: int) -> list[Ints]:
    batches = [batch_values(documents, len(before) + n, size, SHARE) for n in range(3)]
    first = documents + sum(map(len, before))
    with (
        Cluster(place.directory / "cluster-killed", workers) as cluster,
        ThreadPoolExecutor(1) as beside,
        suppress(RuntimeError),  # the driver's process ends without an answer
    ):
        case = DriverCase(cluster.url, tuple(one.pid for one in cluster.workers), place.directory, size, "killed")
        fed = beside.submit(Feeder(place, batches[:2], first).feed_and_kill, case.pid, cluster.executors)
        harness.in_fresh_process(run_driver, case)
    fed.result()
    _drive(Feeder(place, batches[2:], first + 2 * size, after_a_kill=True), workers, size, "restarted")
    return batches


def _drive(feeder: Feeder, workers: int, batch_size: int, name: str) -> tuple[DriverRun, float, list[float]]:
    directory = feeder.place.directory
    with Cluster(directory / f"cluster-{name}", workers) as cluster, ThreadPoolExecutor(1) as beside:
        case = DriverCase(cluster.url, tuple(worker.pid for worker in cluster.workers), directory, batch_size, name)
        fed = beside.submit(feeder.feed, case.pid)
        driven = harness.in_fresh_process(run_driver, case)
        return driven, *fed.result()


def check_lines(documents: int, batches: list[Ints], lines: Path) -> int:
    """Returns the number of outputs of measured batches."""
    wanted = expected_rows(documents, batches)
    with lines.open("rb") as file:
        rows = ((told["query"], *told["documents"]) for told in map(json.loads, file))
        later = [row for row in rows if int(row[2][1:]) >= documents]
    assert set(later) == wanted and len(later) == len(wanted), f"{len(later):,} outputs instead of {len(wanted):,}"
    return len(later)


def _of_size(sizes: Sequence[int], size: int, of_files: Sequence[_T]) -> list[_T]:
    """What is counted of the files of a size."""
    found = [one for own, one in zip(sizes, of_files[-len(sizes) :], strict=True) if own == size]
    return found[len(found) // 2 :]


def _details(sizes: Sequence[int], driven: DriverRun) -> dict[str, Any]:
    large = _of_size(sizes, max(sizes), driven.batches)
    executors, driver = (sum(one[name] for one in large) for name in ("executors", "driver"))
    return {
        "share": executors / (executors + driver),
        "executors": executors / len(large),
        "driver": driver / len(large),
        "empty": median(driven.empty) if driven.empty else None,
        "python": driven.python,
        "jvm": driven.jvm,
    }


def _line(
    documents: int, workers: int | None, sizes: Sequence[int], outputs: int, seconds: Sequence[float], details: Any
) -> Line:
    """Without `workers`, of the embedded engine."""
    outputs = outputs * max(sizes) // sum(sizes)
    median_of = median(_of_size(sizes, max(sizes), seconds))
    details |= {"small": median(_of_size(sizes, min(sizes), seconds)), "of_output": median_of / outputs}
    about = {"documents": documents, "workers": workers, "batch": max(sizes)}
    return Line("cluster", about, "spark" if workers else "duckdb", "signature", median_of, outputs, details=details)


CLUSTER_COLUMNS = columns(
    "documents | engine | workers | outputs of a file = rows | s = seconds | an output, µs = of_output * 1e6 | "
    "s of 100 = small | s of none = empty | "
    "executors, s = executors | driver, s = driver | share, % = share * 100 | Python, MB = python * 1e-6 | "
    "JVM, MB = jvm * 1e-6 | disk, MB = disk * 1e-6 | filled, documents/s = filled_a_second"
)


def draw_cluster(lines: Sequence[Line], prefix: Path) -> None:
    times, sizes = list[PlotSeries](), list[PlotSeries]()
    for workers, of in grouped(
        (line for line in lines if line.case["workers"]), lambda line: line.case["workers"]
    ).items():
        label = "one worker" if workers == "1" else f"{workers} workers"
        times.append(PlotSeries(label, "seconds", "D-", lines=of))
        for process, key in (("Python", "python"), ("JVM", "jvm")):
            sizes.append(PlotSeries(f"{process}, {label}", f"{key} * 1e-6", lines=of))
    panels = [
        Panel("documents", "documents", "seconds", times),
        Panel("documents", "documents", "MB of the driver at its peak", sizes, legend=True),
    ]
    draw_panels(lines, prefix, panels)


def bench_cluster() -> None:
    parser = harness.benchmark_parser("cluster", "joins on a Spark cluster")
    parser.add_argument("--documents", type=harness.integers, metavar="N,N", help="numbers of stored documents")
    options = harness.parse_options(parser)
    cases = options.documents or (QUICK_NUMBERS if options.quick else NUMBERS)
    sizes, lines = QUICK_SIZES if options.quick else SIZES, list[Line]()
    for one in harness.with_progress(cases, "{:,} documents".format):
        for line in measure_cluster(one, sizes=sizes, kills=not options.quick):
            lines.append(line)
            harness.print_table([line], f"{one:,} documents", CLUSTER_COLUMNS)
    title = f"files of {LARGE:,} documents joined with stored ones"
    harness.report(lines, title, CLUSTER_COLUMNS, options, draw_cluster)
