"""The benchmark of event patterns, with tiny cases."""

from __future__ import annotations

import sys

import pytest

from bench import patterns
from bench.patterns import SWITCHES, Case, indexes, measure, technical
from bench.patterns_workload import TEMPLATES


@pytest.mark.parametrize("template", TEMPLATES)
def test_each_statement_gets_what_it_gets_alone(template, monkeypatch):
    monkeypatch.setattr(patterns, "INTERVAL", 70)
    monkeypatch.setattr("bench.patterns_workload.DOMAIN", 2)
    together, one, by_hand = measure(Case(template, 40, 200, selectivity=0.9), 40)
    assert together.rows == one.rows == by_hand.rows > 0
    assert together.baseline == "one at a time" and not together.extrapolated


@pytest.mark.parametrize("without", SWITCHES)
def test_what_is_switched_off_changes_no_result(without, monkeypatch):
    monkeypatch.setattr("bench.patterns_workload.DOMAIN", 2)
    (line, *_) = measure(Case("Filter", 30, 200, without=without), 30)
    assert line.rows > 0


def test_a_difference_is_an_error(monkeypatch):
    monkeypatch.setattr(patterns, "alone", lambda template, steps, events: {(0, 0, 0)})
    with pytest.raises(AssertionError, match="has something else alone"):
        list(measure(Case("Filter", 2, 50), 1))


def test_cases_are_those_of_the_figures():
    assert len(technical([1, 2], 10, sweeps=False)) == 10 and len(technical([1], 10, sweeps=True)) == 12
    assert len(indexes([1, 2], 10)) == 10


def test_the_command_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "indexes", "--quick", "--queries", "20", "--events", "100"])
    patterns.main()
    assert "dynamic index" in capsys.readouterr().out
