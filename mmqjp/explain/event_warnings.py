"""Warns of event statements that look like mistakes: state that is kept for ever, texts as numbers, unread events."""

from __future__ import annotations

from collections.abc import Iterator

from mmqjp.explain.item_warnings import item_warnings
from mmqjp.explain.stream_warnings import stream_warnings
from xscl import Query, Script
from xscl.event_check import schemas_of
from xscl.event_names import event_name_span
from xscl.event_remarks import remarks
from xscl.event_syntax import EventDefinition, names_read
from xscl.problems import Problem
from xscl.syntax import SelectItem, SelectItems


def event_warnings(text: str, script: Script, *, feeds: bool, items: bool) -> Iterator[Problem]:
    """The warnings for the event statements of a correct script, with their places in its text.

    `feeds` and `items` say what documents are, as for queries: `mmqjp.explain.warnings`.
    """
    published = script.published()
    read = {name.name for query in script.event_queries for name in names_read(query.stream)}
    for definition in script.definitions:
        if script.event_queries and definition.name not in read:
            span = event_name_span(text, definition)
            yield Problem(f"nothing reads the event {definition.name}", span, "remove it, or write a query over it")
        query = _as_query(definition)
        yield from stream_warnings(query, published, feeds=feeds)
        if items:
            yield from item_warnings(query, published)
    schemas = schemas_of(script)
    for event_query in script.event_queries:
        for problem in remarks(event_query, schemas):
            yield problem.moved(event_query.span.start)


def _as_query(definition: EventDefinition) -> Query:
    """A definition as a query that selects its attributes."""
    items = [SelectItem(one.operand, f"{number}", one.span) for number, one in enumerate(definition.attributes)]
    return Query(definition.block, SelectItems(tuple(items)), None, definition.span)
