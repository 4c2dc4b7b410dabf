"""`mmqjp explain` and the table of `mmqjp check`: what they say of queries."""

import duckdb
import pytest
from lxml import etree

from join_stage.protocol import PLANS
from mmqjp.explain.svg import WIDTH, query_lines
from mmqjp.shown_engine import Engine
from tests.support.cli import mmqjp as call
from tests.support.cli import write_queries
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
        result = call("explain", write_queries(tmp_path, text), *options)
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
join graph
  left, stream S
    //book->x1
    ├─ /author->x2
    └─ /title->x3
  right, stream S
    //blog->x4
    ├─ /author->x5
    └─ /title->x6
  value joins
    x2 = x5
    x3 = x6
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


def test_join_graph_minor_row_and_datalog_of_the_thesis_first_query(explain):
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


def test_of_many_sharers_the_first_are_named(explain, tmp_path):
    lines = explain(";".join(["FROM S//a->x JOIN {x = y, 1} S//b->y"] * 13), "--query", "q1")
    few = "shared with q2, q3, q4, q5, q6, q7, q8, q9, q10, q11, and more"
    assert [line.strip() for line in lines if "shared with" in line] == [few, few]
    assert few.removeprefix("shared with ") in " ".join(call("check", tmp_path / "queries.xscl").stdout.split())


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
    close = call("explain", queries, "--query", "agian")
    assert close.exit_code == 1
    assert close.stderr == f"mmqjp: error: {queries} has no query named agian; did you mean again?\n"
    assert call("explain", queries, "--query", "zzz").stderr.endswith("it has q1, q2, q3, again, chain\n")
    result = call("explain", write_queries(tmp_path, "FROM"))
    assert (result.exit_code, result.stdout) == (1, "") and result.stderr.startswith(f"{queries}:1:")


# ---------------------------------------------------------------- check

TABLE = """
q1     FOLLOWED BY  S     1  2  0  again
q2     FOLLOWED BY  S     1  2  0  -
again  JOIN         S     1  2  0  q1
chain  chain of 3   S     1  1  1  -
q6     filter       S     1  0  2  -
q7     filter       blog  1  0  2  -
"""


def test_check_sums_up(tmp_path):
    queries = write_queries(tmp_path, f"{THESIS}; FROM S//a->x[./b]; blog")
    result = call("check", queries)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{queries}: 7 queries, no mistakes\n")
    found = [line.split() for line in result.stdout.splitlines()]
    assert all(line.split() in found for line in TABLE.strip().splitlines())
    assert max(map(len, result.stdout.splitlines()[1:])) <= WIDTH


def test_check_looks_at_all_files(tmp_path):
    good, bad = tmp_path / "good.xscl", tmp_path / "bad.xscl"
    good.write_text("FROM S//a")
    bad.write_text("FROM S//a[position() = 1];\nFROM S//b->x JOIN {x = y, 1 eon} S//c->y")
    result = call("check", bad, good)
    assert result.exit_code == 1 and "good.xscl: 1 query, no mistakes" in result.stdout
    assert f"{bad}:1:11: error: " in result.stderr and f"{bad}:2:29: error: " in result.stderr
    missing = call("check", "nowhere.xscl")
    assert missing.exit_code == 2 and "'nowhere.xscl' does not exist" in missing.stderr


# ---------------------------------------------------------------- costs

PAIRS = "S//a->x JOIN {x = y, INF} S//b->y PUBLISH one; S//c->x JOIN {x = y, INF} S//d->y PUBLISH two"


def cost_lines(lines, kind):
    """What is said of a kind of cost, a line for each template that is explained."""
    text = " ".join(line.strip() for line in lines)
    return [part.split(" last measured")[0].split(" Datalog")[0] for part in text.split(f"{kind} cost: ")[1:]]


def test_costs_without_a_store_are_unknown(explain):
    lines = explain(PAIRS, "--query", "one")
    assert "plan signature" in map(str.strip, lines)
    assert cost_lines(lines, "estimated") == ["no documents are kept (--state DIR names a store with some)"]
    assert cost_lines(lines, "last measured") == ["no batch has matched it yet"]
    assert "plan views" in map(str.strip, explain(PAIRS, "--plan", "views"))


@pytest.mark.parametrize("plan", PLANS)
def test_costs_in_a_store(tmp_path, plan):
    queries, documents, store = write_queries(tmp_path, PAIRS), tmp_path / "d.jsonl", tmp_path / "store"
    values = [("a", 1), ("b", 1), ("b", 1), ("b", 2), ("c", 1)]
    texts = (f'{{"id": "{i}", "time": {i}, "xml": "<{tag}>{n}</{tag}>"}}' for i, (tag, n) in enumerate(values))
    documents.write_text("\n".join(texts))
    options = ("--queries", queries, "--documents", documents, "--engine", "duckdb", "--state", store, "--plan", plan)
    assert call("run", *options).exit_code == 0
    lines = call("explain", queries, "--state", store, "--plan", plan).stdout.splitlines()
    guesses = [text.split(" for this row's rarest join, ") for text in cost_lines(lines, "estimated")]
    # Two pairs of an a and a b; a document of five meets them on either side.
    assert guesses == [
        [f"for a document like the 5 kept, {pairs} pairs of equal nodes", "0.8 for the 2 rows of the template"]
        for pairs in (0.8, 0.0)
    ]
    measured = cost_lines(lines, "last measured")
    assert len(measured) == 2 and all(f"for 2 matches of a batch, in the plan {plan}" in text for text in measured)
    assert call("explain", queries, "--state", store, "--query", "one").exit_code == 0


def test_a_directory_without_the_queries_or_a_store_is_an_error(tmp_path):
    queries, store, other = write_queries(tmp_path, PAIRS), tmp_path / "store", tmp_path / "other"
    Engine("duckdb", state=store).close()
    result = call("explain", queries, "--state", store)
    assert (result.exit_code, result.stdout) == (1, "") and "has none of the queries in" in result.stderr
    other.mkdir()
    result = call("explain", queries, "--state", other)
    expected = f"mmqjp: error: there is no store in {other}: mmqjp run --state creates one\n"
    assert (result.exit_code, result.stderr, list(other.iterdir())) == (1, expected, [])


# ---------------------------------------------------------------- pictures


def test_svg_draws_the_queries_and_prints_nothing(tmp_path, explain):
    file = tmp_path / "graph.svg"
    for options, title in ((("--query", "again"), "again"), ((), "q1, q2, q3, again, chain")):
        assert explain(THESIS, *options, "--svg", str(file)) == []
        assert etree.parse(file).getroot().findtext("{*}title") == f"Join graph of {title}"
    result = call("explain", tmp_path / "queries.xscl", "--svg", tmp_path / "none" / "graph.svg")
    assert result.exit_code == 1 and result.stderr.startswith("mmqjp: error: ") and "none" in result.stderr


def test_svg_of_a_store_draws_what_is_registered_there(tmp_path):
    queries, state, file = write_queries(tmp_path, THESIS), tmp_path / "state", tmp_path / "graph.svg"
    with Engine(state=state) as engine:
        engine.subscribe(THESIS.replace("1 h", "2 h"))
    result = call("explain", queries, "--query", "again", "--state", state, "--svg", file)
    assert (result.exit_code, result.output) == (0, "")
    assert "within 2 h" in file.read_text()
