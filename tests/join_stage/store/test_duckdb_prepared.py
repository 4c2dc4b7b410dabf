"""Prepared statements do what the same statements do unprepared, whatever was rolled back, changed or dropped."""

from __future__ import annotations

import random

import duckdb
import pyarrow as pa
import pytest

from join_stage.store import duckdb as duckdb_module
from join_stage.store.duckdb import PreparedStatements
from tests.generate.seeds import seeds

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
