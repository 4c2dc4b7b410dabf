"""The benchmark of ERRORS, with tiny cases."""

from __future__ import annotations

import sys

import pytest

from bench import patterns, patterns_budget, patterns_errors
from bench.patterns_errors import Case, cases, measured


def test_without_missing_letters_both_ways_have_the_same_matches():
    (line,) = measured([Case("errors", 0, 1_500)], 1)
    assert line.rows > 0 and line.details["recall"] is None


def test_a_budget_has_a_part_of_the_matches():
    all_, few = measured([Case("errors", 1, 1_500), Case("budget", 1, 1_500, 2)], 1)
    assert 0 < few.rows < all_.rows and few.details["recall"] == few.rows / all_.rows


def test_a_history_finds_more_bundles_than_chance():
    by_history, by_rank, by_chance = patterns_budget.measured([patterns_budget.Case("drift", 1, 3_000, 1)], 1)
    history, rank, chance = (float(str(one.details["recall"])) for one in (by_history, by_rank, by_chance))
    assert history > rank > 0 and history > chance
    assert by_history.details["bundles"] == by_chance.details["bundles"]


def test_other_matches_are_told(monkeypatch):
    monkeypatch.setattr(patterns_errors, "EXACT", patterns_errors.EXACT.replace("C c", "A c"))
    with pytest.raises(AssertionError, match="match"):
        list(measured([Case("errors", 0, 1_500)], 1))


@pytest.mark.soak
def test_the_command_draws_both_figures(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    assert {one.figure for one in cases(None, quick=False)} == {"errors", "budget"}
    monkeypatch.setattr(
        sys, "argv", ["bench", "errors", "--quick", "--events", "300", "--plot", str(tmp_path / "drawn")]
    )
    patterns.main()
    assert "recall" in capsys.readouterr().out
    assert "missing letters" in (tmp_path / "drawn.svg").read_text()
