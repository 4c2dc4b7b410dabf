"""The benchmark of near-equal headlines, with tiny cases."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from bench import near
from bench.near import (
    EQUALITY,
    WINDOW,
    Headline,
    NearCase,
    beside_equality,
    candidates,
    draw_near,
    expected_pairs,
    made_headlines,
    measure_near,
    read_headlines,
)
from join_stage.near import LONGEST_FIRST
from tests.oracle import values as oracle_values


def test_near_is_measured_beside_equality(tmp_path: Path):
    cases = [NearCase(EQUALITY, 2, 300), NearCase("0.6", 2, 300), NearCase(EQUALITY, 2, 300, alike="0.6")]
    lines = beside_equality([measure_near(case) for case in cases])
    assert [line.baseline for line in lines] == [None, EQUALITY, None]
    assert lines[1].details["of_alike"] == lines[2].seconds / lines[1].seconds
    assert lines[1].speedup == lines[0].seconds / lines[1].seconds
    assert all(line.rows == 2 * int(str(line.details["pairs"])) > 0 for line in lines)
    assert lines[0].rows < lines[1].rows <= lines[2].rows
    draw_near(lines, tmp_path / "it")
    assert "near ones made equal" in (tmp_path / "it.svg").read_text()


def test_headlines_of_a_file(tmp_path: Path):
    path = tmp_path / "some.tsv"
    path.write_text("10\tStorm hits the coast\n20\tThe storm hits the coast\n30\tRain\n", encoding="utf-8")
    assert read_headlines(path, 2) == [
        Headline("Storm hits the coast", 10_000_000),
        Headline("The storm hits the coast", 20_000_000),
    ]
    line = measure_near(NearCase("0.7", 1, 100, path))
    assert (line.rows, line.details["sharing_longest"], line.case["source"]) == (1, 1 / 3, "some.tsv")


@pytest.mark.parametrize("condition", [EQUALITY, "0.6", "0.8"])
def test_pairs_are_those_of_the_definition(condition: str):
    texts = [text for text, _ in (*made_headlines(40), *made_headlines(10))]
    given = [Headline(text, number // 3 * 3 * 3_600_000_000) for number, text in enumerate(texts)]  # some at one time
    found = {
        (one, other)
        for one, other in combinations(range(len(given)), 2)
        if given[one].time < given[other].time <= given[one].time + WINDOW
        and _holds(given[one].text, given[other].text, condition)
    }
    assert found and expected_pairs(given, condition) == found
    if condition != EQUALITY:
        sharing, compared, _ = candidates(given, condition, LONGEST_FIRST)
        # Pairs of one time come on top.
        assert sharing * len(given) >= compared * len(given) >= len(found)


def _holds(one: str, other: str, condition: str) -> bool:
    return one.lower() == other.lower() if condition == EQUALITY else oracle_values.near(one, other, condition)


def test_a_difference_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(near, "expected_pairs", lambda given, condition: set())
    with pytest.raises(AssertionError, match="other pairs than sets give"):
        measure_near(NearCase("0.6", 1, 300))
