"""Small hand-written cases of event patterns: events, and results, in a short notation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.oracle.event_schemas import Kind, Schema
from tests.oracle.event_syntax import Cel, Stream
from tests.oracle.event_values import Value
from tests.oracle.events import Event, World, event

SECOND = 10**6


def schema(text: str) -> Schema:
    """The schema of a text like `name price:number`."""
    kinds: dict[str, Kind] = {"": "string", "number": "number", "string": "string"}
    return {name: kinds[kind] for name, _, kind in (word.partition(":") for word in text.split())}


def events(of: Schema, text: str) -> list[Event]:
    """The events of a text like `IBM 80 @1 | - 22 @2-3`, where - is NULL and times are seconds. Parts are places."""
    return [_event(of, place, part) for place, part in enumerate(text.split(" | "))] if text else []


def _event(of: Schema, place: int, text: str) -> Event:
    *words, times = text.split()
    t0, _, t1 = times.removeprefix("@").partition("-")
    values = {name: _value(kind, word) for (name, kind), word in zip(of.items(), words, strict=True)}
    return event(values, round(float(t0) * SECOND), round(float(t1 or t0) * SECOND), [text + f"#{place}"])


def _value(kind: Kind, word: str) -> Value:
    if word == "-":
        return None
    return float(word) if kind == "number" else word


def answers(stream: Stream, *given: tuple[str, str, str]) -> list[str]:
    """What a statement finds in streams, each given as name, schema and events."""
    cel = stream if isinstance(stream, Cel) else Cel(stream)
    schemas = {name: schema(of) for name, of, _ in given}
    world = World(schemas, {name: events(schemas[name], text) for name, _, text in given}, [cel])
    return brief(world.results(0))


def brief(found: Iterable[Event]) -> list[str]:
    """Each event as `name=value ... [t0,t1]`, names in the order of the alphabet, sorted."""
    return sorted(f"{_brief_values(one.values)} [{_time(one.t0)},{_time(one.t1)}]".strip() for one in found)


def _brief_values(values: Mapping[str, Value]) -> str:
    return " ".join(
        f"{name}={'-' if value is None else value if isinstance(value, str) else f'{value:.4g}'}"
        for name, value in sorted(values.items())
    )


def _time(microseconds: int) -> str:
    return f"{microseconds / SECOND:.10g}"
