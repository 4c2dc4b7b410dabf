"""Retraces NEXT, FOLD and other event operators over events of documents. For an output, says which events filled which
part of the query and which conditions and times allowed it. For documents without an output, evaluates the operators
bottom-up (order, window, conditions, earlier events), reports the first stage that nothing passes, and keeps the
assignment of documents to parts that gets furthest."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from feeds.documents import iso_utc
from mmqjp.documents.record import Record
from mmqjp.explain.reasons import Reason
from mmqjp.explain.retrace.stages import (
    Docs,
    Looked,
    Stages,
    Trial,
    apply_select,
    both,
    conjuncts,
    distinct_runs,
    event_text,
    furthest_trace,
    height,
    is_of_right,
    join_events,
    operator_condition_text,
    pair_scope,
    run_scope,
    said,
    stream_text,
    values_text,
)
from mmqjp.explain.retrace.values import (
    AggregatedEvents,
    Covering,
    DocumentRef,
    Event,
    Folded,
    Followed,
    PassedFilter,
    Plain,
    Selected,
    SourceEvent,
    ValueScope,
    before,
    condition_holds,
    given_parts,
    identity,
    is_same,
)
from mmqjp.explain.terms import FunnelStage, Operand, ShownCondition, StageKind, duration_text, format_window
from xpath_stage.binder import Take
from xscl.algebra.events import Aggregate, EventCondition, Events, Filter, Fold, Next, Select, Stream, Union
from xscl.algebra.events import EventCondition as Tested

MAX_SHOWN_EVENTS = 5
"""Maximum number of events shown of a run or group."""


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """An event: attributes, interval in microseconds, and the indexes of its documents in the output. If another query
    published it, `output` is the id of that output, and `query` the query."""

    attributes: tuple[tuple[str, Plain], ...]
    t0: int
    t1: int
    documents: tuple[int, ...] = ()
    output: str = ""
    query: str = ""


@dataclass(frozen=True, slots=True)
class FilledPart:
    """A part of a query, and the events that filled it: `count`, the first one and the last ones."""

    name: str
    count: int
    events: tuple[ShownEvent, ...]


@dataclass(frozen=True, slots=True)
class PartDuration:
    """How long a part took: DUR, GAP if any, and the limit (None: any time), in microseconds."""

    part: str
    duration: int
    gap: int | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class Filling:
    """The events that filled the parts of an event query for an output, and the durations."""

    parts: tuple[FilledPart, ...]
    spans: tuple[PartDuration, ...]

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self)
        for part in found["parts"]:
            for event in part["events"]:
                event["attributes"] = dict(event["attributes"])
        return found


def explain_event(event: Event, documents: Sequence[DocumentRef]) -> tuple[Filling, Reason]:
    return _Telling(documents).told(event)


class _Telling:
    def __init__(self, documents: Sequence[DocumentRef]) -> None:
        self._places = source_places(documents)
        self._parts: list[FilledPart] = []
        self._spans: list[PartDuration] = []
        self._conditions: list[ShownCondition] = []
        self._filters: list[ShownCondition] = []

    def told(self, event: Event) -> tuple[Filling, Reason]:
        self._tell(event, "")
        reason = Reason((), tuple(self._conditions), (), tuple(self._filters))
        return Filling(tuple(self._parts), tuple(self._spans)), reason

    def _tell(self, event: Event, operator: str) -> None:
        match event.made:
            case SourceEvent(stream=stream):
                self._parts.append(self._part(f"{operator} {stream}".lstrip(), [event]))
            case PassedFilter(by=by, source=source):
                self._tell(source, operator)
                self._hold(by, by.condition, ValueScope(source.values, source.t1 - source.t0))
            case Selected(source=source):
                self._tell(source, operator)
            case Followed(by=by, left=left, right=right):
                self._tell(left, operator)
                self._tell(right, "NEXT")
                self._hold(by, by.condition, pair_scope(left, right))
                span = right.t1 - left.t0, right.t0 - left.t1, by.within
                self._spans.append(PartDuration(f"NEXT {stream_text(by.right)}", *span))
            case Folded():
                self._tell_run(event.made, operator)
            case AggregatedEvents(by=by, window=window):
                name = f"{operator} AGGREGATE of {stream_text(by.source)}".lstrip()
                self._parts.append(self._part(name, window))
                if by.over is not None:
                    self._spans.append(PartDuration(name, event.t1 - window[0].t1, None, by.over))

    def _tell_run(self, run: Folded, operator: str) -> None:
        self._tell(run.first, operator)
        name = f"FOLD {stream_text(run.by.right)}"
        self._parts.append(self._part(name, [step for step, _ in run.steps]))
        before = Folded(run.by, run.first, run.steps[:-1])
        for condition in (run.by.chooses, run.by.continues):
            self._hold(run.by, condition, run_scope(before, run.latest))
        gap = run.latest.t0 - before.latest.t1
        self._spans.append(PartDuration(name, run.latest.t1 - run.first.t0, gap, run.by.within))

    def _hold(self, operator: Stream, condition: Tested, scope: ValueScope) -> None:
        for one in conjuncts(condition):
            filters = isinstance(operator, Filter) or is_of_right(one)
            (self._filters if filters else self._conditions).append(shown(operator, one, scope))

    def _part(self, name: str, events: Sequence[Event]) -> FilledPart:
        return build_part(name, events, self._places)


def source_places(documents: Sequence[DocumentRef]) -> dict[DocumentRef, int]:
    return {source: place for place, source in reversed([*enumerate(documents)])}


def build_part(name: str, events: Sequence[Event], places: Mapping[DocumentRef, int]) -> FilledPart:
    shown = list(events) if len(events) <= MAX_SHOWN_EVENTS else [events[0], *events[1 - MAX_SHOWN_EVENTS :]]
    return FilledPart(name, len(events), tuple(_seen(event, places) for event in shown))


def _seen(event: Event, places: Mapping[DocumentRef, int]) -> ShownEvent:
    behind = {source: None for given in given_parts(event) for source in given.behind}
    own = tuple(places[source] for source in behind if source in places)
    seen = ShownEvent(tuple(event.values.items()), event.t0, event.t1, own)
    if isinstance(event.made, SourceEvent) and event.made.output:
        return replace(seen, output=event.made.source[0], query=event.made.stream)
    return seen


def shown(operator: Stream, condition: Tested, scope: ValueScope) -> ShownCondition:
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


EventPair = tuple[Event, Event]

Covers = Callable[[Event, Docs], bool]


class NextTracer:
    """Pairs events for NEXT. `covers` says whether an event derives from given documents."""

    def __init__(self, trial: Trial, covers: Covers) -> None:
        self._trial, self._covers = trial, covers

    def of(self, stream: Next, left: Looked, right: Looked, rights: Docs, named: bool) -> Looked:
        """Traces pairs of events of both sides. `rights` are the documents behind the right events. Without a `named`
        document, counts events instead of pairs."""
        source = both(left, right)
        if not (left.events and right.events):
            return source
        stages = Stages(source, height(stream))
        if not named:
            return self._counted(stages, stream, left.events)
        if not (rights_left := filtered_rights(stages, stream, stream.condition, right.events)):
            return stages.failed()
        part = f"NEXT {stream_text(stream.right)}"
        pairs = near_pairs(stages, stream, part, left.events, rights_left, self._trial.take)
        if isinstance(pairs, Looked):
            return pairs
        for condition in conjuncts(stream.condition):
            if is_of_right(condition):
                continue
            passed = [pair for pair in pairs if self._holds(condition, pair)]
            if not stages.add(
                FunnelStage("condition", operator_condition_text(condition, stream), len(passed), "pairs")
            ):
                return stages.failed(_false_for(condition, stream, pairs), near=shortest_pair(pairs))
            pairs = passed
        taken = [(one, two) for one, two in pairs if two.t1 == self._trial.partners(stream, one)[0].t1]
        if rights and not stages.add(FunnelStage("consumed", part, len(taken), "pairs")):
            return stages.failed(*self._consumed(stream, pairs), near=self._earlier(stream, pairs))
        return stages.done([join_events(stream, one, two) for one, two in taken])

    def _counted(self, stages: Stages, stream: Next, lefts: Sequence[Event]) -> Looked:
        if (failed := count_lefts(stages, stream, lefts, self._trial.rights(stream).events)) is not None:
            return failed
        events = [one for first in lefts for one in self._trial.followed(stream, first)]
        if not stages.add(FunnelStage("condition", f"NEXT {stream_text(stream.right)}", len(events), "events")):
            return stages.failed("the conditions hold for no right event in the window")
        return stages.done(events)

    def _holds(self, condition: EventCondition, pair: EventPair) -> bool:
        self._trial.take(1)
        return condition_holds(condition, pair_scope(*pair))

    def _consumed(self, stream: Next, pairs: Sequence[EventPair]) -> tuple[str, str]:
        left, right = min(pairs, key=_distance)
        first = self._trial.partners(stream, left)[0]
        what = f"{event_text(first)} was first, at {iso_utc(first.t1)}, {duration_text(right.t1 - first.t1)} earlier"
        return what, "NEXT takes the first right event for which its condition holds; FOLLOWED BY takes all"

    def _earlier(self, stream: Next, pairs: Sequence[EventPair]) -> Sequence[Event]:
        return self._trial.partners(stream, min(pairs, key=_distance)[0])[:1]


def near_pairs(
    stages: Stages, stream: Next | Fold, part: str, lefts: Sequence[Event], rights: Sequence[Event], take: Take
) -> list[EventPair] | Looked:
    """Adds the stages for pairs whose right event begins after the left one has ended, in the window. Returns these, or
    the result if there is none."""
    every = sorted(rights, key=lambda one: one.t1)
    times, pairs = [one.t1 for one in every], list[EventPair]()
    for left in lefts:
        first = bisect_right(times, left.t1)
        take(1 + len(every) - first)
        pairs += ((left, right) for right in every[first:] if right.t0 > left.t1)
    if not stages.add(FunnelStage("order", part, len(pairs), "pairs")):
        return stages.failed(*out_of_order(lefts, rights, stream))
    if stream.within is None:
        return pairs
    near = [pair for pair in pairs if _distance(pair) <= stream.within]
    if not stages.add(FunnelStage("window", format_window(stream.within), len(near), "pairs")):
        whose = "it takes" if len(pairs) == 1 else "the nearest take"
        return stages.failed(_too_far(whose, map(_distance, pairs), stream.within), near=shortest_pair(pairs))
    return near


def out_of_order(lefts: Sequence[Event], rights: Sequence[Event], stream: Next | Fold) -> tuple[str, str]:
    """Returns message and hint for events that are never in order."""
    right = stream_text(stream.right)
    gap = min(one.t1 - max(rights, key=lambda other: other.t0).t0 for one in lefts)
    if len({one.t1 for one in lefts}) == len({one.t0 for one in rights}) == 1:
        if not gap:
            return "the right event begins just when the left one ends, and has to begin later", ""
        return f"the right event begins {duration_text(gap)} before the left one ends", ""
    return f"no {right} begins after the end of {stream_text(stream.left)}", ""


def _too_far(whose: str, durations: Iterable[int], window: int) -> str:
    return f"{whose} {duration_text(min(durations))}, and at most {format_window(window)} is allowed"


def filtered_rights(
    stages: Stages, stream: Next | Fold, condition: EventCondition, rights: Sequence[Event]
) -> Sequence[Event]:
    """Adds the stages for conditions on right events alone, as a FILTER would; returns the events that pass."""
    for one in conjuncts(condition):
        if rights and is_of_right(one):
            rights = stages.filter(one, stream, rights, lambda event: ValueScope({}, 0, event.values))
    return rights


def _false_for(condition: EventCondition, stream: Next, pairs: Sequence[EventPair]) -> str:
    found = said(condition, stream, pair_scope(*min(pairs, key=_distance)))
    return f"{values_text(found)}{f', for the nearest of {len(pairs):,}' if len(pairs) > 1 else ''}"


def shortest_pair(pairs: Sequence[EventPair]) -> tuple[Event, ...]:
    return min(pairs, key=_distance)


def count_lefts(stages: Stages, stream: Next | Fold, lefts: Sequence[Event], rights: Sequence[Event]) -> Looked | None:
    """Adds stages for left events with a later right one, and with one in the window. Returns the result if none has,
    else None."""
    ordered = sorted(rights, key=lambda one: one.t0)
    starts, least = [one.t0 for one in ordered], [one.t1 for one in ordered]
    for place in range(len(least) - 2, -1, -1):
        least[place] = min(least[place : place + 2])
    places = [(one, bisect_right(starts, one.t1)) for one in lefts]
    times = [least[place] - one.t0 for one, place in places if place < len(least)]
    if not stages.add(FunnelStage("order", f"before {stream_text(stream.right)}", len(times), "events")):
        return stages.failed(*out_of_order(lefts, rights, stream))
    if stream.within is not None:
        near = sum(time <= stream.within for time in times)
        if not stages.add(FunnelStage("window", format_window(stream.within), near, "events")):
            return stages.failed(_too_far("the nearest take", times, stream.within))
    return None


def _distance(pair: EventPair) -> int:
    return pair[1].t1 - pair[0].t0


MOST_TRIED = 20
"""Maximum number of pairs of a left event and a missing one that are followed."""


@dataclass(frozen=True, slots=True)
class _End:
    """Why a run does not reach an event: `condition` is false for it; with kind "ended", was false for all that came
    before, such as `by`; without a condition, it begins too early."""

    run: Folded
    by: Event
    kind: StageKind
    condition: EventCondition | None = None


class FoldTracer:
    """Builds runs for FOLD. `covers` says whether an event derives from given documents."""

    def __init__(self, trial: Trial, covers: Covers) -> None:
        self._trial, self._covers = trial, covers

    def of(self, stream: Fold, left: Looked, rights: Sequence[Looked], docs: Docs) -> Looked:
        """Traces runs that begin with left events and contain given documents behind them. `rights` has the right
        events of each document, or all events if there is none."""
        stages = Stages(_all(left, rights), height(stream))
        if not (left.events and all(one.events for one in rights)):
            return stages.source
        every = self._trial.rights(stream).events
        if not docs and left.found == 0 and (failed := count_lefts(stages, stream, left.events, every)) is not None:
            return failed
        runs = [run for first in left.events for run in self._trial.runs(stream, first)]
        found = [run for run in runs if self._covers(run, docs)]
        if found:
            stages.add(FunnelStage("condition", f"FOLD {stream_text(stream.right)}", len(found), "events"))
            return stages.done(found)
        wanted = next((one.events for one in rights if not _is_in(one.events, runs)), None)
        if wanted is None:
            stages.add(FunnelStage("together", f"FOLD {stream_text(stream.right)}", 0, "events"))
            return stages.failed("each of these events is in a run, but not all of them in the same one")
        return self._why_none(stages, stream, left.events, wanted)

    def _why_none(self, stages: Stages, stream: Fold, lefts: Sequence[Event], wanted: Sequence[Event]) -> Looked:
        wanted = filtered_rights(stages, stream, stream.chooses, wanted)
        if not wanted:
            return stages.failed()
        part = f"FOLD {stream_text(stream.right)}"
        pairs = near_pairs(stages, stream, part, lefts, wanted, self._trial.take)
        if isinstance(pairs, Looked):
            return pairs
        tried = sorted(pairs, key=_distance)[:MOST_TRIED]
        end = max((self._end(stream, pair) for pair in tried), key=lambda one: len(one.run.steps))
        stages.add(
            FunnelStage(
                end.kind, part if end.condition is None else operator_condition_text(end.condition, stream), 0, "pairs"
            )
        )
        near = (end.run.first, end.by)
        return stages.failed(_said_of(stream, end, wanted), near=near, part=len(end.run.steps))

    def _end(self, stream: Fold, pair: EventPair) -> _End:
        first, wanted = pair
        current, found = [Folded(stream, first, ())], None
        while current:
            longer: list[Folded] = []
            for run in current:
                chosen = self._trial.chosen(stream, run)
                if chosen and chosen[0].t1 < wanted.t1:
                    more = list(self._trial.longer(stream, run))
                    longer += more
                    if not more:
                        found = _refused(run, chosen[0])
                elif any(is_same(one, wanted) for one in chosen):
                    found = _refused(run, wanted)
                elif before(run.latest, wanted):
                    found = _End(run, wanted, "condition", _first_false(run.by.chooses, run, wanted))
                else:
                    found = _End(run, wanted, "order")
            current = distinct_runs(longer)
        assert found is not None, "each run ends somewhere"
        return found


def _refused(run: Folded, one: Event) -> _End:
    return _End(run, one, "ended", _first_false(run.by.continues, run, one))


def _first_false(condition: EventCondition, run: Folded, one: Event) -> EventCondition:
    scope = run_scope(run, one)
    return next(part for part in conjuncts(condition) if not condition_holds(part, scope))


def _said_of(stream: Fold, end: _End, wanted: Sequence[Event]) -> str:
    behind = f", behind {len(end.run.steps)} events of the run" if end.run.steps else ""
    if end.condition is None:
        return f"it begins before {event_text(end.run.latest)} has ended{behind}"
    values = values_text(said(end.condition, stream, run_scope(end.run, end.by)))
    if any(is_same(end.by, one) for one in wanted):
        return f"{values}{behind}"
    return f"the run has ended at {event_text(end.by)}, at {iso_utc(end.by.t1)}: {values}{behind}"


def _all(left: Looked, rights: Sequence[Looked]) -> Looked:
    found = left.found + sum(one.found for one in rights)
    for side in (left, *rights):
        if not side.events:
            return replace(side, found=found)
    return Looked([], left.stages + rights[-1].stages, found, ())


def _is_in(events: Iterable[Event], runs: Iterable[Event]) -> bool:
    inside = [one for run in runs for one in run.inputs[1:]]
    return any(is_same(one, other) for one in events for other in inside)


MOST_SPLIT = 3
"""Up to this number, documents may be split between the sides of an operator in any way; more keep their order."""

WhyNone = Callable[[str, Record], Iterable[FunnelStage]]
"""Yields the stages up to the first that keeps a document from having an event of the named stream."""


class EventTracer:
    """Searches for events that derive from documents. `why_none` says why a document has no event of a stream."""

    def __init__(self, trial: Trial, documents: Sequence[Record], why_none: WhyNone) -> None:
        self._trial, self._documents, self._why_none = trial, documents, why_none
        self._known: dict[tuple[int, Docs], Looked] = {}
        self._covering = Covering(documents)
        self._pairing = NextTracer(trial, self.covers)
        self._folding = FoldTracer(trial, self.covers)

    def of(self, stream: Stream, docs: Docs) -> Looked:
        """Traces a stream: its events that derive from all the documents."""
        key = id(stream), docs
        if key not in self._known:
            self._known[key] = self._look(stream, docs)
        return self._known[key]

    def covers(self, event: Event, docs: Docs) -> bool:
        return not docs or self._covering.of(event).issuperset(docs)

    def _look(self, stream: Stream, docs: Docs) -> Looked:
        match stream:
            case Events(stream=name):
                return self._events(name, docs)
            case Select(source=source):
                found = self.of(source, docs)
                return found.with_events([apply_select(stream, one) for one in found.events])
            case Filter(source=source):
                return self._filter(stream, self.of(source, docs))
            case Union(left=left, right=right):
                return _united(self.of(left, docs), self.of(right, docs))
            case Aggregate():
                return self._together(stream, docs)
            case Next(left=left, right=right):
                return furthest_trace(
                    self._pairing.of(stream, self.of(left, mine), self.of(right, others), others, bool(docs))
                    for mine, others in _splits(docs)
                )
            case Fold(left=left):
                return furthest_trace(self._fold(stream, mine, others) for mine, others in _splits(docs))

    # ------------------------------------------------------------ operators of one input

    def _events(self, name: str, docs: Docs) -> Looked:
        given = self._trial.all_given(name)
        if len(docs) > 1:
            what = f"{len(docs)} documents are named for {name}, which is one event"
            return Looked([], (FunnelStage("event", name, 0, "events").told(what),), 0, (0, -1))
        events = [one for one in given if self.covers(one, docs)]
        if events or not docs:
            stage = FunnelStage("event", name, len(events), "events")
            if not events:
                stage = stage.told(f"no kept document has an event {name}")
            return Looked(events, (stage,), len(docs) if events else 0, (0, 0))
        stages = tuple(self._why_none(name, self._documents[docs[0]]))
        is_there = stages[-1].kind in ("late", "unseen")
        return Looked([], stages, int(is_there), (0, len(stages)), (), () if is_there else docs)

    def _filter(self, stream: Filter, source: Looked) -> Looked:
        if not source.events:
            return source
        stages, events = Stages(source, height(stream)), source.events
        for condition in conjuncts(stream.condition):
            if not (events := stages.filter(condition, stream, events, _scope)):
                return stages.failed()
        return stages.done([one for one in (self._trial.filtered(stream, one) for one in events) if one])

    def _together(self, stream: Aggregate, docs: Docs) -> Looked:
        part = stream_text(stream)
        if not docs:
            source = self.of(stream.source, ())
            if not source.events:
                return source
            stages = Stages(source, height(stream))
            events = self._trial.all(stream)
            stages.add(FunnelStage("group", part, len(events), "events"))
            return stages.done(events)
        sources = [self.of(stream.source, (number,)) for number in docs]
        source = next((one for one in sources if not one.events), sources[-1])
        found = sum(one.found for one in sources)
        if not source.events:
            return replace(source, found=found)
        times = dict.fromkeys(one.t1 for several in sources for one in several.events)
        every = [one for time in times for one in self._trial.together(stream, time)]
        events = [one for one in every if self.covers(one, docs)]
        stages = Stages(Looked([], source.stages, found, ()), height(stream))
        if not stages.add(FunnelStage("group", part, len(events), "events")):
            by = f" that are equal in {', '.join(stream.by)}" if stream.by else ""
            return stages.failed(f"an event of it is made of simultaneous events{by}, and these are not")
        return stages.done(events)

    # ------------------------------------------------------------ FOLD

    def _fold(self, stream: Fold, mine: Docs, others: Docs) -> Looked:
        left = self.of(stream.left, mine)
        rights = [self.of(stream.right, (number,)) for number in others] or [self.of(stream.right, ())]
        return self._folding.of(stream, left, rights, others)


def _united(left: Looked, right: Looked) -> Looked:
    found = [side for side in (left, right) if side.events]
    events = {identity(one): one for side in found for one in side.events}
    best = furthest_trace((left, right))
    if len(found) < 2:
        return best
    return replace(best, events=sorted(events.values(), key=lambda one: one.t1), stages=left.stages + right.stages)


def _scope(event: Event) -> ValueScope:
    return ValueScope(event.values, event.t1 - event.t0)


def _splits(docs: Docs) -> Iterator[tuple[Docs, Docs]]:
    if len(docs) > MOST_SPLIT:
        yield from ((docs[:place], docs[place:]) for place in range(len(docs), -1, -1))
        return
    for sides in product((True, False), repeat=len(docs)):
        pairs = list(zip(docs, sides, strict=True))
        yield tuple(one for one, is_left in pairs if is_left), tuple(one for one, is_left in pairs if not is_left)
