"""Searches for a PATTERN's matches that contain given documents, and reports the first obstacle. Without documents,
counts how far all events get. With ERRORS, Lettered searches for chains of letters. Matcher finds the events of a match
again, given its output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from operator import attrgetter

from mmqjp.documents.record import Record
from mmqjp.explain.automaton import Filler, component_text
from mmqjp.explain.retrace.events import WhyNone
from mmqjp.explain.retrace.search import (
    ABSENT,
    EQUAL,
    FIRST_CONDITION,
    FOUND,
    MAXIMAL,
    ORDER,
    STRATEGY,
    TOGETHER,
    WINDOW,
    MatchFailure,
    MatchSearch,
    conjunct_of,
    early_text,
    having_of,
    too_long_stage,
    unequal_stage,
)
from mmqjp.explain.retrace.stages import GivenEvents, Looked, MatchBindings, event_text
from mmqjp.explain.retrace.values import Covering, DocumentRef, Event, ValueScope, before, condition_holds, given_parts
from mmqjp.explain.terms import FunnelStage, StageKind, format_window
from pattern_stage.definition import inputs, pattern_template
from pattern_stage.pattern.program import LetterAutomaton, Vector
from xpath_stage.binder import Take
from xscl.algebra.events import EventCondition, NearPattern, Pattern, letters_of, spelled_out


def missing_letters(count: int) -> str:
    """
    >>> missing_letters(1), missing_letters(2)
    ('1 letter is missing', '2 letters are missing')
    """
    return "1 letter is missing" if count == 1 else f"{count:,} letters are missing"


Ends = dict[frozenset[int], Vector]
"""Chains that end with an event: maps their documents to their places in the expression."""

_KEPT: tuple[tuple[int, StageKind], ...] = ((ORDER, "order"), (EQUAL, "equal"), (WINDOW, "window"))


class Lettered:
    """Searches for chains that contain given documents, numbered from 0; `covers` returns those of an event."""

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
        numbered = pattern_template(pattern, lambda leaf: leaf)
        assert isinstance(numbered, NearPattern)
        self._automaton = LetterAutomaton(numbered.letters, spelled_out(pattern.letters))
        every = [(one, number) for number, (name, _) in enumerate(inputs(pattern)) for one in given(name)]
        self._events = sorted(every, key=lambda one: one[0].t1)

    def sought(self, stages: Sequence[FunnelStage], found: int) -> Looked:
        """Returns the result, after the stages of single events."""
        options = [
            [one for one, _ in self._events if document in self._covers(one)] for document in sorted(self._wanted)
        ]
        failed = [self._failed(dict.fromkeys(choice)) for choice in product(*options)]
        best = max(failed, key=lambda one: one[0])
        passed = (
            *stages,
            *(FunnelStage(kind, "SEQ", 1, "events") for test, kind in _KEPT if self._wanted and test < best[0]),
        )
        if best[1] is not None:
            return Looked((), (*passed, best[1]), found, (best[0],))
        return self._chained(passed, found)

    def _failed(self, choice: Sequence[Event] | dict[Event, None]) -> tuple[int, FunnelStage | None]:
        events = sorted(choice, key=attrgetter("t1"))
        for one, other in pairwise(events):
            if not before(one, other):
                return ORDER, FunnelStage("order", "SEQ", 0, "events").told(early_text(one, other))
        keys, within = self._pattern.keys, self._pattern.within
        for one in events:
            if any(one.values[key] is None or one.values[key] != events[0].values[key] for key in keys):
                return EQUAL, unequal_stage(keys, one, events[0])
        if within is not None and events and (span := events[-1].t1 - events[0].t0) > within:
            return WINDOW, too_long_stage(within, span)
        return FIRST_CONDITION, None

    def _chained(self, stages: Sequence[FunnelStage], found: int) -> Looked:
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
        stage = FunnelStage("letters", part, starts, "events")
        if not is_found:
            what = "no word has them in this order, or a letter with ! is missing"
            if least >= 0:
                what = f"{missing_letters(least)} at least"
            stage = stage.told(what)
        rank = (FIRST_CONDITION, -least if least >= 0 else -1 << 30)
        if is_found and match is not None:
            return Looked.at_match(match, (*stages, stage), found, starts)
        return Looked((), (*stages, stage), found, rank, starts=starts)

    def _least(self, place: int) -> tuple[int, Event]:
        """Returns the fewest errors of a chain with all documents that begins with an event (-1: none), and its last
        event."""
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


class LookingForMatches:
    """Searches for matches of a pattern. `why_none` says why a document has no event of a stream."""

    def __init__(
        self,
        pattern: Pattern | NearPattern,
        given: GivenEvents,
        documents: Sequence[Record],
        why_none: WhyNone,
        take: Take,
    ) -> None:
        self._pattern, self._given, self._documents, self._why_none = pattern, given, documents, why_none
        self._covering, self._take = Covering(documents), take

    def sought(self) -> Looked:
        """Returns a match with all documents, or the obstacle. Without documents, counts how far events get as the
        first of a match."""
        stages, found = list[FunnelStage](), 0
        for number, record in enumerate(self._documents):
            if any(number in self._covering.of(one) for name in self._read for one in self._given(name)):
                found += 1
                continue
            none = max((self._none(name, record) for name in self._read), key=_depth)
            is_there = none[-1].kind in ("late", "unseen")
            return Looked((), none, found + is_there, (-1, *_depth(none)), (), () if is_there else (number,))
        for part, name in self._parts():
            stages.append(FunnelStage("event", part, len(self._given(name)), "events"))
            if not stages[-1].found:
                stages[-1] = stages[-1].told(f"no kept document has an event {name}")
                return Looked((), tuple(stages), found, (-1, 0))
        if isinstance(self._pattern, NearPattern):
            return self._lettered(stages, found)
        search = MatchSearch(self._pattern, self._given, self._covering.of, len(self._documents), self._take)
        return self._searched(search, stages, found)

    @property
    def _read(self) -> list[str]:
        if isinstance(self._pattern, NearPattern):
            return sorted(self._pattern.streams)
        return list(dict.fromkeys(one.source.stream for one in self._pattern.variables if not one.negated))

    def _parts(self) -> Iterator[tuple[str, str]]:
        if isinstance(self._pattern, Pattern):
            yield from ((component_text(one), one.source.stream) for one in self._pattern.variables if not one.negated)

    def _none(self, name: str, record: Record) -> tuple[FunnelStage, ...]:
        return tuple(self._why_none(name, record))

    def _lettered(self, stages: list[FunnelStage], found: int) -> Looked:
        assert isinstance(self._pattern, NearPattern)
        count = sum(len(self._given(name)) for name in self._read)
        stages.append(FunnelStage("event", ", ".join(self._read), count, "events"))
        if not count:
            stages[-1] = stages[-1].told("no kept document has an event of these")
            return Looked((), tuple(stages), found)
        search = Lettered(self._pattern, self._given, self._covering.of, len(self._documents), self._take)
        return search.sought(stages, found)

    # ------------------------------------------------------------ without ERRORS

    def _searched(self, search: MatchSearch, stages: list[FunnelStage], found: int) -> Looked:
        match = search.run()
        if not self._documents:
            return self._counted(search, stages)
        if match is None and (by := search.better) is not None:
            return Looked((), (*stages, _better(by)), found, (len(search.wanted), 1 << 20, MAXIMAL), (by,))
        if match is not None:
            return Looked.at_match(match, tuple(stages), found)
        best = search.furthest.best
        if best is None:
            what = "the documents cannot be in one match: there is no place for all of them"
            last = FunnelStage("together", "SEQ", 0, "events").told(what)
            return Looked((), (*stages, last), found)
        return Looked((), (*stages, *_passed(search, best), best.stage), found, best.rank, best.near)

    def _counted(self, search: MatchSearch, stages: list[FunnelStage]) -> Looked:
        for variables, one in enumerate(search.positive, 1):
            if not self._add(
                stages, search, FunnelStage("run", component_text(one), search.furthest.count(variables), "events")
            ):
                return Looked((), tuple(stages), 0)
        every, furthest = len(search.positive), search.furthest
        tests: list[tuple[StageKind, str, int]] = [("condition", "WHERE", furthest.count(every, TOGETHER))]
        if search.whole.having:
            tests.append(("condition", "HAVING", furthest.count(every, ABSENT, FOUND)))
        if search.whole.kills:
            tests.append(("absent", "~", furthest.count(every, FOUND)))
        for kind, part, passed in tests:
            if not self._add(stages, search, FunnelStage(kind, part, passed, "events")):
                return Looked((), tuple(stages), 0)
        return Looked((), tuple(stages), 0, starts=furthest.count(every, FOUND))

    def _add(self, stages: list[FunnelStage], search: MatchSearch, stage: FunnelStage) -> int:
        best = search.furthest.best
        if not stage.found and best is not None:
            stage = stage.told(f"{best.stage.part}: {best.stage.message}", best.stage.hint)
        stages.append(stage)
        return stage.found


def _passed(search: MatchSearch, best: MatchFailure) -> Iterator[FunnelStage]:
    _, variables, test, _ = best.rank
    if variables >= len(search.positive):
        return
    names: Iterable[tuple[int, FunnelStage]] = [
        (ORDER, FunnelStage("order", "SEQ", 1, "events")),
        (WINDOW, FunnelStage("window", format_window(search.pattern.within or 0), 1, "events")),
    ]
    if search.pattern.keys:
        names = [*names, (EQUAL, FunnelStage("equal", f"[{', '.join(search.pattern.keys)}]", 1, "events"))]
    yield from (stage for own, stage in sorted(names, key=lambda one: one[0]) if own < test)
    if test == STRATEGY:
        yield FunnelStage("condition", "WHERE", 1, "events")


def _better(by: Event) -> FunnelStage:
    what = f"a match with {event_text(by)} is earlier or has more events"
    return FunnelStage("maximal", "EARLIEST MAXIMAL", 0, "events").told(what)


def _depth(stages: Sequence[FunnelStage]) -> tuple[int, int]:
    return len(stages), sum(bool(stage.found) for stage in stages)


@dataclass(frozen=True, slots=True)
class OutputMatch:
    """A match as its output shows it: the events, their interval, and the documents behind them."""

    fillers: Sequence[Filler]
    t0: int
    documents: frozenset[DocumentRef]


class Matcher:
    """Finds matches of a pattern; `given` returns the events of a stream. `take` is called with the steps done."""

    def __init__(self, pattern: Pattern | NearPattern, given: Callable[[str], Iterable[Event]], take: Take) -> None:
        self._pattern, self._given, self._take = pattern, given, take
        if isinstance(pattern, Pattern):
            self._variables = {one.name: one for one in pattern.variables if not one.negated}
            self._streams = {name: one.source.stream for name, one in self._variables.items()}
        else:
            self._streams = {one.source.stream: one.source.stream for one in letters_of(pattern.letters)}

    def match(self, wanted: OutputMatch) -> MatchBindings | None:
        """Returns a match with the events in the output; None if there is none."""
        candidates = [self._candidates(one, wanted) for one in wanted.fillers]
        return next(self._matches(wanted, candidates, {}, 0), None)

    def _candidates(self, filler: Filler, wanted: OutputMatch) -> list[Event]:
        found = []
        for event in self._given(self._streams.get(filler.variable, "")):
            self._take(1)
            parts = list(given_parts(event))
            roots = {root for part in parts for root in part.roots}
            if event.t0 >= wanted.t0 and roots == set(filler.roots) and _behind([event]) <= wanted.documents:
                found.append(event)
        return found

    def _matches(
        self, wanted: OutputMatch, candidates: Sequence[Sequence[Event]], bound: dict[str, list[Event]], at: int
    ) -> Iterator[MatchBindings]:
        if at == len(candidates):
            if self._is_match(wanted, bound):
                yield {name: tuple(events) for name, events in bound.items() if events}
            return
        variable = wanted.fillers[at].variable
        for event in candidates[at]:
            self._take(1)
            if self._may_follow(event, variable, bound):
                bound.setdefault(variable, []).append(event)
                yield from self._matches(wanted, candidates, bound, at + 1)
                bound[variable].pop()

    def _may_follow(self, event: Event, variable: str, bound: Mapping[str, Sequence[Event]]) -> bool:
        for other, events in bound.items():
            steps = self._steps(other, variable)
            for one in events:
                if one is event or any(one.values[key] != event.values[key] for key in self._pattern.keys):
                    return False
                if (steps > 0 and not before(one, event)) or (steps < 0 and not before(event, one)):
                    return False
        return True

    def _steps(self, one: str, other: str) -> int:
        """Whether events of one variable precede later ones of the other, or itself (1), follow them (-1), or come in
        any order (0)."""
        if isinstance(self._pattern, NearPattern) or one == other:
            return 1
        groups = self._variables[one].group, self._variables[other].group
        return (groups[0] < groups[1]) - (groups[0] > groups[1])

    def _is_match(self, wanted: OutputMatch, bound: MatchBindings) -> bool:
        events = [event for some in bound.values() for event in some]
        if _behind(events) != wanted.documents or min(event.t0 for event in events) != wanted.t0:
            return False
        return all(condition_holds(condition, scope) for condition, scope in tested(self._pattern, bound))


def tested(pattern: Pattern | NearPattern, match: MatchBindings) -> Iterator[tuple[EventCondition, ValueScope]]:
    """Yields the conditions on a match, HAVING last, with the values of their names, for each event in order."""
    if isinstance(pattern, NearPattern):
        return
    for asked in [*(conjunct_of(pattern, one) for one in pattern.conjuncts), *having_of(pattern)]:
        yield from ((asked.said, scope) for scope in asked.scopes(match))


def _behind(events: Iterable[Event]) -> frozenset[DocumentRef]:
    return frozenset(source for event in events for part in given_parts(event) for source in part.behind)
