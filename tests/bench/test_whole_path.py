import json
import sys
from dataclasses import replace

import pytest

from bench import whole_path
from bench.whole_path import Expert, ExpertCase, WholePathCase, compared_lines, measure_expert, measure_whole_path
from bench.workload import items, parameters, queries, script_of, subscriptions, write_workload
from xscl.parser import parse_script


def test_the_outputs_of_a_sample_are_those_alone():
    line = measure_whole_path(WholePathCase(10, 30, 3, 1), "duckdb")
    assert line.baseline == "sequential" and line.extrapolated and line.speedup and line.over_floor


def test_a_workload_is_written_to_files(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["workload", "--items", "3", "--queries", "40", "--out", str(tmp_path)])
    write_workload()
    assert len((tmp_path / "items.jsonl").read_text("utf-8").splitlines()) == 3
    assert len(parse_script((tmp_path / "queries.xscl").read_text("utf-8")).queries) == 40
    assert queries(40) != queries(40, 3)


@pytest.mark.parametrize(
    ("asked", "kinds"),
    [
        (subscriptions(40), {"title", "link", "author", "retitled", "recording"}),
        (parameters(40), {"title", "author", "mention"}),
    ],
)
def test_subscriptions_are_of_these_kinds_and_can_be_registered(asked, kinds):
    assert {one.kind for one in asked} == kinds and len(parse_script(script_of(asked)).queries) == 40
    assert subscriptions(40) == subscriptions(50)[:40] and parameters(40) == parameters(50)[:40]


@pytest.mark.parametrize("count", [60, pytest.param(600, marks=pytest.mark.soak)])
def test_both_ways_write_the_same_lines(count):
    (line,) = measure_expert(ExpertCase(count, items=1000, batch=500, singles=20), rounds=1)
    assert line.rows > 0
    assert line.details["over_expert"] == line.seconds / float(str(line.details["expert"]))


def test_each_kind_of_subscription_gets_lines(tmp_path):
    asked, documents = parameters(600), list(items(1500))
    expert = Expert(asked, tmp_path / "lines")
    expert.process(documents[:700])
    expert.process(documents[700:])
    expert.close()
    kinds = {one.name: one.kind for one in asked}
    found = list(compared_lines(tmp_path / "lines"))
    assert {kinds[str(line[0])] for line in found} == {"title", "author", "mention"}
    assert len(found) == len(set(found))


def test_the_command_prints_a_table_and_writes_lines(tmp_path, monkeypatch, capsys):
    def small(case, engine, plan):
        return measure_expert(replace(case, items=500, singles=5), engine, plan, rounds=1)

    monkeypatch.setattr(whole_path, "measure_expert", small)
    out = tmp_path / "lines.json"
    options = ["--queries", "5", "--quick", "--json", str(out), "--plot", str(tmp_path / "it")]
    monkeypatch.setattr(sys, "argv", ["bench", *options])
    whole_path.bench_expert()
    assert "over expert" in capsys.readouterr().out
    assert json.loads(out.read_text("utf-8"))["case"]["queries"] == 5
    assert "by hand" in (tmp_path / "it.svg").read_text()
