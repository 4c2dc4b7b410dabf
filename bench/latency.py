"""From the appearance of a file to its output line: a service that is otherwise idle, and one at half its throughput.

`mmqjp stream` runs in a process of its own, over subscriptions to one channel each. Documents are files that are
renamed into its directory. Its throughput is measured first: many files at once. Then files come one by one, and then
at random, at half that rate. The latency of a document is the time from just before the rename until its last line can
be read. The lines must be those that `mmqjp run` writes for the same files, each once. Times are of the clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from bench.command import with_progress
from bench.expert_workload import parameters, script
from bench.latency_service import LineTimes, Place, RunningService, mmqjp
from bench.stage2_report import Column, Line, keep, parsed, parser, show
from bench.workload import items
from join_stage.protocol import DEFAULT_PLAN
from mmqjp.commands.console import interruptible

NUMBERS, QUICK_NUMBERS = [1_000, 100_000], [1_000]
READY, BATCH_RUN, PROCESSED = 1_800.0, 1_800.0, 600.0
"""The most seconds until the service has started, a batch run has ended, and what was dropped is processed."""
GAP = 0.05, 0.55
"""The seconds between the end of one document and the next, when the service is idle: any in this range."""
HALF_SECONDS = 15.0
"""For so long documents come at half the throughput, if there are enough."""
LEAST = 200
"""At least so many documents come then, however slow the service is."""
SHARES = {"p50": 50, "p95": 95, "p99": 99}


@dataclass(frozen=True)
class Case:
    """How much is measured: so many documents before all else, at once, one by one, and at most at half the rate."""

    queries: int
    engine: str = "duckdb"
    plan: str = DEFAULT_PLAN
    trigger: str = "1s"
    before: int = 1_000
    at_once: int = 1_000
    idle: int = 200
    half: int = 8_000

    @property
    def documents(self) -> int:
        return self.before + self.at_once + self.idle + self.half


@dataclass(frozen=True, slots=True)
class Phase:
    """Documents that were dropped one after the other: the number of the first, and the time of each."""

    first: int
    times: list[float]


def measure(case: Case) -> list[Line]:
    """Lines for an idle service and for one at half its throughput. Raises AssertionError if its output lines are not
    those of a batch run, and ServiceFailed."""
    with TemporaryDirectory(prefix="mmqjp-latency-") as directory:
        place, made = Place(Path(directory)), Path(directory) / "made"
        place.drops.mkdir()
        place.queries.write_text(script(parameters(case.queries)), encoding="utf-8")
        _make_documents(case.documents, made)
        options = ["--engine", case.engine, "--plan", case.plan, "--state", place.directory / "state"]
        # The documents are older than the clock, and the batch run knows no lateness.
        options += ["--trigger", case.trigger, "--lateness", "INF", "--idle-after", "INF", "--max-ahead", "INF"]
        with RunningService(place, options) as service, LineTimes(place.lines) as arrivals:
            service.wait_until_ready(READY)
            phases, rate = _phases(case, place, made, service)
            service.wait_until(arrivals.is_at_end, PROCESSED, "write its lines")
            service.stop()
        assert _ids(place.lines) == _ids(_batch_run(place)), "the service and a batch run write different lines"
        last = {_completed_by(line): at for at, line in arrivals.lines()}
        return [_line(case, load, phase, last, rate) for load, phase in phases.items()]


def _phases(case: Case, place: Place, made: Path, service: RunningService) -> tuple[dict[str, Phase], float]:
    """Drops the documents. Returns those of the measured phases, and the throughput, in documents a second."""
    rng = Random(3)
    dropped = 0

    def drop() -> float:
        nonlocal dropped
        name = _name(dropped)
        now = time.perf_counter()
        os.rename(made / name, place.drops / name)  # noqa: PTH104  # the fastest way
        dropped += 1
        return now

    def settle() -> None:
        service.wait_until(lambda: service.documents() >= dropped, PROCESSED, f"process {dropped:,} documents")

    for _ in range(case.before):
        drop()
    settle()
    begin = time.perf_counter()
    for _ in range(case.at_once):
        drop()
    settle()
    rate = case.at_once / (time.perf_counter() - begin)
    idle = Phase(dropped, [])
    for _ in range(case.idle):
        time.sleep(rng.uniform(*GAP))
        idle.times.append(drop())
        settle()
    half = Phase(dropped, [])
    due = time.perf_counter()
    for _ in range(min(case.half, max(round(HALF_SECONDS * rate / 2), LEAST))):
        due += rng.expovariate(rate / 2)
        time.sleep(max(due - time.perf_counter(), 0))
        half.times.append(drop())
    settle()
    return {"idle": idle, "half": half}, rate


def _make_documents(count: int, directory: Path) -> None:
    """Writes the items of the workload as files whose times are those of the items."""
    directory.mkdir()
    for number, item in enumerate(items(count)):
        path = directory / _name(number)
        path.write_bytes(item.xml_bytes())
        os.utime(path, ns=(item.t0 * 1000, item.t0 * 1000))


def _name(number: int) -> str:
    return f"{number:07}.xml"


def _batch_run(place: Place) -> Path:
    """The lines that `mmqjp run` writes, on DuckDB, for all files that were dropped."""
    lines = place.directory / "expected.jsonl"
    files = ["--queries", place.queries, "--documents", place.drops, "--output", lines]
    subprocess.run(mmqjp("run", "--engine", "duckdb", *files), check=True, timeout=BATCH_RUN)
    return lines


def _ids(lines: Path) -> list[str]:
    """The ids of the lines of a file, sorted. An id tells the query, the documents and the nodes."""
    with lines.open("rb") as found:
        return sorted(str(json.loads(line)["id"]) for line in found)


def _completed_by(line: bytes) -> int:
    """The number of the document that completes the match: of those it is about, the last to come."""
    return max(int(Path(document).stem) for document in json.loads(line)["documents"])


def _line(case: Case, load: str, phase: Phase, last: dict[int, float], rate: float) -> Line:
    seconds = [last[number] - at for number, at in enumerate(phase.times, phase.first) if number in last]
    assert seconds, f"no document that came in the phase {load!r} has a line"
    details: dict[str, object] = {f"{name}_ms": 1000 * percentile(seconds, share) for name, share in SHARES.items()}
    offered = len(phase.times) / (phase.times[-1] - phase.times[0]) if len(phase.times) > 1 else None
    details |= {"most_ms": 1000 * max(seconds), "throughput": rate, "documents_a_second": offered}
    about = {"queries": case.queries, "load": load, "trigger": case.trigger, "documents": len(phase.times)}
    middle = percentile(seconds, 50)
    return Line("latency", about, case.engine, case.plan, middle, len(seconds), None, None, details=details)


def percentile(values: Sequence[float], share: int) -> float:
    """The smallest of the values that at least `share` per cent of them do not exceed.

    >>> percentile([3.0, 1.0, 2.0, 4.0], 50), percentile([3.0, 1.0, 2.0, 4.0], 95)
    (2.0, 4.0)
    """
    return sorted(values)[max(-(-len(values) * share // 100), 1) - 1]


COLUMNS: tuple[Column, ...] = (
    ("queries", lambda line: line.case["queries"]),
    ("load", lambda line: line.case["load"]),
    ("documents", lambda line: line.case["documents"]),
    ("with lines", lambda line: line.rows),
    ("throughput, documents/s", lambda line: line.details["throughput"]),
    ("documents/s", lambda line: line.details["documents_a_second"]),
    ("p50, ms", lambda line: line.details["p50_ms"]),
    ("p95, ms", lambda line: line.details["p95_ms"]),
    ("p99, ms", lambda line: line.details["p99_ms"]),
    ("most, ms", lambda line: line.details["most_ms"]),
)


def main() -> None:
    made = parser("latency", "from the appearance of a file to its output line")
    made.add_argument("--trigger", default="1s", metavar="DURATION", help="the service's --trigger; default: 1s")
    options = parsed(made)
    numbers = options.queries or (QUICK_NUMBERS if options.quick else NUMBERS)
    plan = options.plan or DEFAULT_PLAN
    cases = [Case(number, options.engine, plan, options.trigger) for number in numbers]
    with interruptible():  # so that the service is ended on SIGTERM, too
        lines = [line for case in with_progress(cases, str) for line in measure(case)]
    show(lines, f"from a file to its line, {options.engine}", COLUMNS)
    keep(lines, options)
    if options.plot:
        from bench.stage2_plot import draw_latency

        draw_latency(lines, options.plot)


if __name__ == "__main__":
    main()
