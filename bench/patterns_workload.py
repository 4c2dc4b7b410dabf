"""The workload of the thesis for event patterns (4.4): five templates of three steps over synthetic events.

An event has four discrete attributes, of 100 values by default, and four continuous ones, all uniform. A step asks for
two discrete attributes with given values, one of which, the primary one, is the same in all steps, and for two
continuous ones within ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from common.arrays import Ints
from pattern_stage.columns import Columns, Floats
from pattern_stage.values import Texts
from xscl.algebra.events import (
    ALWAYS,
    AllOf,
    Arithmetic,
    Atom,
    Attribute,
    Comparison,
    Constant,
    EventCondition,
    Events,
    Filter,
    Fold,
    Kind,
    Next,
    Part,
    Schema,
    Select,
    Stream,
    Value,
)

Template = Literal["LinearStat", "LinearDyn", "Filter", "NonDeterministic", "NonDeterministicAgg"]
TEMPLATES: tuple[Template, ...] = get_args(Template)

DISCRETE, CONTINUOUS, DOMAIN, RANGES = 4, 4, 100, 25
SECOND = 1_000_000
WITHIN = 20 * SECOND

SCHEMA: Schema = (
    *((f"d{place}", "string") for place in range(DISCRETE)),
    *((f"c{place}", "number") for place in range(CONTINUOUS)),
)
STREAM = "S"


@dataclass(frozen=True)
class Stocks:
    """Events a second apart: a row for each of the attributes, of the discrete ones which value it is."""

    discrete: Ints
    continuous: Floats

    def columns(self, texts: Texts) -> Columns:
        """The events as the kernel takes them."""
        codes = texts.codes(map(_named, range(int(self.discrete.max()) + 1)))
        numbers = np.arange(self.discrete.shape[1], dtype=np.int64)
        times = (numbers + 1) * SECOND
        return Columns(times, times, (*codes[self.discrete], *self.continuous), numbers.reshape(-1, 1))


@dataclass(frozen=True, slots=True)
class Step:
    """Two discrete attributes with their values, the primary one first, and two continuous ones with ranges."""

    equal: tuple[tuple[int, int], tuple[int, int]]
    ranges: tuple[tuple[int, float, float], tuple[int, float, float]]


Steps = tuple[Step, Step, Step]


def events(count: int, domain: int = DOMAIN, seed: int = 1) -> Stocks:
    """Some events, whose discrete attributes have so many values."""
    chance = np.random.default_rng(seed)
    return Stocks(chance.integers(0, domain, (DISCRETE, count)), chance.random((CONTINUOUS, count)))


def planted(given: Stocks, asked: Sequence[Steps]) -> Stocks:
    """The events, with three in a row for each of some statements that satisfy its steps, as random ones hardly do."""
    discrete, continuous = given.discrete.copy(), given.continuous.copy()
    for first, steps in zip(range(0, discrete.shape[1] - 2, discrete.shape[1] // len(asked)), asked, strict=False):
        for event, step in enumerate(steps, first):
            for place, value in step.equal:
                discrete[place, event] = value
            for place, low, high in step.ranges:
                continuous[place, event] = (low + high) / 2
    return Stocks(discrete, continuous)


def statements(
    count: int,
    zipf: tuple[float, float, float] = (1, 1, 0.8),
    selectivity: float = 0.7,
    domain: int = DOMAIN,
    seed: int = 2,
) -> list[Steps]:
    """The steps of statements. Attributes, values and ranges of step i are chosen by Zipf's law with `zipf[i]`."""
    chance = np.random.default_rng(seed)
    primary = chance.choice(domain, count, p=_zipf(domain, zipf[0]))
    steps = [_steps(chance, count, primary, power, selectivity, domain) for power in zipf]
    return list(zip(*steps, strict=True))


def _steps(
    chance: np.random.Generator, count: int, primary: Ints, power: float, selectivity: float, domain: int
) -> list[Step]:
    other = 1 + chance.choice(DISCRETE - 1, count, p=_zipf(DISCRETE - 1, power))
    values = chance.choice(domain, count, p=_zipf(domain, power))
    one = chance.choice(CONTINUOUS, count, p=_zipf(CONTINUOUS, power))
    two = (one + 1 + chance.choice(CONTINUOUS - 1, count, p=_zipf(CONTINUOUS - 1, power))) % CONTINUOUS
    lows = chance.choice(RANGES, (2, count), p=_zipf(RANGES, power)) * ((1 - selectivity) / (RANGES - 1))
    rows = zip(*(column.tolist() for column in (primary, other, values, one, two, *lows)), strict=True)
    return [
        Step(((0, p), (o, v)), ((a, low, low + selectivity), (b, other_low, other_low + selectivity)))
        for p, o, v, a, b, low, other_low in rows
    ]


def _zipf(count: int, power: float) -> NDArray[np.float64]:
    weights = 1 / np.arange(1, count + 1) ** power
    found: NDArray[np.float64] = weights / weights.sum()
    return found


def _named(value: int) -> str:
    return f"v{value}"


# ---------------------------------------------------------------- statements as streams


def stream_of(template: Template, steps: Steps) -> Stream:
    """The statement of a template with these steps."""
    first = Filter(_BASE, _condition(steps[0], "left"))
    match template:
        case "LinearStat":
            two = Filter(_next(first, ALWAYS, None), _condition(steps[1], "left"))
            return Filter(_next(two, ALWAYS, None), _condition(steps[2], "left"))
        case "LinearDyn":
            two = Filter(_next(first, ALWAYS, None), _and(_condition(steps[1], "left"), _rises(steps[1])))
            return Filter(_next(two, ALWAYS, None), _and(_condition(steps[2], "left"), _rises(steps[2])))
        case "Filter":
            two = Filter(_next(first, _primary(steps[1]), WITHIN), _condition(steps[1], "left"))
            return Filter(_next(two, _primary(steps[2]), WITHIN), _condition(steps[2], "left"))
        case "NonDeterministic" | "NonDeterministicAgg":
            summed = template == "NonDeterministicAgg"
            start = _latest(first, Attribute("left", "c0", "number")) if summed else first
            two = Filter(_fold(start, _primary(steps[1]), summed), _condition(steps[1], "left"))
            again = _latest(two, Attribute("left", "total", "number") if summed else None)
            return Filter(_fold(again, _primary(steps[2]), summed), _condition(steps[2], "left"))


def chain_of(conditions: Sequence[EventCondition]) -> Stream:
    """A statement of steps with these conditions, each on the next event."""
    stream: Stream = Filter(_BASE, conditions[0])
    for condition in conditions[1:]:
        stream = Filter(_next(stream, ALWAYS, None), condition)
    return stream


_BASE = Events(STREAM, SCHEMA)
_TOTAL: tuple[str, Kind] = ("total", "number")


def _condition(step: Step, part: Part) -> EventCondition:
    atoms: list[Atom] = [
        Comparison("=", Attribute(part, f"d{place}", "string"), Constant(_named(value))) for place, value in step.equal
    ]
    for place, low, high in step.ranges:
        value = Attribute(part, f"c{place}", "number")
        atoms += [Comparison(">=", value, Constant(low)), Comparison("<=", value, Constant(high))]
    return AllOf(tuple(atoms))


def _primary(step: Step) -> EventCondition:
    (place, value), _ = step.equal
    return Comparison("=", Attribute("right", f"d{place}", "string"), Constant(_named(value)))


def _rises(step: Step) -> EventCondition:
    """The parameterised atom: the step's first continuous attribute is greater than before."""
    name = f"c{step.ranges[0][0]}"
    return Comparison(">", Attribute("left", name, "number"), Attribute("left", f"{name}_1", "number"))


def _and(one: EventCondition, other: EventCondition) -> EventCondition:
    return AllOf((one, other))


def _next(left: Stream, condition: EventCondition, within: int | None) -> Stream:
    before = [name for name, _ in left.schema]
    schema = (*((f"{name}_1", kind) for name, kind in left.schema), *SCHEMA)
    names: tuple[tuple[Part, str], ...] = (
        *(("left", name) for name in before),
        *(("right", name) for name, _ in SCHEMA),
    )
    return Next(left, _BASE, condition, within, names, schema)


def _fold(left: Stream, chooses: EventCondition, summed: bool) -> Stream:
    schema = (*((f"{name}_1", kind) for name, kind in left.schema), *left.schema)
    names: tuple[tuple[Part, str], ...] = (
        *(("left", name) for name, _ in left.schema),
        *(("latest", name) for name, _ in left.schema),
    )
    sets: tuple[tuple[str, Value], ...] = ()
    if summed:
        total = Arithmetic("+", Attribute("latest", "total", "number"), Attribute("right", "c0", "number"))
        sets = (("total", total),)
    return Fold(left, _BASE, chooses, ALWAYS, sets, WITHIN, names, schema)


def _latest(source: Stream, total: Value | None) -> Stream:
    """The attributes of events alone, and a total."""
    items: list[tuple[str, Value]] = [(name, Attribute("left", name, kind)) for name, kind in SCHEMA]
    if total is None:
        return Select(source, tuple(items), SCHEMA)
    return Select(source, (*items, ("total", total)), (*SCHEMA, _TOTAL))
