"""The check of pairs of texts, held against the oracle, with little memory and with words that are found again."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from join_stage import near
from join_stage.near import OneOfEach, WordSets, numbered_texts, split_text_rows
from join_stage.protocol import RESULT
from templates.witness import MANY, R_DOC
from tests.generate.near import near_texts
from tests.oracle import values as oracle_values
from xscl.algebra.words import encode_words

NODES = {"0.5": MANY | 5 << 44 | 3, "0.6": MANY | 6 << 44 | 3, "1.0": MANY | 10 << 44 | 3}


def _rows(texts: Sequence[str], first: int = 0) -> pa.Table:
    """R_doc with the words of texts, one a document, for each threshold, and with another value."""
    rows = [
        (docid, node, encode_words(text, threshold), "S")
        for docid, text in enumerate(texts, first)
        for threshold, node in NODES.items()
    ]
    rows += [(docid, 3, text, "S") for docid, text in enumerate(texts, first)]
    return pa.table(list(map(list, zip(*rows, strict=True))), schema=R_DOC)


def _add(sets: WordSets, rows: pa.Table) -> None:
    _, texts = split_text_rows(rows)
    sets.add(texts, numbered_texts(texts["strval"].to_pylist()))


def _near(sets: WordSets, pairs: Sequence[tuple[int, int]], threshold: str) -> list[bool]:
    left, right = np.array(pairs, np.int64).reshape(-1, 2).T
    sides = (OneOfEach(side, np.full(len(side), NODES[threshold]), np.arange(len(side))) for side in (left, right))
    return list(map(bool, sets.are_near(*sides)))


@pytest.mark.parametrize("most", [10, 100, 1_000_000])
@pytest.mark.parametrize("is_stored", [True, False])
def test_pairs_are_near_as_the_oracle_says(most: int, is_stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "MOST_HELD", most)
    monkeypatch.setattr(near, "MOST_COMPARED", most)
    rng = Random(most)
    texts = [text for _ in range(80) for text in near_texts(rng)]
    stored = _rows(texts)
    asked: list[int] = []

    def find(docids: pa.Array) -> pa.Table:
        asked.extend(docids.to_pylist())
        return stored.filter(pc.is_in(stored["docid"], docids))

    sets = WordSets(find if is_stored else None)
    found = 0
    for first in range(0, len(texts), 20):
        upto = first + 20
        _add(sets, _rows(texts[first:upto], first))
        pairs = [(rng.randrange(first, upto), rng.randrange(upto)) for _ in range(60)]
        pairs += [(docid, docid - 1) for docid in range(first + 1, upto, 2)]
        pairs += rng.choices(pairs, k=10)
        for threshold in NODES:
            # Of texts without words, nobody can tell here; they have no key, so they are not asked for.
            some = [pair for pair in pairs if all(encode_words(texts[docid], threshold) for docid in pair)]
            expected = [oracle_values.near(texts[one], texts[other], threshold) for one, other in some]
            assert _near(sets, some, threshold) == expected
            found += sum(expected)
    assert found > 150
    assert bool(asked) == (is_stored and most < 1_000_000)


def test_of_what_is_not_there_nobody_can_tell() -> None:
    sets = WordSets(lambda docids: _rows(["storm"]).filter(pc.is_in(_rows(["storm"])["docid"], docids)))
    assert _near(sets, [(0, 0), (0, 1), (7, 8)], "0.6") == [True, True, True]
    assert (sets.pairs, sets.near) == (1, 1)


def test_a_text_that_comes_again_under_one_docid_is_the_later_one() -> None:
    sets = WordSets()
    _add(sets, _rows(["storm hits", "the coast"]))
    assert _near(sets, [(0, 1)], "0.5") == [False]
    _add(sets, _rows(["the coast"]))  # the batch was rolled back, and another one came
    assert _near(sets, [(0, 1)], "0.5") == [True]


def test_words_with_one_number_make_texts_nearer_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """If digests were short, pairs could be taken for near that are not, but none would be lost."""
    from xscl.algebra import words

    monkeypatch.setattr(words, "_number", lambda word: f"{len(word) % 3:016x}")
    words._numbers.cache_clear()
    rng = Random(5)
    try:
        for _ in range(200):
            texts = near_texts(rng)
            sets = WordSets()
            _add(sets, _rows(texts))
            for threshold in NODES:
                if oracle_values.near(*texts, threshold):
                    assert _near(sets, [(0, 1)], threshold) == [True]
    finally:
        words._numbers.cache_clear()


def test_rows_of_matches_are_checked() -> None:
    sets = WordSets()
    _add(sets, _rows(["storm hits the coast", "the storm hits coast", "rain"]))
    node = NODES["0.6"]
    rows = [
        (1, 0, 1, [1, node, 1, node]),
        (1, 0, 2, [1, node, 1, node]),
        (2, 0, 2, [1, 3, 4, 1, 3]),
        (3, 1, None, [1]),
        (4, 1, 0, [node, node]),
    ]
    found = pa.table(list(map(list, zip(*rows, strict=True))), schema=RESULT)
    assert sets.checked(found)["qid"].to_pylist() == [1, 2, 3, 4]
    assert sets.checked(found.slice(2, 2)).equals(found.slice(2, 2))
