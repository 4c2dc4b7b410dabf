"""What a BUDGET leaves is what its definition says, in any intervals, with restarts; and what is learnt is worth it."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from pattern_stage.matching.history import BUNDLES, MOST_SEEN, Candidate, History, Made
from tests.generate.events import LENGTH, events, schemas
from tests.generate.seeds import seeds
from tests.oracle.budget import Budget
from tests.oracle.event_schemas import Schema
from tests.oracle.event_syntax import Window
from tests.oracle.pattern_syntax import Letter, Near
from tests.oracle.pattern_world import PatternWorld
from tests.pattern_stage.test_patterns import END, to_the_end
from tests.support.event_agreement import Run, random_run
from tests.support.pattern_agreement import PatternRunner, expected


@pytest.mark.parametrize("seed", seeds(30, 3_000))
def test_a_budget_leaves_what_its_history_says(seed: int) -> None:
    rng = Random(seed)
    known = schemas(rng)
    given = {name: events(rng, name, schema, 14) for name, schema in known.items()}
    statements = [_near(rng, known) for _ in range(4)]
    world = PatternWorld(known, given, statements)
    runner = PatternRunner(world, to_the_end(random_run(rng, 0, LENGTH)))
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
    world = PatternWorld(known, given, statements)
    runner = PatternRunner(world, Run((END,)))
    runner.results()
    for place in range(len(statements)):
        assert set(runner.told[place]) == expected(world, place)


def _near(rng: Random, known: Mapping[str, Schema], budget: int | None = None) -> Near:
    word = tuple(Letter(rng.choice(list(known)), rng.random() < 0.15) for _ in range(rng.choice((2, 3, 3, 4))))
    common = set.intersection(*(set(known[one.stream].items()) for one in word))
    keys = tuple(rng.sample(sorted(name for name, _ in common), min(len(common), rng.choice((0, 1, 1)))))
    window = Window(str(rng.choice((3, 6, 20))))
    return Near(word, rng.randrange(1, min(len(word), 3)), window, keys, budget or rng.choice((1, 2, 3, 5, 18)))


def test_what_is_remembered_is_bounded() -> None:
    """Bundles are forgotten one after the other, vectors that were not seen for long, and nodes that have ended."""
    history = History(10, lambda key: key)
    for turn in range(2 * BUNDLES):
        time, key = 100 * turn, (turn,)
        history.pass_until(time)
        place = ((turn % 7_000, turn % 3),)
        history.learn(time, [(key, Made((place, turn), time, (), True))])
        history.chosen(time, key, [Candidate((place, turn), time, time, 0)], 1)
        history.tidy(time)
        assert len(history.nodes) == 1 and len(history.told) <= 20 and len(history.known) <= MOST_SEEN
    assert all(one.map.bit_length() <= BUNDLES for one in history.known.values())
    assert sum(one.map for one in history.known.values() if one.map.bit_count() == 1) > 0
    assert history.bundles == 2 * BUNDLES
