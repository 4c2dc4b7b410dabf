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
from tests.support.event_agreement import AnyKernel, MakeKernel, Run, random_run
from tests.support.pattern_agreement import PatternRunner, expected

KINDS = ("run", "set", "near")
END = (LENGTH + 30) * SECOND
"""All windows are over then."""


def patterns(seed: int, kind: str = "run") -> PatternWorld:
    """The patterns of a random world that read what is given: those of one kind."""
    made = pattern_world(seed)
    given = {name: schema for name, schema in made.schemas.items() if name in made.given}
    statements = [
        replace(one, publish=None)
        for one in made.statements
        if isinstance(one, Pattern | Near) and one.streams <= given.keys() and kind_of(one) == kind
    ]
    return PatternWorld(given, made.given, statements)


def kind_of(one: Pattern | Near) -> str:
    """How a pattern is looked for."""
    if isinstance(one, Near):
        return "near"
    return "set" if one.maximal or any(isinstance(some, AnyOrder) for some in one.components) else "run"


def check(world: PatternWorld, run: Run, make: MakeKernel | None = None) -> None:
    runner = PatternRunner(world, run, make)
    runner.results()
    judge = PatternWorld(world.schemas, world.given, world.statements, run.lives, order=runner.order())
    for place, statement in enumerate(world.statements):
        found, right = set(runner.told[place]), expected(judge, place)
        shown = f"{statement.text()}\n{run}\nmissing: {right - found}\ntoo many: {found - right}"
        assert found == right, shown


def to_the_end(run: Run) -> Run:
    """A run that goes on until all windows are over."""
    lives = {place: (begin, end if end <= LENGTH * SECOND else END) for place, (begin, end) in run.lives.items()}
    return replace(run, cuts=(*run.cuts, (LENGTH + 10) * SECOND, END), lives=lives)


@pytest.mark.parametrize("seed", seeds(10, 4_000))
def test_runs_that_come_and_go_in_any_intervals(seed: int):
    world = patterns(seed)
    check(world, to_the_end(random_run(Random(seed), len(world.statements), LENGTH)))


@pytest.mark.parametrize("seed", seeds(5, 1_000, first=10_000))
def test_runs_at_once(seed: int):
    check(patterns(seed), Run((END,)))


@pytest.mark.parametrize("seed", seeds(5, 1_000, first=15_000))
def test_runs_that_are_not_merged_have_the_same_matches(seed: int):
    def make(texts: Texts, lineage: Lineage, run: Run) -> AnyKernel:
        return Kernel(texts, lineage, rules=run.rules, hashed=run.hashed, merged=False)

    world = patterns(seed)
    check(world, to_the_end(random_run(Random(seed), len(world.statements), LENGTH)), make)


@pytest.mark.parametrize("seed", [*seeds(8, 1_000, first=20_000), 20_233, 20_293])
def test_patterns_in_parts(seed: int):
    def make(texts: Texts, lineage: Lineage, run: Run) -> AnyKernel:
        return PartitionedKernel(texts, lineage, HereRunner(3, 2), rules=run.rules, hashed=run.hashed)

    world = patterns(seed, KINDS[seed % 3])
    check(world, to_the_end(random_run(Random(seed), len(world.statements), LENGTH)), make)


@pytest.mark.parametrize("seed", seeds(10, 4_000, first=30_000))
def test_sets_that_come_and_go_in_any_intervals(seed: int):
    world = patterns(seed, "set")
    check(world, to_the_end(random_run(Random(seed), len(world.statements), LENGTH)))


@pytest.mark.parametrize("seed", seeds(8, 3_000, first=40_000))
def test_nearly_matching_ones_that_come_and_go_in_any_intervals(seed: int):
    world = patterns(seed, "near")
    check(world, to_the_end(random_run(Random(seed), len(world.statements), LENGTH)))


@pytest.mark.parametrize("seed", seeds(8, 500, first=50_000))
def test_a_budget_leaves_a_part_of_the_matches_the_same_in_any_intervals(seed: int):
    world = patterns(seed, "near")
    every = cast(Sequence[Near], world.statements)
    few = [replace(one, budget=2) for one in every if not one.apart]
    bounded = PatternWorld(world.schemas, world.given, few)
    at_once = PatternRunner(bounded, Run((END,)))
    at_once.results()
    cut = random_run(Random(seed), 0, LENGTH)
    in_parts = PatternRunner(bounded, to_the_end(cut))
    in_parts.results()
    for place in range(len(few)):
        assert set(at_once.told[place]) <= expected(bounded, place)
        assert set(in_parts.told[place]) == set(at_once.told[place])
