"""What the operators of `xscl.algebra.events` say, computed word by word over few events.

It checks how statements are lowered: the oracle says what a statement finds, and this what its operators find.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.oracle.event_values import Value as Held
from tests.oracle.event_values import as_number
from tests.oracle.events import Event, Events, before, event
from tests.oracle.values import STRING_TESTS, apply, text_of
from xscl.algebra import events as algebra
from xscl.algebra.events import (
    Aggregate,
    Aggregated,
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Constant,
    Duration,
    EventCondition,
    Filter,
    Fold,
    Function,
    Gap,
    Next,
    NullTest,
    Part,
    Select,
    Stream,
    TextTest,
    Union,
    Value,
)
from xscl.algebra.values import split_function

_ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": math.fmod,
}
_ORDER = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Pair:
    """What attributes mean: of the left, the right and FOLD's latest event. Times in microseconds."""

    values: Mapping[Part, Mapping[str, Held]]
    duration: int
    gap: int = 0


def run(stream: Stream, given: Mapping[str, Events]) -> Events:
    """The events of a stream."""
    match stream:
        case algebra.Events(stream=name):
            return given[name]
        case Filter(source=source, condition=condition):
            return frozenset(one for one in run(source, given) if holds(condition, _alone(one)))
        case Select(source=source, items=items):
            return frozenset(
                event({name: value_of(value, _alone(one)) for name, value in items}, one.t0, one.t1, one.parts)
                for one in run(source, given)
            )
        case Union(left=left, right=right):
            return run(left, given) | run(right, given)
        case Aggregate():
            return frozenset(_aggregates(stream, run(stream.source, given)))
        case Next():
            found = frozenset(_nexts(stream, run(stream.left, given), run(stream.right, given)))
        case Fold():
            found = frozenset(_folds(stream, run(stream.left, given), run(stream.right, given)))
    return frozenset(one for one in found if stream.within is None or one.duration <= stream.within)


def _nexts(stream: Next, left: Events, right: Events) -> Iterator[Event]:
    for a in left:
        pairs = {b: Pair({"left": a.values, "right": b.values}, b.t1 - a.t0, b.t0 - a.t1) for b in right}
        partners = [b for b in right if before(a, b) and holds(stream.condition, pairs[b])]
        for b in partners:
            if b.t1 == min(one.t1 for one in partners):
                yield event(_named(stream, pairs[b]), a.t0, b.t1, a.parts | b.parts)


def _folds(stream: Fold, left: Events, right: Events) -> Iterator[Event]:
    # Of each run: its first event, its latest, and the values then.
    runs = {(one, one, one.attributes) for one in left}
    while runs:
        longer = set()
        for first, latest, values in runs:
            known: dict[Part, Mapping[str, Held]] = {"left": first.values, "latest": dict(values)}
            pairs = {b: Pair({**known, "right": b.values}, b.t1 - first.t0, b.t0 - latest.t1) for b in right}
            chosen = [b for b in right if before(latest, b) and holds(stream.chooses, pairs[b])]
            for b in chosen:
                if b.t1 == min(one.t1 for one in chosen) and holds(stream.continues, pairs[b]):
                    sets = {name: value_of(value, pairs[b]) for name, value in stream.sets}
                    longer.add((first, b, frozenset({**dict(values), **b.values, **sets}.items())))
        runs = longer
        for first, latest, values in runs:
            pair = Pair({"left": first.values, "latest": dict(values)}, 0)
            yield event(_named(stream, pair), first.t0, latest.t1, first.parts | latest.parts)


def _named(stream: Next | Fold, pair: Pair) -> dict[str, Held]:
    schema = [name for name, _ in stream.schema]
    return {name: pair.values[part][old] for name, (part, old) in zip(schema, stream.names, strict=True)}


def _aggregates(stream: Aggregate, source: Events) -> Iterator[Event]:
    groups: dict[tuple[Held, ...], list[Event]] = {}
    for one in source:
        groups.setdefault(tuple(one.values[name] for name in stream.by), []).append(one)
    for key, events in groups.items():
        for t in {one.t1 for one in events}:
            now = [one for one in events if one.t1 == t]
            seen = [one for one in events if t - (stream.over or 0) < one.t1 <= t] if stream.over else now
            values = {name: aggregate_of(aggregated, seen) for name, aggregated in stream.items}
            parts = frozenset(part for one in now for part in one.parts)
            yield event({**dict(zip(stream.by, key, strict=True)), **values}, t, t, parts)


def aggregate_of(aggregated: Aggregated, events: Iterable[Event]) -> Held:
    rows = [[value_of(arg, _alone(one)) for arg in aggregated.args] for one in events]
    if aggregated.name == "argmax":
        known = [(as_number(size), chosen) for chosen, size in rows if as_number(size) is not None]
        chosen = [value for size, value in known if value is not None]
        most = max((size for size, value in known if value is not None and size is not None), default=None)
        return min((v for size, v in known if size == most and v is not None), default=None) if chosen else None
    if aggregated.name == "count":
        return float(sum(None not in row for row in rows))
    numbers = [number for row in rows if (number := as_number(row[0])) is not None]
    if not numbers:
        return None
    total = sum(numbers)
    return {"sum": total, "avg": total / len(numbers), "min": min(numbers), "max": max(numbers)}[aggregated.name]


def _alone(one: Event) -> Pair:
    return Pair({"left": one.values}, one.duration)


def value_of(value: Value, pair: Pair) -> Held:
    match value:
        case Constant(value=constant):
            return constant
        case Attribute(part=part, name=name):
            return pair.values[part][name]
        case Duration():
            return pair.duration / 10**6
        case Gap():
            return pair.gap / 10**6
        case Arithmetic(op=op, left=left, right=right):
            one, two = as_number(value_of(left, pair)), as_number(value_of(right, pair))
            if one is None or two is None or (op in "/%" and two == 0):
                return None
            return as_finite(_ARITHMETIC[op](one, two))
        case Function(name=name, args=args):
            return _function(name, [value_of(arg, pair) for arg in args])
    raise AssertionError(f"no value: {value}")


def _function(name: str, args: list[Held]) -> Held:
    if name == "coalesce":
        return next((arg for arg in args if arg is not None), None)
    given = [arg for arg in args if arg is not None]
    if len(given) < len(args):
        return None
    if name == "concat":
        return "".join(map(text_of, given))
    if name == "abs":
        size = as_number(given[0])
        return None if size is None else abs(size)
    function, literal = split_function(name)
    found = apply(function, given[0], *([] if literal is None else [literal]))
    assert isinstance(found, str | float)
    return found if isinstance(found, str) else as_finite(float(found))


def as_finite(number: float) -> float | None:
    """A number; NULL if it is none."""
    return number if math.isfinite(number) else None


def holds(condition: EventCondition, pair: Pair) -> bool:
    match condition:
        case AllOf(args=args):
            return all(holds(arg, pair) for arg in args)
        case AnyOf(args=args):
            return any(holds(arg, pair) for arg in args)
        case NullTest(value=value, negated=negated):
            return (value_of(value, pair) is None) is not negated
        case TextTest(name=name, args=texts, negated=negated):
            found = [value_of(text, pair) for text in texts]
            given = [text_of(one) for one in found if one is not None]
            return len(given) == len(found) and bool(STRING_TESTS[name](*given)) is not negated
        case Comparison(op=op, left=left, right=right):
            one, two = value_of(left, pair), value_of(right, pair)
            if not (op in ("=", "!=") and isinstance(one, str) and isinstance(two, str)):
                one, two = as_number(one), as_number(two)
            return one is not None and two is not None and bool(_ORDER[op](one, two))
