"""Options, configuration files, the environment and the progress bar; errors are one line."""

import io
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest

from common.tools import EVERY, observed, track_progress
from feeds.confined import MEMORY_VARIABLE, memory_limit
from join_stage.store.protocol import OtherSession
from join_stage.store.spark.java import JavaNotFound
from mmqjp.cli import main
from mmqjp.commands.command_line import Failure
from mmqjp.commands.configuration import configured
from mmqjp.commands.console import console, progress_shown
from mmqjp.commands.formats import sinks_of
from mmqjp.engine import Session
from mmqjp.sinks.secrets import FileSecret
from mmqjp.state.engine_choice import EngineChoice
from tests.support.cli import Terminal, mmqjp, write_queries
from xscl.parser import parse_script
from xscl.text import MOST_SHOWN, XsclErrors


def test_the_version_and_the_help_of_each_command():
    result = mmqjp("--version")
    assert (result.exit_code, result.stdout) == (0, f"mmqjp {version('mmqjp')}\n")
    result = mmqjp()
    assert (result.exit_code, result.stdout) == (2, "") and "Commands:" in result.stderr
    listed = mmqjp("--help").stdout.partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines()] == sorted(main.commands) and "..." not in listed
    for command in ([], *([name] for name in main.commands)):
        result = mmqjp(*command, "--help")
        assert result.exit_code == 0 and "Example" in result.stdout, command
        assert f"mmqjp {' '.join(command)}" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "\x1b[31mred"], "is not one of"),
        (["--bogus"], "No such option '--bogus'"),
        (["--engine", "mysql"], "'mysql' is not one of 'auto', 'duckdb', 'spark'"),
        (["--plan", "magic"], "'magic' is not one of 'basic', 'views', 'signature'"),
        (["--feeds=html"], "'html' is not one of 'item', 'raw'"),
        (["--batch-size", "0"], "0 is not in the range x>=1"),
        (["--lateness", "soon"], "'soon' is not a duration; write a number and a unit"),
        (["--lateness", "-1h"], "'-1h' is not a duration"),
        (["--lateness", "1 fortnight"], "'1 fortnight' is not a duration"),
        (["--lateness", "1" * 30], "is too long; write INF for no limit"),
        (["--documents", "nowhere"], "'nowhere' does not exist"),
        (["--queries", "nowhere"], "'nowhere' does not exist"),
        (["--output", "."], "'.' is a directory"),
        (["--engine", "duckdb", "--master", "local"], "--master is for the engine spark, and the engine is duckdb"),
    ],
)
def test_usage_errors_are_one_line(files, options, message):
    result = mmqjp(*files, *options)
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert result.stderr.startswith("mmqjp: error: ") and result.stderr.endswith("(see mmqjp run --help)\n")
    assert message in result.stderr and "\x1b" not in result.stderr


MISUSE = [
    ("stream --trigger soon", "'soon' is not a duration"),
    ("stream --trigger INF", "write a duration like 10s, or available-now"),
    ("stream --source none", "none: no such file or directory"),
    ("stream --engine duckdb --master local", "--master is for the engine spark"),
    ("stream --engine duckdb --output none/out", "No such file or directory"),
    ("serve --address here", "write HOST:PORT"),
    ("serve --address 127.0.0.1:99999", "write HOST:PORT"),
    ("serve --public-url ftp://x", "no URL of a site"),
    ("serve --public-url https://x/y", "no URL of a site"),
    ("serve --no-token --address 0.0.0.0:0", "--no-token is for loopback addresses"),
    ("serve --trigger available-now", "--trigger is a duration here"),
    ("fetch missing.opml", "missing.opml: no such file"),
    ("fetch", "name a list of feeds"),
    ("fetch https://x.example/ --spacing INF", "INF is not allowed here"),
    ("fetch https://x.example/ --interval soon", "is not a duration"),
    ("fetch https://x.example/ --concurrency 0", "is not in the range"),
]


@pytest.mark.parametrize(("given", "message"), MISUSE)
def test_misuse_of_other_commands_is_one_line_too(files, given, message):
    command, *options = given.split()
    given = {"stream": ["--source", "."], "fetch": ["--out", "out"]}.get(command, [])
    result = mmqjp(command, *given, *options, *([] if command == "fetch" else ["--state", "state"]))
    assert result.exit_code in (1, 2) and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("mmqjp: error: ") and message in result.stderr
    assert command != "serve" or not Path("state").exists()


def test_missing_options_and_unknown_commands(files):
    missing = mmqjp("run", "--documents", ".")
    expected = "mmqjp: error: name the queries with --queries, or a --state that has queries (see mmqjp run --help)\n"
    assert (missing.exit_code, missing.stderr) == (2, expected)
    unknown = mmqjp("fly")
    assert (unknown.exit_code, unknown.stderr) == (2, "mmqjp: error: No such command 'fly'. (see mmqjp --help)\n")


def test_files_that_cannot_be_read_or_written(files, tmp_path):
    nowhere = mmqjp(*files, "--engine", "duckdb", "--output", "nowhere/out.jsonl")
    assert nowhere.exit_code == 1 and nowhere.stderr.endswith("No such file or directory; check the path\n")
    (tmp_path / "queries.xscl").write_bytes(b"-- fine\nFROM S//caf\xe9")
    result = mmqjp(*files, "--engine", "duckdb")
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert "queries.xscl:2: the file is not UTF-8 text" in result.stderr


def test_tracebacks_only_with_debug(files, tmp_path, monkeypatch):
    fails = Mock(side_effect=RuntimeError("first line\nsecond line"))
    monkeypatch.setattr("mmqjp.commands.check.summarise_script", fails)
    queries = tmp_path / "queries.xscl"
    plain = mmqjp("check", queries)
    expected = "mmqjp: error: unexpected RuntimeError: first line; run again with --debug to see where\n"
    assert (plain.exit_code, plain.stderr) == (1, expected)
    for debug in (["--debug", "check"], ["check", "--debug"]):
        shown = mmqjp(*debug, queries)
        assert shown.exit_code == 1 and "Traceback (most recent call last)" in shown.stderr
        assert shown.stderr.endswith(plain.stderr)
    fails.side_effect = KeyboardInterrupt
    assert mmqjp("check", queries).stderr.strip() == "mmqjp: interrupted"
    write_queries(tmp_path, "FROM")
    plain, shown = mmqjp(*files, "--engine", "duckdb"), mmqjp(*files, "--engine", "duckdb", "--debug")
    assert "Traceback" not in plain.stderr and "Traceback" in shown.stderr
    assert shown.stderr.endswith(plain.stderr)


@pytest.mark.parametrize("error", [JavaNotFound("Spark needs Java"), OtherSession("a Spark session runs already")])
def test_what_is_wrong_with_spark_is_said_in_one_line(files, monkeypatch, error):
    monkeypatch.setattr("mmqjp.commands.formats.Session", Mock(side_effect=error))
    result = mmqjp(*files, "--engine", "spark", "--master", "local[1]")
    assert (result.exit_code, result.stderr) == (1, f"mmqjp: error: {error}\n")


def test_the_largest_numbers_of_options_work_and_larger_ones_are_usage_errors(tmp_path, files):
    state, most = ("--state", tmp_path / "state"), str(10**17)
    bounds = [part for name in ("matches", "outputs", "work") for part in (f"--max-{name}", most)]
    run = mmqjp(*files, "--engine", "duckdb", *state, *bounds, "--batch-size", most)
    assert run.exit_code == 0, run.stderr
    for one in (("matches", "--limit"), ("show", "--limit"), ("query", "SELECT 1", "--most-rows")):
        result = mmqjp(*one, most, *state)
        assert (result.exit_code, result.stderr) == (0, ""), one
        result = mmqjp(*one, "99999999999999999999", *state)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert "99999999999999999999 is too large: the most is 100000000000000000" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "configured", "lateness"),
    [
        ([], "", None),
        (["1s"], "", 1_000_000),
        (["0"], "", 0),
        (["90", "A=1.5 h", "B=30min", "C=2w", "D=infinity"], "",
         {"*": 90_000_000, "A": 5_400_000_000, "B": 1_800_000_000, "C": 1_209_600_000_000, "D": None}),
        (["T=2s"], "", {"*": None, "T": 2_000_000}),
        (["T=INF", "1s", "news=of=1ms"], "", {"*": 1_000_000, "T": None, "news=of": 1_000}),
        ([], 'lateness = "1s"', 1_000_000),
        ([], 'lateness = ["1s", "T=2s"]', {"*": 1_000_000, "T": 2_000_000}),
        ([], 'lateness = { "*" = "1s", T = 2 }', {"*": 1_000_000, "T": 2_000_000}),
        ([], '[run.lateness]\nT = "2s"', {"*": None, "T": 2_000_000}),
        (["3s"], 'lateness = { T = "2s" }', 3_000_000),
    ],
)  # fmt: skip
def test_a_stream_may_have_a_lateness_of_its_own(files, tmp_path, monkeypatch, arguments, configured, lateness):
    (tmp_path / "mmqjp.toml").write_text(configured)
    opened = Mock(side_effect=ZeroDivisionError)
    monkeypatch.setattr("mmqjp.commands.formats.open_engine", opened)
    mmqjp(*files, "--engine", "duckdb", *(part for one in arguments for part in ("--lateness", one)))
    assert opened.call_args.kwargs["lateness"] == lateness


def test_which_engine_is_used(files, tmp_path, monkeypatch):
    """The command line goes before the environment, then comes the file here, then that of the user."""
    start = Mock(side_effect=Failure("not started"))
    monkeypatch.setattr("mmqjp.commands.formats.open_engine", start)

    def engine(*options):
        assert mmqjp(*files, *options).stderr == "mmqjp: error: not started\n"
        return start.call_args.args[0]

    with monkeypatch.context() as patched:
        patched.setattr("mmqjp.commands.formats.choose_engine", lambda name, *given: EngineChoice(f"chosen for {name}"))
        assert engine() == "chosen for auto" and configured(main, None) == {}
    here, user = tmp_path / "mmqjp.toml", tmp_path / "config" / "mmqjp" / "mmqjp.toml"
    user.parent.mkdir(parents=True)
    user.write_text('engine = "duckdb"')
    assert engine() == "duckdb"
    here.write_text("# says nothing of engines")
    assert engine() == "duckdb"
    here.write_text('engine = "spark"')
    assert engine() == "spark"
    monkeypatch.setenv("MMQJP_ENGINE", "duckdb")
    assert engine() == "duckdb"
    assert engine("--engine", "spark") == "spark"
    monkeypatch.setenv("MMQJP_ENGINE", "mysql")
    result = mmqjp(*files)
    assert result.exit_code == 2 and ("MMQJP_ENGINE" in result.stderr or "'--engine'" in result.stderr)


SINKS = """
[secrets]
hook = { file = "hook.key" }
[sinks.alerts]
kind = "webhook"
url = "https://example.org/hook"
secret = "hook"
[sinks.list]
kind = "jsonl"
path = "out.jsonl"
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine = duckdb", "cannot be read"),
        ("\udcff", "cannot be read"),
        ('engine = "mysql"', "has engine = 'mysql': 'mysql' is not one of"),
        ("engine = 1", "has engine = 1"),
        ('engine = { T = "1s" }', "write a string"),
        ('motor = "duckdb"', 'unknown setting "motor"; the known ones are "'),
        ('enigne = "duckdb"', 'unknown setting "enigne"; did you mean "engine"?'),
        ("[feeds.list]\noutput = 'x'", 'unknown setting "feeds.list.output"; the known ones are "feeds.list.debug"'),
        ("[stream]\nkep = '1d'", 'unknown setting "stream.kep"; did you mean "stream.keep"?'),
        ("[strem]\nkeep = '1d'", 'unknown setting "strem"; did you mean "stream"?'),
        ("[run]\ncheckpoint = 'x'", 'has an unknown setting "run.checkpoint"; the known ones are "run.allow-private"'),
        ("[walk]\nengine = 'duckdb'", 'has an unknown setting "walk"'),
        ("[stream]\nsource = 'drops'", "has stream.source = 'drops'; write a list of strings"),
        ("[stream]\nstate = ['drops']", "has stream.state = ['drops']; write a string, a number, or true or false"),
        ("add = 'yes'", "has add = 'yes'; write true or false"),
        ("feeds = 'entries'", "has feeds = 'entries': 'entries' is not one of"),
        ("[stream]\nbatch-size = 0", "has stream.batch-size = 0: 0 is not in the range x>=1."),
        ('lateness = { T = "soon" }', "has lateness = 'T=soon': 'soon' is not a duration"),
        ("lateness = { T = [1] }", "is not a duration"),
        ('lateness = ["1s", "2s"]', "a stream is named twice"),
        (SINKS.replace("url =", "ulr ="), "mmqjp.toml: sinks.alerts.url: this key is missing"),
        (SINKS.replace('{ file = "hook.key" }', '"s3cr3t"'), "mmqjp.toml: secrets.hook: write { file"),
        ('sinks = "a"', "the configuration mmqjp.toml: sinks: write tables"),
        (SINKS.replace("[sinks.", "[sink."), 'the configuration mmqjp.toml has an unknown setting "sink"'),
    ],
)
def test_a_bad_configuration_is_named_in_one_line(files, tmp_path, text, message):
    (tmp_path / "mmqjp.toml").write_text(text, errors="surrogateescape")
    result = mmqjp("status", "--state", "state") if "sink" in text else mmqjp(*files)
    assert result.exit_code == 2 and message in result.stderr and "s3cr3t" not in result.stderr
    assert "mmqjp.toml" in result.stderr or "--lateness" in result.stderr
    assert len(result.stderr.splitlines()) == 1


CONFIGURATIONS: list[tuple[str, dict[str, dict[str, object]]]] = [
    (
        'engine = "duckdb"\nlateness = "1h"\n[run]\ndocuments = ["one", "two"]\nbatch-size = 7\nlateness = "2h"\n'
        "[subscribe]\nadd = true",
        {
            "run": {"engine": "duckdb", "lateness": ["2h"], "paths": ["one", "two"], "batch_size": "7"},
            "stream": {"engine": "duckdb", "lateness": ["1h"]},
            "subscribe": {"engine": "duckdb", "add": True},
            "list": {},
        },
    ),
    ('feeds = "raw"', {"run": {"feeds": "raw"}, "stream": {"feeds": "raw"}, "fetch": {}}),
    ('[run]\nfeeds = "item"\n[fetch]\nlists = ["list.opml"]\nwatch = true',
     {"run": {"feeds": "item"}, "fetch": {"lists": ["list.opml"], "once": False}, "stream": {}}),
    ('[feeds]\nstate = "crawl/"\n[feeds.export]\noutput = "feeds.opml"\n[feeds.list]\nstate = "other/"',
     {"feeds list": {"state": "other/"}, "feeds retry": {"state": "crawl/"}, "run": {},
      "feeds export": {"state": "crawl/", "output": "feeds.opml"}}),
]  # fmt: skip


def given_to(command: str, path: Path) -> Any:
    found: Any = configured(main, path)
    for name in command.split():
        found = found[name]
    return found


@pytest.mark.parametrize(("text", "expected"), CONFIGURATIONS)
def test_what_a_configuration_gives_to_each_command(tmp_path, text, expected):
    path = tmp_path / "other.toml"
    path.write_text(text)
    assert {command: given_to(command, path) for command in expected} == expected


def options_of(group: click.Group, names: str = "") -> Iterator[tuple[str, click.Option]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from options_of(command, f"{names}{name}.")
        else:
            yield from ((f"{names}{name}", option) for option in command.params if isinstance(option, click.Option))


def test_each_option_of_each_command_stands_in_a_configuration(tmp_path):
    path = tmp_path / "mmqjp.toml"
    for command, option in options_of(main):
        if command.startswith("sinks."):
            continue  # a configuration has sinks there, not options of commands
        for key in (*option.opts, *option.secondary_opts):
            written = "true" if option.is_flag else '["1"]' if option.multiple else '"1"'
            path.write_text(f"[{command}]\n{key.removeprefix('--')} = {written}")
            try:
                found = given_to(command.replace(".", " "), path)
            except click.UsageError as error:  # of the value
                found = {option.name: str(error)}
            assert option.name in found and "unknown setting" not in str(found), key


def test_the_configuration_is_chosen_on_the_command_line_or_in_the_environment(files, tmp_path, monkeypatch):
    # `files` gives queries and documents; how they are processed is configured.
    chosen = tmp_path / "chosen.toml"
    chosen.write_text('[run]\nengine = "duckdb"\nlateness = "soon"')
    (tmp_path / "mmqjp.toml").write_text('engine = "nonsense"')
    for arguments in (["--config", chosen, *files], files):
        result = mmqjp(*arguments)
        assert result.exit_code == 2 and "soon" in result.stderr, result.stderr
        monkeypatch.setenv("MMQJP_CONFIG", str(chosen))
    chosen.write_text('[run]\nengine = "duckdb"')
    assert mmqjp(*files).exit_code == 0
    assert "none.toml cannot be read" in mmqjp("--config", tmp_path / "none.toml", *files).stderr


def test_sinks_and_secrets_stand_beside_options_and_an_earlier_file_takes_precedence(files, tmp_path, monkeypatch):
    (tmp_path / "mmqjp.toml").write_text('engine = "duckdb"\n' + SINKS)
    assert configured(main, None)["run"]["engine"] == "duckdb"
    found = sinks_of(None)
    assert sorted(found.sinks) == ["alerts", "list"] and found.secrets == {"hook": FileSecret(Path("hook.key"))}
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "mmqjp").mkdir(parents=True)
    (tmp_path / "home" / "mmqjp" / "mmqjp.toml").write_text(SINKS.replace("alerts", "more").replace("hook.key", "b"))
    found = sinks_of(None)
    assert sorted(found.sinks) == ["alerts", "list", "more"]
    assert found.sinks["list"].file == "mmqjp.toml" and found.secrets == {"hook": FileSecret(Path("hook.key"))}


def drawn(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, step: float) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_shown(count(step, step).__next__):
        assert list(track_progress("parsing", range(5 * EVERY))) == list(range(5 * EVERY))
    return stream.getvalue()


def test_a_terminal_gets_a_bar_that_goes_away_after_the_first_second(monkeypatch):
    text = drawn(monkeypatch, Terminal(), 0.6)
    assert "parsing" in text and f"{2 * EVERY}/{5 * EVERY}" in text
    assert text.endswith("\x1b[2K"), "the line is cleared"
    assert drawn(monkeypatch, Terminal(), 0.01) == drawn(monkeypatch, io.StringIO(), 0.6) == ""


def test_parsing_registering_and_opening_a_store_are_followed(tmp_path):
    (tmp_path / "q.xscl").write_text("//a;\n//b")
    told: list[str] = []
    with observed(lambda what, done, total: told.append(f"{what} {total}")):
        assert mmqjp("check", tmp_path / "q.xscl").exit_code == 0
    with Session("duckdb", state=tmp_path / "state") as engine:
        engine.subscribe("//a; //b; //c")
    with observed(lambda what, done, total: told.append(f"{what} {total}")):
        Session("duckdb", state=tmp_path / "state").close()
    assert told == ["parsing 2", "checking 2", "compiling 2", "registering 2", "opening 3"]


def test_the_first_queries_are_listed_and_the_others_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("mmqjp.commands.check.MOST_LISTED", 3)
    (tmp_path / "q.xscl").write_text(";\n".join(f"//a PUBLISH n{n}" for n in range(1_200)))
    output = mmqjp("check", tmp_path / "q.xscl").output
    assert ": 1,200 queries, no mistakes" in output and output.endswith("and 1,197 queries more\n")
    assert re.findall(r"^ (n\d+) ", output, re.MULTILINE) == ["n0", "n1", "n2"]


def test_the_first_mistakes_are_shown_and_the_others_counted():
    for more, counted in ((0, []), (1, ["and 1 more mistake"]), (2, ["and 2 more mistakes"])):
        with pytest.raises(XsclErrors) as caught:
            parse_script(";\n".join(["//a["] * (MOST_SHOWN + more)))
        shown = str(caught.value).splitlines()
        assert len(caught.value.errors) == MOST_SHOWN + more
        assert sum(": error: " in line for line in shown) == MOST_SHOWN
        assert [line for line in shown if line.startswith("and ")] == counted


def test_tables_are_as_wide_as_columns_says(monkeypatch):
    for told, width in (("60", 60), ("150", 150), ("", 100), ("wide", 100), ("0", 100)):
        monkeypatch.setenv("COLUMNS", told)
        assert console().width == width


def test_the_memory_of_the_process_that_parses_feeds_is_an_option(files, tmp_path, monkeypatch):
    monkeypatch.setenv(MEMORY_VARIABLE, "")
    for given, limit in (((), 512 << 20), (("--feed-memory", str(256 << 20)), 256 << 20)):
        assert mmqjp(*files, "--engine", "duckdb", *given).exit_code == 0
        assert memory_limit() == limit
    for value in ("1", "lots"):
        monkeypatch.setenv(MEMORY_VARIABLE, value)
        result = mmqjp(*files, "--engine", "duckdb")
        assert result.exit_code == 2 and "--feed-memory" in result.stderr
