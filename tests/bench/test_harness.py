import csv
import json
import os
import sys
from dataclasses import replace
from threading import Lock

import pytest

from bench import harness
from bench.harness import Line, columns
from mmqjp.commands.bench import MODULES
from tests.support.cli import mmqjp

LINE = Line("it", {"queries": 7}, "duckdb", "basic", 1.0, 3, "sequential", 7400.0, 0.5, True, {"ms": 2.5})


@pytest.fixture(autouse=True)
def arguments(monkeypatch):
    """The command sets the arguments of the program, for the benchmark to find."""
    monkeypatch.setattr(sys, "argv", sys.argv)


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


SHARED = [
    (["--bogus"], "unrecognized arguments: --bogus"),
    (["--engine", "sqlite"], "invalid choice: 'sqlite'"),
    (["--plan", "best"], "invalid choice: 'best'"),
    (["--queries", "10,ten"], "'10,ten' is not some numbers separated by commas"),
    (["--queries", "0"], "'0' is not some numbers"),
    (["--json", "nowhere/x.json"], "there is no directory 'nowhere'"),
]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        *(("technical", *one) for one in SHARED),
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
    lines = [LINE, replace(LINE, floor=None, details={"more": 1})]
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
