"""What a batch appends is there when it is read, and after it, however much waits to be written together."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from join_stage.store import duckdb as duckdb_module
from join_stage.store.duckdb import SMALL_BATCHES, DuckDBStore, PreparedStatements, most_threads
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
    if rng.random() < 0.3:
        store.rollback()
        return before
    store.commit()
    return now


@pytest.mark.parametrize("seed", seeds(1, 300))
def test_a_batch_is_there_as_a_whole(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = random.Random(seed)
    monkeypatch.setattr(duckdb_module, "MOST_ROWS", rng.choice((0, 4, 2_000)))
    store, expected = DuckDBStore(SCHEMA, tmp_path), {table: list[int]() for table in SCHEMA.tables}
    for _ in range(12):
        expected = run_batch(store, rng, expected)
        asked = store.question("SELECT a FROM two ORDER BY a").answer()
        assert asked["a"].to_pylist() == expected["two"]
        if rng.random() < 0.1:
            store.close()
            store = DuckDBStore(SCHEMA, tmp_path)
    assert stored(store) == expected
    store.close()


def test_what_waits_is_seen_by_nobody_else_and_lost_with_the_batch():
    store = DuckDBStore(SCHEMA)
    store.begin()
    store.append("two", rows("two", [1]))
    assert not len(store.question("SELECT * FROM two").answer())
    store.rollback()
    assert stored(store)["two"] == []
    store.close()


def threads(store: DuckDBStore) -> int:
    return int(store._connection.execute("SELECT current_setting('threads')").fetchall()[0][0])


def test_small_batches_have_one_thread_and_all_else_has_all():
    store = DuckDBStore(SCHEMA)

    def small_batches(count: int) -> None:
        for number in range(count):
            with whole_batch(store):
                store.append("two", rows("two", [number]))

    small_batches(SMALL_BATCHES - 1)
    assert threads(store) == most_threads()
    small_batches(1)
    assert threads(store) == 1
    assert store.highest("two", "a") == SMALL_BATCHES - 2
    assert threads(store) == most_threads()
    small_batches(SMALL_BATCHES)
    assert threads(store) == 1
    store.question("SELECT * FROM two").answer()
    assert threads(store) == most_threads()
    with store._threads.for_question(store._asked):
        small_batches(SMALL_BATCHES)
        assert threads(store) == most_threads()
    small_batches(1)
    assert threads(store) == 1
    store.close()


# ---------------------------------------------------------------- prepared statements

INSERTS = [
    "INSERT INTO t SELECT a FROM fresh",
    "INSERT INTO t SELECT a + 1 FROM other",
    "INSERT INTO t SELECT 7 FROM fresh",
]
SELECTS = ["SELECT t.a FROM t JOIN fresh f ON t.a = f.a", "SELECT t.a FROM t SEMI JOIN other o ON t.a = o.a"]


def drawn(rng: random.Random) -> dict[str, pa.Table]:
    """Rows of both names. Those of `other` may have one column more."""
    values = [rng.randint(0, 5) for _ in range(rng.randint(0, 3))]
    fresh = pa.table({"a": pa.array(values, pa.int64())})
    return {"fresh": fresh, "other": fresh.append_column("b", fresh["a"]) if rng.random() < 0.3 else fresh}


@pytest.mark.parametrize("seed", seeds(4, 500))
def test_statements_do_the_same_when_they_are_prepared(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(duckdb_module, "MAX_STATEMENTS", 3)
    rng = random.Random(seed)
    with duckdb.connect() as connection, duckdb.connect() as plain:
        prepared = PreparedStatements(connection)
        for one in (connection, plain):
            one.execute("CREATE TABLE t (a BIGINT)")
        for _ in range(12):
            connection.begin()
            plain.begin()
            for _ in range(rng.randint(0, 4)):
                rows = drawn(rng)
                sql = rng.choice(INSERTS + SELECTS)
                used = {name: table for name, table in rows.items() if f" {name}" in sql}
                for name, table in used.items():
                    plain.register(name, table)
                if sql in SELECTS:
                    expected = sorted(plain.execute(sql).fetchall())
                    assert sorted((row["a"],) for row in prepared.select(sql, used).to_pylist()) == expected
                else:
                    prepared.execute(sql, used)
                    plain.execute(sql)
                for name in used:
                    plain.unregister(name)
                assert not any(len(source.rows) for source in prepared._sources.values())
            if rng.random() < 0.3:
                connection.rollback()
                prepared.forget()
                plain.rollback()
            else:
                connection.commit()
                plain.commit()
            if rng.random() < 0.3:  # what the statements were made for has changed
                for one in (connection, plain):
                    one.execute("CREATE OR REPLACE VIEW v AS SELECT * FROM t")
            assert sorted(connection.table("t").fetchall()) == sorted(plain.table("t").fetchall())
            assert len(prepared._names) <= 3
