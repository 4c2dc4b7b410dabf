import csv
import json
import re
import sys
from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest

from bench import cluster, joins, realistic, rss, state, technical
from bench.joins import JoinFloor, plans_of
from bench.spark_cluster import SETTINGS
from bench.workload import HOUR, LONGEST_HOURS, script_of, subscriptions
from join_stage.plans import PLANS
from join_stage.protocol import RESULT
from join_stage.signature import join
from mmqjp.engine import Session
from templates.catalog import Change
from templates.graph import canonical_shape
from xpath_stage.documents import StreamDocument, parse_document
from xpath_stage.evaluator import XPathStage

soak = pytest.mark.soak

TWO, THREE = joins.two_level(6), joins.three_level()
STREAMS = ("S", "T")
ROWS = [(1, 2, 3, [4, 5]), (1, 2, 3, [4, 5]), (1, 2, None, [4]), (7, 2, 3, [5, 4])]


def result(rows):
    return pa.Table.from_pylist([dict(zip(RESULT.names, row, strict=True)) for row in rows], schema=RESULT)


def registered(schema, number, most):
    return joins.register_queries(schema, joins.draw_queries(schema, number, most, 0.8), STREAMS)


@pytest.mark.parametrize(("schema", "most", "expected"), [(THREE, 2, 2), (THREE, 3, 6), (TWO, 6, 6)])
def test_the_templates_that_the_thesis_counts_are_ours_without_mirror_images(schema, most, expected):
    shapes = registered(schema, 1000, most).catalog.templates
    assert joins.without_mirrors(shapes) == expected
    assert [joins.mirrored(joins.mirrored(shape)) for shape in shapes] == shapes
    if most == 3:
        assert any(canonical_shape(joins.mirrored(shape)).key != canonical_shape(shape).key for shape in shapes)


@pytest.mark.parametrize("schema", [joins.two_level(5), THREE])
def test_the_witnesses_are_those_of_stage_1(schema):
    drawn, stage = registered(schema, 60, 4), XPathStage()
    rows = tuple(row for _, of in drawn.tables for row in of)
    stage.add(Change(tuple(drawn.catalog.steps.values()), tuple(drawn.edges), tuple(drawn.values), rows))
    values = [[f"v{leaf}-{docid % 2}" for docid in range(3)] for leaf in range(len(schema.paths))]
    for stream in STREAMS:
        made = joins.schema_witnesses(drawn, stream, [pa.array(column) for column in values], 10)
        trees = [parse_document(document(schema, [column[i] for column in values])) for i in range(3)]
        times = made.r_docts.to_pylist()
        found = stage.evaluate(
            StreamDocument(10 + i, stream, times[i]["t0"], times[i]["t1"], tree) for i, tree in enumerate(trees)
        )
        stage.finish_batch(committed=False)
        assert flat(made) == flat(found)
        assert Counter(rows_of(made.r_doc)) == Counter(rows_of(found.r_doc))
        assert rows_of(made.r_docts) == rows_of(found.r_docts)


def document(schema, values):
    parts: dict[str, list[str]] = {}
    for i, value in enumerate(values):
        parts.setdefault(schema.above(i), []).append(f"<{schema.leaf(i)}>{value}</{schema.leaf(i)}>")
    inner = "".join("".join(of) if tag == joins.ROOT else f"<{tag}>{''.join(of)}</{tag}>" for tag, of in parts.items())
    return f"<{joins.ROOT}>{inner}</{joins.ROOT}>".encode()


def rows_of(table):
    return [tuple(row.values()) for row in table.to_pylist()]


def flat(of):
    joined = of.r_bin.join(of.r_group, "grp", join_type="inner")
    return Counter(rows_of(joined.select(["docid", "var1", "var2", "node1", "node2"])))


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
def test_other_rows_have_another_digest_and_the_same_ones_in_any_order_and_chunks_have_theirs(changed, monkeypatch):
    whole = joins.rows_digest(result(ROWS))
    assert whole == joins.rows_digest(result(ROWS[::-1]))
    monkeypatch.setattr("bench.joins.CHUNK", 1)
    assert joins.rows_digest(result(ROWS)) == whole
    with pytest.raises(AssertionError, match="views gave other rows than basic"):
        joins.check_equal({"basic": joins.rows_digest(result(ROWS)), "views": joins.rows_digest(result(changed))})


@pytest.mark.parametrize("sizes", [[30, 10], [5, 5, 5, 40, 1], [1], [0, 12]])
def test_the_floor_writes_the_pairs_that_brute_force_finds(sizes):
    matrix = np.random.default_rng(len(sizes)).integers(0, 20, (sum(sizes), 3))
    first = 0
    with joins.JoinFloor() as floor:
        for place, size in enumerate(sizes):
            end = first + size
            arrived = joins.postings(first, matrix[first:end])
            if place == 0:
                floor.keep(*arrived)
            else:
                count = floor.join(*arrived)
                left, right = (np.fromfile(file, np.int64) for file in floor.files)
                expected = {
                    (a << joins.LEAF_BITS | i, b << joins.LEAF_BITS | j)
                    for b in range(first, end)
                    for a in range(b)
                    for i, value in enumerate(matrix[a])
                    for j, other in enumerate(matrix[b])
                    if value == other
                }
                assert set(zip(left.tolist(), right.tolist(), strict=True)) == expected
                assert count == len(left) == len(right) == len(expected)
            first = end


TINY = [replace(technical.TWO_LEVEL, queries=30), replace(technical.THREE_LEVEL, queries=30)]


@pytest.mark.parametrize("case", TINY, ids=lambda case: case.schema)
def test_queries_get_what_brute_force_says_and_a_row_lost_or_changed_fails_the_sample(case):
    work = technical.technical_workload(case)
    drawn = work.registered
    with joins.opened_engine("duckdb", PLANS[0], drawn) as store:
        joins.become_state(store, [(0, work.left[0])])
        store.begin()
        found = joins.timed_join(store, work.right[0], 1, drawn.scope, keep=True).table
        store.rollback()
    got = joins.query_digests(found, drawn, drawn.queries)
    node_of, leaf = drawn.schema.node_of, drawn.schema.leaf
    for pairs, rows in got.items():
        nodes = (node_of[leaf(number)] for pair in pairs for number in pair)
        expected = [(0, 1, *nodes)] if all(a == b for a, b in pairs) else []
        columns = [np.array([row[i] for row in expected], np.int64) for i in range(2 + 2 * len(pairs))]
        assert rows == joins.columns_digest(columns)
    assert joins.expanded_count(found, drawn) == sum(got[pairs].rows for pairs in drawn.queries) > 0
    places, queries = technical.expand(found, drawn)
    assert Counter(zip(places.tolist(), queries.tolist(), strict=True)) == Counter(
        (place, number)
        for place, qid in enumerate(found["qid"].to_pylist())
        for number, query in enumerate(drawn.queries)
        if drawn.placements[query].row == qid
    )
    joins.check_sample(got, got)
    for wrong in (found.slice(1), pa.concat_tables([found, found.slice(0, 1)])):
        with pytest.raises(AssertionError, match="gets other rows than it does alone"):
            joins.check_sample(joins.query_digests(wrong, drawn, drawn.queries), got)


def test_lines_and_plots_of_two_documents(tmp_path):
    lines = technical.measure_technical(TINY[0], "duckdb", PLANS, rounds=1, sample=6)
    first, *_, sequential = lines
    assert first.case == {"schema": "two-level", "queries": 30, "leaves": 6, "max_joins": 6, "zipf": 0.8}
    assert first.extrapolated and first.over_floor is None and first.baseline == "sequential"
    assert first.speedup == pytest.approx(sequential.seconds / first.seconds)
    assert sequential.speedup is None and sequential.rows == first.details["expanded"]
    assert {f"sequential {layout}" for layout in joins.LAYOUTS} <= sequential.details.keys()
    more = [replace(line, case={**line.case, "queries": 1000}) for line in lines]
    technical.draw_technical(lines, tmp_path / "one")
    technical.draw_technical([*lines, *more], tmp_path / "two")
    technical.draw_split(technical.measure_split(TINY[0], "duckdb", 1), tmp_path / "split")
    for name in ("one", "two", "split"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert ("6.14" if name == "split" else "6.8") + ": two-level" in (tmp_path / f"{name}.svg").read_text()


@soak
@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")  # they run more than once here
@pytest.mark.parametrize("name", ["technical", "rss", "realistic"])
def test_what_a_run_leaves(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(technical, "ROUNDS", {"duckdb": 1})
    for module, attribute, size in ((rss, "STATE", 60), (rss, "BATCH", 20), (realistic, "ITEMS", 300)):
        monkeypatch.setattr(module, attribute, size)
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


FEED = rss.RssCase(60, 20, 40)


def test_values_of_the_feed_are_equal_where_their_numbers_are():
    values = rss.feed_values(400)
    texts = [text for row in zip(*(c.to_pylist() for c in rss.feed_strings(values)), strict=True) for text in row]
    numbers = values.ravel().tolist()
    assert len(set(texts)) == len(set(numbers)) == len(set(zip(numbers, texts, strict=True)))
    assert len(set(numbers)) < len(numbers) - 200  # some channels are met again
    work = rss.rss_workload(FEED)
    assert [first for first, _ in (*work.kept, work.warm, work.measured)] == [0, 40, 60]
    assert work.registered.schema == rss.FEED
    assert work.kept[0][1].r_group.num_rows and not work.measured[1].r_group.num_rows


def test_a_feed_repeats_urls_titles_and_descriptions_within_a_channel_and_titles_as_descriptions():
    url, channel, title, _, description = rss.feed_values(5000).T
    for leaf in (url, title, description):
        assert len(np.unique(leaf)) < len(leaf)
    assert (url == channel).any() and (title == description).any()
    assert 350 < len(np.unique(channel)) <= 418


@soak
def test_lines_and_plots_of_a_feed(tmp_path):
    lines = rss.measure_rss(FEED, "duckdb", PLANS, 2, 12)
    first, *_, sequential = lines
    values = rss.feed_values(80)
    pairs = sum(int((values[a][:, None] == values[b][None, :]).sum()) for b in range(60, 80) for a in range(b))
    assert first.details["value_pairs"] == pairs > 0
    assert first.case == {"state": 60, "batch": 20, "queries": 40, "items": 80}
    assert first.speedup == pytest.approx(sequential.seconds / first.seconds)
    assert (first.baseline, sequential.baseline, first.extrapolated) == ("sequential", None, True)
    assert sequential.rows == first.number("expanded") > 0
    rss.draw_rates(lines, tmp_path / "one")
    rss.draw_rates([*lines, *(replace(line, case={**line.case, "state": 100}) for line in lines)], tmp_path / "two")
    assert (tmp_path / "one.png").exists() and "items in the state" in (tmp_path / "two.svg").read_text()
    without = rss.measure_rss(FEED, "duckdb", PLANS, 1, 0)
    assert [(line.plan, line.baseline) for line in without] == [(p, None if p == "basic" else "basic") for p in PLANS]
    (memory,) = rss.memory_lines(["basic"], 200, 400)
    assert memory.details["state_bytes"] is None or isinstance(memory.details["state_bytes"], float)


@soak
def test_a_small_state_on_disk(tmp_path, monkeypatch, capsys):
    """Rows of a store with several runs are compared; the processes are replaced by calls."""
    monkeypatch.setattr(join, "MOST_IN_MEMORY", 2_000)
    monkeypatch.setattr(state, "CHUNK", 500)
    monkeypatch.setattr(state, "SIZE", 200)
    monkeypatch.setattr(state, "in_fresh_process", lambda work, item: work(item))
    out = tmp_path / "state.json"
    arguments = ["mmqjp bench state", "--documents", "1000,3000", "--json", str(out), "--plot", str(tmp_path / "state")]
    monkeypatch.setattr("sys.argv", arguments)
    state.bench_state()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["case"]["documents"] for line in lines] == [1000, 3000]
    assert all(line["rows"] > 0 and line["disk"] > 3_000 * state.LEAVES for line in lines)
    assert lines[0]["ratio"] == 1
    assert "batches of 200 documents" in capsys.readouterr().out
    assert (tmp_path / "state.png").stat().st_size > 1_000


def test_a_run_that_grows_is_told():
    samples = [state.StateSample(n, 1.0, 100, 100, n, 100, 100) for n in range(1, 41)]
    assert state.grown_figures(samples) == ["kept"]


def test_lines_of_a_cluster_are_those_of_each_pair_of_documents_and_others_are_an_error(tmp_path):
    count = 300
    batches = [cluster.batch_values(count, number, 40, 0.5) for number in range(2)]
    rows = [*cluster.kept_values(count, 0, count).tolist(), *(row for batch in batches for row in batch.tolist())]
    wanted = {
        (cluster.query_name(leaves), f"d{one}", f"d{other}")
        for one, other in combinations(range(len(rows)), 2)
        if other >= count
        for leaves in cluster.SETS
        if all(rows[one][leaf] == rows[other][leaf] for leaf in leaves)
    }
    assert cluster.expected_rows(count, batches) == wanted and len(wanted) > 300
    assert len(cluster.SETS) == 2**state.LEAVES - state.LEAVES - 1
    lines = [json.dumps({"query": query, "documents": pair}) + "\n" for query, *pair in wanted]
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(lines))
    assert cluster.check_lines(count, batches, path) == len(lines)
    for wrong in (lines[1:], [*lines, lines[0]]):
        path.write_text("".join(wrong))
        with pytest.raises(AssertionError, match="instead of"):
            cluster.check_lines(count, batches, path)


@pytest.mark.spark
@soak  # it starts two clusters, one after the other
def test_a_small_case_is_measured_on_a_cluster(monkeypatch):
    """Two workers join a batch of a state, and the driver another one; the lines of both are those of the values."""
    monkeypatch.setattr("bench.cluster.QUIET", cluster.QUIET / 4)
    embedded, line = cluster.measure_cluster(1_000, workers=(2,), sizes=(2_200, 60), kills=False)
    assert embedded.engine == "duckdb" and embedded.rows == line.rows
    assert line.rows > 5_000
    assert 0 < line.number("share") < 1 and line.number("executors") > 0 and line.number("driver") > 0
    heap = int(SETTINGS["spark.driver.memory"].removesuffix("m")) << 20
    assert 0 < line.number("jvm") < 2 * heap


SMALL = realistic.RealisticCase(60, 6000, 3000)
REALISTIC_PLANS = plans_of("duckdb", None, quick=False)


@soak  # each registers hundreds of queries
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


@soak
def test_a_run_evicts_what_is_past_all_windows_joins_what_its_floor_joins_and_is_the_sum_of_its_parts():
    batches, asked = realistic.realistic_workload(SMALL)
    of = realistic.run_path("duckdb", "basic", batches, asked)
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
    assert set(of.parts) == set(realistic.PARTS) and all(of.parts[part] > 0 for part in realistic.PARTS)
    assert sum(of.parts.values()) == pytest.approx(of.seconds, rel=0.05)
    with Session("duckdb", lateness=HOUR) as engine:
        engine.subscribe(script_of(asked))
        assert [output for batch in batches for output in engine.process(batch)] == of.outputs
        realistic.PartTimes(engine)
        assert isinstance(engine.sql("SELECT count(*) FROM documents"), pa.Table)


@soak
def test_lines_of_the_realistic_benchmark():
    measured = realistic.measure_realistic(SMALL, "duckdb", REALISTIC_PLANS, rounds=1, sample=20)
    assert [(line.bench, line.plan) for line in measured] == [
        *(("realistic", plan) for plan in REALISTIC_PLANS),
        *(("realistic-path", plan) for plan in REALISTIC_PLANS),
        ("realistic-without", "statements"),
        ("realistic-without", "Python, one query"),
    ]
    stage2, path, statements = measured[0], measured[len(REALISTIC_PLANS)], measured[-2]
    assert {"state", "batch", "queries", "items"} == stage2.case.keys()
    assert (path.baseline, path.extrapolated) == ("statements", True)
    assert path.speedup == pytest.approx(statements.seconds / path.seconds)
    assert stage2.over_floor is not None and path.over_floor is not None and statements.over_floor is None
