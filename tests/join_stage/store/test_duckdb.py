import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from join_stage.store import duckdb as duckdb_module
from join_stage.store import protocol
from join_stage.store.duckdb import MOST_JOURNALED, DuckDBStore, PreparedStatements, most_threads
from join_stage.store.protocol import StoreSchema, whole_batch
from tests.generate.seeds import seeds

SCHEMA = StoreSchema(
    {
        "one": pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
        "two": pa.schema([("a", pa.int64())]),
        "three": pa.schema([("a", pa.int64()), ("c", pa.string())]),
    }
)

Rows = dict[str, list[int]]


@pytest.fixture
def store():
    made = DuckDBStore(SCHEMA)
    yield made
    made.close()


def rows(table: str, values: list[int]) -> pa.Table:
    columns = {"a": values, "b": [[str(value)] for value in values], "c": [str(value) for value in values]}
    schema = SCHEMA.tables[table]
    return pa.table({name: columns[name] for name in schema.names}, schema)


def stored(store: DuckDBStore) -> Rows:
    found: Rows = {}
    for table, schema in SCHEMA.tables.items():
        read = store.read(table, schema.names).sort_by("a")
        found[table] = read["a"].to_pylist()
        assert read.equals(rows(table, found[table]))
    return found


def asked(store: DuckDBStore) -> list[int]:
    found: list[int] = store.question("SELECT a FROM two ORDER BY a").answer()["a"].to_pylist()
    return found


def run_batch(store: DuckDBStore, rng: random.Random, before: Rows) -> Rows:
    """Runs a batch, which may be rolled back, and returns what the store has then."""
    now = {table: list(values) for table, values in before.items()}
    store.begin()
    for _ in range(rng.randrange(6)):
        table = rng.choice(list(now))
        chosen = rng.random()
        if chosen < 0.7:
            values = [rng.randrange(100) for _ in range(rng.choice((0, 1, 2, 5)))]
            store.append(table, rows(table, values))
            now[table] = sorted([*now[table], *values])
        elif chosen < 0.8:
            bound = rng.randrange(100)
            store.drop_before(table, "a", bound)
            now[table] = [value for value in now[table] if value >= bound]
        elif chosen < 0.85:
            number = rng.randrange(100)
            assert store.find(table, "a", pa.array([number]))["a"].to_pylist() == [number] * now[table].count(number)
        elif chosen < 0.9:
            assert store.highest(table, "a") == max(now[table], default=-1)
        else:
            assert stored(store) == now
    assert asked(store) == before["two"], "what waits is seen by nobody else"
    if rng.random() < 0.3:
        store.rollback()
        return before
    store.commit()
    return now


@pytest.mark.parametrize("seed", seeds(1, 300))
def test_a_batch_is_there_as_a_whole(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = random.Random(seed)
    monkeypatch.setattr(duckdb_module, "MOST_ROWS", rng.choice((0, 4, 2_000)))
    monkeypatch.setattr(duckdb_module, "MOST_PASSED_OVER", rng.choice((0, 63)))
    monkeypatch.setattr(duckdb_module, "MAX_STATEMENTS", 3)
    store, expected = DuckDBStore(SCHEMA, tmp_path / "0"), {table: list[int]() for table in SCHEMA.tables}
    for number in range(12):
        expected = run_batch(store, rng, expected)
        assert rng.random() < 0.5 or asked(store) == expected["two"]
        if rng.random() < 0.3:
            shutil.copytree(tmp_path / "0", tmp_path / f"{number + 1}")  # as a killed process leaves it
            killed = DuckDBStore(SCHEMA, tmp_path / f"{number + 1}")
            assert stored(killed) == expected
            killed.close()
            store.close()
            store = DuckDBStore(SCHEMA, tmp_path / "0")
    assert stored(store) == expected and len(store._prepared._names) <= 3
    store.close()


@pytest.mark.parametrize("is_done", [False, True])
def test_rows_of_the_journal_are_there_once_if_their_commit_is_interrupted(is_done: bool, tmp_path: Path):
    class Interrupted:
        def __getattr__(self, name: str) -> object:
            return getattr(connection, name)

        def commit(self) -> None:
            if is_done:
                connection.commit()
            raise KeyboardInterrupt

    store, expected = DuckDBStore(SCHEMA, tmp_path), {table: [1, 2] for table in SCHEMA.tables}
    for number in (1, 2):
        with whole_batch(store):
            for table in SCHEMA.tables:
                store.append(table, rows(table, [number]))
    interrupted: Any = Interrupted()
    connection, store._journal.connection = store._journal.connection, interrupted
    with pytest.raises(KeyboardInterrupt):
        stored(store)
    store._journal.connection = connection
    assert stored(store) == expected
    store.close()


def threads(store: DuckDBStore) -> int:
    return int(store._connection.execute("SELECT current_setting('threads')").fetchall()[0][0])


def test_rows_are_written_by_one_thread_and_all_else_has_all(store):
    def write(number: int) -> None:
        with whole_batch(store):
            store.append("two", rows("two", [number] * (MOST_JOURNALED + 1)))

    assert threads(store) == most_threads()
    write(0)
    assert threads(store) == 1
    assert store.highest("two", "a") == 0
    assert threads(store) == most_threads()
    write(1)
    store.question("SELECT * FROM two").answer()
    assert threads(store) == most_threads()
    with store._threads.for_question(store._asked):
        write(2)
        assert threads(store) == most_threads()
    write(3)
    assert threads(store) == 1


def test_rows_of_a_name_may_have_other_columns_than_before():
    with duckdb.connect() as connection:
        prepared = PreparedStatements(connection)
        for columns in ({"a": [1]}, {"a": [1], "b": [2]}):
            assert prepared.select("SELECT a FROM fresh", {"fresh": pa.table(columns)})["a"].to_pylist() == [1]


# ---------------------------------------------------------------- what a store tells of its batches


def content(store):
    return {table: Counter(store.read(table, ["a"])["a"].to_pylist()) for table in SCHEMA.tables}


def change(store, rng, number):
    """Appends some rows, or drops some. Returns the next number, and the tables of which rows were dropped."""
    table = rng.choice([*SCHEMA.tables])
    if rng.random() < 0.05:
        store.drop_before(table, "a", rng.randint(0, number))
        return number, {table}
    count = rng.choice([0, 1, 3, 3_000])  # so many are not written with all others at the end
    store.append(table, rows(table, [*range(number, number + count)]))
    return number + count, set()


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_what_is_told_is_what_has_come(store, seed):
    rng, number, told, followed = random.Random(seed), 0, 0, ("one", "two")
    follower = store.follow(followed)
    mark, before, dropped = follower.since(-1).mark, content(store), set()
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
                now = content(store)
                if found.rows is not None:
                    assert dropped.isdisjoint(followed)
                    come = {name: Counter(some["a"].to_pylist()) for name, some in found.rows.items()}
                    assert come == {name: now[name] - before[name] for name in followed if now[name] != before[name]}
                    told += len(come)
                mark, before, dropped = found.mark, now, set()
    assert told > 3


def test_a_batch_is_not_told_in_part(store, monkeypatch):
    store.begin()
    store.append("two", rows("two", [1]))
    follower = store.follow(SCHEMA.tables)
    mark, _ = follower.since(-1)
    store.append("two", rows("two", [2]))
    store.commit()
    assert follower.since(mark).rows is None
    # And nothing is kept that is too much.
    monkeypatch.setattr(protocol, "MOST_BYTES", 1_000)
    follower = store.follow(SCHEMA.tables)
    mark, _ = follower.since(-1)
    for _ in range(2):
        with whole_batch(store):
            store.append("two", rows("two", [*range(200)]))
    assert follower._size == 0 and follower.since(mark).rows is None
