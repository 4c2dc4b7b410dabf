"""The command line as such: help, version, usage errors, errors in one line."""

from importlib.metadata import version

import pytest

from join_stage.store.protocol import OtherSession
from join_stage.store.spark.java import JavaNotFound
from mmqjp.cli import main
from tests.support.cli import LINES, write_queries
from tests.support.cli import mmqjp as call


def test_the_version_and_the_help_of_each_command():
    result = call("--version")
    assert (result.exit_code, result.stdout) == (0, f"mmqjp {version('mmqjp')}\n")
    result = call()
    assert (result.exit_code, result.stdout) == (2, "") and "Commands:" in result.stderr
    listed = call("--help").stdout.partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines()] == sorted(main.commands) and "..." not in listed
    for command in ([], *([name] for name in main.commands)):
        result = call(*command, "--help")
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
    result = call(*files, *options)
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert result.stderr.startswith("mmqjp: error: ") and result.stderr.endswith("(see mmqjp run --help)\n")
    assert message in result.stderr and "\x1b" not in result.stderr


def test_missing_options_and_unknown_commands(files):
    missing = call("run", "--documents", ".")
    assert (missing.exit_code, missing.stderr) == (
        2,
        "mmqjp: error: name the queries with --queries, or a --state that has queries (see mmqjp run --help)\n",
    )
    unknown = call("fly")
    assert (unknown.exit_code, unknown.stderr) == (2, "mmqjp: error: No such command 'fly'. (see mmqjp --help)\n")


def test_durations_are_written_as_in_queries(files):
    all_of_them = ["0", "90", "1.5 h", "30min", "2w", "infinity"]
    options = [part for n, lateness in enumerate(all_of_them) for part in ("--lateness", f"T{n}={lateness}")]
    assert call(*files, "--engine", "duckdb", *options).stdout.splitlines() == LINES


# ---------------------------------------------------------------- failures


def test_query_file_with_mistakes_shows_each(files, tmp_path):
    queries = write_queries(tmp_path, "FROM S//a->x JOIN {y = z, 1} S//b->z;\nFROM S//a[;\n")
    result = call(*files, "--engine", "duckdb")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"{queries}:1:20: error: ")
    assert f"{queries}:2:" in result.stderr
    assert result.stderr.count("^") >= 2


def test_files_that_cannot_be_read_or_written(files, tmp_path):
    nowhere = call(*files, "--engine", "duckdb", "--output", "nowhere/out.jsonl")
    assert nowhere.exit_code == 1 and nowhere.stderr.endswith("No such file or directory; check the path\n")
    (tmp_path / "queries.xscl").write_bytes(b"-- fine\nFROM S//caf\xe9")
    result = call(*files, "--engine", "duckdb")
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert "queries.xscl:2: the file is not UTF-8 text" in result.stderr


def test_tracebacks_only_with_debug(files, tmp_path, monkeypatch):
    def fail(script):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("mmqjp.commands.check.summarise_script", fail)
    queries = tmp_path / "queries.xscl"
    plain = call("check", queries)
    expected = "mmqjp: error: unexpected RuntimeError: first line; run again with --debug to see where\n"
    assert (plain.exit_code, plain.stderr) == (1, expected)
    for debug in (["--debug", "check"], ["check", "--debug"]):
        shown = call(*debug, queries)
        assert shown.exit_code == 1 and "Traceback (most recent call last)" in shown.stderr
        assert shown.stderr.endswith(plain.stderr)
    write_queries(tmp_path, "FROM")
    plain, shown = call(*files, "--engine", "duckdb"), call(*files, "--engine", "duckdb", "--debug")
    assert "Traceback" not in plain.stderr and "Traceback" in shown.stderr
    assert shown.stderr.endswith(plain.stderr)


@pytest.mark.parametrize("error", [JavaNotFound("Spark needs Java"), OtherSession("a Spark session runs already")])
def test_what_is_wrong_with_spark_is_said_in_one_line(files, monkeypatch, error):
    def refuse(*arguments, **options):
        raise error

    monkeypatch.setattr("mmqjp.commands.formats.Session", refuse)
    result = call(*files, "--engine", "spark", "--master", "local[1]")
    assert (result.exit_code, result.stderr) == (1, f"mmqjp: error: {error}\n")


def test_interrupt_outside_a_run(tmp_path, monkeypatch):
    def interrupt(script):
        raise KeyboardInterrupt

    monkeypatch.setattr("mmqjp.commands.check.summarise_script", interrupt)
    result = call("check", write_queries(tmp_path))
    assert (result.exit_code, result.stderr.strip()) == (130, "mmqjp: interrupted")


def test_the_largest_numbers_of_options_work_and_larger_ones_are_usage_errors(tmp_path, files):
    state, most = ("--state", tmp_path / "state"), str(10**17)
    bounds = [part for name in ("matches", "outputs", "work") for part in (f"--max-{name}", most)]
    run = call(*files, "--engine", "duckdb", *state, *bounds, "--batch-size", most)
    assert run.exit_code == 0, run.stderr
    for one in (("matches", "--limit"), ("show", "--limit"), ("query", "SELECT 1", "--most-rows")):
        result = call(*one, most, *state)
        assert (result.exit_code, result.stderr) == (0, ""), one
        result = call(*one, "99999999999999999999", *state)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert "99999999999999999999 is too large: the most is 100000000000000000" in result.stderr
