"""Names of the form `q1`: queries without PUBLISH are given them, and others may PUBLISH them."""

from __future__ import annotations

from pathlib import Path

import pytest

import mmqjp
from feeds.documents import Document
from mmqjp.engine import Session
from tests.support.cli import mmqjp as call
from tests.support.cli import write_documents, write_queries
from xscl.parser import parse_script


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("S//a; S//b", ("q1", "q2")),
        ("S//a PUBLISH q1; S//b", ("q1", "q2")),
        ("S//a; S//b PUBLISH q1", ("q2", "q1")),
        ("S//a; S//b; S//c PUBLISH q1", ("q2", "q3", "q1")),
        ("S//a PUBLISH q2; S//b; S//c PUBLISH q3; S//d", ("q2", "q4", "q3", "q5")),
        ("S//a PUBLISH q01; S//b PUBLISH q0; S//c", ("q01", "q0", "q3")),
    ],
)
def test_a_query_without_publish_takes_its_position_or_the_next_number_that_is_free(script, names):
    assert parse_script(script).names() == names
    with Session("duckdb") as engine:
        assert tuple(engine.subscribe(script)) == names


def test_a_published_number_is_a_stream_and_an_unnamed_one_is_not():
    with Session("duckdb") as engine:
        engine.subscribe("S//a PUBLISH q1; S//b; q1//a PUBLISH first; q2//b PUBLISH second")
        got = engine.process([Document("d", "<x><a/><b/></x>", time=0)])
        assert sorted(output.query for output in got) == ["first", "q1", "q2"]


def test_published_numbers_count_in_a_store_too(tmp_path: Path):
    with Session("duckdb", state=tmp_path) as engine:
        assert engine.subscribe("S//a PUBLISH q7") == ["q7"]
        assert engine.subscribe("S//b") == ["q8"]
    with Session("duckdb", state=tmp_path) as engine:
        assert [s.publishes for s in engine.registry.subscriptions.values()] == [True, False]
        assert engine.subscribe("S//c") == ["q9"]
        assert engine.subscribe("S//d PUBLISH q7") == ["q7"]
        assert [s.text for s in engine.registry.named("q7")] == ["FROM S//d PUBLISH q7"]


@pytest.mark.parametrize("add", [False, True])
def test_the_name_of_an_unnamed_query_of_the_store_is_refused(tmp_path: Path, add: bool):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe("S//a")
        with pytest.raises(mmqjp.NameTaken, match="q1 is already the name of a query without PUBLISH"):
            engine.subscribe("S//b PUBLISH other; S//c PUBLISH q1", add=add)
        assert list(engine.queries()) == ["q1"]
        engine.unsubscribe("q1")
        assert engine.subscribe("S//c PUBLISH q1") == ["q1"]


def test_a_run_continues_with_published_numbers(tmp_path: Path):
    documents = write_documents(tmp_path / "documents.jsonl")
    run: list[str | Path] = ["run", "--documents", documents, "--engine", "duckdb", "--state", tmp_path / "state"]
    run.append("--queries")
    queries = write_queries(tmp_path, 'FROM S//blog->b[./author = "Ada"];\nFROM S//book->b PUBLISH q1\n')
    first, again = call(*run, queries), call(*run, queries)
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert first.stdout.count('"query": "q2"') == 1 and first.stdout.count('"query": "q1"') == 2
    assert again.stdout == ""
    write_queries(tmp_path, 'FROM S//blog->b[./author = "Ada"];\nFROM S//book->b PUBLISH q2\n')
    taken = call(*run, queries)
    assert taken.exit_code == 1
    assert taken.stderr.endswith(
        "q2 is already the name of a query without PUBLISH; PUBLISH under another name, or remove it\n"
    )
