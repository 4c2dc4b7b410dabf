"""FOLD against a literal evaluation: ties, intervals, NULLs, many rows, in any intervals, restarted in between."""

from random import Random

import numpy as np
import pytest

from pattern_stage.plan import NO_BOUND
from pattern_stage.sequence import Folding
from pattern_stage.values import Texts
from tests.generate.seeds import seeds
from tests.pattern_stage.literal import (
    SCHEMA,
    Bound,
    Event,
    Scalar,
    Streams,
    TestRows,
    Vector,
    before,
    cuts,
    holds,
    indexes,
    random_streams,
    run_in,
    value_of,
)
from xscl.algebra.events import (
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Constant,
    Duration,
    EventCondition,
    Events,
    Fold,
    Gap,
    NullTest,
    Parameter,
    Part,
    Schema,
    Value,
)

LEFT: Schema = (*SCHEMA, ("n", "number"))
OUT: Schema = (("name_1", "string"), ("name", "string"), ("v_1", "number"), ("v", "number"), ("n", "number"))
NAMES: tuple[tuple[Part, str], ...] = (
    ("left", "name"),
    ("latest", "name"),
    ("left", "v"),
    ("latest", "v"),
    ("latest", "n"),
)
NAME, V, N = (Attribute("latest", "name", "string"), *(Attribute("latest", one, "number") for one in ("v", "n")))
NAME_1, V_1 = Attribute("left", "name", "string"), Attribute("left", "v", "number")
NAME_2, V_2 = Attribute("right", "name", "string"), Attribute("right", "v", "number")
TEXT, NUMBER = Parameter(0, "string"), Parameter(1, "number")
Sets = tuple[tuple[str, Value], ...]
COUNT: Sets = (("n", Arithmetic("+", N, Constant(1.0))),)
SUM: Sets = (("n", Arithmetic("+", N, V_2)),)
STEPS: tuple[tuple[EventCondition, EventCondition, Sets], ...] = (
    (AllOf(), AllOf(), COUNT),
    (AllOf(), Comparison(">", V_2, V), ()),
    (Comparison("=", NAME_2, NAME), Comparison(">=", V_2, V), COUNT),
    (Comparison("=", NAME_2, TEXT), Comparison("!=", V_2, V_1), SUM),
    (AllOf((Comparison("=", NAME_2, NAME), Comparison("<=", Gap(), Constant(2e-6)))), AllOf(), SUM),
    (AnyOf((Comparison("=", NAME_2, NAME_1), NullTest(V_2))), Comparison(">", Duration(), Constant(1e-6)), COUNT),
    (Comparison("=", V_2, Arithmetic("+", V, NUMBER)), AllOf(), (("v", Arithmetic("+", V, V_2)), *COUNT)),
    (AllOf((Comparison("=", NAME_2, TEXT), Comparison("=", NAME_1, NAME_2))), Comparison("!=", V_2, V), COUNT),
)
DEFINITIONS = [
    Fold(Events("L", LEFT), Events("R", SCHEMA), chooses, continues, sets, None, NAMES, OUT)
    for chooses, continues, sets in STEPS
]


def random_rows(random: Random, texts: Texts, count: int, lefts: int, rights: int) -> TestRows:
    vectors = {
        Vector(
            left=random.randrange(lefts),
            right=random.randrange(rights),
            shape=random.randrange(len(STEPS)),
            within=random.choice([NO_BOUND, 3, 5, 8]),
            parameters=(random.choice(["a", "b", None]), random.choice([0.0, 1.0, None])),
        )
        for _ in range(count)
    }
    return TestRows(sorted(vectors, key=repr), texts, "sn")


def lefts_of(random: Random, rows: int) -> Streams:
    streams = random_streams(random, rows)
    return {
        row: {event._replace(values=(*event.values, random.choice([0.0, 1.0, None]))) for event in events}
        for row, events in streams.items()
    }


Run = tuple[Event, Event]
"""The left event, and the event with its latest values, its interval, and its latest part."""


def steps(run: Run, right: set[Event], vector: Vector) -> set[Run]:
    """The runs that are one event longer."""
    chooses, continues, sets = STEPS[vector.shape]
    first, latest = run
    schemas = {"left": LEFT, "latest": LEFT, "right": SCHEMA}

    def bound(other: Event) -> Bound:
        start = first._replace(t1=latest.t1)
        return Bound({"left": start, "latest": latest, "right": other}, schemas, vector.parameters)

    chosen = [other for other in right if before(latest, other) and holds(chooses, bound(other))]
    next_t1 = min((other.t1 for other in chosen), default=0)
    found = set()
    for other in chosen:
        if other.t1 == next_t1 and other.t1 - first.t0 <= vector.within and holds(continues, bound(other)):
            values: dict[str, Scalar] = dict(zip([name for name, _ in LEFT], latest.values, strict=True))
            values |= zip([name for name, _ in SCHEMA], other.values, strict=True)
            values |= {name: value_of(value, bound(other)) for name, value in sets}
            found.add((first, Event(tuple(values.values()), latest.t0, other.t1, other.parts)))
    return found


def literal(left: set[Event], right: set[Event], vector: Vector) -> set[Event]:
    found: set[Event] = set()
    runs: set[Run] = {(event, event) for event in left}
    while runs:
        runs = {longer for run in runs for longer in steps(run, right, vector)}
        for first, latest in runs:
            name_1, v_1, _ = first.values
            name, v, n = latest.values
            found.add(Event((name_1, name, v_1, v, n), first.t0, latest.t1, first.parts + latest.parts))
    return found


def expected_of(left: Streams, right: Streams, rows: TestRows) -> dict[Vector, set[Event]]:
    found = {vector: literal(left[vector.left], right[vector.right], vector) for vector in rows.vectors}
    return {vector: events for vector, events in found.items() if events}


def made(rows: TestRows, texts: Texts, hashed: bool = True) -> Folding:
    operator = Folding(DEFINITIONS, rows, texts, indexes(len(rows.vectors)), hashed=hashed)
    operator.add_rows(rows.all())
    return operator


@pytest.mark.parametrize("seed", seeds(15, 150))
def test_fold(seed):
    random, texts = Random(seed), Texts()
    lefts, rights = random.choice([1, 3]), random.choice([1, 1, 2])
    left, right = lefts_of(random, lefts), random_streams(random, rights)
    rows = random_rows(random, texts, random.choice([1, 5, 60]), lefts, rights)
    operator = made(rows, texts, hashed=random.random() < 0.8)
    found = run_in(operator, [left, right], cuts(random, 12), [LEFT, SCHEMA], texts, [1, 1])
    assert {rows.vectors[row]: events for row, events in found.items()} == expected_of(left, right, rows)


@pytest.mark.parametrize("seed", seeds(6, 50))
def test_restart(seed):
    random, texts = Random(seed), Texts()
    left, right = lefts_of(random, 3), random_streams(random, 2)
    rows = random_rows(random, texts, 30, 3, 2)
    operator, start = made(rows, texts), -NO_BOUND
    found: dict[Vector, set[Event]] = {}
    for end in cuts(random, 12):
        for row, events in run_in(operator, [left, right], [end], [LEFT, SCHEMA], texts, [1, 1], start).items():
            found[rows.vectors[row]] = found.get(rows.vectors[row], set()) | events
        start = end
        state, old = operator.state(), rows
        texts = Texts()
        texts.codes(["x", "b"])
        order = random.sample(range(len(old.vectors)), len(old.vectors))
        rows = TestRows([old.vectors[row] for row in order], texts, "sn")
        operator = made(rows, texts)
        operator.restore(state, np.argsort(order).__getitem__)
    assert found == expected_of(left, right, rows)


def test_a_run_forgets_its_path():
    texts = Texts()
    rows = TestRows([Vector(shape=1, parameters=("a", None))], texts, "sn")
    values = [(1.0, 1), (2.0, 2), (3.0, 2), (4.0, 3)]
    right = {Event(("a", v), time, time, (part,)) for part, (v, time) in enumerate(values)}
    left = {Event(("a", 1.0, 0.0), 1, 1, (0,))}
    found = run_in(made(rows, texts), [{0: left}, {0: right}], [9], [LEFT, SCHEMA], texts, [1, 1])
    assert sorted((event.values[2], event.values[3]) for event in found[0]) == [(1, 2), (1, 3), (1, 4)]


def test_runs_with_ties_do_not_multiply():
    texts = Texts()
    rows = TestRows([Vector(shape=0, parameters=("a", None))], texts, "sn")
    right = {Event(("a", float(tie)), time, time, (8 * time + tie,)) for time in range(1, 41) for tie in range(3)}
    left = {Event(("a", 1.0, 0.0), 0, 0, (0,))}
    operator = made(rows, texts)
    found = run_in(operator, [{0: left}, {0: right}], [20, 41], [LEFT, SCHEMA], texts, [1, 1])
    assert len(found[0]) == 120
    assert operator.waiting()[0] == 3
