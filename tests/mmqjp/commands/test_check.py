"""`mmqjp check` and `explain`: warnings and trials; join graphs, costs, automata, plans and pictures."""

import json
import re
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest
from click.testing import Result
from lxml import etree

from feeds.tail import read_documents
from mmqjp.commands.options import read_script
from mmqjp.engine import Session
from mmqjp.explain.svg import WIDTH, query_lines
from mmqjp.explain.trial import MOST_TRIED_QUERIES, sample_of, try_queries
from mmqjp.shown_engine import Engine
from tests.support.cli import DOCUMENTS, mmqjp, printed, refused, run_on, write_documents, write_queries
from tests.support.feed_server import rss
from tests.xscl.test_events import EVENTS, FEED_EXAMPLES
from xscl.parser import parse_script


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
    for arguments in (("--feeds=item", queries), ("--feeds", "item", queries), (queries, "--feeds")):
        assert "no titel" in mmqjp("check", *arguments).stderr
    assert mmqjp("check", "--feeds", "raw", queries).stderr == ""
    monkeypatch.setattr("xscl.text.MOST_SHOWN", 1)
    result = mmqjp("check", "--feeds", write_queries(tmp_path, "S//item[./titel]; S//item[./x]; S//item[./y]"))
    assert result.stderr.count("warning: ") == 1 and result.stderr.endswith("and 2 more warnings\n")
    result = mmqjp("check", write_queries(tmp_path, "//a[; //b[; //c["))
    assert result.stderr.count("error: ") == 1 and result.stderr.endswith("and 2 more mistakes\n")


NONE = "{} does not match any of 4 documents of stream S"
BEFORE = NONE + "; {}, before it, matches 2"
BACKWARDS = "S//blog[./author->x] FOLLOWED BY {x = y, INF} S//book[./author->y]"
SHORT = "S//book[./author->x] FOLLOWED BY {x = y, 1 h} S//blog[./author->y]"
FALSE = "S//book[./author->x] JOIN {x = y AND x != y, INF} S//blog[./author->y]"
UNLIKE = 'S//blog[./author->x] JOIN {x = substring-after(z, "A"), INF} S//book->z'
NOTES = [
    ("S//book[./@author]", "/@author", BEFORE.format("./@author", "//book"), "it is an element: write author (in 2)"),
    ("S/author", "/author", NONE.format("/author"), "it is deeper: write //author (in 4)"),
    ('S//book[contains(./autor, "A")]', 'contains(./autor, "A")',
     BEFORE.format('contains(./autor, "A")', "//book"), "did you mean author (in 2)?"),
    ("S//book[./title]", "/title", BEFORE.format("./title", "//book"), "there are author"),
    ('S//book[./author\n  = "a  b"]', "./author", BEFORE.format('./author = "a  b"', "./author"),
     'the values are "Ada" (in 1), "Bob" (in 1)'),
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
    told = printed("check", queries, "--against", documents)
    for query, part, note, hint in NOTES:
        begin, at = text.index(query), query.index(part)
        line, shown = text[:begin].count("\n") + 1, text[begin:].partition("\n")[0]
        expected = f"{queries}:{line}:{at + 1}: note: {note}\n  {shown}\n  {' ' * at}{'^' * len(part)}\n"
        assert f"\n{expected}{f'help: {hint}' if hint else ''}" in told, query


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
    ('S//i[contains(upper-case(normalize-space(./a)), "ai")]', VALUES, 'the values are "A AI" (in 1), "X AI" (in 1)'),
    ('S//i[./a = "a ai"]', VALUES, 'the values are "a  AI" (in 1), "x\\n AI" (in 1)'),
    ("S//i[string-length(./a) > 9]", VALUES, 'the values are "5" (in 2)'),
    ("S/a[./z]", (NINE,), "there are n, m, k, j, i, h, g, f and others"),
    ('S/a[./* = "x"]', (NINE,), 'the values are "n" (in 1), "m" (in 1), "k" (in 1) and others'),
    (PAIRS, ("<a>One</a>", "<b>ONE</b>"), "use lower-case on both sides"),
    (PAIRS, ("<a>https://x.example/1</a>", "<b>https://x.example/2</b>"), None),  # equal hosts are not a hint
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


STORM = ("Storm hits the coast", "The storm hits Brittany")


@pytest.mark.parametrize(
    ("condition", "note"),
    [
        ("near(x, y, 0.8)", "have 3 of 5 words in common, which is 0.60"),
        ("similar(x, y, 0.8)", "share hits, storm, the: 0.46 of the weight of their words"),
    ],
)
def test_how_near_texts_are(tmp_path, condition, note):
    found = [{"id": str(n), "time": "2026-01-01", "xml": f"<a>{text}</a>"} for n, text in enumerate(STORM)]
    path = write_documents(tmp_path / "some.jsonl", found)
    queries = write_queries(tmp_path, f"S//a->x JOIN {{x != y AND {condition}, INF}} S//a->y")
    assert f'"{STORM[0]}" and "{STORM[1]}" {note}' in printed("check", queries, "--against", path)


def test_the_limit_and_what_cannot_be_read(tmp_path):
    broken = {"id": "x", "time": "2026-01-01", "xml": "<a"}
    path = write_documents(tmp_path / "some.jsonl", [broken, *DOCUMENTS])
    check = ("check", write_queries(tmp_path), "--against", path, "--limit", "3")
    assert "tried on 3 documents (stream S 3; 1 could not be read)" in printed(*check)
    path.write_text(json.dumps(broken))
    assert refused(*check) == f"mmqjp: error: {path}: there is no document to try the queries on\n"


def test_a_sample_has_some_of_each_path_and_of_each_directory_of_feeds(tmp_path):
    for name in "ab":
        (tmp_path / "feeds" / name).mkdir(parents=True)
        (tmp_path / "feeds" / name / "feed.xml").write_text(rss(f"{name} One", f"{name} ONE", guid=name))
    queries = write_queries(tmp_path, "; ".join(f'S//item[./title = "{name} One"]' for name in "ab"))
    text = printed("check", queries, "--feeds", "--against", tmp_path / "feeds", "--limit", "2")
    assert [row[-1] for row in cells(text)[1:]] == ["1", "1 of 2 documents"] * 2


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
TEXT = "a text is compared with a number: this never holds for a text that is not one"


def check(tmp_path: Path, text: str, *more: str) -> tuple[Result, str]:
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
    path = write_queries(tmp_path, text)
    told = printed("check", path)
    assert told.splitlines()[0] == f"{path}: 5 queries, 2 events defined, no mistakes"
    assert cells(told) == [
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
    path = write_queries(tmp_path, "DEFINE EVENT A FROM S//a->r (k := r/@k)")
    assert printed("check", path).startswith(f"{path}: 0 queries, 1 event defined, no mistakes\n")
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


WELL = [
    "FROM A NEXT{DUR < 3 d} B",
    "FROM FILTER{DUR < 3 d}(A NEXT B)",
    "FROM FILTER{number(z) > 3} B",
    'FROM FILTER{z = "3"} B',
    "FROM FILTER{k = l}(A NEXT{y > 3} B) WITHIN 1 d",
    "FROM FILTER{x = y}(SELECT x, y FROM A NEXT{k = l} B) WITHIN 1 d",
    "FROM A NEXT{k = l} B WITHIN 1 d PUBLISH nobody_reads_it",
]


def test_warnings_are_given_and_what_is_well_is_not_warned_of(tmp_path):
    result, path = check(tmp_path, ";\n".join([DEFINED, *(query for query, *_ in WARNED), *WELL]))
    columns = [query.index(place.replace("^", "")) + place.index("^") + 1 for query, place, _ in WARNED]
    assert result.exit_code == 0
    assert warnings(result) == [
        f"{path}:{line}:{column}: warning: {warning}"
        for line, (column, (*_, warning)) in enumerate(zip(columns, WARNED, strict=True), 5)
    ]


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
    text = mmqjp("check", file, "--against", documents).stdout
    assert "note: //nothing does not match any of 4 documents" in text
    script = read_script(file)[1]
    with Session("duckdb", settle=None) as engine:
        engine.ensure(script)
        found = [*engine.process(read_documents([documents])), *engine.finish()]
    wanted = {name: sum(one.query == name for one in found) for name in script.names()} | {"I": 4, "N": 0}
    rows = [row for row in cells(text) if len(row) == 3 and row[1] in ("outputs", "events")]
    assert {name: int(count) for name, _, count in rows} == wanted and len(rows) == len(wanted)


@pytest.mark.parametrize(
    ("script", "words"),
    [("hello", ["hello"]), ("a; FROM b; c PUBLISH a; d->x; a; S//e", []), ("news; blog; FROM news", ["news", "blog"])],
)
def test_a_word_alone_is_warned_of(tmp_path: Path, script: str, words: list[str]) -> None:
    result = mmqjp("check", write_queries(tmp_path, script))
    told = [line.rpartition(" ")[2] for line in result.stderr.splitlines() if "this word alone is a query" in line]
    assert (result.exit_code, told) == (0, words)


THESIS = """\
S//book->x1[./author->x2][./title->x3] FOLLOWED BY {x2=x5 AND x3=x6, 10} S//blog->x4[./author->x5][./title->x6];
S//book->x1[./author->x2][./category->x7] FOLLOWED BY {x2=x5 AND x7=x8, 20} S//blog->x4[./author->x5][./category->x8];
S//blog->x4[./author->x5][./title->x6] FOLLOWED BY {x5=x5' AND x6=x6', 30}
  S//blog->x4'[./author->x5'][./title->x6'];
S//book->b[./author->a][./title->t] JOIN {a=c AND t=u, 1 h} S//blog->d[./author->c][./title->u] PUBLISH again;
S//book/author->a FOLLOWED BY {a=b, 10} S//blog/author->b FOLLOWED BY {b=c and a != "x", 10} S//blog/author->c
  PUBLISH chain
"""


@pytest.fixture
def explain(tmp_path):
    return lambda text, *options: printed("explain", write_queries(tmp_path, text), *options).splitlines()


def section(lines, title):
    """The lines below the first line `title` that are indented further."""
    start = next(i for i, line in enumerate(lines) if line.strip() == title)
    own = len(lines[start]) - len(lines[start].lstrip())
    found = []
    for line in lines[start + 1 :]:
        if line and len(line) - len(line.lstrip()) <= own:
            break
        found.append(line[own + 2 :])
    return found[:-1] if found and not found[-1] else found


ROW = """\
minor, as template 0 numbers its nodes
  var1  left   variable 0  x1
      //book
  var2  left   variable 1  x2
      //book/author
  var3  left   variable 2  x3
      //book/title
  var4  right  variable 3  x4
      //blog
  var5  right  variable 4  x5
      //blog/author
  var6  right  variable 5  x6
      //blog/title
  structure var1(var2, var3); var4(var5, var6); var2 = var5, var3 = var6
row of R_T0
  qid = 0, var1 = 0, var2 = 1, var3 = 2, var4 = 3, var5 = 4, var6 = 5, wl = 3600000000 (1 h)
  shared with again
template 0
  shared with q2, q3, again
Datalog
  R_outT0(qid, docid1, docid2, node1, node2, node3, node4, node5, node6, wl) :-
    R_doc(docid1, node2, strval1),
    R_bin(docid1, var1, var2, node1, node2),
    R_docW(docid2, node5, strval1),
    R_binW(docid2, var4, var5, node4, node5),
    R_doc(docid1, node3, strval2),
    R_bin(docid1, var1, var3, node1, node3),
    R_docW(docid2, node6, strval2),
    R_binW(docid2, var4, var6, node4, node6),
    R_T0(qid, var1, var2, var3, var4, var5, var6, wl)
"""
"""Of the first query of THESIS. Its row is shared with a JOIN whose window is larger, so the join uses that one."""


def test_minor_row_and_datalog_of_the_thesis_first_query(explain):
    lines, expected = explain(THESIS, "--query", "q1"), ROW.splitlines()
    for title in [line for line in expected if not line.startswith(" ")]:
        found = section(lines, title)
        wanted = section(expected, title)
        assert (found[: len(wanted)] if title == "template 0" else found) == wanted


CANONICAL = {
    "chain": """\
  FROM S//book/author->a
    FOLLOWED BY {a = b, 10 s}
    S//blog/author->b
    FOLLOWED BY {b = c and a != "x", 10 s}
    S//blog/author->c
  PUBLISH chain
""",
    "once": """\
  FROM S//a->x
    JOIN {x = y, 1 h}
    S//b->y
  PUBLISH once
  ONCE PER (lower-case(x), y/k) WITHIN 36 h
""",
}
ONCE = "S//a->x JOIN {x = y, 1 h} S//b->y PUBLISH once ONCE PER (lower-case(x), y/k) WITHIN 36 h"


def test_query_text_is_canonical_and_can_be_read_again(explain):
    for name, text in CANONICAL.items():
        lines = explain(f"{THESIS}; {ONCE}", "--query", name)
        assert lines[: lines.index("")] == [f"query {name}", "=" * len(f"query {name}"), *text.splitlines()]
    assert section(lines, "normal form")[-3:] == [
        "(#p1, #p2, ...: variables made for paths; #b0, #b1, ...: unnamed block roots)",
        "its outputs are documents of the stream of its name",
        "told once for each (lower-case(x), #p1), within 36 h",
    ]


@pytest.mark.parametrize(
    "text",
    [
        THESIS,
        'DECLARE NAMESPACE a = "http://a/"; SELECT <x y="{l}">{r}</x> FROM S//a:e->l JOIN {l = r, INF} (b->r)',
        f"FROM a->l JOIN {{l = r and ({' or '.join(f'l != {i}' for i in range(20))}) and l != 'x', INF}} b->r",
        f"FROM a->l JOIN {{{' or '.join(f'l = r and r != {i}' for i in range(9))}, INF}} b->r",
        "SELECT p AS q FROM (SELECT l AS p FROM S//a->l JOIN {l = r, 1} (S//b->r JOIN {r = s, 2} S//c->s)) "
        "JOIN {p = z, 1} S//z->z",
    ],
)
def test_every_query_over_several_lines_says_the_same(text):
    script = parse_script(text)
    queries = [type(script)((query,), script.namespaces) for query in script.queries]
    assert [parse_script("\n".join(query_lines(query, 4))) for query in queries] == queries


def test_a_script_of_many_forms(explain):
    path = "/".join(f"element{i}" for i in range(30))
    lines = explain(f"{THESIS}; FROM S//a->x[./{path}][./c->y] JOIN {{x = z AND y = w, 1}} S//b->z[./d->w]")
    titles = [line.strip() for line in lines]
    start = titles.index("SQL, as DuckDB gets it")
    pairs = lines.index("    SELECT a.docid AS docid1, a.node AS node1, b.docid AS docid2, b.node AS node2,")
    sql = "\n".join(section(lines[start:], "SQL, as DuckDB gets it"))
    for statement in (sql, "\n".join(lines[pairs:]).partition("\n  Where")[0]):
        (parsed,) = duckdb.extract_statements(statement)
        assert parsed.type == duckdb.StatementType.SELECT
    own = lines.index("query q6")
    assert titles[:own].count("Datalog") == 2, "a template is spelt out once"
    assert titles[:own].count("its Datalog and SQL stand above, at q1") == 3
    assert max(len(line) for line in lines[:own] if " " in line.strip()) <= WIDTH
    chain = lines[lines.index("query chain") :]
    name = next(line.split()[-1] for line in chain if "inner join #" in line)
    assert f"    left, inner join {name}" in chain
    inner = section(chain, f"inner join {name}, whose tuples are read above")
    assert inner[0] == "FOLLOWED BY within 10 s"
    assert inner[1].startswith("above, its v0 is a, v")
    assert "left, stream S" in section(inner, "join graph")


@pytest.mark.parametrize(
    ("text", "shown", "absent"),
    [
        ("FROM S//a->x[./k->k] JOIN {x = y AND k = 'v' OR k = y AND contains(x, 'w'), INF} S//b->y",
         ["JOIN within INF; 2 disjuncts, whose matches are united", "disjunct 1 of 2", "disjunct 2 of 2",
          'contains(x, "w")'], "disjunct 3"),
        ("FROM S//a->x[./b]", ["a filter: each match is an output", "pattern"], "R_vj"),
        ("FROM S//a->x JOIN {normalize-space(lower-case(x)) = y, 1} S//b->y[./c->z]",
         ["normalize-space(lower-case(//a))"], "disjunct"),
    ],
)  # fmt: skip
def test_what_is_shown_of_other_queries(explain, text, shown, absent):
    lines = [line.strip() for line in explain(text)]
    assert set(shown) <= set(lines) and not any(absent in line for line in lines)
    assert "disjunct" not in shown[0] or any('/k[. = "v"]' in line for line in lines)


def test_names_of_queries_that_there_are_not(tmp_path):
    for text, name, said in (
        (THESIS, "agian", "did you mean again?"),
        (THESIS, "zzz", "it has q1, q2, q3, again, chain"),
        (SCRIPT, "frist", "did you mean first?"),
    ):
        queries = write_queries(tmp_path, text)
        expected = f"mmqjp: error: {queries} has no query named {name}; {said}\n"
        assert refused("explain", queries, "--query", name) == expected


def test_check_reads_all_files(tmp_path):
    good, bad = tmp_path / "good.xscl", tmp_path / "bad.xscl"
    good.write_text("FROM S//a")
    bad.write_text("FROM S//a[position() = 1];\nFROM S//b->x JOIN {x = y, 1 eon} S//c->y")
    result = mmqjp("check", bad, good)
    assert result.exit_code == 1 and "good.xscl: 1 query, no mistakes" in result.stdout
    assert f"{bad}:1:11: error: " in result.stderr and f"{bad}:2:29: error: " in result.stderr
    assert "'nowhere.xscl' does not exist" in refused("check", "nowhere.xscl", status=2)


TWO_PAIRS = "S//a->x JOIN {x = y, INF} S//b->y PUBLISH one; S//c->x JOIN {x = y, INF} S//d->y PUBLISH two"


def cost_lines(lines, kind):
    """What is said of a kind of cost, a line for each template that is explained."""
    text = " ".join(line.strip() for line in lines)
    return [part.split(" last measured")[0].split(" Datalog")[0] for part in text.split(f"{kind} cost: ")[1:]]


def test_costs_in_a_store(tmp_path):
    queries, store = tmp_path / "queries.xscl", tmp_path / "store"
    values = [("a", 1), ("b", 1), ("b", 1), ("b", 2), ("c", 1)]
    documents = ({"id": str(i), "time": i, "xml": f"<{tag}>{n}</{tag}>"} for i, (tag, n) in enumerate(values))
    assert run_on(tmp_path, "--state", store, queries=TWO_PAIRS, documents=documents).exit_code == 0
    lines = mmqjp("explain", queries, "--state", store).stdout.splitlines()
    guesses = [text.split(" for this row's rarest join, ") for text in cost_lines(lines, "estimated")]
    # Two pairs of an a and a b; a document of five meets them on either side.
    assert guesses == [
        [f"for a document like the 5 kept, {pairs} pairs of equal nodes", "0.8 for the 2 rows of the template"]
        for pairs in (0.8, 0.0)
    ]
    measured = cost_lines(lines, "last measured")
    assert len(measured) == 2 and all("for 2 matches of a batch, in the plan signature" in text for text in measured)
    alone = mmqjp("explain", queries, "--query", "one", "--plan", "views").stdout.splitlines()
    assert "plan views" in map(str.strip, alone)
    assert cost_lines(alone, "estimated") == ["no documents are kept (--state DIR names a store with some)"]
    assert cost_lines(alone, "last measured") == ["no batch has matched it yet"]


def test_a_directory_without_the_queries_or_a_store_is_an_error(tmp_path):
    queries, store, other = write_queries(tmp_path, TWO_PAIRS), tmp_path / "store", tmp_path / "other"
    Engine("duckdb", state=store).close()
    assert "has none of the queries in" in refused("explain", queries, "--state", store)
    other.mkdir()
    expected = f"mmqjp: error: there is no store in {other}: mmqjp run --state creates one\n"
    assert refused("explain", queries, "--state", other) == expected and list(other.iterdir()) == []


def test_svg_draws_the_queries_and_prints_nothing(tmp_path, explain):
    file = tmp_path / "graph.svg"
    for options, title in ((("--query", "again"), "again"), ((), "q1, q2, q3, again, chain")):
        assert explain(THESIS, *options, "--svg", str(file)) == []
        assert etree.parse(file).getroot().findtext("{*}title") == f"Join graph of {title}"
    queries, state = tmp_path / "queries.xscl", tmp_path / "state"
    assert "none" in refused("explain", queries, "--svg", tmp_path / "none" / "graph.svg")
    with Engine(state=state) as engine:
        engine.subscribe(THESIS.replace("1 h", "2 h"))
    assert printed("explain", queries, "--query", "again", "--state", state, "--svg", file) == ""
    assert "within 2 h" in file.read_text(), "what is registered there"


SCRIPT = """\
DEFINE EVENT A FROM S//a->r (k := r/@k, x := number(r/x));
DEFINE EVENT B FROM S//b->r (l := r/@l, y := number(r/y));
FROM FILTER{x >= 7} A NEXT{k = l AND y = 5} B WITHIN 1 d PUBLISH first;
FROM FILTER{y > 3}(FILTER{x >= 7} A NEXT{k = l AND y = 5} B) WITHIN 1 d PUBLISH high;
FROM FILTER{x >= 8} A NEXT{k = l AND y = 5} B WITHIN 2 d PUBLISH other;
FROM (SELECT l, y FROM B) FOLD{$2.l = $.l, $2.y > $.y,} B WITHIN 3 d PUBLISH run;
FROM AGGREGATE{max(y) AS top BY l OVER 2 h} B PUBLISH top
"""


@pytest.fixture
def shown(explain):
    """The lines of an explanation without what indents them."""
    return lambda *options, text=SCRIPT: [line.strip() for line in explain(text, *options) if line.strip()]


NEXT = """\
0  start
start to 1  A: FILTER{x >= 7}
static index: x in order
1  waits for its first partner, kept for 1 d; row 0 of 2 of m-op 3, shared with high
forward to 2  B: NEXT{$1.k = $2.l AND $2.y = 5}
static index: y hashed
hash: $1.k = $2.l
2  final
shares operators with high
"""


def test_automata_of_operators(shown):
    found = shown("--query", "first")
    assert found[found.index("automaton") + 1 :] == NEXT.splitlines()
    found = shown("--query", "run")
    assert "1  a run that may go on, kept for 3 d; row 0 of 1 of m-op 5, shared with no other query" in found
    fold = "B: FOLD{$.l = $2.l, $.y < $2.y, }"
    assert [line for line in found if fold in line] == [f"rebind to 1  {fold}", f"forward to 2  {fold}"]
    found = shown("--query", "top")
    assert "1  groups of events, kept for 2 h; row 0 of 1 of m-op 6, shared with no other query" in found
    assert "forward to 2  AGGREGATE{max(y) AS top BY l}" in found
    text = SCRIPT.replace("FROM AGG", "A NEXT (B NEXT A) PUBLISH deep;\nFROM AGG")
    found = shown("--query", "deep", text=text)
    edges = [line for line in found if line.startswith(("start", "forward", "feeds"))]
    assert sorted(line.split("  ")[1] for line in edges) == ["A", "A: NEXT", "B", "results of state 1: NEXT"]


PATTERNS = """\
DEFINE EVENT A FROM S//a->r (k := r/@k, x := number(r/x));
DEFINE EVENT B FROM S//b->r (k := r/@k, y := number(r/y));
PATTERN SEQ(A+ a[], ~(B c), B b)
WHERE skip_till_next_match {[k] AND a[1].x > 3 AND a[i].x > avg(a[..i-1].x) AND a[a.LEN].x > 9 AND b.y = 5 AND c.y < 2}
WITHIN 1 h HAVING count(a[]) > 2 NON OVERLAPPING PUBLISH runs;
PATTERN SEQ(SET(A a, B+ b[]), A c) WHERE {a.x > 1 AND c.x > a.x} WITHIN 1 h EARLIEST MAXIMAL PUBLISH sets;
PATTERN SEQ(A, (B | A)+, B!) WHERE {[k]} ERRORS <= 1 WITHIN 2 d PUBLISH near;
PATTERN SEQ(A a, ~(B n), B+ b[], A c)
WHERE skip_till_next_match {n.k = a.k AND b[1].k = a.k AND b[i].k = b[i-1].k AND b[i].y > 2 AND c.k = b[1].k}
WITHIN 1 h PUBLISH hashed;
PATTERN SEQ(A+ a[], A c) WHERE skip_till_next_match {a[i].k = a[1].k AND c.x > a[1].x} WITHIN 1 h PUBLISH scanned
"""

AUTOMATA = {
    "runs": """\
0 start | begin 1 A, a[1].x > 3, static index: x in order
1 a[], one event or more of A, equal in k | take 1 A, a[i].x > avg(a[..i-1].x) | \
ignore 1 any event that the run cannot go on with | unless 2 B c, c.y < 2, static index: y in order | \
proceed 2 B, a[a.LEN].x > 9, b.y = 5, static index: y hashed
2 b, an event of B | end 3 , HAVING count(a[]) > 2, NON OVERLAPPING
3 final
""",
    "sets": """\
0 start | begin 1 A a, a.x > 1, static index: x in order | begin 1 B b
1 a, an event of A; b[], one event or more of B, in any order | begin 2 A c
2 c, an event of A | end 3 , c.x > a.x, EARLIEST MAXIMAL
3 final
""",
    "near": """\
0 start | begin 1 A
1 an event of A, which may be left out, equal in k | ignore 1 any event | begin 2 B | begin 3 A
2 an event of B, which may be left out | take 2 B | ignore 2 any event | begin 3 A | begin 4 B
3 an event of A, which may be left out | take 2 B | take 3 A | ignore 3 any event | begin 4 B
4 an event of B, which is needed | ignore 4 any event | end 5 , at most 1 left out on the way
5 final
""",
    "hashed": """\
0 start | begin 1 A
1 a, an event of A | ignore 1 any event that the run cannot go on with | unless 2 B n, n.k = a.k, hash: n.k = a.k | \
begin 2 B, b[1].k = a.k, hash: b[1].k = a.k
2 b[], one event or more of B | \
take 2 B, b[i].k = b[i-1].k AND b[i].y > 2, static index: y in order, hash: b[i].k = b[i-1].k | \
ignore 2 any event that the run cannot go on with | proceed 3 A, c.k = b[1].k, hash: c.k = b[1].k
3 c, an event of A | end 4
4 final
""",
    # An event of A may be the next one of a[] or the last one, so it is compared with all runs.
    "scanned": """\
0 start | begin 1 A
1 a[], one event or more of A | take 1 A, a[i].k = a[1].k | ignore 1 any event that the run cannot go on with | \
proceed 2 A, c.x > a[1].x
2 c, an event of A | end 3
3 final
""",
}


def test_automata_of_patterns(explain):
    shown: dict[str, list[str]] = {}
    for found in map(json.loads, explain(PATTERNS, "--json")):
        lines = shown.setdefault(found["query"], [])
        for state in found["automaton"]["states"]:
            edges = [edge for edge in found["automaton"]["edges"] if edge["source"] == state["number"]]
            does = [", ".join((edge["stream"], *edge["does"], *edge["found_by"])) for edge in edges]
            ways = [f"{edge['kind']} {edge['target']} {said}".strip() for edge, said in zip(edges, does, strict=True)]
            lines.append(" | ".join((f"{state['number']} {state['title']}", *ways)))
    assert shown == {name: text.splitlines() for name, text in AUTOMATA.items()}


def test_the_match_windows_of_patterns(shown):
    def match_windows(name, old="", new=""):
        found = shown("--query", name, text=PATTERNS.replace(old, new))
        return found[found.index("match windows") + 1 : -1] if "match windows" in found else []

    assert match_windows("runs") == [
        "filter  a[1]: x > 3; ~c: y < 2; b: y = 5",
        "partition  equal in k",
        "necessary  2 events; candidates for a[1] and b; a[1] before b",
    ]
    assert match_windows("sets") == [
        "filter  a: x > 1",
        "necessary  3 events; candidates for a, b[1] and c; a before c; b[1] before c",
    ]
    assert not match_windows("near")
    assert not match_windows("runs", "skip_till_next_match", "strict_contiguity")
    equal = match_windows("sets", "c.x > a.x", "c.k = a.k AND b[].y = c.x AND b[].k = a.k")
    assert "partition  equal in k" in equal
    crossed = match_windows("sets", "c.x > a.x", "c.x = a.x AND b[].y = c.x")
    assert "partition  equal in a.x = b[1].y = b[i].y = c.x" in crossed


def test_as_json(tmp_path, explain):
    found = [json.loads(line) for line in explain(SCRIPT, "--json")]
    assert [one["query"] for one in found] == ["first", "high", "other", "run", "top"]
    assert found[1]["shares_with"] == ["first"]
    assert [json.loads(line) for line in explain(SCRIPT, "--json", "--query", "run")] == [found[3]]
    assert "has no event query" in refused("explain", write_queries(tmp_path, "FROM S//a"), "--json")


def parts(found: list[str]) -> tuple[list[str], list[str], list[str]]:
    rules, after = (found.index(title) for title in ("rules", "plan after the rules"))
    return found[found.index("plan before the rules") : rules], found[rules:after], found[after:]


def test_the_plan_before_and_after_each_rule(shown):
    before, rules, after = parts(shown("--plan"))
    assert any("FILTER of 1: 3 rows" in line for line in before)
    assert any("FILTER of 1: 2 rows" in line for line in after)
    steps = [line.split() for line in rules[2:10]]
    names = ["rule", "none", "cse", "s_sigma", "s_alpha", "s_window", "channels", "c_alpha"]
    assert [step[0] for step in steps] == names
    sizes = [[int(size) for size in step[1:]] for step in steps[1:]]
    assert all(after <= before for one, other in pairwise(sizes) for before, after in zip(one, other, strict=True))
    assert sizes[1][1] < sizes[0][1], "cse makes equal rows one"
    assert sizes[5][2] < sizes[4][2], "rows that differ in their left rows alone share instances"
    _, rules, after = parts(shown("--plan", "--without", "cse"))
    assert any(line.split() == ["cse", "is", "off"] for line in rules)
    assert any("FILTER of 1: 3 rows" in line for line in after)
    many = "DEFINE EVENT A FROM S//a->r (k := r/@k);\n" + ";\n".join(f'FILTER{{k = "{n}"}} A' for n in range(100))
    assert len(shown("--plan", text=many)) < 40


def test_partial_aggregates_of_several_queries_are_in_the_plan(shown):
    text = SCRIPT + ";FROM AGGREGATE{avg(y) AS mean, count(l) AS n OVER 1 d} B PUBLISH mean"
    before, rules, after = parts(shown("--plan", text=text))
    (partial,) = (line for line in after if "PARTIAL AGGREGATES" in line)
    assert partial.endswith(": 1 row for top, mean")
    assert "AGGREGATE{count(), max(y), sum(y), count(y), count(l) BY l}" in after
    assert sum(f"AGGREGATE of {partial.split()[0]}: 1 row" in line for line in after) == 2
    assert not [line for line in before + rules if "PARTIAL" in line]
    off = shown("--plan", "--without", "s_alpha", text=text)
    assert not [line for line in off if "PARTIAL" in line]
    counted = [step[-1] for step in map(str.split, rules[2:])][:5]
    assert counted == ["aggregations", "2", "2", "2", "1"], "as many as there are AGGREGATEs, one with s_alpha"
    assert next(line.split()[-1] for line in off if line.startswith("channels ")) == "2"


MIXED = f"""{SCRIPT};
FROM S//a->x[./k->k] FOLLOWED BY {{k = l, 1 h}} S//b->y[./l->l] PUBLISH pairs;
FROM S//a->x[./k->k] FOLLOWED BY {{k = l, 2 h}} S//b->y[./l->l] PUBLISH later;
DEFINE EVENT Pair FROM pairs//match->m (k := m/a/k);
FROM Pair NEXT{{k = l}} B WITHIN 1 d PUBLISH after
"""


def test_a_plan_has_value_joins_and_event_queries_and_is_drawn(tmp_path, explain, shown):
    before, rules, after = parts(shown("--plan", text=MIXED))
    assert sum(": 1 row for pairs" in line or ": 1 row for later" in line for line in before) == 2
    assert any(re.search(r"JOIN of template \d+ of \d+: 1 row for pairs, later", line) for line in after)
    steps = [line.split() for line in rules]
    assert ["documents", "2", "2"] in steps and ["t_join", "1", "1"] in steps
    (outputs,) = (line for line in after if line.endswith("outputs pairs") or "outputs pairs from" in line)
    assert any(f"events Pair from {outputs.split()[0]}" in line for line in after)
    off = shown("--plan", "--without", "t_join", text=MIXED)
    assert any(line.split() == ["t_join", "is", "off"] for line in off)
    found = shown(text=MIXED)
    assert "query first" in found and "query later" in found
    found = shown("--plan", text="FROM S//a")
    assert "0  documents S" in found and "1  FILTER of 0: 1 row for q1" in found
    picture = tmp_path / "plan.svg"
    assert explain(MIXED, "--plan", "--svg", str(picture)) == []
    drawn = etree.fromstring(picture.read_bytes())
    texts = ["".join(map(str, one.itertext())) for one in drawn.iter("{*}text")]
    assert texts.index("before the rules") < texts.index("after the rules")
    assert {"documents S", "events A", "NEXT", "outputs pairs"} <= set(texts)
