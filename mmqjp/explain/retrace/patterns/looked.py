"""Looks for a match of a PATTERN that is made of some documents, or counts how far all events come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mmqjp.documents.record import Record
from mmqjp.explain.funnel_stage import Kind, Stage
from mmqjp.explain.pattern_text import component_text
from mmqjp.explain.retrace.covering import Covering
from mmqjp.explain.retrace.event import Event
from mmqjp.explain.retrace.looking import WhyNone
from mmqjp.explain.retrace.patterns.in_line import InLine
from mmqjp.explain.retrace.patterns.in_sets import InSets
from mmqjp.explain.retrace.patterns.lettered import Lettered
from mmqjp.explain.retrace.patterns.seeking import Search
from mmqjp.explain.retrace.patterns.sought import (
    ABSENT,
    EQUAL,
    FOUND,
    MAXIMAL,
    ORDER,
    STRATEGY,
    TOGETHER,
    WINDOW,
    Failure,
    Sought,
)
from mmqjp.explain.retrace.patterns.whole import GivenEvents
from mmqjp.explain.retrace.stages import event_text
from mmqjp.explain.terms import window_text
from xpath_stage.binder import Take
from xscl.algebra.event_sequences import NearPattern, Pattern


class LookingForMatches:
    """Looks for matches of a pattern. `why_none` says why a document has no event of a stream."""

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

    def sought(self) -> Sought:
        """Returns a match of all documents, or what is in the way of one. Without documents, how many events come how
        far as the first one of a match."""
        stages, found = list[Stage](), 0
        for number, record in enumerate(self._documents):
            if any(number in self._covering.of(one) for name in self._read for one in self._given(name)):
                found += 1
                continue
            none = max((self._none(name, record) for name in self._read), key=_depth)
            is_there = none[-1].kind in ("late", "unseen")
            return Sought(None, none, found + is_there, (-1, *_depth(none)), (), () if is_there else (number,))
        for part, name in self._parts():
            stages.append(Stage("event", part, len(self._given(name)), "events"))
            if not stages[-1].found:
                stages[-1] = stages[-1].told(f"no kept document has an event {name}")
                return Sought(None, tuple(stages), found, (-1, 0))
        if isinstance(self._pattern, NearPattern):
            return self._lettered(stages, found)
        search = InSets if self._pattern.has_sets else InLine
        return self._searched(
            search(self._pattern, self._given, self._covering.of, len(self._documents), self._take), stages, found
        )

    @property
    def _read(self) -> list[str]:
        """The streams of the events that a match has."""
        if isinstance(self._pattern, NearPattern):
            return sorted(self._pattern.streams)
        return list(dict.fromkeys(one.source.stream for one in self._pattern.variables if not one.negated))

    def _parts(self) -> Iterator[tuple[str, str]]:
        """Yields what a match has of which stream."""
        if isinstance(self._pattern, Pattern):
            yield from ((component_text(one), one.source.stream) for one in self._pattern.variables if not one.negated)

    def _none(self, name: str, record: Record) -> tuple[Stage, ...]:
        return tuple(self._why_none(name, record))

    def _lettered(self, stages: list[Stage], found: int) -> Sought:
        assert isinstance(self._pattern, NearPattern)
        count = sum(len(self._given(name)) for name in self._read)
        stages.append(Stage("event", ", ".join(self._read), count, "events"))
        if not count:
            stages[-1] = stages[-1].told("no kept document has an event of these")
            return Sought(None, tuple(stages), found)
        search = Lettered(self._pattern, self._given, self._covering.of, len(self._documents), self._take)
        return search.sought(stages, found)

    # ------------------------------------------------------------ without ERRORS

    def _searched(self, search: Search, stages: list[Stage], found: int) -> Sought:
        match = search.run()
        if not self._documents:
            return self._counted(search, stages)
        if match is not None and search.pattern.maximal:
            match, by = search.whole.best(match)
            covered = frozenset[int]().union(*(self._covering.of(one) for some in match.values() for one in some))
            if by is not None and not search.wanted <= covered:
                return Sought(None, (*stages, _better(by)), found, (len(search.wanted), 1 << 20, MAXIMAL), (by,))
        if match is not None:
            return Sought(match, (*stages, *_passed(search, None)), found)
        best = search.furthest.best
        if best is None:
            what = "the documents cannot be in one match: there is no place for all of them"
            last = Stage("together", "SEQ", 0, "events").told(what)
            return Sought(None, (*stages, last), found)
        return Sought(None, (*stages, *_passed(search, best), best.stage), found, best.rank, best.near)

    def _counted(self, search: Search, stages: list[Stage]) -> Sought:
        """Returns how many events come how far as the first one of a match."""
        for variables, one in enumerate(search.positive, 1):
            if not self._add(
                stages, search, Stage("run", component_text(one), search.furthest.count(variables), "events")
            ):
                return Sought(None, tuple(stages), 0)
        every, furthest = len(search.positive), search.furthest
        tests: list[tuple[Kind, str, int]] = [("condition", "WHERE", furthest.count(every, TOGETHER))]
        if search.whole.having:
            tests.append(("condition", "HAVING", furthest.count(every, ABSENT, FOUND)))
        if search.whole.kills:
            tests.append(("absent", "~", furthest.count(every, FOUND)))
        for kind, part, passed in tests:
            if not self._add(stages, search, Stage(kind, part, passed, "events")):
                return Sought(None, tuple(stages), 0)
        return Sought(None, tuple(stages), 0, starts=furthest.count(every, FOUND))

    def _add(self, stages: list[Stage], search: Search, stage: Stage) -> int:
        best = search.furthest.best
        if not stage.found and best is not None:
            stage = stage.told(f"{best.stage.part}: {best.stage.message}", best.stage.hint)
        stages.append(stage)
        return stage.found


def _passed(search: Search, best: Failure | None) -> Iterator[Stage]:
    """Yields what a partial match with the event that fails has passed."""
    if best is None:
        return
    _, variables, test, _ = best.rank
    if variables >= len(search.positive):
        return
    names: Iterable[tuple[int, Stage]] = [
        (ORDER, Stage("order", "SEQ", 1, "events")),
        (WINDOW, Stage("window", window_text(search.pattern.within or 0), 1, "events")),
    ]
    if search.pattern.keys:
        names = [*names, (EQUAL, Stage("equal", f"[{', '.join(search.pattern.keys)}]", 1, "events"))]
    yield from (stage for own, stage in sorted(names, key=lambda one: one[0]) if own < test)
    if test == STRATEGY:
        yield Stage("condition", "WHERE", 1, "events")


def _better(by: Event) -> Stage:
    what = f"a match with {event_text(by)} is earlier or has more events"
    return Stage("maximal", "EARLIEST MAXIMAL", 0, "events").told(what)


def _depth(stages: Sequence[Stage]) -> tuple[int, int]:
    return len(stages), sum(bool(stage.found) for stage in stages)
