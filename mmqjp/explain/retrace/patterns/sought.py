"""What is found of a PATTERN for some documents, and how far the search for its matches came."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.retrace.event import Event
from mmqjp.explain.retrace.patterns.asked import Asked, Match
from mmqjp.explain.retrace.said import condition_text, said, values_text
from mmqjp.explain.retrace.stages import Docs, event_text
from mmqjp.explain.retrace.values import Scope
from xscl.algebra.event_sequences import Pattern

ORDER, EQUAL, WINDOW, FIRST_CONDITION, STRATEGY = 0, 1, 2, 3, 1_000
"""What an event that may be the next one of a partial match is tested for, in this order."""

TOGETHER, HAVING, ABSENT, MAXIMAL, FOUND = 1_000, 1_001, 2_000, 2_001, 2_002
"""What a match is tested for when its last variable is complete: FIRST_CONDITION stands for what is asked of that."""

Rank = tuple[int, int, int, int]
"""How many of the documents are in a partial match, or in the event that fails; how many variables it has; which test
that is; and less the time that both take."""


@dataclass(frozen=True, slots=True)
class Sought:
    """What was found of a pattern: a match of all documents, if there is one; else `stages`, of which the last has
    nothing. `near` are events in the way, `without` the documents that have no event. `found` and `rank` say how far
    the search came. `starts` counts the events at which a match begins, if no documents are given."""

    match: Match | None
    stages: tuple[Stage, ...]
    found: int
    rank: tuple[int, ...] = ()
    near: tuple[Event, ...] = ()
    without: Docs = ()
    starts: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """What a partial match cannot be: with an `event`, if there is one, as the next. `passed` are the stages before."""

    rank: Rank
    stage: Stage
    near: tuple[Event, ...]


class Furthest:
    """Keeps the failure that came furthest, and how far each event came that matches begin with."""

    def __init__(self) -> None:
        self.best: Failure | None = None
        self.reached: dict[tuple[int, int], set[int]] = {}
        """For variables and tests the ids of the first events of which a partial match came so far."""

    def fails(self, rank: Rank, stage: Callable[[], Stage], near: Sequence[Event]) -> None:
        """Keeps a failure, if none came further."""
        if self.may_be_better(rank):
            self.best = Failure(rank, stage(), tuple(near))

    def may_be_better(self, rank: Rank) -> bool:
        """Returns whether no failure came further."""
        return self.best is None or rank > self.best.rank

    def comes(self, first: Event, variables: int, test: int = 0) -> None:
        """Keeps how far a match came that begins with an event."""
        self.reached.setdefault((variables, test), set()).add(id(first))

    def count(self, variables: int, *tests: int) -> int:
        """Returns how many first events came so far as to have so many variables, and to one of these tests."""
        return len(set[int]().union(*(self.reached.get((variables, test), ()) for test in tests or (0,))))


def condition_stage(pattern: Pattern, asked: Asked, scope: Scope, of: Event | None, kind: str = "") -> Stage:
    """Returns the stage of a condition that is false, perhaps for an event."""
    operator = pattern.variables[0].source
    text = values_text(said(asked.said, operator, scope))
    whose = "" if of is None else f", of {event_text(of)}"
    part = f"{kind}{condition_text(asked.said, operator)}"
    return Stage("condition", part, 0, "events").told(f"{text}{whose}")


def covered_by(match: Match, covers: Callable[[Event], frozenset[int]]) -> frozenset[int]:
    """Returns the documents that a match is made of."""
    return frozenset().union(*(covers(one) for events in match.values() for one in events))


def as_match(names: Sequence[str], bound: Sequence[Sequence[Event]]) -> Mapping[str, Sequence[Event]]:
    """Returns the events of variables by their names: of the first ones, if not all have events."""
    return dict(zip(names, bound, strict=False))
