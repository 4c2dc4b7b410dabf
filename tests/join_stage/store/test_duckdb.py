import itertools
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
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
from tests.support.faults import Injected

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


def iteration(directory: Path) -> int:
    with (directory / protocol.DUCKDB_FILE).open("rb") as file:
        return duckdb_module._iteration(file.fileno())


class Watched:
    """A connection that calls `strike` before and after whatever may write."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, strike: Callable[[], object]) -> None:
        self._connection, self._strike = connection, strike

    def cursor(self) -> "Watched":
        return Watched(self._connection.cursor(), self._strike)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._connection, name)
        if name not in ("begin", "commit", "execute", "rollback"):
            return method

        def call(*arguments: Any) -> Any:
            self._strike()
            found = method(*arguments)
            self._strike()
            return found

        return call


class Life:
    """A store with what it should have. While it writes, it is killed (what is left then is opened and compared), or
    Ctrl-C comes."""

    def __init__(self, rng: random.Random, place: Path | None, connect: Callable[..., duckdb.DuckDBPyConnection]):
        self._rng, self._place, self._connect = rng, place, connect
        self._numbers = itertools.count()
        self.has: Rows = {table: [] for table in SCHEMA.tables}
        self._next: Rows | None = None  # what the store has after the commit that is under way
        self._strikes = False

    def connect(self, *arguments: Any, **options: Any) -> Any:
        connection = self._connect(*arguments, **options)
        return Watched(connection, self._strike) if self._strikes else connection

    def open(self) -> None:
        self._strikes = True  # also while it opens
        while True:
            with suppress(KeyboardInterrupt):
                self.store = DuckDBStore(SCHEMA, self._place and self._place / "life")
                return

    def _strike(self) -> None:
        chosen, self._strikes = self._rng.random() if self._strikes else 1.0, False
        if chosen < 0.02 and self._place is not None:
            copy = self._place / str(next(self._numbers))
            shutil.copytree(self._place / "life", copy)
            if (log := copy / f"{protocol.DUCKDB_FILE}.wal").exists():
                noted, size, _ = protocol.last_commit(copy) or (-1, 0, 0)
                if noted == iteration(copy):
                    os.truncate(log, self._rng.randint(size, log.stat().st_size))  # as if killed amid a write
            killed = DuckDBStore(SCHEMA, copy)
            assert stored(killed) in (self.has, self._next)
            killed.close()
        self._strikes = True
        if 0.02 <= chosen < 0.04:
            signal.raise_signal(signal.SIGINT)

    def run_batch(self) -> None:
        """Runs a batch, which may be rolled back."""
        rng, store, now = self._rng, self.store, {table: list(values) for table, values in self.has.items()}
        with suppress(Injected, KeyboardInterrupt), whole_batch(store):
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
                    found = store.find(table, "a", pa.array([number]))["a"].to_pylist()
                    assert found == [number] * now[table].count(number)
                elif chosen < 0.9:
                    assert store.highest(table, "a") == max(now[table], default=-1)
                else:
                    assert stored(store) == now
            assert asked(store) == self.has["two"], "what waits is seen by nobody else"
            if rng.random() < 0.3:
                raise Injected
            self._next = now
        self.has, self._next = self._next or self.has, None

    def close(self) -> None:
        while True:
            with suppress(KeyboardInterrupt):
                self.store.close()
                return

    def compare(self, found: Callable[[DuckDBStore], object], expected: object) -> None:
        while True:
            with suppress(KeyboardInterrupt):
                assert found(self.store) == expected
                return


@pytest.mark.parametrize("seed", seeds(3, 300))
def test_a_batch_is_there_as_a_whole(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = random.Random(seed)
    monkeypatch.setattr(duckdb_module, "MOST_ROWS", rng.choice((0, 4, 2_000)))
    monkeypatch.setattr(duckdb_module, "FULL", rng.choice((0, 4, 6_000)))
    monkeypatch.setattr(duckdb_module, "FULL_BYTES", rng.choice((0, 2_000, 16 << 20)))
    monkeypatch.setattr(duckdb_module, "MOST_PASSED_OVER", rng.choice((0, 63)))
    monkeypatch.setattr(duckdb_module, "MAX_STATEMENTS", 3)
    life = Life(rng, rng.choice((tmp_path, tmp_path, None)), duckdb.connect)
    monkeypatch.setattr(duckdb, "connect", life.connect)
    life.open()
    for _ in range(12):
        life.run_batch()
        if rng.random() < 0.5:
            life.compare(asked, life.has["two"])
        if rng.random() < 0.2 and life._place is not None:
            life.close()
            life.open()
    life.compare(stored, life.has)
    assert len(life.store._prepared._names) <= 3
    life.close()


def test_the_journal_is_bounded_in_bytes_whatever_the_size_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(duckdb_module, "FULL_BYTES", 5_000)
    for place in (tmp_path, None):
        with closing(DuckDBStore(SCHEMA, place)) as store:
            for number in range(60):
                with whole_batch(store):
                    store.append("two", rows("two", [number] * 20))
            assert 0 < len(store._journal) < 60 * 20
            assert store.highest("two", "a") == 59


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
