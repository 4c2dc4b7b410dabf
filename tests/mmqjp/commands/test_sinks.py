"""`mmqjp sinks` on a store that no service holds: what is listed, added, changed and refused, and what is told."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mmqjp.commands.manage_sinks import print_sink
from mmqjp.present.item import IN_UTC
from tests.generate.documents import SECOND
from tests.support.cli import mmqjp, printed, refused, write_documents, write_queries

HOOK = ("kind=webhook", "url=https://example.org/hook")
CONFIGURATION = """
[secrets]
slack = { file = "slack.url" }
[sinks.alerts]
kind = "webhook"
url = { secret = "slack" }
queries = ["book_*"]
[sinks.shell]
kind = "command"
command = ["COMMAND", "-c", "raise SystemExit(int(open('status').read()))"]
"""


@pytest.fixture
def state(story, monkeypatch):
    monkeypatch.chdir(story.parent)
    return Path("state")


@pytest.fixture
def configured(state):
    Path("mmqjp.toml").write_text(CONFIGURATION.replace("COMMAND", sys.executable))
    Path("slack.url").write_text("https://hooks.example.org/services/T0/s3cr3t")
    Path("slack.url").chmod(0o600)
    return state


def sinks(*arguments: str) -> str:
    text = printed("sinks", *arguments, "--state", "state")
    assert "s3cr3t" not in text
    return text


def error(*arguments: str, status: int = 1) -> str:
    message = refused("sinks", *arguments, "--state", "state", status=status)
    assert "s3cr3t" not in message
    return message


def shown(name: str) -> Any:
    return json.loads(sinks("show", name, "--json"))


def test_a_sink_is_added_changed_paused_and_removed(state):
    assert sinks("list") == "no sinks; mmqjp sinks add --help shows how to add one\n"
    assert sinks("list", "--json") == ""
    assert sinks("add", "alerts", *HOOK, "queries=book_*", "wait=30s") == "alerts: added\n"
    hook = {"kind": "webhook", "url": "https://example.org/hook"}
    assert shown("alerts").items() >= {
        "definition": hook | {"queries": "book_*", "wait": "30s"}, "state": "running", "acked": 2, "behind": 0,
        "file": None, "queries": ["book_*"], "to": "https://example.org/hook",
    }.items()  # fmt: skip
    sinks("set", "alerts", 'queries=["q2", "x"]', "wait=", "most=5")
    assert shown("alerts")["definition"] == hook | {"queries": ["q2", "x"], "most": 5}
    assert sinks("failed", "alerts") == "nothing: the sink has received, or will receive, all its outputs\n"
    assert json.loads(sinks("failed", "alerts", "--json")) == {"undelivered": [], "gaps": []}
    for do, done in (("pause", "paused"), ("resume", "resumed"), ("remove", "removed")):
        assert sinks(do, "alerts") == f"alerts: {done}\n"
    assert "no sink is named alerts" in error("show", "alerts")


def test_where_a_sink_begins_and_delivers_again(state):
    for number, start in enumerate(("start", "1", "now", "2026-01-01")):
        sinks("add", f"all{number}", *HOOK, "--from", start)
    rows = map(json.loads, sinks("list", "--json").splitlines())
    assert [row["behind"] for row in rows] == [3, 2, 0, 3]
    nothing = "all2: nothing to deliver again from there on; its position stays\n"
    for start in ("100", "2030-01-01", "now"):
        assert sinks("replay", "all2", "--from", start) == nothing
    assert sinks("replay", "all2", "--from", "start") == "all2: delivers again\n" and shown("all2")["behind"] == 3
    assert sinks("replay", "all2", "--from", "1") == nothing


def test_what_is_listed(configured):
    sinks("add", "lines", "kind=jsonl", "path=lines.jsonl", "--from", "start")
    rows = [json.loads(line) for line in sinks("list", "--json").splitlines()]
    assert [(row["name"], row["kind"], row["to"], row["in_file"]) for row in rows] == [
        ("alerts", "webhook", "hooks.example.org", True),
        ("lines", "jsonl", str(Path("state").absolute() / "sinks" / "lines.jsonl"), False),
        ("shell", "command", sys.executable, True),
    ]
    first, *more = sinks("show", "alerts").splitlines()
    assert first == "alerts: webhook to hooks.example.org, running" and '    url = { secret = "slack" }' in more
    assert "  has all outputs up to seq 2, 0 behind" in more and "  defined in mmqjp.toml" in more


def test_a_sink_that_does_not_deliver_says_why_and_when_it_tries_again(capsys):
    definition = {"kind": "webhook", "diff": True, "queries": ["q"], "most": 5}
    row = {"name": "s", "kind": "webhook", "to": "h", "state": "waiting", "reason": "status\n500", "next": 90 * SECOND}
    row |= {"behind_since": SECOND, "file": None, "definition": definition, "acked": 3, "behind": 2}
    print_sink(row | dict.fromkeys(("delivered", "failed", "given_up"), 1), 0, IN_UTC)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  status 500; next attempt in 90 s",
        "  has all outputs up to seq 3, 2 behind, the oldest since 1970-01-01T00:00:01Z",
        "  since the service began: 1 delivered, 1 attempts failed, 1 given up",
        *("  added live", '    kind = "webhook"', "    diff = true", '    queries = ["q"]', "    most = 5"),
    ]


def test_sinks_of_the_file_are_changed_there(configured):
    for arguments in (("set", "alerts", "wait=1s"), ("remove", "alerts")):
        assert "defined in mmqjp.toml: change it there, and run mmqjp sinks reload" in error(*arguments)
    assert "there is a sink alerts already" in error("add", "alerts", *HOOK)
    sinks("pause", "alerts")
    assert shown("alerts")["state"] == "paused"
    assert sinks("reload") == "alerts: in the configuration\nshell: in the configuration\n"
    Path("mmqjp.toml").write_text(CONFIGURATION.replace("[sinks.shell]", "[sinks.other]"))
    assert sinks("reload") == "alerts: in the configuration\nother: in the configuration\n"
    assert shown("alerts")["state"] == "paused"


def test_a_test_is_sent_when_no_service_runs(configured):
    Path("status").write_text("0")
    assert sinks("test", "shell") == "shell: the test was acknowledged\n"
    Path("status").write_text("3")
    message = error("test", "shell")
    assert "the test of shell failed: " in message and "ended with status 3" in message
    sinks("add", "lines", "kind=jsonl", "path=lines.jsonl")
    assert sinks("test", "lines") == "lines: the test was acknowledged\n"
    Path("state/sinks").rmdir()
    Path("state/sinks").write_text("in the way")
    assert "nothing can be written to" in error("test", "lines")


def test_mistakes_such_as_two_sinks_that_write_to_one_place(state):
    sinks("add", "lines", "kind=jsonl", "path=x")
    assert "the sinks more and lines have the same path" in error("add", "more", "kind=parquet", "path=x")
    sinks("add", "more", "kind=parquet", "path=y")
    assert "the sinks more and lines have the same path" in error("set", "more", "path=x")
    for arguments, cause, status in MISTAKES:
        assert cause in error(*arguments, status=status)
        assert not list((state / "spool" / "commands").glob("*"))


MISTAKES = [
    (("add", "x", "kind=webhook"), "the sink x: url: this key is missing", 1),
    (("add", "x", *HOOK, "wait"), "write KEY=VALUE", 2),
    (("add", "x", *HOOK, "wait="), "wait has no value", 2),
    (("add", "x", *HOOK, "wait=1s", "wait=2s"), "wait is given twice", 2),
    (("add", "x", *HOOK, "queries=[a"), "the value of queries is no TOML", 2),
    (("add", "x", *HOOK, "--from", "later"), "the sink x: from: write now, start", 1),
    (("pause", "x"), "no sink is named x", 1),
]


def test_a_state_that_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "there is no store in state" in error("list")


@pytest.mark.soak
@pytest.mark.spark
def test_a_store_on_spark(tmp_path, monkeypatch, spark):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drops").mkdir()
    write_documents(tmp_path / "drops" / "documents.jsonl")
    options = ["--source", "drops", "--queries", str(write_queries(tmp_path)), "--state", "state", "--output", "out"]
    served = ["--engine", "spark", "--trigger", "available-now", "--lateness", "INF"]
    assert mmqjp("stream", *options, *served).exit_code == 0
    sinks("add", "lines", "kind=jsonl", "path=lines.jsonl", "queries=book_*", "--from", "start")
    sinks("add", "tables", "kind=parquet", "path=tables", "rows=2", "--from", "start")
    sinks("add", "feed", "kind=atom", "path=feed", "url=https://example.org/", "--from", "start")
    assert [shown(name)["behind"] for name in ("lines", "tables", "feed")] == [2, 3, 3]
    assert mmqjp("stream", *options, *served).exit_code == 0
    assert [shown(name)["behind"] for name in ("lines", "tables", "feed")] == [0, 0, 0]
    files = tmp_path / "state" / "sinks"
    lines = [json.loads(line) for line in (files / "lines.jsonl").read_text().splitlines()]
    assert [line["seq"] for line in lines] == [0, 2]
    assert [row.seq for row in spark.read.parquet(str(files / "tables")).collect()] == [0, 1, 2]
    assert (files / "feed" / "feed.atom").read_text().count("<entry>") == 3
