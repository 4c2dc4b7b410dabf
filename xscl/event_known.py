"""Finds what event queries mean, and remembers it: a query is checked, and then lowered."""

from __future__ import annotations

from collections.abc import Sequence

from xscl.algebra.event_sequences import Statement
from xscl.algebra.events import Schema
from xscl.event_depth import too_deep
from xscl.event_resolve import MAX_INPUTS, Resolver, Schemas
from xscl.event_syntax import EventQuery, names_read
from xscl.pattern_resolve import PatternResolver
from xscl.pattern_syntax import Sequenced
from xscl.problems import Problem


def resolve(
    query: EventQuery, schemas: Schemas, documents: Sequence[str] = ()
) -> tuple[Statement | None, list[Problem]]:
    """The events that a query makes, and what is wrong with it, with places in its own text. `documents` are streams of
    documents, for hints."""
    known = _known.get(id(query))
    if known is not None and all(schemas.get(name) == schema for name, schema in known[1]):
        return known[2], []
    if problem := too_deep(query):
        return None, [problem]
    stream, problems = _resolved(query, schemas, documents)
    if stream is None or problems:
        return None, problems
    remember(query, schemas, stream)
    return stream, []


def _resolved(query: EventQuery, schemas: Schemas, documents: Sequence[str]) -> tuple[Statement | None, list[Problem]]:
    if isinstance(query.stream, Sequenced):
        patterns = PatternResolver(schemas, documents)
        return patterns.pattern(query, query.stream), patterns.problems
    resolver = Resolver(schemas, documents)
    stream = resolver.query(query.select, query.stream, query.within)
    if resolver.inputs > MAX_INPUTS:
        message = f"more than {MAX_INPUTS} inputs in one query"
        resolver.problem(message, query.stream.span, "PUBLISH a part of it, and read that stream")
    return stream, resolver.problems


def remember(query: EventQuery, schemas: Schemas, stream: Statement) -> None:
    """Remembers the events that a query makes."""
    if len(_known) >= MOST_KNOWN:
        _known.clear()
    _known[id(query)] = query, tuple((read.name, schemas[read.name]) for read in names_read(query.stream)), stream


MOST_KNOWN = 20_000
"""How many results are remembered. When there are more, all are forgotten."""

_known: dict[int, tuple[EventQuery, tuple[tuple[str, Schema | None], ...], Statement]] = {}
"""What queries make of what attributes, by the identity of the query. A query is checked, and then lowered."""
