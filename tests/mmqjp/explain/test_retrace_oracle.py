"""Event queries are retraced as brute force finds it: the events of each operator, and what keeps documents from a
result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from random import Random

import pytest

from mmqjp.documents.record import Record
from mmqjp.explain.retrace.events import EventTracer
from mmqjp.explain.retrace.stages import Trial
from mmqjp.explain.retrace.values import Event, SourceEvent, given_parts
from mmqjp.explain.terms import FunnelStage
from tests.generate.documents import chance
from tests.generate.event_worlds import world
from tests.generate.events import events, schemas
from tests.generate.seeds import seeds
from tests.oracle.event_schemas import Schema
from tests.oracle.event_syntax import Both, Cel, Cmp, Cond, Filter, Fold, Name, Next, Num, Ref, Stream, Window
from tests.oracle.event_values import Scope, holds
from tests.oracle.events import Event as Expected
from tests.oracle.events import World, before
from tests.support.event_agreement import lowered

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
def test_the_events_of_statements_are_those_of_brute_force(seed: int) -> None:
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


# ---------------------------------------------------------------- what keeps documents from a result


STAGES = {"output", "event", "filtered", "order", "window", "condition", "consumed", "ended"}


def test_the_stage_that_is_named_is_the_first_that_is_not_passed() -> None:
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


# ---------------------------------------------------------------- statements, and their stages by brute force


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
