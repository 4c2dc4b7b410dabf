"""`mmqjp check`: warnings, trials on documents, event statements, and exit status."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from feeds.tail import read_documents
from mmqjp.commands.options import read_script
from mmqjp.engine import Session
from mmqjp.explain.trial import MOST_TRIED_QUERIES, sample_of, try_queries
from tests.support.cli import DOCUMENTS, mmqjp, write_documents, write_queries
from tests.support.feed_server import rss
from tests.xscl.test_events import EVENTS, FEED_EXAMPLES


@pytest.fixture
def documents(tmp_path):
    return write_documents(tmp_path / "documents.jsonl")


def cells(text: str) -> list[list[str]]:
    lines = [line.strip() for line in text.splitlines() if line.startswith(" ") and line.strip() and "─" not in line]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def test_warnings_are_on_standard_error_and_fail_only_with_strict_whatever_follows_feeds(tmp_path, monkeypatch):
    queries = write_queries(tmp_path, "S//item[./titel]; S//item[./title]")
    for more, status in (([], 0), (["--strict"], 1)):
        result = mmqjp("check", "--feeds", queries, *more)
        assert result.exit_code == status
        assert result.stdout.startswith(f"{queries}: 2 queries, no mistakes\n")
        assert result.stderr == (
            f"{queries}:1:11: warning: items have no titel\n"
            "  S//item[./titel]; S//item[./title]\n            ^^^^^\nhelp: did you mean title?\n"
        )
    assert mmqjp("check", "--feeds", "--strict", write_queries(tmp_path, "S//item[./title]")).exit_code == 0
    queries = write_queries(tmp_path, "S//item[./titel]")
    for before, after in ((["--feeds=item"], []), (["--feeds", "item"], []), ([], ["--feeds"])):
        assert "no titel" in mmqjp("check", *before, queries, *after).stderr
    assert mmqjp("check", "--feeds", "raw", queries).stderr == ""
    monkeypatch.setattr("xscl.text.MOST_SHOWN", 1)
    result = mmqjp("check", "--feeds", write_queries(tmp_path, "S//item[./titel]; S//item[./x]; S//item[./y]"))
    assert result.stderr.count("warning: ") == 1 and result.stderr.endswith("and 2 more warnings\n")


NONE = "{} does not match any of 4 documents of stream S"
BEFORE = NONE + "; {}, before it, matches 2"
HINT = 'the values are "Ada" (in 1), "Bob" (in 1)'


BACKWARDS = "S//blog[./author->x] FOLLOWED BY {x = y, INF} S//book[./author->y]"
SHORT = "S//book[./author->x] FOLLOWED BY {x = y, 1 h} S//blog[./author->y]"
FALSE = "S//book[./author->x] JOIN {x = y AND x != y, INF} S//blog[./author->y]"
UNLIKE = 'S//blog[./author->x] JOIN {x = substring-after(z, "A"), INF} S//book->z'
NOTES = [
    ("S//book[./autor]", "/autor", BEFORE.format("./autor", "//book"), "did you mean author (in 2)?"),
    ("S//book[./@author]", "/@author", BEFORE.format("./@author", "//book"),
     "it is an element: write author (in 2)"),
    ("S/author", "/author", NONE.format("/author"), "it is deeper: write //author (in 4)"),
    ('S//book[./author = "ada"]', './author = "ada"', BEFORE.format('./author = "ada"', "./author"), HINT),
    ('S//book[contains(./autor, "A")]', 'contains(./autor, "A")',
     BEFORE.format('contains(./autor, "A")', "//book"), "did you mean author (in 2)?"),
    ("S//book[./title]", "/title", BEFORE.format("./title", "//book"), "there are author"),
    ('S//book[./author\n  = "a  b"]', "./author", BEFORE.format('./author = "a  b"', "./author"), HINT),
    ("news//book", "news//book", "there is no document of stream news", "there are documents of S (4)"),
    (BACKWARDS, BACKWARDS, "FOLLOWED BY: the right one begins 2 d before the left one ends", "JOIN takes either order"),
    (SHORT, SHORT, "1 h: the nearest are 2 d apart, and the window is 1 h", None),
    (FALSE, FALSE, 'x != y is false: x is "Ada", y is "Ada"', None),
    (UNLIKE, UNLIKE, 'x = substring-after(z, "A"): no two documents share a value: 2 of author on the left, '
     "2 of book on the right", None),
]  # fmt: skip


def test_a_note_says_which_part_found_nothing_and_what_may_be_meant(tmp_path, documents):
    text = ";\n".join(query for query, *_ in NOTES)
    queries = write_queries(tmp_path, text)
    result = mmqjp("check", queries, "--against", documents)
    assert (result.exit_code, result.stderr) == (0, "")
    for query, part, note, hint in NOTES:
        begin, at = text.index(query), query.index(part)
        line, shown = text[:begin].count("\n") + 1, text[begin:].partition("\n")[0]
        expected = f"{queries}:{line}:{at + 1}: note: {note}\n  {shown}\n  {' ' * at}{'^' * len(part)}\n"
        assert f"\n{expected}{f'help: {hint}' if hint else ''}" in result.stdout, query


PAIRS = "S//a->x JOIN {x = y, INF} S//b->y"
NINE = f"<a>{''.join(f'<{name}>{name}</{name}>' for name in 'nmkjihgfe')}</a>"
VALUES = ("<i><a>a  AI</a></i>", "<i><a>x\n AI</a></i>")


HELP: list[tuple[str, tuple[str, ...], str | None]] = [
    (PAIRS, ("<a>Storm hits the coast</a>", "<b>The storm hits the west coast</b>", "<b>Rain</b>"),
     "use near(x, y, 0.8) to find texts that differ in a word"),
    ("S//*:a[./title]", ('<a xmlns="urn:n"><title>T</title></a>',),
     "it is in the namespace urn:n: write *:title (in 1)"),
    ('S//a[. = "x"]', ("<a>\u009b31mred</a>",), 'the values are "\ufffd31mred" (in 1)'),
    ('S//i[lower-case(./a) = "AI"]', VALUES, 'the values are "a  ai" (in 1), "x\\n ai" (in 1)'),
    ('S//i[contains(upper-case(normalize-space(./a)), "ai")]', VALUES,
     'the values are "A AI" (in 1), "X AI" (in 1)'),
    ('S//i[./a = "a ai"]', VALUES, 'the values are "a  AI" (in 1), "x\\n AI" (in 1)'),
    ("S//i[string-length(./a) > 9]", VALUES, 'the values are "5" (in 2)'),
    ("S/a[./z]", (NINE,), "there are n, m, k, j, i, h, g, f and others"),
    ('S/a[./* = "x"]', (NINE,), 'the values are "n" (in 1), "m" (in 1), "k" (in 1) and others'),
    (PAIRS, ("<a>One</a>", "<b>ONE</b>"), "use lower-case on both sides"),
    (PAIRS, ("<a>https://x.example/1</a>", "<b>https://x.example/2</b>"), None),  # equal hosts are no hint
]  # fmt: skip


def test_what_may_help(tmp_path):
    """Each query has a stream of its own."""
    found = [
        {"id": f"{row} {n}", "stream": f"S{row}", "time": f"2026-01-{1 + n // 2:02}", "xml": xml}
        for row, (_, xmls, _) in enumerate(HELP)
        for n, xml in enumerate(xmls)
    ]
    queries = ";\n".join(query.replace("S/", f"S{row}/") for row, (query, *_) in enumerate(HELP))
    path = write_documents(tmp_path / "some.jsonl", found)
    said = mmqjp("check", write_queries(tmp_path, queries), "--against", path).stdout
    assert "\u009b" not in said
    for (query, _, hint), note in zip(HELP, said.split("note: ")[1:], strict=True):
        helped = note.partition("\nhelp: ")[2].partition("\n")[0]
        assert helped == (hint or "") and (hint or " on the right\n" in note), query


def test_a_reader_is_tried_on_what_is_published(tmp_path, documents):
    queries = write_queries(tmp_path, 'S//blog PUBLISH blogs; blogs//author[. = "Bob"]; blogs//autor')
    result = mmqjp("check", queries, "--against", documents)
    assert ['blogs//author[. = "Bob"]', "1 of 2 documents"] in cells(result.stdout)
    assert result.stdout.endswith("help: did you mean author (in 2)?\n")


def test_the_limit_and_what_cannot_be_read(tmp_path):
    broken = {"id": "x", "time": "2026-01-01", "xml": "<a"}
    path = write_documents(tmp_path / "some.jsonl", [broken, *DOCUMENTS])
    result = mmqjp("check", write_queries(tmp_path), "--against", path, "--limit", "3")
    assert "tried on 3 documents (stream S 3; 1 could not be read)" in result.stdout
    path.write_text(json.dumps(broken))
    nothing = mmqjp("check", write_queries(tmp_path), "--against", path)
    expected = f"mmqjp: error: {path}: there is no document to try the queries on\n"
    assert (nothing.exit_code, nothing.stderr) == (1, expected)


def test_a_sample_has_some_of_each_path_and_of_each_directory_of_feeds(tmp_path):
    for name in "ab":
        (tmp_path / "feeds" / name).mkdir(parents=True)
        (tmp_path / "feeds" / name / "feed.xml").write_text(rss(f"{name} One", f"{name} ONE", guid=name))
    queries = write_queries(tmp_path, "; ".join(f'S//item[./title = "{name} One"]' for name in "ab"))
    result = mmqjp("check", queries, "--feeds", "--against", tmp_path / "feeds", "--limit", "2")
    assert [row[-1] for row in cells(result.stdout)[1:]] == ["1", "1 of 2 documents"] * 2


def test_only_the_tried_queries_and_those_behind_them_run(tmp_path, documents, monkeypatch):
    late = "news//author->y FOLLOWED BY {x = y, 1 s} S//blog->a[./author->x]"
    others = [f'S//blog[./author = "{number}"]' for number in range(MOST_TRIED_QUERIES)]
    queries = write_queries(tmp_path, ";\n".join([late, late, *others, "S//book PUBLISH news", "S//book PUBLISH more"]))
    script = read_script(queries)[1]
    sizes, ensure = [], Session.ensure

    def counting(self, script, mode="ensure"):
        sizes.append(len(script.queries))
        return ensure(self, script, mode)

    monkeypatch.setattr(Session, "ensure", counting)
    trials = try_queries(script, queries.read_text(), sample_of(read_documents([documents]), 500))
    assert sizes == [MOST_TRIED_QUERIES + 1]  # the PUBLISHed stream's, too
    assert (len(trials), trials[0].name, trials[0].found, trials[2].found) == (100, "q1", 0, 0)
    failed = [next(stage.counted.kind for stage in trial.stages if not stage.counted.found) for trial in trials]
    assert failed == ["window"] * 2 + ["pattern"] * 98


DEFINED = """\
DEFINE EVENT A FROM S//a->r (k := r/@k, x := number(r/x));
DEFINE EVENT B FROM T//b->r (l := r/@l, y := number(r/y), z := r/z);
FROM A NEXT B WITHIN 1 d
"""

ENDLESS = "what waits here is kept for ever: nothing says how long a result may take"
TEXT = "a text is compared with a number: this never holds for a text that is none"


def check(tmp_path: Path, text: str, *more: str):
    path = write_queries(tmp_path, text)
    return mmqjp("check", path, *more), str(path)


def warnings(result: Result) -> list[str]:
    return [line for line in result.stderr.splitlines() if "warning" in line]


def test_what_is_defined_and_what_queries_keep_and_share(tmp_path):
    text = f"""{DEFINED}PUBLISH first;
FROM FILTER{{y > 3}}(A NEXT B WITHIN 1 d) PUBLISH high;
AGGREGATE{{max(y) AS top BY l OVER 2 h}} B;
FROM S//c[./d->e] PUBLISH plain;
FROM FILTER{{y > 4}} high"""
    result, path = check(tmp_path, text)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == f"{path}: 5 queries, 2 events defined, no mistakes"
    assert cells(result.stdout) == [
        ["query", "kind", "reads", "disjuncts", "value joins", "templates", "shares a row with"],
        ["plain", "filter", "S", "1", "0", "0", "-"],
        ["event", "from", "attributes", "read by"],
        ["A", "S", "k, x (number)", "first, high"],
        ["B", "T", "l, y (number), z", "first, high, q3"],
        ["event query", "reads", "operators", "keeps for", "shares operators with"],
        ["first", "A, B", "NEXT", "1 d", "high"],
        ["high", "A, B", "NEXT, FILTER", "1 d", "first"],
        ["q3", "B", "AGGREGATE", "2 h", "-"],
        ["q5", "high", "FILTER", "-", "-"],
    ]


def test_queries_of_both_kinds_are_numbered_together_and_definitions_alone_are_a_script(tmp_path):
    rows = cells(check(tmp_path, f"{DEFINED};\nFROM S//c->d;\nFROM S//c->e")[0].stdout)
    assert [(row[0], row[-1]) for row in rows[1:3]] == [("q2", "q3"), ("q3", "q2")]
    result, path = check(tmp_path, "DEFINE EVENT A FROM S//a->r (k := r/@k)")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{path}: 0 queries, 1 event defined, no mistakes\n")
    result, _ = check(tmp_path, EVENTS + "".join(FEED_EXAMPLES.values()))
    assert result.exit_code == 0
    assert [line for line in warnings(result) if "nothing reads" not in line] == []


TAKEN = "NEXT has taken the first event of all before this is tested"
WARNED = [
    ("FROM A NEXT B", "A ^NEXT B", ENDLESS),
    ("FROM (A NEXT B WITHIN 3 d) UNION (A NEXT{DUR >= 3 d} B)", "(A ^NEXT{DUR", ENDLESS),
    ("FROM FILTER{z > 3} B", "^z > 3", TEXT),
    ("FROM FILTER{NOT (3 < z)} B", "^z)", TEXT),
    ("FROM FILTER{z = 3} B", "^z = 3", TEXT),
    ("FROM A NEXT{$1.k = $2.y} B WITHIN 1 d", "^$1.k", TEXT),
    ("FROM A NEXT{k < z} B WITHIN 1 d", "^k < z",
     "< compares numbers, and both of these are texts: it holds for texts that are numbers"),
    ("FROM FILTER{k = l AND y > 3}(A NEXT B) WITHIN 1 d", "^k = l", TAKEN),
    ("FROM FILTER{l_1 = l}(B NEXT B) WITHIN 1 d", "^l_1 = l", TAKEN),
    ("FROM FILTER{y > 3} B WITHIN 5 d", "^5 d", "WITHIN changes nothing without NEXT or FOLD"),
]  # fmt: skip


def test_warnings(tmp_path):
    result, path = check(tmp_path, ";\n".join([DEFINED, *(query for query, *_ in WARNED)]))
    columns = [query.index(place.replace("^", "")) + place.index("^") + 1 for query, place, _ in WARNED]
    assert result.exit_code == 0
    assert warnings(result) == [
        f"{path}:{line}:{column}: warning: {warning}"
        for line, (column, (*_, warning)) in enumerate(zip(columns, WARNED, strict=True), 5)
    ]


def test_what_is_well_is_not_warned_of(tmp_path):
    well = [
        "FROM A NEXT{DUR < 3 d} B",
        "FROM FILTER{DUR < 3 d}(A NEXT B)",
        "FROM FILTER{number(z) > 3} B",
        'FROM FILTER{z = "3"} B',
        "FROM FILTER{k = l}(A NEXT{y > 3} B) WITHIN 1 d",
        "FROM FILTER{x = y}(SELECT x, y FROM A NEXT{k = l} B) WITHIN 1 d",
        "FROM A NEXT{k = l} B WITHIN 1 d PUBLISH nobody_reads_it",
    ]
    assert check(tmp_path, ";\n".join([DEFINED, *well]))[0].stderr == ""


def test_what_nothing_reads_or_there_is_not_is_told_with_its_place(tmp_path):
    definitions = "DEFINE EVENT A FROM S//item->i (t := i/titel);\nDEFINE EVENT B FROM S//item->i (t := i/title)"
    text = f'{definitions};\nFILTER{{t != ""}} B'
    result, path = check(tmp_path, text, "--feeds", "--strict")
    assert result.exit_code == 1
    assert warnings(result) == [
        f"{path}:1:14: warning: nothing reads the event A",
        f"{path}:1:40: warning: items have no titel",
    ]
    result, path = check(tmp_path, DEFINED + ";\nFROM A NEXT C")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{path}:5:13: error: there are no events C\n")


TRIED_EVENTS = "DEFINE EVENT I FROM S/*->i (title := i/author); DEFINE EVENT N FROM S//nothing->n (x := n/x);"


@pytest.mark.parametrize(
    "queries",
    [
        'FROM FILTER{title = "Ada"} I; FROM I; PATTERN SEQ(I a, N b) WITHIN 1 h PUBLISH nothing',
        "FROM S/book->a; FROM I; FROM S/book->a[./author->t] JOIN {t = u, 9 d} S/blog->b[./author->u]",
        "FROM I PUBLISH all; FROM all/match->m PUBLISH again; FROM all PUBLISH more",
        "FROM S/book->i PUBLISH first; FROM first/match->m; FROM I NEXT{$1.title = $2.title} I WITHIN 9 d PUBLISH x",
    ],
)
def test_event_statements_are_tried_on_documents(tmp_path: Path, documents: Path, queries: str) -> None:
    """Each query is shown with as many outputs as a run of the script has."""
    file = write_queries(tmp_path, TRIED_EVENTS + queries)
    result = mmqjp("check", file, "--against", documents)
    assert (result.exit_code, "note: //nothing does not match any of 4 documents" in result.stdout) == (0, True), (
        result.output
    )
    script = read_script(file)[1]
    with Session("duckdb", settle=None) as engine:
        engine.ensure(script)
        found = [*engine.process(read_documents([documents])), *engine.finish()]
    wanted = {name: sum(one.query == name for one in found) for name in script.names()} | {"I": 4, "N": 0}
    rows = [row for row in cells(result.stdout) if len(row) == 3 and row[1] in ("outputs", "events")]
    assert {name: int(count) for name, _, count in rows} == wanted and len(rows) == len(wanted)


@pytest.mark.parametrize(
    ("script", "words"),
    [("hello", ["hello"]), ("a; FROM b; c PUBLISH a; d->x; a; S//e", []), ("news; blog; FROM news", ["news", "blog"])],
)
def test_a_word_alone_is_warned_of(tmp_path: Path, script: str, words: list[str]) -> None:
    result = mmqjp("check", write_queries(tmp_path, script))
    told = [line.rpartition(" ")[2] for line in result.stderr.splitlines() if "this word alone is a query" in line]
    assert (result.exit_code, told) == (0, words)
