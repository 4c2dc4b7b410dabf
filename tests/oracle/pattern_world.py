"""The oracle's worlds with PATTERN statements: outputs and published events (docs/semantics.md, sections 25 and 28).

In particular:
- NON OVERLAPPING: the ids of a match are those of the events of its variables, one variable after the other.
- As an event of a stream, what a PATTERN publishes is told from others by its attributes, interval and parts.
- A statement tells what is known before its life ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from typing import Any

from tests.oracle.event_syntax import Cel, Expr, Fn, Item, Of, Ref, Schema, kind_of, schema_of
from tests.oracle.event_values import AGGREGATES, Bound, Scope, Value, as_number, evaluate, holds
from tests.oracle.events import EVER, Event, Events, Life, World, event
from tests.oracle.pattern_matches import Match, Matcher, Order, leaves, near_matches
from tests.oracle.pattern_syntax import Near, Pattern, Statement
from tests.oracle.values import text_of

Told = tuple[tuple[str, Value | tuple[Value, ...]], ...]
"""The items of RETURN, each with its value, or with one for each event."""


def by_parts(one: Event) -> tuple[int, list[str]]:
    """Orders events by t1, and then in some way."""
    return one.t1, sorted(map(repr, one.parts))


class PatternWorld(World):
    def __init__(
        self,
        schemas: Mapping[str, Schema],
        events: Mapping[str, Iterable[Event]],
        statements: Sequence[Statement],
        lives: Mapping[int, Life] | None = None,
        order: Order = by_parts,
    ) -> None:
        self._order = order
        super().__init__(schemas, events, statements, lives)  # type: ignore[arg-type]  # what else there is, is here

    def matches(self, place: int, since: int | None = None) -> set[Match]:
        """What a pattern tells, during its life, or as if it were there from `since` on."""
        pattern = self.statements[place]
        assert isinstance(pattern, Pattern | Near)
        life = self.lives.get(place, EVER) if since is None else (since, EVER[1])
        seen = {
            name: frozenset(one for one in self.stream(name) if life[0] <= one.t1 < life[1]) for name in pattern.streams
        }
        if isinstance(pattern, Near):
            found = near_matches(pattern, seen)
        else:
            found = Matcher(pattern, seen, self._order).matches()
            if pattern.together:
                found = {one for one in together(found) if holds(*of_group(pattern, pattern.having, one))}
        if pattern.apart:
            found = set(self._apart(pattern, found))
        return {one for one in found if one.known < life[1]}

    def results(self, place: int, since: int | None = None) -> Events:
        statement = self.statements[place]
        if isinstance(statement, Cel):
            return super().results(place, since)
        made = []
        for one in self.matches(place, since):
            values = {name: value for name, value in returned(statement, one) if not isinstance(value, tuple)}
            parts = [part for part_of in one.flat for part in part_of.parts]
            made.append(event(values, one.t0, one.known, parts))
        return frozenset(made)

    def _schema(self, statement: Statement) -> Schema:
        return pattern_schema(statement, self.schemas)

    def _apart(self, pattern: Pattern | Near, found: set[Match]) -> Iterable[Match]:
        """NON OVERLAPPING."""
        whole = isinstance(pattern, Pattern) and pattern.strategy == "strict_contiguity"
        latest: dict[tuple[Value, ...], int] = {}
        for one in sorted(found, key=self._rank):
            key = () if whole else tuple(one.flat[0].values[name] for name in pattern.keys)
            if key not in latest or one.t0 > latest[key]:
                latest[key] = one.last
                yield one

    def _rank(self, one: Match) -> tuple[object, ...]:
        ids = [[self._order(of) for of in some] for some in one.events]
        return one.known, one.errors, one.t0, -len(one.flat), ids


def items_of(statement: Pattern | Near) -> tuple[Item, ...]:
    """The items of RETURN; with ERRORS there is always their number."""
    items = statement.select or ()
    if isinstance(statement, Pattern) or any(item.label == "errors" for item in items):
        return items
    return (*items, Item(Ref("errors")))


def returned(statement: Pattern | Near, match: Match) -> Told:
    if isinstance(statement, Near):
        scope = Scope({"errors": float(match.errors)}, 0)
        return tuple((item.label, evaluate(item.expr, scope)) for item in items_of(statement))
    if statement.together:
        items = [(item, *of_group(statement, item.expr, match)) for item in items_of(statement)]
        return tuple((item.label, exact(item.expr, statement, match) or evaluate(*one)) for item, *one in items)
    names = [one.variable for one in statement.positive]
    bound = {name: tuple(one.values for one in some) for name, some in zip(names, match.events, strict=True)}
    told: list[tuple[str, Value | tuple[Value, ...]]] = []
    for item in items_of(statement):
        each = each_of(item.expr)
        if each is None:
            told.append((item.label, evaluate(item.expr, Scope({}, 0, bound=Bound(bound, {})))))
            continue
        scopes = [Scope({}, 0, bound=Bound(bound, {each: place})) for place in range(len(bound[each]))]
        told.append((item.label, tuple(evaluate(item.expr, scope) for scope in scopes)))
    return tuple(told)


# ---------------------------------------------------------------- ALL MATCHES TOGETHER


def together(found: Iterable[Match]) -> set[Match]:
    groups: dict[Event, set[Match]] = {}
    for one in found:
        groups.setdefault(one.events[-1][-1], set()).add(one)
    return {Match(((last,),), last.t1, 0, frozenset(some)) for last, some in groups.items()}


def is_plain(expr: Expr) -> bool:
    """Whether an item is a number or a sum alone, which is told with all digits."""
    return isinstance(expr, Fn) and expr.name in ("count", "sum")


def exact(expr: Expr, pattern: Pattern, match: Match) -> Value:
    if not is_plain(expr):
        return None
    assert isinstance(expr, Fn)
    number = _of_all(expr, pattern, match)
    return number if number is None else str(number) if number.denominator == 1 else text_of(float(number))


def of_group(pattern: Pattern, node: Any, match: Match) -> tuple[Any, Scope]:
    """A value or condition with names in place of what it reads of the matches, and the values of these."""
    values: dict[str, Value] = {}

    def named(part: Any) -> Any:
        if isinstance(part, Of) or (isinstance(part, Fn) and part.name in AGGREGATES):
            found = _of_all(part, pattern, match) if isinstance(part, Fn) else match.flat[0].values[part.name]
            values[name := f"v{len(values)}"] = float(found) if isinstance(found, Fraction) else found
            return Ref(name)
        if isinstance(part, tuple):
            return tuple(map(named, part))
        if is_dataclass(part) and not isinstance(part, type):
            return replace(part, **{field.name: named(getattr(part, field.name)) for field in fields(part)})
        return part

    return named(node), Scope(values, 0)


def _of_all(call: Fn, pattern: Pattern, match: Match) -> Fraction | None:
    if not call.args:
        return Fraction(len(match.group))
    (of,) = call.args
    assert isinstance(of, Of)
    place = [one.variable for one in pattern.positive].index(of.variable)
    events = [event for one in match.group for event in one.events[place]]
    if not of.name:
        return Fraction(len(events))
    values = [one.values[of.name] for one in events]
    if call.name == "count":
        return Fraction(sum(value is not None for value in values))
    numbers = [Fraction(number) for number in map(as_number, values) if number is not None]
    if not numbers:
        return None
    match call.name:
        case "sum":
            return sum(numbers, Fraction(0))
        case "avg":
            return sum(numbers, Fraction(0)) / len(numbers)
    return min(numbers) if call.name == "min" else max(numbers)


# ---------------------------------------------------------------- schemas


def each_of(expr: Expr) -> str | None:
    """The variable for each event of which an item has a value."""
    every = [one for one in leaves(expr) if isinstance(one, Of) and one.place == "[]"]
    return every[0].variable if every else None


def pattern_schema(statement: Statement, schemas: Mapping[str, Schema]) -> Schema:
    if isinstance(statement, Cel):
        return schema_of(statement, schemas)
    source: Schema = {"errors": "number"}
    if isinstance(statement, Pattern):
        for one in statement.positive:
            source |= {f"{one.variable}.{name}": kind for name, kind in schemas[one.stream].items()}
    for name in statement.streams:
        schemas[name]  # a KeyError says that it is not known yet
    whole = isinstance(statement, Pattern) and statement.together
    return {
        item.label: "string" if whole and is_plain(item.expr) else kind_of(item.expr, source)
        for item in items_of(statement)
        if each_of(item.expr) is None
    }
