"""`mmqjp check --feeds` and `mmqjp check --against`: what they print, and their exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from feeds.tail import read_documents
from mmqjp.commands.options import read_script
from mmqjp.engine import Session
from mmqjp.explain.terms import sample_of
from mmqjp.explain.trial import MOST_QUERIES, try_queries
from tests.support.cli import DOCUMENTS, write_documents, write_queries
from tests.support.cli import mmqjp as call
from xscl.parser import located_queries

FEED = """<rss version="2.0"><channel><title>T</title><link>https://a.example/</link>
<item><title>One</title><guid>1</guid><pubDate>Thu, 01 Jan 2026 00:00:00 GMT</pubDate></item>
<item><title>ONE</title><guid>2</guid><pubDate>Thu, 01 Jan 2026 00:00:00 GMT</pubDate></item></channel></rss>"""


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "documents.jsonl")


def table(text: str) -> list[list[str]]:
    """The cells of a table's rows."""
    return [
        [cell for cell in line.strip().split("  ") if cell]
        for line in text.splitlines()
        if line.startswith(" ") and "─" not in line and line.strip()
    ]


def stripped(rows: list[list[str]]) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in rows]


@pytest.mark.parametrize("strict", [False, True])
def test_warnings_are_on_standard_error_and_fail_only_with_strict(tmp_path, strict):
    queries = write_queries(tmp_path, "S//item[./titel]; S//item[./title]")
    result = call("check", "--feeds", queries, *(["--strict"] if strict else []))
    assert result.exit_code == (1 if strict else 0)
    assert result.stdout.startswith(f"{queries}: 2 queries, no mistakes\n")
    assert result.stderr == (
        f"{queries}:1:11: warning: items have no titel\n"
        "  S//item[./titel]; S//item[./title]\n            ^^^^^\nhelp: did you mean title?\n"
    )


@pytest.mark.parametrize("option", [["--feeds"], ["--feeds=item"], ["--feeds", "item"]])
def test_the_option_feeds_takes_no_path_for_its_value(tmp_path, option):
    queries = write_queries(tmp_path, "S//item[./titel]")
    assert "no titel" in call("check", *option, queries).stderr
    assert "no titel" in call("check", queries, *option).stderr
    assert call("check", "--feeds", "raw", queries).stderr == ""


def test_strict_without_a_warning_succeeds(tmp_path):
    assert call("check", "--feeds", "--strict", write_queries(tmp_path, "S//item[./title]")).exit_code == 0


def test_very_many_warnings_are_counted(tmp_path):
    result = call("check", "--feeds", write_queries(tmp_path, ";\n".join(f"S//item[./x{n}]" for n in range(103))))
    assert result.stderr.count("warning: ") == 100 and result.stderr.endswith("and 3 more warnings\n")


def test_a_short_table_where_all_is_well(tmp_path, documents):
    result = call("check", write_queries(tmp_path), "--against", documents)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "tried on 4 documents (stream S 4)" in result.stdout
    assert stripped(table(result.stdout)) == [
        ["query", "part", "found"],
        ["book_blog", "outputs", "2"],
        ["S//book->x1[./author->x2]", "2 of 4 documents"],
        ["S//blog->x4[./author->x5]", "2 of 4 documents"],
        ["x2 = x5", "2 and 2 values, 2 shared"],
        ["q2", "outputs", "1"],
        ['S//blog->b[./author = "Ada"]', "1 of 4 documents"],
    ]
    assert "note" not in result.stdout


@pytest.mark.parametrize(
    ("query", "note"),
    [
        ("S//book[./autor]",
         "1:10: note: ./autor matched none of 4 documents of stream S; before it, //book matched 2\n"
         "  S//book[./autor]\n           ^^^^^^\nhelp: did you mean author (in 2)?\n"),
        ("S//book[./@author]",
         "1:10: note: ./@author matched none of 4 documents of stream S; before it, //book matched 2\n"
         "  S//book[./@author]\n           ^^^^^^^^\nhelp: it is an element: write author (in 2)\n"),
        ("S/author",
         "1:2: note: /author matched none of 4 documents of stream S\n"
         "  S/author\n   ^^^^^^^\nhelp: it is deeper: write //author (in 4)\n"),
        ('S//book[./author = "ada"]',
         '1:9: note: ./author = "ada" matched none of 4 documents of stream S; before it, ./author matched 2\n'
         '  S//book[./author = "ada"]\n          ^^^^^^^^^^^^^^^^\nhelp: the values are "Ada" (in 1), "Bob" (in 1)\n'),
        ('S//book[contains(./autor, "A")]',
         '1:9: note: contains(./autor, "A") matched none of 4 documents of stream S; before it, //book matched 2\n'
         '  S//book[contains(./autor, "A")]\n          ^^^^^^^^^^^^^^^^^^^^^^\nhelp: did you mean author (in 2)?\n'),
        ("S//book[./title]",
         "1:10: note: ./title matched none of 4 documents of stream S; before it, //book matched 2\n"
         "  S//book[./title]\n           ^^^^^^\nhelp: there are author\n"),
        ("news//book",
         "1:1: note: there is no document of stream news\n"
         "  news//book\n  ^^^^^^^^^^\nhelp: there are documents of S (4)\n"),
        ("S//blog[./author->x] FOLLOWED BY {x = y, INF} S//book[./author->y]",
         "1:1: note: nothing is FOLLOWED BY what it joins\n"
         "  S//blog[./author->x] FOLLOWED BY {x = y, INF} S//book[./author->y]\n"
         "  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
         "help: JOIN would give 2 outputs: it takes equal times, and either order\n"),
        ("S//book[./author->x] FOLLOWED BY {x = y, 1 h} S//blog[./author->y]",
         "1:1: note: nothing joins within the window\n"
         "  S//book[./author->x] FOLLOWED BY {x = y, 1 h} S//blog[./author->y]\n"
         "  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
         "help: with INF it would give 2 outputs\n"),
    ],
)  # fmt: skip
def test_a_note_says_which_part_found_nothing_and_what_may_be_meant(tmp_path, documents, query, note):
    queries = write_queries(tmp_path, query)
    result = call("check", queries, "--against", documents)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith(f"\n{queries}:{note}")


def test_an_equality_that_never_holds_is_told_with_what_would_make_it_hold(tmp_path):
    (tmp_path / "feed.xml").write_text(FEED)
    queries = write_queries(tmp_path, "S//item[./title->t] JOIN {t = u, 1 h} S//item[./title->u]")
    result = call("check", queries, "--feeds", "--against", tmp_path / "feed.xml")
    assert ["t = u", "2 and 2 values, 0 shared"] in stripped(table(result.stdout))
    assert "note: the two sides have 2 and 2 values, and no two documents share one\n" in result.stdout
    assert result.stdout.endswith("help: they share 1 with lower-case(...) around both sides\n")


def test_texts_that_differ_in_a_word_are_told(tmp_path):
    xmls = ("<a>Storm hits the coast</a>", "<b>The storm hits the west coast</b>", "<b>Rain</b>")
    found = [{"id": str(number), "time": "2026-01-01", "xml": xml} for number, xml in enumerate(xmls)]
    path = write_documents(tmp_path / "titles.jsonl", found)
    result = call("check", write_queries(tmp_path, "S//a->x JOIN {x = y, INF} S//b->y"), "--against", path)
    near = '"Storm hits the coast" and "The storm hits the west coast" differ in a few words: near(x, y, 0.8)'
    assert result.stdout.endswith(f"help: {near}\n")


def test_a_reader_is_tried_on_what_is_published(tmp_path, documents):
    queries = write_queries(tmp_path, 'S//blog PUBLISH blogs; blogs//author[. = "Bob"]; blogs//autor')
    result = call("check", queries, "--against", documents)
    assert ['blogs//author[. = "Bob"]', "1 of 2 documents"] in stripped(table(result.stdout))
    assert result.stdout.endswith("help: did you mean author (in 2)?\n")


def test_a_name_in_a_namespace_is_found(tmp_path):
    xml = '<a xmlns="urn:n"><title>T</title></a>'
    path = write_documents(tmp_path / "n.jsonl", [{"id": "d", "time": "2026-01-01", "xml": xml}])
    result = call("check", write_queries(tmp_path, "S//*:a[./title]"), "--against", path)
    assert result.stdout.endswith("help: it is in the namespace urn:n: write *:title (in 1)\n")


def test_the_limit_and_what_cannot_be_read(tmp_path):
    broken = {"id": "x", "time": "2026-01-01", "xml": "<a"}
    path = write_documents(tmp_path / "some.jsonl", [broken, *DOCUMENTS])
    result = call("check", write_queries(tmp_path), "--against", path, "--limit", "3")
    assert "tried on 3 documents (stream S 3; 1 could not be read)" in result.stdout
    path.write_text(json.dumps(broken))
    nothing = call("check", write_queries(tmp_path), "--against", path)
    assert nothing.exit_code == 1
    assert nothing.stderr == f"mmqjp: error: {path}: there is no document to try the queries on\n"


def test_what_documents_say_does_not_reach_the_terminal(tmp_path):
    xml = "<a>\u009b31mred</a>"
    path = write_documents(tmp_path / "n.jsonl", [{"id": "d", "time": "2026-01-01", "xml": xml}])
    result = call("check", write_queries(tmp_path, 'S//a[. = "x"]'), "--against", path)
    assert "\u009b" not in result.stdout and 'the values are "\ufffd31mred" (in 1)' in result.stdout


def test_a_sample_has_some_of_each_path_and_of_each_directory_of_feeds(tmp_path):
    for name in "ab":
        (tmp_path / "feeds" / name).mkdir(parents=True)
        (tmp_path / "feeds" / name / "feed.xml").write_text(FEED.replace("<title>", f"<title>{name} "))
    queries = write_queries(tmp_path, "; ".join(f'S//item[./title = "{name} One"]' for name in "ab"))
    result = call("check", queries, "--feeds", "--against", tmp_path / "feeds", "--limit", "2")
    assert [row[-1] for row in stripped(table(result.stdout))[1:]] == ["1", "1 of 2 documents"] * 2


def registered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many queries each later trial registers."""
    found: list[int] = []
    ensure = Session.ensure

    def counting(self, script, mode="ensure"):
        found.append(len(script.queries))
        return ensure(self, script, mode)

    monkeypatch.setattr(Session, "ensure", counting)
    return found


def test_only_the_tried_queries_and_those_behind_them_run_and_wider_joins_in_one_session(
    tmp_path, documents, monkeypatch
):
    late = "news//author->y FOLLOWED BY {x = y, 1 s} S//blog->a[./author->x]"
    others = [f'S//blog[./author = "{number}"]' for number in range(MOST_QUERIES)]
    queries = write_queries(tmp_path, ";\n".join([late, late, *others, "S//book PUBLISH news", "S//book PUBLISH more"]))
    script = read_script(queries)[1]
    sizes = registered(monkeypatch)
    sample = sample_of(read_documents([documents]), 500)
    trials, _ = try_queries(script, located_queries(queries.read_text(), range(MOST_QUERIES)), sample)
    assert sizes == [MOST_QUERIES + 1, 5]  # the PUBLISHed stream's, and two wider forms of either join
    assert (len(trials), trials[0].outputs, trials[0].without_window, trials[1].without_window) == (100, 0, 2, 2)
    assert trials[0].name == "q1" and trials[2].outputs == 0


def test_outputs_of_a_wider_join_are_counted_up_to_a_bound(tmp_path):
    many = [
        {"id": f"{day}-{copy}", "time": f"2026-01-{day:02}", "xml": "<a><b>x</b></a>"}
        for day in range(1, 29)
        for copy in range(2)
    ]
    path = write_documents(tmp_path / "many.jsonl", many)
    queries = write_queries(tmp_path, "S//a[./b->x] FOLLOWED BY {x = y, 1 h} S//a[./b->y]")
    result = call("check", queries, "--against", path)
    assert result.stdout.endswith("help: with INF it would give 1,000 or more outputs\n")


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ('lower-case(./a) = "AI"', '"a  ai" (in 1), "x\\n ai" (in 1)'),
        ('contains(upper-case(normalize-space(./a)), "ai")', '"A AI" (in 1), "X AI" (in 1)'),
        ('./a = "a ai"', '"a  AI" (in 1), "x\\n AI" (in 1)'),
        ('string-length(./a) > 9', '"5" (in 2)'),
    ],
)  # fmt: skip
def test_the_values_are_those_compared_as_they_are(tmp_path, condition, values):
    documents = [
        {"id": str(number), "time": "2026-01-01", "xml": f"<i><a>{text}</a></i>"}
        for number, text in enumerate(("a  AI", "x\n AI"))
    ]
    path = write_documents(tmp_path / "values.jsonl", documents)
    result = call("check", write_queries(tmp_path, f"S//i[{condition}]"), "--against", path)
    assert result.stdout.endswith(f"help: the values are {values}\n")


def test_spaces_of_a_literal_are_shown(tmp_path, documents):
    result = call("check", write_queries(tmp_path, 'S//book[./author\n  = "a  b"]'), "--against", documents)
    assert '  S//book[./author = "a  b"]' in result.stdout
    assert 'note: ./author = "a  b" matched none' in result.stdout


def test_equal_hosts_are_no_hint(tmp_path):
    xmls = ("<a>https://x.example/1</a>", "<b>https://x.example/2</b>")
    found = [{"id": str(number), "time": "2026-01-01", "xml": xml} for number, xml in enumerate(xmls)]
    path = write_documents(tmp_path / "hosts.jsonl", found)
    result = call("check", write_queries(tmp_path, "S//a->x JOIN {x = y, INF} S//b->y"), "--against", path)
    assert "no two documents share one\n" in result.stdout and "help" not in result.stdout
