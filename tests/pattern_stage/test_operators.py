"""What single operators keep waiting, and the sums and maxima of windows. What operators find: test_agreement.py."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from pattern_stage.windows import greatest_in, sums_in
from tests.generate.seeds import seeds
from tests.oracle.event_cases import events
from tests.support.event_agreement import Trial
from xscl.algebra.events import Schema

S: Schema = (("name", "string"), ("v", "number"))
SECOND = 10**6


def run(trial: Trial, text: str, until: int, start: int = 0) -> None:
    trial.run({"S": events(dict(S), text)}, start * SECOND, until * SECOND)


def waiting(trial: Trial) -> dict[int, int]:
    return dict(zip(*(column.tolist() for column in trial.kernel.instances()), strict=True))


def test_a_window_drops_what_has_left_it():
    trial = Trial({"S": S}, "FROM AGGREGATE{avg(v) AS mean OVER 5 s} S")
    run(trial, "a 10 @0 | a 20 @4 | a 60 @5 | a 80 @5 | a 7 @10", 11)
    found = sorted((one.t1 // SECOND, one.values["mean"]) for one in trial.results(0))
    assert found == [(0, 10), (4, 15), (5, 160 / 3), (10, 7)]
    assert waiting(trial) == {0: 1}
    trial.kernel.remove([0])
    assert waiting(trial) == {}


def test_runs_with_ties_do_not_multiply():
    trial = Trial({"S": S}, "FROM FILTER{v = 0} S FOLD{,,} S")
    ties = [f"a {tie} @{time}" for time in range(1, 41) for tie in (1, 2, 3)]
    run(trial, " | ".join(["a 0 @0", *ties]), 41)
    assert len(trial.results(0)) == 120
    assert waiting(trial) == {0: 3}


def test_one_instance_serves_two_windows_and_expires():
    text = 'FROM S NEXT{$2.name = "b"} S'
    trial = Trial({"S": S}, f"{text} WITHIN 3 s", text)
    run(trial, " | ".join(f"a 1 @{time}" for time in range(1, 11)), 11)
    assert waiting(trial) == {0: 10, 1: 10}, "one instance serves both"
    trial.kernel.remove([1])
    assert waiting(trial) == {0: 10}
    run(trial, "b 1 @50", 100, 11)
    assert not trial.found


def test_an_event_of_many_statements_is_one():
    trial = Trial({"S": S}, *(f"FROM FILTER{{v > {number}}} S" for number in range(100)))
    (found,) = trial.kernel.run({"S": trial.columns("S", S, events(dict(S), "a 200 @1"), 0, 2 * SECOND)}, 2 * SECOND)
    assert len(found.events) == 1 and sorted(found.statements.tolist()) == [*range(100)]


@pytest.mark.parametrize("seed", seeds(4, 30))
def test_sums_are_the_nearest_doubles(seed):
    random = Random(seed)
    exponent = random.choice([0, 10, 60, 300])
    numbers = np.array([random.uniform(-1, 1) * 2.0 ** random.randint(-exponent, exponent) for _ in range(60)])
    numbers[random.sample(range(60), 5)] = random.choice([0.0, 5e-324, 1e300, math.nan])
    starts = np.array([random.randrange(60) for _ in range(100)])
    ends = np.array([random.randint(start, 60) for start in starts])
    expected = [
        math.fsum(number for number in numbers[start:end] if number == number)
        for start, end in zip(starts, ends, strict=True)
    ]
    assert sums_in(numbers, starts, ends).tolist() == expected


def test_greatest():
    random = Random(1)
    ranks = np.array([random.randrange(100) for _ in range(50)])
    ranges = [(start, end) for start in range(50) for end in range(start + 1, 51)]
    starts, ends = np.array(ranges).T
    assert greatest_in(ranks, starts, ends).tolist() == [ranks[start:end].max() for start, end in ranges]
