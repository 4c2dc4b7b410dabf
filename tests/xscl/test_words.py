"""The words of texts, held against the oracle's, which goes by single characters."""

from __future__ import annotations

import sys
import unicodedata
from random import Random

import pytest

from tests.oracle.values import word_list
from tests.support.cpu import printed
from xscl.algebra.words import MOST_WORDS, is_combining, words, words_text

ALPHABET = tuple(
    "aaBbÉßſﬁİΣςΐΐ  --'’._09٣²½ⅣⒶªé\u0301\u0316\u0345\u034f\u200d\u00ad\u0f73\uff9e"
    "京都市カナがｶﾞー々〇ไทยກຂខ្មကမ္ယ😀\ufdfa\U00020000\U00010400\ud800"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ""),
        ("—…!", ""),
        ("Storm hits the coast – the STORM!", "coast hits storm the"),
        ("It's 3.5 km", "3 5 it km s"),
        ("Straße ﬁre Ⅻ ½ x²", "1 2 fire strasse x2 xii"),
        ("ΟΔΟΣ οδος", "οδοσ"),
        ("caf\u00e9 cafe\u0301", "caf\u00e9"),
        ("東京タワーAI", "ai タワ ワー 京タ 東京"),
        ("水 火", "水 火"),
        ("ไทย", "ทย ไท"),
    ],
)
def test_words(text: str, found: str) -> None:
    assert words_text(text) == found


def test_words_are_those_of_the_oracle() -> None:
    rng = Random(5)
    for _ in range(4000):
        text = "".join(rng.choices(ALPHABET, k=rng.choice((1, 3, 8, 20, 40))))
        if rng.random() < 0.1:
            text += "".join(rng.choices("\u0301\u0316\u0f73\uff9ea", (9, 9, 9, 9, 1), k=rng.randrange(25, 100)))
        assert words(text) == set(word_list(text)[:MOST_WORDS]), ascii(text)


def test_the_words_of_each_character() -> None:
    """Each letter between two others: which script it is of, what it folds to."""
    for code in range(0, sys.maxunicode + 1, 61):
        text = f"京{chr(code)}a{chr(code + 1) if code < sys.maxunicode else ''}"
        assert words(text) == set(word_list(text)), hex(code)


def test_the_words_of_european_texts() -> None:
    """Letters before the marks, and the punctuation of typographers, are read in another way."""
    others = [
        *map(chr, range(0x80, 0x310)),
        *"\u2010\u2018\u2019\u201a\u201c\u201d\u2013\u2014\u2026\u2022\u20ac\u2044\u2190\u0338\u2605\u200b\u3000\ud800\ufb01\u2169\u00bd\uff21",
    ]
    rng = Random(6)
    for char in others:
        more = "".join(rng.choices([*others, *"aZ1_ -"], k=rng.choice((0, 2, 9))))
        for text in (char, f"a{char}b", f"3{char} {char}\u2019s \u201cA{more}{char}\u201d"):
            assert words(text) == set(word_list(text)), ascii(text)


def test_the_first_256_words_count() -> None:
    assert words("a " * 255 + "b c") == {"a", "b"}
    assert words("京" * 257 + "都市") == {"京京"}
    assert len(words(" ".join(map(str, range(1000))))) == 256


def test_all_characters_are_found_that_normalization_reorders() -> None:
    categories = {unicodedata.category(char) for char in map(chr, range(sys.maxunicode + 1)) if is_combining(char)}
    assert {category for category in categories if category[0] != "M"} <= {"Lm"}


HOSTILE = """
from xscl.algebra.words import words

for text in (
    "a " * 500_000,
    "\\u0301\\u0316" * 500_000,
    "\\u0f73\\uff9e" * 300_000,
    "\\ufdfa" * 50_000,
    "é" * 1_000_000,
    "京" * 1_000_000,
):
    print(len(words(text)))
"""


def test_hostile_texts_are_read_in_linear_time() -> None:
    assert printed(HOSTILE).split() == ["1", "1", "2", "4", "1", "1"]
