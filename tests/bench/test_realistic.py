"""The benchmark of lifelike subscriptions with tiny cases: what it compares, how it splits the time, what it writes."""

import re
from dataclasses import replace
from itertools import combinations

import pyarrow as pa
import pytest

from bench import realistic, stage2_engines
from bench.realistic import Case, check_pairs, floor_inputs, measure, pairs_of, run, workload
from bench.realistic_naive import Pairs, SameTitle, by_statements
from bench.realistic_split import PARTS, PartTimes, replayed
from bench.realistic_workload import LONGEST, POPULAR, script, subscriptions
from bench.stage2_engines import opened
from bench.stage2_floor import Floor
from bench.stage2_rows import rows_digest
from bench.workload import HOUR, channel
from mmqjp.engine import Session
from xscl.parser import parse_script

TINY, SMALLER = Case(60, 6000, 3000), Case(60, 3000, 1500)


@pytest.fixture(scope="module")
def ran():
    """A run of the tiny case over its batches."""
    batches, asked = workload(TINY)
    return batches, asked, run("duckdb", "basic", batches, asked)


@pytest.fixture(scope="module")
def measured():
    return measure(TINY, "duckdb", stage2_engines.plans_of("duckdb", None, quick=False), rounds=1, sample=20)


def test_subscriptions_are_of_five_kinds_and_can_be_registered():
    asked = subscriptions(40)
    assert {one.kind for one in asked} == {"title", "link", "author", "retitled", "recording"}
    assert len(parse_script(script(asked)).queries) == 40
    assert subscriptions(40) == asked == subscriptions(50)[:40]


@pytest.mark.soak
def test_statements_find_what_the_engine_finds(ran):
    batches, asked, of = ran
    _, _, found = by_statements(batches, asked)
    expected = pairs_of(of.outputs, batches, range(len(asked)))
    check_pairs("statements", found, expected)
    assert {one.kind for one, pairs in zip(asked, found, strict=True) if pairs} >= {"title"}


@pytest.mark.soak  # each registers hundreds of queries
@pytest.mark.parametrize("kind", ["title", "link", "author", "retitled", "recording"])
def test_statements_of_each_kind_find_what_the_engine_finds(kind):
    """With more items and subscriptions of one kind, so that there is something to find."""
    asked = [one for one in subscriptions(3000) if one.kind == kind]
    batches, _ = workload(Case(1, 2000, 1000))
    if kind == "recording":  # two channels seldom have one: the channels are left away
        asked = [
            replace(
                one,
                xscl=one.xscl.replace(one.xscl[one.xscl.index("[./channel_url") : one.xscl.index("]") + 1], ""),
                sql=one.sql[: one.sql.index("l.channel")] + one.sql[one.sql.index("r.channel") :],
            )
            for one in asked[:40]
        ]
    with Session("duckdb", lateness=HOUR) as engine:
        engine.subscribe(script(asked))
        outputs = [output for batch in batches for output in engine.process(batch)]
    _, _, found = by_statements(batches, asked[:60])
    check_pairs("statements", found, pairs_of(outputs, batches, range(len(asked)))[:60])
    assert len(outputs) > 0


@pytest.mark.soak
def test_a_program_in_python_finds_what_the_engine_finds(ran):
    batches, _, of = ran
    expected = pairs_of(of.outputs, batches, range(len(POPULAR)))
    for (one, other, hours), pairs in zip(POPULAR, expected, strict=True):
        check_pairs("Python", [SameTitle(channel(one), channel(other), hours).run(batches)[1]], [pairs])
    assert any(expected)


def test_other_pairs_are_refused():
    check_pairs("it", [{(1, 2)}], [{(1, 2)}])
    others: list[Pairs] = [set(), {(1, 2), (1, 3)}, {(2, 1)}]
    for wrong in others:
        with pytest.raises(AssertionError, match="it tells subscription 0 of the sample of other items"):
            check_pairs("it", [wrong], [{(1, 2)}])


@pytest.mark.soak
def test_measuring_stops_where_a_program_finds_something_else(monkeypatch):
    monkeypatch.setattr(SameTitle, "run", lambda self, batches: (1.0, {(0, 1)}))
    with pytest.raises(AssertionError, match="the program in Python tells subscription 0"):
        measure(SMALLER, "duckdb", ["basic"], 1, 5)


@pytest.mark.soak
def test_measuring_stops_where_plans_have_other_outputs(monkeypatch):
    real, runs = realistic.run, []

    def loses_an_output(engine, plan, batches, asked):
        runs.append(real(engine, "basic", batches, asked))
        return replace(runs[-1], outputs=runs[-1].outputs[len(runs) - 1 :])

    monkeypatch.setattr(realistic, "run", loses_an_output)
    with pytest.raises(AssertionError, match="other has other outputs than basic"):
        measure(SMALLER, "duckdb", ["basic", "other"], 1, 5)


@pytest.mark.soak
def test_replayed_calls_give_the_same_rows(ran):
    _, _, of = ran
    tables = []
    for plan in stage2_engines.plans_of("duckdb", None, quick=False):
        with opened("duckdb", plan) as store:
            seconds, rows = replayed(store, of.calls, True)
        tables.append(rows)
        assert len(seconds) == sum(name == "join" for name, _ in of.calls)
    assert tables[0].num_rows > 0
    assert {rows_digest(table) for table in tables} == {rows_digest(tables[0])}


@pytest.mark.soak
def test_documents_past_all_windows_are_evicted(ran):
    batches, asked, of = ran
    inputs = list(floor_inputs(of.calls))
    hours = [int(found[1]) for one in asked if (found := re.search(r", (\d+) h}", one.xscl))]
    assert len(hours) == len(asked) and max(hours) <= LONGEST
    oldest = batches[0][-1].t0 - HOUR - max(hours) * HOUR
    assert [one.documents for one in inputs] == [0, sum(document.t0 >= oldest for document in batches[0])]
    assert 0 < inputs[1].documents < len(batches[0])


@pytest.mark.soak
def test_the_floor_joins_the_values_that_the_engine_joins(ran):
    _, _, of = ran
    values: dict[int, list[tuple[int, str]]] = {}
    (first, second) = (arguments[0] for name, arguments in of.calls if name == "join")
    for batch in (first, second):
        for docid, text in zip(batch.r_doc["docid"].to_pylist(), batch.r_doc["strval"].to_pylist(), strict=True):
            values.setdefault(docid, []).append((docid, text))
    new, kept = set(second.r_docts["docid"].to_pylist()), set()
    inputs = list(floor_inputs(of.calls))[1]
    kept = set((inputs.kept[1] >> 8).tolist())
    by_text: dict[str, list[int]] = {}
    for docid, pairs in values.items():
        for _, text in pairs:
            if docid in new or docid in kept:
                by_text.setdefault(text, []).append(docid)
    expected = sum(a != b and (a in new or b in new) for docids in by_text.values() for a, b in combinations(docids, 2))
    with Floor() as floor:
        floor.keep(*inputs.kept)
        assert floor.join(*inputs.joined) == expected > 0


@pytest.mark.soak
def test_the_parts_are_the_whole(ran):
    _, _, of = ran
    assert set(of.parts) == set(PARTS) and all(of.parts[part] > 0 for part in PARTS)
    assert sum(of.parts.values()) == pytest.approx(of.seconds, rel=0.05)


@pytest.mark.soak
def test_wrapping_an_engine_leaves_its_outputs_alone(ran):
    batches, asked, of = ran
    with Session("duckdb", lateness=HOUR) as engine:
        engine.subscribe(script(asked))
        assert [output for batch in batches for output in engine.process(batch)] == of.outputs
        PartTimes(engine)
        assert isinstance(engine.sql("SELECT count(*) FROM documents"), pa.Table)


@pytest.mark.soak
def test_lines(measured):
    plans = stage2_engines.plans_of("duckdb", None, quick=False)
    assert [(line.bench, line.plan) for line in measured] == [
        *(("realistic", plan) for plan in plans),
        *(("realistic-path", plan) for plan in plans),
        ("realistic-without", "statements"),
        ("realistic-without", "Python, one query"),
    ]
    stage2, path, statements = measured[0], measured[len(plans)], measured[-2]
    assert {"state", "batch", "queries", "items"} == stage2.case.keys()
    assert (path.baseline, path.extrapolated) == ("statements", True)
    assert path.speedup == pytest.approx(statements.seconds / path.seconds)
    assert stage2.over_floor is not None and path.over_floor is not None and statements.over_floor is None


@pytest.mark.soak
def test_plot(measured, tmp_path):
    from bench.stage2_plot import draw_parts

    draw_parts([line for line in measured if line.bench == "realistic-path"], PARTS, tmp_path / "parts")
    assert (tmp_path / "parts.png").exists() and (tmp_path / "parts.svg").exists()
