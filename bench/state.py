"""The benchmark of a large join state on DuckDB: what a batch costs beside more and more documents that are kept.

    mmqjp bench state [--documents N,N] [--quick] [--json FILE] [--csv FILE] [--plot PREFIX]

Documents have four joined values each, Zipf distributed, and the window is infinite. One process fills a store, and
waits until nothing is left to merge; another one opens it, answers batches of 5,000 documents, and evicts a thirtieth
of all. Before a time is reported, the rows of each batch are compared with those that follow from the values.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyarrow as pa

from bench.command import with_progress
from bench.fresh import in_fresh_process
from bench.stage2_engines import become_state, open_engine, put_rows, scope, timed_join
from bench.stage2_report import Column, Line, keep, numbers, parsed, plain_parser, show
from bench.stage2_rows import RowsDigest, check_equal, of_columns
from bench.stage2_witnesses import SECOND, witnesses
from bench.state_workload import LEAVES, chunks, expected, kept, measured, registered, strings
from mmqjp.state.choice import directory_bytes

NUMBERS, QUICK_NUMBERS = [100_000, 1_000_000, 10_000_000], [20_000, 100_000]
SIZE, BATCHES, WARM = 5_000, 7, 2
DAYS = 30


@dataclass(frozen=True)
class Case:
    """A store with `documents` in a directory."""

    documents: int
    directory: Path


@dataclass(frozen=True)
class Filled:
    """Seconds to fill a store, bytes on disk, and the resident memory of the process at its end."""

    seconds: float
    disk: int
    resident: int


@dataclass(frozen=True)
class Measured:
    """What the process that opened a store measured: seconds to open it, of each batch and of an eviction; the rows of
    each batch; the resident memory at the end, the most that it was, and how much of it is mapped files."""

    opened: float
    batches: list[float]
    found: list[RowsDigest]
    evicted: float
    resident: int
    peak: int
    files: int


def fill(case: Case) -> Filled:
    """Fills a store."""
    work = registered()
    store = open_engine("duckdb", "signature", case.directory)
    put_rows(store, work)
    begin = time.perf_counter()
    for first, end in chunks(case.documents):
        leaves = strings(kept(case.documents, first, end))
        become_state(store, [(first, witnesses(work, "S", leaves, first, groups=first == 0))])
    seconds = time.perf_counter() - begin
    while store.counters()["merges"]:  # documents come as fast as this only here
        time.sleep(0.05)  # the merge runs in a thread; a commit takes it over
        store.begin()
        store.commit()
    resident = _memory()["VmRSS"]
    store.close()
    return Filled(seconds, directory_bytes(case.directory), resident)


def use(case: Case) -> Measured:
    """Opens a store and uses it."""
    work, count = registered(), case.documents
    batches = [
        witnesses(work, "S", strings(measured(count, number, SIZE)), count + number * SIZE, groups=False)
        for number in range(BATCHES)
    ]
    begin = time.perf_counter()
    store = open_engine("duckdb", "signature", case.directory)
    put_rows(store, work)
    store.begin()
    store.evict(0)  # nothing goes, but the postings are there from now on
    store.commit()
    opened = time.perf_counter() - begin
    seconds: list[float] = []
    found: list[RowsDigest] = []
    for number, batch in enumerate(batches):
        store.begin()
        joined = timed_join(store, batch, count + number * SIZE, scope(work), keep=True)
        begin = time.perf_counter()
        store.commit()
        seconds.append(joined.seconds + time.perf_counter() - begin)
        found.append(of_columns([joined.table[name].to_numpy() for name in ("qid", "docid1", "docid2")]))
    memory = _memory()
    begin = time.perf_counter()
    store.begin()
    store.evict(count // DAYS * SECOND)
    store.commit()
    evicted = time.perf_counter() - begin
    store.close()
    return Measured(opened, seconds, found, evicted, memory["VmRSS"], memory["VmHWM"], memory["RssFile"])


def _memory() -> dict[str, int]:
    """What the system says of this process's memory, in bytes."""
    pa.default_memory_pool().release_unused()
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return {
        name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines) if " kB" in rest
    }


def measure(documents: int) -> Line:
    """A line for a number of documents. Raises AssertionError if a row is wrong."""
    wanted = expected(registered(), documents, BATCHES, SIZE)
    with tempfile.TemporaryDirectory(prefix="mmqjp-bench-") as directory:
        case = Case(documents, Path(directory))
        filled = in_fresh_process(fill, case)
        used = in_fresh_process(use, case)
    for ours, theirs in zip(used.found, wanted, strict=True):
        check_equal({"signature": ours, "values": theirs})
    seconds = median(used.batches[WARM:])
    rows = int(median(of.rows for of in used.found[WARM:]))
    return Line(
        bench="state",
        case={"documents": documents, "batch": SIZE},
        engine="duckdb",
        plan="signature",
        seconds=seconds,
        rows=rows,
        baseline=None,
        speedup=None,
        details={
            "slowest": max(used.batches[WARM:]),
            "opened": used.opened,
            "evicted": used.evicted,
            "resident": used.resident,
            "peak": used.peak,
            "resident_files": used.files,
            "resident_filled": filled.resident,
            "filled": filled.seconds,
            "disk": filled.disk,
            "posting_bytes": filled.disk / (documents * LEAVES),
        },
    )


def _mb(name: str) -> Column:
    return f"{name.replace('_', ' ')}, MB", lambda line: int(str(line.details[name])) / 1e6


COLUMNS: tuple[Column, ...] = (
    ("documents", lambda line: line.case["documents"]),
    ("rows", lambda line: line.rows),
    ("ms", lambda line: line.seconds * 1e3),
    ("slowest, ms", lambda line: float(str(line.details["slowest"])) * 1e3),
    ("of the first", lambda line: line.details["ratio"]),
    ("open, s", lambda line: line.details["opened"]),
    ("evict, s", lambda line: line.details["evicted"]),
    _mb("resident"),
    _mb("peak"),
    _mb("resident_files"),
    _mb("resident_filled"),
    _mb("disk"),
    ("bytes a posting", lambda line: line.details["posting_bytes"]),
    ("filled, s", lambda line: line.details["filled"]),
)


def with_ratios(lines: Sequence[Line]) -> list[Line]:
    """The lines with the time of a batch over that of the first line, for as many rows."""
    first = lines[0].seconds / lines[0].rows
    return [
        Line(**{**vars(line), "details": {**line.details, "ratio": line.seconds / line.rows / first}}) for line in lines
    ]


def main() -> None:
    made = plain_parser("state", "batches beside a large join state")
    made.add_argument("--documents", type=numbers, metavar="N,N", help="numbers of documents that are kept")
    options = parsed(made)
    cases = options.documents or (QUICK_NUMBERS if options.quick else NUMBERS)
    lines = with_ratios([measure(documents) for documents in with_progress(cases, "{:,} documents".format)])
    show(lines, f"batches of {SIZE:,} documents beside those that are kept, duckdb", COLUMNS)
    keep(lines, options)
    if options.plot:
        from bench.stage2_plot import draw_state

        draw_state(lines, options.plot)


if __name__ == "__main__":
    main()
