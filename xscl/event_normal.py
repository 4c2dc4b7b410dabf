"""Lowers event statements to the algebra of events, which `xscl.algebra.events` defines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from xscl.algebra.comparisons import is_number
from xscl.algebra.event_sequences import NearPattern, Pattern, Statement
from xscl.algebra.events import Schema, Stream
from xscl.event_forms import in_order
from xscl.event_syntax import EventDefinition, EventQuery
from xscl.event_templates import resolve_known


def schema_of(definition: EventDefinition) -> Schema:
    """The attributes of the events that are defined."""
    return tuple(
        (attribute.name, "number" if attribute.number or is_number(attribute.operand) else "string")
        for attribute in definition.attributes
    )


def lower_event_query(query: EventQuery, schemas: Mapping[str, Schema]) -> Stream:
    """The events that a query makes that is no PATTERN: see `lower_statement`."""
    stream = lower_statement(query, schemas)
    assert not isinstance(stream, Pattern | NearPattern)
    return stream


def lower_statement(query: EventQuery, schemas: Mapping[str, Schema]) -> Statement:
    """The events that a query makes, in normal form (see `xscl.event_forms`), or the pattern that it looks for.

    `xscl.event_check` found no fault with it. `schemas` are the attributes of the streams that it reads; if that which
    it PUBLISHes is among them, its events have their attributes in that order.
    """
    stream, problems = resolve_known(query, schemas)
    assert stream is not None, problems
    schema = schemas.get(query.publish or "")
    if schema is None:
        return stream
    return replace(stream, schema=schema) if isinstance(stream, Pattern | NearPattern) else in_order(stream, schema)
