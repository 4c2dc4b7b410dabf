"""The program: options, configuration, environment, progress, as a process; `mmqjp serve` and `demo`."""

import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from importlib.metadata import version
from itertools import count
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import click
import httpx
import pytest

from common.tools import EVERY, observed, track_progress
from feeds.confined import MEMORY_VARIABLE, memory_limit
from join_stage.store.protocol import OtherSession
from join_stage.store.spark.java import JavaNotFound
from mmqjp.cli import main
from mmqjp.commands.command_line import Failure
from mmqjp.commands.configuration import configured
from mmqjp.commands.console import console, progress_shown
from mmqjp.commands.demo import example_run, purposes
from mmqjp.commands.formats import sinks_of
from mmqjp.commands.serve import run_service
from mmqjp.engine import Session
from mmqjp.present.newest import shown_outputs
from mmqjp.service.drops import known_feeds, state_file
from mmqjp.service.log import NullLog
from mmqjp.sinks.secrets import FileSecret
from mmqjp.state.engine_choice import EngineChoice
from mmqjp.web.readers import CursorReader
from mmqjp.web.serving import PageEnded, PageOptions, listen, page_process
from tests.support.cli import DOCUMENTS, Terminal, mmqjp, printed, refused, write_documents, write_queries
from tests.support.served import served
from xscl.parser import parse_script


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Arguments of a run that would work on DuckDB; nothing outside configures it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MMQJP_ENGINE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    queries, documents = write_queries(tmp_path), write_documents(tmp_path / "documents.jsonl")
    return ["run", "--queries", str(queries), "--documents", str(documents)]


def test_the_version_and_the_help_of_each_command():
    assert printed("--version") == f"mmqjp {version('mmqjp')}\n"
    result = mmqjp()
    assert (result.exit_code, result.stdout) == (2, "") and "Commands:" in result.stderr
    listed = mmqjp("--help").stdout.partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines()] == sorted(main.commands) and "..." not in listed
    for command in ([], *([name] for name in main.commands)):
        text = printed(*command, "--help")
        assert "Example" in text and f"mmqjp {' '.join(command)}" in text, command


MISUSE = [
    ("run --engine '\x1b[31mred'", "is not one of 'auto', 'duckdb', 'spark'"),
    ("run --bogus", "No such option '--bogus'"),
    ("run --plan magic", "'magic' is not one of 'basic', 'views', 'signature'"),
    ("run --feeds=html", "'html' is not one of 'item', 'raw'"),
    ("run --batch-size 0", "0 is not in the range x>=1"),
    ("run --lateness soon", "'soon' is not a duration; write a number and a unit"),
    ("run --lateness -1h", "'-1h' is not a duration"),
    ("run --lateness '1 fortnight'", "'1 fortnight' is not a duration"),
    ("run --lateness 111111111111111111111111111111", "is too long; write INF for no limit"),
    ("run --documents nowhere", "'nowhere' does not exist"),
    ("run --queries nowhere", "'nowhere' does not exist"),
    ("run --output .", "'.' is a directory"),
    ("run --engine duckdb --master local", "--master is for the engine spark, but the engine is duckdb"),
    ("run --engine duckdb --output nowhere/out.jsonl", "No such file or directory; check the path\n"),
    ("stream --trigger soon", "'soon' is not a duration"),
    ("stream --trigger INF", "write a duration like 10s, or available-now"),
    ("stream --source none", "none: no such file or directory"),
    ("serve --address here", "write HOST:PORT"),
    ("serve --address 127.0.0.1:99999", "write HOST:PORT"),
    ("serve --public-url ftp://x", "not a URL of a site"),
    ("serve --public-url https://x/y?z", "not a URL of a site"),
    ("serve --public-url https://x/../y", "not a URL of a site"),
    ("serve --no-token --address 0.0.0.0:0", "--no-token is only for loopback addresses"),
    ("serve --trigger available-now", "--trigger must be a duration"),
    ("fetch missing.opml", "missing.opml: no such file"),
    ("fetch", "name a list of feeds"),
    ("fetch https://x.example/ --spacing INF", "INF is not allowed here"),
    ("fetch https://x.example/ --concurrency 0", "is not in the range"),
    ("show", "name the documents"),
    ("fly", "No such command 'fly'. (see mmqjp --help)\n"),
]


@pytest.mark.parametrize(("given", "message"), MISUSE)
def test_misuse_is_one_line_with_the_help_to_see_but_for_missing_files(files, given, message):
    command, *options = shlex.split(given)
    state = ["--state", "state"]
    needed = {"run": files[1:], "stream": ["--source", ".", *state], "serve": state, "fetch": ["--out", "out"]}
    is_missing = "o such file" in message
    said = refused(command, *needed.get(command, []), *options, status=1 if is_missing else 2)
    assert message in said and "\x1b" not in said
    assert is_missing or said.endswith("--help)\n")
    assert command != "serve" or not Path("state").exists()


def test_queries_must_be_text(files, tmp_path):
    (tmp_path / "queries.xscl").write_bytes(b"-- fine\nFROM S//caf\xe9")
    assert "queries.xscl:2: the file is not UTF-8 text" in refused(*files, "--engine", "duckdb")


def test_tracebacks_only_with_debug(files, tmp_path, monkeypatch):
    fails = Mock(side_effect=RuntimeError("first line\nsecond line"))
    monkeypatch.setattr("mmqjp.commands.check.summarise_script", fails)
    queries = tmp_path / "queries.xscl"
    plain = refused("check", queries)
    assert plain == "mmqjp: error: unexpected RuntimeError: first line; run again with --debug to see where\n"
    for debug in (["--debug", "check"], ["check", "--debug"]):
        shown = mmqjp(*debug, queries)
        assert shown.exit_code == 1 and "Traceback (most recent call last)" in shown.stderr
        assert shown.stderr.endswith(plain)
    fails.side_effect = KeyboardInterrupt
    assert mmqjp("check", queries).stderr.strip() == "mmqjp: interrupted"
    write_queries(tmp_path, "FROM")
    known, traced = (mmqjp(*files, "--engine", "duckdb", *debug).stderr for debug in ((), ("--debug",)))
    assert "Traceback" not in known and "Traceback" in traced and traced.endswith(known)


@pytest.mark.parametrize("error", [JavaNotFound("Spark needs Java"), OtherSession("a Spark session runs already")])
def test_what_is_wrong_with_spark_is_said_in_one_line(files, monkeypatch, error):
    monkeypatch.setattr("mmqjp.commands.formats.Session", Mock(side_effect=error))
    assert refused(*files, "--engine", "spark", "--master", "local[1]") == f"mmqjp: error: {error}\n"


def test_the_largest_numbers_of_options_work_and_larger_ones_are_usage_errors(tmp_path, files):
    state, most = ("--state", tmp_path / "state"), str(10**17)
    bounds = [part for name in ("matches", "outputs", "work") for part in (f"--max-{name}", most)]
    run = mmqjp(*files, "--engine", "duckdb", *state, *bounds, "--batch-size", most)
    assert run.exit_code == 0, run.stderr
    for one in (("matches", "--limit"), ("show", "--limit"), ("query", "SELECT 1", "--most-rows")):
        printed(*one, most, *state)
        said = refused(*one, "99999999999999999999", *state, status=2)
        assert "99999999999999999999 is too large: the most is 100000000000000000" in said


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
        assert refused(*files, *options) == "mmqjp: error: not started\n"
        return start.call_args.args[0]

    with monkeypatch.context() as patched:
        patched.setattr("mmqjp.commands.formats.choose_engine", lambda name, *given: EngineChoice(f"chosen for {name}"))
        assert engine() == "chosen for auto" and configured(main, None) == {}
    here, user = tmp_path / "mmqjp.toml", tmp_path / "config" / "mmqjp" / "mmqjp.toml"
    user.parent.mkdir(parents=True)
    duckdb, spark = 'engine = "duckdb"', 'engine = "spark"'
    for file, text, name in ((user, duckdb, "duckdb"), (here, "# not of engines", "duckdb"), (here, spark, "spark")):
        file.write_text(text)
        assert engine() == name
    monkeypatch.setenv("MMQJP_ENGINE", "duckdb")
    assert engine() == "duckdb" and engine("--engine", "spark") == "spark"
    monkeypatch.setenv("MMQJP_ENGINE", "mysql")
    assert "'--engine'" in refused(*files, status=2)


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
        ('tz = "CETT"', "has tz = 'CETT': there is no time zone 'CETT'; did you mean CET?"),
        ('lateness = ["1s", "2s"]', "a stream is named twice"),
        (SINKS.replace("url =", "ulr ="), "mmqjp.toml: sinks.alerts.url: this key is missing"),
        (SINKS.replace('{ file = "hook.key" }', '"s3cr3t"'), "mmqjp.toml: secrets.hook: write { file"),
        ('sinks = "a"', "the configuration mmqjp.toml: sinks: write tables"),
        (SINKS.replace("[sinks.", "[sink."), 'the configuration mmqjp.toml has an unknown setting "sink"'),
    ],
)
def test_a_bad_configuration_is_named_in_one_line(files, tmp_path, text, message):
    (tmp_path / "mmqjp.toml").write_text(text, errors="surrogateescape")
    said = refused(*(("status", "--state", "state") if "sink" in text else files), status=2)
    assert message in said and "s3cr3t" not in said and ("mmqjp.toml" in said or "--lateness" in said)


CONFIGURATIONS: list[tuple[str, dict[str, dict[str, object]]]] = [
    ('engine = "duckdb"\nlateness = "1h"\n[run]\ndocuments = ["one", "two"]\nbatch-size = 7\nlateness = "2h"\n'
     "[subscribe]\nadd = true",
     {"run": {"engine": "duckdb", "lateness": ["2h"], "paths": ["one", "two"], "batch_size": "7"}, "list": {},
      "stream": {"engine": "duckdb", "lateness": ["1h"]}, "subscribe": {"engine": "duckdb", "add": True}}),
    ('tz = "local"', {"run": {"clock": "local"}, "feeds list": {"clock": "local"}, "sinks failed": {"clock": "local"}}),
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
    for arguments in (["--config", chosen, *files], [*files, f"--config={chosen}"], files):
        assert "soon" in refused(*arguments, status=2)
        monkeypatch.setenv("MMQJP_CONFIG", str(chosen))
    chosen.write_text('[run]\nengine = "duckdb"')
    assert mmqjp(*files).exit_code == 0
    assert "none.toml cannot be read" in refused("--config", tmp_path / "none.toml", *files, status=2)


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
    queries = write_queries(tmp_path, "//a;\n//b")
    told: list[str] = []
    with observed(lambda what, done, total: told.append(f"{what} {total}")):
        printed("check", queries)
    with Session("duckdb", state=tmp_path / "state") as engine:
        engine.subscribe("//a; //b; //c")
    with observed(lambda what, done, total: told.append(f"{what} {total}")):
        Session("duckdb", state=tmp_path / "state").close()
    assert told == ["parsing 2", "checking 2", "compiling 2", "registering 2", "opening 3"]


def test_the_first_queries_are_listed_and_the_others_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("mmqjp.commands.check.MOST_LISTED", 3)
    queries = write_queries(tmp_path, ";\n".join(f"//a PUBLISH n{n}" for n in range(1_200)))
    output = printed("check", queries)
    assert ": 1,200 queries, no mistakes" in output and output.endswith("and 1,197 queries more\n")
    assert re.findall(r"^ (n\d+) ", output, re.MULTILINE) == ["n0", "n1", "n2"]


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
        assert "--feed-memory" in refused(*files, "--engine", "duckdb", status=2)


INTERRUPTED_WHILE_LOADING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "mmqjp.commands.serve":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["mmqjp", "stream", "--help"]
from mmqjp.__main__ import main
main()
"""


def python(*arguments: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, env=os.environ | environment, timeout=300, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_what_prints_only_loads_only_what_it_needs_and_ctrl_c_meanwhile_is_one_line():
    assert python("-c", INTERRUPTED_WHILE_LOADING) == (130, "", "mmqjp: interrupted\n")
    status, _, said = python("-c", LIGHT)
    assert (status, said) == (0, "")


def test_output_is_utf_8_whatever_the_locale(tmp_path):
    document = {"id": "é…", "time": "2026-01-01", "xml": "<a>ß 書 \U0001f600</a>"}
    documents = write_documents(tmp_path / "d.jsonl", [document])
    locale = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    status, printed, said = python("-m", "mmqjp", "show", str(documents), **locale)
    assert status == 0, said
    assert "S  é…  2026" in printed and "ß 書 \U0001f600" in printed


LIGHT = """
import sys
from mmqjp.cli import main
for option in ("--version", "--help"):
    try:
        main([option])
    except SystemExit as end:
        assert not end.code, end.code
heavy = {'pyspark', 'duckdb', 'numpy', 'pyarrow', 'lxml', 'lark', 'feeds', 'xscl', 'join_stage'}
sys.exit(repr(heavy & sys.modules.keys()) if heavy & sys.modules.keys() else 0)
"""


ENDING = """
import atexit, sys, threading, duckdb
import mmqjp.cli
from mmqjp.process import QUESTION_THREAD

class Kept:
    def __del__(self):
        print("freed")

def ask():
    connection = duckdb.connect()
    begun.set()
    connection.execute("SELECT count(*) FROM range(60000000) a(x), range(20) b(y) WHERE x * y % 7 = 3").fetchall()

def answer():
    kept.append(Kept())
    atexit.register(print, "at the end")
    {before}
    print("answered")
    sys.exit({status!r})

kept, begun = [], threading.Event()
mmqjp.cli.main = answer
from mmqjp.__main__ import main
main()
"""
ASKING = "threading.Thread(target=ask, name=QUESTION_THREAD, daemon=True).start(); begun.wait()"


@pytest.mark.parametrize(
    ("before", "status", "printed"),
    [
        ("pass", 3, ["answered", "at the end"]),
        ("threading.Timer(0.2, print, ['later']).start()", 3, ["answered", "later", "at the end", "freed"]),
        (ASKING, 3, ["answered"]),
        ("pass", "not flat: memory", ["answered", "at the end", "freed"]),
    ],
)
def test_a_program_ends_at_once_unless_something_runs_or_is_wrong(before, status, printed):
    found, out, said = python("-c", ENDING.format(before=before, status=status))
    assert (found, out.splitlines(), said) == (
        (status, printed, "") if isinstance(status, int) else (1, printed, f"{status}\n")
    )


def test_it_holds_the_store_and_another_attaches(tmp_path):
    drops, state, output = tmp_path / "drops", tmp_path / "state", tmp_path / "out.jsonl"
    queries = write_queries(tmp_path)
    drops.mkdir()
    options = "--queries", queries, "--source", drops, "--lateness", "INF", "--output", output, "--log", "json"
    with served(state, *options) as page, page.client() as client:
        assert client.get("/api/v1/queries").json()["names"] == 2
        write_documents(tmp_path / "d.jsonl", DOCUMENTS).rename(drops / "d.jsonl")
        while not output.exists() or len(output.read_text().splitlines()) < 2:
            assert page.process.poll() is None
        while (found := client.get("/api/v1/queries").json())["never"]:
            assert page.process.poll() is None  # the page may lag a commit behind the file
        names = [json.loads(line)["query"] for line in output.read_text().splitlines()]
        assert {row["name"]: row["total"] for row in found["rows"]} == {name: names.count(name) for name in names}
        for more in (("--source", tmp_path), ("--fetch", "https://a.example"), ("--queries", queries)):
            said = refused("serve", "--state", state, "--address", "127.0.0.1:0", *more, status=2)
            assert "is in use by process" in said and f"leave out {more[0]}" in said  # the service reads the sources
        with served(state, "--log", "json") as other, other.client() as beside:
            assert beside.get("/api/v1/queries").json() == client.get("/api/v1/queries").json()
            assert beside.post("/api/v1/queries/book_blog/pause").json() == {"names": ["book_blog"]}
            while not client.get("/api/v1/queries", params={"state": "paused"}).json()["found"]:
                assert page.process.poll() is None  # the page learns of other processes' changes a moment later
            assert client.post("/api/v1/queries/book_blog/resume").status_code == 200
            assert client.get("/api/v1/queries", params={"state": "paused"}).json()["found"] == 0
            assert "of a person" in beside.post("/sql", data={"sql": "SELECT 'of a person'"}).text
            for one in (page, other):
                with socket.create_connection(("127.0.0.1", int(one.url.rpartition(":")[2]))) as connection:
                    connection.sendall(b"this is not HTTP\r\n\r\n")
                    assert b"400" in connection.recv(1_000)
            ended = [other.stop(), page.stop(signal.SIGINT)]
        for status, said in ended:
            events = [json.loads(line) for line in said.splitlines()]
            (warned,) = [event for event in events if event["event"] == "said"]
            assert (status, warned["by"], warned["level"]) == (0, "uvicorn.error", "warning")
            assert "Invalid HTTP request" in warned["text"] and events[-1]["event"] == "stopped"
            assert "SELECT" not in said and "select" not in said, "questions of pages are not logged"


def test_a_page_whose_service_is_gone_waits_for_no_client(tmp_path, monkeypatch):
    def with_patient_server(command, **options):
        program = "import sys; from mmqjp.web import serving; serving.STOP_SECONDS = 10**6; serving.main(*sys.argv[1:])"
        return popen([command[0], "-c", program, *command[3:]], **options)

    def killed():
        address = f"http://127.0.0.1:{opened.getsockname()[1]}/events"
        with page as (process, pipe), httpx.stream("GET", address, timeout=60) as stream:
            assert stream.status_code == 200
            with socket.socket(fileno=os.dup(pipe.fileno())) as ours:
                ours.shutdown(socket.SHUT_RDWR)  # as the end of the service does
            process.wait(60)

    popen = subprocess.Popen
    monkeypatch.setattr("mmqjp.web.serving.subprocess.Popen", with_patient_server)
    options = PageOptions(str(tmp_path), "127.0.0.1", no_token=True)
    with Session("duckdb", state=tmp_path) as engine, listen("127.0.0.1", 0) as opened:
        page = page_process(options, opened, CursorReader(engine), NullLog(), Event())
        with pytest.raises(PageEnded, match="status 1"):
            killed()


def test_an_address_in_use_is_waited_for_and_then_said(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("mmqjp.web.serving.ADDRESS_SECONDS", 0.1)
        said = refused("serve", "--state", tmp_path / "state", "--address", f"127.0.0.1:{port}")
        assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in said
        assert not (tmp_path / "state").exists()
        monkeypatch.undo()
        listen("127.0.0.1", port, lambda seconds: taken.close()).close()


def test_the_demo_shows_every_query_with_what_it_is_for_and_why_it_matched():
    shown = printed("demo", "--engine", "duckdb")
    script = parse_script((resources.files("mmqjp.demo") / "demo.xscl").read_text("utf-8"))
    assert shown.startswith("12 standing queries, 36 entries of 7 feeds, on duckdb.")
    assert set(re.findall(r"^(\w+)  [A-Z]", shown, re.MULTILINE)) == {*script.names()} - {"story.pairs"}
    assert shown.rstrip().splitlines()[-4:] == [
        "20 matches. Now try your own queries and feeds:",
        "  mmqjp run --queries FILE.xscl --documents DIRECTORY --feeds",
        "See the same in a browser:",
        "  mmqjp demo --serve",
    ]
    assert "\x1b" not in shown and max(map(len, shown.splitlines())) <= 100
    text = "-- of the file\n\n-- one\n-- more\nFROM S//a PUBLISH x;\n\nFROM b PUBLISH y; -- not z\nFROM c PUBLISH z"
    assert purposes(text, parse_script(text)) == {"x": "one more", "y": "", "z": ""}


def test_the_demo_that_is_served_fetches_its_feeds_and_finds_the_same_in_order_of_time(monkeypatch):
    found, feeds = [], []

    def told(engine):
        matches = shown_outputs(engine, engine.outputs())
        return [(one.output.t1, one.output.query, [item.title for item in one.items]) for one in matches]

    @contextmanager
    def look(engine, log, stop):
        yield lambda: False
        found.extend(told(engine))

    def run(given, beside, public_url):
        run_service(replace(given, trigger=None), look, public_url)
        feeds.extend(known_feeds(state_file(given.state)))

    monkeypatch.setattr("mmqjp.commands.serve.run_service", run)
    result = mmqjp("demo", "--serve", "--engine", "duckdb")
    assert result.exit_code == 0, result.stderr
    with example_run("duckdb", None, "signature") as alone:
        assert found == sorted(told(alone.session), key=itemgetter(0)) and len(found) == 20
    assert [(feed.status, bool(feed.sha256)) for feed in feeds] == [(200, True)] * 7
