"""Event queries and PATTERNs are retraced as brute force finds it: events of operators, what keeps documents out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from random import Random

import pytest

from mmqjp.documents.record import Record
from mmqjp.explain.retrace.events import EventTracer
from mmqjp.explain.retrace.patterns import LookingForMatches
from mmqjp.explain.retrace.search import Sought
from mmqjp.explain.retrace.stages import Trial
from mmqjp.explain.retrace.values import Event, SourceEvent, given_parts
from mmqjp.explain.terms import FunnelStage
from tests.generate.documents import chance
from tests.generate.event_worlds import world
from tests.generate.events import events, schemas
from tests.generate.patterns import PatternMaker
from tests.generate.seeds import seeds
from tests.oracle.event_schemas import Schema
from tests.oracle.event_syntax import Both, Cel, Cmp, Cond, Filter, Fold, Name, Next, Num, Ref, Stream, Window
from tests.oracle.event_values import Scope, holds
from tests.oracle.events import Event as Expected
from tests.oracle.events import World, before
from tests.oracle.near_matches import near_matches
from tests.oracle.pattern_matches import Matcher, Run
from tests.oracle.pattern_syntax import Absent, Many, Near, Pattern, Statement
from tests.oracle.pattern_world import PatternWorld, by_parts
from tests.support.event_agreement import lowered
from xscl.algebra.events import NearPattern
from xscl.algebra.events import Pattern as Lowered
from xscl.event_lower import lower_statement
from xscl.event_parser import schemas_of
from xscl.parser import parse_script
from xscl.problems import XsclErrors
from xscl.syntax import EventStreams

Result = tuple[frozenset[tuple[str, object]], int, int, frozenset[tuple[str, str]]]


class Retraced:
    """The statements of a world over its events, each of which is a document of its own."""

    def __init__(self, of: World) -> None:
        self.world = of
        self.statements, _ = lowered(of)
        self.trial = Trial(self.given, lambda steps: None)
        self._known = {name: sorted(map(partial(_given, name), found), key=_end) for name, found in of.given.items()}

    def given(self, name: str) -> Sequence[Event]:
        if name not in self._known:
            published = [
                Event(one.values, one.t0, one.t1, SourceEvent(name, (f"{place} {_named(_result(one))}", name), (), ()))
                for place, statement in enumerate(self.world.statements)
                if statement.publish == name
                for one in self.trial.all(self.statements[place])
            ]
            self._known[name] = sorted({one.made: one for one in published}.values(), key=_end)
        return self._known[name]


def _given(name: str, one: Expected) -> Event:
    ((id, _),) = _sources(one)
    return Event(one.values, one.t0, one.t1, SourceEvent(name, (id, name), (), ()))


def _end(one: Event) -> int:
    return one.t1


def _result(one: Event) -> Result:
    return frozenset(one.values.items()), one.t0, one.t1, frozenset(part.source for part in given_parts(one))


def _expected(one: Expected) -> Result:
    return one.attributes, one.t0, one.t1, frozenset(_sources(one))


def _sources(one: Expected) -> Iterator[tuple[str, str]]:
    for part in one.parts:
        assert isinstance(part, tuple)
        if len(part) == 2:
            yield f"{part[1]}", part[0]
        else:
            name, place, made = part
            yield f"{place} {_named(_expected(made))}", name


@pytest.mark.parametrize("seed", seeds(5, 3_000))
def test_the_events_of_statements_are_those_of_brute_force(seed):
    made = world(seed, most=12)
    retraced = Retraced(made)
    for place, statement in enumerate(made.statements):
        found = {_result(one) for one in retraced.trial.all(retraced.statements[place])}
        expected = {_expected(one) for one in made.results(place)}
        assert found == expected, statement.text()
        looked = EventTracer(retraced.trial, (), _why_none).of(retraced.statements[place], ())
        assert {_result(one) for one in looked.events} == expected, statement.text()
        assert all(stage.found for stage in looked.stages[:-1]) and bool(looked.stages[-1].found) == bool(expected)


def _named(result: Result) -> str:
    """The id of a published event, which is the same for the same one."""
    values, t0, t1, sources = result
    return f"{sorted(values)} {t0} {t1} {sorted(sources)}"


STAGES = {"output", "event", "filtered", "order", "window", "condition", "consumed", "ended"}


def test_the_stage_that_is_named_is_the_first_that_is_not_passed():
    seen = Counter[str]()
    for seed in seeds(61, 4_000):
        check(seed, seen)
    assert seen.keys() >= STAGES


def check(seed: int, seen: Counter[str]) -> None:
    rng = Random(seed)
    known = schemas(rng)
    given = {name: events(rng, name, schema, 9) for name, schema in known.items()}
    made = World(known, given, [_statement(rng, known) for _ in range(2)])
    retraced = Retraced(made)
    documents = [record for name in given for record in _records(name, retraced.given(name))]
    for place, statement in enumerate(made.statements):
        results = [frozenset(_sources(one)) for one in made.results(place)]
        for _ in range(12):
            some = rng.sample(documents, rng.choice((1, 2, 2, 2)))
            looking = EventTracer(retraced.trial, some, _why_none)
            found = looking.of(retraced.statements[place], tuple(range(len(some))))
            sources = {(record.id, record.stream) for record in some}
            is_fold = "FOLD" in statement.text()
            if not is_fold:  # an event inside a run is none of its parts
                assert bool(found.events) == any(one >= sources for one in results), (statement.text(), sources)
            elif any(one >= sources for one in results):
                assert found.events, (statement.text(), sources)
            if found.events:
                seen["output"] += 1
                continue
            *passed, last = found.stages
            assert last.message and not last.found and all(stage.found for stage in passed)
            seen[last.kind] += 1
            ways = _Brute(made, place).kinds([(record.id, record.stream) for record in some])
            shown = statement.text(), sources, found.stages, ways
            if is_fold:
                kinds = (
                    {"condition", "ended", "order", "window", "together"}
                    if "of a run" in {w[2] for w in ways}
                    else set()
                )
                assert last.kind in kinds | {kind for _, _, kind in ways}, shown
            else:
                assert last.kind == max(ways, key=lambda way: way[:2])[2], shown


def _records(name: str, found: Sequence[Event]) -> list[Record]:
    own = [one.made.source[0] for one in found if isinstance(one.made, SourceEvent)]
    return [
        Record(-1, id, name, one.t0, one.t1, "<x/>", "external", (), (), ((id, name),))
        for id, one in zip(own, found, strict=True)
    ]


def _why_none(name: str, record: Record) -> Iterator[FunnelStage]:
    yield FunnelStage("event", name, 0, "events").told(f"{record.stream} is not {name}")


def _statement(rng: Random, known: dict[str, Schema]) -> Cel:
    """A NEXT or FOLD, perhaps with filters before and behind it, without conditions on DUR: these are windows, too."""
    left, right = rng.choice(list(known)), rng.choice(list(known))
    common = [name for name in known[left] if known[right].get(name) == known[left][name]]
    conditions: list[Cond] = []
    for _ in range(rng.choice((0, 1, 1, 2))):
        if common:
            name = rng.choice(common)
            op = rng.choice(("=", "=", "!=")) if known[left][name] == "string" else rng.choice(("=", "<", ">="))
            conditions.append(Cmp(op, Ref(name, "$1"), Ref(name, "$2")))  # type: ignore[arg-type]  # a relation
    condition = None if not conditions else conditions[0] if len(conditions) == 1 else Both("AND", tuple(conditions))
    one, other = _filtered(rng, left, known), _filtered(rng, right, known)
    window = Window(str(rng.choice((2, 4, 8, 20)))) if chance(rng, 60) else None
    if known[right].items() <= known[left].items() and chance(rng, 50):
        goes_on = Cmp("!=", Ref(common[0], "$2"), Ref(common[0], "$")) if chance(rng, 50) else None
        return Cel(Fold(one, condition, goes_on, (), other), None, window)
    stream: Stream = Next(one, condition, other)
    return Cel(stream, None, window)


def _filtered(rng: Random, name: str, known: dict[str, Schema]) -> Stream:
    if chance(rng, 60):
        return Name(name)
    attribute = rng.choice([one for one, kind in known[name].items() if kind == "number"] or [next(iter(known[name]))])
    return Filter(Cmp(rng.choice((">", "<=")), Ref(attribute), Num(rng.choice(("0.5", "1", "1.5")))), Name(name))


class _Brute:
    """What keeps documents, given by their sources, from a result of a statement that `_statement` made."""

    def __init__(self, made: World, place: int) -> None:
        self._world, statement = made, made.statements[place]
        assert isinstance(statement.stream, Next | Fold)
        self._stream = statement.stream
        self._within = None if statement.within is None else statement.within.us

    def kinds(self, sources: Sequence[tuple[str, str]]) -> list[tuple[int, tuple[int, ...], str]]:
        """Of each way in which they may be on both sides: how many have an event, how far they come, and the kind."""
        return [
            self._one(
                [one for one, is_left in zip(sources, sides, strict=True) if is_left],
                [one for one, is_left in zip(sources, sides, strict=True) if not is_left],
            )
            for sides in product((True, False), repeat=len(sources))
        ]

    def _one(
        self, mine: Sequence[tuple[str, str]], others: Sequence[tuple[str, str]]
    ) -> tuple[int, tuple[int, ...], str]:
        left, found, why = self._side(self._stream.left, mine)
        right, more, otherwise = self._right(others)
        if not left or not right:
            return (found + more, *(why if not left else otherwise))
        return (found + more, *self._pairs(left, right, bool(others)))

    def _right(self, others: Sequence[tuple[str, str]]) -> tuple[list[Expected], int, tuple[tuple[int, ...], str]]:
        stream = self._stream.right
        name = stream.source if isinstance(stream, Filter) else stream  # the filter is a condition of NEXT or FOLD
        if isinstance(self._stream, Next) or len(others) < 2:
            return self._side(name, others)
        sides = [self._side(name, [one]) for one in others]
        failed = next((side for side in sides if not side[0]), sides[0])
        return failed[0], sum(side[1] for side in sides), failed[2]

    def _side(
        self, stream: Stream, docs: Sequence[tuple[str, str]]
    ) -> tuple[list[Expected], int, tuple[tuple[int, ...], str]]:
        name = stream.source if isinstance(stream, Filter) else stream
        assert isinstance(name, Name)
        every = self._world.given[name.name]
        if len(docs) > 1:
            return [], 0, ((0, -1), "event")
        found = [one for one in every if not docs or docs[0] in set(_sources(one))]
        if not found:
            return [], 0, ((0, len(docs)), "event")
        if isinstance(stream, Filter):
            kept = [one for one in found if holds(stream.cond, Scope(one.values, one.duration))]
            return kept, len(docs), ((1, 1), "filtered")
        return found, len(docs), ((0, 0), "")

    def _pairs(self, left: Sequence[Expected], right: Sequence[Expected], named: bool) -> tuple[tuple[int, ...], str]:
        height = 1 + isinstance(self._stream.left, Filter)
        stages: list[tuple[str, Sequence[object]]] = []
        if isinstance(self._stream.right, Filter):
            asked = self._stream.right.cond
            right = [one for one in right if holds(asked, Scope(one.values, one.duration))]
            stages.append(("filtered", right))
        pairs = [(a, b) for a in left for b in right if before(a, b)]
        stages.append(("order", pairs))
        if self._within is not None:
            pairs = [(a, b) for a, b in pairs if b.t1 - a.t0 <= self._within]
            stages.append(("window", pairs))
        if isinstance(self._stream, Fold):
            stages.append(("of a run", []))
        else:
            cond = self._stream.cond
            for one in cond.args if isinstance(cond, Both) else () if cond is None else (cond,):
                pairs = [(a, b) for a, b in pairs if holds(one, _scope(a, b))]
                stages.append(("condition", pairs))
            every = self._side(self._stream.right, ())[0]
            first = [
                (a, b)
                for a, b in pairs
                if not any(before(a, c) and c.t1 < b.t1 and holds(cond, _scope(a, c)) for c in every)
            ]
            stages.append(("consumed", first))
        number = next(number for number, (_, passed) in enumerate(stages) if not passed)
        return (height, number + 1), stages[number][0]


def _scope(a: Expected, b: Expected) -> Scope:
    return Scope(a.values, b.t1 - a.t0, b.values, None, b.t0 - a.t1)


Way = tuple[int, int, int, str]
"""How many documents are in a partial match, or in the event that fails; how many variables it has; the test; and its
kind."""

TESTS = ("order", "equal", "window", "condition", "strategy")
ENDS = ("condition", "together", "condition", "absent")


@pytest.mark.parametrize("seed", seeds(13, 4_000))
def test_the_stage_of_a_pattern_that_is_named_is_the_first_that_is_not_passed(seed):
    check_pattern(seed, Counter())


@pytest.mark.soak
def test_the_random_patterns_have_all_stages():
    seen = Counter[str]()
    kinds = {"match", "event", *TESTS, *ENDS, "maximal", "letters"}
    for seed in range(400, 800):
        check_pattern(seed, seen)
        if seen.keys() >= kinds:
            return
    pytest.fail(f"some kind is not among the cases: {seen}")


def check_pattern(seed: int, seen: Counter[str]) -> None:
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
