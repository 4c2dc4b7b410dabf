"""Checks the names that queries PUBLISH: no stream is made from itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter

from xscl.problems import Problem
from xscl.scope import blocks, name_span
from xscl.syntax import Query, Script


def check_publishing(script: Script, in_place: Callable[[int], Query]) -> Iterator[Problem]:
    """The problems of the names that a script's queries PUBLISH, one for each cycle. `in_place` parses the query of a
    number, counted from 0, again: what follows a name in the script's may be that of another query."""
    publishers: dict[str, list[Query]] = {}
    first_of: dict[str, int] = {}
    for number, query in enumerate(script.queries):
        if query.publish is not None:
            publishers.setdefault(query.publish, []).append(query)
            first_of.setdefault(query.publish, number)
    if publishers.keys().isdisjoint(block.stream for query in script.queries for block in blocks(query.source)):
        return  # nothing is made from what a query of the script makes
    edges = {
        name: sorted(set().union(*map(_streams, queries)) & publishers.keys()) for name, queries in publishers.items()
    }
    order = list(publishers)
    for cycle in _cycles(edges):
        first = min(cycle, key=order.index)
        at = cycle.index(first)
        path = " -> ".join([*cycle[at:], *cycle[:at], first])
        hint = "a stream cannot be made from itself; read another stream, or PUBLISH under another name"
        yield Problem(f"a cycle of PUBLISHed names: {path}", name_span(in_place(first_of[first])), hint)


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


def _streams(query: Query) -> set[str]:
    return {block.stream for block in blocks(query.source)}
