from dataclasses import replace

import numpy as np
import pytest

from bench import rss
from bench.joins import plans_of
from bench.rss import FEED, RssCase, draw_rates, feed_strings, feed_values, measure_rss, memory_lines, rss_cases
from tests.bench.test_technical import losing_rows

TINY = RssCase(60, 20, 40)
PLANS = plans_of("duckdb", None, quick=False)


def test_values_of_the_feed_are_equal_where_their_numbers_are():
    values = feed_values(400)
    texts = [text for row in zip(*(c.to_pylist() for c in feed_strings(values)), strict=True) for text in row]
    numbers = values.ravel().tolist()
    assert len(set(texts)) == len(set(numbers)) == len(set(zip(numbers, texts, strict=True)))
    assert len(set(numbers)) < len(numbers) - 200  # some channels are met again


def test_a_feed_repeats_urls_titles_and_descriptions_within_a_channel_and_titles_as_descriptions():
    url, channel, title, _, description = feed_values(5000).T
    for leaf in (url, title, description):
        assert len(np.unique(leaf)) < len(leaf)
    assert (url == channel).any() and (title == description).any()
    assert 350 < len(np.unique(channel)) <= 418


def test_cases_and_witnesses():
    assert rss_cases([10], sweeps=False) == [RssCase(20_000, 5_000, 10)]
    swept = rss_cases(rss.NUMBERS, sweeps=True)
    assert len(swept) == len(set(swept)) and max(case.state + case.batch for case in swept) == 225_000
    work = rss.rss_workload(TINY)
    assert [first for first, _ in (*work.kept, work.warm, work.measured)] == [0, 40, 60]
    assert work.registered.schema == FEED
    assert work.kept[0][1].r_group.num_rows and not work.measured[1].r_group.num_rows


@pytest.mark.soak
def test_lines_and_plots(tmp_path):
    lines = measure_rss(TINY, "duckdb", PLANS, 2, 12)
    first, *_, sequential = lines
    values = feed_values(80)
    pairs = sum(int((values[a][:, None] == values[b][None, :]).sum()) for b in range(60, 80) for a in range(b))
    assert first.details["value_pairs"] == pairs > 0
    assert first.case == {"state": 60, "batch": 20, "queries": 40, "items": 80}
    assert first.speedup == pytest.approx(sequential.seconds / first.seconds)
    assert (first.baseline, sequential.baseline, first.extrapolated) == ("sequential", None, True)
    assert sequential.rows == first.number("expanded") > 0
    draw_rates(lines, tmp_path / "one")
    draw_rates([*lines, *(replace(line, case={**line.case, "state": 100}) for line in lines)], tmp_path / "two")
    assert (tmp_path / "one.png").exists() and "items in the state" in (tmp_path / "two.svg").read_text()
    without = measure_rss(TINY, "duckdb", PLANS, 1, 0)
    assert [(line.plan, line.baseline) for line in without] == [(p, None if p == "basic" else "basic") for p in PLANS]


@pytest.mark.soak
def test_measuring_stops_at_rows_that_differ(monkeypatch):
    monkeypatch.setattr(rss, "timed_join", losing_rows(lambda number: 1))
    with pytest.raises(AssertionError, match="gets other rows than it does alone"):
        measure_rss(TINY, "duckdb", ["basic"], 1, TINY.queries)


@pytest.mark.soak
def test_memory_of_a_kept_document():
    (line,) = memory_lines(["basic"], 200, 400)
    assert line.details["state_bytes"] is None or isinstance(line.details["state_bytes"], float)
