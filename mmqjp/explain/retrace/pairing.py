"""NEXT over events of documents: the stages that pairs of a left and a right event pass, and the first they do not."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from feeds.dates import iso_utc
from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.retrace.event import Event
from mmqjp.explain.retrace.said import condition_text, conjuncts, said, stream_text, values_text
from mmqjp.explain.retrace.stages import Docs, Looked, Stages, both, event_text, height
from mmqjp.explain.retrace.trial import Trial, followed, is_of_right, pair_scope
from mmqjp.explain.retrace.values import Scope, holds
from mmqjp.explain.terms import duration_text, window_text
from xscl.algebra.events import Condition, Fold, Next

Pair = tuple[Event, Event]

Covers = Callable[[Event, Docs], bool]


class Pairing:
    """Pairs events for NEXT. `covers` says whether an event is made of some documents."""

    def __init__(self, trial: Trial, covers: Covers) -> None:
        self._trial, self._covers = trial, covers

    def of(self, stream: Next, left: Looked, right: Looked, rights: Docs, named: bool) -> Looked:
        """Returns what is found of pairs of events of both sides. `rights` are the documents that the right events are
        made of. If no document is `named`, events are counted instead of pairs."""
        source = both(left, right)
        if not (left.events and right.events):
            return source
        stages = Stages(source, height(stream))
        if not named:
            return self._counted(stages, stream, left.events)
        if not (rights_left := filtered_rights(stages, stream, stream.condition, right.events)):
            return stages.failed()
        pairs = list(in_order(left.events, rights_left, self._trial.take))
        part = f"NEXT {stream_text(stream.right)}"
        if not stages.add(Stage("order", part, len(pairs), "pairs")):
            return stages.failed(*out_of_order(left.events, rights_left, stream))
        if stream.within is not None:
            near = [pair for pair in pairs if _distance(pair) <= stream.within]
            if not stages.add(Stage("window", window_text(stream.within), len(near), "pairs")):
                return stages.failed(too_far(pairs, stream.within), near=nearest(pairs))
            pairs = near
        for condition in conjuncts(stream.condition):
            if is_of_right(condition):
                continue
            passed = [pair for pair in pairs if self._holds(condition, pair)]
            if not stages.add(Stage("condition", condition_text(condition, stream), len(passed), "pairs")):
                return stages.failed(_false_for(condition, stream, pairs), near=nearest(pairs))
            pairs = passed
        taken = [(one, two) for one, two in pairs if two.t1 == self._trial.partners(stream, one)[0].t1]
        if rights and not stages.add(Stage("consumed", part, len(taken), "pairs")):
            return stages.failed(*self._consumed(stream, pairs), near=self._earlier(stream, pairs))
        return stages.done([followed(stream, one, two) for one, two in taken])

    def _counted(self, stages: Stages, stream: Next, lefts: Sequence[Event]) -> Looked:
        if (failed := count_lefts(stages, stream, lefts, self._trial.rights(stream).events)) is not None:
            return failed
        events = [one for first in lefts for one in self._trial.followed(stream, first)]
        if not stages.add(Stage("condition", f"NEXT {stream_text(stream.right)}", len(events), "events")):
            return stages.failed("the conditions hold for no right event in the window")
        return stages.done(events)

    def _holds(self, condition: Condition, pair: Pair) -> bool:
        self._trial.take(1)
        return holds(condition, pair_scope(*pair))

    def _consumed(self, stream: Next, pairs: Sequence[Pair]) -> tuple[str, str]:
        left, right = min(pairs, key=_distance)
        first = self._trial.partners(stream, left)[0]
        what = f"{event_text(first)} was first, at {iso_utc(first.t1)}, {duration_text(right.t1 - first.t1)} earlier"
        return what, "NEXT takes the first right event for which its condition holds; FOLLOWED BY takes all"

    def _earlier(self, stream: Next, pairs: Sequence[Pair]) -> Sequence[Event]:
        return self._trial.partners(stream, min(pairs, key=_distance)[0])[:1]


def in_order(lefts: Sequence[Event], rights: Sequence[Event], take: Callable[[int], object]) -> Iterator[Pair]:
    """Yields the pairs in which the right event, of events in the order of t1, begins after the left one has ended."""
    times = [one.t1 for one in rights]
    for left in lefts:
        first = bisect_right(times, left.t1)
        take(1 + len(rights) - first)
        yield from ((left, right) for right in rights[first:] if right.t0 > left.t1)


def out_of_order(lefts: Sequence[Event], rights: Sequence[Event], stream: Next | Fold) -> tuple[str, str]:
    """Returns what is said of events none of which is before another one, and a hint."""
    right = stream_text(stream.right)
    gap = min(one.t1 - max(rights, key=lambda other: other.t0).t0 for one in lefts)
    if len({one.t1 for one in lefts}) == len({one.t0 for one in rights}) == 1:
        if not gap:
            return "the right event begins just when the left one ends, and has to begin later", ""
        return f"the right event begins {duration_text(gap)} before the left one ends", ""
    return f"no {right} begins after the end of {stream_text(stream.left)}", ""


def too_far(pairs: Sequence[Pair], window: int) -> str:
    """Returns what is said of pairs that are too far apart."""
    whose = "it takes" if len(pairs) == 1 else "the nearest take"
    return f"{whose} {duration_text(min(map(_distance, pairs)))}, and at most {window_text(window)} is allowed"


def filtered_rights(
    stages: Stages, stream: Next | Fold, condition: Condition, rights: Sequence[Event]
) -> Sequence[Event]:
    """Adds what a condition asks of right events alone, as a FILTER would; returns those that pass."""
    for one in conjuncts(condition):
        if rights and is_of_right(one):
            rights = stages.filter(one, stream, rights, lambda event: Scope({}, 0, event.values))
    return rights


def _false_for(condition: Condition, stream: Next, pairs: Sequence[Pair]) -> str:
    found = said(condition, stream, pair_scope(*min(pairs, key=_distance)))
    return f"{values_text(found)}{f', for the nearest of {len(pairs):,}' if len(pairs) > 1 else ''}"


def nearest(pairs: Sequence[Pair]) -> tuple[Event, ...]:
    """Returns the events of the pair that is the shortest."""
    return min(pairs, key=_distance)


def count_lefts(stages: Stages, stream: Next | Fold, lefts: Sequence[Event], rights: Sequence[Event]) -> Looked | None:
    """Adds how many left events have a right one behind them, and one in the window. Returns what is said if none has,
    else None."""
    ordered = sorted(rights, key=lambda one: one.t0)
    starts, least = [one.t0 for one in ordered], [one.t1 for one in ordered]
    for place in range(len(least) - 2, -1, -1):
        least[place] = min(least[place : place + 2])
    places = [(one, bisect_right(starts, one.t1)) for one in lefts]
    times = [least[place] - one.t0 for one, place in places if place < len(least)]
    if not stages.add(Stage("order", f"before {stream_text(stream.right)}", len(times), "events")):
        return stages.failed(*out_of_order(lefts, rights, stream))
    if stream.within is not None:
        near = sum(time <= stream.within for time in times)
        if not stages.add(Stage("window", window_text(stream.within), near, "events")):
            what = f"the nearest take {duration_text(min(times))}, and at most {window_text(stream.within)} is allowed"
            return stages.failed(what)
    return None


def _distance(pair: Pair) -> int:
    return pair[1].t1 - pair[0].t0
