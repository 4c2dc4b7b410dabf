"""What the operators of `xscl.algebra.events` find, computed word by word over few events.

It checks how statements are lowered: the oracle has what a statement finds, and this what its operators find. Values
and conditions are the oracle's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from tests.oracle import event_syntax as written
from tests.oracle.event_values import Scope, evaluate
from tests.oracle.event_values import Value as Held
from tests.oracle.event_values import holds as _holds
from tests.oracle.events import Event, Events, before, event
from xscl.algebra import events as algebra
from xscl.algebra.values import split_function

_SIDES: dict[algebra.Part, written.Side] = {"left": "$1", "right": "$2", "latest": "$"}


@dataclass(frozen=True)
class Pair:
    """What attributes mean: of the left, the right and FOLD's latest event. Times in microseconds."""

    values: Mapping[algebra.Part, Mapping[str, Held]]
    duration: int
    gap: int = 0

    @property
    def scope(self) -> Scope:
        values = self.values
        return Scope(values["left"], self.duration, values.get("right"), values.get("latest"), self.gap)


def run(stream: algebra.Stream, given: Mapping[str, Events]) -> Events:
    """The events of a stream."""
    match stream:
        case algebra.Events(stream=name):
            return given[name]
        case algebra.Filter(source=source, condition=condition):
            return frozenset(one for one in run(source, given) if holds(condition, _alone(one)))
        case algebra.Select(source=source, items=items):
            return frozenset(
                event({name: value_of(value, _alone(one)) for name, value in items}, one.t0, one.t1, one.parts)
                for one in run(source, given)
            )
        case algebra.Union(left=left, right=right):
            return run(left, given) | run(right, given)
        case algebra.Aggregate():
            return frozenset(_aggregates(stream, run(stream.source, given)))
        case algebra.Next():
            found = frozenset(_nexts(stream, run(stream.left, given), run(stream.right, given)))
        case algebra.Fold():
            found = frozenset(_folds(stream, run(stream.left, given), run(stream.right, given)))
    return frozenset(one for one in found if stream.within is None or one.duration <= stream.within)


def _nexts(stream: algebra.Next, left: Events, right: Events) -> Iterator[Event]:
    for a in left:
        pairs = {b: Pair({"left": a.values, "right": b.values}, b.t1 - a.t0, b.t0 - a.t1) for b in right}
        partners = [b for b in right if before(a, b) and holds(stream.condition, pairs[b])]
        for b in partners:
            if b.t1 == min(one.t1 for one in partners):
                yield event(_named(stream, pairs[b]), a.t0, b.t1, a.parts | b.parts)


def _folds(stream: algebra.Fold, left: Events, right: Events) -> Iterator[Event]:
    # Of each run: its first event, its latest, and the values then.
    runs = {(one, one, one.attributes) for one in left}
    while runs:
        longer = set()
        for first, latest, values in runs:
            known: dict[algebra.Part, Mapping[str, Held]] = {"left": first.values, "latest": dict(values)}
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


def _named(stream: algebra.Next | algebra.Fold, pair: Pair) -> dict[str, Held]:
    schema = [name for name, _ in stream.schema]
    return {name: pair.values[part][old] for name, (part, old) in zip(schema, stream.names, strict=True)}


def _aggregates(stream: algebra.Aggregate, source: Events) -> Iterator[Event]:
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


def _alone(one: Event) -> Pair:
    return Pair({"left": one.values}, one.duration)


def aggregate_of(aggregated: algebra.Aggregated, events: Iterable[Event]) -> Held:
    group = tuple(_alone(one).scope for one in events)
    return evaluate(written.Fn(aggregated.name, tuple(map(_expr, aggregated.args))), Scope({}, 0, group=group))


def value_of(value: algebra.Value, pair: Pair) -> Held:
    return evaluate(_expr(value), pair.scope)


def holds(condition: algebra.EventCondition, pair: Pair) -> bool:
    return _holds(_cond(condition), pair.scope)


@cache
def _expr(value: algebra.Value) -> written.Expr:
    """A value in the oracle's syntax. A parameter is an attribute of the left event."""
    match value:
        case algebra.Constant(value=str(text)):
            return written.Str(text)
        case algebra.Constant(value=number):
            return written.Num(repr(number))
        case algebra.Parameter(index=index):
            return written.Ref(f"?{index}", "$1")
        case algebra.Attribute(part=part, name=name):
            return written.Ref(name, _SIDES[part])
        case algebra.Duration():
            return written.Time("DUR")
        case algebra.Gap():
            return written.Time("GAP")
        case algebra.Arithmetic(op=op, left=left, right=right):
            return written.Op(op, _expr(left), _expr(right))
        case algebra.Function(name=name, args=args):
            function, literal = split_function(name)
            return written.Fn(function, (*map(_expr, args), *(() if literal is None else (written.Str(literal),))))
    raise AssertionError(f"no value: {value}")


@cache
def _cond(condition: algebra.EventCondition) -> written.Cond:
    match condition:
        case algebra.AllOf(args=args):
            return written.Both("AND", tuple(map(_cond, args)))
        case algebra.AnyOf(args=args):
            return written.Both("OR", tuple(map(_cond, args)))
        case algebra.NullTest(value=value, negated=negated):
            return written.IsNull(_expr(value), negated)
        case algebra.TextTest(name=name, args=texts, negated=negated):
            test = written.Test(name, tuple(map(_expr, texts)))
            return written.Not(test) if negated else test
        case algebra.Comparison(op=op, left=left, right=right):
            return written.Cmp(op, _expr(left), _expr(right))
