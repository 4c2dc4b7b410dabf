"""The rows of an m-op against a dictionary."""

from random import Random

import numpy as np
import pytest

from common.arrays import Ints
from pattern_stage.columns import NULL_TEXT
from pattern_stage.plan import NO_BOUND, RowColumns, Rows
from tests.generate.seeds import seeds

Vector = tuple[int, int, int, float, int, int]


def columns(vectors: list[Vector]) -> RowColumns:
    left, right, code, number, within, apart = (np.array(column) for column in zip(*vectors, strict=True))
    return RowColumns(left, right, np.zeros(len(left), np.int64), within, apart, (code, number.astype(np.float64)))


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def test_equal_rows_are_one_and_go_with_their_last_use():
    rows = Rows()
    rows.places(["string", "number"])
    vector = (3, 0, 7, 0.0, NO_BOUND, 0)
    same = (3, 0, 7, -0.0, NO_BOUND, 0)
    other = (3, 0, 7, 0.0, 5, 0)
    found, new = rows.add(columns([vector, other, same, vector]))
    assert found.tolist() == [0, 1, 0, 0] and new.tolist() == [0, 1]
    assert rows.count[:2].tolist() == [3, 1] and len(rows) == 2
    assert rows.remove(ints(0, 0)).tolist() == []
    assert rows.remove(ints(0, 1)).tolist() == [0, 1]
    assert rows.left[:2].tolist() == [3, 3], "columns stay until the numbers are free"
    assert len(rows) == 0 and rows.find(columns([vector])).tolist() == [-1]


def test_the_number_of_a_row_that_has_gone_is_given_again():
    rows = Rows()
    rows.places(["string", "number"])
    rows.add(columns([(n, 0, 0, 0.0, 1, 0) for n in range(100)]))
    gone = rows.remove(ints(*range(10, 20)))
    assert rows.add(columns([(200, 0, 0, 0.0, 1, 0)]))[1].tolist() == [100], "not before they are free"
    rows.free(gone)
    added = rows.add(columns([(n, 1, 0, 0.0, 1, 0) for n in range(10)]))[1]
    assert sorted(added.tolist()) == list(range(10, 20)) and rows.end == 101


def test_definitions_share_columns_of_a_kind_and_leave_the_others_null():
    rows = Rows()
    assert rows.places(["number", "string"]) == [0, 1]
    assert rows.places(["string", "string", "number"]) == [1, 2, 0]
    assert rows.places(["number", "number"]) == [0, 3]
    one, zero, null, nan = ints(1), ints(0), ints(NULL_TEXT), np.array([np.nan])
    rows.add(RowColumns(one, zero, zero, zero, zero, (np.array([1.5]), ints(4), null, nan)))
    rows.add(RowColumns(one, zero, one, zero, zero, (np.array([2.5]), ints(4), ints(5), nan)))
    numbers, first, second, spare = (column[:2].tolist() for column in rows.parameters)
    assert numbers == [1.5, 2.5] and first == [4, 4] and second == [NULL_TEXT, 5]
    assert np.isnan(spare).all() and rows.shape[:2].tolist() == [0, 1]
    rows.remove(ints(0))
    assert rows.numbers().tolist() == [1]


def test_a_row_is_found_after_columns_were_added():
    rows = Rows()
    rows.places(["string", "number"])
    before = columns([(3, 0, 7, 1.5, NO_BOUND, 0)])
    rows.add(before)
    assert rows.places(["string", "string", "number"]) == [0, 2, 1]
    after = before._replace(parameters=(*before.parameters, ints(NULL_TEXT)))
    assert rows.find(after).tolist() == [0]
    other = before._replace(parameters=(*before.parameters, ints(7)))
    assert rows.find(other).tolist() == [-1]
    assert rows.remove(ints(0)).tolist() == [0] and rows.find(after).tolist() == [-1]


@pytest.mark.parametrize("seed", seeds(6, 60))
def test_rows_are_a_counted_set(seed):
    rng = Random(seed)
    rows = Rows()
    rows.places(["string", "number"])
    uses: dict[Vector, int] = {}
    number_of: dict[Vector, int] = {}
    for _ in range(60):
        if uses and rng.random() < 0.4:
            pool = [vector for vector, count in uses.items() for _ in range(count)]
            taken = rng.sample(pool, rng.randrange(1, len(pool) + 1))
            gone = rows.remove(ints(*(number_of[vector] for vector in taken)))
            for vector in taken:
                uses[vector] -= 1
            assert set(gone.tolist()) == {number_of[vector] for vector in set(taken) if not uses[vector]}
            rows.free(gone)
            for vector in {vector for vector in taken if not uses[vector]}:
                del uses[vector], number_of[vector]
        else:
            given: list[Vector] = [
                (rng.randrange(3), rng.randrange(2), rng.randrange(-1, 2), rng.choice((0.5, 2.0)), rng.randrange(2), 0)
                for _ in range(rng.randrange(1, 8))
            ]
            found, new = rows.add(columns(given))
            assert set(new.tolist()) == {
                number for vector, number in zip(given, found.tolist(), strict=True) if vector not in uses
            }
            for vector, number in zip(given, found.tolist(), strict=True):
                assert number_of.setdefault(vector, number) == number
                uses[vector] = uses.get(vector, 0) + 1
        assert len(rows) == len(uses) == len(set(number_of.values()))
        if uses:
            assert rows.find(columns(list(uses))).tolist() == [number_of[vector] for vector in uses]
            for vector, number in number_of.items():
                assert rows.count[number] == uses[vector] and rows.left[number] == vector[0]
