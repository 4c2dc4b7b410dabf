"""Finds the events of a PATTERN's match again, given its output: those for which the pattern's conditions hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmqjp.explain.node_names import Filler
from mmqjp.explain.retrace.event import Event, Source, before, given_parts
from mmqjp.explain.retrace.patterns.asked import Match, conjunct_of, having_of
from mmqjp.explain.retrace.values import Scope, holds
from xpath_stage.binder import Take
from xscl.algebra.event_sequences import NearPattern, Pattern, letters_of
from xscl.algebra.events import Condition


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an output says of its match: the events, their interval, and the documents behind them."""

    fillers: Sequence[Filler]
    t0: int
    documents: frozenset[Source]


class Matcher:
    """Finds matches of a pattern among events; `given` returns those of a stream. `take` is called with steps."""

    def __init__(self, pattern: Pattern | NearPattern, given: Callable[[str], Iterable[Event]], take: Take) -> None:
        self._pattern, self._given, self._take = pattern, given, take
        if isinstance(pattern, Pattern):
            self._variables = {one.name: one for one in pattern.variables if not one.negated}
            self._streams = {name: one.source.stream for name, one in self._variables.items()}
        else:
            self._streams = {one.source.stream: one.source.stream for one in letters_of(pattern.letters)}

    def match(self, wanted: Wanted) -> Match | None:
        """Returns a match with the events that an output has; None if there is none."""
        candidates = [self._candidates(one, wanted) for one in wanted.fillers]
        return next(self._matches(wanted, candidates, {}, 0), None)

    def _candidates(self, filler: Filler, wanted: Wanted) -> list[Event]:
        found = []
        for event in self._given(self._streams.get(filler.variable, "")):
            self._take(1)
            parts = list(given_parts(event))
            roots = {root for part in parts for root in part.roots}
            if event.t0 >= wanted.t0 and roots == set(filler.roots) and _behind([event]) <= wanted.documents:
                found.append(event)
        return found

    def _matches(
        self, wanted: Wanted, candidates: Sequence[Sequence[Event]], bound: dict[str, list[Event]], at: int
    ) -> Iterator[Match]:
        if at == len(candidates):
            if self._is_match(wanted, bound):
                yield {name: tuple(events) for name, events in bound.items() if events}
            return
        variable = wanted.fillers[at].variable
        for event in candidates[at]:
            self._take(1)
            if self._may_follow(event, variable, bound):
                bound.setdefault(variable, []).append(event)
                yield from self._matches(wanted, candidates, bound, at + 1)
                bound[variable].pop()

    def _may_follow(self, event: Event, variable: str, bound: Mapping[str, Sequence[Event]]) -> bool:
        """Whether an event may come to those of a match, each of which begins no later."""
        for other, events in bound.items():
            steps = self._steps(other, variable)
            for one in events:
                if one is event or any(one.values[key] != event.values[key] for key in self._pattern.keys):
                    return False
                if (steps > 0 and not before(one, event)) or (steps < 0 and not before(event, one)):
                    return False
        return True

    def _steps(self, one: str, other: str) -> int:
        """Whether the events of a variable come before later ones of another, or its own (1), behind them (-1), or in
        any order (0)."""
        if isinstance(self._pattern, NearPattern) or one == other:
            return 1
        groups = self._variables[one].group, self._variables[other].group
        return (groups[0] < groups[1]) - (groups[0] > groups[1])

    def _is_match(self, wanted: Wanted, bound: Match) -> bool:
        events = [event for some in bound.values() for event in some]
        if _behind(events) != wanted.documents or min(event.t0 for event in events) != wanted.t0:
            return False
        return all(holds(condition, scope) for condition, scope in tested(self._pattern, bound))


def tested(pattern: Pattern | NearPattern, match: Match) -> Iterator[tuple[Condition, Scope]]:
    """Yields the conditions on the events of a match, those of HAVING last, each with what its names mean, which are
    written as in the statement: for all events that it is about, in their order."""
    if isinstance(pattern, NearPattern):
        return
    for asked in [*(conjunct_of(pattern, one) for one in pattern.conjuncts), *having_of(pattern)]:
        yield from ((asked.said, scope) for scope in asked.scopes(match))


def _behind(events: Iterable[Event]) -> frozenset[Source]:
    return frozenset(source for event in events for part in given_parts(event) for source in part.behind)
