"""`mmqjp explain`: join graphs, costs and pictures; automata of event statements and the plan of all queries."""

import json
import re
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest
from lxml import etree

from mmqjp.explain.svg import WIDTH, query_lines
from mmqjp.shown_engine import Engine
from tests.support.cli import mmqjp, run_on, write_queries
from xscl.parser import parse_script

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
    def call_explain(text, *options):
        result = mmqjp("explain", write_queries(tmp_path, text), *options)
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout.splitlines()

    return call_explain


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


def test_names_and_mistakes(tmp_path):
    queries = write_queries(tmp_path, THESIS)
    close = mmqjp("explain", queries, "--query", "agian")
    assert close.exit_code == 1
    assert close.stderr == f"mmqjp: error: {queries} has no query named agian; did you mean again?\n"
    assert mmqjp("explain", queries, "--query", "zzz").stderr.endswith("it has q1, q2, q3, again, chain\n")
    assert "no query named frist; did you mean first?" in explained(tmp_path, "--query", "frist").stderr
    result = mmqjp("explain", write_queries(tmp_path, "FROM"))
    assert (result.exit_code, result.stdout) == (1, "") and result.stderr.startswith(f"{queries}:1:")


def test_check_reads_all_files(tmp_path):
    good, bad = tmp_path / "good.xscl", tmp_path / "bad.xscl"
    good.write_text("FROM S//a")
    bad.write_text("FROM S//a[position() = 1];\nFROM S//b->x JOIN {x = y, 1 eon} S//c->y")
    result = mmqjp("check", bad, good)
    assert result.exit_code == 1 and "good.xscl: 1 query, no mistakes" in result.stdout
    assert f"{bad}:1:11: error: " in result.stderr and f"{bad}:2:29: error: " in result.stderr
    missing = mmqjp("check", "nowhere.xscl")
    assert missing.exit_code == 2 and "'nowhere.xscl' does not exist" in missing.stderr


PAIRS = "S//a->x JOIN {x = y, INF} S//b->y PUBLISH one; S//c->x JOIN {x = y, INF} S//d->y PUBLISH two"


def cost_lines(lines, kind):
    """What is said of a kind of cost, a line for each template that is explained."""
    text = " ".join(line.strip() for line in lines)
    return [part.split(" last measured")[0].split(" Datalog")[0] for part in text.split(f"{kind} cost: ")[1:]]


def test_costs_in_a_store(tmp_path):
    queries, store = tmp_path / "queries.xscl", tmp_path / "store"
    values = [("a", 1), ("b", 1), ("b", 1), ("b", 2), ("c", 1)]
    documents = ({"id": str(i), "time": i, "xml": f"<{tag}>{n}</{tag}>"} for i, (tag, n) in enumerate(values))
    assert run_on(tmp_path, "--state", store, queries=PAIRS, documents=documents).exit_code == 0
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
    queries, store, other = write_queries(tmp_path, PAIRS), tmp_path / "store", tmp_path / "other"
    Engine("duckdb", state=store).close()
    result = mmqjp("explain", queries, "--state", store)
    assert (result.exit_code, result.stdout) == (1, "") and "has none of the queries in" in result.stderr
    other.mkdir()
    result = mmqjp("explain", queries, "--state", other)
    expected = f"mmqjp: error: there is no store in {other}: mmqjp run --state creates one\n"
    assert (result.exit_code, result.stderr, list(other.iterdir())) == (1, expected, [])


def test_svg_draws_the_queries_and_prints_nothing(tmp_path, explain):
    file = tmp_path / "graph.svg"
    for options, title in ((("--query", "again"), "again"), ((), "q1, q2, q3, again, chain")):
        assert explain(THESIS, *options, "--svg", str(file)) == []
        assert etree.parse(file).getroot().findtext("{*}title") == f"Join graph of {title}"
    result = mmqjp("explain", tmp_path / "queries.xscl", "--svg", tmp_path / "none" / "graph.svg")
    assert result.exit_code == 1 and result.stderr.startswith("mmqjp: error: ") and "none" in result.stderr
    queries, state = tmp_path / "queries.xscl", tmp_path / "state"
    with Engine(state=state) as engine:
        engine.subscribe(THESIS.replace("1 h", "2 h"))
    result = mmqjp("explain", queries, "--query", "again", "--state", state, "--svg", file)
    assert (result.exit_code, result.output) == (0, "")
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


def explained(tmp_path: Path, *options: str, text: str = SCRIPT):
    return mmqjp("explain", write_queries(tmp_path, text), *options)


def lines(tmp_path: Path, *options: str, text: str = SCRIPT) -> list[str]:
    result = explained(tmp_path, *options, text=text)
    assert (result.exit_code, result.stderr) == (0, "")
    return [line.strip() for line in result.stdout.splitlines() if line.strip()]


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


def test_automata_of_operators(tmp_path):
    found = lines(tmp_path, "--query", "first")
    assert found[found.index("automaton") + 1 :] == NEXT.splitlines()
    found = lines(tmp_path, "--query", "run")
    assert "1  a run that may go on, kept for 3 d; row 0 of 1 of m-op 5, shared with no other query" in found
    fold = "B: FOLD{$.l = $2.l, $.y < $2.y, }"
    assert [line for line in found if fold in line] == [f"rebind to 1  {fold}", f"forward to 2  {fold}"]
    found = lines(tmp_path, "--query", "top")
    assert "1  groups of events, kept for 2 h; row 0 of 1 of m-op 6, shared with no other query" in found
    assert "forward to 2  AGGREGATE{max(y) AS top BY l}" in found
    text = SCRIPT.replace("FROM AGG", "A NEXT (B NEXT A) PUBLISH deep;\nFROM AGG")
    found = lines(tmp_path, "--query", "deep", text=text)
    edges = [line for line in found if line.startswith(("start", "forward", "feeds"))]
    assert sorted(line.split("  ")[1] for line in edges) == ["A", "A: NEXT", "B", "results of state 1: NEXT"]


PATTERNS = """\
DEFINE EVENT A FROM S//a->r (k := r/@k, x := number(r/x));
DEFINE EVENT B FROM S//b->r (k := r/@k, y := number(r/y));
PATTERN SEQ(A+ a[], ~(B c), B b)
WHERE skip_till_next_match {[k] AND a[1].x > 3 AND a[i].x > avg(a[..i-1].x) AND a[a.LEN].x > 9 AND b.y = 5 AND c.y < 2}
WITHIN 1 h HAVING count(a[]) > 2 NON OVERLAPPING PUBLISH runs;
PATTERN SEQ(SET(A a, B+ b[]), A c) WHERE {a.x > 1 AND c.x > a.x} WITHIN 1 h EARLIEST MAXIMAL PUBLISH sets;
PATTERN SEQ(A, (B | A)+, B!) WHERE {[k]} ERRORS <= 1 WITHIN 2 d PUBLISH near
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
}


def test_automata_of_patterns(tmp_path):
    shown: dict[str, list[str]] = {}
    for found in map(json.loads, explained(tmp_path, "--json", text=PATTERNS).stdout.splitlines()):
        lines = shown.setdefault(found["query"], [])
        for state in found["automaton"]["states"]:
            edges = [edge for edge in found["automaton"]["edges"] if edge["source"] == state["number"]]
            does = [", ".join((edge["stream"], *edge["does"], *edge["found_by"])) for edge in edges]
            ways = [f"{edge['kind']} {edge['target']} {said}".strip() for edge, said in zip(edges, does, strict=True)]
            lines.append(" | ".join((f"{state['number']} {state['title']}", *ways)))
    assert shown == {name: text.splitlines() for name, text in AUTOMATA.items()}


def test_runs_that_are_found_by_a_hash(tmp_path):
    text = """\
DEFINE EVENT A FROM S//a->r (k := r/@k, x := number(r/x));
DEFINE EVENT B FROM S//b->r (l := r/@l, y := number(r/y));
PATTERN SEQ(A a, ~(B n), B+ b[], A c)
WHERE skip_till_next_match {n.l = a.k AND b[1].l = a.k AND b[i].l = b[i-1].l AND b[i].y > 2 AND c.k = b[1].l}
WITHIN 1 h PUBLISH hashed;
PATTERN SEQ(A+ a[], A c) WHERE skip_till_next_match {a[i].k = a[1].k AND c.x > a[1].x} WITHIN 1 h PUBLISH scanned
"""
    found = lines(tmp_path, "--query", "hashed", text=text)
    hashes = {found[at - 1].split("  ")[0]: line for at, line in enumerate(found) if line.startswith("hash: ")}
    assert hashes == {
        "unless to 2": "hash: n.l = a.k",
        "begin to 2": "hash: b[1].l = a.k",
        "static index: y in order": "hash: b[i].l = b[i-1].l",
        "proceed to 3": "hash: c.k = b[1].l",
    }
    # An event of A may be the next one of a[] or the last one, so it is compared with all runs.
    assert not [line for line in lines(tmp_path, "--query", "scanned", text=text) if "hash" in line]


def match_windows(tmp_path: Path, name: str, old: str = "", new: str = "") -> list[str]:
    found = lines(tmp_path, "--query", name, text=PATTERNS.replace(old, new))
    return found[found.index("match windows") + 1 : -1] if "match windows" in found else []


def test_the_match_windows_of_patterns(tmp_path):
    assert match_windows(tmp_path, "runs") == [
        "filter  a[1]: x > 3; ~c: y < 2; b: y = 5",
        "partition  equal in k",
        "necessary  2 events; candidates for a[1] and b; a[1] before b",
    ]
    assert match_windows(tmp_path, "sets") == [
        "filter  a: x > 1",
        "necessary  3 events; candidates for a, b[1] and c; a before c; b[1] before c",
    ]
    assert not match_windows(tmp_path, "near")
    assert not match_windows(tmp_path, "runs", "skip_till_next_match", "strict_contiguity")
    equal = match_windows(tmp_path, "sets", "c.x > a.x", "c.k = a.k AND b[].y = c.x AND b[].k = a.k")
    assert "partition  equal in k" in equal
    crossed = match_windows(tmp_path, "sets", "c.x > a.x", "c.x = a.x AND b[].y = c.x")
    assert "partition  equal in a.x = b[1].y = b[i].y = c.x" in crossed


def test_as_json(tmp_path):
    result = explained(tmp_path, "--json")
    found = {one["query"]: one for one in map(json.loads, result.stdout.splitlines())}
    assert list(found) == ["first", "high", "other", "run", "top"]
    assert found["high"]["shares_with"] == ["first"]
    states, edges = found["first"]["automaton"]["states"], found["first"]["automaton"]["edges"]
    assert [state["title"] for state in states] == ["start", "waits for its first partner", "final"]
    shown = [(edge["kind"], edge["source"], edge["target"], edge["stream"]) for edge in edges]
    assert shown == [("start", 0, 1, "A"), ("forward", 1, 2, "B")]
    alone = explained(tmp_path, "--json", "--query", "run").stdout.splitlines()
    assert [json.loads(line)["query"] for line in alone] == ["run"]
    result = explained(tmp_path, "--json", text="FROM S//a")
    assert result.exit_code == 1 and "has no event query" in result.stderr


def parts(found: list[str]) -> tuple[list[str], list[str], list[str]]:
    rules, after = (found.index(title) for title in ("rules", "plan after the rules"))
    return found[found.index("plan before the rules") : rules], found[rules:after], found[after:]


def test_the_plan_before_and_after_each_rule(tmp_path):
    before, rules, after = parts(lines(tmp_path, "--plan"))
    assert any("FILTER of 1: 3 rows" in line for line in before)
    assert any("FILTER of 1: 2 rows" in line for line in after)
    steps = [line.split() for line in rules[2:10]]
    names = ["rule", "none", "cse", "s_sigma", "s_alpha", "s_window", "channels", "c_alpha"]
    assert [step[0] for step in steps] == names
    sizes = [[int(size) for size in step[1:]] for step in steps[1:]]
    assert all(after <= before for one, other in pairwise(sizes) for before, after in zip(one, other, strict=True))
    assert sizes[1][1] < sizes[0][1], "cse makes equal rows one"
    assert sizes[5][2] < sizes[4][2], "rows that differ in their left rows alone share instances"
    _, rules, after = parts(lines(tmp_path, "--plan", "--without", "cse"))
    assert any(line.split() == ["cse", "is", "off"] for line in rules)
    assert any("FILTER of 1: 3 rows" in line for line in after)
    many = "DEFINE EVENT A FROM S//a->r (k := r/@k);\n" + ";\n".join(f'FILTER{{k = "{n}"}} A' for n in range(100))
    assert len(lines(tmp_path, "--plan", text=many)) < 40


def test_partial_aggregates_of_several_queries_are_in_the_plan(tmp_path):
    text = SCRIPT + ";FROM AGGREGATE{avg(y) AS mean, count(l) AS n OVER 1 d} B PUBLISH mean"
    before, rules, after = parts(lines(tmp_path, "--plan", text=text))
    (partial,) = (line for line in after if "PARTIAL AGGREGATES" in line)
    assert partial.endswith(": 1 row for top, mean")
    assert "AGGREGATE{count(), max(y), sum(y), count(y), count(l) BY l}" in after
    assert sum(f"AGGREGATE of {partial.split()[0]}: 1 row" in line for line in after) == 2
    assert not [line for line in before + rules if "PARTIAL" in line]
    off = lines(tmp_path, "--plan", "--without", "s_alpha", text=text)
    assert not [line for line in off if "PARTIAL" in line]
    counted = [step[-1] for step in map(str.split, rules[2:])][:5]
    assert counted == ["aggregations", "2", "2", "2", "1"], "as many as there are AGGREGATEs, one with s_alpha"
    assert next(line.split()[-1] for line in off if line.startswith("channels ")) == "2"


MIXED = (
    SCRIPT
    + """;
FROM S//a->x[./k->k] FOLLOWED BY {k = l, 1 h} S//b->y[./l->l] PUBLISH pairs;
FROM S//a->x[./k->k] FOLLOWED BY {k = l, 2 h} S//b->y[./l->l] PUBLISH later;
DEFINE EVENT Pair FROM pairs//match->m (k := m/a/k);
FROM Pair NEXT{k = l} B WITHIN 1 d PUBLISH after
"""
)


def test_a_plan_has_value_joins_and_event_queries_and_is_drawn(tmp_path):
    before, rules, after = parts(lines(tmp_path, "--plan", text=MIXED))
    assert sum(": 1 row for pairs" in line or ": 1 row for later" in line for line in before) == 2
    assert any(re.search(r"JOIN of template \d+ of \d+: 1 row for pairs, later", line) for line in after)
    steps = [line.split() for line in rules]
    assert ["documents", "2", "2"] in steps and ["t_join", "1", "1"] in steps
    (outputs,) = (line for line in after if line.endswith("outputs pairs") or "outputs pairs from" in line)
    assert any(f"events Pair from {outputs.split()[0]}" in line for line in after)
    off = lines(tmp_path, "--plan", "--without", "t_join", text=MIXED)
    assert any(line.split() == ["t_join", "is", "off"] for line in off)
    found = lines(tmp_path, text=MIXED)
    assert "query first" in found and "query later" in found
    found = lines(tmp_path, "--plan", text="FROM S//a")
    assert "0  documents S" in found and "1  FILTER of 0: 1 row for q1" in found
    picture = tmp_path / "plan.svg"
    result = explained(tmp_path, "--plan", "--svg", str(picture), text=MIXED)
    assert (result.exit_code, result.output) == (0, "")
    drawn = etree.fromstring(picture.read_bytes())
    texts = ["".join(map(str, one.itertext())) for one in drawn.iter("{*}text")]
    assert texts.index("before the rules") < texts.index("after the rules")
    assert {"documents S", "events A", "NEXT", "outputs pairs"} <= set(texts)
