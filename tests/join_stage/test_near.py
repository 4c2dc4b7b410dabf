from collections.abc import Mapping, Sequence
from itertools import combinations
from random import Random

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from join_stage import near_candidates, near_index
from join_stage.near_candidates import LONGEST_FIRST, WordOrder, WordSets, keyed, learnt, numbered_texts
from templates.witness import MANY, R_DOC
from tests.generate.near import SIMILAR, THRESHOLDS, WORDS, near_texts
from tests.oracle import values as oracle_values
from xscl.algebra.near import encode_words, level_hundredths, word_level

NODES = {level: MANY | place << 44 | 3 for place, level in enumerate(("0.5", "0.6", "1.0", "w12", "w25"), 5)}
LEVELS = ("0.5", "0.6", "0.7", "0.8", "0.9", "1.0", "w05", "w17", "w80")


def word_rows(texts: Sequence[str], nodes: Mapping[str, int] = NODES, first: int = 0) -> pa.Table:
    """R_doc with the words of texts, one a document, for each threshold, and with another value."""
    rows = [
        (docid, node, encode_words(text, threshold), "S")
        for docid, text in enumerate(texts, first)
        for threshold, node in nodes.items()
    ]
    rows += [(docid, 3, text.lower(), "S") for docid, text in enumerate(texts, first)]
    return pa.table(list(map(list, zip(*rows, strict=True))), schema=R_DOC)


def _keys(rows: pa.Table, order: WordOrder) -> list[set[str]]:
    found: list[set[str]] = [set() for _ in range(len(rows) // 2)]
    for row in keyed(rows, order).to_pylist():
        assert row["stream"] == "S"
        if row["node"] & MANY:
            assert row["strval"] not in found[row["docid"]], "a row for each key"
            found[row["docid"]].add(row["strval"])
    return found


def _orders(rng: Random, texts: Sequence[str]) -> list[WordOrder]:
    """The longest words first, as learnt from the texts, and in any order."""
    known = [encode_words(text, level) for text in texts for level in ("0.5", "w12")]
    numbers = np.unique(numbered_texts(list(filter(None, known))).numbers)
    some = numbers[rng.sample(range(len(numbers)), len(numbers) // 2)]
    return [LONGEST_FIRST, learnt(filter(None, known)), WordOrder(some)]


def _is_near(one: str, other: str, level: str) -> bool:
    if level == "w00":  # of several values, one is in common
        return oracle_values.near(one, other, "0.00001")
    if level[0] == "w":
        return oracle_values.similar(one, other, f"0.{level[1:]}")
    return oracle_values.near(one, other, level)


@pytest.mark.parametrize(
    ("name", "threshold"), [*(("near", one) for one in THRESHOLDS), *(("similar", one) for one in SIMILAR)]
)
def test_what_is_near_has_a_key_in_common(name: str, threshold: str) -> None:
    rng = Random(threshold)
    pairs = [near_texts(rng) for _ in range(100)]
    texts = [text for pair in pairs for text in pair]
    rows, found = word_rows(texts, {word_level(name, threshold): MANY | 7}), 0
    for order in _orders(rng, texts):
        keys = _keys(rows, order)
        for place, (one, other) in enumerate(pairs):
            if oracle_values.STRING_TESTS[name](one, other, threshold):
                found += one != other
                assert keys[2 * place] & keys[2 * place + 1], (one, other)
    assert found > 10


def test_an_order_is_learnt_from_frequencies() -> None:
    texts = [encode_words(text, "0.6") for text in ("the storm hits", "the rain hits the coast", "the end")]
    order = learnt(texts)
    numbers = {word: numbered_texts([encode_words(word, "0.6")]).numbers for word in ("the", "hits", "rain", "unmet")}
    ranks = {word: order.ranks(number).item() for word, number in numbers.items()}
    assert sorted(ranks, key=ranks.__getitem__) == ["unmet", "rain", "hits", "the"]
    assert order.frequent.tolist() == [numbers["hits"].item(), numbers["the"].item()]


def test_sql_makes_the_same_keys() -> None:
    rng = Random(8)
    texts = [" ".join(rng.choices(WORDS, k=rng.randrange(12))) for _ in range(300)]
    rows = word_rows(texts, dict.fromkeys(LEVELS, MANY | 7))
    expected = zip(*(column.to_pylist() for column in keyed(rows, LONGEST_FIRST).columns), strict=True)
    connection = duckdb.connect()
    connection.register("found", rows)
    statement = near_candidates.keyed_statement("found", near_candidates.IN_DUCKDB)
    assert sorted(connection.sql(statement).fetchall()) == sorted(expected)


def _add(sets: WordSets, rows: pa.Table) -> None:
    _, texts = near_candidates.split_text_rows(rows)
    sets.add(texts, numbered_texts(texts["strval"].to_pylist()))


def _near(sets: WordSets, pairs: Sequence[tuple[int, int]], threshold: str) -> list[bool]:
    left, right = np.array(pairs, np.int64).reshape(-1, 2).T
    nodes = np.full(len(left), NODES[threshold])
    return list(map(bool, sets.are_near(*(near_candidates.TextIds(side, nodes) for side in (left, right)))))


@pytest.mark.parametrize("most", [10, 100, 1_000_000])
@pytest.mark.parametrize("is_stored", [True, False])
def test_pairs_are_near_as_the_oracle_says(most: int, is_stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_candidates, "MOST_HELD", most)
    monkeypatch.setattr(near_candidates, "MOST_COMPARED", most)
    rng = Random(most)
    texts = [text for _ in range(40) for text in near_texts(rng)]
    stored = word_rows(texts)
    asked: list[int] = []

    def find(docids: pa.Array) -> pa.Table:
        asked.extend(docids.to_pylist())
        return stored.filter(pc.is_in(stored["docid"], docids))

    sets = WordSets(find if is_stored else None)
    found = 0
    for first in range(0, len(texts), 20):
        upto = first + 20
        _add(sets, word_rows(texts[first:upto], NODES, first))
        pairs = [(rng.randrange(first, upto), rng.randrange(upto)) for _ in range(60)]
        pairs += [(docid, docid - 1) for docid in range(first + 1, upto, 2)]
        pairs += rng.choices(pairs, k=10)
        for threshold in NODES:
            # Of texts without words, nobody can tell here; they have no key, so they are not asked for.
            some = [pair for pair in pairs if all(encode_words(texts[docid], threshold) for docid in pair)]
            expected = [_is_near(texts[one], texts[other], threshold) for one, other in some]
            assert _near(sets, some, threshold) == expected
            found += sum(expected)
    assert found > 60
    assert bool(asked) == (is_stored and most < 1_000_000)


@pytest.mark.parametrize("level", NODES)
def test_pairs_that_share_too_few_keys_are_not_compared(level: str) -> None:
    rng = Random(level)
    texts = [text for _ in range(40) for text in near_texts(rng)]
    sets, rows = WordSets(), word_rows(texts, {level: NODES[level]})
    _add(sets, rows)
    for order in _orders(rng, texts):
        keys = _keys(rows, order)
        pairs = [(one, other) for one, other in combinations(range(80), 2) for _ in keys[one] & keys[other]]
        left, right = (near_candidates.TextIds(side, np.full(len(side), NODES[level])) for side in np.array(pairs).T)
        expected = sets.are_near(left, right)
        assert sets.are_near(left, right, by_keys=True).tolist() == expected.tolist() and expected.any()


@pytest.mark.parametrize(("long", "many"), [(0, 1 << 20), (100, 1 << 20), (0, -1)])
@pytest.mark.parametrize("level", ["0.5", "0.8", "1.0", "w00", "w05", "w12", "w25", "w80"])
def test_an_index_finds_what_is_near_and_not_evicted(
    level: str, long: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "FEWEST": 5,
        "FREQUENT": 4,
        "CELLS": 40,
        "_LONG": long,
        "MANY_POSTINGS": many,
        "MOST_ADDED": 3,
        "BLOCKS": 2,
    }.items():
        monkeypatch.setattr(near_index, name, value)
    rng, index, found = Random(level), near_index.NearIndex(), 0
    texts = [text for _ in range(100) for text in near_texts(rng)]
    texts = [text for text in texts if encode_words(text, level)]
    times = [at + rng.randrange(-40, 40) for at in range(len(texts))]
    before = -1000
    names: dict[str, str] = {}
    for first in range(0, len(texts), 7):
        if first % 3 == 0:
            before = max(before, first - 20)
            index.evict(before)
        encoded = [encode_words(text, level) for text in texts[first : first + 7]]
        words = numbered_texts(encoded).sets
        numbers = index.add([text[3:] for text in encoded], words, np.array(times[first : first + 7]))
        times[first : first + 7] = [
            max(time, before) for time in times[first : first + 7]
        ]  # late ones are evicted late
        names.update(zip(encoded, index.names(numbers), strict=True))
        pairs = index.near_to(words, level_hundredths(level))
        got = sorted(zip(pairs.place.tolist(), index.names(pairs.number), strict=True))
        kept = {
            encode_words(text, level): text
            for text, time in zip(texts[: first + 7], times, strict=False)
            if time >= before
        }
        expected = {
            (place, names[other])
            for place, text in enumerate(texts[first : first + 7])
            for other, known in kept.items()
            if _is_near(text, known, level)
        }
        assert got == sorted(expected)
        found += len(got)
    assert index.near == found >= len(texts) and index.dropped and numbers.max() < len(texts) // 2


def test_a_text_that_comes_again_under_one_docid_is_the_later_one() -> None:
    sets = WordSets()
    _add(sets, word_rows(["storm hits", "the coast"]))
    assert _near(sets, [(0, 1)], "0.5") == [False]
    _add(sets, word_rows(["the coast"]))  # the batch was rolled back, and another one came
    assert _near(sets, [(0, 1)], "0.5") == [True]
