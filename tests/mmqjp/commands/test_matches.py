"""`mmqjp matches`, and `mmqjp run` in the formats of matches: what is shown of a store, by whom and in which order."""

import csv
import io
import json
import sys
from typing import cast

import pytest

from feeds.documents import Document
from mmqjp.commands import formats
from mmqjp.commands.matches import ServedStore, time_since
from mmqjp.engine import Session
from mmqjp.present.item import IN_UTC, MatchFilter
from mmqjp.service.commands import MATCHES, Client, run_command
from mmqjp.service.spool import Command
from tests.support.cli import LINES, mmqjp, write_documents, write_queries

HOUR = 3_600_000_000


def run(directory, *options, engine="duckdb"):
    queries, documents = write_queries(directory), write_documents(directory / "documents.jsonl")
    return mmqjp("run", "--engine", engine, "--queries", queries, "--documents", documents, *options)


def shown(state, *options):
    result = mmqjp("matches", "--state", state, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


TABLE = """\
book_blog  2 matches
────────────────────────────────────────────────────────────────────────────────────────────────────
2026-01-02 00:00  Bob
                  book of S
2026-01-04 00:00  Bob
                  blog of S
         because  same author "Bob"

2026-01-01 00:00  Ada
                  book of S
2026-01-03 00:00  Ada
                  blog of S
         because  same author "Ada"

q2  1 match
────────────────────────────────────────────────────────────────────────────────────────────────────
2026-01-03 00:00  Ada
                  blog of S
         because  author = "Ada"

3 matches, times in UTC
"""


def test_each_format_has_the_same_matches(story):
    assert shown(story, "--format", "table", "--utc") == TABLE
    lines = [json.loads(line) for line in shown(story).splitlines()]
    assert [json.loads(line).items() <= found.items() for line, found in zip(LINES, lines, strict=True)] == [True] * 3
    assert [[item["title"] for item in line["items"]] for line in lines] == [["Ada", "Ada"], ["Ada"], ["Bob", "Bob"]]
    assert [len(line["why"]["joined"]) for line in lines] == [1, 0, 1]
    rows = list(csv.DictReader(io.StringIO(shown(story, "--format", "csv"))))
    assert [(row["query"], row["time"], row["title_1"], row["id_2"]) for row in rows] == [
        ("book_blog", "2026-01-03T00:00:00Z", "Ada", "d3"),
        ("q2", "2026-01-03T00:00:00Z", "Ada", ""),
        ("book_blog", "2026-01-04T00:00:00Z", "Bob", "d4"),
    ]


def test_a_query_a_time_and_a_number_choose_matches(story):
    for options, expected in (
        ("", [0, 1, 2]),
        ("--query book_blog", [0, 2]),
        ("--limit 1", [2]),
        ("--limit 1 --query q2", [1]),
        ("--limit 9", [0, 1, 2]),
        ("--since 2026-01-03T00:00:01Z", [2]),
        ("--since 2026-01-04 --utc", [2]),
        ("--since 2026-01-05T00:00Z", []),
        ("--since 40000d --query q2", [1]),
        ("--since 1us", []),
    ):
        found = [json.loads(line)["seq"] for line in shown(story, *options.split()).splitlines()]
        assert found == expected, options


def test_the_formats_for_people_show_the_newest_and_how_many_there_are(story, monkeypatch):
    assert shown(story, "--format", "markdown", "--limit", "2").startswith("**the newest 2 of 3 matches**\n")
    monkeypatch.setattr("mmqjp.commands.matches.SHOWN", 1)
    assert shown(story, "--format", "html").count('<li class="match">') == 1
    assert len(json.loads(shown(story, "--format", "json"))) == 3


def test_what_cannot_be_shown(story):
    for name, message in (
        ("book_blok", f"no query of {story} is called 'book_blok'; did you mean book_blog?"),
        ("'x", f'no query of {story} is called "\'x"; there are: book_blog, q2'),
    ):
        result = mmqjp("matches", "--state", story, "--query", name)
        assert (result.exit_code, result.stderr) == (1, f"mmqjp: error: {message}\n")
    for since in ("yesterday", "2026-13-01", "3 months"):
        result = mmqjp("matches", "--state", story, "--since", since)
        assert result.exit_code == 2 and result.stderr.count("\n") == 1 and "--since" in result.stderr


def test_durations_are_before_now():
    assert time_since("2d", IN_UTC, now=100 * HOUR) == 52 * HOUR
    assert time_since("INF", IN_UTC, now=5) < -(10**15)


def test_a_page_is_written_to_a_file(story, tmp_path):
    target = tmp_path / "page.html"
    assert shown(story, "--format", "html", "--output", target) == ""
    page = target.read_text("utf-8")
    assert page.startswith("<!doctype html>") and "FROM S//book-&gt;x1" in page


def test_a_store_without_queries_has_no_matches(tmp_path):
    with Session("duckdb", state=tmp_path / "state"):
        pass
    assert shown(tmp_path / "state", "--format", "table") == "0 matches\n"


def test_what_is_gone_is_shown_by_its_name_and_id(tmp_path):
    with Session("duckdb", state=tmp_path, now=lambda: 20 * HOUR, lateness=0) as engine:
        engine.subscribe("FROM S/a->x FOLLOWED BY {x = y, 6 h} S/b->y PUBLISH ended")
        for name, hour in (("a", 1), ("b", 5), ("c", 20)):
            engine.process([Document(f"the {name}", f"<{name}>v</{name}>", time=hour * HOUR)])
        engine.prune(16 * HOUR)
        engine.unsubscribe("ended")
    lines = shown(tmp_path, "--format", "table", "--utc", "--query", "ended").splitlines()
    assert lines[2:5] == [f"{' ' * 18}the a", f"{' ' * 18}of S, no longer stored", "1970-01-01 05:00  v"]
    assert "because  the reason is not known" in lines[6]


@pytest.mark.parametrize("looked_through", [1, 20_000])
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

        class Asked:
            """A client whose commands and answers pass as JSON."""

            def ask(self, do, arguments):
                answer = run_command(engine, Command("1", do, json.loads(json.dumps(arguments))))
                assert answer.error is None
                return json.loads(json.dumps(answer.result))

        store = ServedStore(cast(Client, Asked()))
        for options, wanted in asked.items():
            found = [match.to_dict() for match in store.matches(wanted, wanted.start(store.select))]
            assert json.loads(json.dumps(found)) == expected[options], options
        assert store.texts("q2") == {"q2": ['FROM S//blog->b[./author = "Ada"]']}
        for arguments in ({}, {"after": "0"}, {"after": 0, "name": 1}, {"after": 0, "since": "x"}):
            error = run_command(engine, Command("1", MATCHES, arguments)).error
            assert error is not None and "a page of matches is asked for by" in error


# ---------------------------------------------------------------- run


def test_a_terminal_gets_a_table_and_a_file_gets_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert formats.chosen_format(None, None) == "table"
    assert formats.chosen_format("csv", None) == "csv"
    assert formats.chosen_format(None, tmp_path / "x") == "jsonl"


def test_run_shows_the_matches_of_this_run_and_leaves_the_lines_to_the_next(tmp_path):
    state = tmp_path / "state"
    assert run(tmp_path, "--state", state, "--format", "table", "--utc").stdout == TABLE
    assert run(tmp_path, "--state", state, "--format", "table", "--utc").stdout == "0 matches\n"
    assert run(tmp_path, "--state", state).stdout == "".join(f"{line}\n" for line in LINES)


def test_run_replaces_the_file_of_a_page(tmp_path):
    page = tmp_path / "page.html"
    for _ in range(2):
        assert run(tmp_path, "--format", "html", "--output", page).exit_code == 0
    assert page.read_text("utf-8").count("<!doctype html>") == 1


# ---------------------------------------------------------------- engines


@pytest.mark.soak
@pytest.mark.spark
def test_a_state_on_spark_is_shown_as_one_on_duckdb(spark, tmp_path, story):
    state = tmp_path / "on-spark"
    assert run(tmp_path, "--state", state, engine="spark").exit_code == 0
    for options in (
        ("--format", "table", "--utc"),
        ("--query", "q2"),
        ("--limit", "1"),
        ("--since", "2026-01-04T00:00Z"),
    ):
        assert shown(state, *options) == shown(story, *options)
