"""FOLD over events of documents: the stages that runs pass, and the first that they do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from feeds.dates import iso_utc
from mmqjp.explain.funnel_stage import Kind, Stage
from mmqjp.explain.retrace.event import Event, Folded, before, is_same
from mmqjp.explain.retrace.pairing import (
    Covers,
    Pair,
    count_lefts,
    filtered_rights,
    in_order,
    nearest,
    out_of_order,
    too_far,
)
from mmqjp.explain.retrace.said import condition_text, conjuncts, said, stream_text, values_text
from mmqjp.explain.retrace.stages import Docs, Looked, Stages, event_text, height
from mmqjp.explain.retrace.trial import Trial, distinct, run_scope
from mmqjp.explain.retrace.values import holds
from mmqjp.explain.terms import window_text
from xscl.algebra.events import Condition, Fold

MOST_TRIED = 20
"""Of the pairs of a left event and one that no run has, so many are followed."""


@dataclass(frozen=True, slots=True)
class _End:
    """Why a run does not go on to an event: `condition` is false for it; or, if the kind is "ended", was false for all
    that came first, such as `by`; or, without a condition, it begins too early."""

    run: Folded
    by: Event
    kind: Kind
    condition: Condition | None = None


class Folding:
    """Makes runs for FOLD. `covers` says whether an event is made of some documents."""

    def __init__(self, trial: Trial, covers: Covers) -> None:
        self._trial, self._covers = trial, covers

    def of(self, stream: Fold, left: Looked, rights: Sequence[Looked], docs: Docs) -> Looked:
        """Returns what is found of runs that begin with left events, and that are made of some documents behind them.
        `rights` has the right events of each of these, or, if there is none, all."""
        stages = Stages(_all(left, rights), height(stream))
        if not (left.events and all(one.events for one in rights)):
            return stages.source
        every = self._trial.rights(stream).events
        if not docs and left.found == 0 and (failed := count_lefts(stages, stream, left.events, every)) is not None:
            return failed
        runs = [run for first in left.events for run in self._trial.runs(stream, first)]
        found = [run for run in runs if self._covers(run, docs)]
        if found:
            stages.add(Stage("condition", f"FOLD {stream_text(stream.right)}", len(found), "events"))
            return stages.done(found)
        wanted = next((one.events for one in rights if not _is_in(one.events, runs)), None)
        if wanted is None:
            stages.add(Stage("together", f"FOLD {stream_text(stream.right)}", 0, "events"))
            return stages.failed("each of these events is in a run, but not all of them in the same one")
        return self._why_none(stages, stream, left.events, wanted)

    def _why_none(self, stages: Stages, stream: Fold, lefts: Sequence[Event], wanted: Sequence[Event]) -> Looked:
        wanted = filtered_rights(stages, stream, stream.chooses, wanted)
        if not wanted:
            return stages.failed()
        pairs = list(in_order(lefts, sorted(wanted, key=lambda one: one.t1), self._trial.take))
        part = f"FOLD {stream_text(stream.right)}"
        if not stages.add(Stage("order", part, len(pairs), "pairs")):
            return stages.failed(*out_of_order(lefts, wanted, stream))
        if stream.within is not None:
            close = [pair for pair in pairs if pair[1].t1 - pair[0].t0 <= stream.within]
            if not stages.add(Stage("window", window_text(stream.within), len(close), "pairs")):
                return stages.failed(too_far(pairs, stream.within), near=nearest(pairs))
            pairs = close
        tried = sorted(pairs, key=lambda pair: pair[1].t1 - pair[0].t0)[:MOST_TRIED]
        end = max((self._end(stream, pair) for pair in tried), key=lambda one: len(one.run.steps))
        stages.add(
            Stage(end.kind, part if end.condition is None else condition_text(end.condition, stream), 0, "pairs")
        )
        near = (end.run.first, end.by)
        return stages.failed(_said_of(stream, end, wanted), near=near, part=len(end.run.steps))

    def _end(self, stream: Fold, pair: Pair) -> _End:
        """Returns why runs that begin with a left event do not get to a right one: what ends the longest of them."""
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
            current = distinct(longer)
        assert found is not None, "each run ends somewhere"
        return found


def _refused(run: Folded, one: Event) -> _End:
    return _End(run, one, "ended", _first_false(run.by.continues, run, one))


def _first_false(condition: Condition, run: Folded, one: Event) -> Condition:
    scope = run_scope(run, one)
    return next(part for part in conjuncts(condition) if not holds(part, scope))


def _said_of(stream: Fold, end: _End, wanted: Sequence[Event]) -> str:
    behind = f", behind {len(end.run.steps)} events of the run" if end.run.steps else ""
    if end.condition is None:
        return f"it begins before {event_text(end.run.latest)} has ended{behind}"
    values = values_text(said(end.condition, stream, run_scope(end.run, end.by)))
    if any(is_same(end.by, one) for one in wanted):
        return f"{values}{behind}"
    return f"the run has ended at {event_text(end.by)}, at {iso_utc(end.by.t1)}: {values}{behind}"


def _all(left: Looked, rights: Sequence[Looked]) -> Looked:
    """Returns what was found of all inputs: no events."""
    found = left.found + sum(one.found for one in rights)
    for side in (left, *rights):
        if not side.events:
            return replace(side, found=found)
    return Looked([], left.stages + rights[-1].stages, found, ())


def _is_in(events: Iterable[Event], runs: Iterable[Event]) -> bool:
    """Returns whether one of some events is behind the first of a run."""
    inside = [one for run in runs for one in run.inputs[1:]]
    return any(is_same(one, other) for one in events for other in inside)
