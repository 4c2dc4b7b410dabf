"""What filled the parts of an event query for one of its outputs, and the conditions and times that allowed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mmqjp.explain.operands import Condition, Operand
from mmqjp.explain.reasons import Reason
from mmqjp.explain.retrace.event import (
    Event,
    Filtered,
    Folded,
    Followed,
    Given,
    Plain,
    Selected,
    Source,
    Together,
    given_parts,
)
from mmqjp.explain.retrace.said import conjuncts, said, stream_text
from mmqjp.explain.retrace.trial import is_of_right, pair_scope, run_scope
from mmqjp.explain.retrace.values import Scope
from xscl.algebra.events import Condition as Tested
from xscl.algebra.events import Filter, Stream

MOST_EVENTS = 5
"""Of the events of a run or group, so many are told."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An event: its attributes, its interval in microseconds, and the places of its documents among those of the
    output. If another query published it, `output` is the id of the output that it is, and `query` the query."""

    attributes: tuple[tuple[str, Plain], ...]
    t0: int
    t1: int
    documents: tuple[int, ...] = ()
    output: str = ""
    query: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a query, and the events that filled it: `count`, of which the last ones are told, and the first."""

    name: str
    count: int
    events: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """How long a part took: DUR, GAP, if it has one, and how long it may take at most; None for any time. In
    microseconds."""

    part: str
    duration: int
    gap: int | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class Filling:
    """What filled the parts of an event query for an output, and how long that took."""

    parts: tuple[Part, ...]
    spans: tuple[Span, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return {
            "parts": [
                {"name": part.name, "count": part.count, "events": [_seen_to_dict(one) for one in part.events]}
                for part in self.parts
            ],
            "spans": [asdict(one) for one in self.spans],
        }

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Filling:
        """Returns what such an object says."""
        return Filling(
            tuple(
                Part(part["name"], part["count"], tuple(map(_seen_from_dict, part["events"])))
                for part in found["parts"]
            ),
            tuple(Span(**one) for one in found["spans"]),
        )


def _seen_to_dict(one: Seen) -> dict[str, Any]:
    return asdict(one) | {"attributes": dict(one.attributes)}


def _seen_from_dict(found: Mapping[str, Any]) -> Seen:
    return Seen(
        **dict(found) | {"attributes": tuple(found["attributes"].items()), "documents": tuple(found["documents"])}
    )


def told(event: Event, documents: Sequence[Source]) -> tuple[Filling, Reason]:
    """Returns what made an event that is an output with these documents, and the conditions that held."""
    return _Telling(documents).told(event)


class _Telling:
    """Tells how an event came about, its inputs first, from left to right."""

    def __init__(self, documents: Sequence[Source]) -> None:
        self._places = places_of(documents)
        self._parts: list[Part] = []
        self._spans: list[Span] = []
        self._conditions: list[Condition] = []
        self._filters: list[Condition] = []

    def told(self, event: Event) -> tuple[Filling, Reason]:
        self._tell(event, "")
        reason = Reason((), tuple(self._conditions), (), tuple(self._filters))
        return Filling(tuple(self._parts), tuple(self._spans)), reason

    def _tell(self, event: Event, operator: str) -> None:
        """Tells an event that an operator takes as its right side; the leftmost one has none."""
        match event.made:
            case Given(stream=stream):
                self._parts.append(self._part(f"{operator} {stream}".lstrip(), [event]))
            case Filtered(by=by, source=source):
                self._tell(source, operator)
                self._hold(by, by.condition, Scope(source.values, source.t1 - source.t0))
            case Selected(source=source):
                self._tell(source, operator)
            case Followed(by=by, left=left, right=right):
                self._tell(left, operator)
                self._tell(right, "NEXT")
                self._hold(by, by.condition, pair_scope(left, right))
                span = right.t1 - left.t0, right.t0 - left.t1, by.within
                self._spans.append(Span(f"NEXT {stream_text(by.right)}", *span))
            case Folded():
                self._tell_run(event.made, operator)
            case Together(by=by, window=window):
                name = f"{operator} AGGREGATE of {stream_text(by.source)}".lstrip()
                self._parts.append(self._part(name, window))
                if by.over is not None:
                    self._spans.append(Span(name, event.t1 - window[0].t1, None, by.over))

    def _tell_run(self, run: Folded, operator: str) -> None:
        self._tell(run.first, operator)
        name = f"FOLD {stream_text(run.by.right)}"
        self._parts.append(self._part(name, [step for step, _ in run.steps]))
        before = Folded(run.by, run.first, run.steps[:-1])
        for condition in (run.by.chooses, run.by.continues):
            self._hold(run.by, condition, run_scope(before, run.latest))
        gap = run.latest.t0 - before.latest.t1
        self._spans.append(Span(name, run.latest.t1 - run.first.t0, gap, run.by.within))

    def _hold(self, operator: Stream, condition: Tested, scope: Scope) -> None:
        for one in conjuncts(condition):
            filters = isinstance(operator, Filter) or is_of_right(one)
            (self._filters if filters else self._conditions).append(shown(operator, one, scope))

    def _part(self, name: str, events: Sequence[Event]) -> Part:
        return part_of(name, events, self._places)


def places_of(documents: Sequence[Source]) -> dict[Source, int]:
    """Returns the first place of each of the documents of an output."""
    return {source: place for place, source in reversed([*enumerate(documents)])}


def part_of(name: str, events: Sequence[Event], places: Mapping[Source, int]) -> Part:
    """Returns a part with the events that filled it."""
    shown = list(events) if len(events) <= MOST_EVENTS else [events[0], *events[1 - MOST_EVENTS :]]
    return Part(name, len(events), tuple(_seen(event, places) for event in shown))


def _seen(event: Event, places: Mapping[Source, int]) -> Seen:
    behind = {source: None for given in given_parts(event) for source in given.behind}
    own = tuple(places[source] for source in behind if source in places)
    seen = Seen(tuple(event.values.items()), event.t0, event.t1, own)
    if isinstance(event.made, Given) and event.made.output:
        return replace(seen, output=event.made.source[0], query=event.made.stream)
    return seen


def shown(operator: Stream, condition: Tested, scope: Scope) -> Condition:
    """Returns a condition of an operator that held as reasons have it: texts stand in it like those of nodes."""
    parts = [
        part
        if isinstance(part, str)
        else Operand(part.name, part.value)
        if isinstance(part.value, str)
        else f"{part.name} {part.text}"
        for part in said(condition, operator, scope)
    ]
    return Condition(tuple(parts))
