"""`mmqjp query`, `show`, `matches`, `why` and `why-not`: what they print of a store, and beside a service."""

import csv
import io
import json
import re
import sys
import time
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
from lxml import html
from markdown_it import MarkdownIt

from mmqjp.commands import formats
from mmqjp.commands.formats import time_since
from mmqjp.commands.matches import registered_texts, store_of
from mmqjp.engine import Session
from mmqjp.present.item import IN_UTC, MatchFilter
from mmqjp.service.commands import MATCHES, Client, run_command
from mmqjp.service.spool import Command, Spool
from mmqjp.service.sql_question import WHY, WHY_NOT, QuestionRunner
from mmqjp.tables.schema import SCHEMA, TIMES
from tests.support.cli import DOCUMENTS, LINES, mmqjp, printed, refused, run_on, write_documents, write_queries
from tests.support.feed_server import rss
from tests.support.service import Events

SQL = "SELECT query, t1, nodes, documents, batch FROM outputs ORDER BY seq LIMIT 1"
HOSTILE = """SELECT '<b>&"|`*' AS "a|<b>", NULL AS n, '=1' AS f"""


@pytest.fixture
def asked(finished_story):
    return lambda sql, *options: printed("query", sql, "--state", finished_story, *options)


ROW = {"query": "book_blog", "t1": "2026-01-03T00:00:00Z", "nodes": {"x1": 0, "x4": 0}, "documents": ["d1", "d3"]}


def test_times_and_nodes_can_be_read(asked, tmp_path):
    (found,) = json.loads(asked(SQL, "--format", "json"))
    assert found.items() >= ROW.items() and json.loads(asked(SQL)) == found
    found = json.loads(asked("SELECT min(t0), max(o.t1), max(batch) FROM outputs o"))
    assert list(found.values())[:2] == ["2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"]
    (row,) = csv.DictReader(io.StringIO(asked(SQL, "--format", "csv")))
    read = {"t1": row["t1"], "nodes": json.loads(row["nodes"]), "documents": json.loads(row["documents"])}
    assert read.items() <= ROW.items()
    assert asked(SQL, "--format", "html", "--output", tmp_path / "rows.html") == ""
    assert (tmp_path / "rows.html").read_text().rstrip().endswith("</html>"), "it is written whole"


def test_hostile_texts_stay_texts(asked):
    (row,) = csv.reader(io.StringIO(asked(HOSTILE, "--format", "csv").split("\r\n", 1)[1]))
    assert row == ['<b>&"|`*', "", "'=1"]
    page = html.document_fromstring(asked(HOSTILE, "--format", "html"))
    assert [cell.text for cell in page.iter("th", "td")] == ["a|<b>", "n", "f", '<b>&"|`*', None, "=1"]
    text = MarkdownIt("commonmark").enable("table").render(asked(HOSTILE, "--format", "markdown"))
    cells: Any = html.document_fromstring(text).iter("th", "td")
    assert [cell.text_content() for cell in cells] == ["a|<b>", "n", "f", '<b>&"|`*', "", "=1"]


EVERY_TYPE = """SELECT sum(t1) AS s, 1.5 AS d, DATE '2026-01-02' AS day, 'x'::BLOB AS b, [1.5::DOUBLE] AS l,
{'a': DATE '2026-01-03'} AS o, 'nan'::DOUBLE AS f, true AS t FROM outputs"""
SAME_NAMES = "SELECT 1 AS x, 2 AS x, 3 AS x_2, 4 AS x"
ALIGNED = "SELECT 'a' AS name, 1 AS n UNION ALL SELECT 'bb', 20 ORDER BY n"


@pytest.mark.parametrize(
    ("sql", "format", "text"),
    [
        ("SELECT query, t0 FROM outputs LIMIT 0", "csv", "query,t0\r\n"),
        ("SELECT query FROM outputs LIMIT 0", "json", "[]\n"),
        (ALIGNED, "table", "\n name    n\n ─────────\n a       1\n bb     20\n\n"),
        (SAME_NAMES, "json", '[\n{"x": 1, "x_3": 2, "x_2": 3, "x_4": 4}\n]\n'),
        (SAME_NAMES, "jsonl", '{"x": 1, "x_3": 2, "x_2": 3, "x_4": 4}\n'),
        (SAME_NAMES, "csv", "x,x,x_2,x\r\n1,2,3,4\r\n"),
        (EVERY_TYPE, "jsonl", f'{{"s": {1767398400000000 * 2 + 1767484800000000}, "d": 1.5, "day": "2026-01-02", '
         '"b": "x", "l": [1.5], "o": {"a": "2026-01-03"}, "f": "nan", "t": true}\n'),
    ],
)  # fmt: skip
def test_answers_in_each_format(asked, sql, format, text):
    assert re.sub(" +\n", "\n", asked(sql, "--format", format)) == text


def test_every_time_of_the_tables_is_known():
    named = {name for table in SCHEMA.tables.values() for name in table.names}
    of_views = {"timestamp", "published", "updated", "first_seen"}
    assert {name for name in named if name.endswith("_at")} | {"t0", "t1", "time"} == TIMES - of_views
    with Session("duckdb") as engine:
        assert of_views <= {name for view in ("r_docts", "items") for name in engine.sql(f"FROM {view}").column_names}


def heads(text: str) -> list[str]:
    return [line.split("  ")[1] for line in text.splitlines() if line.startswith("S  ")]


def test_a_few_of_each_shape_are_shown_and_the_others_are_counted(tmp_path):
    some = [{**DOCUMENTS[n % 4], "id": f"x{n}"} for n in range(9)]
    text = printed(
        "show", write_documents(tmp_path / "d.jsonl", [*some, {**DOCUMENTS[0], "stream": "T"}]), "--stream", "S"
    )
    assert heads(text) == ["x0", "x1", "x2", "x3"] and text.endswith("\n\nshape 1: 3 more\nshape 2: 2 more\n")
    some = [{"id": f"x{n}", "time": "2026-01-01", "xml": f"<a{n // 2}/>"} for n in range(31)]
    text = printed("show", write_documents(tmp_path / "d.jsonl", some))
    assert len(heads(text)) == 24
    assert text.endswith("7 documents of 4 other shapes: --limit N shows the first N documents\n")


def test_entries_of_feeds_are_shown_as_items_and_as_they_are(tmp_path):
    (tmp_path / "feed.xml").write_text(rss("One"))
    assert "  <timestamp>2026-05-06T10:00:00Z</timestamp>\n" in printed("show", "--feeds", tmp_path / "feed.xml")
    assert "<pubDate>" in printed("show", "--feeds=raw", tmp_path / "feed.xml")


def test_dead_letters_are_shown_with_their_reason(tmp_path):
    broken = {"id": "x", "time": "2026-01-01", "xml": "<a>\u009b</b>"}
    path = write_documents(tmp_path / "d.jsonl", [broken, DOCUMENTS[0]])
    with path.open("a") as file:
        file.write("no json\n" * 6)
    text = printed("show", path)
    first, second, *_ = text.splitlines()
    assert first.startswith("dead letter  x  line 1, column ") and second == "  <a>\ufffd</b>"
    assert (text.count("dead letter  "), heads(text)) == (5, ["d1"]) and text.endswith("2 more dead letters\n")


def test_documents_of_a_store(tmp_path):
    state = ("--state", tmp_path / "state")
    queries = "FROM S//book->b JOIN {b = c, INF} S//blog->c; FROM S//blog PUBLISH it_s"
    assert run_on(tmp_path, *state, queries=queries).exit_code == 0
    assert heads(mmqjp("show", *state).stdout) == ["d1", "d2", "d3", "d4"]
    assert heads(mmqjp("show", *state, "--id", "d2").stdout) == ["d2"]
    assert mmqjp("show", *state, "--id", "it's").stdout == "no documents\n"
    assert heads(mmqjp("show", *state, "--limit", "1").stdout) == ["d1"]
    both = refused("show", tmp_path / "documents.jsonl", *state, status=2)
    assert "mmqjp list NAME --state DIR" in both
    assert printed("list", "it_s", *state).startswith("it_s: active, since ")
    assert json.loads(printed("list", "it_s", *state, "--json"))["name"] == "it_s"
    assert refused("show", tmp_path / "nowhere").endswith(": no such file or directory; check the path\n")


def shown(state, *options):
    return printed("matches", "--state", state, *options)


def test_lines_of_matches_have_titles_and_joins_besides(story):
    """docs/matches.md shows the other formats."""
    lines = [json.loads(line) for line in shown(story).splitlines()]
    assert [json.loads(line).items() <= found.items() for line, found in zip(LINES, lines, strict=True)] == [True] * 3
    assert [[item["title"] for item in line["items"]] for line in lines] == [["Ada", "Ada"], ["Ada"], ["Bob", "Bob"]]
    assert [len(line["why"]["joined"]) for line in lines] == [1, 0, 1]


def test_a_query_a_time_and_a_number_choose_matches(story):
    for options, expected in (
        ("--limit 1 --query q2", [1]),
        ("--since 2026-01-03T00:00:01Z", [2]),
        ("--since 2026-01-04", [2]),
        ("--since 2026-01-04 --tz Asia/Kathmandu", [2]),
        ("--since 2026-01-03 --tz Pacific/Pago_Pago", [2]),
        ("--since 40000d --query book_blog", [0, 2]),
    ):
        found = [json.loads(line)["seq"] for line in shown(story, *options.split()).splitlines()]
        assert found == expected, options


def test_the_formats_for_people_show_the_newest_and_how_many_there_are(story, monkeypatch):
    assert shown(story, "--format", "markdown", "--limit", "2").startswith("**the newest 2 of 3 matches**\n")
    monkeypatch.setattr("mmqjp.commands.formats.SHOWN", 1)
    assert shown(story, "--format", "html").count('<li class="match">') == 1
    page = story.with_name("page.html")
    for written in (lambda *to: shown(story, *to), lambda *to: run_on(story.parent, *to).stdout):
        assert written("--format", "html", "--output", page) == ""
        assert page.read_text("utf-8").count("<!doctype html>") == 1
    assert "FROM S//book-&gt;x1" in page.read_text("utf-8")
    assert len(json.loads(shown(story, "--format", "json"))) == 3


def test_people_see_times_in_a_zone_and_programs_in_utc(story, monkeypatch):
    monkeypatch.setenv("MMQJP_TZ", "Asia/Kathmandu")
    sql = ("query", "SELECT t0 FROM outputs WHERE seq = 0")
    in_zone = (
        ("matches", "--format", "table"), ("matches", "--format", "html"), ("why", "0"), ("show",), ("status",),
        ("list", "q2"), (*sql, "--format", "markdown"),
    )  # fmt: skip
    for command in (*in_zone, ("matches",), ("why", "0", "--json"), (*sql, "--format", "csv")):
        found = printed(*command, "--state", story)
        assert ("05:45" in found) is (command in in_zone), command
        assert "05:45" not in printed(*command, "--state", story, "--tz", "UTC"), command
    assert "3 matches, times in +0545" in shown(story, "--format", "table")
    monkeypatch.setenv("TZ", "XYZ-3")
    time.tzset()
    assert "3 matches, times in XYZ" in shown(story, "--format", "table", "--tz", "local")
    monkeypatch.undo()
    time.tzset()
    for name, hint in (("Europe/Berlim", "did you mean Europe/Berlin?"), ("../x", "write a name like Europe/Berlin")):
        assert f"there is no time zone '{name}'; {hint}" in refused("status", "--state", story, "--tz", name, status=2)
    monkeypatch.setattr("mmqjp.commands.formats.available_timezones", set)
    assert "install tzdata" in refused("status", "--state", story, "--tz", "Mars/Olympus", status=2)


def test_what_cannot_be_shown(story, tmp_path):
    assert time_since("2d", IN_UTC, now=2 * 86_400_000_000 + 7) == 7 and time_since("INF", IN_UTC, now=5) < -(10**15)
    Session("duckdb", state=tmp_path / "empty").close()
    assert shown(tmp_path / "empty", "--format", "table") == "0 matches\n"
    for name, message in (
        ("book_blok", f"no query of {story} is called 'book_blok'; did you mean book_blog?"),
        ("'x", f'no query of {story} is called "\'x"; there are: book_blog, q2'),
    ):
        assert refused("matches", "--state", story, "--query", name) == f"mmqjp: error: {message}\n"
    for since in ("yesterday", "2026-13-01", "3 months"):
        assert "--since" in refused("matches", "--state", story, "--since", since, status=2)


@pytest.mark.parametrize("looked_through", [1, pytest.param(20_000, marks=pytest.mark.soak)])
def test_a_service_hands_over_the_same_matches_in_pages(story, looked_through, monkeypatch):
    monkeypatch.setattr("mmqjp.service.commands.LOOKED_THROUGH", looked_through)
    asked = {
        "": MatchFilter(),
        "--query book_blog": MatchFilter("book_blog"),
        "--since 2026-01-04T00:00Z": MatchFilter(None, 1767484800000000),
        "--query q2 --limit 1": MatchFilter("q2", 0, 1),
    }
    expected = {options: [*map(json.loads, shown(story, *options.split()).splitlines())] for options in asked}
    with Session("duckdb", state=story) as engine:

        def ask(do, arguments):  # commands and answers pass as JSON
            answer = run_command(engine, Command("1", do, json.loads(json.dumps(arguments))))
            assert answer.error is None
            return json.loads(json.dumps(answer.result))

        with store_of(Mock(ask=ask, reading=nullcontext)) as (select, matches_after):
            for options, wanted in asked.items():
                found = [match.to_dict() for match in matches_after(wanted, wanted.start(select))]
                assert json.loads(json.dumps(found)) == expected[options], options
            assert registered_texts(select, "q2") == {"q2": ['FROM S//blog->b[./author = "Ada"]']}
        for arguments in ({}, {"after": "0"}, {"after": 0, "name": 1}, {"after": 0, "since": "x"}):
            error = run_command(engine, Command("1", MATCHES, arguments)).error
            assert error is not None and "a page of matches is asked for by" in error


def test_a_terminal_gets_a_table_and_a_file_gets_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert formats.chosen_format(None, None) == "table"
    assert formats.chosen_format("csv", None) == "csv"
    assert formats.chosen_format(None, tmp_path / "x") == "jsonl"


def test_run_shows_the_matches_of_this_run_and_leaves_the_lines_to_the_next(tmp_path):
    state, table = tmp_path / "state", ("--format", "table")
    heads = ["book_blog  2 matches", "q2  1 match", "3 matches, times in UTC"]
    found = run_on(tmp_path, "--state", state, *table).stdout
    assert [line for line in found.splitlines() if "match" in line] == heads and shown(state, *table) == found
    assert run_on(tmp_path, "--state", state, *table).stdout == "0 matches\n"
    assert run_on(tmp_path, "--state", state).stdout == "".join(f"{line}\n" for line in LINES)


def test_why_and_why_not_of_a_store_that_nobody_holds(story):
    """docs/why.md shows what they print."""

    def told(*arguments):
        return json.loads(printed(*arguments, "--state", story, "--json"))

    found = told("why", "0")
    assert printed("why", found["id"][:10], "--state", story).startswith(f"book_blog  output {found['id']}, ")
    assert found["why"]["joined"][0]["value"] == "Ada" and found["fed"] == []
    assert refused("why", "ffff", "--state", story) == (
        "mmqjp: error: no output has the id ffff, or one that begins with it; mmqjp matches lists the outputs\n"
    )
    assert "there is an output" in printed("why-not", "book_blog", "d3", "d1", "--state", story)
    found = told("why-not", "book_blog", "d1", "nothing")
    assert (found["kind"], found["query"]) == ("document", "book_blog")
    assert told("why-not", "book_blog")["funnels"]
    assert "did you mean book_blog?" in printed("why-not", "book_blo", "--state", story)


def test_a_service_answers_beside_its_batches(story):
    alone = json.loads(printed("why", "0", "--state", story, "--json"))
    not_alone = json.loads(printed("why-not", "book_blog", "d1", "d3", "--state", story, "--json"))
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
            (WHY_NOT, {"query": "q", "documents": "d1"}, "not a list of texts"),
            (WHY_NOT, {"query": "q", "documents": [1]}, "not a list of texts"),
        ):
            with pytest.raises(ValueError, match=said):
                asked.ask(do, arguments)
    assert events.named("command")[0] == {"do": "why", "id": alone["id"]}


EVENTS = """DEFINE EVENT Book FROM S//book->b (author := b/author);
DEFINE EVENT Blog FROM S//blog->b (writer := b/author);
FROM Book NEXT{author = writer} Blog WITHIN 90 d PUBLISH next_blog"""


def test_event_queries_are_listed_and_explained(tmp_path):
    next_blogs = tmp_path / "state"
    result = run_on(tmp_path, "--state", next_blogs, "--output", tmp_path / "out", queries=EVENTS)
    assert result.exit_code == 0, result.stderr
    for command, said in (("list next_blog", "PUBLISH next_blog"), ("status", "events answered to ")):
        assert said in " ".join(printed(*command.split(), "--state", next_blogs).split())
    explained = printed("explain", tmp_path / "queries.xscl", "--state", next_blogs)
    assert "an event query over Book, Blog; it joins no documents" in explained
    mistakes = {"FROM FILTER{author = 'a'} Bok": "there are no events Bok", "FROM": "FROM without an input"}
    for text, mistake in mistakes.items():
        wrong = mmqjp("subscribe", write_queries(tmp_path, text), "--state", next_blogs)
        assert wrong.exit_code == 1 and mistake in wrong.output
