"""AGGREGATE against a literal evaluation: ties, NULLs, windows, in any intervals, restarted in between."""

import math
from random import Random
from typing import Any

import numpy as np
import pytest

from pattern_stage.aggregate import Aggregating
from pattern_stage.plan import NO_BOUND
from pattern_stage.values import Texts
from pattern_stage.windows import greatest_in, sums_in
from tests.generate.seeds import seeds
from tests.pattern_stage.literal import (
    SCHEMA,
    Bound,
    Event,
    Scalar,
    Streams,
    TestRows,
    Vector,
    cuts,
    random_streams,
    run_in,
    value_of,
)
from xscl.algebra.events import Aggregate, Aggregated, Arithmetic, Attribute, Duration, Events, Parameter, Schema

NAME, V = Attribute("left", "name", "string"), Attribute("left", "v", "number")
PLUS = Arithmetic("+", V, Parameter(0, "number"))
ITEMS = (
    ("events", Aggregated("count", ())),
    ("named", Aggregated("count", (NAME,))),
    ("sum", Aggregated("sum", (PLUS,))),
    ("avg", Aggregated("avg", (V,))),
    ("least", Aggregated("min", (V,))),
    ("most", Aggregated("max", (Arithmetic("+", V, Duration()),))),
    ("best", Aggregated("argmax", (NAME, V))),
    ("shortest", Aggregated("argmax", (V, Duration()))),
)
OUT: Schema = tuple((name, "string" if name == "best" else "number") for name, _ in ITEMS)
KINDS = dict(SCHEMA)


class Sets:
    """Numbers for sets of events."""

    def __init__(self) -> None:
        self.numbers: dict[frozenset[int], int] = {}

    def together(self, parts, groups):
        sets = [frozenset(parts[groups == group].ravel().tolist()) for group in range(len(set(groups.tolist())))]
        return np.array([self.number(one) for one in sets], np.int64)

    def number(self, events):
        if len(events) == 1:
            return min(events)
        return self.numbers.setdefault(events, 1_000_000 + len(self.numbers))

    def ends(self, numbers):
        return np.full(len(numbers), NO_BOUND)  # all events began after all statements


def aggregate(aggregated: Aggregated, window: list[Event], vector: Vector) -> Any:
    rows: list[list[Any]] = [
        [value_of(arg, Bound({"left": event}, {"left": SCHEMA}, vector.parameters)) for arg in aggregated.args]
        for event in window
    ]
    known = [row for row in rows if None not in row]
    if aggregated.name == "count":
        return float(len(known))
    if not known:
        return None
    values: list[Any] = [row[0] for row in known]
    match aggregated.name:
        case "sum":
            return math.fsum(values)
        case "avg":
            return math.fsum(values) / len(values)
        case "min":
            return min(values)
        case "max":
            return max(values)
    greatest = max(row[1] for row in known)
    return min(row[0] for row in known if row[1] == greatest)


def literal(events: set[Event], vector: Vector, by: tuple[str, ...], over: bool, sets: Sets) -> set[Event]:
    groups: dict[tuple[Scalar, ...], list[Event]] = {}
    places = [[name for name, _ in SCHEMA].index(name) for name in by]
    for event in events:
        groups.setdefault(tuple(event.values[place] for place in places), []).append(event)
    found = set()
    for group, members in groups.items():
        for t in {event.t1 for event in members}:
            window = [event for event in members if t - (vector.within if over else 1) < event.t1 <= t]
            number = sets.number(frozenset(event.parts[0] for event in members if event.t1 == t))
            values = tuple(aggregate(aggregated, window, vector) for _, aggregated in ITEMS)
            found.add(Event((*group, *values), t, t, (number,)))
    return found


@pytest.mark.parametrize("seed", seeds(15, 150))
def test_aggregates(seed):
    random, texts, sets = Random(seed), Texts(), Sets()
    by = random.choice([(), ("name",), ("name", "v")])
    over = random.random() < 0.8
    schema: Schema = (*((name, KINDS[name]) for name in by), *OUT)
    definition = Aggregate(Events("S", SCHEMA), ITEMS, by, 0 if over else None, schema)
    streams: Streams = {
        row: {
            event._replace(
                values=(
                    event.values[0],
                    None if event.values[1] is None else random.choice([0.1, 1e16, -0.3, 7.0, -0.0]),
                )
            )
            for event in events
        }
        for row, events in random_streams(random, 3).items()
    }
    windows = [1, 2, 5, NO_BOUND] if over else [NO_BOUND]
    vectors = {
        Vector(random.randrange(3), within=random.choice(windows), parameters=(random.choice([0.0, 0.7, None]),))
        for _ in range(random.choice([1, 10]))
    }
    rows = TestRows(sorted(vectors, key=repr), texts, "n")
    operator = Aggregating([definition], rows, texts, sets)
    operator.add_rows(rows.all())
    found: dict[Vector, set[Event]] = {}
    start = -NO_BOUND
    for end in cuts(random, 12):
        for row, events in run_in(operator, [streams], [end], [SCHEMA], texts, [1], start).items():
            found[rows.vectors[row]] = found.get(rows.vectors[row], set()) | events
        start = end
        if random.random() < 0.3:
            state, old = operator.state(), rows
            texts = Texts()
            texts.codes(["x", "b"])
            order = random.sample(range(len(old.vectors)), len(old.vectors))
            rows = TestRows([old.vectors[row] for row in order], texts, "n")
            operator = Aggregating([definition], rows, texts, sets)
            operator.add_rows(rows.all())
            operator.restore(state, np.argsort(order).__getitem__)
    expected = {vector: literal(streams[vector.left], vector, by, over, sets) for vector in rows.vectors}
    assert found == {vector: events for vector, events in expected.items() if events}


@pytest.mark.parametrize("seed", seeds(4, 30))
def test_sums_are_the_nearest_doubles(seed):
    random = Random(seed)
    exponent = random.choice([0, 10, 60, 300])
    numbers = np.array([random.uniform(-1, 1) * 2.0 ** random.randint(-exponent, exponent) for _ in range(60)])
    numbers[random.sample(range(60), 5)] = random.choice([0.0, 5e-324, 1e300, math.nan])
    starts = np.array([random.randrange(60) for _ in range(100)])
    ends = np.array([random.randint(start, 60) for start in starts])
    expected = [
        math.fsum(number for number in numbers[start:end] if number == number)
        for start, end in zip(starts, ends, strict=True)
    ]
    assert sums_in(numbers, starts, ends).tolist() == expected


def test_greatest():
    random = Random(1)
    ranks = np.array([random.randrange(100) for _ in range(50)])
    ranges = [(start, end) for start in range(50) for end in range(start + 1, 51)]
    starts, ends = np.array(ranges).T
    assert greatest_in(ranks, starts, ends).tolist() == [ranks[start:end].max() for start, end in ranges]


def test_a_window_moves():
    texts, sets = Texts(), Sets()
    definition = Aggregate(Events("S", SCHEMA), (("a", Aggregated("avg", (V,))),), (), 5, (("a", "number"),))
    rows = TestRows([Vector(within=5)], texts)
    operator = Aggregating([definition], rows, texts, sets)
    operator.add_rows(rows.all())
    values = [(10.0, 0), (20.0, 4), (60.0, 5), (80.0, 5), (7.0, 10)]
    stream = {0: {Event(("a", v), time, time, (part,)) for part, (v, time) in enumerate(values)}}
    found = run_in(operator, [stream], [11], [SCHEMA], texts, [1])
    assert sorted((event.t1, event.values[0]) for event in found[0]) == [(0, 10), (4, 15), (5, 160 / 3), (10, 7)]
    assert operator.waiting()[0] == 1
    operator.remove_rows(np.array([0]))
    assert operator.waiting()[0] == 0
