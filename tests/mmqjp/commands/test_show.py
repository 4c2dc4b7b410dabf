"""`mmqjp show`: documents of paths and of a store, shapes, dead letters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import DOCUMENTS, write_documents, write_queries
from tests.support.cli import mmqjp as call

FEED = """<rss version="2.0"><channel><title>T</title><link>https://a.example/</link>
<item><title>One</title><guid isPermaLink="false">1</guid><pubDate>Thu, 01 Jan 2026 00:00:00 GMT</pubDate></item>
</channel></rss>"""


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "documents.jsonl")


def heads(text: str) -> list[str]:
    return [line.split("  ")[1] for line in text.splitlines() if line.startswith("S  ")]


def test_a_document_has_its_stream_id_and_time(documents):
    result = call("show", documents, "--limit", "1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "S  d1  2026-01-01T00:00:00Z  shape 1\n0  <book>\n1    <author>Ada</author>\n   </book>\n\n"
    )


def test_a_few_of_each_shape_are_shown_and_the_others_are_counted(tmp_path):
    some = [{**DOCUMENTS[n % 4], "id": f"x{n}"} for n in range(9)]
    result = call("show", write_documents(tmp_path / "d.jsonl", some))
    assert heads(result.stdout) == ["x0", "x1", "x2", "x3"]
    assert result.stdout.endswith("\n\nshape 1: 3 more\nshape 2: 2 more\n")
    some = [{"id": f"x{n}", "time": "2026-01-01", "xml": f"<a{n // 2}/>"} for n in range(31)]
    result = call("show", write_documents(tmp_path / "d.jsonl", some))
    assert len(heads(result.stdout)) == 24
    assert result.stdout.endswith("7 documents of 4 other shapes: --limit N shows the first N documents\n")


def test_entries_of_feeds_are_shown_as_items_and_as_they_are(tmp_path):
    (tmp_path / "feed.xml").write_text(FEED)
    item = call("show", "--feeds", tmp_path / "feed.xml").stdout
    assert "  <item>\n" in item and "  <timestamp>2026-01-01T00:00:00Z</timestamp>\n" in item
    assert "<pubDate>" in call("show", "--feeds=raw", tmp_path / "feed.xml").stdout


def test_dead_letters_are_shown_with_their_reason(tmp_path):
    broken = {"id": "x", "time": "2026-01-01", "xml": "<a>\u009b</b>"}
    path = write_documents(tmp_path / "d.jsonl", [broken, DOCUMENTS[0]])
    with path.open("a") as file:
        file.write("no json\n" * 6)
    result = call("show", path)
    assert result.exit_code == 0
    first = result.stdout.splitlines()[:2]
    assert first[0].startswith("dead letter  x  line 1, column ") and first[1] == "  <a>\ufffd</b>"
    assert result.stdout.count("dead letter  ") == 5
    assert heads(result.stdout) == ["d1"] and result.stdout.endswith("2 more dead letters\n")


def test_ids_and_streams_choose(tmp_path):
    some = [DOCUMENTS[0], {**DOCUMENTS[1], "stream": "T"}, DOCUMENTS[2]]
    path = write_documents(tmp_path / "d.jsonl", some)
    assert heads(call("show", path, "--id", "d3").stdout) == ["d3"]
    assert call("show", path, "--stream", "T").stdout.startswith("T  d2  ")
    assert call("show", path, "--id", "d9").stdout == "no documents\n"


def test_documents_of_a_store(tmp_path, documents):
    state = ("--state", tmp_path / "state")
    queries = write_queries(tmp_path, "FROM S//book->b JOIN {b = c, INF} S//blog->c; FROM S//blog PUBLISH it_s")
    assert call("run", "--queries", queries, "--documents", documents, "--engine", "duckdb", *state).exit_code == 0
    assert heads(call("show", *state).stdout) == ["d1", "d2", "d3", "d4"]
    assert heads(call("show", *state, "--id", "d2").stdout) == ["d2"]
    assert call("show", *state, "--id", "it's").stdout == "no documents\n"
    assert heads(call("show", *state, "--limit", "1").stdout) == ["d1"]
    both = call("show", documents, *state)
    assert both.exit_code == 2 and "mmqjp list NAME --state DIR" in both.stderr
    assert call("list", "it_s", *state).stdout.startswith("it_s: active, since ")
    assert json.loads(call("list", "it_s", *state, "--json").stdout)["name"] == "it_s"
    nothing = call("show")
    assert nothing.exit_code == 2 and "name the documents" in nothing.stderr
    missing = call("show", tmp_path / "nowhere")
    assert missing.exit_code == 1 and missing.stderr.endswith(": no such file or directory; check the path\n")
