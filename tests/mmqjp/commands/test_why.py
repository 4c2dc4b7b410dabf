"""`mmqjp why`: what it prints of a store that nobody holds, and beside the batches of one that a service holds."""

from __future__ import annotations

import json

import pytest

from mmqjp.engine import Session
from mmqjp.service.commands import Client
from mmqjp.service.spool import Spool
from mmqjp.service.sql_question import WHY, WHY_NOT, QuestionRunner
from tests.support.cli import mmqjp, write_documents, write_queries
from tests.support.service import Events


@pytest.fixture
def story(tmp_path, monkeypatch):
    """A state with the three matches of the small story."""
    monkeypatch.delenv("COLUMNS", raising=False)
    queries, documents, state = write_queries(tmp_path), write_documents(tmp_path / "documents.jsonl"), tmp_path / "s"
    result = mmqjp(
        "run", "--engine", "duckdb", "--queries", queries, "--documents", documents, "--state", state,
        "--output", tmp_path / "o",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    return state


SHOWN = """\
book_blog  output {id}, number 0, at 2026-01-03T00:00:00Z
────────────────────────────────────────────────────────────────────────────────────────────────────
2026-01-01 00:00  Ada
                  book of S
2026-01-03 00:00  Ada
                  blog of S
         because  same author "Ada"
           times  2 d from the first to the last; FOLLOWED BY allows 1 w

"""


def test_an_output_of_a_store_that_nobody_holds(story):
    found = json.loads(mmqjp("why", "0", "--state", story, "--json").stdout)
    result = mmqjp("why", found["id"][:10], "--state", story, "--utc")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(SHOWN.format(id=found["id"]))
    assert found["why"]["joined"][0]["value"] == "Ada" and found["fed"] == []


def test_a_service_answers_beside_its_batches(story):
    alone = json.loads(mmqjp("why", "0", "--state", story, "--json").stdout)
    with Session("duckdb", state=story) as engine, QuestionRunner(engine, Spool(story), events := Events()):
        asked = Client(story, lambda: pytest.fail("another process holds it"), 30)
        assert asked.ask(WHY, {"id": alone["id"]}) == alone
        for arguments, said in (({"id": "x"}, "is neither"), ({}, "lacks its id"), ({"id": "0" * 32}, "no output has")):
            with pytest.raises(ValueError, match=said):
                asked.ask(WHY, arguments)
    assert events.named("command")[0] == {"do": "why", "id": alone["id"]}


def test_what_is_no_output_is_an_error_in_one_line(story):
    result = mmqjp("why", "ffff", "--state", story)
    assert result.exit_code == 1
    assert result.stderr == (
        "mmqjp: error: no output has the id ffff, nor one that begins so; mmqjp matches shows what there is\n"
    )


def test_why_not_says_what_is_in_the_way_of_documents(story):
    shown = mmqjp("why-not", "book_blog", "d3", "d1", "--state", story, "--utc")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "there is an output" in shown.stdout
    other = mmqjp("why-not", "book_blog", "d2", "d3", "--state", story, "--utc").stdout
    assert "because" in other and "passed" in other, other
    found = json.loads(mmqjp("why-not", "book_blog", "d1", "nothing", "--state", story, "--json").stdout)
    assert (found["kind"], found["query"]) == ("document", "book_blog")


def test_why_not_shows_the_funnel_of_a_query(story):
    shown = mmqjp("why-not", "book_blog", "--state", story).stdout
    assert "1 output in the store" in shown or "outputs in the store" in shown
    assert json.loads(mmqjp("why-not", "book_blog", "--state", story, "--json").stdout)["funnels"]
    assert "did you mean book_blog?" in mmqjp("why-not", "book_blo", "--state", story).stdout


def test_a_service_says_why_not_beside_its_batches(story):
    arguments = {"query": "book_blog", "documents": ["d1", "d3"]}
    alone = json.loads(mmqjp("why-not", "book_blog", "d1", "d3", "--state", story, "--json").stdout)
    with Session("duckdb", state=story) as engine, QuestionRunner(engine, Spool(story), Events()):
        asked = Client(story, lambda: pytest.fail("another process holds it"), 30)
        assert asked.ask(WHY_NOT, arguments) == alone
        assert asked.ask(WHY_NOT, {"query": "book_blog"})["funnels"]
        for bad in ({"query": 1}, {"query": "q", "documents": "d1"}, {"query": "q", "documents": [1]}):
            with pytest.raises(ValueError, match=r"lacks its query|no list of texts"):
                asked.ask(WHY_NOT, bad)


# ---------------------------------------------------------------- event queries

EVENTS = """DEFINE EVENT Book FROM S//book->b (author := b/author);
DEFINE EVENT Blog FROM S//blog->b (writer := b/author);
FROM Book NEXT{author = writer} Blog WITHIN 90 d PUBLISH next_blog"""


@pytest.fixture
def next_blogs(tmp_path, monkeypatch):
    """A state with the matches of an event query."""
    monkeypatch.delenv("COLUMNS", raising=False)
    queries, state = tmp_path / "events.xscl", tmp_path / "s"
    queries.write_text(EVENTS)
    documents = write_documents(tmp_path / "documents.jsonl")
    result = mmqjp(
        "run", "--engine", "duckdb", "--queries", queries, "--documents", documents, "--state", state,
        "--output", tmp_path / "o",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    return state


def test_event_queries_are_retraced(next_blogs):
    found = json.loads(mmqjp("why", "0", "--state", next_blogs, "--json").stdout)
    assert [part["name"] for part in found["events"]["parts"]] == ["Book", "NEXT Blog"]
    (condition,) = found["why"]["conditions"]
    assert condition["text"] == "author = writer"
    shown = mmqjp("why", "0", "--state", next_blogs, "--utc").stdout
    assert 'NEXT Blog  writer "Ada"' in shown and "NEXT Blog: DUR 2 d, at most 90 d, GAP 2 d" in shown
    first, second = found["documents"]
    other = json.loads(mmqjp("why-not", "next_blog", second, first, first, "--state", next_blogs, "--json").stdout)
    assert (other["kind"], other["outputs"]) == ("output", [found["id"]])
    funnel = mmqjp("why-not", "next_blog", "--state", next_blogs).stdout
    assert "events of the query" in funnel and "before Blog" in funnel
