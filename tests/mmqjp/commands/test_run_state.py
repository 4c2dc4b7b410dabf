"""`mmqjp run --state` again and again: which queries it answers, and what it writes where."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from pyspark.sql import SparkSession

from mmqjp.engine import Session
from tests.support.cli import DOCUMENTS, LINES, QUERIES, mmqjp, write_documents, write_queries
from tests.support.faults import FaultySession, Injected
from tests.support.service import PAIRS, Directory
from xscl.parser import parse_script

BLOGS = "FROM S//blog->b PUBLISH blogs"
BOOKS = "FROM S//book->b PUBLISH books"

Run = Callable[..., Result]
Document = dict[str, str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Calls `mmqjp run` with a state and a file of output lines; without queries for None."""

    def call(queries: str | None, documents: list[Document], *options: object, engine: str = "duckdb") -> Result:
        path = write_documents(tmp_path / "documents.jsonl", documents)
        asked = () if queries is None else ("--queries", write_queries(tmp_path, queries))
        arguments = (*asked, "--documents", path, "--engine", engine, "--state", tmp_path / "state")
        return mmqjp("run", *arguments, "--output", tmp_path / "out.jsonl", *map(str, options))

    return call


def lines(tmp_path: Path) -> list[str]:
    return (tmp_path / "out.jsonl").read_text().splitlines()


def found(tmp_path: Path) -> list[tuple[str, str]]:
    """The query and the last document of each output line."""
    rows = [json.loads(line) for line in lines(tmp_path)]
    return [(row["query"], row["documents"][-1]) for row in rows]


EVERYTHING, FIRST, REST, NONE = DOCUMENTS, DOCUMENTS[:3], DOCUMENTS[3:], list[Document]()


# ---------------------------------------------------------------- the file


def test_a_run_with_nothing_new_leaves_the_file_as_it_is(run: Run, tmp_path: Path):
    for time in (0, 1):
        result = run(QUERIES, EVERYTHING)
        assert (result.exit_code, result.stderr, lines(tmp_path)) == (0, "", LINES)
        assert ((tmp_path / "out.jsonl").stat().st_mtime == 1) == (time == 1)
        os.utime(tmp_path / "out.jsonl", (1, 1))


def test_each_run_appends_its_lines_in_their_order(run: Run, tmp_path: Path):
    documents = [{"id": f"d{n}", "time": f"2026-01-{n:02}", "xml": "<blog/>"} for n in range(1, 9)]
    for part in (documents[7:3:-1], documents[3::-1]):  # the first run has the later ones, each the last one first
        assert run(BLOGS, part, "--batch-size", "1").exit_code == 0
    assert [document for _, document in found(tmp_path)] == ["d5", "d6", "d7", "d8", "d1", "d2", "d3", "d4"]


def test_a_file_that_was_there_or_was_cut_is_appended_to(run: Run, tmp_path: Path):
    (tmp_path / "out.jsonl").write_text("mine")
    run(QUERIES, FIRST)
    run(QUERIES, FIRST)
    assert lines(tmp_path) == ["mine", *LINES[:2]]
    (tmp_path / "out.jsonl").write_text("")
    result = run(QUERIES, REST)
    assert (result.exit_code, lines(tmp_path)) == (0, LINES[2:])
    assert result.stderr.startswith(f"mmqjp: {tmp_path / 'out.jsonl'} was cut to 0 of ")
    assert run(QUERIES, REST).stderr == ""


def test_standard_output_and_a_file_share_what_is_found(run: Run, tmp_path: Path):
    run(QUERIES, FIRST)
    assert run(QUERIES, REST, "--output", "-").stdout.splitlines() == LINES[2:]
    run(QUERIES, EVERYTHING)
    assert lines(tmp_path) == LINES[:2]


# ---------------------------------------------------------------- the queries


def test_the_queries_are_those_of_the_file(run: Run, tmp_path: Path):
    assert run(f"{BOOKS}; {BLOGS}; FROM S//blog->b", FIRST).stderr == ""
    result = run(f"{BLOGS}; FROM S//blog->b[./author]; FROM S//blog->b[./author->a] PUBLISH books", EVERYTHING)
    path = tmp_path / "queries.xscl"
    assert result.stderr.splitlines() == [
        f"mmqjp: 1 query of the state ended (not in {path}): q3",
        f"mmqjp: 1 query replaced by those in {path}: books",
    ]
    first = [("books", "d1"), ("books", "d2"), ("blogs", "d3"), ("q3", "d3")]
    assert found(tmp_path) == [*first, ("blogs", "d4"), ("books", "d4"), ("q4", "d4")]
    with Session("duckdb", state=tmp_path / "state") as engine:
        assert sorted(engine.queries()) == ["blogs", "books", "q4"]


def test_queries_that_are_the_same_stay_wherever_they_stand(run: Run, tmp_path: Path):
    run(f"FROM S//book->b; {BLOGS}; FROM S//blog->b", FIRST)
    result = run(f"FROM S//blog->b; FROM S//book->b; {BLOGS}", REST)
    assert result.stderr == ""
    assert found(tmp_path) == [("q1", "d1"), ("q1", "d2"), ("blogs", "d3"), ("q3", "d3"), ("blogs", "d4"), ("q3", "d4")]


def test_of_equal_queries_as_many_stay_as_the_file_has(run: Run, tmp_path: Path):
    run("; ".join(["FROM S//blog->b"] * 3), NONE)
    assert "1 query of the state ended (not in" in run("; ".join(["FROM S//blog->b"] * 2), EVERYTHING).stderr
    assert len(lines(tmp_path)) == 4
    run("; ".join(["FROM S//blog->b"] * 3), NONE)
    with Session("duckdb", state=tmp_path / "state") as engine:
        assert len(engine.queries()) == 3


def test_what_an_ended_query_had_found_is_still_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*arguments: object) -> int:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("mmqjp.commands.run.deliver", fail)
        assert run(f"{BOOKS}; {BLOGS}", FIRST).exit_code == 1
    assert lines(tmp_path) == []
    run(BLOGS, EVERYTHING)
    assert found(tmp_path) == [("books", "d1"), ("books", "d2"), ("blogs", "d3"), ("blogs", "d4")]


def test_without_a_file_the_queries_of_the_state_are_answered(run: Run, tmp_path: Path):
    run(QUERIES, FIRST)
    result = run(None, REST)
    assert (result.exit_code, result.stderr, lines(tmp_path)) == (0, "", LINES)


def test_without_any_queries_there_is_nothing_to_run(run: Run, tmp_path: Path):
    nowhere = run(None, FIRST)
    assert nowhere.exit_code == 2 and "name the queries with --queries" in nowhere.stderr
    assert not (tmp_path / "state").exists()
    Session("duckdb", state=tmp_path / "state").close()
    none = run(None, FIRST)
    expected = f"mmqjp: error: {tmp_path / 'state'} has no queries; name a file of queries with --queries\n"
    assert (none.exit_code, none.stderr) == (1, expected)


def test_queries_that_cannot_be_kept_leave_those_that_were_there(run: Run, tmp_path: Path):
    run(BLOGS, FIRST)
    with FaultySession("duckdb", state=tmp_path / "state") as engine:
        with engine.store.failing("commit"), pytest.raises(Injected):
            engine.ensure(parse_script(BOOKS), "exact")
        assert list(engine.queries()) == ["blogs"]
    assert run(None, REST).exit_code == 0
    assert found(tmp_path) == [("blogs", "d3"), ("blogs", "d4")]


def test_a_service_replaces_the_names_of_its_file_and_leaves_the_others(tmp_path: Path):
    place = Directory(tmp_path)

    def stream(queries: str) -> list[str]:
        options = ["--queries", write_queries(tmp_path, queries), "--source", place.drops, "--state", place.state]
        more = ["--output", place.output, "--trigger", "available-now", "--log", "json", "--engine", "duckdb"]
        result = mmqjp("stream", *map(str, [*options, *more]))
        assert result.exit_code == 0
        events = map(json.loads, result.stderr.splitlines())
        return [event["what"] for event in events if event["event"] == "queries"]

    assert stream(f"{PAIRS}; FROM S//a->x") == []
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe("FROM S//b->x PUBLISH live")
    assert stream(f"FROM S//a->x; {PAIRS}") == []
    narrower = PAIRS.replace("10", "5")
    assert stream(f"{narrower}; FROM S//a->x; FROM S//c->x") == [
        f"1 query replaced by those in {tmp_path / 'queries.xscl'}: pairs"
    ]
    with Session("duckdb", state=place.state) as engine:
        kept = engine.queries()
    assert sorted(kept) == ["live", "pairs", "q2", "q3"] and "5" in kept["pairs"][0] and len(kept["pairs"]) == 1


def test_runs_with_a_state_on_spark(run: Run, tmp_path: Path, spark: SparkSession):
    run(f"{QUERIES}; {BOOKS}", FIRST, engine="spark")
    first = found(tmp_path)
    result = run(QUERIES, EVERYTHING, engine="spark")
    assert "1 query of the state ended (not in" in result.stderr and result.stderr.endswith(": books\n")
    assert first == [("books", "d1"), ("books", "d2"), ("book_blog", "d3"), ("q2", "d3")]
    assert found(tmp_path) == [*first, ("book_blog", "d4")]
    before = lines(tmp_path)
    run(QUERIES, EVERYTHING, engine="spark")
    assert lines(tmp_path) == before
