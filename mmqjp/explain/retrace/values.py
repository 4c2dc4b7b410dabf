"""Values and conditions of event statements for single events."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import assert_never

from mmqjp.explain.retrace.event import Plain, Values
from xscl.algebra.events import (
    Aggregated,
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
from xscl.algebra.functions import MOST_TEXT, NUMERIC, TESTS, chained, number_text, xpath_number
from xscl.algebra.regex.search import PatternLimit
from xscl.algebra.regex.syntax import PatternError

SECOND = 1_000_000

_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": math.fmod,
}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Scope:
    """What names mean: of `left`, the `latest` values of a run, and `right`. Times are in microseconds."""

    left: Values
    duration: int
    right: Values | None = None
    latest: Values | None = None
    gap: int | None = None

    def value(self, attribute: Attribute) -> Plain:
        """Returns the value of an attribute."""
        values = {"left": self.left, "right": self.right, "latest": self.latest}[attribute.part]
        assert values is not None, "the operator has such a side"
        return values[attribute.name]


def evaluated(value: Value, scope: Scope) -> Plain:
    """Returns a value."""
    match value:
        case Constant(value=constant):
            return constant if isinstance(constant, str) else _finite(constant)
        case Attribute():
            return scope.value(value)
        case Duration():
            return scope.duration / SECOND
        case Gap():
            assert scope.gap is not None, "GAP is in NEXT and FOLD only"
            return scope.gap / SECOND
        case Arithmetic(op=op, left=left, right=right):
            return _calculated(op, number_of(evaluated(left, scope)), number_of(evaluated(right, scope)))
        case Function(name=name, args=args):
            return _applied(name, [evaluated(arg, scope) for arg in args])
        case Parameter():
            raise AssertionError("a statement by itself has no parameters")
    assert_never(value)


def holds(condition: Condition, scope: Scope) -> bool:
    """Returns whether a condition holds."""
    match condition:
        case AllOf(args=args):
            return all(holds(arg, scope) for arg in args)
        case AnyOf(args=args):
            return any(holds(arg, scope) for arg in args)
        case NullTest(value=value, negated=negated):
            return (evaluated(value, scope) is None) != negated
        case Comparison(op=op, left=left, right=right):
            return _compared(op, evaluated(left, scope), evaluated(right, scope))
        case TextTest(name=name, args=args, negated=negated):
            texts = [text_of(evaluated(arg, scope)) for arg in args]
            known = [text for text in texts if text is not None]
            if len(known) < len(texts):
                return False
            try:
                return TESTS[name](*known) != negated
            except (PatternError, PatternLimit):
                return False
    assert_never(condition)


def number_of(value: Plain) -> float | None:
    """Returns a value as a number; None if it is NULL or no finite number."""
    return _finite(xpath_number(value)) if isinstance(value, str) else value


def text_of(value: Plain) -> str | None:
    """Returns a value as a text; None if it is NULL."""
    return number_text(value) if isinstance(value, float) else value


def aggregated(one: Aggregated, group: Sequence[Scope]) -> Plain:
    """Returns an aggregate of the events of a group."""
    rows = [[evaluated(arg, scope) for arg in one.args] for scope in group]
    if one.name == "count":
        return float(sum(None not in row for row in rows))
    if one.name == "argmax":
        sized = [(number_of(size), chosen) for chosen, size in rows]
        known = [(size, chosen) for size, chosen in sized if size is not None and chosen is not None]
        greatest = max((size for size, _ in known), default=None)
        return min((chosen for size, chosen in known if size == greatest), default=None)
    numbers = [number for number in (number_of(value) for (value,) in rows) if number is not None]
    if not numbers:
        return None
    match one.name:
        case "sum":
            return _finite(_sum(numbers))
        case "avg":
            return _finite(_sum(numbers) / len(numbers))
        case "min":
            return min(numbers)
        case "max":
            return max(numbers)


def _sum(numbers: Sequence[float]) -> float:
    try:
        return math.fsum(numbers)
    except OverflowError:  # on the way, perhaps not in the end
        total = sum(map(Fraction, numbers))
    try:
        return float(total)
    except OverflowError:
        return math.inf


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _calculated(op: str, left: float | None, right: float | None) -> float | None:
    if left is None or right is None:
        return None
    try:
        return _finite(_ARITHMETIC[op](left, right))
    except (ZeroDivisionError, OverflowError, ValueError):
        return None


def _applied(name: str, args: list[Plain]) -> Plain:
    if name == "coalesce":
        return next((arg for arg in args if arg is not None), None)
    if name == "abs":
        size = number_of(args[0])
        return None if size is None else abs(size)
    texts = [text_of(arg) for arg in args]
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        return None
    if name == "concat":
        return "".join(known) if sum(map(len, known)) <= MOST_TEXT else None
    (text,) = known
    return _finite(NUMERIC[name](text)) if name in NUMERIC else chained(name)(text)


def _compared(op: str, left: Plain, right: Plain) -> bool:
    if op in ("=", "!=") and isinstance(left, str) and isinstance(right, str):
        return (left == right) == (op == "=")
    one, other = number_of(left), number_of(right)
    return one is not None and other is not None and _COMPARE[op](one, other)
