"""Our parser over Lark's tables finds the trees that Lark finds."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from random import Random

import pytest
from lark import Lark, UnexpectedInput

from tests.generate.event_worlds import world
from tests.generate.pattern_worlds import pattern_world
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from xscl import lalr
from xscl.algebra.values import ElementConstructor, Hole, Span
from xscl.event_parser import _definition_tables, _definitions, _queries, _query_tables
from xscl.lalr import TableParser, Unparsable
from xscl.parser import _lark, _tables, parse_script
from xscl.printer import to_xscl
from xscl.problems import Problem, XsclErrors
from xscl.text import SyntaxKind, split_script


def outcome(text: str, *, ours: bool, reuse: bool = False) -> object:
    """The tree with its spans, the problem, or nothing if the grammar refuses the text."""
    try:
        return repr(_tables().parse(f"; {text};", 2, 2 + len(text), reuse=reuse) if ours else _lark().parse(text))
    except Problem as problem:
        return problem.message
    except (Unparsable, UnexpectedInput):
        return None


@cache
def expected(text: str) -> object:
    return outcome(text, ours=False)


def without_hole_texts(tree: object) -> str:
    """What a tree says. Only a constructor of another text has the texts of its holes."""
    return re.sub(r"text='[^']*'|text=\"[^\"]*\"", "", repr(tree))


def with_places(text: str) -> tuple[object, object]:
    """What both find in a text that begins its script."""
    try:
        return repr(_tables().parse(text, 0, len(text))), repr(_lark().parse(text))
    except (Problem, Unparsable):
        return None, outcome(text, ours=False)


@pytest.mark.parametrize("seed", seeds(5, 40))
def test_both_find_the_same_tree_also_of_texts_with_parts_of_others(seed: int):
    text = to_xscl(random_case(seed, 4, 1)[0])
    clean, statements = split_script(text)
    for statement in statements:
        one = clean[statement.span.start : statement.span.end]
        ours, theirs = with_places(one)
        assert ours is not None and ours == theirs
        for _ in range(2):
            again = _tables().parse(one, 0, len(one), reuse=True)
            assert without_hole_texts(repr(again)) == without_hole_texts(theirs)


@pytest.mark.parametrize("seed", seeds(5, 40))
def test_both_refuse_the_same_texts(seed: int):
    rng = Random(seed)
    text = to_xscl(random_case(seed, 1, 1)[0])
    for _ in range(20):
        at = rng.randrange(len(text))
        wrong = text[:at] + rng.choice(["", " ", "[", "]", "}", "<a>", "{", "->x", "=", ".", "'", "1"]) + text[at + 1 :]
        assert (outcome(wrong, ours=True) is None) == (outcome(wrong, ours=False) is None), wrong


@pytest.mark.parametrize("text", ["", " ", "//", "FROM", "SELECT <a> FROM S//b", "//a PUBLISH", "//a //b ;", "//a\n"])
def test_both_end_at_the_end(text: str):
    assert (outcome(text, ours=True) is None) == (outcome(text, ours=False) is None)


FILTERS = [
    *("[a]", "[./a->x]", '[a = "]"]', '[a = """"]', "[a = '[']", '[contains(., "a")]', "[a[b]]", "[x -> y]"),
    *("[a", "[", "[]"),
]


def test_texts_with_known_filters_are_what_they_are():
    for first, second in product(FILTERS, FILTERS):
        join = f"//a/b{second} JOIN {{x = y, INF}} //c{first}"
        for text in (f"//a{first}", f"//b{first}{second}", join, f"//a{second} x"):
            assert outcome(text, ours=True, reuse=True) == expected(text), text


PARTS = [
    *("FROM S//a->x[b] JOIN {x = y, INF} S//c->y", "FROM S//a->x JOIN {x = y, 12 h} S//c->y[b]"),
    *("FROM S//a->x JOIN {host(x) = host(y), 12 h} c->y", "FROM S//a->x JOIN {host(x) = host(y), 12h} //c//a->y"),
    *("SELECT <a> from {x}</a> FROM S//a->x", "SELECT <a b='{x}'/> FROM S//a->x", "SELECT <a>{x}</b> FROM S//a->x"),
    *("SELECT <a>{x}</a> FROM S//a->x", "SELECT <a>{x}</a> FROM S//a->x PUBLISH p", "SELECT <a>{x}</a> FROM S//b->x"),
    *("SELECT <a/> FROM S//a/@b->x", "SELECT x/a AS y FROM //p:a->x", "SELECT x/a AS y FROM //* ->x"),
    *("//* :a", "//a ->b"),
    *("//a[b]/c", "//a[b]//c->d [e]", "//a-b->c[d]", "//a.b ->c-d[e]", "S//a->x JOIN {x = y, 12 lightyears} S//c->y"),
    "S//a->x JOIN {x = y AND (x = y OR x < y), 1 d} (SELECT x/a AS y FROM S//c->x)",
]


def test_texts_with_known_parts_are_what_they_are():
    for first, second in product(PARTS, PARTS):
        for text in (first, second, first):
            ours = outcome(text, ours=True, reuse=True)
            assert without_hole_texts(ours) == without_hole_texts(expected(text)), text


def test_parts_are_parsed_once_and_few_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lalr, "MAX_CHUNKS", 9)
    tables = TableParser(_lark())
    texts = [f"SELECT <a>{{x}}</a> FROM S//{name}->x[b] JOIN {{x = y, 1 h}} S//c->y" for name in "de"]
    one, other = (tables.parse(text, 0, len(text), reuse=True) for text in texts)
    assert one.source.left.steps[0].filters[0] is other.source.left.steps[0].filters[0]
    assert (one.source.pred, one.select) == (other.source.pred, other.select)
    assert one.source.pred is other.source.pred and one.select is other.select
    for n in range(9):
        tables.parse(f"//a[b{n}]", 0, 8, reuse=True)
        assert len(tables._chunks) <= 9


def test_each_hole_has_its_own_text():
    first, second = "SELECT <a>{x}</a> FROM S//a->x", "SELECT <a>{x (: why :) }</a> FROM S//a->x"
    for text in (first, second, first, second.replace("x ", "x  ", 1)):
        select = parse_script(text).queries[0].select
        assert isinstance(select, ElementConstructor) and isinstance(select.children[0], Hole)
        assert select.children[0].text == text[text.index("{") + 1 : text.index("}")].strip()


def test_a_mistake_behind_a_known_filter_has_its_place():
    parse_script("//aaaaaaaaaaaa[b]")
    with pytest.raises(XsclErrors, match="needs a name") as found:
        parse_script("SELECT x/y[b] FROM //a->x")
    assert found.value.errors[0].span == Span(7, 13)


# ---------------------------------------------------------------- event statements

DEFINITIONS = (
    'DEFINE EVENT Link FROM S//item->i[./title][contains(., "a")] (site := host(i/link), target IN i/link/@href)',
    "define event A from news->n (n := number(n/b), m := string-length(n), c := 'x', d := 2)",
)
WRONG: list[str] = ["", " ", *"(){}$=,%'-", "$1.", "NEXT", "80%", "3 d", "AS x", "NULL", "WITHIN"]


def tree(parser: TableParser | Lark, text: str) -> object:
    """The tree with its spans, the problem, or nothing if the grammar refuses the text."""
    try:
        return repr(parser.parse(text, 0, len(text)) if isinstance(parser, TableParser) else parser.parse(text))
    except Problem as problem:
        return problem.message
    except (Unparsable, UnexpectedInput):
        return None


def cut_at_random(text: str, rng: Random) -> str:
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(WRONG) + text[at + rng.choice((0, 1, 1, 5)) :]


@pytest.mark.parametrize("seed", seeds(4, 20))
def test_both_find_the_same_trees_of_event_statements(seed: int):
    rng = Random(seed)
    texts = [statement.text() for statement in world(seed, most=6).statements[:2]]
    texts += [statement.text() for statement in pattern_world(seed).statements[:3]]
    for text in texts:
        kind: SyntaxKind = "pattern" if text.startswith("PATTERN") else "event query"
        assert tree(_query_tables(kind), text) == tree(_queries(kind), text) is not None
        for _ in range(10):
            wrong = cut_at_random(text, rng)
            ours, theirs = tree(_query_tables(kind), wrong), tree(_queries(kind), wrong)
            assert (ours is None) == (theirs is None), wrong


@pytest.mark.parametrize("text", DEFINITIONS)
def test_both_find_the_same_definitions(text: str):
    rng = Random(text)
    assert tree(_definition_tables(), text) == tree(_definitions(), text) is not None
    for _ in range(40):
        wrong = cut_at_random(text, rng)
        ours, theirs = tree(_definition_tables(), wrong), tree(_definitions(), wrong)
        assert (ours is None) == (theirs is None), wrong
