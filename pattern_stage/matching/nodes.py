"""The events that runs are made of, and how runs share them: immutable nodes with predecessors.

A node is an event as one variable, with all runs that led to it and remember the same. What they were is kept as
segments of lists of entries, so that a node costs no more than the lists that it was made of, whatever the number of
runs. The paths of a node are runs: they are enumerated only when a match is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

EVERY = -1
"""The set of all rows."""

Event = tuple[Any, ...]
"""An event: t0, t1, the number of its part, and values."""


class Node:
    """An event as a variable, and the runs before it."""

    __slots__ = ("component", "event", "oldest", "roots", "segments", "start")

    def __init__(self, event: Event, component: int) -> None:
        self.event, self.component = event, component
        self.segments: list[Segment] = []
        self.roots: list[tuple[int, int]] = []
        """If runs begin with this event: their rows, each with a time that matches have to end after."""
        self.start = self.oldest = event[0]
        """Between which times the runs that lead here begin, or a little more."""


class Entry(NamedTuple):
    """Runs that remember the same and end with one node."""

    t1: int
    node: Node
    rows: int
    start: int
    top: int
    """The greatest start of this entry and of those before it in its list; or more."""
    reach: int
    """The rows of all of these; or more."""
    oldest: int


Segment = tuple[list[Entry], int, int, int]
"""A list of entries, from where to where, and the rows that went on from there."""


def paths(node: Node, rows: int, low: int, high: int, end: int) -> Iterator[tuple[list[Node], int]]:
    """Yields the runs that end with a node and begin between `low` and `high`: their nodes, the last one first, and
    their rows. `end` is the t1 of the match. The list is another's as soon as the next one is asked for."""
    path: list[Node] = []
    stack = [(node, rows, 0)]
    while stack:
        node, rows, depth = stack.pop()
        del path[depth:]
        while True:
            path.append(node)
            if node.roots and low <= node.event[0] <= high:
                for bound, of in node.roots:
                    if (held := rows & of) and bound < end:
                        yield path, held
            depth += 1
            if len(node.segments) == 1:
                entries, begin, stop, of = node.segments[0]
                if stop - begin == 1:  # as most are: there is no choice
                    one = entries[begin]
                    rows &= of & one.rows
                    if not rows or one.start < low or one.oldest > high:
                        break
                    node = one.node
                    continue
            for entries, begin, stop, of in node.segments:
                if here := rows & of:
                    for at in range(begin, stop):
                        one = entries[at]
                        if one.start >= low and one.oldest <= high and (held := here & one.rows):
                            stack.append((one.node, held, depth))
            break
