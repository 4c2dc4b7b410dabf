import sys
import unicodedata
from fractions import Fraction
from random import Random

import pytest

from tests.generate.near import SIMILAR, THRESHOLDS, near_texts
from tests.oracle import values as oracle_values
from tests.oracle.values import word_list
from tests.support.cpu import printed
from xscl.algebra.near import (
    MOST_WORDS,
    encode_words,
    is_combining,
    near,
    overlap,
    similar,
    word_level,
    words,
    words_text,
)
from xscl.parser import parse_script
from xscl.text import XsclErrors

ALPHABET = tuple(
    "aaBbÉßſﬁİΣςΐΐ  --'’._09٣²½ⅣⒶªé\u0301\u0316\u0345\u034f\u200d\u00ad\u0f73\uff9e"
    "京都市カナがｶﾞー々〇ไทยກຂខ្មကမ္ယ😀\ufdfa\U00020000\U00010400\ud800"
)
EUROPEAN = (*map(chr, range(0x80, 0x310)), *"aZ1_ -3" * 20, *"\u2010\u2018\u2019\u201a\u201c\u2013\u2026" * 9)
"""Letters before the marks, and the punctuation of typographers, are read in another way."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *(("", ""), ("—…!", ""), ("Storm hits the coast – the STORM!", "coast hits storm the")),
        *(("It's 3.5 km", "3 5 it km s"), ("Straße ﬁre Ⅻ ½ x²", "1 2 fire strasse x2 xii"), ("ΟΔΟΣ οδος", "οδοσ")),
        *(("caf\u00e9 cafe\u0301", "caf\u00e9"), ("東京タワーAI", "ai タワ ワー 京タ 東京"), ("水 火", "水 火")),
        ("ไทย", "ทย ไท"),
    ],
)
def test_words(text: str, found: str) -> None:
    assert words_text(text) == found


def test_words_are_those_of_the_oracle() -> None:
    rng = Random(5)
    for number in range(1500):
        text = "".join(rng.choices((ALPHABET, EUROPEAN)[number % 2], k=rng.choice((1, 3, 8, 20, 40))))
        if rng.random() < 0.1:
            text += "".join(rng.choices("\u0301\u0316\u0f73\uff9ea", (9, 9, 9, 9, 1), k=rng.randrange(25, 100)))
        assert words(text) == set(word_list(text)[:MOST_WORDS]), ascii(text)


def test_the_words_of_each_character() -> None:
    """Each letter between two others: which script it is of, what it folds to."""
    for code in range(0, sys.maxunicode + 1, 251):
        text = f"京{chr(code)}a{chr(code + 1) if code < sys.maxunicode else ''}"
        assert words(text) == set(word_list(text)), hex(code)


def test_the_first_256_words_count() -> None:
    assert words("a " * 255 + "b c") == {"a", "b"}
    assert words("京" * 257 + "都市") == {"京京"}
    assert len(words(" ".join(map(str, range(1000))))) == 256


@pytest.mark.soak
def test_all_characters_are_found_that_normalization_reorders() -> None:
    categories = {unicodedata.category(char) for char in map(chr, range(sys.maxunicode + 1)) if is_combining(char)}
    assert {category for category in categories if category[0] != "M"} <= {"Lm"}


HOSTILE = """
from xscl.algebra.near import words

texts = ["a " * 200_000, "\\u0301\\u0316" * 200_000, "\\u0f73\\uff9e" * 100_000, "\\ufdfa" * 20_000]
for text in (*texts, "é" * 300_000, "京" * 300_000):
    print(len(words(text)))
"""


def test_hostile_texts_are_read_in_linear_time() -> None:
    assert printed(HOSTILE).split() == ["1", "1", "2", "4", "1", "1"]


def test_near_is_that_of_sets() -> None:
    rng = Random(3)
    for _ in range(500):
        one, other = near_texts(rng)
        for threshold in (*THRESHOLDS, "0.625", "0.99999999999999999999", "0.50000000000000000001"):
            assert near(one, other, threshold) == oracle_values.near(one, other, threshold), (one, other, threshold)
        for threshold in (*SIMILAR, "0.125", "0.99999999999999999999"):
            is_similar = oracle_values.similar(one, other, threshold)
            assert similar(one, other, threshold) == is_similar, (one, other, threshold)
    assert overlap("a b c d e f g", "a b c d e f h") == (6, 8)


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


def test_heavy_words_come_first() -> None:
    words = encode_words("The tyrannosaurus, and the earthquake", "w12")
    assert [127 - int(words[at : at + 2], 16) for at in range(6, len(words), 16)] == [120, 73, 8, 1]
    assert words[:6] == "w12002" and encode_words("… —", "w12") == ""


@pytest.mark.parametrize("threshold", ["0.5", "0.59", "1", "1.0", ".75"])
def test_the_threshold_of_the_join(threshold: str) -> None:
    level = int(word_level("similar", threshold)[1:])
    assert level <= Fraction(threshold) * 100 < level * 1.6
    tenths = Fraction(word_level("near", threshold)) * 10
    assert tenths.denominator == 1 and tenths <= Fraction(threshold) * 10 < tenths + 1


@pytest.mark.parametrize(
    "arguments", ["x, y", "x, y, 0.04", "x, y, 1.1", "x, y, x", 'x, y, "0.6"', 'x, "a", 0.6', "x, 0.6", "x"]
)
def test_what_near_does_not_take(arguments: str) -> None:
    for name in ("near", "similar"):
        with pytest.raises(XsclErrors):
            parse_script(f"S//a->x JOIN {{{name}({arguments}), 1 h}} S//b->y")
