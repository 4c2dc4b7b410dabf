"""The keys of texts: whatever is near has one in common, in whatever order of words; and SQL makes the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from join_stage.near import (
    IN_DUCKDB,
    IN_SPARK,
    LONGEST_FIRST,
    WordOrder,
    keyed,
    keyed_statement,
    learnt,
    numbered_texts,
)
from templates.witness import MANY, R_DOC
from tests.generate.near import THRESHOLDS, WORDS, near_texts
from tests.oracle import values as oracle_values
from xscl.algebra.words import encode_words, join_threshold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _rows(texts: Sequence[str], threshold: str) -> pa.Table:
    """R_doc with texts, one a document, and the lower-case form of each, which is joined by itself."""
    texts = list(texts)
    values = [encode_words(text, threshold) for text in texts] + [text.lower() for text in texts]
    docids = [*range(len(texts))] * 2
    nodes = [MANY | 7] * len(texts) + [8] * len(texts)
    return pa.table([docids, nodes, values, ["S"] * len(docids)], schema=R_DOC)


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
    known = [encode_words(text, "0.5") for text in texts]
    numbers = np.unique(numbered_texts(list(filter(None, known))).numbers)
    some = numbers[rng.sample(range(len(numbers)), len(numbers) // 2)]
    return [LONGEST_FIRST, learnt(filter(None, known)), WordOrder(some)]


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_what_is_near_has_a_key_in_common(threshold: str) -> None:
    rng = Random(threshold)
    pairs = [near_texts(rng) for _ in range(250)]
    texts = [text for pair in pairs for text in pair]
    rows, found = _rows(texts, join_threshold(threshold)), 0
    for order in _orders(rng, texts):
        keys = _keys(rows, order)
        for place, (one, other) in enumerate(pairs):
            if oracle_values.near(one, other, threshold):
                found += one != other
                assert keys[2 * place] & keys[2 * place + 1], (one, other)
    assert found > 30


def test_keys_are_few() -> None:
    text = " ".join(f"word{number}" for number in range(1000))
    for threshold, most in (("0.5", 129), ("0.6", 103), ("0.9", 26), ("1.0", 1)):
        ((some,), (short,), (none,)) = (_keys(_rows([one], threshold), LONGEST_FIRST) for one in (text, "storm", "…"))
        assert (len(some), len(short), len(none)) == (most, 1, 0)
        assert {key[:3] for key in some} == {threshold}


def test_an_order_is_learnt_from_frequencies() -> None:
    texts = [encode_words(text, "0.6") for text in ("the storm hits", "the rain hits the coast", "the end")]
    order = learnt(texts)
    numbers = {word: numbered_texts([encode_words(word, "0.6")]).numbers for word in ("the", "hits", "rain", "unmet")}
    ranks = {word: order.ranks(number).item() for word, number in numbers.items()}
    assert sorted(ranks, key=ranks.__getitem__) == ["unmet", "rain", "hits", "the"]
    assert order.frequent.tolist() == [numbers["hits"].item(), numbers["the"].item()]


def _of_sql(rows: pa.Table) -> tuple[pa.Table, list[tuple[object, ...]]]:
    expected = keyed(rows, LONGEST_FIRST)
    return rows, sorted(zip(*(column.to_pylist() for column in expected.columns), strict=True))


def _many_rows() -> pa.Table:
    rng = Random(8)
    texts = [" ".join(rng.choices(WORDS, k=rng.randrange(12))) for _ in range(300)]
    return pa.concat_tables([_rows(texts, threshold) for threshold in ("0.5", "0.6", "0.7", "0.8", "0.9", "1.0")])


def test_sql_makes_the_same_keys() -> None:
    rows, expected = _of_sql(_many_rows())
    connection = duckdb.connect()
    connection.register("found", rows)
    assert sorted(connection.sql(keyed_statement("found", IN_DUCKDB)).fetchall()) == expected


def test_sql_makes_the_same_keys_on_spark(spark: SparkSession) -> None:
    rows, expected = _of_sql(_many_rows())
    found = spark.sql(keyed_statement("{some}", IN_SPARK), some=spark.createDataFrame(rows))
    assert sorted(tuple(row) for row in found.collect()) == expected
