import csv
import json
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from bench import joins, realistic, rss, technical
from join_stage.protocol import PLANS

TINY = [replace(technical.TWO_LEVEL, queries=30), replace(technical.THREE_LEVEL, queries=30)]


@pytest.fixture(scope="module", params=TINY, ids=lambda case: case.schema)
def joined(request):
    """A tiny case: what it works on, and what the engine gives."""
    work = technical.technical_workload(request.param)
    with joins.opened_engine("duckdb", PLANS[0], work.registered) as store:
        joins.become_state(store, [(0, work.left[0])])
        store.begin()
        found = joins.timed_join(store, work.right[0], 1, work.registered.scope, keep=True).table
        store.rollback()
    return work, found


def test_queries_get_what_brute_force_says(joined):
    work, found = joined
    registered = work.registered
    got = joins.query_digests(found, registered, registered.queries)
    node_of, leaf = registered.schema.node_of, registered.schema.leaf
    for pairs, rows in got.items():
        nodes = (node_of[leaf(number)] for pair in pairs for number in pair)
        expected = [(0, 1, *nodes)] if all(a == b for a, b in pairs) else []
        columns = [np.array([row[i] for row in expected], np.int64) for i in range(2 + 2 * len(pairs))]
        assert rows == joins.columns_digest(columns)
    assert joins.expanded_count(found, registered) == sum(got[pairs].rows for pairs in registered.queries) > 0


def test_expansion_gives_each_subscriber_its_rows(joined):
    work, found = joined
    registered = work.registered
    places, queries = technical.expand(found, registered)
    assert Counter(zip(places.tolist(), queries.tolist(), strict=True)) == Counter(
        (place, number)
        for place, qid in enumerate(found["qid"].to_pylist())
        for number, query in enumerate(registered.queries)
        if registered.placements[query].row == qid
    )


def test_a_row_lost_or_changed_fails_the_sample(joined):
    work, found = joined
    sample = work.registered.queries
    right = joins.query_digests(found, work.registered, sample)
    joins.check_sample(right, right)
    for wrong in (found.slice(1), pa.concat_tables([found, found.slice(0, 1)])):
        with pytest.raises(AssertionError, match="gets other rows than it does alone"):
            joins.check_sample(joins.query_digests(wrong, work.registered, sample), right)


def losing_rows(lost):
    """A join that loses the first `lost(n)` rows of its n-th result."""
    calls = []

    def losing(*arguments, **keywords):
        found = joins.timed_join(*arguments, **keywords)
        calls.append(found)
        return replace(found, table=found.table.slice(lost(len(calls))))

    return losing


@pytest.mark.parametrize(
    ("plans", "lost", "message"),
    [
        (PLANS[:1], lambda number: 1, "gets other rows than it does alone"),
        pytest.param(
            ["basic", "other"], lambda number: number - 1, "other gave other rows than basic", marks=pytest.mark.soak
        ),
    ],
)
def test_measuring_stops_at_rows_that_differ(plans, lost, message, monkeypatch):
    monkeypatch.setattr(technical, "timed_join", losing_rows(lost))
    monkeypatch.setattr(
        technical, "opened_engine", lambda engine, plan, rows: joins.opened_engine(engine, PLANS[0], rows)
    )
    with pytest.raises(AssertionError, match=message):
        technical.measure_technical(TINY[0], "duckdb", plans, rounds=1)


def test_lines_and_plots(tmp_path):
    lines = technical.measure_technical(TINY[0], "duckdb", PLANS, rounds=1, sample=12)
    first, *_, sequential = lines
    assert first.case == {"schema": "two-level", "queries": 30, "leaves": 6, "max_joins": 6, "zipf": 0.8}
    assert first.extrapolated and first.over_floor is None and first.baseline == "sequential"
    assert first.speedup == pytest.approx(sequential.seconds / first.seconds)
    assert sequential.speedup is None and sequential.rows == first.details["expanded"]
    assert {f"sequential {layout}" for layout in joins.LAYOUTS} <= sequential.details.keys()
    technical.draw_technical(lines, tmp_path / "one")
    technical.draw_technical(
        [*lines, *(replace(line, case={**line.case, "queries": 1000}) for line in lines)], tmp_path / "two"
    )
    technical.draw_split(technical.measure_split(TINY[0], "duckdb", 1), tmp_path / "split")
    for name in ("one", "two", "split"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert ("6.14" if name == "split" else "6.8") + ": two-level" in (tmp_path / f"{name}.svg").read_text()


def test_each_default_is_in_its_sweeps():
    swept = technical.technical_cases([10, 1000], sweeps=True)
    assert len(swept) == len(set(swept)) == 2 * 2 + 4 + 3 + 2 * 4
    assert set(technical.technical_cases([10, 1000], sweeps=False)) < set(swept)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")  # they run more than once here
@pytest.mark.parametrize("name", ["technical", "rss", "realistic"])
def test_what_a_run_leaves(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(technical, "ROUNDS", {"duckdb": 1})
    monkeypatch.setattr(rss, "STATE", 60)
    monkeypatch.setattr(rss, "BATCH", 20)
    monkeypatch.setattr(realistic, "ITEMS", 300)
    monkeypatch.setattr(realistic, "ROUNDS", 1)
    prefix = tmp_path / name
    kept = [f"--csv={prefix}.csv", f"--json={prefix}.json", f"--plot={prefix}"]
    monkeypatch.setattr(sys, "argv", ["bench", "--queries=12,20", "--plan=basic", *kept])
    {"technical": technical.bench_technical, "rss": rss.bench_rss, "realistic": realistic.bench_realistic}[name]()
    lines = [json.loads(line) for line in prefix.with_suffix(".json").read_text("utf-8").splitlines()]
    rows = list(csv.DictReader(prefix.with_suffix(".csv").open(encoding="utf-8")))
    assert len(lines) == len(rows) > 0
    assert {line["case"]["queries"] for line in lines} >= {12, 20}
    assert "basic" in capsys.readouterr().out
    assert all(prefix.with_suffix(f".{kind}").stat().st_size for kind in ("svg", "png"))
