"""Match windows (section 6): what it saves to make windows small, or to pass them over, before anything is matched.

The paper's matcher runs window by window: without pruning, on filtered windows (f), on those parted by patient (fp),
and where, besides, the necessary conditions hold (fpc); trades are not parted (f, fc). Beside it stand this project's
replay, which finds windows by SQL and matches in them in the kernel, and the kernel alone, which prunes as it goes. All
matches are compared event by event with those found without pruning.

`Pseq` and `Pset` are about patterns of more and more variables, some of each size by chance (ten in the paper); `Ponco`
and `Pnyse` about longer windows; `Pnyse, events` about more events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Literal

import numpy as np

from bench.patterns_stocks import lowered
from bench.patterns_windows_data import SCHEMA, STREAM, Data, Given, Question, given, pnyse, ponco, random_question
from bench.patterns_windows_matcher import Match, events, matches
from bench.stage2_report import Column, Line, marked
from pattern_stage.in_sql.kernel import DuckDBDatabase, ReplayKernel
from pattern_stage.kernel import Kernel, Results
from pattern_stage.lineage import Lineage
from pattern_stage.values import Texts
from xscl.algebra.events import Statement

Shape = Literal["Pseq", "Pset", "Ponco", "Pnyse"]

UNPRUNED = "no pruning"


@dataclass(frozen=True)
class Case:
    """Questions of a shape: so many, of so many variables, or one, with a window of so many days or milliseconds."""

    figure: str
    shape: Shape
    data: Data
    events: int
    size: int = 0
    window: int = 0
    questions: int = 1

    def asked(self) -> list[Question]:
        """The questions."""
        match self.shape:
            case "Ponco":
                return [ponco(self.window)]
            case "Pnyse":
                return [pnyse(self.window)]
            case shape:
                chance = np.random.default_rng((self.size, 7))
                return [random_question(self.data, shape, self.size, chance) for _ in range(self.questions)]


@dataclass
class Run:
    """CPU time, and the matches of each question."""

    seconds: float
    found: list[set[Match]]


def one_by_one(asked: Sequence[Question], some: Given, pruned: str) -> Run:
    """Runs questions by the paper's matcher, each for itself."""
    singles = events(some)
    start = time.process_time()
    found = [matches(question, singles, pruned) for question in asked]
    return Run(time.process_time() - start, found)


def by_kernel(asked: Sequence[Question], some: Given, *, replayed: bool) -> Run:
    """Runs questions in the kernel, each for itself: with `replayed`, in the windows that DuckDB has found, on one
    core."""
    run = Run(0.0, [])
    for statement in lowered([question.text() for question in asked], {STREAM: SCHEMA}):
        seconds, found = _by_kernel(statement, some, replayed=replayed)
        run.seconds += seconds
        run.found.append(found)
    return run


def _by_kernel(statement: Statement, some: Given, *, replayed: bool) -> tuple[float, set[Match]]:
    texts, lineage = Texts(), Lineage()
    columns = some.columns(texts, lineage)
    numbers = dict(zip(columns.parts[:, 0].tolist(), range(len(some)), strict=True))
    one: Kernel | ReplayKernel = Kernel(texts, lineage)
    if replayed:
        database = DuckDBDatabase(lambda connection: connection.execute("SET threads = 1"))
        one = ReplayKernel(texts, database, Kernel(texts, lineage), lambda: Kernel(texts, lineage))
    start = time.process_time()
    one.add(0, statement, -1)
    lineage.begin()
    one.begin(1 << 61)
    results = one.feed({STREAM: columns}) + one.end()
    seconds = time.process_time() - start
    return seconds, {match for result in results for match in _taken(result, lineage, numbers)}


def _taken(results: Results, lineage: Lineage, numbers: dict[int, int]) -> Iterator[Match]:
    origins = lineage.origins(np.unique(results.events.parts))
    bound = {
        number: tuple(sorted(numbers[part] for part in origin.parts or (number,))) for number, origin in origins.items()
    }
    for row in results.events.parts[results.at].tolist():
        yield tuple(bound[number] for number in row)


def measure(case: Case, turns: int) -> Iterator[Line]:
    """Lines of a case: medians of turns, in each of which all ways run over all events.

    Raises AssertionError if a way has other matches than there are without pruning.
    """
    asked, some = case.asked(), given(case.data, case.events)
    ways: dict[str, Callable[[], Run]] = {UNPRUNED: lambda: one_by_one(asked, some, "")}
    for pruned in ("f", "fp", "fpc") if case.data == "onco" else ("f", "fc"):
        ways[pruned] = lambda pruned=pruned: one_by_one(asked, some, pruned)  # type: ignore[misc]  # a default
    ways["SQL, then kernel"] = lambda: by_kernel(asked, some, replayed=True)
    ways["kernel"] = lambda: by_kernel(asked, some, replayed=False)
    runs: dict[str, list[Run]] = {plan: [] for plan in ways}
    for _ in range(turns):
        for plan, way in ways.items():
            runs[plan].append(way())
            assert runs[plan][-1].found == runs[UNPRUNED][-1].found, f"{case}: {plan} has other matches"
    for plan, taken in runs.items():
        seconds = median(one.seconds for one in taken)
        times = median(base.seconds / one.seconds for base, one in zip(runs[UNPRUNED], taken, strict=True))
        is_base = plan == UNPRUNED
        yield Line(
            "patterns",
            asdict(case),
            None,
            plan,
            seconds,
            sum(map(len, taken[0].found)),
            None if is_base else UNPRUNED,
            None if is_base else times,
            details={"events_a_second": case.events * case.questions / seconds},
        )


def cases(count: int | None, *, quick: bool) -> list[Case]:
    """Figures 6 and 8. With `quick`, fewer sizes and windows, and fewer events."""
    onco, nyse = count or (6_000 if quick else 20_000), count or (6_000 if quick else 50_000)
    sizes = (1, 4, 10) if quick else tuple(range(1, 11))
    several = 1 if quick else 2
    made = [
        Case(f"{shape}, {data}", shape, data, onco if data == "onco" else nyse, size, questions=several)
        for data in ("onco", "nyse")
        for shape in ("Pseq", "Pset")
        for size in sizes
    ]
    base = Case("Ponco", "Ponco", "onco", onco)
    made += [replace(base, window=days) for days in ((10, 30) if quick else (5, 10, 20, 30, 40, 50))]
    base = Case("Pnyse", "Pnyse", "nyse", nyse)
    made += [replace(base, window=window) for window in ((20, 60) if quick else (10, 20, 40, 60, 80, 100))]
    counts = (1_000, 10_000) if quick else (100, 1_000, 10_000, 100_000, 1_000_000)
    return made + [replace(base, figure="Pnyse, events", window=50, events=number) for number in counts]


COLUMNS: tuple[Column, ...] = (
    ("figure", lambda line: line.case["figure"]),
    ("", lambda line: line.plan),
    ("variables", lambda line: line.case["size"] or None),
    ("window", lambda line: line.case["window"] or None),
    ("events", lambda line: line.case["events"]),
    ("events/s", lambda line: line.details["events_a_second"]),
    ("matches", lambda line: line.rows),
    ("times as fast as without", marked),
)
