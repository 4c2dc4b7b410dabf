"""Texts as codes: what is derived and tested, and forgetting."""

import math
import random

import numpy as np

from pattern_stage.columns import NULL_TEXT
from pattern_stage.values import FALSE, TRUE, UNDECIDED, Texts
from xscl.algebra.values import DERIVED, derive

SOME = [
    "Ärger ",
    " 1.50",
    "http://WWW.Example.org:80/a?utm_source=x",
    "",
    "2026-07-16",
    "9" * 400,
    "ß",
    None,
    "-0",
    "1",
]


def ints(*values: int):
    return np.array(values, np.int64)


def test_a_text_has_one_code_and_null_none():
    texts = Texts()
    codes = texts.codes(["a", None, "b", "a", ""])
    assert codes.tolist() == [0, NULL_TEXT, 1, 0, 2] and codes.dtype == np.int64
    assert texts.texts(codes) == ["a", None, "b", "a", ""] and len(texts) == 3
    assert texts.code("b") == 1 and texts.text(2) == "" and texts.text(NULL_TEXT) is None


def test_derived_values_are_those_of_the_language():
    texts = Texts()
    codes = texts.codes(SOME)
    for name in DERIVED:
        wanted = [None if text is None else derive(name, text) for text in SOME]
        for _ in range(2):  # computed, and remembered
            assert texts.texts(texts.derived(name, codes)) == wanted


def test_numbers_are_finite_or_null():
    texts = Texts()
    found = texts.numbers(texts.codes(SOME)).tolist()
    wanted = [None, 1.5, None, None, None, None, None, None, 0.0, 1.0]
    assert [None if math.isnan(number) else number for number in found] == wanted
    assert texts.derived_numbers("string-length", texts.codes(["ßa", None])).tolist()[0] == 2
    assert math.isnan(texts.derived_numbers("string-length", texts.codes([None]))[0])


def test_numbers_are_written_as_xpath_does():
    texts = Texts()
    codes = texts.written(np.array([1.0, 0.1, math.nan, -0.0, 1e21, 1.0]))
    assert texts.texts(codes) == ["1", "0.1", None, "0", "1" + "0" * 21, "1"]


def test_texts_are_concatenated_and_tested_row_by_row():
    chance = random.Random(1)
    texts = Texts()
    rows = [[chance.choice(["a", "ab", "", "b", None]) for _ in range(3)] for _ in range(200)]
    columns = [texts.codes(column) for column in zip(*rows, strict=True)]
    joined = texts.texts(texts.concatenated(columns))
    assert joined == [None if None in row else "".join(map(str, row)) for row in rows]
    outcomes = texts.tested("starts-with", columns[:2]).tolist()
    for (text, prefix, _), outcome in zip(rows, outcomes, strict=True):
        wanted = UNDECIDED if text is None or prefix is None else TRUE if text.startswith(prefix) else FALSE
        assert outcome == wanted


def test_a_regular_expression_that_is_none_or_takes_too_long_is_undecided():
    texts = Texts()
    columns = [texts.codes(["ab", "ab", "a" * 200_000]), texts.codes(["b$", "(", "(a{1,1000}b){1,2}"])]
    assert texts.tested("matches", columns).tolist() == [TRUE, UNDECIDED, UNDECIDED]


def test_nothing_of_nothing():
    texts = Texts()
    none = np.zeros(0, np.int64)
    assert texts.codes([]).dtype == np.int64
    for found in (texts.numbers(none), texts.derived("host", none), texts.concatenated([none, none])):
        assert len(found) == 0
    assert len(texts.tested("contains", [none, none])) == 0 and len(texts.written(np.zeros(0))) == 0


def test_what_is_kept_keeps_its_code_and_the_rest_is_forgotten():
    texts = Texts()
    codes = texts.codes(f"text {number}" for number in range(1000))
    texts.numbers(codes)
    texts.derived("upper-case", codes)
    kept = np.append(codes[[3, 500, 7]], NULL_TEXT)
    texts.keep([kept, np.zeros(0, np.int64)])
    assert len(texts) == 3 and texts.texts(kept) == ["text 3", "text 500", "text 7", None]
    new = texts.codes(f"{number}" for number in range(2000))
    assert len(set(new.tolist()) | set(kept.tolist())) == 2004, "codes are used again, but not those that are in use"
    assert new.max() < 2010
    assert texts.numbers(new).tolist() == list(range(2000)), "nothing of the texts that had the codes before"
    assert texts.texts(texts.derived("upper-case", kept)) == ["TEXT 3", "TEXT 500", "TEXT 7", None]


def test_texts_are_crowded_when_they_have_doubled():
    texts = Texts()
    kept = texts.codes(map(str, range(20_000)))
    assert texts.crowded
    texts.keep([kept])
    assert not texts.crowded
    texts.codes(f"a{number}" for number in range(30_001))
    assert texts.crowded
    for _ in range(20):
        texts.codes(f"b{number}" for number in range(30_001))
        texts.keep([kept])
    assert len(texts) == 20_000 and texts.codes(["new"])[0] <= 80_000
