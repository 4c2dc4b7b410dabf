"""SASE+ (section 6): what runs of any length cost, by strategy, predicate and window.

E1 is about six questions at one window, E2 about larger windows, E4 about NON OVERLAPPING, E5 about runs that remember
the same and are one, and E6 about these without the time to tell matches. Beside the kernel stand the kernel without
merging, and the paper's baseline, backtracking, which is E3. Times are medians of turns, in each of which all ways run
over all events. The matches of all ways are compared event by event.

`many` is about many questions that differ in their constants, beside a sample of them one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from statistics import median
from typing import Any, cast
from unittest.mock import patch

import numpy as np

from bench.patterns_backtracking import matches
from bench.patterns_stocks import (
    LOW,
    PER_WINDOW,
    PREDICATES,
    SCHEMA,
    STREAM,
    SYMBOLS,
    Predicate,
    Stocks,
    Strategy,
    lowered,
    question,
    stocks,
)
from bench.stage2_report import Column, Line, marked
from pattern_stage.kernel import Kernel, Results
from pattern_stage.lineage import Lineage
from pattern_stage.pattern import runs as running
from pattern_stage.pattern.found import expand_bundles
from pattern_stage.pattern.runs import RunMatching
from pattern_stage.values import Texts
from xscl.algebra.events import Pattern, Statement

INTERVAL = 1000
"""How many events an interval has."""

Match = int
"""A hash of the numbers of the events of each variable."""


@dataclass(frozen=True)
class Case:
    """A question, or many that differ in their constants. A window has so many events of each symbol."""

    figure: str
    predicate: Predicate
    strategy: Strategy
    window: int
    events: int
    rises: float = 0.7
    apart: bool = False
    three: bool = False
    queries: int = 1

    @property
    def template(self) -> str:
        """What the paper calls it."""
        return f"{self.predicate}{'*' * self.three}{self.strategy}"

    def texts(self) -> list[str]:
        """The texts of the questions. Many have each its own bound of the volume."""
        if self.queries == 1:
            lows = [""]
        else:
            lows = [f"b.volume < {LOW * (place + 1) / self.queries:g}" for place in range(self.queries)]
        return [
            question(self.predicate, self.strategy, self.window, apart=self.apart, three=self.three, low=low)
            for low in lows
        ]


@dataclass
class Run:
    """CPU time of all intervals, and of it that of telling matches; how many matches there are and how many events they
    have, and the matches of some."""

    seconds: float = 0.0
    telling: float = 0.0
    matches: int = 0
    length: int = 0
    found: dict[int, set[Match]] | None = None

    @property
    def matching(self) -> float:
        """The CPU time without that of telling matches."""
        return self.seconds - self.telling


def run(
    asked: Sequence[Statement],
    given: Stocks,
    wanted: Iterable[int] = (),
    *,
    merged: bool = True,
) -> Run:
    """Runs questions together. Of those that are wanted it keeps the matches."""
    lineage = Lineage()
    kernel = Kernel(Texts(), lineage, merged=merged)
    for place, statement in enumerate(asked):
        kernel.add(place, statement, -1)
    kernel.run({}, 0)
    some = sorted(wanted)
    made = Run(found={place: set() for place in some})
    events: dict[int, int] = {}
    for begin in range(0, len(given), INTERVAL):
        columns = given.columns(kernel.texts, lineage, begin, begin + INTERVAL)
        events.update(zip(columns.parts[:, 0].tolist(), range(begin, begin + INTERVAL), strict=False))
        start = time.thread_time()
        lineage.begin()
        with _telling(made):
            results = kernel.run({STREAM: columns}, int(columns.t1[-1]) + 1)
        made.matches += sum(map(len, results))
        made.seconds += time.thread_time() - start
        for one in results:
            _take(made, one, lineage, some, events)
        if lineage.crowded:
            lineage.keep(kernel.parts())
    return made


@contextmanager
def _telling(made: Run) -> Iterator[None]:
    """Adds the time that it takes to tell matches: few calls for an interval, as each look at the clock takes long."""

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            start = time.thread_time()
            found = function(*args, **named)
            made.telling += time.thread_time() - start
            return found

        return call

    results = timed(RunMatching._results)
    with patch.object(running, "told", timed(expand_bundles)), patch.object(RunMatching, "_results", results):
        yield


def _take(made: Run, results: Results, lineage: Lineage, wanted: Sequence[int], numbers: Mapping[int, int]) -> None:
    """Adds the matches of those that are wanted. `numbers` says which events those of the lineage are."""
    assert made.found is not None
    at = np.flatnonzero(np.isin(results.statements, wanted))
    parts = results.events.parts[results.at[at]]
    origins = lineage.origins(np.unique(parts))
    events = {
        number: tuple(sorted(numbers[part] for part in origin.parts or (number,))) for number, origin in origins.items()
    }
    for place, row in zip(results.statements[at].tolist(), parts.tolist(), strict=True):
        match = tuple(events[number] for number in row)
        made.length += sum(map(len, match))
        made.found[place].add(hash(match))


def by_backtracking(statement: Statement, given: Stocks) -> Run:
    """Runs a question by backtracking, over all events at once."""
    texts, lineage = Texts(), Lineage()
    columns = given.columns(texts, lineage, 0, len(given))
    made = Run(found={0: set()})
    assert made.found is not None
    start = time.thread_time()
    for path in matches(cast(Pattern, statement), texts, {STREAM: columns}):
        made.matches += 1
        made.length += len(path)
    made.seconds = time.thread_time() - start
    for path in matches(cast(Pattern, statement), texts, {STREAM: columns}):
        by_variable = groupby(path, key=lambda one: one[1])
        made.found[0].add(hash(tuple(tuple(number for number, _ in some) for _, some in by_variable)))
    return made


def measure(case: Case, turns: int, sample: int) -> Iterator[Line]:
    """Lines of a case. Raises AssertionError if the matches of two ways differ."""
    asked = lowered(case.texts(), {STREAM: SCHEMA})
    given = stocks(case.events, case.rises)
    ways = _many(asked, given, sample) if case.queries > 1 else _ways(case, asked[0], given)
    runs: dict[str, list[Run]] = {plan: [] for plan in ways}
    for _ in range(turns):
        for plan, way in ways.items():
            runs[plan].append(way())
        first, *others = (some[-1] for some in runs.values())
        for plan, other in zip(list(ways)[1:], others, strict=True):
            assert other.found == first.found, f"{case}: {plan} has other matches"
    base = list(runs)[-1]
    scale = case.queries / min(sample, case.queries)
    for plan, some in runs.items():
        taken = median(one.seconds for one in some) * (scale if plan == "one at a time" else 1)
        details: dict[str, object] = {
            "events_a_second": case.events / taken,
            "length": some[0].length / sum(map(len, (some[0].found or {}).values())) if some[0].length else None,
            "template": case.template,
        }
        if plan == "without merging":
            ratios = [one.seconds / other.seconds for one, other in zip(some, runs["together"], strict=True)]
            details["merging"] = median(ratios)
            pairs = zip(some, runs["together"], strict=True)
            details["matching"] = median(one.matching / other.matching for one, other in pairs)
        times = None
        if plan != base:
            times = median(other.seconds * scale / one.seconds for one, other in zip(some, runs[base], strict=True))
        yield Line(
            "patterns",
            {**asdict(case), "template": case.template},
            None,
            plan,
            taken,
            some[0].matches,
            base if times else None,
            times,
            None,
            scale > 1,
            details,
        )


def _ways(case: Case, statement: Statement, given: Stocks) -> dict[str, Callable[[], Run]]:
    ways: dict[str, Callable[[], Run]] = {
        "together": lambda: run([statement], given, [0]),
        "without merging": lambda: run([statement], given, [0], merged=False),
    }
    if not case.apart:
        ways["backtracking"] = lambda: by_backtracking(statement, given)
    return ways


def _many(asked: Sequence[Statement], given: Stocks, sample: int) -> dict[str, Callable[[], Run]]:
    some = np.random.default_rng(3).choice(len(asked), min(sample, len(asked)), replace=False).tolist()

    def alone() -> Run:
        made = Run(found={})
        assert made.found is not None
        for place in some:
            one = run([asked[place]], given, [0])
            assert one.found is not None
            made.seconds += one.seconds
            made.matches += one.matches
            made.found[place] = one.found[0]
        return made

    return {"together": lambda: run(asked, given, some), "one at a time": alone}


def cases(queries: Sequence[int] | None, events: int | None, *, quick: bool) -> list[Case]:
    """The experiments of the paper. With `quick` the streams and windows are shorter."""
    window = 100 if quick else 500

    def count(window: int) -> int:
        return events or (20 if quick else PER_WINDOW) * window * SYMBOLS

    base = Case("E1", "p1", "s3", window, count(window))
    strategies: tuple[Strategy, ...] = ("s2", "s3")
    made = [
        replace(base, predicate=predicate, strategy=strategy, rises=rises)
        for predicate in PREDICATES
        for strategy in strategies
        for rises in ((0.7,) if quick else (0.55, 0.7))
    ]
    if not quick:
        made += [
            replace(base, figure="E2", predicate=predicate, window=size, events=count(size))
            for predicate in PREDICATES
            for size in (500, 1000, 1500, 2000)
        ]
    made += [replace(base, figure="E4", predicate=one, apart=True, three=True) for one in PREDICATES]
    numbers = queries or ([1_000] if quick else [1_000, 10_000])
    return made + [replace(base, figure="many", queries=number, events=events or 10_000) for number in numbers]


COLUMNS: tuple[Column, ...] = (
    ("figure", lambda line: line.case["figure"]),
    ("", lambda line: line.details["template"]),
    ("", lambda line: line.plan),
    ("rises", lambda line: line.case["rises"]),
    ("window", lambda line: line.case["window"]),
    ("queries", lambda line: line.case["queries"]),
    ("events/s", lambda line: line.details["events_a_second"]),
    ("matches", lambda line: line.rows),
    ("events a match", lambda line: line.details.get("length")),
    ("times as fast as the last", marked),
    ("merging", lambda line: line.details.get("merging")),
    ("matching only", lambda line: line.details.get("matching")),
)
