"""What is found of a stream of events, and the stages on the way there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.retrace.event import Event, Given
from mmqjp.explain.retrace.said import condition_text, said, value_text, values_text
from mmqjp.explain.retrace.values import Scope, holds
from xscl.algebra.events import Aggregate, Condition, Events, Filter, Fold, Next, Select, Stream, Union

Docs = tuple[int, ...]
"""Documents by their numbers, ascending."""

SHOWN = 3
"""So many attributes of an event are shown."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found of a stream: its `events`, and the `stages`, of which the last has nothing if there is no event.

    `found` counts the documents with an event, and `rank` says how far these came: how high the operator that nothing
    passes is, and to which of its stages. `near` are events that stand in the way, and `without` documents that have no
    event.
    """

    events: Sequence[Event]
    stages: tuple[Stage, ...]
    found: int
    rank: tuple[int, ...]
    near: tuple[Event, ...] = ()
    without: Docs = ()

    def with_events(self, events: Sequence[Event]) -> Looked:
        """Returns the same with other events."""
        return replace(self, events=events)


class Stages:
    """The stages of an operator, behind those of its inputs."""

    def __init__(self, source: Looked, height: int) -> None:
        self.source, self._height = source, height
        self._stages = list(source.stages)

    @property
    def _own(self) -> int:
        return len(self._stages) - len(self.source.stages)

    def add(self, stage: Stage) -> int:
        """Adds a stage; returns how much gets past it."""
        self._stages.append(stage)
        return stage.found

    def failed(self, message: str = "", hint: str = "", near: Sequence[Event] = (), part: int = 0) -> Looked:
        """Returns what was found if nothing gets past the last stage, which may have said why. `part` says how far it
        came inside of it."""
        if message:
            self._stages[-1] = self._stages[-1].told(message, hint)
        rank = self._height, self._own, part
        return Looked([], tuple(self._stages), self.source.found, rank, tuple(near))

    def filter(
        self, condition: Condition, operator: Stream, events: Sequence[Event], scope: Callable[[Event], Scope]
    ) -> list[Event]:
        """Adds a condition on single events, of which there is one at least, and returns those that pass it."""
        passed = [one for one in events if holds(condition, scope(one))]
        stage = Stage("filtered", condition_text(condition, operator), len(passed), "events")
        if not passed:
            more = f", of the last of {len(events):,} events" if len(events) > 1 else ""
            stage = stage.told(f"{values_text(said(condition, operator, scope(events[-1])))}{more}")
        self.add(stage)
        return passed

    def done(self, events: Sequence[Event]) -> Looked:
        """Returns what was found if something gets past all stages."""
        return Looked(events, tuple(self._stages), self.source.found, (self._height, self._own))


def both(left: Looked, right: Looked) -> Looked:
    """Returns what was found of two inputs: no events if there are none of either."""
    found = left.found + right.found
    for side in (left, right):
        if not side.events:
            return replace(side, found=found)
    return Looked([], left.stages + right.stages, found, ())


def furthest(ways: Iterable[Looked]) -> Looked:
    """Returns that of several which has events, else the one that came furthest: the first of equal ones."""
    return max(ways, key=lambda one: (bool(one.events), one.found, one.rank))


def height(stream: Stream) -> int:
    """Returns how many operators lie on one another."""
    match stream:
        case Events():
            return 0
        case Select(source=source) | Filter(source=source) | Aggregate(source=source):
            return 1 + height(source)
        case Union(left=left, right=right) | Next(left=left, right=right) | Fold(left=left, right=right):
            return 1 + max(height(left), height(right))


def event_text(event: Event) -> str:
    """Returns an event in a few words: `Release (project "tarbox", version "0.9.4")`."""
    one = event
    while not isinstance(one.made, Given) and len(one.parts) == 1:
        (one,) = one.parts
    name = one.made.stream if isinstance(one.made, Given) else "the event"
    values = ", ".join(f"{name} {value_text(value)}" for name, value in list(event.values.items())[:SHOWN])
    return f"{name} ({values})" if values else name
