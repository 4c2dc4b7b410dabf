"""What filled the parts of an event statement for an output, and which conditions and times allowed it. The events of a
PATTERN's output are found again by its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mmqjp.explain.automaton import Filler
from mmqjp.explain.retrace.search import GivenEvents, Partial, search_of
from mmqjp.explain.retrace.values import (
    Covering,
    Derived,
    DocumentRef,
    Event,
    MatchBindings,
    Plain,
    SourceEvent,
    ValueScope,
    conjunct_of,
    conjuncts,
    given_parts,
    having_of,
    own_scope,
    said,
    step_scope,
    stream_text,
)
from mmqjp.explain.shown import FilledPart, Filling, Operand, PartDuration, Reason, ShownCondition, ShownEvent
from xpath_stage.binder import Take
from xscl.algebra.events import Aggregate, EventCondition, Filter, Fold, NearPattern, Next, Pattern, Stream

MAX_SHOWN_EVENTS = 5
"""Maximum number of events shown of a run or group."""


def explain_event(event: Event, documents: Sequence[DocumentRef]) -> tuple[Filling, Reason]:
    telling = _Telling(source_places(documents))
    telling.tell(event, "")
    reason = Reason((), tuple(telling.conditions), (), tuple(telling.filters))
    return Filling(tuple(telling.parts), tuple(telling.spans)), reason


class _Telling:
    def __init__(self, places: Mapping[DocumentRef, int]) -> None:
        self._places = places
        self.parts: list[FilledPart] = []
        self.spans: list[PartDuration] = []
        self.conditions: list[ShownCondition] = []
        self.filters: list[ShownCondition] = []

    def tell(self, event: Event, operator: str) -> None:
        match event.made:
            case SourceEvent(stream=stream):
                self._fill(f"{operator} {stream}".lstrip(), [event])
            case Derived(by=Next() | Fold() as by, inputs=(first, *rest)):
                self._tell_sequence(by, first, rest, event.made.steps, operator)
            case Derived(by=Aggregate() as by, inputs=window):
                name = f"{operator} AGGREGATE of {stream_text(by.source)}".lstrip()
                self._fill(name, window)
                if by.over is not None:
                    self.spans.append(PartDuration(name, event.t1 - window[0].t1, None, by.over))
            case Derived(inputs=(source,)):
                self.tell(source, operator)
                self._tell_filter(event)

    def _tell_sequence(
        self, by: Next | Fold, first: Event, rest: Sequence[Event], steps: Sequence[Mapping[str, Plain]], operator: str
    ) -> None:
        """Describes the last step of a run; that of NEXT is its only one."""
        name = f"{type(by).__name__.upper()} {stream_text(by.right)}"
        self.tell(first, operator)
        if isinstance(by, Next):
            self.tell(rest[-1], "NEXT")
        else:
            self._fill(name, rest)
            self._tell_filter(rest[-1])
        latest, values = ([first, *rest][-2], [first.values, *steps][len(rest) - 1])
        scope = step_scope(first, latest, rest[-1], values)
        for condition in (by.condition,) if isinstance(by, Next) else (by.chooses, by.continues):
            self.conditions += (shown(by, one, scope) for one in conjuncts(condition))
        self.spans.append(PartDuration(name, rest[-1].t1 - first.t0, rest[-1].t0 - latest.t1, by.within))

    def _tell_filter(self, event: Event) -> None:
        match event.made:
            case Derived(by=Filter() as by, inputs=(source,)):
                self.filters += (shown(by, one, own_scope(source)) for one in conjuncts(by.condition))

    def _fill(self, name: str, events: Sequence[Event]) -> None:
        self.parts.append(build_part(name, events, self._places))


def source_places(documents: Sequence[DocumentRef]) -> dict[DocumentRef, int]:
    return {source: place for place, source in reversed([*enumerate(documents)])}


def build_part(name: str, events: Sequence[Event], places: Mapping[DocumentRef, int]) -> FilledPart:
    shown = list(events) if len(events) <= MAX_SHOWN_EVENTS else [events[0], *events[1 - MAX_SHOWN_EVENTS :]]
    return FilledPart(name, len(events), tuple(_seen(event, places) for event in shown))


def _seen(event: Event, places: Mapping[DocumentRef, int]) -> ShownEvent:
    behind = {source: None for given in given_parts(event) for source in given.behind}
    own = tuple(places[source] for source in behind if source in places)
    seen = ShownEvent(tuple(event.values.items()), event.t0, event.t1, own)
    while isinstance(event.made, Derived) and isinstance(event.made.by, Filter):
        (event,) = event.made.inputs
    if isinstance(event.made, SourceEvent) and event.made.output:
        return replace(seen, output=event.made.source[0], query=event.made.stream)
    return seen


def shown(operator: Stream, condition: EventCondition, scope: ValueScope) -> ShownCondition:
    """Returns a condition that held as reasons show it, with texts like those of nodes."""
    parts = [
        part
        if isinstance(part, str)
        else Operand(part.name, part.value)
        if isinstance(part.value, str)
        else f"{part.name} {part.text}"
        for part in said(condition, operator, scope)
    ]
    return ShownCondition(tuple(parts))


@dataclass(frozen=True, slots=True)
class OutputMatch:
    """A match as its output shows it: the events, their interval, and the documents behind them."""

    fillers: Sequence[Filler]
    t0: int
    documents: frozenset[DocumentRef]


def output_match(
    pattern: Pattern | NearPattern, given: GivenEvents, wanted: OutputMatch, take: Take
) -> MatchBindings | None:
    """Returns a match with the events in an output; None if there is none. `take` is called with the steps done."""
    documents = sorted(wanted.documents)
    slots = {(one.variable, one.place): set(one.roots) for one in wanted.fillers}

    def own(name: str) -> list[Event]:
        return [one for one in given(name) if one.t0 >= wanted.t0 and _behind([one]) <= wanted.documents]

    def fits(partial: Partial, one: Event, to: int) -> bool:
        name = search.name(one, to)
        place = len(search.match(partial).get(name, ()))
        return slots.get((name, place)) == {root for part in given_parts(one) for root in part.roots}

    if isinstance(pattern, Pattern):  # what it was chosen from is perhaps not kept
        pattern = replace(pattern, strategy="any", maximal=False)
    search = search_of(pattern, own, Covering(documents).of, range(len(documents)), take)
    search.fits, search.kills = fits, {}
    for partial in search.results():
        events = list(partial.events())
        if len(events) == len(slots) and min(one.t0 for one in events) == wanted.t0:
            return search.match(partial)
    return None


def tested(pattern: Pattern | NearPattern, match: MatchBindings) -> Iterator[tuple[EventCondition, ValueScope]]:
    """Yields the conditions on a match, HAVING last, with the values of their names, for each event in order."""
    if isinstance(pattern, Pattern):
        for asked in [*(conjunct_of(pattern, one) for one in pattern.conjuncts), *having_of(pattern)]:
            yield from ((asked.said, scope) for scope in asked.scopes(match))


def known_at(pattern: Pattern | NearPattern, match: MatchBindings) -> int:
    every = [one for events in match.values() for one in events]
    if isinstance(pattern, Pattern) and pattern.is_late and pattern.within is not None:
        return min(one.t0 for one in every) + pattern.within
    return max(one.t1 for one in every)


def _behind(events: Iterable[Event]) -> frozenset[DocumentRef]:
    return frozenset(source for event in events for part in given_parts(event) for source in part.behind)
