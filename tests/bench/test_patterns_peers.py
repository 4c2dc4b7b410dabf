"""The benchmarks of event patterns beside Flink and SQL, and of double tops, with tiny cases."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import patterns, patterns_double_top, patterns_peer_ours, patterns_peers
from bench.patterns_double_top import closes
from bench.patterns_peer_task import TEMPLATES, Task, ranges, read_rows, read_task
from bench.patterns_peers import FLINK, OURS, Case, cases, events, measure
from bench.patterns_thesis import lowered

SMALL = Case("first after", 4, 600, "expert")


@pytest.mark.parametrize("template", TEMPLATES)
def test_an_expert_has_our_rows(template, monkeypatch):
    monkeypatch.setattr(patterns_peers, "KEYS", 3)
    ours, *theirs = measure(replace(SMALL, template=template), sys.executable, 1)
    assert ours.rows > 20 and ours.baseline is None
    assert theirs and all(line.details["over_ours"] for line in theirs)


@pytest.mark.parametrize("template", TEMPLATES)
def test_rows_are_those_of_a_loop(template, monkeypatch):
    monkeypatch.setattr(patterns_peers, "KEYS", 2)
    case = replace(SMALL, template=template, events=200)
    task, given = Task(template, ranges(case.queries)), events(case)
    streams = patterns_peer_ours.streams(given)
    ready = patterns_peer_ours.ready(lowered(patterns_peer_ours.statements(task), streams), streams)
    found = set(map(tuple, patterns_peer_ours.answered(ready, 30).tolist()))
    assert found == set(_by_loop(task, given.to_pylist())) != set()


def _by_loop(task, rows):
    for number, (low, high) in enumerate(task.ranges):
        for first in rows:
            if first["kind"] != "A" or not low <= first["x"] < high:
                continue
            later = [row for row in rows if row["t"] > first["t"] and row["k"] == first["k"]]
            if task.template == "first after":
                after = [row for row in later if row["kind"] == "B" and row["x"] > first["x"]]
                if after:
                    yield number, first["id"], after[0]["id"], 0
                continue
            latest = first
            for row in later:
                if row["kind"] == "B":
                    continue
                if row["x"] <= latest["x"]:
                    if latest is not first:
                        yield number, first["id"], latest["id"], row["id"]
                    break
                latest = row


@pytest.mark.soak
def test_flink_is_a_program_beside_ours(monkeypatch):
    # Where Flink is not installed, ours stands for it: what is tested is how programs are run and compared.
    if FLINK.lacking(sys.executable):
        monkeypatch.setattr(patterns_peers, "FLINK", replace(OURS, name="flink"))
    ours, flink = measure(replace(SMALL, beside="flink"), sys.executable, 1)
    assert flink.rows == ours.rows > 0 and ours.seconds > 0 and flink.details["over_ours"]


def test_other_rows_are_an_error(monkeypatch):
    monkeypatch.setattr("bench.patterns_peer_sql.answered", lambda *rest: np.zeros((1, 4), np.int64))
    with pytest.raises(AssertionError, match="SQL, rank has other rows"):
        list(measure(SMALL, sys.executable, 1))


def test_without_flink_it_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr(patterns_peers, "FLINK", replace(FLINK, needs="no_such_package"))
    monkeypatch.setattr(sys, "argv", ["bench", "peers", "--quick", "--queries", "2", "--events", "200"])
    patterns.main()
    printed = capsys.readouterr()
    assert "Flink is left out" in printed.err and "SQL, arg_min" in printed.out
    assert {one.beside for one in cases(None, None, flink=True, quick=False)} == {"expert", "flink"}


def test_a_task_is_read_as_it_was_written(tmp_path: Path):
    task = Task("rising runs", ranges(3))
    task.write(tmp_path)
    assert read_task(tmp_path) == task
    (tmp_path / "rows.csv").write_text("0,1,2,3\n")
    assert read_rows(tmp_path) == {(0, 1, 2, 3)}


@pytest.mark.parametrize("smoothing", [1, 2])
def test_all_forms_of_double_tops_are_those_of_a_loop(smoothing, monkeypatch):
    monkeypatch.setattr(patterns_double_top, "VOLATILITY", 0.2)
    case = patterns_double_top.Case(smoothing, 3_000)
    lines = list(patterns_double_top.measure(case, 1))
    assert len({line.plan for line in lines}) == 8 and {line.rows for line in lines} == {_double_tops(case)} != {0}


def _double_tops(case):
    days, companies, prices = closes(case)
    found = 0
    for company in range(patterns_double_top.COMPANIES):
        price = prices[companies == company]
        assert np.all(np.diff(days[companies == company]) == 1)
        at = [i for i in range(1, len(price) - 1) if (price[i] - price[i - 1]) * (price[i + 1] - price[i]) < 0]
        for a, b, c, d, e in zip(*(price[at[k : len(at) - 4 + k]] for k in range(5)), strict=True):
            low = b > a and b >= 1.2 * a and 0.9 * a <= c <= 1.1 * a
            found += bool(low and 0.9 * b <= d <= 1.1 * b and e <= a)
    return found


def test_the_command_prints_double_tops(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "double-top", "--quick", "--events", "500"])
    patterns.main()
    assert "SQL, self-joins" in capsys.readouterr().out
