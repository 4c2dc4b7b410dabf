"""NEXT against a literal evaluation: ties, intervals, NULLs, many rows, in any intervals, restarted in between."""

from random import Random

import numpy as np
import pytest

from pattern_stage.plan import NO_BOUND
from pattern_stage.sequence import Sequencing
from pattern_stage.values import Texts
from tests.generate.seeds import seeds
from tests.pattern_stage.literal import (
    SCHEMA,
    Bound,
    Event,
    Streams,
    TestRows,
    Vector,
    before,
    cuts,
    holds,
    indexes,
    random_streams,
    run_in,
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
    Gap,
    Next,
    NullTest,
    Parameter,
    Part,
    Schema,
)

LEFT: Schema = (("name_1", "string"), ("v_1", "number"))
OUT: Schema = (*LEFT, *SCHEMA)
NAMES: tuple[tuple[Part, str], ...] = (("left", "name"), ("left", "v"), ("right", "name"), ("right", "v"))
N1, V1 = Attribute("left", "name", "string"), Attribute("left", "v", "number")
N2, V2 = Attribute("right", "name", "string"), Attribute("right", "v", "number")
TEXT, NUMBER = Parameter(0, "string"), Parameter(1, "number")
CONDITIONS: tuple[EventCondition, ...] = (
    AllOf(),
    Comparison("=", N2, TEXT),
    Comparison("=", N1, N2),
    AllOf((Comparison("=", N1, N2), Comparison(">", V2, V1))),
    AllOf((Comparison("=", V1, V2), Comparison("=", N2, TEXT), Comparison("<", Gap(), Constant(1e-6 * 4)))),
    AllOf((Comparison("=", Arithmetic("+", V1, NUMBER), V2), Comparison("=", N1, N2))),
    AnyOf((Comparison("=", N1, N2), AllOf((NullTest(V2), Comparison("=", N2, TEXT))))),
    AnyOf((Comparison("=", V2, NUMBER), Comparison("=", N2, TEXT))),
    AllOf((Comparison(">", V2, Arithmetic("+", V1, NUMBER)), Comparison(">", Duration(), Constant(1e-6)))),
)
DEFINITIONS = [Next(Events("L", SCHEMA), Events("R", SCHEMA), condition, None, NAMES, OUT) for condition in CONDITIONS]


def random_rows(random: Random, texts: Texts, count: int, lefts: int, rights: int) -> TestRows:
    vectors = {
        Vector(
            left=random.randrange(lefts),
            right=random.randrange(rights),
            shape=random.randrange(len(CONDITIONS)),
            within=random.choice([NO_BOUND, 2, 3, 5]),
            parameters=(random.choice(["a", "b", None]), random.choice([0.0, 1.0, 2.0, None])),
        )
        for _ in range(count)
    }
    return TestRows(sorted(vectors, key=repr), texts, "sn")


def literal(left: set[Event], right: set[Event], vector: Vector) -> set[Event]:
    found = set()
    for one in left:
        schemas = {"left": SCHEMA, "right": SCHEMA}
        partners = [
            other
            for other in right
            if before(one, other)
            and holds(CONDITIONS[vector.shape], Bound({"left": one, "right": other}, schemas, vector.parameters))
        ]
        first = min((other.t1 for other in partners), default=0)
        found |= {
            Event(one.values + other.values, one.t0, other.t1, one.parts + other.parts)
            for other in partners
            if other.t1 == first and other.t1 - one.t0 <= vector.within
        }
    return found


def expected_of(left: Streams, right: Streams, rows: TestRows) -> Streams:
    found = {row: literal(left[vector.left], right[vector.right], vector) for row, vector in enumerate(rows.vectors)}
    return {row: events for row, events in found.items() if events}


def made(rows: TestRows, texts: Texts, hashed: bool = True) -> Sequencing:
    operator = Sequencing(DEFINITIONS, rows, texts, indexes(len(rows.vectors)), hashed=hashed)
    operator.add_rows(rows.all())
    return operator


@pytest.mark.parametrize("seed", seeds(15, 150))
def test_next(seed):
    random, texts = Random(seed), Texts()
    lefts, rights = random.choice([1, 3]), random.choice([1, 1, 2])
    left = random_streams(random, lefts)
    right = random_streams(random, rights) if random.random() < 0.5 else dict.fromkeys(range(rights), left[0])
    rows = random_rows(random, texts, random.choice([1, 5, 100]), lefts, rights)
    expected = expected_of(left, right, rows)
    operator = made(rows, texts, hashed=random.random() < 0.8)
    assert run_in(operator, [left, right], cuts(random, 12), [SCHEMA, SCHEMA], texts, [1, 1]) == expected


@pytest.mark.parametrize("seed", seeds(8, 60))
def test_restart(seed):
    random, texts = Random(seed), Texts()
    left, right = random_streams(random, 3), random_streams(random, 2)
    rows = random_rows(random, texts, 40, 3, 2)
    expected = expected_of(left, right, rows)
    operator, start = made(rows, texts), -NO_BOUND
    found: Streams = {}
    for end in cuts(random, 12):
        some = run_in(operator, [left, right], [end], [SCHEMA, SCHEMA], texts, [1, 1], start)
        found = {row: found.get(row, set()) | some.get(row, set()) for row in found.keys() | some.keys()}
        start = end
        counts, state, old = operator.waiting(), operator.state(), rows
        # Another process: other codes, and rows numbered otherwise.
        texts = Texts()
        texts.codes(["x", "b"])
        order = random.sample(range(len(old.vectors)), len(old.vectors))
        rows = TestRows([old.vectors[row] for row in order], texts, "sn")
        numbers = np.argsort(order)
        operator = made(rows, texts)
        operator.restore(state, numbers.__getitem__)
        again = operator.waiting()
        assert sum(counts) == sum(again)
        assert all(counts[row] == again[numbers[row]] for row in range(min(len(counts), len(order))) if counts[row])
        found = {int(numbers[row]): events for row, events in found.items()}
    by_vector = {rows.vectors[row]: events for row, events in found.items()}
    assert by_vector == {
        vector: events for vector in rows.vectors if (events := literal(left[vector.left], right[vector.right], vector))
    }
    assert len(expected) == len(by_vector)


@pytest.mark.parametrize("seed", seeds(8, 60))
def test_rows_come_and_go(seed):
    random, texts = Random(seed), Texts()
    left, right = random_streams(random, 3), random_streams(random, 2)
    rows = random_rows(random, texts, 60, 3, 2)
    operator = Sequencing(DEFINITIONS, rows, texts, indexes(len(rows.vectors)))
    born = {row: random.choice([-100, 4, 8]) for row in rows.all().tolist()}
    gone = {row: random.choice([100, 100, 6, 8]) for row in rows.all().tolist()}
    found: Streams = {}
    start = -100
    for end in (4, 6, 8, 13):
        operator.add_rows(np.array([row for row, time in born.items() if time == start], np.int64))
        operator.remove_rows(
            np.array([row for row, time in gone.items() if time == start and born[row] < start], np.int64)
        )
        some = run_in(operator, [left, right], [end], [SCHEMA, SCHEMA], texts, [1, 1], start)
        for row, events in some.items():
            found[row] = found.get(row, set()) | events
        start = end
    expected = {}
    for row, vector in enumerate(rows.vectors):
        end = gone[row] if gone[row] > born[row] else 100
        events = literal(
            {event for event in left[vector.left] if event.t1 >= born[row]},
            {event for event in right[vector.right] if event.t1 >= born[row]},
            vector,
        )
        expected[row] = {event for event in events if event.t1 < end}
    assert found == {row: events for row, events in expected.items() if events}


def test_nothing_waits_that_has_expired():
    texts = Texts()
    rows = TestRows(
        [Vector(shape=1, within=3, parameters=("b", None)), Vector(shape=1, parameters=("b", None))], texts, "sn"
    )
    operator = made(rows, texts)
    stream = {0: {Event(("a", 1.0), time, time, (time,)) for time in range(1, 11)}}
    assert run_in(operator, [stream, stream], [11], [SCHEMA, SCHEMA], texts, [1, 1]) == {}
    assert operator.waiting()[:2].tolist() == [10, 10]  # one instance serves both
    operator.remove_rows(np.array([1]))
    assert operator.waiting()[0] == 10
    assert run_in(operator, [{0: set()}, {0: set()}], [100], [SCHEMA, SCHEMA], texts, [1, 1], 11) == {}


def test_the_first_epoch_has_all_ties():
    texts = Texts()
    rows = TestRows([Vector(parameters=("a", None))], texts, "sn")
    events = [
        Event(("a", v), time, time, (part,)) for part, (v, time) in enumerate([(1.0, 1), (2.0, 2), (3.0, 2), (4.0, 3)])
    ]
    found = run_in(made(rows, texts), [{0: set(events)}] * 2, [9], [SCHEMA, SCHEMA], texts, [1, 1])
    assert sorted((event.values[1], event.values[3]) for event in found[0]) == [(1, 2), (1, 3), (2, 4), (3, 4)]
