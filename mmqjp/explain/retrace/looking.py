"""Looks for events of an event query that are made of some documents: what they pass, and the first that they do not.

Documents are given numbers, and are looked for in the parts of the query: first what each operator has of its inputs,
then its own conditions, in the order of NEXT and FOLD: order, window, conditions, and whether an earlier event was
taken. Of the ways in which documents may fill parts it is told of that which comes furthest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from mmqjp.documents.record import Record
from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.retrace.covering import Covering
from mmqjp.explain.retrace.event import Event, identity
from mmqjp.explain.retrace.folding import Folding
from mmqjp.explain.retrace.pairing import Pairing
from mmqjp.explain.retrace.said import conjuncts, stream_text
from mmqjp.explain.retrace.stages import Docs, Looked, Stages, furthest, height
from mmqjp.explain.retrace.trial import Trial, selected
from mmqjp.explain.retrace.values import Scope
from xscl.algebra.events import Aggregate, Events, Filter, Fold, Next, Select, Stream, Union

MOST_SPLIT = 3
"""So many documents may fill the sides of an operator in any way; more do so as they are given."""

WhyNone = Callable[[str, Record], Iterable[Stage]]
"""Yields the stages up to the first that a document does not pass of having an event of a stream, given by its name."""


class Looking:
    """Looks for events made of some documents. `why_none` says why one has no event of a stream."""

    def __init__(self, trial: Trial, documents: Sequence[Record], why_none: WhyNone) -> None:
        self._trial, self._documents, self._why_none = trial, documents, why_none
        self._known: dict[tuple[int, Docs], Looked] = {}
        self._covering = Covering(documents)
        self._pairing = Pairing(trial, self.covers)
        self._folding = Folding(trial, self.covers)

    def of(self, stream: Stream, docs: Docs) -> Looked:
        """Returns what is found of a stream: its events that are made of all of some documents."""
        key = id(stream), docs
        if key not in self._known:
            self._known[key] = self._look(stream, docs)
        return self._known[key]

    def covers(self, event: Event, docs: Docs) -> bool:
        """Returns whether an event is made of all of some documents."""
        return not docs or self._covering.of(event).issuperset(docs)

    def _look(self, stream: Stream, docs: Docs) -> Looked:
        match stream:
            case Events(stream=name):
                return self._events(name, docs)
            case Select(source=source):
                found = self.of(source, docs)
                return found.with_events([selected(stream, one) for one in found.events])
            case Filter(source=source):
                return self._filter(stream, self.of(source, docs))
            case Union(left=left, right=right):
                return _united(self.of(left, docs), self.of(right, docs))
            case Aggregate():
                return self._together(stream, docs)
            case Next(left=left, right=right):
                return furthest(
                    self._pairing.of(stream, self.of(left, mine), self.of(right, others), others, bool(docs))
                    for mine, others in _splits(docs)
                )
            case Fold(left=left):
                return furthest(self._fold(stream, mine, others) for mine, others in _splits(docs))

    # ------------------------------------------------------------ operators of one input

    def _events(self, name: str, docs: Docs) -> Looked:
        given = self._trial.all_given(name)
        if len(docs) > 1:
            what = f"{len(docs)} documents are named for {name}, which is one event"
            return Looked([], (Stage("event", name, 0, "events").told(what),), 0, (0, -1))
        events = [one for one in given if self.covers(one, docs)]
        if events or not docs:
            stage = Stage("event", name, len(events), "events")
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
            stages.add(Stage("group", part, len(events), "events"))
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
        if not stages.add(Stage("group", part, len(events), "events")):
            by = f" that are equal in {', '.join(stream.by)}" if stream.by else ""
            return stages.failed(f"an event of it is made of simultaneous events{by}, and these are not")
        return stages.done(events)

    # ------------------------------------------------------------ FOLD

    def _fold(self, stream: Fold, mine: Docs, others: Docs) -> Looked:
        left = self.of(stream.left, mine)
        rights = [self.of(stream.right, (number,)) for number in others] or [self.of(stream.right, ())]
        return self._folding.of(stream, left, rights, others)


def _united(left: Looked, right: Looked) -> Looked:
    """Returns what was found of two inputs, the events of either: each once."""
    found = [side for side in (left, right) if side.events]
    events = {identity(one): one for side in found for one in side.events}
    best = furthest((left, right))
    if len(found) < 2:
        return best
    return replace(best, events=sorted(events.values(), key=lambda one: one.t1), stages=left.stages + right.stages)


def _scope(event: Event) -> Scope:
    return Scope(event.values, event.t1 - event.t0)


def _splits(docs: Docs) -> Iterator[tuple[Docs, Docs]]:
    """Yields the ways in which documents may be on the left and on the right."""
    if len(docs) > MOST_SPLIT:
        yield from ((docs[:place], docs[place:]) for place in range(len(docs), -1, -1))
        return
    for sides in product((True, False), repeat=len(docs)):
        pairs = list(zip(docs, sides, strict=True))
        yield tuple(one for one, is_left in pairs if is_left), tuple(one for one, is_left in pairs if not is_left)
