"""Pairs of events as dictionaries, what the oracle says of conditions on them, random conditions; and rows as columns.

NULL is None here.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from pattern_stage.columns import Column, Columns
from pattern_stage.values import Pairs, Texts
from tests.support.event_algebra import Pair, holds
from xscl.algebra.events import (
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Constant,
    Duration,
    EventCondition,
    Function,
    Gap,
    Kind,
    NullTest,
    Parameter,
    Part,
    Schema,
    TextTest,
    Value,
)


@dataclass
class Row:
    """A pair of events, as values by name with `t0` and `t1`, FOLD's latest values, and the parameters."""

    left: dict[str, Any]
    latest: dict[str, Any]
    right: dict[str, Any]
    parameters: tuple[Any, ...]

    def pair(self) -> Pair:
        given = {f"?{index}": value for index, value in enumerate(self.parameters)}
        duration, gap = self.right["t1"] - self.left["t0"], self.right["t0"] - self.latest["t1"]
        return Pair({"left": {**self.left, **given}, "latest": self.latest, "right": self.right}, duration, gap)


def condition_of(condition: EventCondition, row: Row) -> bool:
    return holds(condition, row.pair())


def random_condition(chance: random.Random, schema: Schema, depth: int = 3) -> EventCondition:
    if depth and chance.random() < 0.5:
        args = tuple(random_condition(chance, schema, depth - 1) for _ in range(chance.randrange(4)))
        return AllOf(args) if chance.random() < 0.5 else AnyOf(args)
    kinds: list[Kind] = ["string", "number"]
    one, other = (random_value(chance, schema, 2, chance.choice(kinds)) for _ in range(2))
    match chance.randrange(4):
        case 0:
            return NullTest(one, chance.random() < 0.5)
        case 1:
            name = chance.choice(["contains", "starts-with", "ends-with"])
            return TextTest(name, (one, other), chance.random() < 0.5)
    return Comparison(chance.choice(["=", "!=", "<", "<=", ">", ">="]), one, other)


def random_value(chance: random.Random, schema: Schema, depth: int, kind: Kind) -> Value:
    if depth and chance.random() < 0.4:
        texts = ["lower-case", "host", "concat", "coalesce", "year-month", "normalize-space"]
        name = chance.choice(texts if kind == "string" else ["number", "string-length", "abs", "coalesce", *"+-*/%"])
        other: Kind = kind if name == "coalesce" else chance.choice(["string", "number"])
        one, two = (random_value(chance, schema, depth - 1, other) for _ in range(2))
        if len(name) == 1:
            return Arithmetic(name, one, two)
        return Function(name, (one, two) if name in ("concat", "coalesce") else (one,), kind)
    attributes = [name for name, of in schema if of == kind]
    if kind == "string":
        leaves: list[Value] = [Constant(chance.choice(["a", "1", "org"])), Parameter(0, "string")]
    else:
        leaves = [Constant(chance.choice([0.0, 1.0, 7.0])), Parameter(1, "number"), Duration(), Gap()]
    parts = [cast(Part, chance.choice(["left", "latest", "right"])) for _ in range(4)]
    return chance.choice(leaves + [Attribute(part, chance.choice(attributes), kind) for part in parts])


def columns_of(events: Sequence[dict[str, Any]], schema: Schema, texts: Texts) -> Columns:
    times = [np.array([event[name] for event in events], np.int64) for name in ("t0", "t1")]
    values = tuple(column_of([event[name] for event in events], kind, texts) for name, kind in schema)
    return Columns(times[0], times[1], values, np.arange(len(events), dtype=np.int64).reshape(-1, 1))


def column_of(values: Sequence[Any], kind: Kind, texts: Texts) -> Column:
    if kind == "string":
        return texts.codes(values)
    return np.array([math.nan if value is None else value for value in values], np.float64)


def pairs_of(rows: Sequence[Row], schema: Schema, texts: Texts) -> Pairs:
    left, latest, right = (
        columns_of([getattr(row, part) for row in rows], schema, texts) for part in ("left", "latest", "right")
    )
    texts_given = column_of([row.parameters[0] for row in rows], "string", texts)
    numbers_given = column_of([row.parameters[1] for row in rows], "number", texts)
    at = np.arange(len(rows))
    return Pairs(left, at, right, at, latest, at, (texts_given, numbers_given))
