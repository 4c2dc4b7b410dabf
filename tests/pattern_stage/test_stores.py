"""The stores under the operators: who reads a row, which rows have an instance, and places that are given again."""

from random import Random

import numpy as np
import pytest

from pattern_stage.columns import Columns, Flow, mixed, sets_of
from pattern_stage.fan_out import RowReaders
from pattern_stage.search import RowSets
from pattern_stage.slots import Slots
from tests.generate.seeds import seeds


@pytest.mark.parametrize("seed", seeds(4, 30))
def test_fan_out(seed):
    random = Random(seed)
    fan_out = RowReaders()
    sources: dict[int, int] = {}
    for _ in range(30):
        free = [row for row in range(60) if row not in sources]
        added = {row: random.randrange(8) for row in random.sample(free, random.randint(0, min(len(free), 20)))}
        fan_out.add(np.array(list(added), np.int64), np.array(list(added.values()), np.int64))
        sources |= added
        if random.random() < 0.5:
            asked = [random.randrange(12) for _ in range(6)]
            places, rows = fan_out.of(np.array(asked))
            assert sorted(zip(places.tolist(), rows.tolist(), strict=True)) == sorted(
                (place, row) for place, source in enumerate(asked) for row, of in sources.items() if of == source
            )
            assert np.all(np.diff(places) >= 0)
            counts = fan_out.counts(np.array(asked)).tolist()
            assert all(count >= list(sources.values()).count(one) for count, one in zip(counts, asked, strict=True))
        gone = random.sample(list(sources), random.randint(0, len(sources) // 2))
        fan_out.remove(np.array(gone, np.int64))
        for row in gone:
            del sources[row]


@pytest.mark.parametrize("seed", seeds(4, 30))
def test_members(seed):
    random = Random(seed)
    members = RowSets()
    sets: dict[int, list[int]] = {}
    for _ in range(40):
        new = [random.sample(range(30), random.choice([1, 2, 5])) for _ in range(random.randint(0, 5))]
        new = [one for one in new if len(one) > 1 or one[0] not in sets]
        if new:
            rows, sizes = np.array([row for one in new for row in one]), np.array([len(one) for one in new])
            codes = members.put(rows, sizes)
            members.use(codes)
            sets |= dict(zip(codes.tolist(), new, strict=True))
        gone = random.sample(list(sets), random.randint(0, len(sets) // 2))
        members.leave(np.array(gone, np.int64))
        members.sweep(np.array(gone, np.int64))
        for code in gone:
            del sets[code]
        if random.random() < 0.2:
            row = random.randrange(30)
            members.remove(np.array([row]))
            held = list(sets)
            empty = members.empty(np.array(held, np.int64), np.array([row]))
            sets = {code: [one for one in rows if one != row] for code, rows in sets.items()}
            assert [code for code in held if not sets[code]] == [held[place] for place in empty.tolist()]
            lonely = np.array([held[place] for place in empty.tolist()], np.int64)
            members.leave(lonely)
            members.sweep(lonely)
            sets = {code: rows for code, rows in sets.items() if rows}
        asked = list(sets)
        places, rows = members.rows(np.array(asked, np.int64))
        found: dict[int, list[int]] = {code: [] for code in asked}
        for place, row in zip(places.tolist(), rows.tolist(), strict=True):
            found[asked[place]].append(row)
        assert found == sets


def test_slots_are_given_again():
    slots = Slots()
    first = slots.take(5)
    slots.give(first[1:3])
    again = slots.take(4)
    assert sorted(again.tolist()) == [1, 2, 5, 6] and len(slots) == 7
    slots.give(np.arange(7))
    assert slots.end == 0 and slots.take(1).tolist() == [0]


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("mix", [mixed, lambda keys: np.zeros(len(keys[0]), np.int64)])
def test_equal_sets_of_rows_are_one(most, mix, monkeypatch):
    monkeypatch.setattr("pattern_stage.columns.mixed", mix)
    chance = np.random.default_rng(1)
    sizes = chance.integers(0, most + 1, 50)
    at = np.repeat(np.arange(50), sizes)
    rows = np.concatenate([chance.choice(3, size, replace=False) for size in sizes])
    used, numbers, of, of_rows = sets_of(Flow(Columns(at, at, (), at.reshape(-1, 1)), at, rows))
    assert used.tolist() == np.unique(at).tolist() and np.all(np.diff(of) >= 0)
    assert len(np.unique(of)) < len(used) or mix is not mixed
    for event, number in zip(used.tolist(), numbers.tolist(), strict=True):
        assert of_rows[of == number].tolist() == rows[at == event].tolist()
