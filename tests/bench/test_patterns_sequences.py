from dataclasses import replace

import numpy as np
import pytest

from bench import patterns_sequences
from bench.patterns_kernel import SECOND, lower_texts
from pattern_stage.columns import Columns
from pattern_stage.values import Texts
from tests.oracle import test_patterns
from xscl.algebra.events import Pattern

BASE = patterns_sequences.KleeneCase("E1", "p1", "s3", 30, 1_500)


@pytest.fixture(autouse=True)
def round_prices(monkeypatch):
    """Many prices are round."""
    monkeypatch.setattr(patterns_sequences, "ROUND", 20)


@pytest.mark.parametrize("strategy", ["s2", "s3"])
@pytest.mark.parametrize("predicate", patterns_sequences.PREDICATES)
def test_runs_merged_or_not_and_backtracking_have_the_same_matches(predicate, strategy):
    lines = list(
        patterns_sequences.measure_kleene(replace(BASE, predicate=predicate, strategy=strategy), turns=1, sample=1)
    )
    assert [line.plan for line in lines] == ["together", "without merging", "backtracking"]
    assert {line.rows for line in lines} != {0} and len({line.rows for line in lines}) == 1


@pytest.mark.parametrize(
    "case", [replace(BASE, figure="E4", apart=True, three=True), replace(BASE, figure="many", queries=6)]
)
def test_two_ways_have_the_same_matches(case):
    together, other = patterns_sequences.measure_kleene(case, turns=1, sample=6)
    assert together.rows == other.rows > 0 and not together.extrapolated


def test_other_matches_are_told(monkeypatch):
    monkeypatch.setattr(
        patterns_sequences, "run_backtracking", lambda *rest: patterns_sequences.KleeneRun(found={0: set()})
    )
    with pytest.raises(AssertionError, match="backtracking has other matches"):
        list(patterns_sequences.measure_kleene(BASE, turns=1, sample=1))
    monkeypatch.setattr(patterns_sequences, "EXACT", patterns_sequences.EXACT.replace("C c", "A c"))
    with pytest.raises(AssertionError, match="match"):
        list(patterns_sequences.measure_errors([patterns_sequences.ErrorsCase("errors", 0, 1_500)], 1))


def test_prices_rise_by_one_and_come_round():
    prices = patterns_sequences.stock_events(4_000, 0.7).columns[1]
    steps = (prices[patterns_sequences.SYMBOLS :] - prices[: -patterns_sequences.SYMBOLS]).tolist()
    assert set(steps) == {1, -1, 0, -999} and 0.65 < steps.count(1) / len(steps) < 0.75


def test_backtracking_tells_the_example_of_the_paper():
    """S4: the run that begins at the third quote waits on the stack while the one before is followed to its end."""
    texts = Texts()
    (statement,) = lower_texts([test_patterns.Q3.text()], {"Stock": patterns_sequences.STOCK_SCHEMA})
    assert isinstance(statement, Pattern)
    quotes = [row.split() for row in test_patterns.QUOTES[2].split(" | ")]
    times = np.arange(1, len(quotes) + 1) * SECOND
    prices, volumes = (np.array([float(row[at]) for row in quotes]) for at in (1, 2))
    parts = np.arange(len(times)).reshape(-1, 1)
    columns = Columns(times, times, (texts.codes(row[0] for row in quotes), prices, volumes), parts)
    found = [
        " | ".join(" ".join(str(number + 1) for number, of in path if of == at) for at in (0, 1))
        for path in patterns_sequences.backtracked_matches(statement, texts, {"Stock": columns})
    ]
    told = (test_patterns.R1, test_patterns.R2, test_patterns.R3)
    assert sorted(found) == sorted(one.partition(" @")[0] for one in told)


def test_a_budget_has_a_part_of_the_matches():
    exact, every, few = patterns_sequences.measure_errors(
        [
            patterns_sequences.ErrorsCase("errors", 0, 1_200),
            patterns_sequences.ErrorsCase("errors", 1, 1_200),
            patterns_sequences.ErrorsCase("budget", 1, 1_200, 2),
        ],
        1,
    )
    assert 0 < exact.rows < every.rows and exact.details["recall"] is None
    assert 0 < few.rows < every.rows and few.details["recall"] == few.rows / every.rows


def test_a_history_finds_more_bundles_than_chance():
    by_history, by_rank, by_chance = patterns_sequences.measure_budgets(
        [patterns_sequences.ErrorsCase("drift", 1, 3_000, 1)], 1
    )
    history, rank, chance = (one.number("recall") for one in (by_history, by_rank, by_chance))
    assert history > rank > 0 and history > chance
    assert by_history.details["bundles"] == by_chance.details["bundles"]
