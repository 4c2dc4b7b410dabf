"""Event patterns beside what else one would take: Flink's MATCH_RECOGNIZE, and an expert's SQL on DuckDB.

All have the same 100,000 events of 200 keys, a second apart, and 1 to 100 statements that differ in a range.

Beside Flink, which has a statement for each, both are processes of their own, from a CSV file to a file of rows, the
start included. Beside the expert, who has one query with a table of parameters, both are in this process and have the
events in memory, and get them at once. Times are processor times. The rows are compared before a time is reported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from bench import patterns_peer_ours, patterns_peer_sql
from bench.patterns_peer_task import COLUMNS, TEMPLATES, Task, ranges, read_rows
from bench.patterns_thesis import lowered
from bench.peer_runs import System, reported
from bench.stage2_report import Column, Line
from common.arrays import Ints

FLINK = System("flink", "patterns_peer_flink", "pyflink", java=True)
OURS = System("mmqjp", "patterns_peer_ours", "mmqjp", uses_ours=True)
KEYS = 200
TURNS, QUICK_TURNS = 5, 1
PEER_TURNS = 1
"""A process of Flink takes half a minute and more."""
LONG = 3600.0
"""Seconds after which a process is ended."""


@dataclass(frozen=True)
class Case:
    """A template with its parameters, and whom it is measured beside."""

    template: str
    queries: int
    events: int
    beside: str


def cases(queries: Sequence[int] | None, events: int | None, *, flink: bool, quick: bool) -> list[Case]:
    """What is measured. With `quick` there are fewer statements and events."""
    numbers = queries or ([1, 10] if quick else [1, 10, 100])
    count = events or (10_000 if quick else 100_000)
    others = ["expert", "flink"] if flink else ["expert"]
    return [Case(template, number, count, beside) for beside in others for template in TEMPLATES for number in numbers]


def events(case: Case) -> pa.Table:
    """The events, which are of A and B by turns."""
    chance = np.random.default_rng(4)
    numbers = np.arange(1, case.events + 1)
    kinds = np.where(numbers % 2, "A", "B")
    keys = [f"v{key}" for key in chance.integers(0, KEYS, case.events).tolist()]
    return pa.table(dict(zip(COLUMNS, (numbers, numbers, kinds, keys, chance.random(case.events) * 100), strict=True)))


def measure(case: Case, python: str, turns: int) -> Iterator[Line]:
    """Lines of a case: medians of turns. `python` is the interpreter that has Flink.

    Raises AssertionError if another way has other rows.
    """
    task, given = Task(case.template, ranges(case.queries)), events(case)
    if case.beside == "flink":
        with TemporaryDirectory(prefix="mmqjp-patterns-") as made:
            systems = ((OURS, sys.executable), (FLINK, python))
            processes = {one.name: _process(one, path, task, given, Path(made)) for one, path in systems}
            yield from _in_turns(case, processes, PEER_TURNS)
        return
    streams = patterns_peer_ours.streams(given)
    asked = lowered(patterns_peer_ours.statements(task), streams)
    database = patterns_peer_sql.connected(given, task)

    def ours() -> Callable[[], Ints]:
        ready = patterns_peer_ours.ready(asked, streams)
        return lambda: patterns_peer_ours.answered(ready, case.events + 2)

    ways = {"mmqjp": _clocked(ours)}
    for form in patterns_peer_sql.FORMS[case.template]:
        sql = partial(patterns_peer_sql.answered, database, case.template, form)
        ways[f"SQL, {form}"] = _clocked(partial(_same, sql))
    yield from _in_turns(case, ways, turns)


Way = Callable[[], tuple[float, set[tuple[int, ...]]]]
"""Returns processor seconds and rows."""


def _in_turns(case: Case, ways: dict[str, Way], turns: int) -> Iterator[Line]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    expected: set[tuple[int, ...]] = set()
    for _ in range(turns):
        for name, way in ways.items():
            seconds, rows = way()
            expected = expected or rows
            assert rows == expected, f"{name} has other rows in {case}: {len(rows)}, not {len(expected)}"
            taken[name].append(seconds)
    for name, times in taken.items():
        # The ratio of the turns' times to ours, whose line has none.
        over = median(one / ours for one, ours in zip(times, taken["mmqjp"], strict=True))
        baseline = None if name == "mmqjp" else "mmqjp"
        details = {"events_a_second": case.events / median(times)} | ({"over_ours": over} if baseline else {})
        yield Line(
            "patterns", {**asdict(case), "figure": case.beside}, None, name, median(times), len(expected), baseline,
            1 / over if baseline else None, details=details,
        )  # fmt: skip


def _process(system: System, python: str, task: Task, given: pa.Table, directory: Path) -> Way:
    """A way that is a process."""

    def run() -> tuple[float, set[tuple[int, ...]]]:
        with TemporaryDirectory(dir=directory) as made:
            place = Path(made)
            task.write(place)
            _write_events(place / "events.csv", given)
            report, _ = reported(system, place, python, LONG)
            return report["processor"], set(read_rows(place))

    return run


def _write_events(path: Path, given: pa.Table) -> None:
    """Without a header, which Flink would take for an event."""
    with path.open("w", encoding="utf-8") as out:
        for row in zip(*(column.to_pylist() for column in given.columns), strict=True):
            out.write(",".join(map(str, row)) + "\n")


def _same(work: Callable[[], Ints]) -> Callable[[], Ints]:
    return work


def _clocked(prepare: Callable[[], Callable[[], Ints]]) -> Way:
    """A way in this process. What prepares it is not measured."""

    def run() -> tuple[float, set[tuple[int, ...]]]:
        work = prepare()
        begin = time.process_time()
        rows = work()
        seconds = time.process_time() - begin
        return seconds, set(map(tuple, rows.tolist()))

    return run


COLUMNS_SHOWN: tuple[Column, ...] = (
    ("template", lambda line: line.case["template"]),
    ("", lambda line: line.plan),
    ("statements", lambda line: line.case["queries"]),
    ("beside", lambda line: line.case["beside"]),
    ("rows", lambda line: line.rows),
    ("CPU s", lambda line: line.seconds),
    ("times our time", lambda line: line.details.get("over_ours")),
)
