"""What benchmarks share, and benchmarks of stage 1, of the whole engine and of programs, over tiny cases."""

import csv
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from threading import Lock

import httpx
import numpy as np
import pytest
from lxml import etree

from bench import (
    absence,
    fanout,
    feeds,
    harness,
    joins,
    near,
    patterns_peers,
    patterns_synthetic,
    patterns_windows,
    peer_protocol,
    peers,
    registration,
    rss,
    services,
    stage1,
    stage1_workload,
    state,
    technical,
    whole_path,
)
from bench.absence import OPERATORS, AbsenceCase
from bench.harness import Line, columns
from bench.near import EQUALITY, Headline, NearCase
from bench.stage1 import ATTACKS, LIMITS, AttackCase, Stage1Case, measure_attack, measure_stage1
from bench.stage1_workload import DOCUMENT_KINDS, VOCABULARIES, patterns, stage1_documents, xpaths
from bench.workload import HOUR, VARIANTS, items, parameters, queries, script_of, subscriptions, write_workload
from feeds.documents import Document
from join_stage.plans import PLANS
from mmqjp.commands.bench import MODULES
from tests.generate.seeds import at_length
from tests.support.cli import mmqjp
from xpath_stage.binder import PreparedNode, each_binding
from xpath_stage.documents import parse_document
from xscl.parser import parse_script
from xscl.text import XsclErrors

soak = pytest.mark.soak


def some(kinds, *chosen):
    """Kinds of cases: the others in the long run."""
    return [pytest.param(kind, marks=() if kind in chosen else soak) for kind in kinds]


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """The command sets the arguments of the program, for the benchmark to find."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(absence, "WINDOW", 20)
    monkeypatch.setattr(services, "GAP", (0.0, 0.0))
    monkeypatch.setattr(services, "STEP", 200)
    monkeypatch.setattr(state, "SIZE", 100)
    monkeypatch.setattr(state, "in_fresh_process", lambda work, item: work(item))


def test_help_names_every_benchmark_and_their_options():
    text = mmqjp("bench", "--help").stdout
    assert [name for name in MODULES if f"  {name} " not in text and name != "cluster"] == []
    for name in ("stage1", "adversarial", "patterns"):
        result = mmqjp("bench", name, "--help")
        assert result.exit_code == 0 and result.stdout.startswith(f"usage: mmqjp bench {name}")
    result = mmqjp("bench", "stage9")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'stage9' is not one of 'stage1', 'adversarial', 'registration', 'whole-path'" in result.stderr
    assert result.stderr.endswith("(see mmqjp bench --help)\n") and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("technical", ["--bogus"], "unrecognized arguments: --bogus"),
        ("technical", ["--engine", "sqlite"], "invalid choice: 'sqlite'"),
        ("technical", ["--plan", "best"], "invalid choice: 'best'"),
        ("technical", ["--queries", "10,ten"], "'10,ten' is not some numbers separated by commas"),
        ("technical", ["--queries", "0"], "'0' is not some numbers"),
        ("technical", ["--json", "nowhere/x.json"], "there is no directory 'nowhere'"),
        ("stage1", ["--documents", "items,novels"], "no documents are called 'novels'"),
        ("near", ["--headlines", "nowhere"], "there is no file 'nowhere'"),
        ("patterns", ["memory", "--plot", "it"], "--plot does not draw memory"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_measured(name, options, message):
    result = mmqjp("bench", name, *options)
    assert result.exit_code == 2 and message in result.stderr


def test_a_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setattr("bench.harness.find_spec", lambda name: None)
    assert "the plot needs matplotlib: pip install matplotlib" in mmqjp("bench", "rss", "--plot", "it").stderr


def process_of(item):
    return os.getpid(), item


def refuse(item):
    raise AssertionError(f"{item} differs")


def refuse_in_vain(item):
    error = ValueError(f"not {item}")
    error.lock = Lock()  # type: ignore[attr-defined]  # what cannot be sent
    raise error


@pytest.mark.parametrize(
    ("work", "item", "error", "message"),
    [
        (os._exit, 3, RuntimeError, "the process of 3 ended with status 3"),
        pytest.param(refuse, "case 7", AssertionError, "case 7 differs", marks=pytest.mark.soak),
        pytest.param(refuse_in_vain, "case 7", RuntimeError, "ValueError: not case 7", marks=pytest.mark.soak),
    ],
)
def test_each_case_has_a_process_of_its_own_whose_errors_reach_the_user(work, item, error, message):
    with pytest.raises(error, match=message):
        harness.in_fresh_process(work, item)
    if work is refuse:
        processes = {harness.in_fresh_process(process_of, item) for item in (1, 2)}
        assert {item for _, item in processes} == {1, 2}
        assert len({os.getpid(), *(process for process, _ in processes)}) == 3


def test_a_line_as_json_as_csv_and_in_a_table(tmp_path, capsys):
    one = Line("it", {"queries": 7}, "duckdb", "basic", 1.0, 3, "sequential", 7400.0, 0.5, True, {"ms": 2.5})
    lines = [one, replace(one, floor=None, details={"more": 1})]
    harness.write_json(lines, tmp_path / "it.json")
    first, second = (json.loads(line) for line in (tmp_path / "it.json").read_text("utf-8").splitlines())
    assert tuple(first) == (*harness.COMMON, "ms") and first["case"] == {"queries": 7}
    assert first["over_floor"] == 2.0 and second["over_floor"] is None
    harness.write_csv(lines, tmp_path / "it.csv")
    rows = list(csv.DictReader((tmp_path / "it.csv").open(encoding="utf-8")))
    assert list(rows[0]) == ["bench", "queries", *harness.COMMON[2:], "ms", "more"] and rows[1]["ms"] == ""
    shown = columns("queries | = plan | µs = ms * 1e3 | times = marked | own", own=lambda line: "x")
    harness.print_table(lines, "it", shown)
    printed = capsys.readouterr().out
    assert "2,500" in printed and "~7,400" in printed and "x" in printed


def test_a_line_beside_its_baseline():
    lines = [Line("it", {"n": n, "kind": kind}, None, "p", 2.0 * n, 1) for n, kind in ((1, "a"), (3, "a"), (3, "b"))]
    group, is_baseline = (lambda line: line.case["kind"]), (lambda line: line.case["n"] == 1)
    compared = harness.beside(lines, group, is_baseline, "one", "over")
    assert [line.baseline for line in compared] == [None, "one", None]
    assert compared[1].speedup == pytest.approx(1 / 3) and compared[1].details["over"] == 3.0


def test_results_are_compared_in_each_turn():
    results = iter([1, 1, 1, 2])
    with pytest.raises(AssertionError, match="b has other rows in case 1"):
        harness.compared_turns(dict.fromkeys("ab", lambda: (1.0, next(results))), 2, "case 1", "rows")


def test_stage1_measures_its_cases_and_tells_on_a_terminal(monkeypatch, capsys, tmp_path):
    cases = []

    def measured_as_asked(work, case):
        cases.append(case)
        return measure_stage1(case, list(stage1_documents(case.kind, 3)), rounds=1)

    monkeypatch.setattr(stage1, "in_fresh_process", measured_as_asked)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    out = tmp_path / "it"
    kept = ["--csv", f"{out}.csv", "--json", f"{out}.json", "--plot", str(out)]
    monkeypatch.setattr(sys, "argv", ["mmqjp", "--documents", "flat", "--queries", "5", "--quick", *kept])
    stage1.bench_stage1()
    assert cases == [Stage1Case("flat", 5, 0.0, 0.0), Stage1Case("flat", 5, 0.4, 0.1)]
    told = capsys.readouterr()
    assert "2 of 2: flat, 5 patterns" in told.err and "elementpath" in told.out
    first, second = csv.DictReader((tmp_path / "it.csv").open(encoding="utf-8"))
    assert (second["kind"], second["patterns"], second["filters"], second["values"]) == ("flat", "5", "0.4", "0.1")
    assert float(first["lxml_xpath"]) > 0 and float(first["elementpath"]) > 0
    assert bool(first["saxon"]) == bool(find_spec("saxonche"))
    lines = [json.loads(line) for line in (tmp_path / "it.json").read_text("utf-8").splitlines()]
    assert [(line["plan"], line["baseline"]) for line in lines] == [
        (p, "lxml_xpath") for p in ("cached", "uncached")
    ] * 2
    assert lines[2]["case"] == {"documents": "flat", "patterns": 5, "filters": 0.4, "values": 0.1}
    assert lines[0]["seconds"] == pytest.approx(lines[0]["floor"] * lines[0]["over_floor"])
    assert "lxml, one XPath a path" in (tmp_path / "it.svg").read_text()


@soak
def test_many_patterns_have_no_baseline():
    measured = measure_stage1(Stage1Case("items", 2000, 0.4, 0.1), list(stage1_documents("items", 10)), rounds=1)
    assert [measured[name] for name in ("lxml_xpath", "elementpath", "saxon", "paths")] == [None] * 4
    assert [line.baseline for line in stage1.stage1_lines(measured)] == [None, None]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize(
    "attack", [name if name == "new tags" else pytest.param(name, marks=pytest.mark.soak) for name in ATTACKS]
)
def test_documents_made_to_hurt(attack, limits, capsys):
    lines = measure_attack(AttackCase(attack, limits), 3, 1)
    assert [*lines[0].case.values()] == [attack, limits, 3, "new"]
    assert all(line.rows > 0 and line.seconds > 0 and line.over_floor for line in lines)
    stage1.print_attacks([lines])
    assert attack in capsys.readouterr().out
    assert [(line.case["occasion"], line.plan, line.baseline) for line in lines] == [
        (occasion, *way) for occasion in ("new", "again") for way in (("cached", "uncached"), ("uncached", None))
    ]
    assert [bool(line.details["counters"]) for line in lines] == [True, False] * 2


def test_documents_that_hurt_are_new_ones():
    for attack in ATTACKS.values():
        texts = attack.documents(150)
        assert len(set(texts)) == len(texts) == 150


@pytest.mark.parametrize("kind", DOCUMENT_KINDS)
def test_the_xpaths_beside_stage1_find_the_nodes_of_every_variable(kind):
    trees = [parse_document(text) for text in stage1_documents(kind, 5, size=3000)]
    found = 0
    for conjunct in patterns(VOCABULARIES[kind], 50, 0.4, 0.3):
        pattern = conjunct.left.pattern
        names = [node.var for node in pattern.walk() if node.var]
        paths, namespaces = xpaths([conjunct])
        for tree in trees:
            expected: dict[str, set[tuple[int, str | None]]] = {name: set() for name in names}
            for name, (element, place) in chain.from_iterable(each_binding(PreparedNode(pattern), tree, {})):
                expected[name].add((element, tree.attribute(element, place)[0] if place else None))
            for name, path in zip(names, paths, strict=True):
                nodes = etree.XPath(path, namespaces=namespaces)(tree.root)
                assert isinstance(nodes, list)
                assert {place_of(node, tree) for node in nodes} == expected[name]
                found += len(expected[name])
    assert found > 100


def place_of(node, tree):
    """The number of an element, or that of an attribute's element and the attribute's name."""
    if isinstance(node, etree._Element):
        return tree.number[node], None
    return tree.number[node.getparent()], node.attrname


@pytest.mark.parametrize("kind", OPERATORS)
def test_absences_are_measured_beside_own_channels(kind, tmp_path):
    cases = [AbsenceCase(kind, number, 1, 100) for number in (1, 10, 100)]
    lines = absence.beside_own_channels(list(map(absence.measure_absence, cases)))
    assert lines[0].details["over_own_channels"] == lines[0].seconds / lines[2].seconds
    assert lines[2].baseline is None and lines[1].baseline == "own channels"
    assert lines[0].details["absences"] == (kind == "first")
    assert lines[2].details["absences"] == (100 if kind == "first" else 79)
    if kind == "first":
        absence.draw_absence(lines, tmp_path / "it")
        assert "documents a second of CPU" in (tmp_path / "it.svg").read_text()
    case = AbsenceCase(kind, 8, 1, 120)
    of, found = case.channel_of(), []
    for number in range(120):
        others = [other for other in range(120) if of[other] == of[number] and 0 < abs(other - number) <= 20]
        partners = {"silent": any(other > number for other in others), "first": any(o < number for o in others)}
        if not partners.get(kind, bool(others)) and (kind == "first" or number + 20 < 119):
            found.append(number)
    assert found and absence.expected_absences(case) == found, "the definition"


@pytest.mark.parametrize("kind", some(fanout.FANOUT_KINDS, "same", "keywords", "chains"))
def test_each_kind_of_queries_gets_what_they_get_alone(kind, tmp_path):
    number = 1_000 if kind == "keywords" else 4  # there each word is asked for
    cases = [fanout.FanoutCase(kind, queries, pairs=5) for queries in (1, number)]
    one, many = fanout.beside_one(list(map(fanout.measure_fanout, cases)))
    assert (one.rows, many.rows) == (5, 20) if kind != "keywords" else many.rows == 5
    assert many.baseline == "one query" and one.baseline is None
    assert many.details["over_one_query"] == many.seconds / one.seconds
    if kind == "same":
        fanout.draw_fanout([one, many], tmp_path / "it")
        assert "seconds of CPU to commit" in (tmp_path / "it.svg").read_text()


def test_near_is_measured_beside_equality(tmp_path):
    alike = [NearCase(EQUALITY, 2, 200, alike=one, summaries=one[0] == "s") for one in ("near 0.6", "similar 0.12")]
    equal, near_ones, those = NearCase(EQUALITY, 2, 200), NearCase("near 0.6", 2, 200), alike[0]
    lines = near.beside_equality(list(map(near.measure_near, (equal, near_ones, those))))
    assert [line.baseline for line in lines] == [None, EQUALITY, None]
    assert lines[1].details["of_alike"] == lines[2].seconds / lines[1].seconds
    assert lines[1].speedup == lines[0].seconds / lines[1].seconds
    assert all(line.rows == 2 * int(str(line.details["pairs"])) > 0 for line in lines)
    assert lines[0].rows < lines[1].rows <= lines[2].rows
    near.draw_near(lines, tmp_path / "it")
    assert "near ones made equal" in (tmp_path / "it.svg").read_text()
    one, several = near.measure_keywords(200)
    assert (several.baseline, several.rows >= one.rows > 0) == ("one query", True)
    path, texts = tmp_path / "some.tsv", ("Storm hits the coast", "The storm hits the coast")
    path.write_text("10\t{}\n20\t{}\n30\tRain\n".format(*texts), encoding="utf-8")
    given = [Headline(text, time) for text, time in zip(texts, (10_000_000, 20_000_000), strict=True)]
    assert near.read_headlines(path, 2) == given
    line = near.measure_near(NearCase("near 0.7", 1, 100, path))
    assert (line.rows, line.details["compared"], line.case["source"]) == (1, 2 / 3, "some.tsv")
    line = near.measure_near(NearCase("similar 0.12", 2, 200, summaries=True))
    assert line.rows > near.measure_near(alike[1]).rows // 3 > 0 < line.number("compared")


@pytest.mark.parametrize("format", some(feeds.FORMATS, "rss"))
def test_a_case_of_feeds_accounts_for_all_the_time(format):
    found = feeds.measure_feeds({"format": format}, feeds.feed_files(format, 60, 200), 1)
    assert found.rows == 60
    shares = found.details["shares"]
    assert isinstance(shares, dict) and list(shares) == ["nh3", "lxml", "ours"]
    assert sum(shares.values()) == pytest.approx(1) and all(0 < share < 1 for share in shares.values())
    feeds.check_formats(50, 300)


def test_pages_of_items_are_measured():
    lines = list(feeds.measure_items(300, 1))
    newest, many, old, none, one = (line.rows for line in lines)
    assert (newest, none, one) == (50, 0, 1) and many > old > 0 and all(line.over_floor for line in lines)


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=[soak, pytest.mark.spark])])
def test_a_crawl_is_measured_and_written(engine, tmp_path):
    command = ["bench", "feeds", "--engine", engine, "--documents", tmp_path]
    result = mmqjp(*command)
    assert result.exit_code == 1
    assert result.stderr == f"mmqjp: error: {tmp_path}: there are no feeds; name a directory of them\n"
    for number, data in enumerate(feeds.feed_files("atom", 40, 100)):
        (tmp_path / f"{number}.xml").write_bytes(data)
    out = tmp_path / "out.json"
    result = mmqjp(*command, "--json", out)
    assert result.exit_code == 0, result.stderr
    line = json.loads(out.read_text())
    assert (line["bench"], line["rows"], line["case"]["files"], line["case"]["format"]) == ("feeds", 40, 2, "crawl")
    if engine == "spark":
        assert (line["engine"], line["baseline"], line["floor"]) == ("spark", "one core", None)
    assert ("over one core" if engine == "spark" else "nh3") in result.stdout


@soak
def test_other_documents_on_spark_are_an_error(spark, monkeypatch):
    monkeypatch.setattr(feeds, "read_documents", lambda *arguments, **options: [])
    with pytest.raises(AssertionError, match="do not give the same documents"):
        feeds.measure_feeds_on_spark({"format": "rss"}, feeds.feed_files("rss", 20, 0), 1)


@pytest.mark.parametrize("kind", some(registration.SCRIPT_KINDS, "different", "windows", *registration.INVALID))
def test_a_script_gives_what_its_queries_give_one_by_one(kind):
    assert len(set(registration.named_queries(kind, 300))) == 300
    if kind in registration.INVALID:
        with pytest.raises(XsclErrors) as caught:
            parse_script(registration.named_script(kind, 300))
        assert len(caught.value.errors) == (300 if kind == "all-wrong" else 3)
        return
    line = registration.measure_rate((kind, 20))
    assert line.rows == 20
    # The documents have nothing that the queries of the expert ask for.
    assert bool(line.details["compared_outputs"]) == (kind != "expert")


@soak
def test_registration_of_commands_patterns_texts_and_stores(capsys):
    whats = [line.case["what"] for line in registration.measure_commands("windows", 20)]
    assert whats == ["check", "run", "run, new state", "run, that state"]
    assert [line.rows for line in registration.measure_commands("all-wrong", 5)] == [5]
    registration.report_registration(20, 60)
    printed = capsys.readouterr().out
    assert "60 subscriptions to 20 distinct patterns" in printed
    assert "the document after it, through the engine" in printed and "texts that differ in tags, opened" in printed


def test_the_outputs_of_a_sample_are_those_alone():
    line = whole_path.measure_whole_path(whole_path.WholePathCase(10, 30, 3, 1), "duckdb")
    assert line.baseline == "sequential" and line.extrapolated and line.speedup and line.over_floor


def test_a_workload_is_written_to_files(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["workload", "--items", "3", "--queries", "40", "--out", str(tmp_path)])
    write_workload()
    assert len((tmp_path / "items.jsonl").read_text("utf-8").splitlines()) == 3
    assert len(parse_script((tmp_path / "queries.xscl").read_text("utf-8")).queries) == 40
    assert queries(40) != queries(40, 3)
    assert {one.kind for one in subscriptions(40)} == {"title", "link", "author", "retitled", "recording"}
    assert {one.kind for one in parameters(40)} == {"title", "author", "mention"}
    assert subscriptions(40) == subscriptions(50)[:40] and parameters(40) == parameters(50)[:40]
    for asked in (subscriptions(40), parameters(40)):
        assert len(parse_script(script_of(asked)).queries) == 40


def test_each_kind_of_subscription_gets_lines(tmp_path):
    asked, documents = parameters(600), list(items(1500))
    expert = whole_path.Expert(asked, tmp_path / "lines")
    expert.process(documents[:700])
    expert.process(documents[700:])
    expert.close()
    kinds = {one.name: one.kind for one in asked}
    found = list(whole_path.compared_lines(tmp_path / "lines"))
    assert {kinds[str(line[0])] for line in found} == {"title", "author", "mention"}
    assert len(found) == len(set(found))


@pytest.mark.parametrize("variant", some(VARIANTS, "near", "once"))
def test_the_engine_and_the_expert_write_the_same_lines(variant):
    assert whole_path.measure_expert(replace(EXPERT, variant=variant), rounds=1)[0].rows > 100


def test_the_command_expert_prints_a_table_and_writes_lines(tmp_path, monkeypatch, capsys):
    measure = whole_path.measure_expert

    def small(case, engine, plan):
        return measure(replace(case, items=500, singles=5), engine, plan, 1)

    monkeypatch.setattr(whole_path, "measure_expert", small)
    out = tmp_path / "lines.json"
    options = ["--queries", "5", "--quick", "--json", str(out), "--plot", str(tmp_path / "it")]
    monkeypatch.setattr(sys, "argv", ["bench", *options])
    whole_path.bench_expert()
    assert "over expert" in capsys.readouterr().out
    line = json.loads(out.read_text("utf-8"))
    assert line["case"]["queries"] == 5 and line["over_expert"] == line["seconds"] / line["expert"]
    assert "by hand" in (tmp_path / "it.svg").read_text()


LATENCY = services.LatencyCase(500, before=150, at_once=30, idle=6, half=30)
SERVE = services.ServeCase(60, outputs=300, rate=20, turns=1, files=1, documents=150, hostile=True)
PAGES = {"/", "/?search=", "/q/NAME", "/o/ID", "/f/KEY/NAME.atom", "/live", "/new", "/feeds", "/engine", "/sinks"}
PAGES |= {"/api/v1/sql", services.HOSTILE}


@soak
def test_a_service_that_is_told_of_files_gives_the_lines_of_a_batch_run():
    """The trigger is longer than the benchmark waits: only the watcher makes the service look."""
    idle, half = services.measure_latency(replace(LATENCY, trigger="10h"))
    assert (idle.case["load"], idle.case["documents"], half.case["load"]) == ("idle", 6, "half")
    for line in (idle, half):
        assert 0 < line.rows <= 30
        percentiles = [float(str(line.details[name])) for name in ("p50_ms", "p95_ms", "p99_ms")]
        assert percentiles[0] > 0 and percentiles == sorted(percentiles)


def test_a_service_that_cannot_start_is_an_error(tmp_path):
    options = ["--engine", "duckdb", "--state", tmp_path]
    with (
        services.RunningService(services.ServiceFiles(tmp_path), options) as service,
        pytest.raises(services.ServiceFailed, match="status 2"),
    ):
        service.wait_until_ready(60)


@soak
def test_there_is_a_line_for_the_engine_and_for_each_page(monkeypatch, tmp_path):
    engine, *pages = services.measure_serve(SERVE, tmp_path / "kept")
    if at_length():
        monkeypatch.setattr(services, "_fill", None)
        again, *_ = services.measure_serve(SERVE, tmp_path / "kept")
        assert again.rows == engine.rows, "it begins with the same store and documents"
    assert engine.case["page"] == "" and engine.baseline == "nobody visits" and engine.rows >= 300
    assert {str(line.case["page"]) for line in pages} <= PAGES
    assert all(0 < line.number("p50_ms") <= line.number("p95_ms") for line in pages)


@soak  # they run the whole benchmark
def test_other_lines_or_pages_are_an_error(monkeypatch):
    numbers = count()
    monkeypatch.setattr(services, "_line_ids", lambda lines: next(numbers))
    with pytest.raises(AssertionError, match="different lines"):
        services.measure_latency(LATENCY)
    other = httpx.Response(200, json={"outputs": [{"id": "another"}]})
    monkeypatch.setattr(services.Pages, "_get", lambda pages, path: other)
    with pytest.raises(AssertionError, match="shows other outputs"):
        services.measure_serve(SERVE)


FEED = rss.RssCase(60, 20, 40)
EXPERT, FLAT = whole_path.ExpertCase(600, items=700, batch=700, singles=1), replace(technical.TWO_LEVEL, queries=30)
BESIDE = patterns_peers.PatternPeersCase("first after", 3, 400, "expert")
ONCO = patterns_windows.WindowsCase("Ponco", "Ponco", "onco", 800, window=20)
rows_of, window_matches = stage1_workload.rows_of, patterns_windows.window_matches
feed_files, script, expected_digests = feeds.feed_files, registration.named_script, state.expected_digests


def losing(lost):
    """A join that loses the first `lost(n)` rows of its n-th result."""
    numbers = count()

    def join(*arguments, **keywords):
        found = joins.timed_join(*arguments, **keywords)
        return replace(found, table=found.table.slice(lost(next(numbers))))

    return join


CASES = [
    (absence, "expected_absences", lambda case: [], "other outputs",
     lambda: absence.measure_absence(absence.AbsenceCase("first", 3, 1, 50))),
    (fanout, "_alone", lambda *case: [], "gets something else alone",
     lambda: fanout.measure_fanout(fanout.FanoutCase("same", 2, pairs=3))),
    (registration, "named_script", lambda kind, number: script(kind, number - 1), "if they are registered one by one",
     lambda: registration.compare_registrations("names")),
    (near, "expected_pairs", lambda *given: set(), "other pairs than sets give",
     lambda: near.measure_near(near.NearCase("near 0.6", 1, 300))),
    (feeds, "feed_files", lambda format, *rest: feed_files("rss", 20, 0)[: format == "rss"], "the same entries",
     lambda: feeds.check_formats(20, 0)),
    (stage1, "rows_of", lambda batch, groups: (rows_of(batch, groups), id(groups)), "the shape cache errs",
     lambda: stage1.measure_attack(stage1.AttackCase("fields", "default"), 3, 1)),
    (technical, "_VIEWS", technical._VIEWS | {"r_r": f"{technical._VIEWS['r_r']} LIMIT 0"}, "rows over the views",
     lambda: technical.measure_split(FLAT, "duckdb", 1)),
    (technical, "timed_join", losing(lambda number: 1), "gets other rows than it does alone",
     lambda: technical.measure_technical(FLAT, "duckdb", PLANS[:1], rounds=1)),
    pytest.param(technical, "timed_join", losing(lambda number: number), f"{PLANS[1]} gave other rows",
                 lambda: technical.measure_technical(FLAT, "duckdb", PLANS[:2], rounds=1), marks=soak),
    pytest.param(rss, "timed_join", losing(lambda number: 1), "gets other rows than it does alone",
                 lambda: rss.measure_rss(FEED, "duckdb", ["basic"], 1, FEED.queries), marks=soak),
    (state, "expected_digests", lambda work, size, *rest: expected_digests(work, size + 1, *rest), "other rows",
     lambda: state.measure_state(500)),
    (whole_path, "script_of", lambda asked: "FROM S//nothing;\n" * len(asked), "write different lines",
     lambda: whole_path.measure_expert(EXPERT, rounds=1)),
    (patterns_peers, "sql_rows", lambda *rest: np.zeros((1, 4), np.int64), "SQL, rank has other rows",
     lambda: list(patterns_peers.measure_pattern_peers(BESIDE, sys.executable, 1))),
    (patterns_synthetic, "match_by_hand", lambda *rest: {(0, 0, 0)}, "has something else alone",
     lambda: list(patterns_synthetic.measure_synthetic(patterns_synthetic.SyntheticCase("Filter", 2, 50), False, 1))),
    (patterns_windows, "window_matches", lambda *case: set() if case[2] == "fpc" else window_matches(*case),
     "fpc has other matches",
     lambda: list(patterns_windows.measure_windows(ONCO))),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "wrong", "message", "measure"), CASES, ids=lambda one: str(one)[:20])
def test_a_difference_of_two_ways_is_an_error(module, name, wrong, message, measure, monkeypatch):
    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(AssertionError, match=message):
        measure()


SMALL = peers.PeersCase(3, items=600, batch=300, last=100, rounds=1)
ROWS: set[peer_protocol.WishRow] = {("q1", 3, 8), ("q2", 3, 9), (peers.ADDED, 2, 7), (peers.ADDED, 3, 9)}


def installed():
    """The peers with this interpreter. Spark is always there."""
    marks = {"spark": [pytest.mark.spark, soak]}
    return [
        pytest.param(name, marks=marks.get(name, []))
        for name, system in peers.SYSTEMS.items()
        if name != "mmqjp" and not system.lacking(sys.executable)
    ]


@pytest.mark.parametrize("queries", [1, pytest.param(30, marks=soak)])
@pytest.mark.parametrize("name", installed())
def test_a_peer_finds_our_rows(name, queries, monkeypatch):
    monkeypatch.setattr(peers, "EACH", 0)
    case = replace(SMALL, queries=queries)
    ours, theirs = peers.measure_peers(case, dict.fromkeys(("mmqjp", name), sys.executable))
    assert ours.rows > 0 and ours.engine == "mmqjp" and theirs.engine == name
    for line in (ours, theirs):
        assert {"start", "items_a_second", "resident_mib", "added"} <= line.details.keys()


@soak
def test_our_rows_are_those_of_a_program_without_joins(tmp_path):
    work = peers.prepare_peers(replace(SMALL, queries=30), tmp_path)
    found = peers.run_peer(peers.SYSTEMS["mmqjp"], work, tmp_path).rows
    assert work.added is not None
    asked = [*work.wishes, work.added]
    assert found == set(by_hand(list(items(SMALL.items + SMALL.last)), asked))
    assert any(row[0] == peers.ADDED and row[2] >= SMALL.items for row in found)


def by_hand(documents, asked):
    """The rows, by comparing each two items."""
    fields = [described(document) for document in documents]
    met = {"title": ("title", "title"), "author": ("author", "author"), "mention": ("item_url", "href")}
    for right, later in enumerate(fields):
        for left, earlier in enumerate(fields[:right]):
            for wish in asked:
                one, other = met[wish.kind]
                near = 0 < documents[right].t0 - documents[left].t0 <= wish.width
                if near and wish.channel in earlier["channel_url"] and earlier[one] & later[other]:
                    yield wish.name, left, right


def described(document):
    root = etree.fromstring(document.xml_bytes())
    names = ("channel_url", "title", "author", "item_url")
    found = {name: {node.text for node in root.findall(name)} for name in names}
    return {**found, "href": {node.get("href") for node in root.findall("link")}}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (ROWS - {("q1", 3, 8)}, r"spark and mmqjp find different rows: 1 of 3 are missing, 0 are too many.*'q1', 3, 8"),
        (ROWS | {("q2", 1, 2)}, r"0 of 3 are missing, 1 are too many, such as \('q2', 1, 2\)"),
        (ROWS - {(peers.ADDED, 3, 9)}, "1 of 3 are missing"),
    ],
)
def test_a_wrong_row_is_an_error(found, message, monkeypatch):
    peers.compare_rows(ROWS, ROWS - {(peers.ADDED, 2, 7)}, "spark", 8)  # an earlier row of an added query
    with pytest.raises(peers.OtherRows, match=message):
        peers.compare_rows(ROWS, found, "spark", 8)

    def lying(system, work, batches, python):
        rows = ROWS if system.name == "mmqjp" else found
        return peers.PeerRun(frozenset(rows), peer_protocol.PeerReport(), 0)

    monkeypatch.setattr(peers, "run_peer", lying)
    with pytest.raises(peers.OtherRows, match="pathway and mmqjp find different rows"):
        peers.measure_peers(replace(SMALL, items=8), dict.fromkeys(("mmqjp", "pathway"), sys.executable))


def test_what_is_not_installed_is_left_out_and_said(monkeypatch, capsys):
    monkeypatch.setitem(peers.SYSTEMS, "pathway", replace(peers.SYSTEMS["pathway"], needs="no_such_package"))
    given = {"mmqjp": sys.executable, "pathway": sys.executable, "flink": "/nowhere/python"}
    assert peers.installed_peers(given) == {"mmqjp": sys.executable}
    said = capsys.readouterr().err
    assert f"pathway is left out: no_such_package is not installed for {sys.executable}\n" in said
    assert "flink is left out: /nowhere/python cannot be run: No such file" in said


def test_a_peer_that_fails_or_takes_too_long_is_an_error(tmp_path):
    work = peers.prepare_peers(SMALL, tmp_path)
    with pytest.raises(peers.PeerFailed, match=r"(?s)broken ended with status 1: .*no_such_peer"):
        peers.run_peer(peers.PeerSystem("broken", "no_such_peer", "sys", uses_ours=True), work, tmp_path)
    with pytest.raises(peers.PeerFailed, match="mmqjp ended with more than 0 s"):
        peers.run_peer(peers.SYSTEMS["mmqjp"], work, tmp_path, seconds=0.0)


def test_a_query_that_gets_rows_must_be_found_and_few_are_also_tried_with_a_join_each():
    found = [f"{one.name}, {one.form}" for one in peers.contenders(1, ["mmqjp", "spark"])]
    assert found == ["mmqjp, joined", "spark, joined", "spark, each"]
    assert len(peers.contenders(11, ["mmqjp", "spark"])) == 2
    with pytest.raises(peers.NothingToAdd, match="take more"):
        peers._channel_to_add(list(items(5)), 4)


def test_work_is_read_as_it_was_written_and_shredded_rows_do_not_repeat(tmp_path):
    wish = peer_protocol.Wish("q1", "title", "https://a.example/", HOUR)
    work = peer_protocol.PeerWork([wish, replace(wish, kind="mention")], {"title": 96}, 7, ["b0"], "each", wish, 1.5)
    work.write(tmp_path)
    assert peer_protocol.read_work(tmp_path) == work and work.kinds == ["title", "mention"]
    xml = "<item><channel_url>c</channel_url><author>x</author><author>x</author><link href='u'/></item>"
    peers.shred_items([Document("item-4", xml, time=9)], 4, tmp_path)
    assert (tmp_path / "authors.csv").read_text("utf-8") == "doc,t,channel,author\n4,9,c,x\n"
    assert (tmp_path / "links.csv").read_text("utf-8") == "doc,t,href\n4,9,u\n"


@pytest.mark.parametrize("header", [True, False])
def test_marks_come_after_the_rows_of_a_batch(tmp_path, header):
    peers.prepare_peers(SMALL, tmp_path)
    watched = peer_protocol.WatchedDirectories(tmp_path / "in", header=header)
    watched.prepare(tmp_path / "batch0000", ["title", "mention"], 0)
    assert watched.publish() == [str(peer_protocol.MARK), str(peer_protocol.MARK + 2)]
    watched.put_wishes("first", peer_protocol.mark_wishes(["title"]))
    lines = (watched.path("items") / "0001.csv").read_text("utf-8").splitlines()
    assert lines[0].startswith("doc,t" if header else "0,")
    numbers = [int(line.split(",")[0]) for line in lines[header:]]
    # A link is the second mark of a mention.
    assert numbers == [*range(SMALL.batch), *(peer_protocol.MARK + n for n in range(3))]
    assert (watched.path("wishes") / "first.csv").read_text("utf-8").endswith("mark-title,title,mark,1000000\n")
    out = tmp_path / "rows"
    growing = peer_protocol.GrowingRows(out)
    out.write_bytes(b"q1,3,8\nmark,9000000000,9000000001\n")
    before = growing.wait("9000000000")
    out.open("ab").write(b"q1,4,8\n")
    assert growing.wait("q1,4") >= before


def test_memory_and_time_are_those_of_all_descendants():
    if not Path("/proc/self/stat").exists():
        pytest.skip("the system does not say")
    text = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        both = peer_protocol.resident_bytes(process.pid)
        alone = int(Path(f"/proc/{process.pid}/statm").read_text("utf-8").split()[1]) * 4096
        assert both > 1.5 * alone > 0
        process.communicate(b"\n")
    assert peer_protocol.resident_bytes(process.pid) == 0
    assert peer_protocol.processor_seconds(1 << 30) == 0


def test_a_peer_ends_when_the_benchmark_does():
    text = "from bench import peer_protocol as p; import threading; p.end_with_parent(); threading.Event().wait()"
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == -signal.SIGKILL


@soak
def test_the_command_prints_a_table_and_writes_lines(tmp_path):
    out = tmp_path / "lines.json"
    nowhere = ["--peer", "flink", "--flink-python", "/nowhere", "--peer", "pathway", "--pathway-python", "/nowhere"]
    arguments = ["-m", "mmqjp", "bench", "peers", "--quick", "--items", "600", "--queries", "3", "--json", str(out)]
    command = [sys.executable, *arguments, *nowhere]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "adding a query" in done.stdout and done.stderr.count("is left out") == 2
    assert json.loads(out.read_text("utf-8"))["case"]["queries"] == 3
