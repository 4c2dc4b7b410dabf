"""The benchmark of event patterns over synthetic events, with tiny cases."""

from __future__ import annotations

import pytest

from bench import patterns_synthetic
from bench.patterns_kernel import PatternOptions
from bench.patterns_synthetic import (
    SWITCHES,
    TEMPLATES,
    MemoryCase,
    SyntheticCase,
    measure_synthetic,
    memory_statements,
    technical_sweeps,
)


@pytest.mark.parametrize("template", TEMPLATES)
def test_each_statement_gets_what_it_gets_alone(template, monkeypatch):
    monkeypatch.setattr(patterns_synthetic, "INTERVAL", 70)
    case = SyntheticCase(template, 20, 120, selectivity=0.9, domain=2)
    together, one, by_hand = measure_synthetic(case, sample_size=20)
    assert together.rows == one.rows == by_hand.rows > 0
    assert together.baseline == "one at a time" and not together.extrapolated
    assert together.number("over_hand") > 0 and together.number("registered") > 0


@pytest.mark.parametrize("without", SWITCHES)
def test_what_is_switched_off_changes_no_result(without):
    (line, *_) = measure_synthetic(SyntheticCase("Filter", 30, 200, domain=2, without=without), sample_size=30)
    assert line.rows > 0


def test_a_difference_is_an_error(monkeypatch):
    monkeypatch.setattr(patterns_synthetic, "match_by_hand", lambda template, steps, events: {(0, 0, 0)})
    with pytest.raises(AssertionError, match="has something else alone"):
        list(measure_synthetic(SyntheticCase("Filter", 2, 50), sample_size=1))


def test_attributes_have_more_values_for_more_statements():
    sweeps = technical_sweeps(PatternOptions(queries=[100, 400], events=10))
    assert [(one.queries, one.domain) for one in sweeps[-2:]] == [(100, 100), (400, 200)]


def test_different_statements_are():
    (first, second) = memory_statements(MemoryCase("different", 2))
    assert first != second and len(list(memory_statements(MemoryCase("LinearStat", 5)))) == 5
