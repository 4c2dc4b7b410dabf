"""The benchmark of Kleene patterns, with tiny cases: all ways have the same matches."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from bench import patterns, patterns_kleene
from bench.patterns_backtracking import matches
from bench.patterns_kleene import Case, cases, measure
from bench.patterns_stocks import PREDICATES, SCHEMA, SYMBOLS, lowered, stocks
from bench.patterns_workload import SECOND
from pattern_stage.columns import Columns
from pattern_stage.lineage import Lineage
from pattern_stage.values import Texts
from tests.oracle import test_patterns
from xscl.algebra.events import Pattern

BASE = Case("E1", "p1", "s3", 30, 1_500)


@pytest.fixture(autouse=True)
def round_prices(monkeypatch):
    """Many prices are round."""
    monkeypatch.setattr("bench.patterns_stocks.ROUND", 20)


@pytest.mark.parametrize("strategy", ["s2", "s3"])
@pytest.mark.parametrize("predicate", PREDICATES)
def test_runs_merged_or_not_and_backtracking_have_the_same_matches(predicate, strategy):
    lines = list(measure(replace(BASE, predicate=predicate, strategy=strategy), 1, 1))
    assert [line.plan for line in lines] == ["together", "without merging", "backtracking"]
    assert {line.rows for line in lines} != {0} and len({line.rows for line in lines}) == 1


def test_matches_that_do_not_overlap():
    together, apart = measure(replace(BASE, figure="E4", apart=True, three=True), 1, 1)
    assert together.rows == apart.rows > 0


def test_questions_get_what_they_get_alone():
    together, alone = measure(replace(BASE, figure="many", queries=6), 1, 6)
    assert together.rows == alone.rows > 0 and not together.extrapolated


def test_other_matches_are_told(monkeypatch):
    def nothing(statement, given):
        return patterns_kleene.Run(found={0: set()})

    monkeypatch.setattr(patterns_kleene, "by_backtracking", nothing)
    with pytest.raises(AssertionError, match="backtracking has other matches"):
        list(measure(BASE, 1, 1))


def test_prices_rise_by_one_and_come_round():
    given = stocks(4_000, 0.7)
    steps = [given.prices[place + SYMBOLS] - given.prices[place] for place in range(len(given) - SYMBOLS)]
    assert set(steps) == {1, -1, 0, -999} and 0.65 < steps.count(1) / len(steps) < 0.75


def test_cases_are_those_of_the_paper():
    made = cases(None, None, quick=False)
    assert {one.figure for one in made} == {"E1", "E2", "E4", "many"}
    assert {one.window for one in made if one.figure == "E2"} == {500, 1000, 1500, 2000}
    assert max(one.queries for one in made) == 10_000


@pytest.mark.soak
def test_the_command_draws_every_figure(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    made = [replace(BASE, figure=figure, events=300) for figure in ("E1", "E2")]
    monkeypatch.setattr(patterns_kleene, "cases", lambda *rest, **named: made)
    monkeypatch.setattr(sys, "argv", ["bench", "kleene", "--quick", "--plot", str(tmp_path / "drawn")])
    patterns.main()
    assert "backtracking" in capsys.readouterr().out
    drawn = (tmp_path / "drawn.svg").read_text()
    assert "E1" in drawn and "E2" in drawn


def test_backtracking_tells_the_example_of_the_paper():
    """S4: the run that begins at the third quote waits on the stack while the one before is followed to its end."""
    texts, lineage = Texts(), Lineage()
    (statement,) = lowered([test_patterns.Q3.text()], {"Stock": SCHEMA})
    assert isinstance(statement, Pattern)
    quotes = [row.split() for row in test_patterns.QUOTES[2].split(" | ")]
    times = np.arange(1, len(quotes) + 1) * SECOND
    prices, volumes = (np.array([float(row[at]) for row in quotes]) for at in (1, 2))
    parts = lineage.of_documents("Stock", times, times, times, np.zeros((len(times), 1), np.int64))
    columns = Columns(times, times, (texts.codes(row[0] for row in quotes), prices, volumes), parts.reshape(-1, 1))
    found = [
        " | ".join(" ".join(str(number + 1) for number, of in path if of == at) for at in (0, 1))
        for path in matches(statement, texts, {"Stock": columns})
    ]
    told = (test_patterns.R1, test_patterns.R2, test_patterns.R3)
    assert sorted(found) == sorted(one.partition(" @")[0] for one in told)
