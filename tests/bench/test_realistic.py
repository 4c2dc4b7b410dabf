import re
from dataclasses import replace
from itertools import combinations

import pyarrow as pa
import pytest

from bench import realistic
from bench.joins import JoinFloor, plans_of
from bench.workload import HOUR, LONGEST_HOURS, script_of, subscriptions
from mmqjp.engine import Session

TINY = realistic.RealisticCase(60, 6000, 3000)
PLANS = plans_of("duckdb", None, quick=False)


@pytest.fixture(scope="module")
def ran():
    """A run of the tiny case over its batches."""
    batches, asked = realistic.realistic_workload(TINY)
    return batches, asked, realistic.run_path("duckdb", "basic", batches, asked)


@pytest.fixture(scope="module")
def measured():
    return realistic.measure_realistic(TINY, "duckdb", PLANS, rounds=1, sample=20)


@pytest.mark.soak  # each registers hundreds of queries
@pytest.mark.parametrize("kind", ["title", "link", "author", "retitled", "recording"])
def test_statements_of_each_kind_find_what_the_engine_finds(kind):
    """With more items and subscriptions of one kind, so that there is something to find."""
    asked = [one for one in subscriptions(3000) if one.kind == kind]
    batches, _ = realistic.realistic_workload(realistic.RealisticCase(1, 2000, 1000))
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
        engine.subscribe(script_of(asked))
        outputs = [output for batch in batches for output in engine.process(batch)]
    _, _, found = realistic.by_statements(batches, asked[:60])
    realistic.check_pairs("statements", found, realistic.output_pairs(outputs, batches, range(len(asked)))[:60])
    assert len(outputs) > 0


def test_other_pairs_are_refused():
    realistic.check_pairs("it", [{(1, 2)}], [{(1, 2)}])
    for wrong in (set(), {(1, 2), (1, 3)}, {(2, 1)}):
        with pytest.raises(AssertionError, match="it tells subscription 0 of the sample of other items"):
            realistic.check_pairs("it", [wrong], [{(1, 2)}])


@pytest.mark.soak
def test_documents_past_all_windows_are_evicted_and_the_floor_joins_the_values_that_the_engine_joins(ran):
    batches, asked, of = ran
    inputs = list(realistic.floor_inputs(of.calls))
    hours = [int(found[1]) for one in asked if (found := re.search(r", (\d+) h}", one.xscl))]
    assert len(hours) == len(asked) and max(hours) <= LONGEST_HOURS
    oldest = batches[0][-1].t0 - HOUR - max(hours) * HOUR
    assert [one.documents for one in inputs] == [0, sum(document.t0 >= oldest for document in batches[0])]
    assert 0 < inputs[1].documents < len(batches[0])
    (first, second) = (arguments[0] for name, arguments in of.calls if name == "join")
    new, kept = set(second.r_docts["docid"].to_pylist()), set((inputs[1].kept[1] >> 8).tolist())
    by_text: dict[str, list[int]] = {}
    for batch in (first, second):
        for docid, text in zip(batch.r_doc["docid"].to_pylist(), batch.r_doc["strval"].to_pylist(), strict=True):
            if docid in new or docid in kept:
                by_text.setdefault(text, []).append(docid)
    expected = sum(a != b and (a in new or b in new) for docids in by_text.values() for a, b in combinations(docids, 2))
    with JoinFloor() as floor:
        floor.keep(*inputs[1].kept)
        assert floor.join(*inputs[1].joined) == expected > 0


@pytest.mark.soak
def test_the_parts_are_the_whole_and_outputs_are_left_alone(ran):
    batches, asked, of = ran
    assert set(of.parts) == set(realistic.PARTS) and all(of.parts[part] > 0 for part in realistic.PARTS)
    assert sum(of.parts.values()) == pytest.approx(of.seconds, rel=0.05)
    with Session("duckdb", lateness=HOUR) as engine:
        engine.subscribe(script_of(asked))
        assert [output for batch in batches for output in engine.process(batch)] == of.outputs
        realistic.PartTimes(engine)
        assert isinstance(engine.sql("SELECT count(*) FROM documents"), pa.Table)


@pytest.mark.soak
def test_lines_and_plot(measured, tmp_path):
    assert [(line.bench, line.plan) for line in measured] == [
        *(("realistic", plan) for plan in PLANS),
        *(("realistic-path", plan) for plan in PLANS),
        ("realistic-without", "statements"),
        ("realistic-without", "Python, one query"),
    ]
    stage2, path, statements = measured[0], measured[len(PLANS)], measured[-2]
    assert {"state", "batch", "queries", "items"} == stage2.case.keys()
    assert (path.baseline, path.extrapolated) == ("statements", True)
    assert path.speedup == pytest.approx(statements.seconds / path.seconds)
    assert stage2.over_floor is not None and path.over_floor is not None and statements.over_floor is None
    realistic.draw_parts(measured[len(PLANS) : 2 * len(PLANS)], tmp_path / "parts")
    assert (tmp_path / "parts.png").exists() and (tmp_path / "parts.svg").exists()
