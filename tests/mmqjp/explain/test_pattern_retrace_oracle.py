"""What keeps documents from a match of a PATTERN is what brute force finds: of all partial matches the furthest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from mmqjp.documents.record import Record
from mmqjp.explain.retrace.patterns import LookingForMatches
from mmqjp.explain.retrace.search import Sought
from mmqjp.explain.retrace.values import Event, SourceEvent
from mmqjp.explain.terms import FunnelStage
from tests.generate.events import events, schemas
from tests.generate.patterns import PatternMaker
from tests.generate.seeds import seeds
from tests.oracle.events import Event as Expected
from tests.oracle.events import before
from tests.oracle.near_matches import near_matches
from tests.oracle.pattern_matches import Matcher, Run
from tests.oracle.pattern_syntax import Absent, Many, Near, Pattern, Statement
from tests.oracle.pattern_world import PatternWorld, by_parts
from xscl.algebra.events import NearPattern
from xscl.algebra.events import Pattern as Lowered
from xscl.event_lower import lower_statement
from xscl.event_parser import schemas_of
from xscl.parser import parse_script
from xscl.problems import XsclErrors
from xscl.syntax import EventStreams

Way = tuple[int, int, int, str]
"""How many documents are in a partial match, or in the event that fails; how many variables it has; the test; and its
kind."""

TESTS = ("order", "equal", "window", "condition", "strategy")
ENDS = ("condition", "together", "condition", "absent")


@pytest.mark.parametrize("seed", seeds(13, 4_000))
def test_the_stage_that_is_named_is_the_first_that_is_not_passed(seed: int) -> None:
    check(seed, Counter())


@pytest.mark.soak
def test_the_random_cases_have_all_stages() -> None:
    seen = Counter[str]()
    kinds = {"match", "event", *TESTS, *ENDS, "maximal", "letters"}
    for seed in range(400, 800):
        check(seed, seen)
        if seen.keys() >= kinds:
            return
    pytest.fail(f"some kind is not among the cases: {seen}")


def check(seed: int, seen: Counter[str]) -> None:
    rng = Random(seed)
    known = schemas(rng)
    given = {name: events(rng, name, schema, 6) for name, schema in known.items()}
    maker = PatternMaker(rng, known)
    made = PatternWorld(known, given, [maker.statement() for _ in range(2)])
    try:
        statements = _lowered(made)
    except XsclErrors:
        return  # a condition that is rarely made, and that the language does not take
    own = {name: [(one, _retraced(name, one)) for one in sorted(some, key=by_parts)] for name, some in given.items()}
    every = [one for some in own.values() for one, _ in some]
    for place, statement in enumerate(made.statements):
        assert isinstance(statement, Pattern | Near)
        loose = _loose(statement, given)
        for _ in range(8):
            near = list(rng.choice(loose)) if loose and rng.random() < 0.7 else every
            wanted = rng.sample(near, min(rng.choice((1, 2, 3, 3)), len(near)))
            found = _sought(statements[place], own, wanted)
            matches = [one for one in made.matches(place) if {*wanted} <= {*one.flat}]
            kinds = _kinds(statement, {name: frozenset(some) for name, some in given.items()}, wanted)
            shown = statement.text(), wanted, found, kinds
            if kinds:
                assert found.match is None and found.stages[-1].kind in kinds, shown
                assert found.stages[-1].message and not found.stages[-1].found, shown
                assert all(stage.found for stage in found.stages[:-1]), shown
                assert not matches
                seen[found.stages[-1].kind] += 1
            elif found.match is None:
                assert found.stages[-1].kind == "maximal" and not matches, shown
                assert isinstance(statement, Pattern) and statement.maximal
                seen["maximal"] += 1
            else:
                assert bool(matches) or statement.apart, shown
                seen["match"] += 1


def _lowered(made: PatternWorld) -> list[object]:
    """The statements, in the algebra of events."""
    streams = EventStreams({name: tuple(made.schemas[name].items()) for name in made.given})
    script = parse_script("; ".join(one.text() for one in made.statements), events=streams)
    found = {name: schema for name, schema in schemas_of(script, streams).items() if schema is not None}
    return [lower_statement(query, found) for query in script.event_queries]


def _retraced(name: str, one: Expected) -> Event:
    return Event(one.values, one.t0, one.t1, SourceEvent(name, _source(one), (_source(one),), (), ()))


def _source(one: Expected) -> tuple[str, str]:
    (part,) = one.parts
    assert isinstance(part, tuple)
    return f"{part[1]}", f"documents of {part[0]}"


def _sought(statement: object, own: dict[str, list[tuple[Expected, Event]]], wanted: Sequence[Expected]) -> Sought:
    assert isinstance(statement, Lowered | NearPattern)
    records = [
        Record(-1, id, stream, one.t0, one.t1, "<x/>", "external", (), (), ((id, stream),))
        for one in wanted
        for id, stream in [_source(one)]
    ]

    def why_none(name: str, record: Record) -> Iterator[FunnelStage]:
        yield FunnelStage("event", name, 0, "events").told(f"{record.stream} has no {name}")

    def given(name: str) -> list[Event]:
        return [one for _, one in own[name]]

    return LookingForMatches(statement, given, records, why_none, lambda _: None).sought()


def _loose(statement: Pattern | Near, given: dict[str, frozenset[Expected]]) -> list[tuple[Expected, ...]]:
    """The events of what a pattern would match if it had variables only: perhaps something is in the way of these."""
    if isinstance(statement, Near):
        return []
    taking = tuple(one for one in statement.components if not isinstance(one, Absent))
    pattern = replace(
        statement, components=taking, strategy="skip_till_any_match", cond=None, having=None, maximal=False
    )
    found = Matcher(pattern, {name: frozenset(some) for name, some in given.items()}, by_parts).matches()
    return sorted((one.flat for one in found), key=lambda some: [by_parts(one) for one in some])


# ---------------------------------------------------------------- by brute force


def _kinds(statement: Statement, given: dict[str, frozenset[Expected]], wanted: Sequence[Expected]) -> set[str]:
    """What may be said to be in the way; nothing if a match, EARLIEST MAXIMAL aside, has all events."""
    assert isinstance(statement, Pattern | Near)
    read = statement.streams if isinstance(statement, Near) else {one.stream for one in statement.positive}
    there = [one for name in read for one in given[name]]
    if not all(one in there for one in wanted) or not there:
        return {"event"}
    if isinstance(statement, Near):
        return _near_kinds(statement, given, wanted)
    if not all(given[name] for name in read):
        return {"event"}
    ways = list((_Sets if len(statement.sets) < len(statement.positive) else _Runs)(statement, given, wanted).ways())
    best = max((way[:3] for way in ways), default=None)
    if best is None:
        return {"together"}
    return {kind for *way, kind in ways if tuple(way) == best and kind}


class _Ways:
    """The ways in which partial matches fail. A way without a kind is a match."""

    def __init__(self, pattern: Pattern, given: dict[str, frozenset[Expected]], wanted: Sequence[Expected]) -> None:
        self.pattern, self.given, self.wanted = pattern, given, frozenset(wanted)
        self.oracle = Matcher(pattern, given, by_parts)
        self.variables = pattern.positive

    def count(self, some: Sequence[Expected]) -> int:
        return len(self.wanted & {*some})

    def end(self, bound: tuple[tuple[Expected, ...], ...], *, complete: bool) -> Way:
        """What is said of bindings of all variables, the last of which may not be `complete`."""
        events = [one for some in bound for one in some]
        number, last = self.count(events), len(bound)
        failed = 4
        if not complete:
            failed = 0
        elif not self.wanted <= {*events}:
            failed = 1
        elif not self.oracle._holds(self.oracle._having, bound):
            failed = 2
        elif self.oracle._is_killed(bound):
            failed = 3
        return number, last, 100 + failed, (*ENDS, "")[failed]

    def has_room(self, bound: int, missing: int) -> bool:
        """Whether the variables behind, with the last one that has events, may have so many events more."""
        rest = self.variables[bound:]
        return (
            isinstance(self.variables[bound - 1], Many)
            or any(isinstance(one, Many) for one in rest)
            or missing <= len(rest)
        )


class _Runs(_Ways):
    def ways(self) -> Iterator[Way]:
        waiting: list[Run] = [()]
        while waiting:
            run = waiting.pop()
            events = [one for one, _ in run]
            if run and run[-1][1] == len(self.variables) - 1:
                yield self.end(self.oracle._bound(run), complete=self.oracle._is_complete(run))
            for component in self.oracle._nexts(run):
                comes = False
                for one in self.oracle._of(component):
                    if run and not before(run[-1][0], one):
                        if one in self.wanted and one not in events:
                            yield self.count([*events, one]), component, 0, "order"
                        continue
                    comes = True
                    failed = self._failed(run, one, component)
                    if failed is not None:
                        yield self.count([*events, one]), component, failed, TESTS[failed]
                    elif self._may_have_all((*run, (one, component))):
                        waiting.append((*run, (one, component)))
                if not comes and (not run or component != run[-1][1]):
                    yield self.count(events), component, 0, "order"

    def _failed(self, run: Run, one: Expected, component: int) -> int | None:
        first = run[0][0] if run else one
        if not self.oracle._is_alike(one, first):
            return 1
        if not self.oracle._fits(first.t0, one.t1):
            return 2
        if not self.oracle._ok(run, one, component):
            return 3
        return None if self.oracle._is_reached(run, one) else 4

    def _may_have_all(self, run: Run) -> bool:
        missing = self.wanted - {one for one, _ in run}
        last, at = run[-1]
        behind = {
            one
            for component in range(at, len(self.variables))
            for one in self.oracle._of(component)
            if before(last, one)
        }
        return missing <= behind and (not missing or self.has_room(at + 1, len(missing)))


class _Sets(_Ways):
    def ways(self) -> Iterator[Way]:
        waiting: list[tuple[tuple[Expected, ...], ...]] = [()]
        while waiting:
            bound = waiting.pop()
            at = len(bound) - 1
            if at == len(self.variables) - 1:
                yield self.end(bound, complete=self._is_complete(bound))
            for to in [*([at] if bound and isinstance(self.variables[at], Many) else []), at + 1]:
                if to < len(self.variables):
                    yield from self._steps(bound, to, waiting)

    def _steps(
        self, bound: tuple[tuple[Expected, ...], ...], to: int, waiting: list[tuple[tuple[Expected, ...], ...]]
    ) -> Iterator[Way]:
        events = [one for some in bound for one in some]
        comes = False
        for one in self.oracle._of(to):
            if one in events:
                continue
            behind = [
                other for at, some in enumerate(bound) if at == to or self._set(at) < self._set(to) for other in some
            ]
            if not all(before(other, one) for other in behind):
                if one in self.wanted:
                    yield self.count([*events, one]), to, 0, "order"
                continue
            comes = True
            more = (*bound[:to], (*bound[to], one) if to < len(bound) else (one,))
            failed = self._failed(bound, more, one)
            if failed is not None:
                yield self.count([*events, one]), to, failed, TESTS[failed]
            elif self._may_have_all(more):
                waiting.append(more)
        if not comes and to == len(bound) and bound:
            yield self.count(events), to, 0, "order"

    def _set(self, at: int) -> int:
        return [place for place, some in enumerate(self.pattern.sets) for _ in some][at]

    def _failed(
        self, bound: tuple[tuple[Expected, ...], ...], more: tuple[tuple[Expected, ...], ...], one: Expected
    ) -> int | None:
        events = [other for some in more for other in some]
        if not self.oracle._is_alike(one, events[0]):
            return 1
        if not self.oracle._fits(min(other.t0 for other in events), max(other.t1 for other in events)):
            return 2
        if len(more) > len(bound) and bound and not self._is_complete(bound):
            return 3
        name = self.variables[len(more) - 1].variable
        own = [test for test in self.oracle._tests if test.variables == {name} and test.last([name]) != (0, 2)]
        return None if all(test.holds({name: more[-1]}) for test in own) else 3

    def _is_complete(self, bound: tuple[tuple[Expected, ...], ...]) -> bool:
        names = self.oracle._names[: len(bound)]
        named = dict(zip(names, bound, strict=True))
        return all(test.holds(named) for test in self.oracle._tests if test.variables <= {*names})

    def _may_have_all(self, bound: tuple[tuple[Expected, ...], ...]) -> bool:
        missing = self.wanted - {one for some in bound for one in some}
        begin = len(bound) - isinstance(self.variables[len(bound) - 1], Many)
        rest = {one for at in range(begin, len(self.variables)) for one in self.oracle._of(at)}
        return missing <= rest and (not missing or self.has_room(len(bound), len(missing)))


def _near_kinds(near: Near, given: dict[str, frozenset[Expected]], wanted: Sequence[Expected]) -> set[str]:
    chain = sorted(wanted, key=lambda one: one.t1)
    if not all(before(one, other) for one, other in pairwise(chain)):
        return {"order"}
    if any(one.values[key] is None or one.values[key] != chain[0].values[key] for one in chain for key in near.keys):
        return {"equal"}
    if near.within is not None and chain[-1].t1 - chain[0].t0 > near.within.us:
        return {"window"}
    found = near_matches(near, given)
    return set() if any({*wanted} <= {*one.flat} for one in found) else {"letters"}
