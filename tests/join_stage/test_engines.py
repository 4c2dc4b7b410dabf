"""What both engines promise: batches that become visible whole, rows that come and go, and the same joins."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from join_stage import duckdb
from join_stage.duckdb import DuckDBEngine
from join_stage.protocol import PLANS, JoinEngine
from join_stage.store import duckdb as duckdb_module
from join_stage.store.protocol import StoreError
from join_stage.tables import STATE
from mmqjp.tables.schema import SCHEMA
from tests.generate.joins import JoinCase, as_table, random_join_case, run_case, sorted_rows
from tests.generate.seeds import seeds
from tests.join_stage.test_lives import documents
from tests.support.stores import TABLES

Opener = Callable[..., JoinEngine]


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.soak])])
def open_store(request: pytest.FixtureRequest) -> Opener:
    """Opens an engine, on a directory or without one: on DuckDB, and in the long run on Spark."""
    if request.param == "duckdb":
        return partial(DuckDBEngine, schema=SCHEMA)
    from join_stage.spark.engine import SparkEngine

    return partial(SparkEngine, request.getfixturevalue("spark"), schema=SCHEMA)


@pytest.fixture(params=PLANS)
def open_engine(request: pytest.FixtureRequest) -> Opener:
    return partial(DuckDBEngine, plan=request.param, schema=SCHEMA)


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


def values_of(engine: JoinEngine) -> list[str]:
    return [row["value"] for row in engine.select("SELECT value FROM settings ORDER BY batch").to_pylist()]


def add(engine: JoinEngine, value: str, batch: int) -> None:
    engine.append("settings", table("settings", ("k", value, batch)))


def test_a_batch_is_seen_at_once_inside_and_kept_only_by_commit(open_store: Opener, tmp_path: Path):
    engine = open_store(tmp_path)
    kept: list[str] = []
    for number, end in enumerate((engine.commit, engine.rollback, engine.commit, engine.close)):
        engine.begin()
        for value in (f"{number}a", f"{number}b"):
            add(engine, value, number)
        assert sorted(values_of(engine)) == [*kept, f"{number}a", f"{number}b"]
        end()
        if end == engine.commit:
            kept += [f"{number}a", f"{number}b"]
        if end != engine.close:
            assert sorted(values_of(engine)) == kept
    again = open_store(tmp_path)
    assert sorted(values_of(again)) == kept == ["0a", "0b", "2a", "2b"]
    again.close()


def test_the_highest_number_is_told_of_what_is_committed_and_of_what_is_new(open_store: Opener, tmp_path: Path):
    engine = open_store(tmp_path / "store")
    assert engine.highest("settings", "batch") == engine.highest("added_queries", "since") == -1
    for batches in ((4, 7), (2,)):
        engine.begin()
        for batch in batches:
            add(engine, "x", batch)
        engine.commit()
    assert engine.highest("settings", "batch") == 7
    engine.begin()
    add(engine, "y", 9)
    engine.append("pauses", table("pauses", (3, 5, None, 6)))
    assert (engine.highest("settings", "batch"), engine.highest("pauses", "docid")) == (9, 5)
    engine.rollback()
    engine.close()
    engine = open_store(tmp_path / "store")
    assert (engine.highest("settings", "batch"), engine.highest("pauses", "docid")) == (7, -1)
    engine.close()


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


def test_views_for_readers(open_store: Opener):
    engine = open_store()
    shape = random_join_case(0).templates[0][0]
    engine.put_rows(shape, random_join_case(0).templates[0][1])
    nodes = len(shape.shape.parents)
    engine.begin()
    engine.append("templates", table("templates", (0, nodes, [None] * nodes, [])))
    engine.append("added_queries", table("added_queries", *((q, f"q{q}", "S/a", 0, [0], 5, 0, -1) for q in (1, 2))))
    engine.append("placements", table("placements", *((q, 0, list(range(10, 10 + nodes)), 5) for q in (1, 2))))
    engine.append("removed_queries", table("removed_queries", (2, 99)))
    engine.append("match_rows", table("match_rows", (0, 0, 1, None, 3, 4, [5])))
    engine.append("earlier_match_queries", table("earlier_match_queries", (0, "q1", 1), (0, "q2", 2)))
    engine.commit()
    queries = engine.select("SELECT qid, name, removed_at FROM queries ORDER BY qid").to_pylist()
    assert [tuple(q.values()) for q in queries] == [(1, "q1", None), (2, "q2", 99)]
    matches = engine.select("SELECT * FROM matches ORDER BY query").to_pylist()
    assert [tuple(m.values()) for m in matches] == [(q, 1, None, 3, 4, [5], 0) for q in ("q1", "q2")]
    (row,) = engine.select("SELECT * FROM r_t_0").to_pylist()
    assert tuple(row.values()) == (1, *range(10, 10 + nodes), 5)
    engine.close()


def test_state_is_joined_after_reopening_and_by_a_later_level_of_a_batch(open_engine: Opener, tmp_path: Path):
    case = random_join_case(5, templates=2)
    undisturbed = open_engine()
    expected = run_case(undisturbed, case)
    undisturbed.close()
    assert all(expected[1:])
    (head, *tail) = case.batches
    engine = open_engine(tmp_path)
    assert run_case(engine, JoinCase(case.templates, [head], case.window)) == expected[:1]
    engine.close()
    engine = open_engine(tmp_path)
    for template, rows in case.templates:
        engine.put_rows(template, rows)
    engine.begin()  # both of the rest in one batch: the later one meets the earlier
    assert [sorted_rows(engine.join(witnesses, first, case.scope)) for first, witnesses in tail] == expected[1:]
    engine.commit()
    engine.close()


def test_rows_are_put_replaced_and_dropped(open_engine: Opener):
    case = next(c for c in (random_join_case(seed, templates=2, batches=1) for seed in range(99)) if _all_match(c))
    (filters, filter_rows), (joins, join_rows) = case.templates
    (first, witnesses) = case.batches[0]
    engine = open_engine()

    def matching() -> set[int]:
        engine.begin()
        result = engine.join(witnesses, first, case.scope)
        engine.rollback()
        return set(as_table(result)["qid"].to_pylist())

    assert matching() == set()
    engine.put_rows(filters, filter_rows)
    engine.put_rows(joins, join_rows)
    both = matching()
    last = join_rows[-1]
    never = type(last)(last.id, last.template, tuple(90 for _ in last.variables), last.window, last.ordered)
    engine.put_rows(joins, [never])
    assert matching() == both - {last.id}
    engine.put_rows(joins, [last])
    assert matching() == both
    engine.drop_rows(joins, join_rows)
    assert matching() == {row.id for row in filter_rows} & both
    engine.put_rows(joins, [last])
    assert matching() == {row.id for row in (*filter_rows, last)} & both
    engine.close()


def _all_match(case: JoinCase) -> bool:
    engine = DuckDBEngine()
    matched = {row[0] for result in run_case(engine, case) for row in result}
    engine.close()
    return all(rows[-1].id in matched for _, rows in case.templates)


@pytest.mark.spark
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_both_engines_join_alike(seed: int, spark):
    from join_stage.spark.engine import SparkEngine

    case = random_join_case(seed, templates=6)
    engines: list[JoinEngine] = [DuckDBEngine(), SparkEngine(spark)]
    one, other = (run_case(engine, case) for engine in engines)
    assert one == other
    assert len({row[0] // 3 for result in one for row in result}) >= 4, "few templates matched"
    for engine in engines:
        engine.close()


def test_eviction_changes_no_pair_within_the_window(open_engine: Opener):
    case = random_join_case(4, templates=2, batches=4, in_order=True)
    plain, evicting = open_engine(), open_engine()
    expected = run_case(plain, case)
    for (first, _), wanted in zip(case.batches[1:], expected[1:], strict=True):
        assert any(row[2] is not None and min(row[1], row[2]) < first for row in wanted), (
            "no pair with an earlier batch"
        )
    for template, rows in case.templates:
        evicting.put_rows(template, rows)
    evicting.begin()
    for _, witnesses in case.batches:
        evicting.append("documents", documents(witnesses))
    evicting.commit()
    for (first, witnesses), wanted in zip(case.batches, expected, strict=True):
        evicting.begin()
        assert sorted_rows(evicting.join(witnesses, first, case.scope)) == wanted
        greatest = max(witnesses.r_docts["t1"].to_pylist())
        evicting.evict(greatest - case.window)
        evicting.commit()
    for name in STATE:
        oldest = evicting.select(f"SELECT min(docid) AS oldest FROM {name}")["oldest"].to_pylist()[0]
        assert 4 <= oldest <= 10, "the first batch went, what the window reaches is there"
    plain.close()
    evicting.close()


def test_a_store_of_the_other_engine_is_refused(open_store: Opener, tmp_path: Path, request: pytest.FixtureRequest):
    of_duckdb = request.node.callspec.params["open_store"] == "duckdb"
    (tmp_path / ("manifests" if of_duckdb else "mmqjp.duckdb")).mkdir()
    with pytest.raises(StoreError, match="use that engine"):
        open_store(tmp_path)
