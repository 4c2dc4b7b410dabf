"""Near-equal texts: the similarity held against the oracle's sets, and the words of a text as numbers."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from tests.generate.near import THRESHOLDS, near_texts
from tests.oracle import values as oracle_values
from xscl.algebra.words import encode_words, join_threshold, near, overlap
from xscl.parser import parse_script
from xscl.problems import XsclErrors


def test_near_is_that_of_sets() -> None:
    rng = Random(3)
    for _ in range(1500):
        one, other = near_texts(rng)
        for threshold in (*THRESHOLDS, "0.625", "0.99999999999999999999"):
            assert near(one, other, threshold) == oracle_values.near(one, other, threshold), (one, other, threshold)


def test_a_threshold_is_exact() -> None:
    assert overlap("a b c d e f g", "a b c d e f h") == (6, 8)
    assert near("a b c d e f g", "a b c d e f h", "0.75") and not near("a b c", "a b d", "0.50000000000000000001")
    assert near("", "", "0.5") is near("…", "—", "0.5") is False


def test_words_as_numbers() -> None:
    def numbers(text: str) -> list[str]:
        found = encode_words(text, "0.6")
        assert found[:3] == "0.6"
        return [found[at : at + 16] for at in range(3, len(found), 16)]

    storm, the, straße = (numbers(word) for word in ("storm", "the", "Straße"))
    assert numbers("The storm,\nTHE storm") == storm + the  # ascending: the longest first
    assert numbers("STRASSE") == straße and len({*storm, *the, *straße}) == 3
    assert numbers("a" * 200) != numbers("a" * 201) and numbers("a" * 200)[0][:2] == "00"
    assert encode_words("", "0.5") == encode_words("… —", "0.5") == ""
    assert len(numbers(" ".join(f"word{number}" for number in range(1000)))) == 256
    assert len(encode_words("京" * 1_000_000, "1.0")) == 3 + 16


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
