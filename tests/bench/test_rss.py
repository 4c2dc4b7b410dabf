"""The benchmark of the feed, with a tiny one: its floor, its values, and what it writes."""

from dataclasses import replace

import numpy as np
import pytest

from bench import rss, stage2_engines
from bench.stage2_feed import FEED, feed, strings
from bench.stage2_floor import LEAF_BITS, Floor, postings
from tests.bench.test_stage2 import CONTRACT


@pytest.mark.parametrize("sizes", [[30, 10], [5, 5, 5, 40, 1], [1], [0, 12]])
def test_the_floor_writes_the_pairs_that_brute_force_finds(sizes):
    matrix = np.random.default_rng(len(sizes)).integers(0, 20, (sum(sizes), 3))
    first = 0
    with Floor() as floor:
        for place, size in enumerate(sizes):
            end = first + size
            arrived = postings(first, matrix[first:end])
            if place == 0:
                floor.keep(*arrived)
            else:
                count = floor.join(*arrived)
                left, right = (np.fromfile(file, np.int64) for file in floor.files)
                expected = {
                    (a << LEAF_BITS | i, b << LEAF_BITS | j)
                    for b in range(first, end)
                    for a in range(b)
                    for i, value in enumerate(matrix[a])
                    for j, other in enumerate(matrix[b])
                    if value == other
                }
                assert set(zip(left.tolist(), right.tolist(), strict=True)) == expected
                assert count == len(left) == len(right) == len(expected)
            first = end


def test_values_of_the_feed_are_equal_where_their_numbers_are():
    values = feed(400)
    texts = [column.to_pylist() for column in strings(values)]
    flat_texts = [text for row in zip(*texts, strict=True) for text in row]
    flat_values = values.ravel().tolist()
    assert len(set(flat_texts)) == len(set(flat_values)) == len(set(zip(flat_values, flat_texts, strict=True)))
    assert len(set(flat_values)) < len(flat_values) - 200  # some channels are met again


def test_a_feed_repeats_urls_titles_and_descriptions_within_a_channel_and_titles_as_descriptions():
    url, channel, title, _, description = feed(5000).T
    for leaf in (url, title, description):
        assert len(np.unique(leaf)) < len(leaf)
    assert (url == channel).any() and (title == description).any()
    assert 350 < len(np.unique(channel)) <= 418


TINY_RSS = rss.Case(60, 20, 40)


@pytest.fixture(scope="module")
def streamed():
    return rss.measure(TINY_RSS, "duckdb", stage2_engines.plans_of("duckdb", None, quick=False), 2, 12)


@pytest.mark.soak
def test_pairs_of_values_are_those_of_the_engine(streamed):
    values = feed(80)
    expected = sum(int((values[a][:, None] == values[b][None, :]).sum()) for b in range(60, 80) for a in range(b))
    assert streamed[0].details["value_pairs"] == expected > 0


@pytest.mark.soak
def test_rss_lines_are_those_of_the_contract(streamed):
    first, *_, sequential = [line.flat() for line in streamed]
    assert list(first)[: len(CONTRACT)] == CONTRACT
    assert first["case"] == {"state": 60, "batch": 20, "queries": 40, "items": 80}
    assert first["over_floor"] == pytest.approx(first["seconds"] / first["floor"])
    assert first["speedup"] == pytest.approx(sequential["seconds"] / first["seconds"])
    assert (first["baseline"], sequential["baseline"], first["extrapolated"]) == ("sequential", None, True)
    assert first["items_a_second"] == pytest.approx(20 / first["seconds"])
    assert sequential["rows"] == first["expanded"] > 0


@pytest.mark.soak
def test_without_sequential_the_baseline_is_basic():
    plans = stage2_engines.plans_of("duckdb", None, quick=False)
    lines = rss.measure(TINY_RSS, "duckdb", plans, 1, 0)
    assert [(line.plan, line.baseline) for line in lines] == [
        (plan, None if plan == "basic" else "basic") for plan in plans
    ]


@pytest.mark.soak
def test_rss_stops_at_rows_that_differ(monkeypatch):
    real = stage2_engines.timed_join

    def loses_a_row(*arguments, **keywords):
        joined = real(*arguments, **keywords)
        return replace(joined, table=joined.table.slice(1))

    monkeypatch.setattr(rss, "timed_join", loses_a_row)
    with pytest.raises(AssertionError, match="gets other rows than it does alone"):
        rss.measure(TINY_RSS, "duckdb", ["basic"], 1, TINY_RSS.queries)


def test_rss_cases():
    assert rss.cases([10], sweeps=False) == [rss.Case(20_000, 5_000, 10)]
    swept = rss.cases(rss.NUMBERS, sweeps=True)
    assert len(swept) == len(set(swept)) and max(case.state + case.batch for case in swept) == 225_000


@pytest.mark.soak
def test_memory_of_a_kept_document():
    (line,) = rss.memory(["basic"], 200, 400)
    size = line.details["state_bytes"]
    assert size is None or isinstance(size, float)


def test_witnesses_of_the_feed_come_in_batches():
    work = rss.workload(TINY_RSS)
    assert [first for first, _ in (*work.kept, work.warm, work.measured)] == [0, 40, 60]
    assert work.registered.schema == FEED
    assert work.kept[0][1].r_group.num_rows and not work.measured[1].r_group.num_rows


@pytest.mark.soak
def test_plot_of_rates(streamed, tmp_path):
    from bench.stage2_plot import draw_rates

    keys = (("queries", "queries"), ("state", "items in the state"))
    draw_rates(streamed, tmp_path / "one", keys)
    more = [replace(line, case={**line.case, "state": 100}) for line in streamed]
    draw_rates([*streamed, *more], tmp_path / "two", keys)
    assert (tmp_path / "one.png").exists() and (tmp_path / "two.svg").exists()
