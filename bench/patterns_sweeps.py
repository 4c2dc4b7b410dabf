"""Measures the workloads of `bench.patterns_thesis`: all statements together, and those of a sample one at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median

import numpy as np

from bench.patterns_thesis import Given, Workload, lowered, statements, streams
from bench.patterns_workload import SECOND
from bench.stage2_report import Column, Line, marked
from common.arrays import Ints
from pattern_stage.kernel import Kernel
from pattern_stage.values import Texts
from xscl.algebra.events import Stream

INTERVAL = 1000
"""How many events an interval has, those of streams that are copies not counted."""

Found = set[tuple[int, ...]]
"""Results of a statement: t0, t1 and the numbers of their events."""


class Numbered:
    """The lineage of events whose parts are their numbers. `ended` says when each one ended, where that matters: for an
    AGGREGATE of events with duration."""

    def __init__(self, ended: Ints | None = None) -> None:
        self._ended = ended

    def ends(self, numbers: Ints) -> Ints:
        """Returns when events ended."""
        assert self._ended is not None, "every statement sees all events, so nobody asks"
        return self._ended[numbers]

    def together(self, parts: Ints, groups: Ints) -> Ints:
        """Returns the part of each group, which has one event."""
        assert len(np.unique(groups)) == len(groups), "simultaneous events of a group"
        found = np.zeros(len(groups), np.int64)
        found[groups] = parts[:, 0]
        return found


@dataclass(frozen=True)
class Run:
    """CPU time of registration and of all intervals, and results: their number, and those of the sample."""

    registering: float
    seconds: float
    results: int
    found: dict[int, Found]


def run(one: Workload, asked: Sequence[Stream], given: Mapping[str, Given], sample: Iterable[int]) -> Run:
    """Runs statements together."""
    kernel = Kernel(Texts(), Numbered(), rules=one.rules)
    columns = {name: events.take(kernel.texts) for name, events in given.items()}
    begin = time.thread_time()
    for place, stream in enumerate(asked):
        kernel.add(place, stream, -1)
    kernel.run({}, 0)
    registering = time.thread_time() - begin
    wanted = np.array(sorted(sample), np.int64)
    found: dict[int, Found] = {place: set() for place in wanted.tolist()}
    count, seconds = 0, 0.0
    last = max(int(events.t1[-1]) for events in columns.values())
    step = max(1, last * INTERVAL // one.events // SECOND) * SECOND
    for low in range(0, last + 1, step):
        part = {}
        for name, events in columns.items():
            first, end = np.searchsorted(events.t1, (low, low + step)).tolist()
            part[name] = events.take(np.arange(first, end))
        begin = time.thread_time()
        results = kernel.run(part, low + step)
        seconds += time.thread_time() - begin
        for some in results:
            count += len(some)
            for place in np.flatnonzero(np.isin(some.statements, wanted)).tolist():
                at = some.at[place]
                event = (int(some.events.t0[at]), int(some.events.t1[at]), *some.events.parts[at].tolist())
                found[int(some.statements[place])].add(event)
    return Run(registering, seconds, count, found)


def floor(given: Mapping[str, Given]) -> float:
    """Seconds for a dictionary probe for each attribute of each event."""
    rows = [column.tolist() for events in given.values() for column in events.columns]
    known = [dict.fromkeys(column, 1) for column in rows]
    begin = time.thread_time()
    for probed, column in zip(known, rows, strict=True):
        get = probed.get
        for value in column:
            get(value)
    return time.thread_time() - begin


def measure(one: Workload, sample_size: int, turns: int) -> Iterator[Line]:
    """Lines of a case: medians of turns, in each of which all ways and the floor run.

    Raises AssertionError if a statement of the sample has other results without channels, or alone.
    """
    made = [Way("together", one)]
    if one.has_channels:
        made.append(Way("without channels", replace(one, channels=False)))
    sample = np.random.default_rng(3).choice(one.queries, min(sample_size, one.queries), replace=False).tolist()
    alone, alone_rows, floors = [], 0, []
    for _ in range(turns):
        for way in made:
            way.runs.append(run(way.case, way.asked, way.given, sample))
        seconds, alone_rows = 0.0, 0
        for place in sample:
            single = run(replace(one, queries=1), [made[0].asked[place]], made[0].given, [0])
            for way in made:
                found = way.runs[-1].found[place]
                assert single.found[0] == found, f"statement {place} of {one} has something else alone than {way.plan}"
            seconds, alone_rows = seconds + single.seconds, alone_rows + single.results
        alone.append(seconds * one.queries / len(sample))
        floors.append(floor(made[0].given))
    count = sum(len(events.seconds) for events in made[0].given.values())
    lowest, scaled = median(floors), len(sample) < one.queries

    def line(plan: str, seconds: float, rows: int, speedup: float | None, **details: object) -> Line:
        baseline = None if speedup is None else "one at a time"
        details = {"events_a_second": count / seconds, **details}
        return Line("patterns", asdict(one), None, plan, seconds, rows, baseline, speedup, lowest, scaled, details)

    for way in made:
        taken = [ours.seconds for ours in way.runs]
        details: dict[str, object] = {"registered": one.queries / median(ours.registering for ours in way.runs)}
        if way is made[0] and len(made) > 1:
            details["over_channels"] = _ratio([ours.seconds for ours in made[1].runs], taken)
        yield line(way.plan, median(taken), way.runs[0].results, _ratio(alone, taken), **details)
    yield line("one at a time", median(alone), alone_rows, None)


@dataclass
class Way:
    """A way to run the statements of a case, and its runs, one a turn."""

    plan: str
    case: Workload
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.given = streams(self.case)
        self.asked = lowered(list(statements(self.case)), self.given)


def _ratio(slower: Sequence[float], faster: Sequence[float]) -> float:
    """The median of the ratios of the turns."""
    return median(one / other for one, other in zip(slower, faster, strict=True))


COLUMNS: tuple[Column, ...] = (
    ("figure", lambda line: line.case["figure"]),
    ("template", lambda line: line.case["template"]),
    ("", lambda line: line.plan),
    ("statements", lambda line: line.case["queries"]),
    ("domain", lambda line: line.case["domain"]),
    ("window", lambda line: line.case["window"]),
    ("zipf", lambda line: line.case["zipf"]),
    ("capacity", lambda line: line.case["capacity"]),
    ("sel", lambda line: line.case["sel"]),
    ("events/s", lambda line: line.details["events_a_second"]),
    ("results", lambda line: line.rows),
    ("over floor", lambda line: line.over_floor),
    ("times faster", marked),
    ("than without channels", lambda line: line.details.get("over_channels")),
    ("registered/s", lambda line: line.details.get("registered")),
)
