"""PATTERN with ERRORS: what missing letters cost, beside exact matching by `skip_till_any_match`, and what is left of
the matches with a BUDGET.

Events of three streams come in any order, a second apart, each with one of 100 keys. Without missing letters both ways
have the same matches, which are compared. What a BUDGET leaves is compared with all matches: its recall.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import numpy as np

from bench.patterns_stocks import lowered
from bench.patterns_workload import SECOND
from bench.stage2_report import Column, Line
from common.arrays import Ints
from pattern_stage.columns import Columns
from pattern_stage.kernel import Kernel
from pattern_stage.lineage import Lineage
from pattern_stage.values import Texts
from xscl.algebra.events import Schema

STREAMS = ("A", "B", "C")
SCHEMA: Schema = (("key", "string"),)
KEYS, INTERVAL = 100, 1000
WITHIN = 1000
"""Seconds."""

Found = set[tuple[int, ...]]
"""Matches: the docids of their events."""


@dataclass(frozen=True)
class Case:
    """At most so many missing letters; `budget` is 0 for none."""

    figure: str
    errors: int
    events: int
    budget: int = 0

    def text(self) -> str:
        budget = f" BUDGET {self.budget}" if self.budget else ""
        return f"PATTERN SEQ(A, B, C) WHERE {{[key]}} ERRORS <= {self.errors}{budget} WITHIN {WITHIN} s"


EXACT = f"PATTERN SEQ(A a, B b, C c) WHERE skip_till_any_match {{[key]}} WITHIN {WITHIN} s"


@dataclass(frozen=True)
class Given:
    """Of each event its stream and its key."""

    streams: Ints
    keys: Ints

    def columns(
        self, texts: Texts, lineage: Lineage, begin: int, streams: Sequence[str] = STREAMS
    ) -> Mapping[str, Columns]:
        """The events of an interval."""
        codes, found = texts.codes(f"k{key}" for key in range(KEYS)), {}
        for number, name in enumerate(streams):
            at = begin + np.flatnonzero(self.streams[begin : begin + INTERVAL] == number)
            times = (at + 1) * SECOND
            parts = lineage.of_documents(name, at, times, times, np.zeros((len(at), 1), np.int64))
            found[name] = Columns(times, times, (codes[self.keys[at]],), parts.reshape(-1, 1))
        return found


def given(count: int, seed: int = 1) -> Given:
    """So many events."""
    chance = np.random.default_rng(seed)
    return Given(chance.integers(0, len(STREAMS), count), chance.integers(0, KEYS, count))


def run(text: str, events: Given, streams: Sequence[str] = STREAMS) -> tuple[float, Found]:
    """Returns the CPU time of all intervals, and the matches."""
    (statement,) = lowered([text], dict.fromkeys(streams, SCHEMA))
    lineage = Lineage()
    kernel = Kernel(Texts(), lineage)
    kernel.add(0, statement, -1)
    kernel.run({}, 0)
    seconds, found = 0.0, set[tuple[int, ...]]()
    docids: dict[int, int] = {}
    for begin in range(0, len(events.keys), INTERVAL):
        columns = events.columns(kernel.texts, lineage, begin, streams)
        for some in columns.values():
            docids.update(zip(some.parts[:, 0].tolist(), (some.t1 // SECOND).tolist(), strict=True))
        start = time.thread_time()
        lineage.begin()
        results = kernel.run(columns, (begin + INTERVAL + 1) * SECOND)
        sum(len(one.at) for one in results)
        seconds += time.thread_time() - start
        for one in results:
            origins = lineage.origins(np.unique(one.events.parts))
            for row in one.events.parts[one.at].tolist():
                members = (part for number in row for part in origins[number].parts or (number,))
                found.add(tuple(sorted(docids[part] for part in members)))
        if lineage.crowded:
            lineage.keep(kernel.parts())
    return seconds, found


def measured(cases: Sequence[Case], turns: int) -> Iterator[Line]:
    """The lines of cases over the same events, in each turn of which the exact pattern is run once, as the baseline.
    Raises AssertionError if they differ without missing letters, or if a budget has other matches than there are."""
    events = given(cases[0].events)
    taken: dict[Case, list[float]] = {case: [] for case in cases}
    exact: list[float] = []
    found: dict[Case, Found] = {}
    for _ in range(turns):
        seconds, right = run(EXACT, events)
        exact.append(seconds)
        for case in cases:
            seconds, found[case] = run(case.text(), events)
            taken[case].append(seconds)
            assert right <= found[case] or case.budget, f"{case}: an exact match is missing"
            assert found[case] == right or case.errors, f"{case}: other matches than {EXACT}"
    every = {case.errors: found[case] for case in cases if not case.budget}
    for case in cases:
        recall = None
        if case.budget:
            if case.errors not in every:
                _, every[case.errors] = run(replace(case, budget=0).text(), events)
            assert found[case] <= every[case.errors], f"{case}: a match that there is not"
            recall = len(found[case]) / len(every[case.errors])
        seconds = median(taken[case])
        times = median(other / one for one, other in zip(taken[case], exact, strict=True))
        details = {"events_a_second": case.events / seconds, "recall": recall}
        yield Line(
            "patterns", asdict(case), None, "errors", seconds, len(found[case]), "exact", times, None, False, details
        )


def cases(events: int | None, *, quick: bool) -> list[Case]:
    """Up to two missing letters, and with one of them budgets."""
    count = events or (2_000 if quick else 10_000)
    made = [Case("errors", errors, count) for errors in (0, 1, 2)]
    return made + [Case("budget", 1, count, budget) for budget in (1, 2, 4, 8, 16, 32)]


COLUMNS: tuple[Column, ...] = (
    ("missing letters", lambda line: line.case["errors"]),
    ("BUDGET", lambda line: line.case["budget"] or None),
    ("kept by", lambda line: line.plan if line.case["figure"] == "drift" else None),
    ("events/s", lambda line: line.details["events_a_second"]),
    ("matches", lambda line: line.rows),
    ("times as fast as exact", lambda line: line.speedup),
    ("recall", lambda line: line.details["recall"]),
    ("times the time by rank", lambda line: line.details.get("over_rank")),
)
