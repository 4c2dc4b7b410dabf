import pytest

from bench import patterns_synthetic
from bench.patterns_kernel import PatternOptions


@pytest.mark.parametrize("template", patterns_synthetic.TEMPLATES)
def test_each_statement_gets_what_it_gets_alone(template, monkeypatch):
    monkeypatch.setattr(patterns_synthetic, "INTERVAL", 70)
    case = patterns_synthetic.SyntheticCase(template, 20, 120, selectivity=0.9, domain=2)
    together, one, by_hand = patterns_synthetic.measure_synthetic(case, sample_size=20)
    assert together.rows == one.rows == by_hand.rows > 0
    assert together.baseline == "one at a time" and not together.extrapolated
    assert together.number("over_hand") > 0 and together.number("registered") > 0


@pytest.mark.parametrize("without", patterns_synthetic.SWITCHES)
def test_what_is_switched_off_changes_no_result(without):
    (line, *_) = patterns_synthetic.measure_synthetic(
        patterns_synthetic.SyntheticCase("Filter", 30, 200, domain=2, without=without), sample_size=30
    )
    assert line.rows > 0


def test_attributes_have_more_values_for_more_statements():
    sweeps = patterns_synthetic.technical_sweeps(PatternOptions(queries=[100, 400], events=10))
    assert [(one.queries, one.domain) for one in sweeps[-2:]] == [(100, 100), (400, 200)]


def test_different_statements_are():
    (first, second) = patterns_synthetic.memory_statements(patterns_synthetic.MemoryCase("different", 2))
    assert (
        first != second
        and len(list(patterns_synthetic.memory_statements(patterns_synthetic.MemoryCase("LinearStat", 5)))) == 5
    )
