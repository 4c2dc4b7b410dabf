"""Measures the workloads of `bench.patterns_thesis`: all statements together, and those of a sample one at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import numpy as np

from bench.patterns_thesis import Given, Workload, lowered, statements, streams
from bench.patterns_workload import SECOND
from bench.stage2_report import Column, Line, marked
from pattern_stage.columns import Ints
from pattern_stage.kernel import Kernel
from pattern_stage.values import Texts
from xscl.algebra.events import Stream

INTERVAL = 1000
"""How many events an interval has."""

Found = set[tuple[int, ...]]
"""Results of a statement: t0, t1 and the numbers of their events."""


class Numbered:
    """The lineage of events whose parts are their numbers."""

    def ends(self, numbers: Ints) -> Ints:
        """Every statement sees all events, so nobody asks."""
        raise AssertionError("all statements see all events")

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
    total = sum(map(len, columns.values()))
    step = max(1, last * INTERVAL // total // SECOND) * SECOND
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
    """Lines of a case: medians of turns, in each of which both ways and the floor run.

    Raises AssertionError if a statement of the sample has other results alone.
    """
    given = streams(one)
    asked = lowered(list(statements(one)), given)
    sample = np.random.default_rng(3).choice(len(asked), min(sample_size, len(asked)), replace=False).tolist()
    together, alone, floors = [], [], []
    for _ in range(turns):
        ours = run(one, asked, given, sample)
        seconds, rows = 0.0, 0
        for place in sample:
            single = run(replace(one, queries=1), [asked[place]], given, [0])
            assert single.found[0] == ours.found[place], f"statement {place} of {one} has something else alone"
            seconds, rows = seconds + single.seconds, rows + single.results
        together.append(ours)
        alone.append(seconds * len(asked) / len(sample))
        floors.append(floor(given))
    seconds, lowest = median(ours.seconds for ours in together), median(floors)
    speedup = median(other / ours.seconds for other, ours in zip(alone, together, strict=True))
    registered = len(asked) / median(ours.registering for ours in together)
    scaled, case = len(sample) < len(asked), asdict(one)
    count = sum(len(events.seconds) for events in given.values())
    details = {"events_a_second": count / seconds, "registered": registered}
    results = together[0].results
    yield Line("patterns", case, None, "together", seconds, results, "one at a time", speedup, lowest, scaled, details)
    slow = median(alone)
    yield Line(
        "patterns",
        case,
        None,
        "one at a time",
        slow,
        rows,
        None,
        None,
        lowest,
        scaled,
        {"events_a_second": count / slow},
    )


COLUMNS: tuple[Column, ...] = (
    ("figure", lambda line: line.case["figure"]),
    ("template", lambda line: line.case["template"]),
    ("", lambda line: line.plan),
    ("channels", lambda line: "on" if line.case["channels"] else "off"),
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
    ("registered/s", lambda line: line.details.get("registered")),
)
