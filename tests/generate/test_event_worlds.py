"""Whether random worlds of events are what they should be: repeatable, often with results, and of every operator."""

from __future__ import annotations

from collections import Counter

from tests.generate.event_worlds import world
from tests.oracle.event_syntax import Stream

SEEDS = range(60)


def operators(stream: Stream) -> Counter[str]:
    return sum((operators(source) for source in stream.inputs), Counter([type(stream).__name__]))


def test_a_seed_gives_the_same_world():
    one, other = world(7), world(7)
    assert one.statements == other.statements
    assert [one.results(place) for place in range(10)] == [other.results(place) for place in range(10)]


def test_many_statements_find_something():
    worlds = [world(seed) for seed in SEEDS]
    found = [len(one.results(place)) for one in worlds for place in range(len(one.statements))]
    assert sum(map(bool, found)) > len(found) / 3
    assert max(found) > 20


def test_statements_have_all_operators_and_some_are_equal():
    every = [statement for seed in SEEDS for statement in world(seed).statements]
    used = sum(map(operators, every), Counter[str]())
    assert min(used[name] for name in ("Next", "Fold", "Filter", "Union", "Aggregate", "Cel", "Name")) > 50
    assert any(len(set(world(seed).statements)) < 10 for seed in SEEDS)
