"""What output documents have of the matches of a PATTERN, and what the kernel is asked to tell for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from xscl.algebra.event_sequences import (
    EVENTS,
    Letter,
    Letters,
    NearPattern,
    OneOf,
    Pattern,
    Repeated,
    Statement,
    Word,
    letters_of,
)
from xscl.algebra.events import Schema


@dataclass(frozen=True, slots=True)
class Item:
    """An item of RETURN: the name of its elements, its column among the attributes of `told`, and whether it has a
    value for each event of a variable, as a JSON array."""

    name: str
    column: int
    several: bool


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that is not negated: its name, whether it has several events, and the names of their attributes."""

    name: str
    several: bool
    attributes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """What output documents of a PATTERN have: the items of RETURN, or, without it, the events.

    Each part of a match is that of one of the `variables`. With ERRORS there is one part, whose events are told apart
    by their streams: `letters` has a variable for each of these.
    """

    items: tuple[Item, ...] | None
    variables: tuple[Variable, ...]
    letters: dict[str, Variable]
    events: int
    """The column of EVENTS; -1 if it is not asked for."""


def told(stream: Statement) -> Statement:
    """Returns a statement with all that its output documents need as attributes, those that it has anyway first."""
    if not isinstance(stream, Pattern | NearPattern):
        return stream
    if stream.returned is None:
        return replace(stream, schema=(*stream.schema, (EVENTS, "string")))
    if isinstance(stream, NearPattern):
        return stream
    several: Schema = tuple((item.name, "string") for item in stream.returned if item.each is not None)
    return replace(stream, schema=(*stream.schema, *several))


def contents(stream: Pattern | NearPattern) -> Contents:
    """Returns what the output documents of a pattern have, in their order. Columns are those of `told`."""
    columns = {name: place for place, (name, _) in enumerate(told(stream).schema)}
    events = columns.get(EVENTS, -1)
    if isinstance(stream, NearPattern):
        returned = (
            None if stream.returned is None else tuple(Item(name, columns[name], False) for name, _ in stream.returned)
        )
        several = Counter(_occurrences(stream.letters))
        letters = {
            one.source.stream: Variable(one.source.stream, several[one.source.stream] > 1, _names(one.source.schema))
            for one in letters_of(stream.letters)
        }
        return Contents(returned, (), letters, events)
    items = None
    if stream.returned is not None:
        items = tuple(Item(one.name, columns[one.name], one.each is not None) for one in stream.returned)
    variables = tuple(
        Variable(one.name, one.kleene, _names(one.source.schema)) for one in stream.variables if not one.negated
    )
    return Contents(items, variables, {}, events)


def _names(schema: Schema) -> tuple[str, ...]:
    return tuple(name for name, _ in schema)


def _occurrences(letters: Letters) -> Iterator[str]:
    """Yields the streams of letters, those that may be repeated twice."""
    match letters:
        case Letter():
            yield letters.source.stream
        case Repeated():
            yield from (*_occurrences(letters.part), *_occurrences(letters.part))
        case Word() | OneOf():
            for part in letters.parts:
                yield from _occurrences(part)
