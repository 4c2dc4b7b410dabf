"""The oracle's values of event statements: numbers, strings and NULL (docs/semantics.md, section 20).

In particular:
- A string is a number by XPath's number() wherever a number is needed; if it is none, that is NULL, so that no
  comparison with it holds, != included.
- `%` has the sign of its left operand, as XPath's mod. A percentage is the double nearest to the hundredth part.
- min, max, median and percentile are of numbers; between two of them a percentile is in proportion. An aggregate
  skips an event for which one of its arguments is NULL.
- The least of several strings, for argmax, goes by code points.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tests.oracle import event_syntax as cel
from tests.oracle.values import ORDER, STRING_TESTS, apply, number, text_of
from tests.oracle.walk import walk

Value = str | float | None
Values = Mapping[str, Value]

DISTINCT = "count DISTINCT"
AGGREGATES = ("count", DISTINCT, "sum", "avg", "median", "percentile", "min", "max", "argmax")
_SECOND = 10**6
_OPPOSITE = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": math.fmod,
}


@dataclass(frozen=True, slots=True)
class Scope:
    """What references mean: `first` is $1, or the only event; `latest` is FOLD's $; `right` is $2. Times in
    microseconds. `group` has the events that aggregates are of. `bound` is what a pattern's variables have."""

    first: Values
    duration: int
    right: Values | None = None
    latest: Values | None = None
    gap: int | None = None
    group: tuple[Scope, ...] | None = None
    bound: Bound | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """The events of each variable of a pattern, and the place of the one among them that `v[i]` or `v[]` is."""

    events: Mapping[str, tuple[Values, ...]]
    chosen: Mapping[str, int]

    def value(self, of: cel.Of) -> Value:
        """An attribute of one event; without a name, what is not NULL."""
        events = self.events[of.variable]
        match of.place:
            case "" | "1":
                place = 0
            case "LEN":
                place = len(events) - 1
            case "i-1":
                place = self.chosen[of.variable] - 1
            case _:
                place = self.chosen[of.variable]
        return events[place][of.name] if of.name else 0.0

    def group(self, call: cel.Fn) -> tuple[Scope, ...]:
        (variable, place), *more = {(of.variable, of.place) for of in walk(call) if isinstance(of, cel.Of)}
        assert not more and place in ("[]", "..i-1"), "an aggregate is of one v[], or of one v[..i-1]"
        count = len(self.events[variable]) if place == "[]" else self.chosen[variable]
        return tuple(
            Scope({}, 0, bound=Bound(self.events, {**self.chosen, variable: number})) for number in range(count)
        )


def finite(value: float) -> float | None:
    """A number; NULL if it is none, or infinite."""
    return float(value) if math.isfinite(value) else None


def as_number(value: Value) -> float | None:
    return finite(number(value)) if isinstance(value, str) else value


def evaluate(expr: cel.Expr, scope: Scope) -> Value:
    match expr:
        case cel.Num():
            return expr.value()
        case cel.Str():
            return expr.value
        case cel.Window():
            return expr.us / _SECOND
        case cel.Time("DUR"):
            return scope.duration / _SECOND
        case cel.Time():
            assert scope.gap is not None
            return scope.gap / _SECOND
        case cel.Ref():
            return _look_up(expr, scope)
        case cel.Of():
            assert scope.bound is not None
            return scope.bound.value(expr)
        case cel.Len():
            assert scope.bound is not None
            return float(len(scope.bound.events[expr.variable]))
        case cel.Op():
            return _arithmetic(expr.op, as_number(evaluate(expr.left, scope)), as_number(evaluate(expr.right, scope)))
        case cel.Fn() if expr.name in AGGREGATES:
            group = scope.group if scope.bound is None else scope.bound.group(expr)
            assert group is not None
            return _aggregate(expr, group)
        case cel.Fn():
            return _function(expr.name, [evaluate(arg, scope) for arg in expr.args])


def _look_up(ref: cel.Ref, scope: Scope) -> Value:
    match ref.side:
        case "$1":
            return scope.first[ref.name]
        case "$2":
            assert scope.right is not None
            return scope.right[ref.name]
        case "$":
            assert scope.latest is not None
            return scope.latest[ref.name]
    found = [values for values in (scope.first, scope.right) if values is not None and ref.name in values]
    assert len(found) == 1, f"{ref.name} is on both sides, or on none"
    return found[0][ref.name]


def _arithmetic(op: str, left: float | None, right: float | None) -> float | None:
    if left is None or right is None:
        return None
    try:
        return finite(_ARITHMETIC[op](left, right))
    except (ZeroDivisionError, OverflowError, ValueError):
        return None


def _function(name: str, args: list[Value]) -> Value:
    if name == "coalesce":
        return next((arg for arg in args if arg is not None), None)
    given = [arg for arg in args if arg is not None]
    if len(given) < len(args):
        return None
    match name:
        case "concat":
            joined = "".join(text_of(arg) for arg in given)
            return joined if len(joined) <= 1_000_000 else None
        case "abs":
            size = as_number(given[0])
            return None if size is None else abs(size)
    value = apply(name, given[0], *map(text_of, given[1:]))
    assert isinstance(value, str | float)
    return value if isinstance(value, str) else finite(value)


def _aggregate(call: cel.Fn, group: Iterable[Scope]) -> Value:
    rows = [[evaluate(arg, scope) for arg in call.args] for scope in group]
    if call.name == "argmax":
        pairs = [(as_number(size), chosen) for chosen, size in rows]
        greatest = max((size for size, chosen in pairs if size is not None and chosen is not None), default=None)
        known = [chosen for size, chosen in pairs if size is not None and size == greatest and chosen is not None]
        return min(known, default=None)
    if call.name == "count":
        return float(sum(None not in row for row in rows))
    if call.name == DISTINCT:
        return float(len({row[0] for row in rows if row[0] is not None}))
    numbers = [size for size in (as_number(row[0]) for row in rows) if size is not None]
    if not numbers:
        return None
    if call.name in ("median", "percentile"):
        share = 0.5
        if call.name == "percentile":
            (_, percent) = call.args
            assert isinstance(percent, cel.Num)
            share = percent.value() / 100
        where, whole = math.modf((len(numbers) - 1) * share)
        low, *more = sorted(numbers)[int(whole) : int(whole) + 2]
        return low * (1 - where) + more[0] * where if more else low
    match call.name:
        case "sum":
            return finite(math.fsum(numbers))
        case "avg":
            return finite(math.fsum(numbers) / len(numbers))
        case "min":
            return min(numbers)
    return max(numbers)


def holds(cond: cel.Cond | None, scope: Scope) -> bool:
    """Whether a condition holds; one that is left out does."""
    return cond is None or _holds(cond, scope, wanted=True)


def _holds(cond: cel.Cond, scope: Scope, *, wanted: bool) -> bool:
    """Whether a condition holds, or, if it is not `wanted`, its negation, pushed to the atoms."""
    match cond:
        case cel.Not():
            return _holds(cond.arg, scope, wanted=not wanted)
        case cel.Both():
            every = (cond.word == "AND") == wanted
            return (all if every else any)([_holds(arg, scope, wanted=wanted) for arg in cond.args])
        case cel.IsNull():
            return (evaluate(cond.value, scope) is None) == (cond.negated != wanted)
        case cel.Cmp():
            return _compare(cond.op if wanted else _OPPOSITE[cond.op], cond.left, cond.right, scope)
        case cel.Test():
            args = [evaluate(arg, scope) for arg in cond.args]
            return None not in args and STRING_TESTS[cond.name](*map(_text, args)) == wanted


def _text(value: Value) -> str:
    assert value is not None
    return text_of(value)


def _compare(op: str, left: cel.Expr, right: cel.Expr, scope: Scope) -> bool:
    one, other = evaluate(left, scope), evaluate(right, scope)
    if not (op in ("=", "!=") and isinstance(one, str) and isinstance(other, str)):
        one, other = as_number(one), as_number(other)
    return one is not None and other is not None and ORDER[op](one, other)
