from itertools import combinations

import pytest

from bench import near
from join_stage.near import LONGEST_FIRST
from tests.oracle import values as oracle_values


def test_near_is_measured_beside_equality(tmp_path):
    cases = [
        near.NearCase(near.EQUALITY, 2, 300),
        near.NearCase("0.6", 2, 300),
        near.NearCase(near.EQUALITY, 2, 300, alike="0.6"),
    ]
    lines = near.beside_equality([near.measure_near(case) for case in cases])
    assert [line.baseline for line in lines] == [None, near.EQUALITY, None]
    assert lines[1].details["of_alike"] == lines[2].seconds / lines[1].seconds
    assert lines[1].speedup == lines[0].seconds / lines[1].seconds
    assert all(line.rows == 2 * int(str(line.details["pairs"])) > 0 for line in lines)
    assert lines[0].rows < lines[1].rows <= lines[2].rows
    near.draw_near(lines, tmp_path / "it")
    assert "near ones made equal" in (tmp_path / "it.svg").read_text()


def test_headlines_of_a_file(tmp_path):
    path = tmp_path / "some.tsv"
    path.write_text("10\tStorm hits the coast\n20\tThe storm hits the coast\n30\tRain\n", encoding="utf-8")
    assert near.read_headlines(path, 2) == [
        near.Headline("Storm hits the coast", 10_000_000),
        near.Headline("The storm hits the coast", 20_000_000),
    ]
    line = near.measure_near(near.NearCase("0.7", 1, 100, path))
    assert (line.rows, line.details["sharing_longest"], line.case["source"]) == (1, 1 / 3, "some.tsv")


@pytest.mark.parametrize("condition", [near.EQUALITY, "0.6", "0.8"])
def test_pairs_are_those_of_the_definition(condition):
    texts = [text for text, _ in (*near.made_headlines(40), *near.made_headlines(10))]
    given = [
        near.Headline(text, number // 3 * 3 * 3_600_000_000) for number, text in enumerate(texts)
    ]  # some at one time
    found = {
        (one, other)
        for one, other in combinations(range(len(given)), 2)
        if given[one].time < given[other].time <= given[one].time + near.WINDOW
        and _holds(given[one].text, given[other].text, condition)
    }
    assert found and near.expected_pairs(given, condition) == found
    if condition != near.EQUALITY:
        sharing, compared, _ = near.candidates(given, condition, LONGEST_FIRST)
        # Pairs of one time come on top.
        assert sharing * len(given) >= compared * len(given) >= len(found)


def _holds(one, other, condition):
    return one.lower() == other.lower() if condition == near.EQUALITY else oracle_values.near(one, other, condition)
