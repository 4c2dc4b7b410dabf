"""The search for matches of a PATTERN, step by step: what its partial matches are, and which are alike.

A partial match has the events of the first variables, in their order. Each step adds an event, to the last variable, if
that takes several, or to the next. Partial matches that are alike in all that matters later are followed once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial as bound

from feeds.dates import iso_utc
from mmqjp.explain.funnel_stage import Kind, Stage
from mmqjp.explain.pattern_text import component_text
from mmqjp.explain.retrace.event import Event
from mmqjp.explain.retrace.patterns.asked import Asked, Match, conjunct_of
from mmqjp.explain.retrace.patterns.sought import (
    EQUAL,
    FIRST_CONDITION,
    FOUND,
    TOGETHER,
    WINDOW,
    Furthest,
    as_match,
    condition_stage,
)
from mmqjp.explain.retrace.patterns.whole import GivenEvents, Whole
from mmqjp.explain.retrace.said import value_text
from mmqjp.explain.retrace.stages import event_text
from mmqjp.explain.terms import duration_text, window_text
from xpath_stage.binder import Take
from xscl.algebra.event_sequences import Conjunct, Pattern, Variable


@dataclass(frozen=True, slots=True)
class Partial:
    """A partial match: the events of its variables, and the documents that it is made of."""

    bound: tuple[tuple[Event, ...], ...]
    covered: frozenset[int]

    @property
    def first(self) -> Event:
        """The first event of the first variable."""
        return self.bound[0][0]

    @property
    def last(self) -> Event:
        """The event that was added last."""
        return self.bound[-1][-1]

    def events(self) -> Iterator[Event]:
        """Yields all events."""
        for some in self.bound:
            yield from some

    def span_with(self, one: Event) -> int:
        """Returns how long it takes with an event more."""
        every = [*self.events(), one]
        return max(other.t1 for other in every) - min(other.t0 for other in every)

    def with_event(self, one: Event, at: int, covers: frozenset[int]) -> Partial:
        """Returns it with an event more, which is of the variable `at`."""
        own = (*self.bound[at], one) if at < len(self.bound) else (one,)
        return Partial((*self.bound[:at], own), self.covered | covers)


class Search(ABC):
    """Looks for a match that is made of some documents, numbered from 0; `covers` returns those of an event."""

    def __init__(
        self,
        pattern: Pattern,
        given: GivenEvents,
        covers: Callable[[Event], frozenset[int]],
        documents: int,
        take: Take,
    ) -> None:
        self.pattern, self.given, self.covers, self.take = pattern, given, covers, take
        self.wanted = frozenset(range(documents))
        self.numbers = [at for at, one in enumerate(pattern.variables) if not one.negated]
        """The numbers of the variables that take events."""
        self.positive = [pattern.variables[at] for at in self.numbers]
        self.names = [one.name for one in self.positive]
        self.whole = Whole(pattern, given, take)
        self.asked = [(conjunct_of(pattern, one), one) for one in pattern.conjuncts]
        self.furthest = Furthest()
        self._known = set[Hashable]()
        self._lasting = [asked for asked, one in self.asked if not _is_done(asked, one)]
        self._lasting += [*self.whole.having, *(asked for kills in self.whole.kills.values() for asked in kills)]
        self.named = [[one for one in self.events(at) if covers(one)] for at in range(len(self.positive))]
        """Of each variable the events of its stream that are made of the documents."""
        self._at_once = max((len(covers(one)) for some in self.named for one in some), default=1)

    def variable(self, at: int) -> Variable:
        """Returns the variable at a place of those that take events."""
        return self.positive[at]

    def events(self, at: int) -> Sequence[Event]:
        """Returns the events of a variable's stream in the order of t1."""
        return self.given(self.variable(at).source.stream)

    def match(self, partial: Partial) -> Match:
        """Returns a partial match by the names of its variables."""
        return as_match(self.names, partial.bound)

    def run(self) -> Match | None:
        """Returns a match of all documents; None if there is none. Without documents, all are looked for."""
        waiting = list(self.begins())
        while waiting:
            partial = waiting.pop()
            if self._is_known(partial):
                continue
            self.furthest.comes(partial.first, len(partial.bound))
            if len(partial.bound) == len(self.positive) and self._is_whole(partial) and self.wanted:
                return self.match(partial)
            waiting += self.steps(partial)
        return None

    @abstractmethod
    def begins(self) -> Iterator[Partial]:
        """Yields the partial matches of one event."""

    @abstractmethod
    def steps(self, partial: Partial) -> Iterator[Partial]:
        """Yields a partial match with one event more."""

    @abstractmethod
    def ends(self, partial: Partial) -> Iterator[tuple[Asked, int | None]]:
        """Yields what is asked of a partial match when its last variable is complete."""

    @abstractmethod
    def likeness(self, partial: Partial) -> Hashable:
        """Returns what else matters of a partial match than what conditions ask."""

    def _is_known(self, partial: Partial) -> bool:
        """Whether it is like one that was followed before."""
        match = self.match(partial)
        self.take(1 + sum(map(len, partial.bound)) // 8)
        key = (
            len(partial.bound),
            id(partial.first),
            id(partial.last),
            partial.covered,
            self.likeness(partial),
            tuple(one for asked in self._lasting for one in asked.signature(match)),
        )
        if key in self._known:
            return True
        self._known.add(key)
        return False

    def _is_whole(self, partial: Partial) -> bool:
        """Whether it is a match of all documents. Keeps what it fails."""
        match, covered, variables = self.match(partial), len(partial.covered), len(partial.bound)
        span = partial.span_with(partial.last)
        for place, (asked, new) in enumerate(self.ends(partial)):
            self.take(1)
            if (scope := asked.failing(match, new)) is not None:
                rank = covered, variables, FIRST_CONDITION + place, -span
                self.furthest.fails(rank, bound(condition_stage, self.pattern, asked, scope, None), ())
                return False
        self.furthest.comes(partial.first, variables, TOGETHER)
        if partial.covered != self.wanted:
            missing = len(self.wanted - partial.covered)
            what = f"no match has all of them: {missing} of {len(self.wanted)} are in none with the others"
            rank = covered, variables, TOGETHER, -span
            self.furthest.fails(rank, lambda: Stage("together", "SEQ", 0, "events").told(what), ())
            return False
        if (fault := self.whole.fault(match)) is not None:
            self.furthest.fails((covered, variables, fault.test, -span), lambda: fault.stage, fault.near)
            self.furthest.comes(partial.first, variables, fault.test)
            return False
        self.furthest.comes(partial.first, variables, FOUND)
        return True

    # ------------------------------------------------------------ tests of a further event

    def rank(self, partial: Partial | None, one: Event, at: int, test: int) -> tuple[int, int, int, int]:
        """Returns how far a partial match comes that fails a test with an event of a variable."""
        if partial is None:
            return len(self.covers(one)), at, test, one.t0 - one.t1
        return len(partial.covered | self.covers(one)), at, test, -partial.span_with(one)

    def is_alike(self, partial: Partial | None, one: Event, at: int) -> bool:
        """Tests whether an event is equal to the first in all keys, and none of these is NULL."""
        first = one if partial is None else partial.first
        if self.whole.is_alike(one, first):
            return True
        self.furthest.fails(self.rank(partial, one, at, EQUAL), lambda: self._unequal(one, first), ())
        return False

    def is_near(self, partial: Partial | None, one: Event, at: int) -> bool:
        """Tests whether a partial match and an event are within the window."""
        within = self.pattern.within
        span = one.t1 - one.t0 if partial is None else partial.span_with(one)
        if within is None or span <= within:
            return True

        def stage() -> Stage:
            what = f"it takes {duration_text(span)}, and at most {window_text(within)} is allowed"
            return Stage("window", window_text(within), 0, "events").told(what)

        self.furthest.fails(self.rank(partial, one, at, WINDOW), stage, ())
        return False

    def holds(
        self, partial: Partial | None, one: Event, at: int, tests: Iterator[tuple[Asked, Match, int | None]]
    ) -> bool:
        """Tests conditions, each of a match, for an event that may be the next."""
        for place, (asked, match, new) in enumerate(tests):
            self.take(1)
            if (scope := asked.failing(match, new)) is not None:
                rank = self.rank(partial, one, at, FIRST_CONDITION + place)
                self.furthest.fails(rank, bound(condition_stage, self.pattern, asked, scope, one), ())
                return False
        return True

    def _unequal(self, one: Event, first: Event) -> Stage:
        key = next(key for key in self.pattern.keys if one.values[key] is None or one.values[key] != first.values[key])
        value = one.values[key]
        what = f"{key} is {value_text(value)}, of {event_text(one)}"
        if value is not None:
            what = f"{what}, and {value_text(first.values[key])} of the first"
        return Stage("equal", f"[{', '.join(self.pattern.keys)}]", 0, "events").told(what)

    # ------------------------------------------------------------ what cannot have all documents

    def has_room(self, partial: Partial) -> bool:
        """Returns whether the other variables may take the documents that a partial match has not."""
        missing = len(self.wanted - partial.covered)
        rest = self.positive[len(partial.bound) :]
        if self.positive[len(partial.bound) - 1].kleene or any(one.kleene for one in rest):
            return True
        return missing <= len(rest) * self._at_once

    def missing_stage(self, at: int, kind: Kind = "order") -> Stage:
        """Returns the stage of a variable for which no event comes behind those of a partial match."""
        return Stage(kind, component_text(self.variable(at)), 0, "events")


def came_text(one: Event) -> str:
    """Returns that an event came, and when."""
    return f"{event_text(one)} came before, at {iso_utc(one.t1)}"


def _is_done(asked: Asked, one: Conjunct) -> bool:
    """Whether a conjunct, once it was tested, matters no more for its variable."""
    return (one.phase == "first" and len(asked.variables) == 1) or (one.phase == "each" and asked.is_of_steps)
