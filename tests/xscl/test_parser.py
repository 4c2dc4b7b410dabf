"""What the parser makes of each way to write something, and what it refuses. By test_lalr, the printed texts say
what they mean."""

from pathlib import Path

import pytest

from tests.support.places import DATA
from xscl.advice import foreign_mistake
from xscl.algebra.values import Compare
from xscl.parser import _Parser, parse_script
from xscl.printer import to_xscl
from xscl.syntax import Join, Query
from xscl.text import XsclErrors, split_script


def query(text: str) -> Query:
    (found,) = parse_script(text).queries
    return found


WRITTEN = r"""
//a => S//a
blog/a//b => blog/a//b
blog => blog/*
FROM blog AS b => blog/*->b
blog->b => blog/*->b
S//a-b->x/a-->y => S//a-b->x/a-->y
S//from/following[@AND]/a->b => S//from/following[./@AND]/a->b
S//a[./b][./c] as x => S//a->x[./b][./c]
((S//a->x)) => S//a->x
S//a->x'[. = 'q'] JOIN {x'=x'' and x''='it''s', 1 h} S//b->x'' =>
    S//a->x'[. = "q"] JOIN {x' = x'' and x'' = "it's", 1 h} S//b->x''
S//@*:k->x => S//@*:k->x
S//a[a][/a][//a][.//a][a/b//c][@k][a->x/b->y] => S//a[./a][./a][.//a][.//a][./a/b//c][./@k][./a->x/b->y]
S//a[a and b or c][a AND (b Or c)] => S//a[(./a and ./b) or ./c][./a and (./b or ./c)]
S//a[a and (b and c)][((a or b)) or c] => S//a[./a and ./b and ./c][./a or ./b or ./c]
S//a[a and'x'=b][count(a) > .5] => S//a[./a and "x" = ./b][count(./a) > .5]
S//a[normalize-space() = 'x'][normalize-space(a)] => S//a[normalize-space(.) = "x"][normalize-space(./a) != ""]
S//a[not(string(a))][a = '(: -- ;'] => S//a[not(string(./a) != "")][./a = "(: -- ;"]
S//a->x FOLLOWED BY{x=x', 60} S//b->x' => S//a->x FOLLOWED BY {x = x', 1 min} S//b->x'
(S//a->a JOIN {a = b, 7} S//b->b) JOIN {b = c, 7us} c->c =>
    S//a->a JOIN {a = b, 7 s} S//b->b JOIN {b = c, 7 us} c/*->c
a->a JOIN {a = b, 1.5 ms} (FROM b->b JOIN {b = c, 0.0000015} c->c) =>
    a/*->a JOIN {a = b, 1500 us} (b/*->b JOIN {b = c, 1 us} c/*->c)
a->a JOIN {a = b, .5 min} b->b JOIN {b = c, 0} c->c => a/*->a JOIN {a = b, 30 s} b/*->b JOIN {b = c, 0 s} c/*->c
a->a JOIN {a = b, infinity} b->b JOIN {b = c, ∞} c->c => a/*->a JOIN {a = b, INF} b/*->b JOIN {b = c, INF} c/*->c
S//a[lower-case(b)->v] JOIN {v = w, 7} (SELECT w FROM S//e[c and tokens(@d) AS w]) =>
    S//a[./b->v'] JOIN {lower-case(v') = w, 7 s} (SELECT tokens(w') AS w FROM S//e[./c and ./@d->w'[tokens(.) != ""]])
S//a->x[extract(., "k")->v] NOT JOIN {host(v) = c, 7} S//b->y[concat(k, "-", m)->c] =>
    S//a->x[extract(., "k") != ""] NOT JOIN {host(extract(x, "k")) = concat(y/k, "-", y/m), 7 s} S//b->y
a->a JOIN {a = b, 7 d} b->b JOIN {b = c, 48 h} c->c => a/*->a JOIN {a = b, 1 w} b/*->b JOIN {b = c, 2 d} c/*->c
"""


def test_what_is_written_is_meant() -> None:
    for line in WRITTEN.replace("=>\n   ", "=>").strip().splitlines():
        written, meant = line.split(" => ")
        assert to_xscl(parse_script(written)) == f"FROM {meant}"
        assert parse_script(f"FROM {meant}") == parse_script(written)
    comments = "(: one (: two; :) still :) FROM -- to the end; of [ the line\n S//a--b/c[ -- x\n d] (: ; :)"
    assert to_xscl(parse_script(comments)) == "FROM S//a--b/c[./d]"
    assert to_xscl(query("select x', x'/b as c from S//a->x'")) == "SELECT x', x'/b AS c FROM S//a->x'"
    source = query("S//a->x JOIN {x = y, 2 h} S//b->y").source
    assert isinstance(source, Join) and source.window.us == 7_200_000_000


def test_an_element_constructor() -> None:
    text = """DECLARE NAMESPACE p = "urn:p"; SELECT <p:alert who="{x}, it's; &quot;{{&#65;" none=''>
  Title: { x/title (: c :) } -- (: no comment :) &lt;&amp;&#x42; }} <b/><from>a</from></p:alert > FROM S//a->x"""
    written = """DECLARE NAMESPACE p = "urn:p"; SELECT <p:alert who="{x}, it's; &quot;{{A" none="">&#10;  \
Title: {x/title} -- (: no comment :) &lt;&amp;B }} <b/><from>a</from></p:alert> FROM S//a->x"""
    assert to_xscl(parse_script(text)) == written
    # Its text hides semicolons, quotes and brackets.
    first, second = "SELECT <a>it's; [ ( \" </a> FROM S//a", "SELECT <b k=';'>{x/c[. = ';}']}</b> FROM S//b->x"
    assert len(parse_script(f"{first}; {second}").queries) == 2


def test_a_query_spans_its_own_text() -> None:
    text = '\ufeff  declare namespace p="urn:p" ;\n (: c :) (S//a) PUBLISH x ;\n\n FROM  (S//b->y[. = ";"]) -- end\n;'
    script = parse_script(text)
    assert [text[found.span.start : found.span.end] for found in script.queries] == [
        "(S//a) PUBLISH x",
        'FROM  (S//b->y[. = ";"])',
    ]
    assert script.namespaces == (("p", "urn:p"),)
    assert script.names() == ("x", "q2")


def test_spans_of_parts_are_offsets_in_the_statement() -> None:
    script = "FROM S//z;\nFROM S//a->x JOIN {x/b = y, 7 d} S//c->y"
    query = _Parser(script).script(reuse=False).queries[1]
    text, join = script[query.span.start : query.span.end], query.source
    assert isinstance(join, Join) and isinstance(join.pred, Compare)
    parts = [join, join.left, join.right, join.pred, join.pred.left, join.window]
    shown = ["S//a->x JOIN {x/b = y, 7 d} S//c->y", "S//a->x", "S//c->y", "x/b = y", "x/b", "7 d"]
    assert [text[part.span.start : part.span.end] for part in parts] == shown


def test_a_reader_may_precede_its_publisher_and_a_prefix_be_declared_twice_alike() -> None:
    assert len(parse_script("FROM late//match; FROM S//a PUBLISH late; FROM S//b PUBLISH late").queries) == 3
    twice = 'DECLARE NAMESPACE p = "u"; DECLARE NAMESPACE p = "u"; S//p:a[@xml:lang]'
    assert parse_script(twice).namespaces == (("p", "u"), ("xml", "http://www.w3.org/XML/1998/namespace"))


def test_the_splitter_ignores_semicolons_that_end_nothing() -> None:
    clean, statements = split_script("a ';' b; [c;d] ; (: ; :) e")
    assert [clean[s.span.start : s.span.end] for s in statements] == ["a ';' b", "[c;d]", "e"]
    assert all(statement.problem is None for statement in statements)


CASES = sorted((DATA / "xscl_errors").glob("*.txt"))
SEPARATOR = "\n----\n"


def errors_of(script: str) -> XsclErrors:
    with pytest.raises(XsclErrors) as caught:
        parse_script(script)
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_catalogue(case: Path) -> None:
    script, expected = case.read_text(encoding="utf-8").split(SEPARATOR)
    assert errors_of(script).render("queries.xscl") + "\n" == expected


def test_an_error_says_where_it_is() -> None:
    (error,) = errors_of("FROM S//a;\n\nFROM S//b[./c->x]\r\n  JOIN {x = z, 1 h} S//d->y").errors
    assert (error.line, error.column, error.source) == (4, 13, "  JOIN {x = z, 1 h} S//d->y")
    assert (error.message, error.hint) == ("variable z is not bound", "bind it in a block, as in //title->z")
    assert (error.span.start, error.span.end) == (43, 44)
    found = errors_of("FROM S//a[1]")  # without a file name
    assert str(found) == str(found.errors[0]) and str(found).startswith("1:11: error: ")
    assert isinstance(found, ValueError)


@pytest.mark.parametrize(
    "broken",
    [
        *('FROM S//a[. = "x', "FROM S//a[. = 'x", "FROM S//a (: never closed", "FROM S//a[./b", "FROM (S//a"),
        *("FROM S//a->x JOIN {x = y", "SELECT <a>it's", "SELECT <a b='", "SELECT <a>{x</a> FROM S//a->x", "FROM S//a)"),
        # Deep nesting is refused before it exhausts the stack.
        *("(" * 5000, f"FROM S//a{'[b' * 5000}", f"SELECT {'<a>' * 5000}", f"FROM S//a[{'not(' * 5000}"),
    ],
    ids=lambda broken: broken[:20],
)
def test_a_broken_query_does_not_hide_the_next(broken: str) -> None:
    assert {error.line for error in errors_of(f"{broken};\nFROM S//b[last()] PUBLISH news").errors} == {1, 2}


def test_a_word_far_from_the_beginning_is_told_in_its_place() -> None:
    before = f"{'x' * 300}; let "
    problem = foreign_mistake(before, "$y", len(before), {"FOLLOWED"})
    assert problem and before[problem.span.start : problem.span.end] == "let"
    assert "FOR" not in str(errors_of(f"FROM S//item->{' ' * 250}for in")), "the first word here is not a query's first"


LONG = """
FROM S//b[matches(./k, R)]
FROM S//b->x JOIN {x/k = y/k AND (matches(y/k, R) OR x/a = y/b), 1 h} S//c->y
FROM S//b->x JOIN UNORDERED {x/k[matches(., R)] = y/k, 1 h} S//b->y
FROM S//b->x NOT FOLLOWED BY {x/k = y/k AND matches(y/k, R), 1 h} S//b->y
FROM FILTER{matches(k, R)} B
FROM B NEXT{matches($1.k, R) OR $2.k = $1.k} B
FROM B FOLD{,matches($2.k, R),} B
DEFINE EVENT C FROM S//b[matches(./k, R)]->x (k := x/k); FROM C
PATTERN SEQ(B+ a[], B b) WHERE strict_contiguity {matches(a[i].k, R)} WITHIN 1 h
PATTERN SEQ(B a, B b) WITHIN 1 h HAVING matches(b.k, R)
"""


@pytest.mark.parametrize("query", LONG.strip().splitlines())
def test_a_long_regular_expression_is_told_once(query: str) -> None:
    definition = "DEFINE EVENT B FROM S//b->x (k := x/k); "
    found = errors_of(definition + query.replace("R)", f'"{"a" * 501}")')).errors
    assert [error.message for error in found] == ["bad regular expression: it is longer than 500 characters"]
