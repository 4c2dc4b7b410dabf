"""The benchmark of event patterns, with tiny cases."""

from __future__ import annotations

import sys

import pytest

from bench import patterns, patterns_memory
from bench.patterns import SWITCHES, Case, indexes, measure, technical
from bench.patterns_workload import TEMPLATES


@pytest.mark.parametrize("template", TEMPLATES)
def test_each_statement_gets_what_it_gets_alone(template, monkeypatch):
    monkeypatch.setattr(patterns, "INTERVAL", 70)
    together, one, by_hand = measure(Case(template, 20, 120, selectivity=0.9, domain=2), 20)
    assert together.rows == one.rows == by_hand.rows > 0
    assert together.baseline == "one at a time" and not together.extrapolated


@pytest.mark.parametrize("without", SWITCHES)
def test_what_is_switched_off_changes_no_result(without):
    (line, *_) = measure(Case("Filter", 30, 200, domain=2, without=without), 30)
    assert line.rows > 0


def test_a_difference_is_an_error(monkeypatch):
    monkeypatch.setattr(patterns, "alone", lambda template, steps, events: {(0, 0, 0)})
    with pytest.raises(AssertionError, match="has something else alone"):
        list(measure(Case("Filter", 2, 50), 1))


def test_cases_are_those_of_the_figures():
    assert len(technical([1, 2], 10, sweeps=False)) == 10
    sweeps = technical([100, 400], 10, sweeps=True)[10:]
    assert [(one.queries, one.domain) for one in sweeps[-2:]] == [(100, 100), (400, 200)]
    assert [one.figure for one in sweeps] == ["4.13b"] * 4 + ["4.13c"] * 5 + ["4.13, equal hits"] * 2
    assert len(indexes([1, 2], 10)) == 10


def test_the_command_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "indexes", "--quick", "--queries", "20", "--events", "100"])
    patterns.main()
    assert "dynamic index" in capsys.readouterr().out


@pytest.mark.soak
def test_the_command_registers_statements(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "memory", "--queries", "5"])
    patterns.main()
    printed = capsys.readouterr().out
    assert "LinearStat" in printed and "different" in printed


def test_different_statements_are():
    (first, second) = patterns_memory.asked(patterns_memory.Case("different", 2))
    assert first != second and len(list(patterns_memory.asked(patterns_memory.Case("LinearStat", 5)))) == 5


@pytest.mark.soak
def test_the_command_draws_every_figure(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    drawn = tmp_path / "drawn"
    monkeypatch.setattr(patterns, "technical", lambda *rest, **named: [Case("Filter", 5, 100), Case("Filter", 9, 100)])
    for name in ("technical", "indexes"):
        options = ["--quick", "--queries", "20", "--events", "100", "--plot", str(drawn)]
        monkeypatch.setattr(sys, "argv", ["bench", name, *options])
        patterns.main()
        assert {"technical": "4.13a", "indexes": "without all"}[name] in drawn.with_suffix(".svg").read_text()
