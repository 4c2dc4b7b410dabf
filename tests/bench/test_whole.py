"""Benchmarks of the whole engine and of programs, over tiny cases."""

import json
import sys
from dataclasses import replace
from itertools import count

import httpx
import numpy as np
import pytest

from bench import (
    absence,
    fanout,
    feeds,
    near,
    patterns_peers,
    patterns_synthetic,
    patterns_windows,
    registration,
    services,
    stage1,
    stage1_workload,
    technical,
    whole_path,
)
from bench.absence import OPERATORS, AbsenceCase
from bench.near import EQUALITY, Headline, NearCase
from bench.workload import items, parameters, queries, script_of, subscriptions, write_workload
from tests.generate.seeds import at_length
from tests.support.cli import mmqjp
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
    cases = [NearCase(EQUALITY, 2, 200), NearCase("0.6", 2, 200), NearCase(EQUALITY, 2, 200, alike="0.6")]
    lines = near.beside_equality(list(map(near.measure_near, cases)))
    assert [line.baseline for line in lines] == [None, EQUALITY, None]
    assert lines[1].details["of_alike"] == lines[2].seconds / lines[1].seconds
    assert lines[1].speedup == lines[0].seconds / lines[1].seconds
    assert all(line.rows == 2 * int(str(line.details["pairs"])) > 0 for line in lines)
    assert lines[0].rows < lines[1].rows <= lines[2].rows
    near.draw_near(lines, tmp_path / "it")
    assert "near ones made equal" in (tmp_path / "it.svg").read_text()
    path, texts = tmp_path / "some.tsv", ("Storm hits the coast", "The storm hits the coast")
    path.write_text("10\t{}\n20\t{}\n30\tRain\n".format(*texts), encoding="utf-8")
    given = [Headline(text, time) for text, time in zip(texts, (10_000_000, 20_000_000), strict=True)]
    assert near.read_headlines(path, 2) == given
    line = near.measure_near(NearCase("0.7", 1, 100, path))
    assert (line.rows, line.details["sharing_longest"], line.case["source"]) == (1, 1 / 3, "some.tsv")


@pytest.mark.parametrize("format", some(feeds.FORMATS, "rss"))
def test_a_case_of_feeds_accounts_for_all_the_time(format):
    found = feeds.measure_feeds({"format": format}, feeds.feed_files(format, 60, 200), 1)
    assert found.rows == 60
    shares = found.details["shares"]
    assert isinstance(shares, dict) and list(shares) == ["nh3", "lxml", "ours"]
    assert sum(shares.values()) == pytest.approx(1) and all(0 < share < 1 for share in shares.values())
    feeds.check_formats(50, 300)


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
    monkeypatch.setattr(services.Pages, "_get", lambda pages, path: httpx.Response(200, json=SHOWN))
    with pytest.raises(AssertionError, match="shows other outputs"):
        services.measure_serve(SERVE)


SHOWN = {"outputs": [{"id": "another"}]}


EXPERT, FLAT = whole_path.ExpertCase(600, items=700, batch=700, singles=1), replace(technical.TWO_LEVEL, queries=30)
BESIDE = patterns_peers.PatternPeersCase("first after", 3, 400, "expert")
ONCO = patterns_windows.WindowsCase("Ponco", "Ponco", "onco", 800, window=20)
rows_of, window_matches = stage1_workload.rows_of, patterns_windows.window_matches
feed_files, script = feeds.feed_files, registration.named_script

CASES = [
    (absence, "expected_absences", lambda case: [], "other outputs",
     lambda: absence.measure_absence(absence.AbsenceCase("first", 3, 1, 50))),
    (fanout, "_alone", lambda *case: [], "gets something else alone",
     lambda: fanout.measure_fanout(fanout.FanoutCase("same", 2, pairs=3))),
    (registration, "named_script", lambda kind, number: script(kind, number - 1), "if they are registered one by one",
     lambda: registration.compare_registrations("names")),
    (near, "expected_pairs", lambda *given: set(), "other pairs than sets give",
     lambda: near.measure_near(near.NearCase("0.6", 1, 300))),
    (feeds, "feed_files", lambda format, *rest: feed_files("rss", 20, 0)[: format == "rss"], "the same entries",
     lambda: feeds.check_formats(20, 0)),
    (stage1, "rows_of", lambda batch, groups: (rows_of(batch, groups), id(groups)), "the shape cache errs",
     lambda: stage1.measure_attack(stage1.AttackCase("fields", "default"), 3, 1)),
    (technical, "_VIEWS", technical._VIEWS | {"r_r": f"{technical._VIEWS['r_r']} LIMIT 0"}, "rows over the views",
     lambda: technical.measure_split(FLAT, "duckdb", 1)),
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
