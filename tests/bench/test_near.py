"""The benchmark of near-equal headlines, with tiny cases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest

from bench import near
from bench.headlines import Headline, made_headlines, read_headlines
from bench.near import EQUALITY, WINDOW, Case, beside_equality, candidates, expected, measure
from join_stage.near import LONGEST_FIRST
from tests.oracle import values as oracle_values


def test_near_is_measured_beside_equality():
    cases = [Case(EQUALITY, 2, 300), Case("0.6", 2, 300), Case(EQUALITY, 2, 300, alike="0.6")]
    lines = list(beside_equality([measure(case) for case in cases]))
    assert [line.baseline for line in lines] == [None, EQUALITY, None]
    assert lines[1].details["of_alike"] == lines[2].seconds / lines[1].seconds
    assert lines[1].speedup == lines[0].seconds / lines[1].seconds
    assert all(line.rows == 2 * int(str(line.details["pairs"])) > 0 for line in lines)
    assert lines[0].rows < lines[1].rows <= lines[2].rows


def test_headlines_of_a_file(tmp_path: Path):
    path = tmp_path / "some.tsv"
    path.write_text("10\tStorm hits the coast\n20\tThe storm hits the coast\n30\tRain\n", encoding="utf-8")
    assert read_headlines(path, 2) == [
        Headline("Storm hits the coast", 10_000_000),
        Headline("The storm hits the coast", 20_000_000),
    ]
    line = measure(Case("0.7", 1, 100, path))
    assert (line.rows, line.details["sharing_longest"], line.case["source"]) == (1, 1 / 3, "some.tsv")


@pytest.mark.parametrize("condition", [EQUALITY, "0.6", "0.8"])
def test_pairs_are_those_of_the_definition(condition: str):
    given = _spread([*made_headlines(40), *made_headlines(10)])
    found = {
        (one, other)
        for one, other in combinations(range(len(given)), 2)
        if given[one].time < given[other].time <= given[one].time + WINDOW
        and _holds(given[one].text, given[other].text, condition)
    }
    assert found and expected(given, condition) == found
    if condition != EQUALITY:
        sharing, compared, _ = candidates(given, condition, LONGEST_FIRST)
        # Pairs of one time come on top.
        assert sharing * len(given) >= compared * len(given) >= len(found)


def _spread(given: Sequence[Headline]) -> list[Headline]:
    """Some headlines an hour apart, some at one time."""
    return [Headline(text, number // 3 * 3 * 3_600_000_000) for number, (text, _) in enumerate(given)]


def _holds(one: str, other: str, condition: str) -> bool:
    return one.lower() == other.lower() if condition == EQUALITY else oracle_values.near(one, other, condition)


def test_a_difference_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(near, "expected", lambda given, condition: set())
    with pytest.raises(AssertionError, match="other pairs than sets give"):
        measure(Case("0.6", 1, 300))
