"""Beside what a user would pick instead: our engine on DuckDB, and systems that join streams, over the same items.

The peers get items already shredded into rows; our engine gets their XML. Each runs in a process of its own, in turns.
"""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.harness import Line, benchmark_parser, columns, parse_options, report, with_progress
from bench.peer_protocol import FORMS, TABLES, PeerReport, PeerWork, Wish, WishRow, resident_bytes, write_table
from bench.plots import COLOURS, Panel, PlotSeries, by_plan, draw_panels, grouped
from bench.workload import HOUR, LONGEST_WINDOWS, field_tables, items, parameters, write_documents
from feeds.documents import Document
from join_stage.store.spark.java import JavaNotFound, java_home

NUMBERS, QUICK_NUMBERS = [1, 10, 100, 1_000, 10_000], [1, 1_000]
ITEMS, QUICK_ITEMS = 20_000, 5_000
BATCH, LAST = 5_000, 500  # items of a batch, and of the last one, before which a query is added
ROUNDS = 3
EACH = 10  # with more queries than that, a join for each is not tried
OURS, ADDED = "mmqjp", "added"
BEFORE_JOINS = ("admission and parse", "stage 1")
"""The parts of ours that the peers do not have, because they get shredded rows."""

PEER_SECONDS = 900.0  # seconds after which a peer is killed
MEMORY_EVERY = 0.2  # seconds between two readings of the memory


class PeerFailed(RuntimeError):
    """A peer did not finish."""


@dataclass(frozen=True)
class PeerSystem:
    """A peer: name, program in `bench.peer_systems`, package; whether it needs Java, or mmqjp (so our interpreter)."""

    name: str
    program: str
    needs: str
    java: bool = False
    uses_ours: bool = False

    def lacking(self, python: str) -> str:
        """What it lacks to run with an interpreter; "" if nothing."""
        if self.java and not _java():
            return "it needs Java, and none was found"
        look = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
        try:
            found = subprocess.run([python, "-c", look, self.needs], capture_output=True, timeout=60, check=False)
        except OSError as error:
            return f"{python} cannot be run: {error.strerror}"
        return f"{self.needs} is not installed for {python}" if found.returncode else ""


SYSTEMS = {
    "mmqjp": PeerSystem("mmqjp", "mmqjp", "mmqjp", uses_ours=True),
    "flink": PeerSystem("flink", "flink", "pyflink", java=True),
    "pathway": PeerSystem("pathway", "pathway", "pathway"),
    "spark": PeerSystem("spark", "spark", "pyspark", java=True, uses_ours=True),
}


@dataclass(frozen=True)
class PeerRun:
    rows: frozenset[WishRow]
    report: PeerReport
    resident: int


def run_peer(
    system: PeerSystem, work: PeerWork, batches: Path, python: str = sys.executable, seconds: float = PEER_SECONDS
) -> PeerRun:
    with TemporaryDirectory(prefix=f"mmqjp-peers-{system.name}-") as name:
        directory = Path(name)
        for batch in work.batches:
            (directory / batch).symlink_to(batches / batch, target_is_directory=True)
        replace(work, launched=time.time()).write(directory)
        told, resident = run_program(system, directory, python, seconds)
        with (directory / "rows.csv").open(newline="", encoding="utf-8") as lines:
            rows = frozenset((name, int(left), int(right)) for name, left, right in csv.reader(lines))
        return PeerRun(rows, PeerReport(**told), resident)


def run_program(
    system: PeerSystem, directory: Path, python: str, seconds: float = PEER_SECONDS
) -> tuple[dict[str, Any], int]:
    """Runs a system's program, then kills all it started. Returns report and peak bytes. Raises PeerFailed."""
    environment = os.environ | {"PYTHONPATH": _code(system, directory)} | _java()
    errors = directory / "errors"
    with errors.open("wb") as log:
        process = subprocess.Popen(
            [python, "-m", "bench.peer_systems", system.program, str(directory)],
            stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, cwd=directory, start_new_session=True,
        )  # fmt: skip
        resident = _watch(process, seconds)
    told = directory / "report.json"
    if not told.exists():
        killed = process.returncode == -signal.SIGKILL
        ended = f"more than {seconds:.0f} s" if killed else f"status {process.returncode}"
        log_end = errors.read_text("utf-8", errors="replace")[-2000:].strip() or "it said nothing"
        raise PeerFailed(f"{system.name} ended with {ended}: {log_end}")
    return json.loads(told.read_text("utf-8")), resident


def _watch(process: subprocess.Popen[bytes], seconds: float) -> int:
    most, ended = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not ended.wait(MEMORY_EVERY):
            most = max(most, resident_bytes(process.pid))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        with suppress(subprocess.TimeoutExpired):  # The report is missing, which says it.
            process.wait(seconds)
    finally:
        ended.set()
        watcher.join()
        with suppress(ProcessLookupError):  # A JVM may outlive the Python that started it.
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return most


def _code(system: PeerSystem, directory: Path) -> str:
    """Where a peer finds `bench`: with an interpreter of its own it must not find our libraries beside it."""
    package = Path(__file__).parent
    if system.uses_ours:
        return str(package.parent)
    copied = directory / "code" / "bench"
    copied.mkdir(parents=True)
    for name in ("__init__", "peer_protocol", "peer_systems"):
        shutil.copy(package / f"{name}.py", copied)
    return str(copied.parent)


def _java() -> dict[str, str]:
    try:
        return {"JAVA_HOME": str(java_home())}
    except JavaNotFound:
        return {}


class NothingToAdd(ValueError):
    """No query could be added that gets rows from the last items."""


class OtherRows(AssertionError):
    """A peer found other rows than our engine."""


@dataclass(frozen=True)
class PeersCase:
    queries: int
    items: int = ITEMS
    batch: int = BATCH
    last: int = LAST
    rounds: int = ROUNDS


@dataclass
class Contender:
    name: str
    form: str
    runs: list[PeerRun] = field(default_factory=list)

    def seconds(self) -> float:
        return median(sum(run.report.batches) for run in self.runs)


def prepare_peers(case: PeersCase, directory: Path) -> PeerWork:
    documents = list(items(case.items + case.last))
    starts = [*range(0, case.items, case.batch), case.items, len(documents)]
    names = [f"batch{number:04}" for number in range(len(starts) - 1)]
    for name, (first, end) in zip(names, pairwise(starts), strict=True):
        (directory / name).mkdir()
        shred_items(documents[first:end], first, directory / name)
    wishes = [Wish(one.name, one.kind, one.channel, one.hours * HOUR) for one in parameters(case.queries)]
    added = Wish(ADDED, "title", _channel_to_add(documents, case.items), LONGEST_WINDOWS["title"] * HOUR)
    return PeerWork(wishes, LONGEST_WINDOWS, documents[0].t0 - HOUR, names, "joined", added, 0.0)


def shred_items(documents: Sequence[Document], first: int, directory: Path) -> None:
    write_documents(documents, directory / "documents.jsonl")
    tables = {name: table.to_pylist() for name, table in field_tables(documents, first).items()}
    by_number = {row["doc"]: row for row in tables["items"]}
    for name, keys in TABLES.items():
        rows = ({**by_number[row["doc"]], **row} for row in tables[name])
        write_table(directory / f"{name}.csv", keys, dict.fromkeys(tuple(row[key] for key in keys) for row in rows))


def _channel_to_add(documents: Sequence[Document], first: int) -> str:
    longest = LONGEST_WINDOWS["title"] * HOUR
    earlier: dict[str, list[dict[str, Any]]] = defaultdict(list)
    found: Counter[str] = Counter()
    for row in field_tables(documents, 0)["items"].to_pylist():
        if row["doc"] >= first:
            found.update(e["channel"] for e in earlier[row["title"]] if 0 < row["t"] - e["t"] <= longest)
        earlier[row["title"]].append(row)
    if not found:
        raise NothingToAdd("no title is repeated in the last items: take more of them")
    return found.most_common(1)[0][0]


def compare_rows(expected: Collection[WishRow], found: Collection[WishRow], name: str, first: int) -> None:
    """Raises OtherRows, with an example, if a system found other rows than expected. Of the query that is added, only
    rows that an item from `first` on completes are compared, because not every system looks back."""
    wanted, got = ({row for row in rows if row[0] != ADDED or row[2] >= first} for rows in (expected, found))
    if wanted != got:
        missing, extra = sorted(wanted - got), sorted(got - wanted)
        raise OtherRows(
            f"{name} and {OURS} find different rows: {len(missing):,} of {len(wanted):,} are missing, "
            f"{len(extra):,} are too many, such as {(missing or extra)[0]}"
        )


def contenders(queries: int, names: Sequence[str]) -> list[Contender]:
    joined = [Contender(name, FORMS[0]) for name in names]
    return joined + [Contender(name, FORMS[1]) for name in names if name != OURS and queries <= EACH]


def measure_peers(case: PeersCase, pythons: dict[str, str]) -> list[Line]:
    systems = contenders(case.queries, list(pythons))
    with TemporaryDirectory(prefix="mmqjp-peers-") as name:
        directory = Path(name)
        work = prepare_peers(case, directory)
        for _ in range(case.rounds):
            for one in systems:
                given = replace(work, form=one.form, added=work.added if one.form == FORMS[0] else None)
                run = run_peer(SYSTEMS[one.name], given, directory, pythons[one.name])
                expected = (systems[0].runs or [run])[0].rows
                wanted = expected if given.added else {row for row in expected if row[0] != ADDED}
                compare_rows(wanted, run.rows, one.name, case.items)
                one.runs.append(run)
    return [_line(case, one, systems[0].seconds()) for one in systems]


def _line(case: PeersCase, one: Contender, ours: float) -> Line:
    reports, seconds = [run.report for run in one.runs], one.seconds()
    warm = median(median(report.batches[1:] or report.batches) for report in reports)
    details: dict[str, object] = {
        "form": one.form,
        "start": median(report.start for report in reports),
        "items_a_second": case.items / seconds,
        "warm_items_a_second": min(case.batch, case.items) / warm,
        "processor": median(report.processor for report in reports),
        "resident_mib": max(run.resident for run in one.runs) >> 20,
    }
    if parts := reports[0].details:
        details |= {part: median(report.details[part] for report in reports) for part in parts}
        before = median(sum(report.details[part] for part in BEFORE_JOINS) for report in reports)
        details["items_a_second_from_rows"] = case.items / (seconds - before)
    if adding := [report.added for report in reports if report.added is not None]:
        details["added"] = median(adding)
    about = {"queries": case.queries, "items": case.items, "batch": case.batch}
    rows = len(one.runs[0].rows)
    return Line("peers", about, one.name, one.form, seconds, rows, OURS, ours / seconds, details=details)


PEERS_COLUMNS = columns(
    "system = engine | form | queries | rows | start, s = start | items/s = items_a_second | "
    "warm = warm_items_a_second | without stage 1 = items_a_second_from_rows | times ours = times | "
    "CPU, s = processor | memory, MiB = resident_mib | adding a query, s = added",
    form=lambda line: line.plan if line.engine != OURS else "",
    times=lambda line: line.speedup if line.engine != OURS else None,
)


def draw_peers(lines: Sequence[Line], prefix: Path) -> None:
    rates, adding, memory = list[PlotSeries](), list[PlotSeries](), list[PlotSeries]()
    for colour, (system, some) in zip(COLOURS, grouped(lines, lambda line: line.engine).items(), strict=False):
        for form, of in by_plan(some).items():
            style, label = ("o-", system) if form == "joined" else ("o:", f"{system}, each")
            rates.append(PlotSeries(label, "items_a_second", style, colour, of))
            if form == "joined":
                adding.append(PlotSeries(label, "added", style, colour, of))
                memory.append(PlotSeries(label, "resident_mib", style, colour, of))
    panels = [
        Panel("queries", "queries", "items a second", rates, "xy"),
        Panel("queries", "queries", "seconds to add a query", adding, "xy"),
        Panel("queries", "queries", "memory, MiB", memory),
    ]
    draw_panels(lines, prefix, panels, (11, 3.6))


def installed_peers(pythons: dict[str, str]) -> dict[str, str]:
    """The systems that can run, with their interpreters. Says which are left out, and why."""
    found = {}
    for name, python in pythons.items():
        if lacking := SYSTEMS[name].lacking(python):
            print(f"{name} is left out: {lacking}", file=sys.stderr)
        else:
            found[name] = python
    return found


def bench_peers() -> None:
    parser = benchmark_parser("peers", "beside Apache Flink, Pathway and Spark's stream-stream joins")
    parser.add_argument("--items", type=int, metavar="N", help=f"how many items; default: {ITEMS:,}")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"how often each is run; default: {ROUNDS}")
    parser.add_argument("--peer", choices=[*SYSTEMS][1:], action="append", help="only this one; may be repeated")
    for system in SYSTEMS.values():
        if not system.uses_ours:
            text = f"the interpreter that has {system.needs}; default: this one"
            parser.add_argument(f"--{system.name}-python", default=sys.executable, metavar="PATH", help=text)
    options = parse_options(parser)
    names = [OURS, *(options.peer or [*SYSTEMS][1:])]
    pythons = installed_peers({name: getattr(options, f"{name}_python", sys.executable) for name in names})
    numbers = options.queries or (QUICK_NUMBERS if options.quick else NUMBERS)
    count = options.items or (QUICK_ITEMS if options.quick else ITEMS)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    cases = [PeersCase(number, count, rounds=rounds) for number in numbers]
    lines = [line for case in with_progress(cases) for line in measure_peers(case, pythons)]
    report(lines, "beside what a user would pick instead", PEERS_COLUMNS, options, draw_peers)
