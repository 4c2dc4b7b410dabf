"""Warns of correct queries that look like mistakes: each warning has its place in the script and a hint."""

from __future__ import annotations

from collections.abc import Iterator

from feeds.entries import EntryForm
from mmqjp.explain.condition_warnings import condition_warnings
from mmqjp.explain.event_warnings import event_warnings
from mmqjp.explain.item_warnings import item_warnings
from mmqjp.explain.stream_warnings import stream_warnings
from xscl import Query, Script, XsclError
from xscl.parser import located_queries
from xscl.problems import Lines, Problem


def warnings_of(text: str, script: Script, feeds: EntryForm | None) -> list[XsclError]:
    """The warnings for a script and its text, in the order of their places. `feeds` says what entries of feeds are as
    documents; None if documents are something else."""
    published = script.published()

    def problems(query: Query) -> Iterator[Problem]:
        yield from stream_warnings(query, published, feeds=feeds is not None)
        told = list(condition_warnings(query))
        yield from told
        if feeds == "item":
            places = [problem.span for problem in told]
            yield from (problem for problem in item_warnings(query, published) if problem.span not in places)

    warned: list[int] = []
    right: set[object] = set()
    for number, query in enumerate(script.queries):
        parts = query.shared_parts()
        if parts in right:
            continue
        if any(True for _ in problems(query)):
            warned.append(number)
        else:
            right.add(parts)
    if not warned and not script.has_events:
        return []
    lines = Lines(text)
    located = located_queries(text, warned) if warned else ()
    found = [XsclError(problem, lines) for query in located for problem in problems(query)]
    if script.has_events:
        of_events = event_warnings(text, script, feeds=feeds is not None, items=feeds == "item")
        found += [XsclError(problem, lines) for problem in of_events]
    return sorted(found, key=lambda warning: (warning.span.start, warning.span.end))
