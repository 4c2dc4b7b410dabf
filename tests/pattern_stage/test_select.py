"""σ, π and ∪ against a literal evaluation, for many rows, in any intervals."""

from random import Random

import pytest

from pattern_stage import select
from pattern_stage.select import Filtering, Selecting, Uniting
from pattern_stage.values import Texts
from tests.generate.seeds import seeds
from tests.pattern_stage.literal import (
    SCHEMA,
    Bound,
    Event,
    TestRows,
    Vector,
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
    Filter,
    NullTest,
    Parameter,
    Select,
    Value,
)

NAME, V = Attribute("left", "name", "string"), Attribute("left", "v", "number")
TEXT, NUMBER = Parameter(0, "string"), Parameter(1, "number")
SOURCE = Events("S", SCHEMA)
CONDITIONS: tuple[EventCondition, ...] = (
    AllOf(),
    Comparison("=", NAME, TEXT),
    AllOf((Comparison("=", NAME, TEXT), Comparison(">", V, NUMBER))),
    AnyOf((Comparison("!=", NAME, TEXT), NullTest(V))),
    Comparison(">=", Duration(), Arithmetic("+", NUMBER, Constant(-1.0))),
)


def random_rows(random: Random, texts: Texts, count: int, lefts: int, shapes: int) -> TestRows:
    vectors = {
        Vector(
            left=random.randrange(lefts),
            shape=random.randrange(shapes),
            parameters=(random.choice(["a", "b", None]), random.choice([0.0, 1.0, 2.0, None])),
        )
        for _ in range(count)
    }
    return TestRows(sorted(vectors, key=repr), texts, "sn")


def of(event: Event, vector: Vector) -> Bound:
    return Bound({"left": event}, {"left": SCHEMA}, vector.parameters)


@pytest.mark.parametrize("seed", seeds(8, 60))
def test_filters(seed, monkeypatch):
    random, texts = Random(seed), Texts()
    monkeypatch.setattr(select, "_BLOCK", random.choice([1, 5, 1000]))
    lefts = random.choice([1, 1, 3])
    streams = random_streams(random, lefts)
    rows = random_rows(random, texts, random.choice([2, 10, 60]), lefts, len(CONDITIONS))
    operator = Filtering(
        [Filter(SOURCE, condition) for condition in CONDITIONS], rows, texts, indexes(len(rows.vectors))
    )
    operator.add_rows(rows.all())
    gone = rows.some(random)
    operator.remove_rows(gone)
    expected = {
        row: {event for event in streams[vector.left] if holds(CONDITIONS[vector.shape], of(event, vector))}
        for row, vector in enumerate(rows.vectors)
        if row not in gone
    }
    found = run_in(operator, [streams], cuts(random, 12), [SCHEMA], texts, [1])
    assert found == {row: events for row, events in expected.items() if events}


ITEMS: tuple[tuple[Value, Value], ...] = (
    (NAME, Constant(1.0)),
    (Constant("x"), Arithmetic("+", V, NUMBER)),
    (TEXT, Duration()),
)


@pytest.mark.parametrize("seed", seeds(6, 40))
def test_selects(seed):
    random, texts = Random(seed), Texts()
    lefts = random.choice([1, 3])
    streams = random_streams(random, lefts)
    # Events with equal parts, as FOLD makes them along several paths, may become equal.
    for events in streams.values():
        events |= {event._replace(values=(event.values[0], 9.0)) for event in events if random.random() < 0.3}
    rows = random_rows(random, texts, 20, lefts, len(ITEMS))
    definitions = [Select(SOURCE, tuple(zip(("name", "v"), items, strict=True)), SCHEMA) for items in ITEMS]
    operator = Selecting(definitions, rows, texts)
    operator.add_rows(rows.all())
    expected = {
        row: {
            event._replace(values=tuple(value_of(item, of(event, vector)) for item in ITEMS[vector.shape]))
            for event in streams[vector.left]
        }
        for row, vector in enumerate(rows.vectors)
    }
    found = run_in(operator, [streams], cuts(random, 12), [SCHEMA], texts, [1])
    assert found == {row: events for row, events in expected.items() if events}


@pytest.mark.parametrize("seed", range(20))
def test_unites(seed):
    random, texts = Random(seed), Texts()
    one, other = random_streams(random, 3), random_streams(random, 2)
    # Events of NEXT, which have two parts, beside events of one.
    other = {row: {event._replace(parts=(*event.parts, -1)) for event in events} for row, events in other.items()}
    for row, events in one.items():
        other[row % 2] |= {event._replace(parts=(*event.parts, -1)) for event in events if random.random() < 0.5}
    rows = TestRows([Vector(left, right) for left in range(3) for right in range(2)], texts)
    operator = Uniting(rows)
    operator.add_rows(rows.all())
    expected = {
        row: {event._replace(parts=(*event.parts, -1)) for event in one[vector.left]} | other[vector.right]
        for row, vector in enumerate(rows.vectors)
    }
    found = run_in(operator, [one, other], cuts(random, 12), [SCHEMA, SCHEMA], texts, [1, 2])
    assert found == {row: events for row, events in expected.items() if events}


def test_an_event_of_many_rows_is_one():
    texts = Texts()
    rows = TestRows([Vector(parameters=("a", float(number))) for number in range(100)], texts, "sn")
    operator = Filtering([Filter(SOURCE, Comparison("=", NAME, TEXT))], rows, texts, indexes(len(rows.vectors)))
    operator.add_rows(rows.all())
    streams = {0: {Event(("a", 1.0), 1, 1, (7,)), Event(("b", 1.0), 1, 1, (8,))}}
    assert run_in(operator, [streams], [2], [SCHEMA], texts, [1]) == {
        row: {Event(("a", 1.0), 1, 1, (7,))} for row in range(100)
    }
