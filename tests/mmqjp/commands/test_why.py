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
    result = mmqjp("why", "ffff", "--state", story)
    expected = "mmqjp: error: no output has the id ffff, nor one that begins so; mmqjp matches shows what there is\n"
    assert (result.exit_code, result.stderr) == (1, expected)


def test_why_not_says_what_is_in_the_way_of_documents_and_of_a_query(story):
    shown = mmqjp("why-not", "book_blog", "d3", "d1", "--state", story, "--utc")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "there is an output" in shown.stdout
    other = mmqjp("why-not", "book_blog", "d2", "d3", "--state", story, "--utc").stdout
    assert "because" in other and "passed" in other, other
    found = json.loads(mmqjp("why-not", "book_blog", "d1", "nothing", "--state", story, "--json").stdout)
    assert (found["kind"], found["query"]) == ("document", "book_blog")
    shown = mmqjp("why-not", "book_blog", "--state", story)
    assert "1 output in the store" in shown.stdout or "outputs in the store" in shown.stdout
    assert json.loads(mmqjp("why-not", "book_blog", "--state", story, "--json").stdout)["funnels"]
    assert "did you mean book_blog?" in mmqjp("why-not", "book_blo", "--state", story).stdout


def test_a_service_answers_beside_its_batches(story):
    alone = json.loads(mmqjp("why", "0", "--state", story, "--json").stdout)
    not_alone = json.loads(mmqjp("why-not", "book_blog", "d1", "d3", "--state", story, "--json").stdout)
    with Session("duckdb", state=story) as engine, QuestionRunner(engine, Spool(story), events := Events()):
        asked = Client(story, lambda: pytest.fail("another process holds it"), 30)
        assert asked.ask(WHY, {"id": alone["id"]}) == alone
        assert asked.ask(WHY_NOT, {"query": "book_blog", "documents": ["d1", "d3"]}) == not_alone
        assert asked.ask(WHY_NOT, {"query": "book_blog"})["funnels"]
        for do, arguments, said in (
            (WHY, {"id": "x"}, "is neither"),
            (WHY, {}, "lacks its id"),
            (WHY, {"id": "0" * 32}, "no output has"),
            (WHY_NOT, {"query": 1}, "lacks its query"),
            (WHY_NOT, {"query": "q", "documents": "d1"}, "no list of texts"),
            (WHY_NOT, {"query": "q", "documents": [1]}, "no list of texts"),
        ):
            with pytest.raises(ValueError, match=said):
                asked.ask(do, arguments)
    assert events.named("command")[0] == {"do": "why", "id": alone["id"]}


# ---------------------------------------------------------------- event queries

EVENTS = """DEFINE EVENT Book FROM S//book->b (author := b/author);
DEFINE EVENT Blog FROM S//blog->b (writer := b/author);
FROM Book NEXT{author = writer} Blog WITHIN 90 d PUBLISH next_blog"""


def test_event_queries_are_retraced(tmp_path):
    queries, documents = write_queries(tmp_path, EVENTS), write_documents(tmp_path / "documents.jsonl")
    next_blogs = tmp_path / "state"
    arguments = ("--engine", "duckdb", "--queries", queries, "--documents", documents, "--state", next_blogs)
    result = mmqjp("run", *arguments, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
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
