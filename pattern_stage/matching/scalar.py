"""Conditions and values over single events as Python functions, by the same rules of NULL as `predicates`.

A run is tested with one event at a time, where arrays of one would cost more than the test. So an expression is
written as Python and compiled once a template. Numbers are floats, NaN for NULL; texts are codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, assert_never

import numpy as np

from pattern_stage.columns import NULL_TEXT
from pattern_stage.predicates import kind_of
from pattern_stage.values import FALSE, TRUE, Texts
from xscl.algebra.events import (
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Condition,
    Constant,
    Duration,
    Function,
    Gap,
    NullTest,
    Parameter,
    TextTest,
    Value,
)
from xscl.algebra.functions import DERIVED

Place = Callable[[Attribute], str]
"""Where an attribute is, as Python: `E[3]` or `V[0]`."""


class Writer:
    """Writes expressions as Python and compiles them. Parameters are `P[0]`, `P[1]`, ..."""

    def __init__(self, texts: Texts, functions: Mapping[str, Callable[..., Any]] = {}) -> None:
        """`functions` are others that code may call."""
        self._names: dict[str, Any] = {**_functions(texts), **functions}

    def compiled(self, arguments: str, body: str) -> Callable[..., Any]:
        """Returns a function of these arguments with this result."""
        return eval(f"lambda {arguments}: {body}", self._names)  # type: ignore[no-any-return]  # a lambda

    def condition(self, condition: Condition, place: Place) -> str:
        """Returns a condition as Python."""
        match condition:
            case AllOf(args=args):
                return f"({' and '.join(self.condition(arg, place) for arg in args)})" if args else "True"
            case AnyOf(args=args):
                return f"({' or '.join(self.condition(arg, place) for arg in args)})" if args else "False"
            case Comparison(op=op, left=left, right=right):
                if op in ("=", "!=") and kind_of(left) == kind_of(right) == "string":
                    call = "same_text" if op == "=" else "other_text"
                    return f"{call}({self.value(left, place)}, {self.value(right, place)})"
                one, other = self.number(left, place), self.number(right, place)
                if op == "!=":
                    return f"other_number({one}, {other})"
                return f"({one} {'==' if op == '=' else op} {other})"
            case NullTest(value=value, negated=negated):
                call = "null_text" if kind_of(value) == "string" else "null_number"
                return f"{'not ' if negated else ''}{call}({self.value(value, place)})"
            case TextTest(name=name, args=args, negated=negated):
                texts = ", ".join(self.text(arg, place) for arg in args)
                return f"tested({name!r}, {FALSE if negated else TRUE}, {texts})"
        assert_never(condition)

    def value(self, value: Value, place: Place) -> str:
        """Returns a value as Python."""
        return self.text(value, place) if kind_of(value) == "string" else self.number(value, place)

    def text(self, value: Value, place: Place) -> str:
        """Returns the code of the text of a value as Python."""
        if kind_of(value) == "number":
            return f"written({self.number(value, place)})"
        match value:
            case Constant(value=constant):
                return f"code({self._named(str(constant))})"
            case Function(name="coalesce", args=args):
                return f"first_text({', '.join(self.text(arg, place) for arg in args)})"
            case Function(name="concat", args=args):
                return f"concatenated({', '.join(self.text(arg, place) for arg in args)})"
            case Function(name=name, args=(arg,)) if name in DERIVED:
                return f"derived({name!r}, {self.text(arg, place)})"
        return self._taken(value, place)

    def number(self, value: Value, place: Place) -> str:
        """Returns the number of a value as Python."""
        if kind_of(value) == "string":
            return f"number_of('number', {self.text(value, place)})"
        match value:
            case Constant(value=constant):
                number = float(constant)
                return self._named(number if math.isfinite(number) else math.nan)
            case Arithmetic(op=op, left=left, right=right):
                one, other = self.number(left, place), self.number(right, place)
                if op in "/%":
                    return f"{'divided' if op == '/' else 'rest'}({one}, {other})"
                return f"finite({one} {op} {other})"
            case Function(name="coalesce", args=args):
                return f"first_number({', '.join(self.number(arg, place) for arg in args)})"
            case Function(name="abs", args=(arg,)):
                return f"abs({self.number(arg, place)})"
            case Function(name="number", args=(arg,)):
                return self.number(arg, place)
            case Function(name=name, args=(arg,)):
                return f"number_of({name!r}, {self.text(arg, place)})"
        return self._taken(value, place)

    def _taken(self, value: Value, place: Place) -> str:
        match value:
            case Attribute():
                return place(value)
            case Parameter(index=index):
                return f"P[{index}]"
            case Duration() | Gap():
                raise AssertionError("PATTERN has neither DUR nor GAP")
        raise AssertionError(f"no value of events: {value!r}")

    def _named(self, constant: object) -> str:
        name = f"c{len(self._names)}"
        self._names[name] = constant
        return name


def _functions(texts: Texts) -> Mapping[str, Callable[..., Any]]:
    def one(code: int) -> Any:
        return np.array([code], np.int64)

    return {
        "same_text": lambda left, right: left == right and left != NULL_TEXT,
        "other_text": lambda left, right: left not in (right, NULL_TEXT) and right != NULL_TEXT,
        "other_number": lambda left, right: left < right or left > right,
        "null_text": lambda code: code == NULL_TEXT,
        "null_number": lambda number: number != number,
        "finite": finite,
        "divided": lambda left, right: finite(left / right) if right else math.nan,
        "rest": _rest,
        "first_text": lambda *codes: next((code for code in codes if code != NULL_TEXT), NULL_TEXT),
        "first_number": lambda *numbers: next((number for number in numbers if number == number), math.nan),
        "code": texts.code,
        "written": lambda number: int(texts.written(np.array([number]))[0]),
        "number_of": lambda name, code: float(texts.derived_numbers(name, one(code))[0]),
        "derived": lambda name, code: int(texts.derived(name, one(code))[0]),
        "concatenated": lambda *codes: int(texts.concatenated(list(map(one, codes)))[0]),
        "tested": lambda name, wanted, *codes: int(texts.tested(name, list(map(one, codes)))[0]) == wanted,
    }


def finite(number: float) -> float:
    """Returns a number, NaN in place of infinity."""
    return number if -math.inf < number < math.inf else math.nan


def _rest(left: float, right: float) -> float:
    """XPath's mod: the sign is that of the left number."""
    if not right or left != left or right != right:
        return math.nan
    return math.fmod(left, right)
