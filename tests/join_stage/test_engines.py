from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from join_stage import duckdb
from join_stage.duckdb import DuckDBEngine
from join_stage.plans import JoinEngine
from join_stage.store import duckdb as duckdb_module
from join_stage.store.protocol import StoreError
from mmqjp.tables.schema import SCHEMA
from tests.generate.joins import random_join_case, run_case
from tests.support.stores import TABLES

Opener = Callable[..., JoinEngine]


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.soak])])
def open_store(request: pytest.FixtureRequest) -> Opener:
    """Opens an engine, on a directory or without one: on DuckDB, and in the long run on Spark."""
    if request.param == "duckdb":
        return partial(DuckDBEngine, schema=SCHEMA)
    from join_stage.spark.engine import SparkEngine

    return partial(SparkEngine, request.getfixturevalue("spark"), schema=SCHEMA)


def table(name: str, *rows: tuple[object, ...]) -> pa.Table:
    schema = TABLES[name]
    # Columns that a row does not reach are null.
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=False)) for row in rows], schema=schema)


def test_the_rows_of_a_key_are_read_without_those_of_others(open_store: Opener, tmp_path: Path):
    engine = open_store(tmp_path)
    for batch, keys in enumerate((("k", "l"), ("it's", "k"), ("m",)), 1):
        engine.begin()
        engine.append("settings", table("settings", *((key, f"{key}{batch}", batch) for key in keys)))
        if batch < 3:
            engine.commit()

    def of(key: str) -> list[tuple[str, int]]:
        rows = engine.read("settings", ["value", "batch"], key).sort_by("batch")
        assert rows.column_names == ["value", "batch"]
        return list(zip(rows["value"].to_pylist(), rows["batch"].to_pylist(), strict=True))

    assert of("k") == [("k1", 1), ("k2", 2)] and of("it's") == [("it's2", 2)] and of("none") == []
    assert of("m") == [("m3", 3)]  # of the batch that is not committed
    assert len(engine.read("settings", ["value"])) == 5


def test_joins_that_run_apart_for_want_of_memory_find_the_same(monkeypatch: pytest.MonkeyPatch):
    case = random_join_case(7, templates=60, batches=2, documents=10, in_order=True)
    monkeypatch.setattr(duckdb_module, "MEMORY_LIMIT", "500MB")
    found = []
    for joins in (duckdb.JOINS, 1):
        monkeypatch.setattr(duckdb, "JOINS", joins)
        engine = DuckDBEngine()
        found.append(run_case(engine, case))
        engine.close()
    assert found[0] == found[1] and len({row[0] // 3 for row in found[0][1]}) > 20, "few templates matched"


def test_values_come_back_as_they_were(open_store: Opener):
    texts = ["", None, "\x01\t\n\r", "Ωß🎈\u2028", "'quoted' \\ \"twice\""]
    numbers = [-(2**63), 2**63 - 1, 0]
    row: tuple[object, ...] = (7, "ß", "S", 0, 0, "<a/>", "hidden", numbers, texts, [], ["S"], [], [1], 3, [])
    engine = open_store()
    engine.begin()
    engine.append(
        "dead_letters",
        table("dead_letters", *(("d", t, n, t, b"\x00\xff", n) for t, n in zip(texts, range(5), strict=True))),
    )
    engine.append("documents", table("documents", row))
    for _ in range(2):  # in the batch, then from the store
        dead = engine.select("SELECT * FROM dead_letters ORDER BY time")
        assert dead["stream"].to_pylist() == texts and dead["raw"].to_pylist() == [b"\x00\xff"] * 5
        (found,) = engine.select("SELECT * FROM documents").to_pylist()
        assert tuple(found.values()) == row
        engine.commit()
    engine.close()


def test_a_query_reads_views_given_along_and_orders_by_lists(open_store: Opener):
    engine = open_store()
    engine.begin()
    rows = [("q", 0, 1, [d], ["S"], "{}", "<a/>", 0) for d in ("b", "a", "c")]
    engine.append("earlier_outputs", table("earlier_outputs", *rows))
    wanted = pa.table({"name": ["b", "c", "x"]})
    sql = "SELECT o.documents FROM outputs o JOIN wanted w ON o.documents[{}] = w.name ORDER BY o.documents"
    found = engine.select(sql.format(1 if isinstance(engine, DuckDBEngine) else 0), {"wanted": wanted})
    assert found["documents"].to_pylist() == [["b"], ["c"]]
    assert engine.select("SELECT count(*) AS n FROM wanted", {"wanted": wanted.slice(2)})["n"].to_pylist() == [1]
    engine.rollback()
    engine.close()


def test_a_store_of_the_other_engine_is_refused(open_store: Opener, tmp_path: Path, request: pytest.FixtureRequest):
    of_duckdb = request.node.callspec.params["open_store"] == "duckdb"
    (tmp_path / ("manifests" if of_duckdb else "mmqjp.duckdb")).mkdir()
    with pytest.raises(StoreError, match="use that engine"):
        open_store(tmp_path)
