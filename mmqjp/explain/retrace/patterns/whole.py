"""What is asked of the whole match of a PATTERN: HAVING, that nothing came that must not, and that none is better."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from feeds.dates import iso_utc
from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.pattern_text import component_text
from mmqjp.explain.retrace.event import Event, Given, before
from mmqjp.explain.retrace.patterns.asked import Asked, Match, conjunct_of, having_of
from mmqjp.explain.retrace.patterns.sought import ABSENT, HAVING, condition_stage
from mmqjp.explain.retrace.stages import event_text
from xpath_stage.binder import Take
from xscl.algebra.event_sequences import NearPattern, Pattern

GivenEvents = Callable[[str], Sequence[Event]]
"""Returns the events of a stream in the order of t1."""


class Fault(NamedTuple):
    """What is wrong with a whole match: which test, the stage, and the events in the way."""

    test: int
    stage: Stage
    near: tuple[Event, ...]


class Whole:
    """Tests whole matches of a pattern."""

    def __init__(self, pattern: Pattern, given: GivenEvents, take: Take) -> None:
        self._pattern, self._given, self._take = pattern, given, take
        self._conjuncts = [conjunct_of(pattern, one) for one in pattern.conjuncts]
        self.having = having_of(pattern)
        self.kills: Mapping[int, list[Asked]] = {
            at: [conjunct_of(pattern, kill) for kill in pattern.kills if kill.variable == at]
            for at, one in enumerate(pattern.variables)
            if one.negated
        }
        self._positive = [one for one in pattern.variables if not one.negated]

    def fault(self, match: Match) -> Fault | None:
        """Returns what is wrong with a match for which all conditions of WHERE hold: HAVING, or an event that came."""
        for asked in self.having:
            self._take(1)
            if (scope := asked.failing(match)) is not None:
                stage = condition_stage(self._pattern, asked, scope, None, "HAVING ")
                return Fault(HAVING, stage, ())
        for at in self.kills:
            if (killing := next(self._killing(match, at), None)) is not None:
                what = f"{event_text(killing)} came, at {iso_utc(killing.t1)}"
                stage = Stage("absent", component_text(self._pattern.variables[at]), 0, "events").told(what)
                return Fault(ABSENT, stage, (killing,))
        return None

    def _killing(self, match: Match, at: int) -> Iterator[Event]:
        """Yields the events of a negated variable that a match must not have."""
        variable = self._pattern.variables[at]
        groups = [[one for of in self._of_group(group) for one in match[of]] for group in range(self._pattern.groups)]
        every = [one for some in groups for one in some]
        t0, t1, first = min(one.t0 for one in every), max(one.t1 for one in every), every[0]
        for one in self._given(variable.source.stream):
            self._take(1)
            behind = groups[variable.group - 1] if variable.group else ()
            ahead = groups[variable.group] if variable.group < len(groups) else ()
            if not (all(before(other, one) for other in behind) and all(before(one, other) for other in ahead)):
                continue
            if not behind and not self._fits(one.t0, t1):
                continue
            if not ahead and not self._fits(t0, one.t1):
                continue
            killed = {**match, variable.name: (one,)}
            if self.is_alike(one, first) and all(asked.failing(killed) is None for asked in self.kills[at]):
                yield one

    def _of_group(self, group: int) -> list[str]:
        return [one.name for one in self._positive if one.group == group]

    def _fits(self, t0: int, t1: int) -> bool:
        return self._pattern.within is None or t1 - t0 <= self._pattern.within

    def is_alike(self, one: Event, first: Event) -> bool:
        """Returns whether two events are equal, and not NULL, in all keys."""
        return all(one.values[key] is not None and one.values[key] == first.values[key] for key in self._pattern.keys)

    # ------------------------------------------------------------ EARLIEST MAXIMAL

    def best(self, match: Match) -> tuple[Match, Event | None]:
        """Returns a match that EARLIEST MAXIMAL keeps: that, or one that follows from it, step by step, with the event
        of the last step."""
        last: Event | None = None
        while True:
            better = next(((one, by) for one, by in self._changed(match) if self._is_match(one)), None)
            if better is None:
                return match, last
            match, last = better

    def _changed(self, match: Match) -> Iterator[tuple[Match, Event]]:
        used = {id(one) for events in match.values() for one in events}
        begin = min(_order(one) for events in match.values() for one in events)
        for variable in self._positive:
            events = match[variable.name]
            for one in self._given(variable.source.stream):
                if id(one) in used or _order(one) <= begin:
                    continue
                if _order(one) < _order(events[0]):
                    yield {**match, variable.name: (one, *events[1:])}, one
                if variable.kleene:
                    yield {**match, variable.name: tuple(sorted((*events, one), key=_order))}, one

    def _is_match(self, match: Match) -> bool:
        """Returns whether bindings, of which none is of a strategy, are a match."""
        self._take(1)
        every = [one for events in match.values() for one in events]
        if not self._fits(min(one.t0 for one in every), max(one.t1 for one in every)):
            return False
        if not all(self.is_alike(one, every[0]) for one in every):
            return False
        for events in match.values():
            if not all(before(one, other) for one, other in pairwise(events)):
                return False
        for group in range(1, self._pattern.groups):
            behind = [one for of in self._of_group(group - 1) for one in match[of]]
            ahead = [one for of in self._of_group(group) for one in match[of]]
            if max(one.t1 for one in behind) >= min(one.t0 for one in ahead):
                return False
        self._take(len(self._conjuncts))
        return all(asked.failing(match) is None for asked in self._conjuncts) and self.fault(match) is None


def _order(event: Event) -> tuple[int, tuple[object, ...]]:
    """Orders events by t1, and those of one t1 by what they are of."""
    made = event.made
    assert isinstance(made, Given), "a pattern reads streams"
    return event.t1, (made.stream, made.source, made.nodes)


def known_at(pattern: Pattern | NearPattern, match: Match) -> int:
    """Returns when a match is known."""
    every = [one for events in match.values() for one in events]
    if isinstance(pattern, Pattern) and pattern.is_late and pattern.within is not None:
        return min(one.t0 for one in every) + pattern.within
    return max(one.t1 for one in every)
