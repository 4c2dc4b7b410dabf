"""The algorithm that SASE+ is compared with in its paper: one run at a time, by backtracking.

A run goes through the events behind its first one. Where it may go on in several ways, it goes on in one of them, and
the others wait on a stack, to be tried from that event on: depth first, event by event, over and over. It tells every
match as the list of its events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pattern_stage.columns import Columns, whole
from pattern_stage.definition import inputs as inputs_of
from pattern_stage.definition import pattern_template
from pattern_stage.index import StaticIndex
from pattern_stage.pattern.program import CompiledEdge, EventSlots, PatternProgram
from pattern_stage.pattern.rows import Arrival, EventRole, RoleEvents
from pattern_stage.values import Texts
from xscl.algebra.events import Pattern

Found = list[tuple[int, int]]
"""The events of a match: of each its number, and its variable."""

_Path = tuple[int, int, Any]
"""The last event of a run, its variable, and the path before it."""


class Backtracking:
    """A pattern without SET, negation, HAVING and output modes, by backtracking. It has the strategies next, partition
    and any, and its events do not overlap."""

    def __init__(self, pattern: Pattern, texts: Texts) -> None:
        assert pattern.within is not None and not pattern.kills and not pattern.apart and not pattern.maximal
        self._window = pattern.within
        numbered = pattern_template(pattern, lambda leaf: leaf)
        assert isinstance(numbered, Pattern)
        self._pattern = pattern = numbered
        slots = EventSlots()
        self._program = program = PatternProgram(pattern, texts, slots)
        self._schemas = [schema for _, schema in inputs_of(pattern)]
        self._roles: list[EventRole] = []
        self._begins = [self._role(at, edge, texts) for at, edge in enumerate(program.begins)]
        self._takes = [self._role(at, edge, texts) for at, edge in enumerate(program.takes)]
        self._arrivals = RoleEvents(self._schemas, pattern.keys, self._roles, texts, all_events=True)
        self._arrivals.compute(slots.values)

    def _role(self, variable: int, edge: CompiledEdge, texts: Texts) -> int:
        stream = self._program.streams[variable]
        made = EventRole(stream, self._schemas[stream], edge.static, texts, StaticIndex)
        self._roles.append(made)
        return len(self._roles) - 1

    def run(self, inputs: Sequence[Columns]) -> Iterator[Found]:
        """Yields all matches of a stream, which is there as a whole."""
        by_key: dict[Any, list[Arrival]] = {}
        for _, arrivals in self._arrivals.epochs([whole(events) for events in inputs], 1, ()):
            for one in arrivals:
                if one.key is not None:
                    by_key.setdefault(one.key, []).append(one)
        for events in by_key.values():
            for first, one in enumerate(events):
                if one.masks[self._begins[0]]:
                    yield from self._from(events, first)

    def _from(self, events: Sequence[Arrival], first: int) -> Iterator[Found]:
        """Yields the matches that begin with an event."""
        program, strategy = self._program, self._pattern.strategy
        begin = events[first].event
        stack: list[tuple[int, Any, int, _Path]] = [(0, program.begin[0]((), begin), first, (begin[2], 0, None))]
        while stack:
            state, registers, at, path = stack.pop()
            if state == program.last and _holds(program.completes[state], registers, ()):
                yield _listed(path)
            for place in range(at + 1, len(events)):
                one = events[place]
                event = one.event
                if event[1] - begin[0] > self._window:
                    break
                takes = (
                    program.kleene[state]
                    and one.masks[self._takes[state]]
                    and _holds(program.takes[state], registers, event)
                )
                begins = (
                    state < program.last
                    and one.masks[self._begins[state + 1]]
                    and _holds(program.completes[state], registers, ())
                    and _holds(program.begins[state + 1], registers, event)
                )
                if begins:
                    moved = program.begin[state + 1](registers, event)
                    stack.append((state + 1, moved, place, (event[2], state + 1, path)))
                if takes:
                    stack.append((state, program.take[state](registers, event), place, (event[2], state, path)))
                if strategy == "partition" or (strategy == "next" and (takes if program.kleene[state] else begins)):
                    break


def _listed(path: _Path) -> Found:
    found = []
    rest: Any = path
    while rest is not None:
        number, variable, rest = rest
        found.append((number, variable))
    return found[::-1]


def _holds(edge: CompiledEdge, registers: tuple[Any, ...], event: tuple[Any, ...]) -> bool:
    return edge.holds is None or edge.holds(registers, event)


def matches(pattern: Pattern, texts: Texts, inputs: Mapping[str, Columns]) -> Iterator[Found]:
    """Yields the matches of a pattern in streams."""
    return Backtracking(pattern, texts).run([inputs[name] for name, _ in inputs_of(pattern)])
