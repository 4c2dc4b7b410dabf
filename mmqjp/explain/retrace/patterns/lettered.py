"""Looks for chains of events for a PATTERN with ERRORS that are made of some documents: what they lack at least."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from operator import attrgetter

from mmqjp.explain.funnel_stage import Kind, Stage
from mmqjp.explain.retrace.event import Event, before
from mmqjp.explain.retrace.patterns.sought import EQUAL, FIRST_CONDITION, ORDER, WINDOW, Sought
from mmqjp.explain.retrace.patterns.whole import GivenEvents
from mmqjp.explain.retrace.said import value_text
from mmqjp.explain.retrace.stages import event_text
from mmqjp.explain.terms import duration_text, window_text
from pattern_stage.matching.letters import Automaton, Vector
from pattern_stage.matching.template import inputs, template
from xpath_stage.binder import Take
from xscl.algebra.event_sequences import NearPattern, spelled_out

Ends = dict[frozenset[int], Vector]
"""Chains that end with an event: for the documents that they are made of, where they are in the expression."""

_KEPT: tuple[tuple[int, Kind], ...] = ((ORDER, "order"), (EQUAL, "equal"), (WINDOW, "window"))


class Lettered:
    """Looks for chains that are made of some documents, numbered from 0; `covers` returns those of an event."""

    def __init__(
        self,
        pattern: NearPattern,
        given: GivenEvents,
        covers: Callable[[Event], frozenset[int]],
        documents: int,
        take: Take,
    ) -> None:
        self._pattern, self._covers, self._take = pattern, covers, take
        self._wanted = frozenset(range(documents))
        numbered = template(pattern, lambda leaf: leaf)
        assert isinstance(numbered, NearPattern)
        self._automaton = Automaton(numbered.letters, spelled_out(pattern.letters))
        every = [(one, number) for number, (name, _) in enumerate(inputs(pattern)) for one in given(name)]
        self._events = sorted(every, key=lambda one: one[0].t1)

    def sought(self, stages: Sequence[Stage], found: int) -> Sought:
        """Returns what is found, behind the stages of single events."""
        options = [
            [one for one, _ in self._events if document in self._covers(one)] for document in sorted(self._wanted)
        ]
        failed = [self._failed(dict.fromkeys(choice)) for choice in product(*options)]
        best = max(failed, key=lambda one: one[0])
        passed = (
            *stages,
            *(Stage(kind, "SEQ", 1, "events") for test, kind in _KEPT if self._wanted and test < best[0]),
        )
        if best[1] is not None:
            return Sought(None, (*passed, best[1]), found, (best[0],))
        return self._chained(passed, found)

    def _failed(self, choice: Sequence[Event] | dict[Event, None]) -> tuple[int, Stage | None]:
        """Returns what keeps events of the documents from being in one chain."""
        events = sorted(choice, key=attrgetter("t1"))
        for one, other in pairwise(events):
            if not before(one, other):
                what = f"{event_text(other)} does not begin after the end of {event_text(one)}"
                return ORDER, Stage("order", "SEQ", 0, "events").told(what)
        for one in events:
            for key in self._pattern.keys:
                if one.values[key] is None or one.values[key] != events[0].values[key]:
                    what = f"{key} is {value_text(one.values[key])}, of {event_text(one)}"
                    if one is not events[0] and one.values[key] is not None:
                        what = f"{what}, and {value_text(events[0].values[key])} of the first"
                    return EQUAL, Stage("equal", f"[{', '.join(self._pattern.keys)}]", 0, "events").told(what)
        within = self._pattern.within
        if within is not None and events and events[-1].t1 - events[0].t0 > within:
            span = duration_text(events[-1].t1 - events[0].t0)
            what = f"it takes {span}, and at most {window_text(within)} is allowed"
            return WINDOW, Stage("window", window_text(within), 0, "events").told(what)
        return FIRST_CONDITION, None

    def _chained(self, stages: Sequence[Stage], found: int) -> Sought:
        """Returns what chains with all documents lack at least."""
        least, match, starts = -1, None, 0
        for place in range(len(self._events)):
            lacking, last = self._least(place)
            if lacking >= 0 and (least < 0 or lacking < least):
                least = lacking
                match = {"": (self._events[place][0], last)}
            starts += 0 <= lacking <= self._pattern.errors
            if starts and self._wanted:
                break
        is_found = 0 <= least <= self._pattern.errors
        part = f"ERRORS <= {self._pattern.errors}"
        stage = Stage("letters", part, starts, "events")
        if not is_found:
            what = "no word has them in this order, or a letter with ! is missing"
            if least >= 0:
                what = f"{least:,} letters are missing at least"
            stage = stage.told(what)
        rank = (FIRST_CONDITION, -least if least >= 0 else -1 << 30)
        return Sought(match if is_found else None, (*stages, stage), found, rank, starts=starts)

    def _least(self, place: int) -> tuple[int, Event]:
        """Returns what chains with all documents lack at least that begin with an event, -1 if there is none; and the
        last event of one that lacks so little."""
        first, stream = self._events[place]
        ends: list[tuple[Event, Ends]] = []
        least, last = -1, first
        if begun := self._begin(first, stream):
            ends.append((first, begun))
        for one, own in [(first, begun), *self._longer(ends, place, first)] if begun else ():
            for covered, vector in own.items():
                lacking = self._automaton.lacking(vector)
                if covered == self._wanted and lacking is not None and (least < 0 or lacking < least):
                    least, last = lacking, one
        return least, last

    def _begin(self, first: Event, stream: int) -> Ends:
        self._take(1)
        is_known = all(first.values[key] is not None for key in self._pattern.keys)
        within = self._pattern.within
        is_short = within is None or first.t1 - first.t0 <= within
        vector = self._automaton.begin(stream)
        return {self._covers(first): vector} if vector and is_known and is_short else {}

    def _longer(self, ends: list[tuple[Event, Ends]], place: int, first: Event) -> Iterator[tuple[Event, Ends]]:
        """Yields the events behind a first one that chains end with, and adds them to `ends`."""
        within = self._pattern.within
        for one, stream in self._events[place + 1 :]:
            if within is not None and one.t1 - first.t0 > within:
                return
            if any(one.values[key] != first.values[key] for key in self._pattern.keys):
                continue
            found: dict[frozenset[int], dict[int, int]] = {}
            for other, own in ends:
                self._take(1)
                if not before(other, one):
                    continue
                for covered, vector in own.items():
                    costs = found.setdefault(covered | self._covers(one), {})
                    for at, cost in self._automaton.step(vector, stream):
                        costs[at] = min(cost, costs.get(at, cost))
            made = {covered: tuple(sorted(costs.items())) for covered, costs in found.items() if costs}
            if made:
                ends.append((one, made))
                yield one, made
