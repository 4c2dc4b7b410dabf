"""Small hand-written cases of PATTERN statements: events are numbered as they are written, and matches name them."""

from __future__ import annotations

from collections.abc import Iterable

from tests.oracle.event_cases import SECOND, events, schema
from tests.oracle.event_schemas import Schema
from tests.oracle.event_syntax import Both, Cmp, Cond, Of, Str
from tests.oracle.event_values import Value
from tests.oracle.events import Event
from tests.oracle.pattern_matches import Match
from tests.oracle.pattern_syntax import Near, Pattern
from tests.oracle.pattern_world import PatternWorld, returned

Given = tuple[str, str, str]
"""A stream: its name, its schema, and its events, as `event_cases.events` takes them."""


def both(*args: Cond) -> Both:
    return Both("AND", args)


def text(variable: str, name: str, value: str) -> Cmp:
    """`variable.name = "value"`."""
    return Cmp("=", Of(variable, name), Str(value))


def told(statement: Pattern | Near, *given: Given) -> list[str]:
    """The matches of a statement, such as `1 2 | 6 @9`: the events of each variable, and when it is known."""
    return sorted(map(brief, _world(statement, given).matches(0)), key=_numbers)


def values(statement: Pattern | Near, *given: Given) -> list[dict[str, Value | tuple[Value, ...]]]:
    """What a statement RETURNs, in the order of time."""
    found = sorted(_world(statement, given).matches(0), key=lambda one: (one.known, one.t0))
    return [dict(returned(statement, one)) for one in found]


def brief(one: Match) -> str:
    """A match as a text."""
    variables = " | ".join(" ".join(map(number, some)) for some in one.events)
    errors = f" -{one.errors}" if one.errors else ""
    return f"{variables} @{one.known / SECOND:.10g}{errors}"


def number(one: Event) -> str:
    """The number of an event."""
    (part,) = one.parts
    return str(part)


def _world(statement: Pattern | Near, given: Iterable[Given]) -> PatternWorld:
    schemas: dict[str, Schema] = {}
    streams: dict[str, list[Event]] = {}
    last = 0
    for name, of, written in given:
        schemas[name] = schema(of)
        found = events(schemas[name], written)
        streams[name] = [
            Event(one.attributes, one.t0, one.t1, frozenset([last + place])) for place, one in enumerate(found, 1)
        ]
        last += len(found)
    return PatternWorld(schemas, streams, [statement], order=lambda one: (one.t1, min(one.parts)))  # type: ignore[type-var]  # numbers


def _numbers(brief: str) -> list[object]:
    return [int(word) if word.isdigit() else -1 for word in brief.split()]
