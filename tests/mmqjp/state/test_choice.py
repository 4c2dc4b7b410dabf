"""`auto` stands for the engine of the state, else for Spark if it is asked for or needed, else for DuckDB."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from feeds.tail import EXPANDED, input_bytes
from mmqjp.commands import demo
from mmqjp.commands import formats as opening
from mmqjp.commands.formats import chosen_engine
from mmqjp.engine import CoreEngine, Session
from mmqjp.state.choice import MOST_FOR_DUCKDB, EngineChoice, choose_engine
from tests.support.cli import mmqjp as call
from tests.support.cli import write_documents, write_queries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBMIT = {"PYSPARK_GATEWAY_PORT": "12345"}


def chosen(**given: object) -> str:
    return choose_engine(**{"environ": {}, "session_runs": lambda: False, **given}).engine  # type: ignore[arg-type]  # the tests give right ones


def test_spark_is_chosen_where_it_is_at_hand_or_needed():
    assert chosen() == chosen(documents=MOST_FOR_DUCKDB) == "duckdb"
    assert chosen(documents=MOST_FOR_DUCKDB + 1) == "spark"
    for given in ({"asked_by": "--master"}, {"environ": SUBMIT}, {"session_runs": lambda: True}):
        assert (chosen(**given), chosen(**given, engine="duckdb")) == ("spark", "duckdb"), given


def test_the_engine_of_the_state_comes_first(tmp_path: Path):
    (tmp_path / "spark" / "manifests").mkdir(parents=True)
    Session("duckdb", state=tmp_path / "duckdb").close()
    for engine in ("duckdb", "spark"):
        assert chosen(state=tmp_path / engine, asked_by="--master", documents=MOST_FOR_DUCKDB + 1) == engine
        assert chosen(state=tmp_path / engine) == engine
    assert chosen(state=tmp_path / "none") == "duckdb"


def test_why_is_told_unless_the_engine_was_asked_for():
    assert choose_engine("spark") == EngineChoice("spark")
    assert choose_engine(environ=SUBMIT).why == "spark-submit started this process"


def test_an_engine_of_the_library_is_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "mmqjp.engine.choose_engine", lambda *given: EngineChoice("duckdb") if given[0] == "auto" else 1 / 0
    )
    with CoreEngine(state=tmp_path / "state"):
        assert (tmp_path / "state" / "mmqjp.duckdb").exists()


def test_compressed_files_count_several_times_and_unfinished_ones_not_at_all(tmp_path: Path):
    (tmp_path / "a").mkdir()
    for name, size in (("a/x.xml", 10), ("a/y.jsonl.gz", 3), ("z.part", 99), (".hidden", 99)):
        (tmp_path / name).write_bytes(b"x" * size)
    assert input_bytes([tmp_path], 1000, feeds=False) == 10 + 3 * EXPANDED
    both = [tmp_path / "a/x.xml", tmp_path / "a", tmp_path / "gone"]
    assert input_bytes(both, 1000, feeds=False) == 20 + 3 * EXPANDED
    assert input_bytes([tmp_path], 5, feeds=False) > 5


def test_files_that_are_no_documents_do_not_count(tmp_path: Path):
    notes = b'{"url": "http://a.example/"}'
    for name, content in (
        ("a.xml", b"<rss/>"),
        ("a.json", notes),
        ("b.rss", b"<rss></rss>"),
        ("photo.jpg", b"x" * 999),
    ):
        (tmp_path / name).write_bytes(content)
    assert input_bytes([tmp_path], 10_000, feeds=True) == 17
    assert input_bytes([tmp_path], 10_000, feeds=False) == 6


def test_run_counts_as_many_bytes_as_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with (tmp_path / "photo.jpg").open("wb") as photo:
        photo.truncate(MOST_FOR_DUCKDB + 1)
    (tmp_path / "a.rss").write_text("<rss/>")
    sizes: list[object] = []

    def told(*given: object) -> EngineChoice:
        sizes.append(given[3])
        return EngineChoice("duckdb")

    monkeypatch.setattr(opening, "choose_engine", told)
    call("run", "--queries", write_queries(tmp_path), "--documents", tmp_path, "--feeds")
    assert sizes == [6]


def test_run_says_on_a_terminal_which_engine_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    path = write_documents(tmp_path / "d.jsonl")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert chosen_engine("duckdb", paths=[path]) == EngineChoice("duckdb")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(
        opening, "choose_engine", lambda *given: choose_engine(*given, environ={}, session_runs=lambda: False)
    )
    chosen_engine("auto", paths=[path])
    assert capsys.readouterr().err == "mmqjp: on duckdb: 256 MiB of documents or less\n"


def test_master_is_refused_for_a_state_on_duckdb(tmp_path: Path):
    path, queries, state = write_documents(tmp_path / "d.jsonl"), write_queries(tmp_path), tmp_path / "state"
    Session("duckdb", state=state).close()
    result = call("run", "--queries", queries, "--documents", path, "--state", state, "--master", "local[1]")
    assert result.exit_code == 2
    assert f"the engine is duckdb (the store in {state} is on it)" in result.stderr


@pytest.mark.soak
@pytest.mark.spark
def test_the_demo_gives_the_same_on_both(spark: SparkSession):
    result = call("demo", "--both")
    assert result.exit_code == 0, result.stderr
    (count,) = re.findall(r"^(\d+) matches on duckdb in", result.stdout, re.MULTILINE)
    assert int(count) > 5
    assert f"The same {count} matches on spark in" in result.stdout


def test_the_demo_fails_if_the_engines_differ(monkeypatch: pytest.MonkeyPatch):
    real, runs = demo.example_run, count()

    @contextmanager
    def answered(engine: str, *given: Any) -> Iterator[demo.DemoRun]:
        with real("duckdb", *given) as found:
            yield replace(found, lines=found.lines[next(runs) :])

    monkeypatch.setattr(demo, "example_run", answered)
    result = call("demo", "--both")
    assert (result.exit_code, "spark gives other lines" in result.stderr) == (1, True)
