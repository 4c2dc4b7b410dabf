"""Near-equal texts: the similarity held against the oracle's sets, and the keys that must find what is near."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from tests.generate.near import THRESHOLDS, WORDS
from tests.oracle import values as oracle_values
from xscl import XsclErrors, parse_script
from xscl.algebra.near import join_threshold, keys, near, overlap


def texts(rng: Random) -> tuple[str, str]:
    words = rng.choices(WORDS, k=rng.choice((0, 1, 3, 8, 20)))
    others = [rng.choice(WORDS) if rng.random() < 0.2 else word for word in words]
    return " ".join(words), " ".join(others[rng.randrange(2) :])


def test_near_is_that_of_sets() -> None:
    rng = Random(3)
    for _ in range(1500):
        one, other = texts(rng)
        for threshold in (*THRESHOLDS, "0.625", "0.99999999999999999999"):
            assert near(one, other, threshold) == oracle_values.near(one, other, threshold), (one, other, threshold)


def test_what_is_near_has_a_key_in_common() -> None:
    rng = Random(4)
    found = 0
    for _ in range(4000):
        one, other = texts(rng)
        for threshold in THRESHOLDS:
            if near(one, other, threshold):
                rounded = join_threshold(threshold)
                found += one != other
                assert set(keys(one, rounded)) & set(keys(other, rounded)), (one, other, threshold)
    assert found > 1000


def test_a_threshold_is_exact() -> None:
    assert overlap("a b c d e f g", "a b c d e f h") == (6, 8)
    assert near("a b c d e f g", "a b c d e f h", "0.75") and not near("a b c", "a b d", "0.50000000000000000001")
    assert near("", "", "0.5") is near("…", "—", "0.5") is False


def test_keys_are_few_and_short() -> None:
    text = " ".join(f"word{number}" for number in range(1000))
    for threshold, most in (("0.5", 129), ("0.6", 103), ("0.9", 26), ("1.0", 1)):
        assert len(keys(text, threshold)) == most
    assert keys("", "0.5") == keys("…", "0.5") == []
    assert all(len(key) == 20 for key in keys("a" * 1_000_000, "0.5"))
    assert not set(keys("storm", "0.5")) & set(keys("storm", "0.6"))


@pytest.mark.parametrize("threshold", ["0.5", "0.59", "1", "1.0", ".75"])
def test_the_threshold_of_the_join(threshold: str) -> None:
    tenths = Fraction(join_threshold(threshold)) * 10
    assert tenths.denominator == 1 and tenths <= Fraction(threshold) * 10 < tenths + 1


@pytest.mark.parametrize(
    "condition",
    ["near(x, y)", "near(x, y, 0.4)", "near(x, y, 1.1)", "near(x, y, x)", 'near(x, y, "0.6")', 'near(x, "a", 0.6)'],
)
def test_what_near_does_not_take(condition: str) -> None:
    with pytest.raises(XsclErrors):
        parse_script(f"S//a->x JOIN {{{condition}, 1 h}} S//b->y")
