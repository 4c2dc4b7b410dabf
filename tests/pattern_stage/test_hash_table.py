"""Numbers by hashes against a dictionary."""

from random import Random

import numpy as np
import pytest

from common.arrays import Ints
from pattern_stage.columns import HashTable, Mask, hashes_of, marks_of, same
from tests.generate.seeds import seeds


class Model:
    """Keys in an array, and a table that has where they stand."""

    def __init__(self, hash_of: int | None) -> None:
        self.table = HashTable()
        self.keys = np.zeros(0, np.int64)
        self.number_of: dict[int, int] = {}
        self._hash_of = hash_of

    def hashes(self, keys: Ints) -> Ints:
        """Hashes of keys; with `hash_of`, so few that most keys share one."""
        return hashes_of([keys]) if self._hash_of is None else keys % self._hash_of

    def find(self, keys: Ints) -> list[int]:
        def equal(at: Ints, numbers: Ints) -> Mask:
            held: Mask = keys[at] == self.keys[numbers]
            return held

        numbers: list[int] = self.table.find(self.hashes(keys), equal).tolist()
        return numbers

    def add(self, keys: Ints) -> None:
        numbers = np.arange(len(self.keys), len(self.keys) + len(keys))
        self.keys = np.concatenate([self.keys, keys])
        self.table.add(self.hashes(keys), numbers)
        self.number_of.update(zip(keys.tolist(), numbers.tolist(), strict=True))

    def remove(self, keys: Ints) -> None:
        numbers = [self.number_of.pop(key) for key in keys.tolist()]
        self.table.remove(self.hashes(keys), np.array(numbers, np.int64))


@pytest.mark.parametrize("hash_of", [None, 3])
@pytest.mark.parametrize("seed", seeds(2, 20))
def test_what_is_added_is_found_until_it_is_removed(hash_of, seed):
    rng = Random(seed)
    model = Model(hash_of)
    pool = [rng.getrandbits(64) - (1 << 63) for _ in range(150)]
    for _ in range(60):
        there = list(model.number_of)
        if rng.random() < 0.5:
            gone = rng.sample(there, rng.randrange(len(there) + 1))
            model.remove(np.array(gone, np.int64))
        else:
            lacking = [key for key in pool if key not in model.number_of]
            model.add(np.array(rng.sample(lacking, rng.randrange(min(40, len(lacking)) + 1)), np.int64))
        assert model.find(np.array(pool, np.int64)) == [model.number_of.get(key, -1) for key in pool]
        assert len(model.table) == len(model.number_of)


@pytest.mark.parametrize("step", [1.0, 0.5, 1e9, 2.0**40])
@pytest.mark.parametrize("before", [False, True])
def test_round_numbers_do_not_gather_in_one_place(step, before):
    keys, other = same(np.arange(1 << 14) * step), np.full(1 << 14, 7)
    marks = marks_of(hashes_of([keys, other] if before else [other, keys]))
    assert np.bincount(marks & (1 << 15) - 1).max() < 12
