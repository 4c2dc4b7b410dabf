"""No statement takes more than the limits say: it is told, at the same epoch in any intervals, before the memory is
taken; and others go on as if it had never been there."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from pattern_stage.operators import Excess, RowLimits
from tests.generate.documents import SECOND
from tests.generate.events import LENGTH
from tests.generate.seeds import seeds
from tests.oracle.event_syntax import Both, Cmp, Fn, Num, Of, Window
from tests.oracle.events import Event, event
from tests.oracle.pattern_syntax import AnyOrder, Letter, Many, Near, One, Pattern, Statement, Times
from tests.oracle.pattern_world import PatternWorld
from tests.pattern_stage.test_patterns import END, patterns, to_the_end
from tests.support.event_agreement import Run, random_run
from tests.support.pattern_agreement import LimitedRunner, expected
from xscl.algebra.events import Kind


def is_plain(one: Statement) -> bool:
    """Whether what is counted is what is told: nothing is asked of a match once it is found."""
    if isinstance(one, Near):
        return not one.apart
    assert isinstance(one, Pattern)
    return not (one.apart or one.having or one.absent)


def with_limits(world: PatternWorld, run: Run, limits: RowLimits) -> LimitedRunner:
    runner = LimitedRunner(world, run, limits)
    runner.results()
    return runner


@pytest.mark.parametrize("kind", ["run", "near"])
@pytest.mark.parametrize("seed", seeds(3, 1_000, first=60_000))
def test_a_statement_with_too_many_matches_at_once_tells_what_it_had_before(seed, kind):
    world = patterns(seed, kind)
    rng = Random(seed)
    run = to_the_end(random_run(rng, 0, LENGTH))
    limits = RowLimits(matches=rng.choice((0, 1, 2, 5)))
    runner = with_limits(world, run, limits)
    judge = PatternWorld(world.schemas, world.given, world.statements, order=runner.order())
    for place, statement in enumerate(world.statements):
        right = expected(judge, place)
        at_once = Counter(known for _, known, _, _ in right)
        over = [known for known, count in at_once.items() if count > limits.matches]
        first = min(over, default=END)
        found = runner.exceeded.get(place)
        if is_plain(statement):
            assert found == (Excess(first, "matches") if over else None), statement.text()
        until = found.time if found else END
        assert until <= first
        assert set(runner.told[place]) == {one for one in right if one[1] < until}, statement.text()


@pytest.mark.parametrize("kind", ["run", "set", "near"])
@pytest.mark.parametrize("seed", seeds(3, 1_000, first=70_000))
def test_what_waits_is_limited_at_the_same_epoch_in_any_intervals(seed, kind):
    world = patterns(seed, kind)
    rng = Random(seed)
    limits = RowLimits(partial=rng.choice((0, 2, 5, 9)), matches=rng.choice((3, 1_000)))
    at_once = with_limits(world, Run((END,)), limits)
    judge = PatternWorld(world.schemas, world.given, world.statements, order=at_once.order())
    run = replace(to_the_end(random_run(rng, 0, LENGTH)), rules=Run((END,)).rules)
    in_parts = with_limits(world, run, limits)
    assert in_parts.exceeded == at_once.exceeded
    for place in range(len(world.statements)):
        assert set(in_parts.told[place]) == set(at_once.told[place])
        until = at_once.exceeded[place].time if place in at_once.exceeded else END
        assert set(at_once.told[place]) == {one for one in expected(judge, place) if one[1] < until}


# ---------------------------------------------------------------- what would take all memory

SCHEMA: dict[str, Kind] = {"x": "number"}
A, B = Many("E", "a"), One("E", "b")
RISES = Cmp(">", Of("a", "x", "i"), Fn("sum", (Of("a", "x", "..i-1"),)))
ALL = Cmp(">=", Of("a", "x", "1"), Num("0"))


def any_match(*components: Many | One, cond: Both | Cmp = ALL) -> Pattern:
    return Pattern(components, Window("1000"), "skip_till_any_match", cond=cond)


def of(values: list[tuple[int, float]]) -> dict[str, list[Event]]:
    return {"E": [event({"x": x}, time * SECOND, time * SECOND, [number]) for number, (time, x) in enumerate(values)]}


EXPLOSIONS: dict[str, tuple[Statement, list[tuple[int, float]]]] = {
    "one run for each subset": (any_match(A, B, cond=RISES), [(time, 2.0**time) for time in range(60)]),
    "one match for each subset": (any_match(A, B), [(time, 1) for time in range(60)]),
    "ways from each event to all before": (
        any_match(A, One("E", "b"), Many("E", "c")),
        [(time, 1) for time in range(100)],
    ),
    "many events at once": (
        any_match(Many("E", "a"), One("E", "b"), cond=RISES),
        [(time, 2.0**time) for time in range(12)] + [(13, 2.0**13)] * 100,
    ),
    "sets": (Pattern((AnyOrder((Many("E", "a"), One("E", "b"))),), Window("1000")), [(time, 1) for time in range(60)]),
    "the greatest set": (
        Pattern(
            (B, AnyOrder((A,))), Window("1000"), cond=Cmp(">", Of("a", "x", "i"), Of("a", "x", "i-1")), maximal=True
        ),
        [(time, time) for time in range(60)],
    ),
    "chains that lack letters": (
        Near((Times(Letter("E"), 1), Letter("E")), 1, Window("1000")),
        [(time, 1) for time in range(60)],
    ),
}


@pytest.mark.parametrize("name", EXPLOSIONS)
def test_what_would_take_all_memory_is_told_before_it_does(name):
    statement, values = EXPLOSIONS[name]
    events = {stream: frozenset(some) for stream, some in of(values).items()}
    quiet = Pattern((One("E", "a"), B), Window("2"), "strict_contiguity", cond=Cmp(">", Of("b", "x"), Num("0")))
    world = PatternWorld({"E": SCHEMA}, events, [statement, quiet])
    tracemalloc.start()
    try:
        runner = with_limits(world, Run((2_000 * SECOND,)), RowLimits(500, 150))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0 in runner.exceeded
    assert peak < 3_000_000
    assert set(runner.told[1]) == expected(world, 1)
