"""`mmqjp bench technical`, `rss` and `realistic` as commands, with few and small cases."""

import csv
import json
import sys

import pytest

from bench import realistic, rss, technical
from tests.support.cli import mmqjp as call

NAMES = ("technical", "rss", "realistic")
pytestmark = pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")  # they run more than once here


@pytest.fixture(autouse=True)
def arguments(monkeypatch):
    """The command sets the arguments of the program, for the benchmark to find."""
    monkeypatch.setattr(sys, "argv", sys.argv)


@pytest.mark.parametrize("name", NAMES)
def test_help(name):
    result = call("bench", name, "--help")
    assert result.exit_code == 0
    options = ("--engine", "--plan", "--queries", "--quick", "--csv", "--json", "--plot")
    assert [option for option in options if option not in result.stdout] == []


def test_the_benchmarks_are_named_in_the_help_of_bench():
    text = call("bench", "--help").stdout
    assert [name for name in NAMES if f"  {name} " not in text] == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--engine", "sqlite"], "invalid choice: 'sqlite'"),
        (["--plan", "best"], "invalid choice: 'best'"),
        (["--queries", "10,ten"], "'10,ten' is not some numbers separated by commas"),
        (["--queries", "0"], "'0' is not some numbers"),
        (["--json", "nowhere/x.json"], "there is no directory 'nowhere'"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_measured(name, options, message):
    result = call("bench", name, *options)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_what_a_run_leaves(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(technical, "ROUNDS", {"duckdb": 1})
    monkeypatch.setattr(rss, "STATE", 60)
    monkeypatch.setattr(rss, "BATCH", 20)
    monkeypatch.setattr(realistic, "ITEMS", 300)
    monkeypatch.setattr(realistic, "ROUNDS", 1)
    prefix = tmp_path / name
    kept = [f"--csv={prefix}.csv", f"--json={prefix}.json", f"--plot={prefix}"]
    main = {"technical": technical.main, "rss": rss.main, "realistic": realistic.main}[name]
    monkeypatch.setattr(sys, "argv", ["bench", "--queries=12,20", "--plan=basic", *kept])
    main()
    lines = [json.loads(line) for line in prefix.with_suffix(".json").read_text("utf-8").splitlines()]
    rows = list(csv.DictReader(prefix.with_suffix(".csv").open(encoding="utf-8")))
    assert len(lines) == len(rows) > 0
    assert {line["case"]["queries"] for line in lines} >= {12, 20}
    assert "basic" in capsys.readouterr().out
    assert all(prefix.with_suffix(f".{kind}").stat().st_size for kind in ("svg", "png"))
