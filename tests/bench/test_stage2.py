"""The benchmarks of stage 2 with tiny cases: what they check before a time is reported, and what they write."""

import csv
import json
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from lxml import etree

from bench import stage2_engines, technical
from bench.stage2_engines import become_state, opened, put_rows, scope, timed_join
from bench.stage2_queries import draw, mirrored, register, three_level, two_level, without_mirrors
from bench.stage2_report import Line, marked, show, write_csv, write_json
from bench.stage2_rows import check_equal, check_sample, expanded_count, of_columns, of_queries, rows_digest
from bench.stage2_sequential import LAYOUTS, statement
from bench.stage2_witnesses import document, witnesses
from bench.technical import THREE_LEVEL, TWO_LEVEL, cases, expand, measure, measure_split, workload
from join_stage.protocol import PLANS, RESULT
from templates.catalog import Change
from templates.graph import canonical_shape
from xpath_stage.documents import StreamDocument, parse_document
from xpath_stage.evaluator import XPathStage

TINY = [replace(TWO_LEVEL, queries=30), replace(THREE_LEVEL, queries=30)]
CONTRACT = [
    *("bench", "case", "engine", "plan", "seconds", "rows", "baseline", "speedup", "floor", "over_floor"),
    "extrapolated",
]


def result(rows):
    return pa.Table.from_pylist([dict(zip(RESULT.names, row, strict=True)) for row in rows], schema=RESULT)


ROWS = [(1, 2, 3, [4, 5]), (1, 2, 3, [4, 5]), (1, 2, None, [4]), (7, 2, 3, [5, 4])]


# ------------------------------------------------------------ queries and witnesses


def test_the_templates_that_the_thesis_counts_are_ours_without_mirror_images():
    schema = three_level()
    for joins, expected in ((2, 2), (3, 6)):
        shapes = register(schema, draw(schema, 1000, joins, 0.8), ("S", "T")).catalog.templates
        assert without_mirrors(shapes) == expected
    schema = two_level(6)
    assert len(register(schema, draw(schema, 1000, 6, 0.8), ("S", "T")).catalog.templates) == 6


def test_a_mirror_image_of_a_mirror_image_is_the_template():
    schema = three_level()
    shapes = register(schema, draw(schema, 200, 4, 0.8), ("S", "T")).catalog.templates
    assert [mirrored(mirrored(shape)) for shape in shapes] == shapes
    keys = {canonical_shape(shape).key for shape in shapes}
    assert any(canonical_shape(mirrored(shape)).key not in {canonical_shape(shape).key} for shape in shapes)
    assert len(keys) == len(shapes)


def test_queries_differ_in_size_as_the_zipf_parameter_says():
    few, even = (Counter(map(len, draw(two_level(6), 3000, 6, zipf))) for zipf in (1.6, 0.0))
    assert few[1] > 3 * even[1] > 3 * few[6] > 0
    for query in draw(two_level(6), 50, 6, 0.0):
        assert len(query) == len({left for left, _ in query}) == len({right for _, right in query})


@pytest.mark.parametrize("schema", [two_level(5), three_level()])
def test_the_witnesses_are_those_of_stage_1(schema):
    registered = register(schema, draw(schema, 60, 4, 0.8), ("S", "T"))
    catalog, stage = registered.catalog, XPathStage()
    rows = tuple(row for _, of in registered.tables for row in of)
    stage.add(Change(tuple(catalog.steps.values()), tuple(registered.edges), tuple(registered.values), rows))
    values = [[f"v{leaf}-{docid % 2}" for docid in range(3)] for leaf in range(len(schema.paths))]
    for stream in registered.streams:
        made = witnesses(registered, stream, [pa.array(column) for column in values], 10)
        trees = [parse_document(document(registered, [column[i] for column in values])) for i in range(3)]
        times = made.r_docts.to_pylist()
        found = stage.evaluate(
            StreamDocument(10 + i, stream, times[i]["t0"], times[i]["t1"], tree) for i, tree in enumerate(trees)
        )
        stage.finish_batch(committed=False)
        assert flat(made) == flat(found)
        assert Counter(map(tuple, rows_of(made.r_doc))) == Counter(map(tuple, rows_of(found.r_doc)))
        assert rows_of(made.r_docts) == rows_of(found.r_docts)


def rows_of(table):
    return [tuple(row.values()) for row in table.to_pylist()]


def flat(of):
    joined = of.r_bin.join(of.r_group, "grp", join_type="inner")
    return Counter(rows_of(joined.select(["docid", "var1", "var2", "node1", "node2"])))


# ------------------------------------------------------------ the checks of rows


def test_a_digest_does_not_depend_on_order_or_chunks(monkeypatch):
    shuffled = [ROWS[i] for i in (3, 1, 2, 0)]
    assert rows_digest(result(ROWS)) == rows_digest(result(shuffled))
    whole = rows_digest(result(ROWS))
    monkeypatch.setattr("bench.stage2_rows.CHUNK", 1)
    assert rows_digest(result(ROWS)) == whole


@pytest.mark.parametrize(
    "changed",
    [
        ROWS[1:],  # one of two equal rows is gone
        [*ROWS[1:], (1, 2, 3, [5, 4])],  # the nodes are exchanged
        [*ROWS[1:], (1, 3, 2, [4, 5])],  # the documents are
        [*ROWS[1:], (2, 2, 3, [4, 5])],
        [*ROWS[:3], (7, 2, 3, [5, 4, 0])],
        [*ROWS[:2], (1, 2, 3, [4]), ROWS[3]],  # a document instead of none
        [(1, 2, 3, [4]), (1, 2, 3, [5, 4, 5]), *ROWS[2:]],  # the same nodes, divided otherwise
    ],
)
def test_other_rows_have_another_digest(changed):
    assert rows_digest(result(changed)) != rows_digest(result(ROWS))
    with pytest.raises(AssertionError, match="views gave other rows than basic"):
        check_equal({"basic": rows_digest(result(ROWS)), "views": rows_digest(result(changed))})


def test_random_changes_are_seen():
    rng = Random(1)
    for _ in range(300):
        rows = [(rng.randrange(3), rng.randrange(3), rng.randrange(3), [rng.randrange(3)] * rng.randint(1, 3))] * 2
        rows += [(rng.randrange(3), rng.randrange(3), rng.randrange(3), [rng.randrange(3), 1])]
        other = list(rows)
        other[rng.randrange(3)] = (rng.randrange(3), rng.randrange(3), rng.randrange(3), [rng.randrange(3)])
        equal = Counter(map(repr, rows)) == Counter(map(repr, other))
        assert (rows_digest(result(rows)) == rows_digest(result(other))) == equal


@pytest.fixture(scope="module", params=TINY, ids=lambda case: case.schema)
def joined(request):
    """A tiny technical case: what it works on, and what the engine gives."""
    work = workload(request.param)
    with opened("duckdb", PLANS[0]) as store:
        put_rows(store, work.registered)
        become_state(store, [(0, work.left[0])])
        store.begin()
        found = timed_join(store, work.right[0], 1, scope(work.registered), keep=True).table
        store.rollback()
    return work, found


def test_queries_get_what_brute_force_says(joined):
    work, found = joined
    registered = work.registered
    got = of_queries(found, registered, registered.queries)
    node_of, leaf = registered.schema.node_of, registered.schema.leaf
    for pairs, rows in got.items():
        nodes = (node_of[leaf(number)] for pair in pairs for number in pair)
        expected = [(0, 1, *nodes)] if all(a == b for a, b in pairs) else []
        assert rows == of_columns([np.array([row[i] for row in expected], np.int64) for i in range(2 + 2 * len(pairs))])
    assert expanded_count(found, registered) == sum(got[pairs].rows for pairs in registered.queries) > 0


def test_expansion_gives_each_subscriber_its_rows(joined):
    work, found = joined
    places, queries = expand(found, work.registered)
    qids = found["qid"].to_pylist()
    placements = work.registered.placements
    pairs = Counter(zip(places.tolist(), queries.tolist(), strict=True))
    assert pairs == Counter(
        (place, number)
        for place, qid in enumerate(qids)
        for number, query in enumerate(work.registered.queries)
        if placements[query].row == qid
    )


def test_a_row_lost_or_changed_fails_the_sample(joined):
    work, found = joined
    sample = work.registered.queries
    right = of_queries(found, work.registered, sample)
    check_sample(right, right)
    for wrong in (found.slice(1), pa.concat_tables([found, found.slice(0, 1)])):
        with pytest.raises(AssertionError, match="gets other rows than it does alone"):
            check_sample(of_queries(wrong, work.registered, sample), right)


def test_measuring_stops_at_rows_that_differ(monkeypatch):
    real = stage2_engines.timed_join

    def loses_a_row(*arguments):
        joined = real(*arguments)
        return replace(joined, table=joined.table.slice(1))

    monkeypatch.setattr(technical, "timed_join", loses_a_row)
    with pytest.raises(AssertionError, match="gets other rows than it does alone"):
        measure(TINY[0], "duckdb", PLANS[:1], rounds=1)


@pytest.mark.soak
def test_plans_that_differ_are_not_measured(monkeypatch):
    real, calls = stage2_engines.timed_join, []

    def differs_the_second_time(*arguments):
        joined = real(*arguments)
        calls.append(joined)
        return replace(joined, table=joined.table.slice(len(calls) - 1))

    monkeypatch.setattr(technical, "timed_join", differs_the_second_time)
    monkeypatch.setattr(technical, "opened", lambda engine, plan: opened(engine, PLANS[0]))
    with pytest.raises(AssertionError, match="other gave other rows than basic"):
        measure(TINY[0], "duckdb", ["basic", "other"], rounds=1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sequential_says_what_a_query_means_in_each_layout(layout):
    registered = register(two_level(3), [((0, 1), (2, 0))], ("S", "T"))
    text = statement(registered, registered.queries[0], layout)
    assert text.startswith("SELECT ")
    assert ("r_doc_w" in text) == (layout == "relations")
    assert ("items_w" in text) == (layout == "columns")


def test_the_split_stops_at_rows_that_differ(monkeypatch):
    from bench import technical_split

    wrong = technical_split._VIEWS | {"r_r": f"{technical_split._VIEWS['r_r']} LIMIT 0"}
    monkeypatch.setattr(technical_split, "_VIEWS", wrong)
    with pytest.raises(AssertionError, match="other rows over the views"):
        measure_split(TINY[0], "duckdb", 1)


# ------------------------------------------------------------ technical, measured


@pytest.fixture(scope="module")
def measured():
    plans = PLANS
    return [line for case in TINY for line in measure(case, "duckdb", plans, rounds=1, sample=12)]


def test_json_lines_are_those_of_the_contract(measured, tmp_path):
    write_json(measured, tmp_path / "technical.json")
    lines = [json.loads(line) for line in (tmp_path / "technical.json").read_text("utf-8").splitlines()]
    assert [list(line)[: len(CONTRACT)] for line in lines] == [CONTRACT] * len(lines)
    first = lines[0]
    assert first["case"] == {"schema": "two-level", "queries": 30, "leaves": 6, "max_joins": 6, "zipf": 0.8}
    assert (first["bench"], first["engine"], first["plan"], first["baseline"]) == (
        *("technical", "duckdb", "basic", "sequential"),
    )
    assert first["extrapolated"] is True and first["over_floor"] is None
    sequential = next(line for line in lines if line["plan"] == "sequential")
    assert first["speedup"] == pytest.approx(sequential["seconds"] / first["seconds"])
    assert sequential["speedup"] is None and sequential["rows"] == first["expanded"]
    assert {f"sequential {layout}" for layout in LAYOUTS} <= sequential.keys()


def test_csv_has_a_column_for_each_figure(measured, tmp_path):
    write_csv(measured, tmp_path / "technical.csv")
    rows = list(csv.DictReader((tmp_path / "technical.csv").open(encoding="utf-8")))
    assert len(rows) == len(measured)
    assert (rows[0]["schema"], rows[0]["templates"]) == ("two-level", str(measured[0].details["templates"]))


def test_table(measured, capsys):
    show(measured, "two documents", technical.COLUMNS)
    assert "three-level" in capsys.readouterr().out


def test_an_extrapolated_speedup_is_marked():
    line = Line("technical", {}, "duckdb", "basic", 1.0, 1, "sequential", 7400.0, extrapolated=True)
    assert (marked(line), marked(replace(line, extrapolated=False))) == ("~7,400", "7,400")


def test_each_default_is_in_its_sweeps():
    swept = cases([10, 1000], sweeps=True)
    assert len(swept) == len(set(swept)) == 2 * 2 + 4 + 3 + 2 * 4
    assert set(cases([10, 1000], sweeps=False)) < set(swept)


def test_a_plot_of_one_number_of_queries(measured, tmp_path):
    from bench.stage2_plot import draw_technical

    draw_technical([line for line in measured if line.case == measured[0].case], tmp_path / "one")
    assert "6.8: two-level" in etree.tostring(etree.parse(tmp_path / "one.svg"), encoding="unicode")


def test_plots(measured, tmp_path):
    from bench.stage2_plot import draw_split, draw_technical

    more = [replace(line, case={**line.case, "queries": 1000}) for line in measured]
    draw_technical([*more, *measured], tmp_path / "technical")
    draw_split(measure_split(TINY[0], "duckdb", 1), tmp_path / "split")
    for name in ("technical", "split"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert etree.parse(tmp_path / f"{name}.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
