"""The benchmark beside a program written by hand, with tiny cases: both ways write the same lines."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import expert
from bench.expert import Case, compared_lines, measure
from bench.expert_workload import Expert, parameters, script
from bench.stage2_report import Line
from bench.workload import items
from xscl.parser import parse_script


@pytest.mark.parametrize("queries", [1, 60, pytest.param(600, marks=pytest.mark.soak)])
def test_both_ways_write_the_same_lines(queries: int):
    (line,) = measure(Case(queries, items=1500, batch=500, singles=20), rounds=1)
    assert line.rows > 0 or queries == 1
    assert line.details["over_expert"] == line.seconds / float(str(line.details["expert"]))


def test_subscriptions_are_of_three_kinds_and_can_be_registered():
    asked = parameters(300)
    assert {one.kind for one in asked} == {"title", "author", "mention"} and asked[:10] == parameters(10)
    assert len(parse_script(script(asked)).queries) == 300


def test_each_kind_of_subscription_gets_lines(tmp_path: Path):
    asked = parameters(600)
    documents = list(items(1500))
    expert = Expert(asked, tmp_path / "lines")
    expert.process(documents[:700])
    expert.process(documents[700:])
    expert.close()
    kinds = {one.name: one.kind for one in asked}
    found = list(compared_lines(tmp_path / "lines"))
    assert {kinds[str(line[0])] for line in found} == {"title", "author", "mention"}
    assert len(found) == len(set(found))


def test_a_difference_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bench.expert.script", lambda asked: "FROM S//nothing;\n" * len(asked))
    with pytest.raises(AssertionError, match="write different lines"):
        measure(Case(600, items=700, batch=700, singles=1), rounds=1)


def test_the_command_prints_a_table_and_writes_lines(tmp_path: Path, monkeypatch, capsys):
    def small(case: Case, engine: str, plan: str) -> list[Line]:
        return measure(replace(case, items=500, singles=5), engine, plan, rounds=1)

    monkeypatch.setattr(expert, "measure", small)
    out = tmp_path / "lines.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--queries", "5", "--quick", "--json", str(out)])
    expert.main()
    assert "over expert" in capsys.readouterr().out
    assert json.loads(out.read_text("utf-8"))["case"]["queries"] == 5
