"""The benchmark of joins on a Spark cluster: where the work is done, and what the driver needs, beside a large state.

    mmqjp bench cluster [--documents N,N] [--quick] [--json FILE] [--csv FILE] [--plot PREFIX]

A standalone cluster of one worker and of two, a core each, runs `mmqjp stream`. Files fill the store; then come files
of 5,000 documents, and of 100. At last, an executor and the driver are killed amid files. Before anything is reported,
the output lines are compared with those that follow from the values. Needs Java.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TypeVar

from bench.cluster_driver import Case, Driven, drive
from bench.cluster_feeder import Feeder
from bench.cluster_workload import CHUNK, Ints, Row, expected, kept, measured, rows_in, script
from bench.command import with_progress
from bench.fresh import in_fresh_process
from bench.latency_service import Place
from bench.spark_cluster import running_cluster
from bench.stage2_report import Column, Line, keep, numbers, parsed, plain_parser, show
from common.files import make_inside
from mmqjp.state.choice import directory_bytes

T = TypeVar("T")

NUMBERS, QUICK_NUMBERS = [100_000, 2_000_000], [20_000]
WORKERS = (2, 1)
LARGE, SMALL = 5_000, 100
SIZES = (LARGE,) * 8 + (SMALL,) * 4
"""The files that a cluster gets. Of each size, the first half is not counted: the JVMs are compiling."""

SHARE = 0.5
"""The share of the documents of measured batches that repeat values."""


def measure(
    documents: int, workers: Sequence[int] = WORKERS, sizes: Sequence[int] = SIZES, *, kills: bool = True
) -> list[Line]:
    """The lines for a number of documents: for each number of workers, one after the other, over the same store. With
    `kills`, processes are killed after that. Raises AssertionError if an output is wrong."""
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="mmqjp-bench-") as name:
        place = Place(Path(name))
        make_inside(place.directory, "drops")
        place.queries.write_text(script())
        chunks = (kept(documents, start, min(start + CHUNK, documents)) for start in range(0, documents, CHUNK))
        _, rate = _driven(Feeder(place, chunks, 0), workers[0], CHUNK, "filling")
        every: list[Ints] = []
        for count in workers:
            batches = [measured(documents, len(every) + n, size, SHARE) for n, size in enumerate(sizes)]
            feeder = Feeder(place, batches, documents + sum(map(len, every)))
            driven, _ = _driven(feeder, count, max(sizes), f"workers{count}")
            lines.append(_line(documents, count, sizes, driven, rate, place.directory / "state"))
            every += batches
        if kills:
            every += _killed(place, documents, every, workers[0], max(sizes))
        outputs = _check(documents, every, place.lines)
    of_a_file = outputs * max(sizes) // sum(map(len, every))
    return [replace(line, rows=of_a_file) for line in lines]


def _killed(place: Place, documents: int, before: Sequence[Ints], workers: int, size: int) -> list[Ints]:
    """The batches amid which an executor, and the driver, were killed, and one after that."""
    batches = [measured(documents, len(before) + n, size, SHARE) for n in range(3)]
    first = documents + sum(map(len, before))
    with (
        running_cluster(place.directory / "cluster-killed", workers) as cluster,
        ThreadPoolExecutor(1) as beside,
        suppress(RuntimeError),  # the driver's process ends without an answer
    ):
        case = Case(cluster.url, tuple(one.pid for one in cluster.workers), place.directory, size, "killed")
        fed = beside.submit(Feeder(place, batches[:2], first).feed_and_kill, case.pid, cluster.executors)
        in_fresh_process(drive, case)
    fed.result()
    _driven(Feeder(place, batches[2:], first + 2 * size, after_a_kill=True), workers, size, "restarted")
    return batches


def _driven(feeder: Feeder, workers: int, batch_size: int, name: str) -> tuple[Driven, float]:
    """What a driver measured on a cluster of its own, and how many documents a second it processed."""
    directory = feeder.place.directory
    with running_cluster(directory / f"cluster-{name}", workers) as cluster, ThreadPoolExecutor(1) as beside:
        case = Case(cluster.url, tuple(worker.pid for worker in cluster.workers), directory, batch_size, name)
        rate = beside.submit(feeder.feed, case.pid)
        driven = in_fresh_process(drive, case)
        return driven, rate.result()


def _check(documents: int, batches: list[Ints], lines: Path) -> int:
    """Returns the number of outputs of measured batches. Raises AssertionError if the lines are not those that follow
    from the values."""
    wanted = expected(documents, batches)
    found: set[Row] = set()
    later = 0
    for row in rows_in(lines):
        if int(row[2][1:]) >= documents:
            later += 1
            found.add(row)
    assert found == wanted and later == len(wanted), f"{later:,} outputs instead of {len(wanted):,}"
    return later


def _line(documents: int, workers: int, sizes: Sequence[int], driven: Driven, rate: float, state: Path) -> Line:
    of_batches = list(zip(sizes, driven.batches[-len(sizes) :], driven.seconds[-len(sizes) :], strict=True))
    large, small = (_counted([one for one in of_batches if one[0] == size]) for size in (max(sizes), min(sizes)))
    executors, driver = (sum(one[name] for _, one, _ in large) for name in ("executors", "driver"))
    return Line(
        bench="cluster",
        case={"documents": documents, "workers": workers, "batch": max(sizes)},
        engine="spark",
        plan="signature",
        seconds=median(seconds for *_, seconds in large),
        rows=0,
        baseline=None,
        speedup=None,
        details={
            "share": executors / (executors + driver),
            "executors": executors / len(large),
            "driver": driver / len(large),
            "small": median(seconds for *_, seconds in small),
            "empty": median(driven.empty) if driven.empty else None,
            "python": driven.python,
            "jvm": driven.jvm,
            "filled_a_second": rate,
            "disk": directory_bytes(state),
        },
    )


def _counted(batches: Sequence[T]) -> Sequence[T]:
    """Those that are counted."""
    return batches[len(batches) // 2 :]


def _detail(name: str, factor: float = 1.0) -> Column:
    def cell(line: Line) -> float | None:
        value = line.details[name]
        return None if value is None else float(str(value)) * factor

    return name, cell


COLUMNS: tuple[Column, ...] = (
    ("documents", lambda line: line.case["documents"]),
    ("workers", lambda line: line.case["workers"]),
    ("outputs of a file", lambda line: line.rows),
    ("s", lambda line: line.seconds),
    ("s of 100", _detail("small")[1]),
    ("s of none", _detail("empty")[1]),
    ("executors, s", _detail("executors")[1]),
    ("driver, s", _detail("driver")[1]),
    ("share, %", _detail("share", 100)[1]),
    ("Python, MB", _detail("python", 1e-6)[1]),
    ("JVM, MB", _detail("jvm", 1e-6)[1]),
    ("disk, MB", _detail("disk", 1e-6)[1]),
    ("filled, documents/s", _detail("filled_a_second")[1]),
)


def lines_of(cases: Sequence[int]) -> list[Line]:
    """The lines for numbers of documents."""
    return [line for documents in with_progress(cases, "{:,} documents".format) for line in measure(documents)]


def main() -> None:
    made = plain_parser("cluster", "joins on a Spark cluster")
    made.add_argument("--documents", type=numbers, metavar="N,N", help="numbers of documents that are kept")
    options = parsed(made)
    lines = lines_of(options.documents or (QUICK_NUMBERS if options.quick else NUMBERS))
    show(lines, f"micro-batches of {LARGE:,} documents beside those that are kept, spark", COLUMNS)
    keep(lines, options)
    if options.plot:
        from bench.stage2_plot import draw_cluster

        draw_cluster(lines, options.plot)


if __name__ == "__main__":
    main()
