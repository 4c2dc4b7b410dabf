"""Checks the names that queries PUBLISH: no stream is made from itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter

from xscl.event_names import event_name_span
from xscl.event_syntax import EventDefinition, EventQuery, names_read
from xscl.problems import Problem
from xscl.scope import blocks, name_span
from xscl.script import Script
from xscl.syntax import Query


def check_publishing(script: Script, in_place: Callable[[int], Query], text: str = "") -> Iterator[Problem]:
    """The problems of the names that a script's statements define and PUBLISH, one for each cycle. `in_place` parses
    the query of a number, counted from 0, again: what follows a name in the script's may be that of another query.
    `text` is that of the script."""
    published = script.published()
    if not script.has_events and published.isdisjoint(
        block.stream for one in script.queries for block in blocks(one.source)
    ):
        return  # nothing is made from what a query of the script makes
    makers: dict[str, set[str]] = {}  # what is read for each name
    first_of: dict[str, int | EventDefinition | EventQuery] = {}
    for number, query in enumerate(script.queries):
        if query.publish is not None:
            makers.setdefault(query.publish, set()).update(block.stream for block in blocks(query.source))
            first_of.setdefault(query.publish, number)
    defined = {definition.name for definition in script.definitions}
    for reads in makers.values():
        reads -= defined  # which is another mistake
    for definition in script.definitions:
        makers.setdefault(definition.name, set()).update({definition.block.stream} - defined)
        first_of.setdefault(definition.name, definition)
    for event_query in script.event_queries:
        if event_query.publish is not None:
            reads = {read.name for read in names_read(event_query.stream)}
            makers.setdefault(event_query.publish, set()).update(reads)
            first_of.setdefault(event_query.publish, event_query)
    edges = {name: sorted(reads & makers.keys()) for name, reads in makers.items()}
    order = list(makers)
    for cycle in _cycles(edges):
        first = min(cycle, key=order.index)
        at = cycle.index(first)
        path = " -> ".join([*cycle[at:], *cycle[:at], first])
        hint = "a stream cannot be made from itself; read another stream, or PUBLISH under another name"
        maker = first_of[first]
        span = name_span(in_place(maker)) if isinstance(maker, int) else event_name_span(text, maker)
        names = "PUBLISHed names" if all(isinstance(first_of[name], int) for name in cycle) else "names"
        yield Problem(f"a cycle of {names}: {path}", span, hint)


def _cycles(edges: dict[str, list[str]]) -> Iterator[list[str]]:
    """Disjoint cycles, each in the direction of the data. Without their names there is no cycle left."""
    remaining = dict(edges)
    while True:
        try:
            TopologicalSorter(remaining).prepare()
            return
        except CycleError as error:
            cycle: list[str] = error.args[1][:-1]
            yield cycle
            for name in cycle:
                del remaining[name]
