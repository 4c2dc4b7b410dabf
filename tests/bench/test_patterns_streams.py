from dataclasses import replace

import numpy as np
import pytest

from bench import patterns_streams
from pattern_stage.plan import RULE_NAMES


@pytest.mark.parametrize("template", ["constants", "NEXT", "FOLD", "channel"])
def test_rumor_statements_get_what_they_get_alone(template):
    one = patterns_streams.StreamWorkload("5.9", template, 20, 600, domain=5, capacity=3)
    together, *apart, alone = patterns_streams.measure_streams(one, sample_size=20, turns=1)
    assert [line.plan for line in apart] == ["without channels"] * (template == "channel")
    assert {line.rows for line in (together, *apart)} == {alone.rows} != {0} and not together.extrapolated


def test_without_a_channel_each_stream_comes_for_itself():
    one = patterns_streams.StreamWorkload("5.9d", "channel", 6, 40, capacity=3, channels=False)
    assert list(patterns_streams.stream_events(one)) == ["S0", "S1", "S2", "T"] and one.rules == RULE_NAMES
    assert [text.split("}")[1].split()[0] for text in patterns_streams.stream_statements(one)] == ["S0", "S1", "S2"] * 2


@pytest.mark.parametrize("template", ["Stateless", "Concatenation", "Parameterization", "Iteration"])
def test_feed_statements_get_what_they_get_alone(template, monkeypatch):
    monkeypatch.setattr(patterns_streams, "SITES", 4)
    together, alone = patterns_streams.measure_streams(
        patterns_streams.StreamWorkload("4.18", template, 12, 400), sample_size=12, turns=1
    )
    assert together.rows == alone.rows > 0


def test_hybrid_statements_get_what_they_get_alone(monkeypatch):
    monkeypatch.setattr(patterns_streams, "INTERVAL", 5 * patterns_streams.PROCESSES)
    one = patterns_streams.StreamWorkload("5.10a", "hybrid", 4, 12 * patterns_streams.PROCESSES)
    together, apart, alone = patterns_streams.measure_streams(one, sample_size=4, turns=1)
    assert together.rows == apart.rows == alone.rows > 0 and together.details["over_channels"]
    assert next(patterns_streams.measure_streams(replace(one, sel=0.0), sample_size=4, turns=1)).rows == 0


def test_aggregates_find_the_same_with_and_without_partial_ones(monkeypatch):
    monkeypatch.setattr(patterns_streams, "AGGREGATE_TURNS", 1)
    monkeypatch.setattr(patterns_streams, "AGGREGATE_INTERVAL", 300)
    one, other = patterns_streams.measure_aggregates(patterns_streams.AggregateCase(200, 1_000))
    assert (one.plan, other.plan) == ("s_alpha", "without") and one.rows == other.rows > 0
    assert 0 < one.number("kept") < other.number("kept")


@pytest.mark.parametrize("smoothing", [1, 2])
def test_all_forms_of_double_tops_are_those_of_a_loop(smoothing, monkeypatch):
    monkeypatch.setattr(patterns_streams, "VOLATILITY", 0.2)
    case = patterns_streams.DoubleTopCase(smoothing, 2_000)
    lines = list(patterns_streams.measure_double_tops(case, quick=True))
    assert len({line.plan for line in lines}) == 8 and {line.rows for line in lines} == {_double_tops(case)} != {0}


def _double_tops(case):
    days, companies, prices = patterns_streams.closes(case)
    found = 0
    for company in range(patterns_streams.COMPANIES):
        price = prices[companies == company]
        assert np.all(np.diff(days[companies == company]) == 1)
        at = [i for i in range(1, len(price) - 1) if (price[i] - price[i - 1]) * (price[i + 1] - price[i]) < 0]
        for a, b, c, d, e in zip(*(price[at[k : len(at) - 4 + k]] for k in range(5)), strict=True):
            low = b > a and b >= 1.2 * a and 0.9 * a <= c <= 1.1 * a
            found += bool(low and 0.9 * b <= d <= 1.1 * b and e <= a)
    return found
