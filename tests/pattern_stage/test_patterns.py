"""PATTERN statements in the kernel tell what the oracle says, in any intervals, whatever comes, goes and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import cast

import pytest

from pattern_stage.kernel import Kernel
from pattern_stage.lineage import Lineage
from pattern_stage.partition.kernel import HereRunner, PartitionedKernel
from pattern_stage.values import Texts
from tests.generate.documents import SECOND
from tests.generate.events import LENGTH
from tests.generate.pattern_worlds import pattern_world
from tests.generate.seeds import seeds
from tests.oracle.pattern_syntax import AnyOrder, Near, Pattern
from tests.oracle.pattern_world import PatternWorld
from tests.support.event_agreement import AnyKernel, Run, Runner, assert_finds, expected, random_run

KINDS = ("run", "set", "near")
END = (LENGTH + 30) * SECOND
"""All windows are over then."""


def patterns(seed: int, kind: str = "run") -> PatternWorld:
    """The patterns of one kind in a random world that read its given streams."""
    made = pattern_world(seed)
    given = {name: schema for name, schema in made.schemas.items() if name in made.given}
    statements = [
        replace(one, publish=None)
        for one in made.statements
        if isinstance(one, Pattern | Near) and one.streams <= given.keys() and kind_of(one) == kind
    ]
    return PatternWorld(given, made.given, statements)


def kind_of(one: Pattern | Near) -> str:
    if isinstance(one, Near):
        return "near"
    return "set" if one.maximal or any(isinstance(some, AnyOrder) for some in one.components) else "run"


def to_the_end(run: Run) -> Run:
    """A run that goes on until all windows are over."""
    lives = {place: (begin, end if end <= LENGTH * SECOND else END) for place, (begin, end) in run.lives.items()}
    return replace(run, cuts=(*run.cuts, (LENGTH + 10) * SECOND, END), lives=lives)


def whole(texts: Texts, lineage: Lineage, run: Run) -> AnyKernel:
    return Kernel(texts, lineage, rules=run.rules, hashed=run.hashed)


def not_merged(texts: Texts, lineage: Lineage, run: Run) -> AnyKernel:
    return Kernel(texts, lineage, rules=run.rules, hashed=run.hashed, merged=False)


def in_parts(texts: Texts, lineage: Lineage, run: Run) -> AnyKernel:
    return PartitionedKernel(texts, lineage, HereRunner(3, 2), rules=run.rules, hashed=run.hashed)


@pytest.mark.parametrize(
    ("seed", "kind", "make"),
    [
        *((seed, "run", whole) for seed in seeds(10, 4_000)),
        *((seed, "run", not_merged) for seed in seeds(4, 1_000, first=15_000)),
        *((seed, KINDS[seed % 3], in_parts) for seed in (*seeds(8, 1_000, first=20_000), 20_233, 20_293)),
        *((seed, "set", whole) for seed in seeds(8, 4_000, first=30_000)),
        *((seed, "near", whole) for seed in seeds(6, 3_000, first=40_000)),
    ],
)
def test_patterns_that_come_and_go_in_any_intervals(seed: int, kind: str, make):
    world = patterns(seed, kind)
    assert_finds(world, to_the_end(random_run(Random(seed), len(world.statements), LENGTH)), make)


@pytest.mark.parametrize("seed", seeds(3, 1_000, first=10_000))
def test_runs_at_once(seed: int):
    assert_finds(patterns(seed), Run((END,)))


@pytest.mark.parametrize("seed", seeds(5, 500, first=50_000))
def test_a_budget_leaves_a_part_of_the_matches_the_same_in_any_intervals(seed: int):
    world = patterns(seed, "near")
    every = cast(Sequence[Near], world.statements)
    few = [replace(one, budget=2) for one in every if not one.apart]
    bounded = PatternWorld(world.schemas, world.given, few)
    at_once, in_parts = (Runner(bounded, run) for run in (Run((END,)), to_the_end(random_run(Random(seed), 0, LENGTH))))
    at_once.results()
    in_parts.results()
    for place in range(len(few)):
        assert set(at_once.told[place]) <= expected(bounded, place)
        assert set(in_parts.told[place]) == set(at_once.told[place])
