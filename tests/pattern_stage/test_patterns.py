"""The kernel finds what the oracle does, whatever the intervals, what comes and goes, the m-rules, and restarts: event
queries, then PATTERN statements."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random

import pyarrow as pa
import pytest

from common.limits import Quota
from pattern_stage.kernel import Kernel
from pattern_stage.lineage import Lineage
from pattern_stage.partition.kernel import PartitionedKernel
from pattern_stage.pattern.history import BUNDLES, MOST_SEEN, Extension, LevelOutcomes, NearHistory
from pattern_stage.plan import RULE_NAMES
from pattern_stage.values import Texts
from tests.generate.documents import SECOND
from tests.generate.events import LENGTH, events, schemas, variants, world
from tests.generate.patterns import PatternMaker, pattern_world
from tests.generate.seeds import seeds
from tests.oracle.budget import Budget
from tests.oracle.event_syntax import Schema, Window
from tests.oracle.pattern_syntax import AnyOrder, Letter, Near, Pattern
from tests.oracle.pattern_world import PatternWorld
from tests.support.event_agreement import HereRunner, Run, Runner, Trial, assert_finds, random_run

WHOLE = ((LENGTH + 1) * 10**6,)


@pytest.mark.parametrize("seed", seeds(10, 4_000, first=10_000))
def test_random_statements(seed: int):
    made = world(seed)
    assert_finds(made, random_run(Random(seed), len(made.statements), LENGTH))


@pytest.mark.parametrize("seed", seeds(4, 2_000, first=50_000))
def test_all_matches_together(seed: int):
    """Whatever the cuts, restarts and parts; and limits are exceeded at the same times."""
    rng, known = Random(seed), schemas(Random(seed))
    given = {name: events(rng, name, schema, rng.choice((6, 9, 12))) for name, schema in known.items()}
    maker = PatternMaker(rng, known)
    made = PatternWorld(known, given, variants(rng, [maker.together() for _ in range(4)], 8))
    assert_finds(made, random_run(rng, len(made.statements), LENGTH), in_parts if seed % 2 else None)
    cuts = tuple(time * SECOND for time in range(LENGTH + 2))
    for limits in (Quota(partial=3), Quota(partial=9), Quota(work=3), Quota(work_of_block=12)):
        runs = Run(WHOLE), Run(cuts), Run(cuts, restarts=frozenset(cuts))
        runners = [Runner(made, run, limits=limits) for run in runs]
        for runner in runners:
            runner.results()
        assert runners[0].exceeded == runners[1].exceeded == runners[2].exceeded


@pytest.mark.parametrize("seed", seeds(1, 500, first=20_000))
@pytest.mark.parametrize("on", [(), *((name,) for name in RULE_NAMES)], ids=lambda on: "".join(on) or "none")
def test_each_rule_alone_and_none(on, seed: int):
    assert_finds(world(seed), Run(WHOLE, rules=on))


@pytest.mark.parametrize("seed", seeds(4, 600, first=30_000))
def test_many_statements_of_one_template(seed: int, monkeypatch: pytest.MonkeyPatch):
    """In some cases two at a time come into the plan, filters are found by an index, and blocks of events are small."""
    if seed % 2:
        monkeypatch.setattr("pattern_stage.statements._MANY", 2)
        monkeypatch.setattr("pattern_stage.operators._DEAR", 0)
        monkeypatch.setattr("pattern_stage.operators._BLOCK", 5)
        monkeypatch.setattr("pattern_stage.index._BLOCK", 3)
        monkeypatch.setattr("pattern_stage.index._MANY_REMOVED", 3)
    made = world(seed, templates=3, statements=40, most=12, depth=2)
    assert_finds(made, random_run(Random(seed), len(made.statements), LENGTH))


@pytest.mark.parametrize("seed", seeds(4, 1_000, first=40_000))
def test_dense_streams(seed: int, monkeypatch: pytest.MonkeyPatch):
    """Many events, most of which end with others, and many statements with one operator each."""
    monkeypatch.setattr("pattern_stage.operators._DEAR", seed % 4)
    made = world(seed, templates=10, statements=50, most=30, depth=1)
    assert_finds(made, random_run(Random(seed), len(made.statements), LENGTH))


def test_a_state_of_another_version_is_refused():
    with pytest.raises(ValueError, match="has format 99; this version reads 1"):
        Trial({}).kernel.restore({"format": pa.table({"version": [99]})})


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


def whole(texts: Texts, lineage: Lineage, run: Run, *, merged: bool = True) -> Kernel:
    return Kernel(texts, lineage, rules=run.rules, hashed=run.hashed, merged=merged)


def in_parts(texts: Texts, lineage: Lineage, run: Run) -> PartitionedKernel:
    return PartitionedKernel(texts, lineage, HereRunner(3, 2))


@pytest.mark.parametrize(
    ("seed", "kind", "make"),
    [
        *((seed, "run", whole) for seed in (*seeds(10, 4_000), 159)),
        *((seed, "run", partial(whole, merged=False)) for seed in (*seeds(4, 1_000, first=15_000), 3_315_043)),
        *((seed, KINDS[seed % 3], in_parts) for seed in (*seeds(8, 1_000, first=20_000), 20_233, 20_293)),
        *((seed, "set", whole) for seed in seeds(8, 4_000, first=30_000)),
        *((seed, "near", whole) for seed in seeds(6, 3_000, first=40_000)),
    ],
)
def test_patterns_that_come_and_go_in_any_intervals(seed: int, kind: str, make, monkeypatch: pytest.MonkeyPatch):
    """In some cases what is over goes as soon as there is any."""
    if seed % 2:
        monkeypatch.setattr("pattern_stage.pattern.cells._TRIM", 1)
        monkeypatch.setattr("pattern_stage.pattern.trails._LONG", 2)
        monkeypatch.setattr("pattern_stage.pattern.trails._SWEEP", 3)
    world = patterns(seed, kind)
    assert_finds(world, to_the_end(random_run(Random(seed), len(world.statements), LENGTH)), make)


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


def _near(rng: Random, known: Mapping[str, Schema]) -> Near:
    word = tuple(Letter(rng.choice(list(known)), rng.random() < 0.15) for _ in range(rng.choice((2, 3, 3, 4))))
    common = set.intersection(*(set(known[one.stream].items()) for one in word))
    keys = tuple(rng.sample(sorted(name for name, _ in common), min(len(common), rng.choice((0, 1, 1)))))
    window = Window(str(rng.choice((3, 6, 20))))
    return Near(word, rng.randrange(1, min(len(word), 3)), window, keys, rng.choice((1, 2, 3, 5, 18)))


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
        living = sum(map(len, history.nodes.values()))
        assert living == 1 and len(history.reported) <= 20 and len(history.vectors) <= MOST_SEEN
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
