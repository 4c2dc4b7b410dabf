"""The command line as such: help, version, usage errors, errors in one line."""

from importlib.metadata import version

import pytest

from join_stage.store.protocol import OtherSession
from mmqjp.cli import main
from mmqjp.commands import check as check_module
from mmqjp.commands import formats as opening
from tests.support.cli import LINES, write_queries
from tests.support.cli import mmqjp as call


def test_version():
    result = call("--version")
    assert (result.exit_code, result.stdout) == (0, f"mmqjp {version('mmqjp')}\n")


def test_no_command_shows_the_help_as_a_usage_error():
    result = call()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Commands:" in result.stderr


@pytest.mark.parametrize("command", [[], *([name] for name in main.commands)])
def test_every_command_has_help_with_an_example(command):
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"mmqjp {' '.join(command)}" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
    result = call(*files, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("mmqjp: error: ")
    assert message in result.stderr
    assert result.stderr.endswith("(see mmqjp run --help)\n")
    assert len(result.stderr.splitlines()) == 1


def test_missing_options_and_unknown_commands(files):
    missing = call("run", "--documents", ".")
    assert (missing.exit_code, missing.stderr) == (
        2,
        "mmqjp: error: name the queries with --queries, or a --state that has queries (see mmqjp run --help)\n",
    )
    unknown = call("fly")
    assert (unknown.exit_code, unknown.stderr) == (2, "mmqjp: error: No such command 'fly'. (see mmqjp --help)\n")


@pytest.mark.parametrize("lateness", ["0", "90", "1.5 h", "30min", "2w", "infinity"])
def test_durations_are_written_as_in_queries(files, lateness):
    assert call(*files, "--engine", "duckdb", "--lateness", lateness).exit_code == 0


# ---------------------------------------------------------------- failures


def test_query_file_with_mistakes_shows_each(files, tmp_path):
    queries = write_queries(tmp_path, "FROM S//a->x JOIN {y = z, 1} S//b->z;\nFROM S//a[;\n")
    result = call(*files, "--engine", "duckdb")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"{queries}:1:20: error: ")
    assert f"{queries}:2:" in result.stderr
    assert result.stderr.count("^") >= 2


def test_query_file_that_is_not_utf8(files, tmp_path):
    (tmp_path / "queries.xscl").write_bytes(b"-- fine\nFROM S//caf\xe9")
    result = call(*files, "--engine", "duckdb")
    assert result.exit_code == 1
    assert "queries.xscl:2: the file is not UTF-8 text" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_output_in_a_directory_that_does_not_exist(files):
    result = call(*files, "--engine", "duckdb", "--output", "nowhere/out.jsonl")
    assert result.exit_code == 1
    assert result.stderr.endswith("No such file or directory; check the path\n")


@pytest.mark.parametrize("debug", [["--debug", "check"], ["check", "--debug"]])
def test_tracebacks_only_with_debug(tmp_path, monkeypatch, debug):
    def fail(script):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(check_module, "summarise_script", fail)
    queries = write_queries(tmp_path)
    plain = call("check", queries)
    assert plain.exit_code == 1
    assert plain.stderr == ("mmqjp: error: unexpected RuntimeError: first line; run again with --debug to see where\n")
    shown = call(*debug, queries)
    assert shown.exit_code == 1
    assert "Traceback (most recent call last)" in shown.stderr
    assert shown.stderr.endswith(plain.stderr)


def test_java_that_is_not_found_is_said_in_one_line(files, monkeypatch):
    from join_stage.store.spark.java import JavaNotFound

    def no_java(*arguments, **options):
        raise JavaNotFound("Spark needs Java")

    monkeypatch.setattr(opening, "Session", no_java)
    result = call(*files, "--engine", "spark")
    assert (result.exit_code, result.stderr) == (1, "mmqjp: error: Spark needs Java\n")


def test_debug_shows_where_a_mistake_was_found(files, tmp_path):
    write_queries(tmp_path, "FROM")
    plain, shown = call(*files, "--engine", "duckdb"), call(*files, "--engine", "duckdb", "--debug")
    assert "Traceback" not in plain.stderr
    assert "Traceback" in shown.stderr
    assert shown.stderr.endswith(plain.stderr)


def test_another_master_than_the_running_one(files, monkeypatch):
    def other(*arguments, **options):
        raise OtherSession("a Spark session runs in this process already")

    monkeypatch.setattr(opening, "Session", other)
    result = call(*files, "--engine", "spark", "--master", "local[1]")
    assert (result.exit_code, result.stderr) == (1, "mmqjp: error: a Spark session runs in this process already\n")


def test_interrupt_outside_a_run(tmp_path, monkeypatch):
    def interrupt(script):
        raise KeyboardInterrupt

    monkeypatch.setattr(check_module, "summarise_script", interrupt)
    result = call("check", write_queries(tmp_path))
    assert result.exit_code == 130
    assert result.stderr.strip() == "mmqjp: interrupted"


def test_control_characters_of_messages_do_not_reach_the_terminal(files):
    result = call(*files, "--engine", "\x1b[31mred")
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr


def test_the_run_that_all_these_vary_works(files):
    assert call(*files, "--engine", "duckdb").stdout.splitlines() == LINES


@pytest.mark.parametrize("call_of", [("matches", "--limit"), ("show", "--limit"), ("query", "SELECT 1", "--most-rows")])
def test_a_number_that_no_store_can_hold_is_a_usage_error(tmp_path, call_of):
    state = ("--state", tmp_path)
    result = call(*call_of, "99999999999999999999", *state)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "99999999999999999999 is too large: the most is 100000000000000000" in result.stderr


def test_the_largest_numbers_of_options_work(tmp_path, files):
    state, most = ("--state", tmp_path / "state"), str(10**17)
    bounds = [part for name in ("matches", "outputs", "work") for part in (f"--max-{name}", most)]
    run = call(*files, "--engine", "duckdb", *state, *bounds, "--batch-size", most)
    assert run.exit_code == 0, run.stderr
    for one in (("matches", "--limit"), ("show", "--limit"), ("query", "SELECT 1", "--most-rows")):
        result = call(*one, most, *state)
        assert (result.exit_code, result.stderr) == (0, ""), one
