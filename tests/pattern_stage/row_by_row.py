"""Conditions and values of one pair of events, evaluated in plain Python; random ones; and rows as columns.

NULL is None here. It shares no code with the product but the functions of single texts and the tree of the algebra.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pattern_stage.columns import Column, Columns
from pattern_stage.values import Pairs, Texts
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
    Schema,
    TextTest,
    Value,
)
from xscl.algebra.values import ORDER, TESTS, derive, number_text, xpath_number


@dataclass
class Row:
    """A pair of events, as values by name with `t0` and `t1`, FOLD's latest values, and the parameters."""

    left: dict[str, Any]
    latest: dict[str, Any]
    right: dict[str, Any]
    parameters: tuple[Any, ...]


def condition_of(condition: EventCondition, row: Row) -> bool:
    match condition:
        case AllOf(args=args):
            return all(condition_of(arg, row) for arg in args)
        case AnyOf(args=args):
            return any(condition_of(arg, row) for arg in args)
        case NullTest(value=value, negated=negated):
            return (value_of(value, row) is None) is not negated
        case Comparison(op=op, left=left, right=right):
            one, other = value_of(left, row), value_of(right, row)
            if not (op in ("=", "!=") and isinstance(one, str) and isinstance(other, str)):
                one, other = number_of(one), number_of(other)
            return one is not None and other is not None and ORDER[op](one, other)
        case TextTest(name=name, args=args, negated=negated):
            texts = [text_of(value_of(arg, row)) for arg in args]
            return None not in texts and TESTS[name](*texts) is not negated
    raise AssertionError


def value_of(value: Value, row: Row) -> Any:
    match value:
        case Constant(value=constant):
            return constant if isinstance(constant, str) else known(constant)
        case Parameter(index=index):
            return row.parameters[index]
        case Attribute(part=part, name=name):
            return getattr(row, part)[name]
        case Duration():
            return (row.right["t1"] - row.left["t0"]) / 1e6
        case Gap():
            return (row.right["t0"] - row.latest["t1"]) / 1e6
        case Arithmetic(op=op, left=left, right=right):
            one, other = number_of(value_of(left, row)), number_of(value_of(right, row))
            if one is None or other is None or (op in "/%" and other == 0):
                return None
            if op == "%":
                return math.fmod(one, other)
            return known({"+": one + other, "-": one - other, "*": one * other, "/": one / (other or 1)}[op])
        case Function(name="coalesce", args=args, kind=kind):
            as_kind = text_of if kind == "string" else number_of
            return next((found for arg in args if (found := as_kind(value_of(arg, row))) is not None), None)
        case Function(name="concat", args=args):
            texts = [text_of(value_of(arg, row)) for arg in args]
            return None if None in texts else "".join(map(str, texts))
        case Function(name="abs", args=(arg,)):
            number = number_of(value_of(arg, row))
            return None if number is None else abs(number)
        case Function(name="number", args=(arg,)):
            return number_of(value_of(arg, row))
        case Function(name=name, args=(arg,), kind=kind):
            text = text_of(value_of(arg, row))
            return None if text is None else derive(name, text) if kind == "string" else float(derive(name, text))
    raise AssertionError


def known(number: float) -> float | None:
    return number if math.isfinite(number) else None


def number_of(value: str | float | None) -> float | None:
    return known(xpath_number(value)) if isinstance(value, str) else value


def text_of(value: str | float | None) -> str | None:
    return number_text(value) if isinstance(value, float) else value


# ---------------------------------------------------------------- random ones


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
            return TextTest(
                chance.choice(["contains", "starts-with", "ends-with"]), (one, other), chance.random() < 0.5
            )
    return Comparison(chance.choice(["=", "!=", "<", "<=", ">", ">="]), one, other)


def random_value(chance: random.Random, schema: Schema, depth: int, kind: Kind) -> Value:
    other: Kind = chance.choice(["string", "number"])
    if depth and chance.random() < 0.4:
        one, two = (random_value(chance, schema, depth - 1, other) for _ in range(2))
        if kind == "string":
            name = chance.choice(["lower-case", "host", "concat", "coalesce", "date", "normalize-space"])
            return Function(name, (one, two) if name in ("concat", "coalesce") else (one,), "string")
        name = chance.choice(["number", "string-length", "abs", "coalesce", *"+-*/%"])
        if len(name) == 1:
            return Arithmetic(name, one, two)
        return Function(name, (one, two) if name == "coalesce" else (one,), "number")
    attributes = [name for name, of in schema if of == kind]
    if kind == "string":
        leaves: list[Value] = [Constant(chance.choice(["a", "1", "org"])), Parameter(0, "string")]
    else:
        leaves = [Constant(chance.choice([0.0, 1.0, 7.0])), Parameter(1, "number"), Duration(), Gap()]
    parts = [chance.choice(["left", "latest", "right"]) for _ in range(4)]
    return chance.choice(leaves + [Attribute(part, chance.choice(attributes), kind) for part in parts])  # type: ignore[arg-type]  # parts


# ---------------------------------------------------------------- as columns


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
