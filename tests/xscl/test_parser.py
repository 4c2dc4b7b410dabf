"""What the parser makes of each construct of the language."""

from __future__ import annotations

import pytest

from xscl.algebra.values import (
    And,
    Call,
    Compare,
    ElementConstructor,
    Expr,
    Hole,
    NameTest,
    Not,
    Number,
    Or,
    Rel,
    Step,
    String,
    VarPath,
)
from xscl.parser import _Parser, parse_script
from xscl.printer import to_xscl
from xscl.syntax import Block, Join, Query, SelectItem, SelectItems, SelectStar, SubQuery
from xscl.text import split_script


def query(text: str) -> Query:
    (found,) = parse_script(text).queries
    return found


def block(text: str) -> Block:
    source = query(text).source
    assert isinstance(source, Block)
    return source


def condition(text: str) -> Expr:
    (found,) = block(f"S//a[{text}]").steps[-1].filters
    return found


def join(pred: str, window: str = "1 h") -> Join:
    source = query(f"S//a->x[./t->t] JOIN {{{pred}, {window}}} S//b->y[./u->u']").source
    assert isinstance(source, Join)
    return source


def element(name: str, axis: str = "/") -> Step:
    return Step("//" if axis == "//" else "/", NameTest("element", name))


# ---------------------------------------------------------------- the thesis


@pytest.mark.parametrize(
    ("left", "braces", "right", "printed"),
    [
        ("book->x1[./author->x2][./title->x3]", "x2=x5 AND x3=x6, 7 d", "blog->x4[./author->x5][./title->x6]",
         "x2 = x5 and x3 = x6, 1 w"),
        ("book->x1[./author->x2][./category->x7]", "x2=x5 AND x7=x8, 60", "blog->x4[./author->x5][./category->x8]",
         "x2 = x5 and x7 = x8, 1 min"),
        ("blog->x4[./author->x5][./title->x6]", "x5=x5' AND x6=x6', INF", "blog->x4'[./author->x5'][./title->x6']",
         "x5 = x5' and x6 = x6', INF"),
    ],
)  # fmt: skip
def test_table_6_2(left: str, braces: str, right: str, printed: str) -> None:
    text = f"S//{left}\nFOLLOWED BY {{{braces}}}\nS//{right}"
    assert to_xscl(query(text)) == f"FROM S//{left} FOLLOWED BY {{{printed}}} S//{right}"


# ---------------------------------------------------------------- blocks and steps


def test_blocks() -> None:
    assert block("//a") == Block("S", (element("a", "//"),))  # of the default stream
    assert block("blog/a//b") == Block("blog", (element("a"), element("b", "//")))
    assert block("blog") == Block("blog", (element("*"),))  # every document
    assert block("FROM blog AS b") == block("blog->b") == Block("blog", (Step("/", NameTest("element", "*"), (), "b"),))


@pytest.mark.parametrize(
    ("text", "test"),
    [
        *((name, NameTest("element", name)) for name in ("a-b.c", "größe", "*", "from", "following")),
        ("p:a", NameTest("element", "a", "p")),
        ("*:a", NameTest("element", "a", "*")),
        ("p:*", NameTest("element", "*", "p")),
        ("@k", NameTest("attribute", "k")),
        ("@p:k", NameTest("attribute", "k", "p")),
        ("@*", NameTest("attribute", "*")),
        ("p:select", NameTest("element", "select", "p")),
        ("@AND", NameTest("attribute", "AND")),
    ],
)
def test_name_tests(text: str, test: NameTest) -> None:
    found = block(f'DECLARE NAMESPACE p = "urn:p"; S//{text}')
    assert found.steps[-1].test == test


def test_a_name_does_not_swallow_the_arrow_and_a_binding_stands_before_or_behind_the_filters() -> None:
    assert [block(f"S//{name}->x").steps[-1].test.local for name in ("a", "a-b", "a-")] == ["a", "a-b", "a-"]
    before, behind = block("S//a->x[./b][./c]"), block("S//a[./b][./c] as x")
    assert before == behind
    assert before.steps[-1] == Step("//", NameTest("element", "a"), (Rel((element("b"),)), Rel((element("c"),))), "x")


def test_variables_may_end_in_primes() -> None:
    source = query("S//a->x'[. = 'q'] JOIN {x'=x'' and x''='it''s', 1 h} S//b->x''").source
    assert isinstance(source, Join)
    assert source.pred == And(
        (Compare("=", VarPath("x'"), VarPath("x''")), Compare("=", VarPath("x''"), String("it's")))
    )


# ---------------------------------------------------------------- filters


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        *((".", ()), ("a", (element("a"),)), ("./a", (element("a"),)), ("/a", (element("a"),))),
        *(("//a", (element("a", "//"),)), (".//a", (element("a", "//"),))),
        ("a/b//c", (element("a"), element("b"), element("c", "//"))),
        ("@k", (Step("/", NameTest("attribute", "k")),)),
        ("a->x/b->y", (Step("/", NameTest("element", "a"), (), "x"), Step("/", NameTest("element", "b"), (), "y"))),
    ],
)
def test_relative_paths(text: str, steps: tuple[Step, ...]) -> None:
    assert condition(text) == Rel(steps)


A, B, C = (Rel((element(name),)) for name in "abc")


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("a and b or c", Or((And((A, B)), C))),
        ("a AND (b Or c)", And((A, Or((B, C))))),
        ("a and (b and c)", And((A, B, C))),
        ("((a or b)) or c", Or((A, B, C))),
        ("not(a)", Not(A)),
        ("a = 'x'", Compare("=", A, String("x"))),
        ("a and'x'=b", And((A, Compare("=", String("x"), B)))),
        ("-1.5 <= a", Compare("<=", Number("-1.5"), A)),
        ("count(a) > .5", Compare(">", Call("count", (A,)), Number(".5"))),
        ('contains(a, "x""y")', Call("contains", (A, String('x"y')))),
        ("normalize-space() = 'x'", Compare("=", Call("normalize-space", (Rel(),)), String("x"))),
        ("normalize-space(a)", Compare("!=", Call("normalize-space", (A,)), String(""))),
        ("not(string(a))", Not(Compare("!=", Call("string", (A,)), String("")))),
        ("starts-with(normalize-space(a), 'x')", Call("starts-with", (Call("normalize-space", (A,)), String("x")))),
        ("matches(., '^[A-Z]+$')", Call("matches", (Rel(), String("^[A-Z]+$")))),
    ],
)
def test_conditions(text: str, expr: Expr) -> None:
    assert condition(text) == expr


# ---------------------------------------------------------------- joins


def test_windows() -> None:
    windows = {
        "7": 7_000_000,
        "7 s": 7_000_000,
        "7us": 7,
        "1.5 ms": 1_500,
        "0.0000015": 1,
        ".5 min": 30_000_000,
        "2 h": 7_200_000_000,
        "3 d": 259_200_000_000,
        "2 w": 1_209_600_000_000,
        "0": 0,
        "INF": None,
        "infinity": None,
        "∞": None,
    }
    assert {text: join("x = y", text).window.us for text in windows} == windows


def test_joins_are_left_associative() -> None:
    text = "S//a->a JOIN {a = b, 1 h} S//b->b FOLLOWED BY {b = c, 1 h} S//c->c"
    source = query(text).source
    assert isinstance(source, Join)
    assert source.op == "FOLLOWED BY"
    assert isinstance(source.left, Join)
    assert source == query(f"FROM ({text.replace(' FOLLOWED', ') FOLLOWED')}").source


def test_parentheses_without_a_select_only_group() -> None:
    assert query("((S//a->x))").source == block("S//a->x")
    right = query("S//a->a JOIN {a = b, 1 h} (FROM S//b->b JOIN {b = c, 1 h} S//c->c)").source
    assert isinstance(right, Join)
    assert isinstance(right.right, Join)
    assert to_xscl(right).endswith("(S//b->b JOIN {b = c, 1 h} S//c->c)")


def test_a_select_in_parentheses_is_a_sub_query() -> None:
    source = query("(SELECT x, host(y) AS h FROM S//a->x[./b->y]) JOIN {h = z, 1 h} S//c->z").source
    assert isinstance(source, Join)
    items = SelectItems((SelectItem(VarPath("x"), "x"), SelectItem(Call("host", (VarPath("y"),)), "h")))
    assert source.left == SubQuery(items, block("S//a->x[./b->y]"))


def test_an_inner_star_shows_the_roots() -> None:
    inner = "(SELECT * FROM S//a[./k->k] JOIN {k = l, 1 h} S//b->root[./k->l])"
    assert isinstance(query(f"SELECT left, root/t AS t FROM {inner}").source, SubQuery)


# ---------------------------------------------------------------- SELECT


def test_select() -> None:
    assert query("SELECT * FROM S//a").select == SelectStar()
    assert query("select x', x'/b as c from S//a->x'").select == SelectItems(
        (SelectItem(VarPath("x'"), "x'"), SelectItem(VarPath("x'", (element("b"),)), "c"))
    )


def test_an_element_constructor() -> None:
    text = """SELECT <p:alert who="{x}, it's; &quot;{{&#65;" none=''>
  Title: { x/title (: c :) } -- (: no comment :) &lt;&amp;&#x42; }} <b/><from>a</from></p:alert > FROM S//a->x"""
    select = query(f'DECLARE NAMESPACE p = "urn:p"; {text}').select
    hole = Hole(VarPath("x", (element("title"),)))
    assert select == ElementConstructor(
        "p:alert",
        (("who", (Hole(VarPath("x")), ", it's; \"{A")), ("none", ())),
        (
            "\n  Title: ",
            hole,
            " -- (: no comment :) <&B } ",
            *(ElementConstructor("b"), ElementConstructor("from", (), ("a",))),
        ),
    )
    assert isinstance(select, ElementConstructor)
    assert [child.text for child in select.children if isinstance(child, Hole)] == ["x/title (: c :)"]
    # Its text hides semicolons, quotes and brackets.
    first, second = "SELECT <a>it's; [ ( \" </a> FROM S//a", "SELECT <b k=';'>{x/c[. = ';}']}</b> FROM S//b->x"
    assert len(parse_script(f"{first}; {second}").queries) == 2


# ---------------------------------------------------------------- scripts


def test_comments_nest_line_comments_end_with_the_line_and_marks_in_strings_are_text() -> None:
    text = "(: one (: two; :) still :) FROM -- to the end; of [ the line\n S//a--b/c[ -- x\n d] (: ; :)"
    assert to_xscl(parse_script(text)) == "FROM S//a--b/c[./d]"
    assert condition("a = '(: -- ;'") == Compare("=", A, String("(: -- ;"))


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
