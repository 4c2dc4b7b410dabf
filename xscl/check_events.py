"""Checks event statements, and what queries over documents share with them; and the schemas of event streams."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import TopologicalSorter

from xscl.algebra.events import Schema
from xscl.algebra.values import Span, VarPath
from xscl.check import InPlace, find_cycles, query_problems
from xscl.check_expressions import blocks, name_span
from xscl.event_forms import RESERVED, unequal
from xscl.event_lower import resolve_known, schema_of
from xscl.event_resolve import MAX_ATTRIBUTES
from xscl.problems import Lines, Problem
from xscl.syntax import NO_EVENTS, EventDefinition, EventQuery, EventStreams, Query, Script, names_read

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def schemas_of(script: Script, known: EventStreams = NO_EVENTS) -> dict[str, Schema]:
    schemas, _ = _Checker(script, known, frozenset()).streams()
    return {name: schema for name, schema in schemas.items() if schema is not None}


def check_events(
    script: Script, lines: Lines, in_place: InPlace, *, known: EventStreams, failed: frozenset[str], stored: bool
) -> Iterator[Problem]:
    """The problems of event statements, and of queries that read their streams, except for cycles. `known` are
    external streams that the script can read, and `failed` those of statements with syntax errors."""
    checker = _Checker(script, known, failed)
    prefixes = {prefix for prefix, _ in script.namespaces} | {"xml"}
    seen: dict[str, EventDefinition] = {}
    for definition in script.definitions:
        yield from _definition(definition, lines, prefixes, stored)
        span = name_span(definition, lines.text)
        if definition.name in seen:
            line, column = lines.place(name_span(seen[definition.name], lines.text).start)
            message = f"the event {definition.name} is already defined at {line}:{column}"
            yield Problem(message, span, "choose another name, or make the two one with UNION")
        seen.setdefault(definition.name, definition)
    yield from checker.publishers(in_place)
    yield from checker.documents(in_place)
    _, problems = checker.streams()
    yield from problems


def _definition(definition: EventDefinition, lines: Lines, prefixes: set[str], stored: bool) -> Iterator[Problem]:
    yield from _name(definition.name, name_span(definition, lines.text), "an event")
    attributes = definition.attributes
    if len(attributes) > MAX_ATTRIBUTES:
        span = attributes[MAX_ATTRIBUTES].span
        yield Problem(f"more than {MAX_ATTRIBUTES} attributes", span, "define two events, with fewer each")
        return
    taken: set[str] = set()
    for attribute in attributes:
        span = Span(attribute.span.start, attribute.span.start + len(attribute.name))
        yield from _name(attribute.name, span, "an attribute")
        if attribute.name in taken:
            yield Problem(f"two attributes are named {attribute.name}", span, "give one another name")
        taken.add(attribute.name)
        if attribute.each and not (isinstance(attribute.operand, VarPath) and attribute.operand.steps):
            hint = "write a path on a variable, as in IN i/category; a function of it in a SELECT over the events"
            yield Problem("IN takes a path", attribute.operand.span, hint)
    for problem in query_problems(definition.as_query(), lines, prefixes, stored=stored):
        yield Problem(problem.message.replace("in SELECT", "in a definition"), problem.span, problem.hint)


def _name(name: str, span: Span, what: str) -> Iterator[Problem]:
    if not _NAME.fullmatch(name):
        yield Problem(f"{name} cannot be the name of {what}", span, "use the letters A to Z, digits and _")
    elif name.lower() in RESERVED:
        yield Problem(f"{name} is a keyword of event statements", span, "choose another name")


class _Checker:
    def __init__(self, script: Script, known: EventStreams, failed: frozenset[str]) -> None:
        self._script, self._failed = script, failed
        self._defined = {definition.name: schema_of(definition) for definition in script.definitions}
        self._all_defined = {*known.defined, *self._defined}
        self._published: dict[str, list[EventQuery]] = {}
        for query in script.event_queries:
            if query.publish is not None:
                self._published.setdefault(query.publish, []).append(query)
        self._known: dict[str, Schema] = {**known.published, **known.defined}
        self._from_documents = sorted({query.publish for query in script.queries if query.publish is not None})

    def publishers(self, in_place: InPlace) -> Iterator[Problem]:
        for query in self._script.all_queries:
            name = query.publish
            if name in self._all_defined:
                message, hint = f"{name} is the name of a defined event", "PUBLISH under another name"
            elif name in self._published and isinstance(query, Query):
                message = f"event statements PUBLISH {name}, too"
                hint = "all that PUBLISH a name read documents, or all read events"
            else:
                continue
            yield Problem(message, name_span(in_place(query) if isinstance(query, Query) else query), hint)

    def documents(self, in_place: InPlace) -> Iterator[Problem]:
        read = [definition.block for definition in self._script.definitions]
        for query in self._script.queries:
            if any(block.stream in self._all_defined for block in blocks(query.source)):
                read += blocks(in_place(query).source)
        for block in read:
            if block.stream in self._all_defined:
                hint = "a path reads documents; name what the event is defined from, or the event alone"
                yield Problem(f"{block.stream} is a defined event, no stream of documents", block.span, hint)

    def streams(self) -> tuple[dict[str, Schema | None], list[Problem]]:
        self._problems = list[Problem]()
        self._schemas: dict[str, Schema | None] = {**self._known, **dict.fromkeys(self._failed), **self._defined}
        self._schemas.update(dict.fromkeys(self._published))
        for name in self._order():
            self._schemas[name] = self._schema(self._published[name])
        for query in self._script.event_queries:
            if query.publish is None:
                self._resolved(query)
        return self._schemas, self._problems

    def _order(self) -> Iterator[str]:
        """The names that event queries PUBLISH, in topological order, without those in cycles."""
        edges = {
            name: {read.name for query in queries for read in names_read(query.stream)} & self._published.keys()
            for name, queries in self._published.items()
        }
        in_cycles = {name for cycle in find_cycles(edges) for name in cycle}
        known = {name: reads - in_cycles for name, reads in edges.items() if name not in in_cycles}
        return iter(TopologicalSorter(known).static_order())

    def _schema(self, queries: list[EventQuery]) -> Schema | None:
        first: Schema | None = None
        for query in queries:
            schema = self._resolved(query)
            if first is not None and schema is not None and first != schema:
                difference = unequal(first, schema) or "their order"
                message = f"{query.publish} has other attributes here than in the statement before: {difference}"
                hint = "SELECT the same ones in the same order, or PUBLISH under another name"
                self._problems.append(Problem(message, name_span(query), hint))
            first = first or schema
        return first

    def _resolved(self, query: EventQuery) -> Schema | None:
        stream, found = resolve_known(query, self._schemas, self._from_documents)
        self._problems += [problem.moved(query.span.start) for problem in found]
        return None if stream is None else stream.schema
