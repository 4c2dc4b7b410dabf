"""Event patterns: AGGREGATEs over one input with and without the rule s_α, by how many events are simultaneous."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from bench.patterns_thesis import Given, lowered
from bench.patterns_workload import SECOND
from bench.stage2_report import Column, Line
from common.arrays import Ints
from pattern_stage.columns import Columns, Floats, mixed, same
from pattern_stage.kernel import Kernel
from pattern_stage.lineage import Lineage
from pattern_stage.plan import RULE_NAMES
from pattern_stage.values import Texts
from xscl.algebra.events import Schema, Stream

TURNS = 3
INTERVAL = 10_000
"""About how many events an interval has: simultaneous ones come together."""

SIZES = (10, 5, 5)
"""How many hosts, users and processes there are."""

_SCHEMA: Schema = (("host", "string"), ("user", "string"), ("pid", "string"), ("load", "number"))
_GROUPS = ("host", "user", "pid", "host, user", "")
_FUNCTIONS = ("avg(load) AS mean", "sum(load) AS total, count() AS n", "max(load) AS most")
_WINDOWS = (10, 30, 60)


@dataclass(frozen=True)
class Case:
    """So many events, of which so many are simultaneous."""

    at_once: int
    events: int


def cases(events: int | None, *, quick: bool) -> list[Case]:
    """What is measured. With `quick` there are fewer events."""
    return [
        Case(at_once, events or (2_000 if quick else 60_000))
        for at_once in ((1, 200) if quick else (1, 20, 200, 1_000))
    ]


def statements() -> list[str]:
    """Some functions by some attributes over some windows."""
    return [
        f"AGGREGATE {{{function}{' BY ' * bool(by)}{by} OVER {window} s}} Load"
        for by in _GROUPS
        for function in _FUNCTIONS
        for window in _WINDOWS
    ]


@dataclass(frozen=True)
class Run:
    """CPU time, how many rows windows keep at the end, and a sum of hashes of all results."""

    seconds: float
    kept: int
    results: int
    digest: int


def run(given: Given, asked: Sequence[Stream], *, on: bool) -> Run:
    """Runs all statements, with the rule or without it."""
    lineage, texts = Lineage(), Texts()
    kernel = Kernel(texts, lineage, rules=[name for name in RULE_NAMES if on or name != "s_alpha"])
    for place, stream in enumerate(asked):
        kernel.add(place, stream, -1)
    times, count = (given.seconds + 1) * SECOND, len(given.seconds)
    numbers = lineage.of_documents("Load", np.arange(count), times, times, np.zeros((count, 1), np.int64))
    events = Columns(times, times, given.take(texts).values, numbers.reshape(-1, 1))
    seconds, results, digest = 0.0, 0, 0
    bounds = sorted({int(np.searchsorted(times, times[low])) for low in range(0, count, INTERVAL)} | {count})
    for first, end in pairwise(bounds):
        until = int(times[end]) if end < count else int(times[-1]) + 1
        lineage.begin()
        begin = time.thread_time()
        found = kernel.run({"Load": events.take(np.arange(first, end))}, until)
        seconds += time.thread_time() - begin
        for some in found:
            results += len(some)
            columns = [same(column[some.at]) for column in some.events.values]
            digest += int(mixed([*columns, some.events.t1[some.at], some.statements]).sum())
    state = kernel.state()
    kept = sum(len(table) for name, table in state.items() if name != "format" and "/" not in name)
    return Run(seconds, kept, results, digest)


def measure(case: Case) -> Iterator[Line]:
    """Lines of a case: medians of turns, in each of which both ways run. Raises AssertionError if they differ."""
    chance = np.random.default_rng(1)
    seconds: Ints = np.sort(chance.integers(0, max(1, case.events // case.at_once), case.events))
    columns = [chance.integers(0, size, case.events) for size in SIZES]
    load: Floats = np.round(chance.random(case.events) * 100, 2)
    given = Given(_SCHEMA, seconds, np.arange(case.events), (*columns, load))
    asked = lowered(statements(), {"Load": given})
    runs = {on: list[Run]() for on in (True, False)}
    for _ in range(TURNS):
        for on, made in runs.items():
            made.append(run(given, asked, on=on))
        one, other = runs[True][-1], runs[False][-1]
        assert (one.results, one.digest) == (other.results, other.digest), "the rule changes what is found"
    faster = median(other.seconds / one.seconds for one, other in zip(runs[True], runs[False], strict=True))
    for on, plan in ((True, "s_alpha"), (False, "without")):
        taken, last = median(one.seconds for one in runs[on]), runs[on][-1]
        details = {"events_a_second": case.events / taken, "kept": last.kept}
        baseline, speedup = ("without", faster) if on else (None, None)
        named = {**asdict(case), "figure": "aggregates"}
        yield Line("patterns", named, None, plan, taken, last.results, baseline, speedup, details=details)


COLUMNS: tuple[Column, ...] = (
    ("", lambda line: line.plan),
    ("at once", lambda line: line.case["at_once"]),
    ("events/s", lambda line: line.details["events_a_second"]),
    ("results", lambda line: line.rows),
    ("rows kept", lambda line: line.details["kept"]),
    ("times faster", lambda line: line.speedup),
)
