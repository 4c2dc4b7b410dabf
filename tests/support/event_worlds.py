"""Random worlds of events with their statements lowered to the algebra."""

from __future__ import annotations

from dataclasses import dataclass

from tests.generate.event_worlds import world
from tests.oracle.events import Events, World
from xscl.algebra.events import Aggregate, Filter, Schema, Select, Stream
from xscl.algebra.events import Events as Source
from xscl.event_lower import lower_event_query
from xscl.event_parser import schemas_of
from xscl.parser import parse_script
from xscl.syntax import EventStreams


@dataclass(frozen=True)
class Lowered:
    """A world: its streams, their schemas, and its statements as operators."""

    world: World
    schemas: dict[str, Schema]
    streams: dict[str, Events]
    statements: list[Stream]


def lowered_world(seed: int, *, most: int = 12) -> Lowered:
    """The world of a seed."""
    one = world(seed, most=most)
    given = {name: tuple(schema.items()) for name, schema in one.schemas.items() if name.startswith("E")}
    known = EventStreams(given)
    script = parse_script("; ".join(statement.text() for statement in one.statements), events=known)
    schemas = dict(schemas_of(script, known))
    statements = [lower_event_query(query, schemas) for query in script.event_queries]
    return Lowered(one, schemas, {name: one.stream(name) for name in one.schemas}, statements)


def inputs_of(stream: Stream) -> tuple[Stream, ...]:
    """The inputs of an operator."""
    match stream:
        case Source():
            return ()
        case Select() | Filter() | Aggregate():
            return (stream.source,)
        case _:
            return stream.left, stream.right


def has_aggregate(stream: Stream) -> bool:
    """Whether an operator or one behind it is AGGREGATE."""
    return isinstance(stream, Aggregate) or any(map(has_aggregate, inputs_of(stream)))
