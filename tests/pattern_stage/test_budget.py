"""What a BUDGET leaves is what its definition says, in any intervals, with restarts; and what is learnt is worth it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random

import pytest

from pattern_stage.pattern.history import BUNDLES, MOST_SEEN, Extension, LevelOutcomes, NearHistory
from tests.generate.events import LENGTH, events, schemas
from tests.generate.seeds import seeds
from tests.oracle.budget import Budget
from tests.oracle.event_schemas import Schema
from tests.oracle.event_syntax import Window
from tests.oracle.pattern_syntax import Letter, Near
from tests.oracle.pattern_world import PatternWorld
from tests.pattern_stage.test_patterns import END, to_the_end
from tests.support.event_agreement import Run, Runner, assert_finds, random_run


@pytest.mark.parametrize("seed", seeds(12, 3_000))
def test_a_budget_leaves_what_its_history_says(seed: int) -> None:
    rng = Random(seed)
    known = schemas(rng)
    given = {name: events(rng, name, schema, 14) for name, schema in known.items()}
    statements = [_near(rng, known) for _ in range(4)]
    world = PatternWorld(known, given, statements)
    runner = Runner(world, to_the_end(random_run(rng, 0, LENGTH)))
    runner.results()
    for place, near in enumerate(statements):
        found = {frozenset(one for some in bound for one in some) for bound, *_ in runner.told[place]}
        streams = {name: sorted(given[name], key=runner.order()) for name in near.streams}
        assert found == Budget(near, streams, runner.order()).matches(), near.text()


def test_a_large_budget_leaves_everything() -> None:
    rng = Random(5)
    known = schemas(rng)
    given = {name: events(rng, name, schema, 8) for name, schema in known.items()}
    statements = [_near(rng, known, budget=1_000) for _ in range(4)]
    assert_finds(PatternWorld(known, given, statements), Run((END,)))


def _near(rng: Random, known: Mapping[str, Schema], budget: int | None = None) -> Near:
    word = tuple(Letter(rng.choice(list(known)), rng.random() < 0.15) for _ in range(rng.choice((2, 3, 3, 4))))
    common = set.intersection(*(set(known[one.stream].items()) for one in word))
    keys = tuple(rng.sample(sorted(name for name, _ in common), min(len(common), rng.choice((0, 1, 1)))))
    window = Window(str(rng.choice((3, 6, 20))))
    return Near(word, rng.randrange(1, min(len(word), 3)), window, keys, budget or rng.choice((1, 2, 3, 5, 18)))


def test_the_latest_bundles_are_those_of_a_set() -> None:
    rng, known, led, begun = Random(1), LevelOutcomes(()), set[int](), 0
    for _ in range(2_000):
        begun += rng.choice((0, 1, 1, 3, 40, BUNDLES, 2 * BUNDLES)) if rng.random() < 0.05 else rng.randrange(3)
        if begun and rng.randrange(2):
            led.add(bundle := max(begun - rng.randint(1, BUNDLES), 0))
            known.lead(bundle, begun)
        led = {one for one in led if one >= begun - BUNDLES}
        if rng.randrange(2):
            assert known.map(begun) == sum(1 << one % BUNDLES for one in led)


def test_what_is_remembered_is_bounded() -> None:
    """Bundles are forgotten one after the other, vectors that were not seen for long, and nodes that have ended."""
    history = NearHistory(10, lambda key: key)
    for turn in range(3 * BUNDLES):
        time, key = 100 * turn, (turn,)
        history.pass_until(time)
        place = ((turn % 7_000, turn % 3),)
        history.learn(time, [(key, Extension((place, turn), time, (), True))])
        history.age(time, key)
        history.tidy(time)
        living = sum(len(some) for of_key in history.nodes.values() for some in of_key.values())
        assert living == 1 and len(history.told) <= 20 and len(history.vectors) <= MOST_SEEN
    known = history.vectors.known()
    assert len(known) == len(history.vectors)
    assert history.vectors.bundles == 3 * BUNDLES
    maps = [one.map(3 * BUNDLES) for one in known]
    assert all(one.bit_length() <= BUNDLES for one in maps)
    assert {one.bit_count() for one in maps} >= {0, 1}
    # What was learnt last is what is left, and what is saved is what is taken over, in this order.
    assert {one.level[0] for one in known[-3:] if one.level[0] != "at"} == {((turn % 7_000, turn % 3),)}
    again = NearHistory(10, lambda key: key)
    again.remember(json.loads(json.dumps(history.remembered())))
    assert again.remembered() == history.remembered()
