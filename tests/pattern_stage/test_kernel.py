"""The kernel finds what statements mean, by the oracle, whatever the intervals, the rules, and what comes and goes."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest

from pattern_stage.kernel import Kernel
from pattern_stage.plan import RULE_NAMES
from tests.generate.seeds import seeds
from tests.oracle.events import Event
from tests.support.event_kernel import Parts, Trial
from tests.support.event_worlds import Lowered, lowered_world

END = 30_000_000


def bounds(rng: Random) -> list[int]:
    """Where intervals end, sometimes one for each second, sometimes one for all."""
    cuts = rng.choice((0, 1, 3, 8, 25))
    return sorted({0, END, *(rng.randint(1, 22) * 1_000_000 for _ in range(cuts))})


def check(one: Lowered, trial: Trial) -> None:
    for place, stream in enumerate(one.statements):
        assert trial.results(place) == one.world.results(place), (stream, one.world.statements[place].text())


@pytest.mark.parametrize("seed", seeds(5, 80))
def test_statements_find_what_they_mean(seed):
    one, rng = lowered_world(seed), Random(seed)
    trial = Trial(one.schemas)
    for place, stream in enumerate(one.statements):
        trial.kernel.add(place, stream, -1)
    trial.run_all(one.streams, bounds(rng))
    check(one, trial)


@pytest.mark.parametrize("rule", [*RULE_NAMES, "all", "hashed"])
@pytest.mark.parametrize("seed", seeds(1, 15, first=100))
def test_no_rule_changes_what_is_found(seed, rule):
    one, rng = lowered_world(seed), Random(seed)
    rules = () if rule == "all" else [name for name in RULE_NAMES if name != rule]
    trial = Trial(one.schemas, rules=rules, hashed=rule != "hashed")
    for place, stream in enumerate(one.statements):
        trial.kernel.add(place, stream, -1)
    trial.run_all(one.streams, bounds(rng))
    check(one, trial)


@pytest.mark.parametrize("seed", seeds(4, 60, first=300))
def test_another_process_takes_over_what_waits(seed):
    one, rng = lowered_world(seed), Random(seed)
    places = list(range(len(one.statements)))
    cuts = bounds(rng)
    state: dict[str, pa.Table] = {}
    found: dict[int, list[Event]] = {}
    parts = Parts()
    for start, end in pairwise(cuts):
        trial = Trial(one.schemas)  # with texts and rows that are numbered anew
        trial.parts, trial.kernel = parts, Kernel(trial.texts, parts)
        trial.texts.codes(f"text {number}" for number in range(rng.randrange(9)))
        rng.shuffle(places)
        for place in places:
            trial.kernel.add(place, one.statements[place], -1)
        trial.kernel.restore(state)
        trial.run(one.streams, start, end)
        for place, events in trial.found.items():
            found.setdefault(place, []).extend(events)
        state = trial.kernel.state()
        behind = parts.of(number for numbers in trial.kernel.parts() for number in numbers.tolist())
        assert behind <= parts.of(range(len(parts.numbers)))
    trial.found = found
    check(one, trial)


def test_a_state_of_another_version_is_refused():
    trial = Trial({})
    with pytest.raises(ValueError, match="has format 99; this version reads 1"):
        trial.kernel.restore({"format": pa.table({"version": [99]})})


@pytest.mark.parametrize("seed", seeds(3, 30, first=400))
def test_texts_that_nothing_holds_are_forgotten(seed):
    one, rng = lowered_world(seed), Random(seed)
    trial = Trial(one.schemas)
    for place, stream in enumerate(one.statements):
        trial.kernel.add(place, stream, -1)
    for start, end in pairwise(bounds(rng)):
        trial.run(one.streams, start, end)
        trial.texts.keep(trial.kernel.codes())
        trial.texts.codes(f"text {number}" for number in range(rng.randrange(9)))
    check(one, trial)


@pytest.mark.parametrize("seed", seeds(5, 60, first=200))
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
