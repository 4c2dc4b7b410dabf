"""Events of tests as tuples, and conditions on them evaluated one by one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import NamedTuple

import numpy as np

from common.arrays import Ints
from pattern_stage.columns import Column, Columns, Flow, Mask, each_once, sorted_flow
from pattern_stage.index import StaticIndex
from pattern_stage.operators import Index, PatternOp
from pattern_stage.plan import NO_BOUND
from pattern_stage.values import Pairs, Texts, compile_condition
from xscl.algebra.events import (
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Constant,
    Duration,
    EventCondition,
    Gap,
    NullTest,
    Parameter,
    Schema,
    Value,
)

SCHEMA: Schema = (("name", "string"), ("v", "number"))
Scalar = str | float | None

COMPARE = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Event(NamedTuple):
    values: tuple[Scalar, ...]
    t0: int
    t1: int
    parts: tuple[int, ...]


class Bound(NamedTuple):
    """What a condition is about: the left event, FOLD's latest, the right one."""

    sides: Mapping[str, Event]
    schemas: Mapping[str, Schema]
    parameters: Sequence[Scalar]


def value_of(value: Value, bound: Bound) -> Scalar:
    match value:
        case Constant(value=constant):
            return constant
        case Parameter(index=index):
            return bound.parameters[index]
        case Attribute(part=part, name=name):
            names = [known for known, _ in bound.schemas[part]]
            return bound.sides[part].values[names.index(name)]
        case Duration():
            last = bound.sides.get("right", bound.sides.get("latest", bound.sides["left"]))
            return (last.t1 - bound.sides["left"].t0) / 1e6
        case Gap():
            return (bound.sides["right"].t0 - bound.sides.get("latest", bound.sides["left"]).t1) / 1e6
        case Arithmetic(op="+", left=left, right=right):
            one, other = value_of(left, bound), value_of(right, bound)
            return None if one is None or other is None else float(one) + float(other)
    raise AssertionError(value)


def holds(condition: EventCondition, bound: Bound) -> bool:
    match condition:
        case AllOf(args=args):
            return all(holds(arg, bound) for arg in args)
        case AnyOf(args=args):
            return any(holds(arg, bound) for arg in args)
        case Comparison(op=op, left=left, right=right):
            one, other = value_of(left, bound), value_of(right, bound)
            return one is not None and other is not None and bool(COMPARE[op](one, other))
        case NullTest(value=value, negated=negated):
            return (value_of(value, bound) is None) != negated
    raise AssertionError(condition)


def before(one: Event, other: Event) -> bool:
    return one.t1 < other.t0


# ---------------------------------------------------------------- columns


def columns_of(events: Sequence[Event], schema: Schema, texts: Texts, places: int) -> Columns:
    values: list[Column] = []
    for place, (_, kind) in enumerate(schema):
        column = [event.values[place] for event in events]
        if kind == "string":
            values.append(texts.codes(None if value is None else str(value) for value in column))
        else:
            values.append(np.array([np.nan if value is None else value for value in column], np.float64))
    parts = np.array([event.parts for event in events], np.int64).reshape(len(events), places)
    times = [np.array([event[place] for event in events], np.int64) for place in (1, 2)]
    return Columns(times[0], times[1], tuple(values), parts)


def events_of(columns: Columns, texts: Texts) -> list[Event]:
    values: list[list[Scalar]] = []
    for column in columns.values:
        if column.dtype == np.int64:
            values.append(list(texts.texts(column)))  # type: ignore[arg-type]  # codes
        else:
            values.append([None if np.isnan(number) else float(number) + 0.0 for number in column])
    rows = zip(*values, strict=True) if values else [()] * len(columns)
    times = zip(columns.t0.tolist(), columns.t1.tolist(), columns.parts.tolist(), strict=True)
    return [Event(tuple(row), t0, t1, tuple(parts)) for row, (t0, t1, parts) in zip(rows, times, strict=True)]


Streams = dict[int, set[Event]]
"""The events of each row."""


def flow_of(streams: Streams, schema: Schema, texts: Texts, places: int) -> Flow:
    pairs = [(event, row) for row, events in streams.items() for event in events]
    columns = columns_of([event for event, _ in pairs], schema, texts, places)
    return each_once(sorted_flow(columns, np.arange(len(pairs)), np.array([row for _, row in pairs], np.int64)))


def streams_of(flow: Flow, texts: Texts) -> Streams:
    """Each event of each row; that none is twice, and that they are sorted, is checked here."""
    events = events_of(flow.events, texts)
    assert np.all(np.diff(flow.events.t1) >= 0) and np.all(np.diff(flow.at) >= 0)
    found: Streams = {}
    for at, row in zip(flow.at.tolist(), flow.rows.tolist(), strict=True):
        assert events[at] not in found.setdefault(row, set())
        found[row].add(events[at])
    return found


# ---------------------------------------------------------------- rows and runs


class Vector(NamedTuple):
    left: int = 0
    right: int = 0
    shape: int = 0
    within: int = NO_BOUND
    parameters: tuple[Scalar, ...] = ()


@dataclass
class TestRows:
    """Rows with these vectors."""

    __test__ = False

    vectors: list[Vector]
    texts: Texts
    kinds: str = ""
    """`s` or `n` for each parameter."""
    parameters: tuple[Column, ...] = field(init=False)

    def __post_init__(self) -> None:
        columns = [[vector.parameters[place] for vector in self.vectors] for place in range(len(self.kinds))]
        self.left, self.right, self.shape, self.within = (
            np.array([vector[place] for vector in self.vectors], np.int64) for place in range(4)
        )
        self.apart = np.full(len(self.vectors), -NO_BOUND, np.int64)
        self.parameters = tuple(
            self.texts.codes(None if value is None else str(value) for value in column)
            if kind == "s"
            else np.array([np.nan if value is None else value for value in column], np.float64)
            for kind, column in zip(self.kinds, columns, strict=True)
        )

    def all(self) -> Ints:
        return np.arange(len(self.vectors))

    def some(self, random: Random) -> Ints:
        return np.array([row for row in range(len(self.vectors)) if random.random() < 0.3], np.int64)


class TryEach:
    """An index that tries every target."""

    def __init__(self, schema: Schema, texts: Texts) -> None:
        self._schema, self._texts = schema, texts
        self._tests: dict[int, tuple[Callable[[Pairs], Mask], tuple[Column, ...]]] = {}

    def add(self, targets, clauses, parameters) -> None:
        condition = AnyOf(tuple(AllOf(clause) for clause in clauses))
        left = compile_condition(condition, self._schema, self._schema, self._texts)
        for place, target in enumerate(targets.tolist()):
            assert target not in self._tests
            self._tests[target] = (left, tuple(column[place : place + 1] for column in parameters))

    def settle(self) -> None:
        pass

    def remove(self, targets: Ints) -> None:
        for target in targets.tolist():
            del self._tests[target]

    def used(self) -> Iterable[Ints]:
        return ()

    def hits(self, events: Columns, active: Mask | None = None) -> tuple[Ints, Ints]:
        pairs = set()
        for target, (test, parameters) in self._tests.items():
            if active is None or active[target]:
                every = np.arange(len(events))
                # Each event stands on both sides, so that it does not matter which of them the clauses are about.
                given = Pairs(events, every, events, every, None, np.zeros(len(events), np.int64), parameters)
                pairs |= {(place, target) for place in np.flatnonzero(test(given)).tolist()}
        found = np.array(sorted(pairs), np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]


def indexes(seed: int) -> Callable[[Schema, Texts], Index]:
    """The static index, or one that tries every target."""
    return TryEach if seed % 3 == 0 else StaticIndex


def random_events(random: Random, count: int, first_part: int, *, last: int, interval: bool = True) -> set[Event]:
    """Events with many ties, some NULLs and some intervals."""
    found = set()
    for number in range(count):
        t1 = random.randint(1, last)
        t0 = max(0, t1 - random.choice([0, 0, 0, 1, 3])) if interval else t1
        name = random.choice(["a", "b", "b", None])
        v = random.choice([None, 1.0, 2.0, 3.0, 4.0, -0.0])
        found.add(Event((name, v), t0, t1, (first_part + number,)))
    return found


def random_streams(random: Random, rows: int) -> Streams:
    """Events of several rows, many of which have the same."""
    events = random_events(random, 25, 0, last=12, interval=random.random() < 0.7)
    return {row: {event for event in events if random.random() < 0.5} for row in range(rows)}


def cuts(random: Random, last: int) -> list[int]:
    """Where intervals end: anywhere, the last past the end."""
    chosen = random.sample(range(1, last + 1), random.randint(0, last // 2))
    return [*sorted(chosen), last + 1]


def run_in(
    operator_: PatternOp,
    inputs: Sequence[Streams],
    ends: Iterable[int],
    schemas: Sequence[Schema],
    texts: Texts,
    places,
    since=-NO_BOUND,
) -> Streams:
    """The results of an operator over intervals with these ends."""
    found: Streams = {}
    for start, end in pairwise([since, *ends]):
        flows = [
            flow_of(
                {row: {event for event in events if start <= event.t1 < end} for row, events in streams.items()},
                schema,
                texts,
                width,
            )
            for streams, schema, width in zip(inputs, schemas, places, strict=True)
        ]
        for row, events in streams_of(operator_.run(flows, end), texts).items():
            assert all(start <= event.t1 < end for event in events)
            assert not events & found.setdefault(row, set())
            found[row] |= events
    return {row: events for row, events in found.items() if events}
