"""Where event queries are answered: in the driver, on executors of Spark, and as SQL on DuckDB and Spark.

Two streams of events a second apart, of so many keys, and statements that have an equality of all inputs and differ in
a constant. The events are given at once, as by a finite run, or in intervals, as by a service. All ways give the same
results, which are compared before a time is reported.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from bench.patterns_thesis import Given, lowered
from bench.patterns_workload import SECOND
from bench.stage2_report import Column, Line
from common.arrays import Ints
from mmqjp.answers.events_run import DRIVER, EXECUTORS, SQL, kernels
from mmqjp.answers.kernels import MakeKernel, PatternResults
from pattern_stage.columns import Columns
from pattern_stage.lineage import Lineage
from pattern_stage.values import Texts
from xscl.algebra.events import Schema, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Template = Literal["first after", "rare partners", "rising runs", "rising averages"]
SQL_ON_SPARK = "sql on spark"

_A: Schema = (("k", "string"), ("x", "number"))
_B: Schema = (("b", "string"), ("y", "number"))


TURNS, QUICK_TURNS = 3, 1


@dataclass(frozen=True)
class Case:
    """A template with its parameters: how many statements, events of both streams, keys, and intervals."""

    template: Template
    queries: int
    events: int = 100_000
    keys: int = 200
    intervals: int = 1


def cases(queries: Sequence[int] | None, events: int | None, *, quick: bool) -> list[Case]:
    """What is measured. With `quick` there are fewer and smaller cases."""
    count = events or (10_000 if quick else 100_000)
    numbers = queries or ([10] if quick else [1, 10, 100])
    made = [Case(template, number, count) for template in get_args(Template) for number in numbers]
    if not quick:
        made += [Case("rare partners", number, count, keys=10) for number in numbers if number <= 10]
        made += [Case(template, 10, count, intervals=20) for template in get_args(Template)]
    return made


def streams(case: Case) -> dict[str, Given]:
    """The events: every second one is of the other stream."""
    chance = np.random.default_rng(4)
    made = {}
    for first, (name, schema) in enumerate({"A": _A, "B": _B}.items()):
        numbers = np.arange(first, case.events, 2)
        values = chance.random(len(numbers)) * 100
        made[name] = Given(schema, numbers, numbers, (chance.integers(0, case.keys, len(numbers)), values))
    return made


def statements(case: Case) -> Iterator[str]:
    """The texts of the statements, of which each takes a part of the events of its own as first ones."""
    for place in range(case.queries):
        first = f"FILTER {{(x * 1000 + {100 * place / case.queries}) % 100 < 10}}"
        match case.template:
            case "first after":
                yield f"{first} A NEXT {{k = b AND y > x}} B WITHIN 1 d"
            case "rare partners":
                yield f"{first} A NEXT {{k = b AND y - x > 99}} B WITHIN 1 d"
            case "rising runs":
                yield f"{first} A FOLD {{$2.k = $.k, $2.x > $.x, }} A WITHIN 1 d"
            case "rising averages":
                mean = "(AGGREGATE {avg(x) AS x BY k OVER 1 h} A)"
                yield f"{first} {mean} FOLD {{$2.k = $.k, $2.x > $.x, }} {mean} WITHIN 1 d"


def ways(case: Case, session: SparkSession) -> dict[str, MakeKernel]:
    """What makes the kernel of each way that there is for a case."""
    made = {DRIVER: kernels(DRIVER, None), EXECUTORS: kernels(EXECUTORS, session)}
    if case.template in ("first after", "rare partners") and case.intervals == 1:
        made |= {SQL: kernels(SQL, None), SQL_ON_SPARK: kernels(SQL, session)}
    return made


def run(make: MakeKernel, case: Case, asked: Sequence[Stream], given: Mapping[str, Given]) -> tuple[float, Ints]:
    """Returns the seconds of all intervals, and the results: a row of numbers for each, sorted."""
    texts, lineage = Texts(), Lineage()
    kernel = make(texts, lineage)
    events = {name: _numbered(name, one, texts, lineage) for name, one in given.items()}
    for place, stream in enumerate(asked):
        kernel.add(place, stream, -1)
    bounds = np.linspace(0, case.events + 2, case.intervals + 1).astype(np.int64) * SECOND
    found: list[PatternResults] = []
    begin = time.perf_counter()
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        lineage.begin()
        kernel.begin(high)
        part = {}
        for name, columns in events.items():
            first, end = np.searchsorted(columns.t1, (low, high)).tolist()
            part[name] = columns.take(np.arange(first, end))
        found += kernel.feed(part)
        found += kernel.end()
    seconds = time.perf_counter() - begin
    return seconds, _rows(found)


def _numbered(name: str, given: Given, texts: Texts, lineage: Lineage) -> Columns:
    events = given.take(texts)
    nodes = np.zeros((len(events), 1), np.int64)
    numbers = lineage.of_documents(name, given.numbers, events.t0, events.t1, nodes)
    return Columns(events.t0, events.t1, events.values, numbers.reshape(-1, 1))


def _rows(found: Sequence[PatternResults]) -> Ints:
    if not found:
        return np.zeros((0, 3), np.int64)
    rows = [
        np.column_stack([one.statements, one.events.t0[one.at], one.events.t1[one.at], one.events.parts[one.at]])
        for one in found
    ]
    every: Ints = np.concatenate(rows)
    return every[np.lexsort(every.T[::-1])]


def measured(some: Iterable[Case], *, quick: bool) -> Iterator[Line]:
    """Lines of cases."""
    from join_stage.store.spark.java import spark_session

    session = spark_session(app_name="places")
    try:
        for case in some:
            yield from measure(case, session, QUICK_TURNS if quick else TURNS)
    finally:
        session.stop()


def measure(case: Case, session: SparkSession, turns: int) -> Iterator[Line]:
    """Lines of a case: medians of turns, after one that is not counted.

    Raises AssertionError if a way has other results than the driver.
    """
    given = streams(case)
    asked = lowered(list(statements(case)), given)
    made = ways(case, session)
    expected = run(made[DRIVER], case, asked, given)[1]
    taken: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(turns + 1):
        for name, make in made.items():
            seconds, rows = run(make, case, asked, given)
            assert np.array_equal(rows, expected), f"{name} has other results in {case}"
            if turn:
                taken[name].append(seconds)
    for name, times in taken.items():
        mine, baseline = median(times), median(taken[DRIVER])
        details = {"events_a_second": case.events / mine}
        speedup = None if name == DRIVER else baseline / mine
        yield Line("patterns", asdict(case), None, name, mine, len(expected), DRIVER, speedup, details=details)


COLUMNS: tuple[Column, ...] = (
    ("template", lambda line: line.case["template"]),
    ("", lambda line: line.plan),
    ("statements", lambda line: line.case["queries"]),
    ("keys", lambda line: line.case["keys"]),
    ("intervals", lambda line: line.case["intervals"]),
    ("s", lambda line: line.seconds),
    ("events/s", lambda line: line.details["events_a_second"]),
    ("results", lambda line: line.rows),
    ("times the driver's speed", lambda line: line.speedup),
)
