"""The kernel finds what statements mean, by the oracle, whatever the intervals, the rules, and what comes and goes."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from pattern_stage.rules import RULE_NAMES
from tests.support.event_kernel import Trial
from tests.support.event_worlds import Lowered, lowered_world

END = 30_000_000


def bounds(rng: Random) -> list[int]:
    """Where intervals end, sometimes one for each second, sometimes one for all."""
    cuts = rng.choice((0, 1, 3, 8, 25))
    return sorted({0, END, *(rng.randint(1, 22) * 1_000_000 for _ in range(cuts))})


def check(one: Lowered, trial: Trial) -> None:
    for place, stream in enumerate(one.statements):
        assert trial.results(place) == one.world.results(place), (stream, one.world.statements[place].text())


@pytest.mark.parametrize("seed", range(80))
def test_statements_find_what_they_mean(seed):
    one, rng = lowered_world(seed), Random(seed)
    trial = Trial(one.schemas)
    for place, stream in enumerate(one.statements):
        trial.kernel.add(place, stream, -1)
    trial.run_all(one.streams, bounds(rng))
    check(one, trial)


@pytest.mark.parametrize("rule", [*RULE_NAMES, "all", "hashed"])
@pytest.mark.parametrize("seed", range(100, 115))
def test_no_rule_changes_what_is_found(seed, rule):
    one, rng = lowered_world(seed), Random(seed)
    rules = () if rule == "all" else [name for name in RULE_NAMES if name != rule]
    trial = Trial(one.schemas, rules=rules, hashed=rule != "hashed")
    for place, stream in enumerate(one.statements):
        trial.kernel.add(place, stream, -1)
    trial.run_all(one.streams, bounds(rng))
    check(one, trial)


@pytest.mark.parametrize("seed", range(200, 260))
def test_a_statement_sees_what_comes_after_it_was_added_until_it_is_removed(seed):
    one, rng = lowered_world(seed), Random(seed)
    trial = Trial(one.schemas)
    cuts = sorted({0, END, *(rng.randint(1, 20) * 1_000_000 for _ in range(6))})
    since = {place: rng.choice(cuts[:-1]) for place in range(len(one.statements))}
    until = {place: rng.choice([cut for cut in cuts if cut > since[place]]) for place in since}
    for start, end in pairwise(cuts):
        gone = [place for place, time in until.items() if time == start]
        if gone:
            trial.kernel.remove(gone)
        for place, stream in enumerate(one.statements):
            if since[place] == start:
                trial.kernel.add(place, stream, start - 1)
        trial.run(one.streams, start, end)
    for place, statement in enumerate(one.world.statements):
        expected = {found for found in one.world.results(place, since[place]) if found.t1 < until[place]}
        assert trial.results(place) == expected, statement.text()
    trial.kernel.remove([place for place, time in until.items() if time == END])
    assert len(trial.kernel.plan.mops) == len(trial.kernel.statements) == 0
    assert [len(found) for found in trial.kernel.instances()] == [0, 0]
