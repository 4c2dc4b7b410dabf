"""What NEXT, FOLD and AGGREGATE may take is limited: it is told at the same epoch in any intervals and by any rules,
before the memory is taken, and others go on as if the statement had never been there."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random

import pytest

from pattern_stage import operators
from pattern_stage.operators import Excess, RowLimits
from tests.generate.documents import SECOND, chance
from tests.generate.events import LENGTH
from tests.generate.seeds import seeds
from tests.oracle.event_syntax import (
    Aggregate,
    Cel,
    Cmp,
    Cond,
    Filter,
    Fn,
    Fold,
    Item,
    Name,
    Next,
    Num,
    Op,
    Ref,
    Stream,
    Union,
    Window,
)
from tests.oracle.event_values import Scope, Value, holds
from tests.oracle.events import Event, World, before, event
from tests.support.event_agreement import LimitedRunner, Run, random_run

SAME = Cmp("=", Ref("k", "$1"), Ref("k", "$2"))
TOTAL = Item(Op("+", Ref("x", "$"), Ref("y", "$2")), "x")
NAMES = ("A", "B", "C")


def a_world(rng: Random) -> World:
    """A few statements over three streams of equal attributes, none of which is NULL: that nothing can match is not
    seen before."""
    schemas = {name: {"k": "string", "x": "number", "y": "number"} for name in NAMES}
    given: dict[str, list[Event]] = {name: [] for name in NAMES}
    for name in NAMES:
        for number in range(rng.randint(4, 14)):
            t1 = rng.randint(0, LENGTH) * SECOND
            t0 = max(0, t1 - rng.choice((0, 0, 0, 1, 3)) * SECOND)
            values: dict[str, Value] = {
                "k": rng.choice("uv"),
                "x": float(rng.choice((0, 1, 2))),
                "y": float(rng.choice((0, 1, 2))),
            }
            given[name].append(event(values, t0, t1, [(name, number)]))
    return World(schemas, given, [a_statement(rng) for _ in range(5)])  # type: ignore[arg-type]  # kinds


def a_statement(rng: Random) -> Cel:
    within = Window(str(rng.choice((2, 4, 7, 30)))) if chance(rng, 70) else None
    stream = a_stream(rng, 2)
    if chance(rng, 20):
        stream = Filter(Cmp(">", Ref("x"), Num("0")), Cel(stream, None, within))
    return Cel(stream, None, within)


def a_stream(rng: Random, depth: int) -> Stream:
    condition: Cond | None = rng.choice((SAME, SAME, None))
    match rng.choice(("next", "next", "fold", "aggregate")):
        case "next":
            left = a_stream(rng, depth - 1) if depth > 1 and chance(rng, 30) else a_leaf(rng)
            if isinstance(left, Aggregate):
                left = a_leaf(rng)
            return Next(left, condition, a_leaf(rng))
        case "fold":
            rises = Cmp(">=", Ref("y", "$2"), Ref("y", "$")) if chance(rng, 40) else None
            right = Cel(a_leaf(rng), (Item(Ref("k")), Item(Ref("y"))))
            return Fold(a_leaf(rng), condition, rises, rng.choice(((), (TOTAL,))), right)
    over = Window(str(rng.choice((2, 5, 9)))) if chance(rng, 80) else None
    return Aggregate(
        (Item(Fn("count"), "n"), Item(Fn("max", (Ref("x"),)), "x")), rng.choice((("k",), ())), over, a_leaf(rng)
    )


def a_leaf(rng: Random) -> Stream:
    name = Name(rng.choice(NAMES))
    if chance(rng, 25):
        return Union(name, Name(rng.choice(NAMES)))
    return Filter(Cmp(">=", Ref("x"), Num("1")), name) if chance(rng, 30) else name


# ---------------------------------------------------------------- the first excess, by the definitions


class Counted:
    """What each operator of a statement has waiting after each epoch, and what it finds in it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._epochs = sorted({one.t1 for found in world.given.values() for one in found})

    def excess(self, statement: Cel, limits: RowLimits) -> Excess | None:
        return min(self._of(statement, None, limits), default=None)

    def _events(self, stream: Stream, within: int | None) -> Iterable[Event]:
        return self._world._of(stream, within, (-(2**62), 2**62))

    def _of(self, stream: Stream, within: int | None, limits: RowLimits) -> Iterator[Excess]:
        match stream:
            case Cel():
                own = None if stream.within is None else stream.within.us
                least = min((bound for bound in (within, own) if bound is not None), default=None)
                yield from self._of(stream.stream, least, limits)
            case Filter():
                yield from self._of(stream.source, within, limits)
            case Union() | Next() | Fold():
                yield from self._of(stream.left, within, limits)
                yield from self._of(stream.right, within, limits)
            case Aggregate():
                yield from self._of(stream.source, within, limits)
        if isinstance(stream, Next | Fold | Aggregate):
            found = Counter(one.t1 for one in self._events(stream, within))
            yield from (Excess(time, "matches") for time, count in found.items() if count > limits.matches)
            waits = Counter[int]()
            for begin, end in self._lives(stream, within):
                waits.update(time for time in self._epochs if begin <= time < end)
            yield from (Excess(time, "partial") for time, count in waits.items() if count > limits.partial)

    def _lives(self, stream: Next | Fold | Aggregate, within: int | None) -> Iterator[tuple[int, int]]:
        """From when on, and until when, each thing waits."""
        if isinstance(stream, Aggregate):
            for one in self._events(stream.source, within) if stream.over else ():
                assert stream.over is not None
                yield one.t1, one.t1 + stream.over.us - 1  # a window ends after it
            return
        left, right = self._events(stream.left, within), self._events(stream.right, within)
        if isinstance(stream, Next):
            for a in left:
                scopes = [(b, Scope(a.values, b.t1 - a.t0, b.values, None, b.t0 - a.t1)) for b in right if before(a, b)]
                taken = min((b.t1 for b, scope in scopes if holds(stream.cond, scope)), default=2**62)
                yield a.t1, min(taken, a.t0 + within if within is not None else 2**62)
            return
        waiting = {(a, a, a.attributes) for a in left}
        while waiting:
            longer = set()
            for first, latest, attributes in waiting:
                values = dict(attributes)
                scopes = [
                    (b, Scope(first.values, b.t1 - first.t0, b.values, values, b.t0 - latest.t1))
                    for b in right
                    if before(latest, b)
                ]
                chosen = [(b, scope) for b, scope in scopes if holds(stream.chooses, scope)]
                m = min((b.t1 for b, _ in chosen), default=2**62)
                yield latest.t1, min(m, first.t0 + within if within is not None else 2**62)
                for b, scope in chosen:
                    if b.t1 == m and holds(stream.goes_on, scope) and (within is None or m - first.t0 <= within):
                        new = {"x": values["x"] + b.values["y"]} if stream.sets else {}  # type: ignore[operator]
                        longer.add((first, b, frozenset({**values, **b.values, **new}.items())))
            waiting = longer


def check(seed: int, seen: Counter[str]) -> None:
    rng = Random(seed)
    world = a_world(rng)
    limits = RowLimits(rng.choice((1, 3, 6, 1_000)), rng.choice((1, 2, 4, 1_000)))
    run = random_run(rng, 0, LENGTH)
    runner = LimitedRunner(world, run, limits)
    runner.results()
    counted = Counted(world)
    for place, statement in enumerate(world.statements):
        excess = counted.excess(statement, limits)
        seen[excess.bound if excess else "none"] += 1
        assert runner.exceeded.get(place) == excess, (statement.text(), limits)
        until = excess.time if excess else 2**62
        assert runner.found_by(place) == {one for one in world.results(place) if one.t1 < until}, statement.text()


@pytest.mark.parametrize("seed", seeds(3, 3_000))
@pytest.mark.parametrize("found", [operators.FOUND, 3])
def test_statements_tell_what_they_have_before_they_exceed_a_limit(
    seed: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "FOUND", found)
    check(seed, Counter())


def test_random_statements_exceed_all_limits() -> None:
    seen = Counter[str]()
    for seed in range(100, 130):
        check(seed, seen)
        if len(seen) == 3:
            return
    pytest.fail(f"some limit is not exceeded: {seen}")


# ---------------------------------------------------------------- what would take all memory

EXPLOSIONS: dict[str, tuple[Stream, list[tuple[int, float]]]] = {
    "all of one time with all of the next": (
        Next(Name("A"), None, Name("A")),
        [(time, 1) for time in (0, 1) for _ in range(6_000)],
    ),
    "a run for each subset": (
        Fold(Name("A"), None, None, (TOTAL,), Cel(Name("A"), (Item(Ref("y")),))),
        [(time, 2.0**time * (1 + place)) for time in range(40) for place in range(2)],
    ),
    "what waits for ever": (
        Next(Name("A"), Cmp("<", Ref("x", "$1"), Ref("x", "$2")), Name("A")),
        [(time, -time) for time in range(3_000)],
    ),
}


@pytest.mark.parametrize("name", EXPLOSIONS)
def test_what_would_take_all_memory_is_told_before_it_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "FOUND", 1 << 16)
    stream, values = EXPLOSIONS[name]
    schemas = {"A": {"x": "number", "y": "number"}}
    events = [
        event({"x": x, "y": x}, time * SECOND, time * SECOND, [number]) for number, (time, x) in enumerate(values)
    ]
    quiet = Cel(Filter(Cmp("<", Ref("x"), Num("-2998")), Name("A")))
    world = World(schemas, {"A": events}, [Cel(stream), quiet])  # type: ignore[arg-type]  # kinds
    runner = LimitedRunner(world, Run((100_000 * SECOND,)), RowLimits(2_000, 5_000))
    tracemalloc.start()
    try:
        runner.results()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0 in runner.exceeded
    assert peak < 100_000_000
    assert runner.found_by(1) == world.results(1)
