"""What a store tells of its batches is what has come to its tables, or nothing."""

from collections import Counter
from random import Random

import pyarrow as pa
import pytest

from join_stage.store import protocol
from join_stage.store.duckdb import DuckDBStore
from join_stage.store.protocol import StoreSchema
from tests.generate.seeds import seeds

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
TABLES = ("followed", "too", "other")


@pytest.fixture
def store():
    made = DuckDBStore(StoreSchema(dict.fromkeys(TABLES, SCHEMA)))
    yield made
    made.close()


def rows(*numbers):
    return pa.table({"number": numbers, "text": [f"row {number}" for number in numbers]}, SCHEMA)


def content(store, table):
    return Counter(row["number"] for row in store.select(f"FROM {table}").to_pylist())


def change(store, rng, number):
    """Appends some rows, or drops some. Returns the next number, and the tables of which rows were dropped."""
    table = rng.choice(TABLES)
    if rng.random() < 0.05:
        store.drop_before(table, "number", rng.randint(0, number))
        return number, {table}
    count = rng.choice([0, 1, 3, 3_000])  # so many are not written with all others at the end
    store.append(table, rows(*range(number, number + count)))
    return number + count, set()


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_what_is_told_is_what_has_come(store, seed):
    rng, number, told = Random(seed), 0, 0
    follower = store.follow(TABLES[:2])
    mark, before, dropped = follower.since(-1).mark, {name: content(store, name) for name in TABLES}, set()
    for _ in range(150):
        match rng.randrange(5):
            case 0 | 1:
                store.begin()
                lost = set()
                for _ in range(rng.randrange(4)):
                    number, some = change(store, rng, number)
                    lost |= some
                if rng.random() < 0.2:
                    store.rollback()
                else:
                    store.commit()
                    dropped |= lost
            case 2 if rng.random() < 0.1:
                number, some = change(store, rng, number)
                dropped |= some
            case 3:
                found = follower.since(rng.choice([mark, mark, mark, mark - 1]))
                now = {name: content(store, name) for name in TABLES}
                if found.rows is not None:
                    assert not dropped & set(TABLES[:2])
                    come = {name: Counter(some["number"].to_pylist()) for name, some in found.rows.items()}
                    assert come == {name: now[name] - before[name] for name in TABLES[:2] if now[name] != before[name]}
                    told += len(come)
                mark, before, dropped = found.mark, now, set()
    assert told > 3


def test_batches_are_told_from_the_first_look_on(store):
    with_all, late = store.follow(TABLES), store.follow(TABLES)
    assert with_all.since(-1) == (1, None)
    for number in range(3):
        store.begin()
        store.append("followed", rows(number))
        store.commit()
    assert with_all.since(1).rows["followed"] == rows(0, 1, 2)
    assert late.since(-1) == (1, None)
    assert (late.since(1), with_all.since(2)) == ((2, {}), (3, {}))


def test_a_batch_is_not_told_in_part(store):
    store.begin()
    store.append("followed", rows(1))
    follower = store.follow(TABLES)
    mark, _ = follower.since(-1)
    store.append("followed", rows(2))
    store.commit()
    assert follower.since(mark).rows is None


def test_nothing_is_kept_that_is_too_much(store, monkeypatch):
    monkeypatch.setattr(protocol, "MOST_BYTES", 1_000)
    follower = store.follow(TABLES)
    mark, _ = follower.since(-1)
    for _ in range(2):
        store.begin()
        store.append("followed", rows(*range(100)))
        store.commit()
    assert follower._size == 0 and follower.since(mark).rows is None
