"""Texts are parsed as Lark parses them, whatever is known of their parts, and printed trees are the same trees."""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cache
from itertools import product
from random import Random

import pytest
from lark import Lark, UnexpectedInput

from tests.generate.events import world
from tests.generate.grammar import TextMaker
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.xscl.test_events import EVENTS, FEED_EXAMPLES, syntax_of
from xscl import lalr, parser
from xscl.algebra.events import Schema
from xscl.algebra.values import ElementConstructor, Hole, Span
from xscl.event_lower import lower_statement, schemas_of
from xscl.lalr import TableParser, Unparsable, lark_of, parser_of
from xscl.parser import _Parser, parse_script
from xscl.printer import to_xscl
from xscl.syntax import EventQuery, EventStreams, Script, names_read
from xscl.text import Problem, SyntaxKind, XsclErrors


def tree(parser: TableParser | Lark, text: str, *, reuse: bool = False) -> object:
    """The tree with its spans, the problem, or nothing if the grammar refuses the text."""
    try:
        if isinstance(parser, TableParser):
            return repr(parser.parse(f"; {text};", 2, 2 + len(text), reuse=reuse))
        return repr(parser.parse(text))
    except Problem as problem:
        return problem.message
    except (Unparsable, UnexpectedInput):
        return None


@cache
def expected(text: str) -> object:
    return tree(lark_of("xscl"), text)


def without_hole_texts(tree: object) -> str:
    """What a tree says. Only a constructor of another text has the texts of its holes."""
    return re.sub(r"text='[^']*'|text=\"[^\"]*\"", "", str(tree))


FILTERS = ("[./a->x]", '[a = "]"]', '[a = """"]', "[a = '[']", '[contains(., "a")]', "[a[b]]", "[x -> y]", "[a", "[]")


PARTS = [
    *("FROM S//a->x[b] JOIN {x = y, INF} S//c->y", "FROM S//a->x JOIN {x = y, 12 h} S//c->y[b]"),
    *("FROM S//a->x JOIN {host(x) = host(y), 12 h} c->y", "FROM S//a->x JOIN {host(x) = host(y), 12h} //c//a->y"),
    *("SELECT <a> from {x}</a> FROM S//a->x", "SELECT <a b='{x}'/> FROM S//a->x", "SELECT <a>{x}</b> FROM S//a->x"),
    *("SELECT <a>{x}</a> FROM S//a->x", "SELECT <a>{x}</a> FROM S//a->x PUBLISH p", "SELECT <a>{x}</a> FROM S//b->x"),
    *("SELECT <a/> FROM S//a/@b->x", "SELECT x/a AS y FROM //p:a->x", "SELECT x/a AS y FROM //* ->x"),
    *("//* :a", "//a ->b"),
    *("//a[b]/c", "//a[b]//c->d [e]", "//a-b->c[d]", "//a.b ->c-d[e]", "S//a->x JOIN {x = y, 12 lightyears} S//c->y"),
    "S//a->x JOIN {x = y AND (x = y OR x < y), 1 d} (SELECT x/a AS y FROM S//c->x)",
    *(f"//a{one} JOIN {{x = y, INF}} //c{one}{one}" for one in FILTERS),
]


def test_texts_with_known_parts_are_what_they_are():
    for first, second in product(PARTS, PARTS):
        for text in (first, second):
            ours = tree(parser_of("xscl"), text, reuse=True)
            assert without_hole_texts(ours) == without_hole_texts(expected(text)), text


def test_parts_are_parsed_once_and_few_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lalr, "MAX_CHUNKS", 9)
    tables = TableParser(lark_of("xscl"))
    texts = [f"SELECT <a>{{x}}</a> FROM S//{name}->x[b] JOIN {{x = y, 1 h}} S//c->y" for name in "def"]
    _, one, other = (tables.parse(text, 0, len(text), reuse=True) for text in texts)
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


KINDS: tuple[SyntaxKind, ...] = ("xscl", "definition", "event query", "pattern")
WRONG: tuple[str, ...] = (
    *"()[]{}<>=!,;:.*@/|$&-+%'\"#\n\0\ud800",
    *("", " ", "//", "->", "<=", "(:", ":)", "--", "{{", "</a>", "<a>", "/>", "&amp;", "::", "..", "7 d", "-1", "é"),
    *("SELECT", "FROM", "FOLLOWED BY", "JOIN", "PUBLISH p ONCE PER (", "not(", "INF", "DECLARE NAMESPACE"),
    *("FOLD{", "NEXT{", "E", "WITHIN 3 d", "$1.", "NEXT", "80%", "AS x", "NULL", "WITHIN"),
)


def cut_at_random(text: str, rng: Random) -> str:
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(WRONG) + text[at + rng.choice((0, 1, 1, 3, 5, 30)) :]


@pytest.mark.parametrize("seed", seeds(3, 40))
def test_both_find_the_same_trees_and_refuse_the_same_texts(seed: int):
    rng = Random(seed)
    for kind in KINDS:
        ours, theirs, maker = parser_of(kind), lark_of(kind), TextMaker(rng, kind)
        for depth in range(0, 16, 2):
            text = maker.statement(depth)
            assert tree(ours, text) == tree(theirs, text), text
            for wrong in ("", " ", *(cut_at_random(text, rng) for _ in range(10))):
                assert (tree(ours, wrong) is None) == (tree(theirs, wrong) is None), wrong


# ---------------------------------------------------------------- statements that differ in constants


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    parser._known.clear()
    parser._trees_of.cache_clear()


def script_outcome(text: str, *, reuse: bool) -> Script | list[str]:
    try:
        return parse_script(text) if reuse else _Parser(text).script(reuse=False)
    except XsclErrors as errors:
        return list(map(str, errors.errors))


def respelled(rng: Random, text: str) -> str:
    """The text with other constants, some of them with quotes, semicolons and numbers in them."""
    words = ["x", 'say ""a""', "it's", ";", "1", "(:", "--", "<a>", "", "a'b"]
    text = re.sub(r'"(?:[^"\n]|"")*"', lambda _: f'"{rng.choice(words)}"', text)
    return re.sub(r"(?<![\w.\-'\"])[0-9]+(?![\w\"])", lambda _: rng.choice(["0", "7", "12.5", "-3", "9" * 25]), text)


@pytest.mark.parametrize("seed", seeds(5, 60))
def test_other_constants_say_what_they_say(seed: int):
    rng = Random(seed)
    text = to_xscl(random_case(seed, 3, 1)[0])
    names = ["n1", "_x", "from", "PUBLISH", "a-b", "é", "1x", ""]
    ends = ["", "", " hidden", " HIDDEN hidden", "hidden"]
    for variant in [text, *(respelled(rng, text) for _ in range(8))]:
        variant = re.sub(r" PUBLISH \w+$", lambda _: f"\u00a0publish {rng.choice(names)}{rng.choice(ends)}", variant)
        assert script_outcome(variant, reuse=True) == script_outcome(variant, reuse=False), variant


JOIN = "//a->c[b = {}] FOLLOWED BY {{c = d, {} d}} //e->d[c > {}]"


def test_a_known_skeleton_is_not_parsed_again_and_shares_its_tree(monkeypatch: pytest.MonkeyPatch):
    parse_script(";".join(JOIN.format(text, 7, 5) for text in ("'x'", "'y'")))
    monkeypatch.setattr(parser, "parser_of", None)
    other = parse_script(JOIN.format('"it\'s"', 90, -1))
    assert to_xscl(other) == "FROM S" + JOIN.format('"it\'s"', 90, -1).replace("[", "[./").replace("//e", "S//e")
    one, two = (parse_script(JOIN.format("'x'", 7, 5) + f" PUBLISH {name}") for name in ("one", "two"))
    assert one.names() + two.names() == ("one", "two") and one.queries[0].source is two.queries[0].source


@pytest.mark.parametrize("end", ["", ";", ";\n", " ;\n\n"])
def test_a_known_query_knows_its_place(end: str):
    statements = ["//a[b = 'x']", "//c[d = 5] PUBLISH e", "//a[b = 'y']"]
    parse_script(";\n".join(statements))
    for separator in (";\n", ";\n  ", " ; "):
        text = separator.join(["", *reversed(statements)]).removeprefix(separator) + end
        assert [text[q.span.start : q.span.end] for q in parse_script(text).queries] == statements[::-1]


def test_a_mistake_in_the_constants_or_behind_a_known_filter_is_told_with_its_place():
    parse_script("//aaaaaaaaaaaa[b]")
    with pytest.raises(XsclErrors, match="needs a name") as found:
        parse_script("SELECT x/y[b] FROM //a->x")
    assert found.value.errors[0].span == Span(7, 13)
    parse_script(JOIN.format("'x'", 7, 5))
    with pytest.raises(XsclErrors, match="a window cannot be negative") as found:
        parse_script("//b;\n" + JOIN.format("'y'", -7, 5))
    assert (found.value.errors[0].line, found.value.errors[0].column) == (2, 37)
    known = parse_script("//a;\n//b")
    for illegal in "\x0b\x0c\x1c\x1f":  # is told of among known statements, too
        for text in (f"{illegal}//a;\n//b", f"//a;\n{illegal}//b", f"//a;\n//b;{illegal}"):
            assert script_outcome(text, reuse=True) == script_outcome(text, reuse=False) != known


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch):
    trees = parser._trees_of("xscl")
    for known, most in ((parser._known, 3), (trees._skeletons, 2), (trees._trees, 3)):
        known.clear()
        monkeypatch.setattr(known, "most", most)
    for n in range(10):
        parse_script(f"//a{n}[b = 'x'];\n//b{n}")
        assert len(parser._known) <= 3
        parse_script(f"//b{n} PUBLISH other")
        assert len(trees._skeletons) <= 2 and len(trees._trees) <= 3


SCHEMAS: dict[str, Schema] = {"S": (("a", "string"), ("b", "string"), ("x", "number")), "T": (("c", "string"),)}


def event_outcome(text: str, *, reuse: bool) -> object:
    """What the queries of a script say and mean, or what is wrong with them."""
    known = EventStreams(SCHEMAS)
    try:
        script = parse_script(text, events=known) if reuse else _Parser(text, known).script(reuse=False)
    except XsclErrors as errors:
        return list(map(str, errors.errors))
    schemas = schemas_of(script, known)
    return script, [repr(lower_statement(query, schemas)) for query in script.event_queries]


STRINGS = """
    FROM FILTER{{a = {} OR a = {}}} S
    FROM FILTER{{a = {} AND (x > 5 OR NOT b != {})}} S
    FROM FILTER{{matches(a, {})}} S
    FROM FILTER{{x = {} OR x < {}}} S
    FROM FILTER{{a < {}}}   S; FROM FILTER{{y = 1}} S
    FROM FILTER{{contains(a, {}) AND a IS NOT NULL}} S
    FROM FILTER{{a = concat({}, b) OR {} = {}}} S
    FROM S NEXT{{$1.a = $2.c AND c = {}}} T
    SELECT a, coalesce(b, {}) AS y FROM S PUBLISH out
    SELECT {} AS a, {} AS b FROM S
    FROM AGGREGATE{{count(coalesce(a, {})) AS n, count(coalesce(a, {})) AS m BY b OVER 5 s}} S
"""
NUMBERS = """
    FROM S NEXT T WITHIN {} s
    FROM (FROM S NEXT T WITHIN {} s) WITHIN {} min
    FROM S NEXT{{DUR < {} s}} T WITHIN {} h
    FROM S NEXT{{DUR = {}}} T WITHIN {} d
    FROM S NEXT{{GAP > {} ms AND DUR >= {}}} T
    FROM FILTER{{x > -{} OR x > - {} OR x>5-{}}} S
    FROM FILTER{{x > {}% AND x > {}}} S
    FROM FILTER{{x % {} = {}}} S
    FROM FILTER{{x * {} + {} > x / {}}} S
    FROM FILTER{{x > {} * {}}} S
    FROM FILTER{{NOT (x > {} AND x > {})}} FILTER{{x > {}}} S
    FROM FILTER{{y > {} AND z > {}}} (SELECT x + {} AS y, x + 1 AS z FROM S)
    SELECT n, {} AS k FROM AGGREGATE{{count() AS n, sum(x * {}) AS s BY a OVER {} s}} S
    FROM (SELECT *, {} AS n FROM S) FOLD{{$2.a = $.a, $2.x < $.x * {}, $.n + {} AS n}} S WITHIN 5 s
    FROM FILTER{{a = {} OR x = {} OR abs({}) = x}} S
"""


@pytest.mark.parametrize(
    ("queries", "constants"),
    [
        (STRINGS, ('"u"', "'u'", '"5"', '"5.0"', '"["', '"(a"', '""')),
        (NUMBERS, ("0", "1", "1.0", "2", "7.", ".5", "1" * 20, "1" * 400)),
    ],
    ids=["strings", "numbers"],
)
def test_other_constants_of_a_kind_in_event_queries(queries: str, constants: tuple[str, ...]):
    for query in queries.strip().splitlines():
        rng = Random(query)
        for _ in range(15):
            text = query.strip().format(*rng.choices(constants, k=3))
            text = rng.choice(("", "\n  ", "FROM T;\n")) + text
            assert event_outcome(text, reuse=True) == event_outcome(text, reuse=False), text


# ---------------------------------------------------------------- damaged texts


def _parse_or_render(text: str) -> None:
    try:
        script = parse_script(text)
    except XsclErrors as errors:
        for error in errors.errors:
            assert 0 <= error.span.start <= error.span.end <= len(text) + 1
            assert error.line >= 1 and 1 <= error.column <= len(error.source) + 2
            error.render("f.xscl").encode()
    else:
        assert parse_script(to_xscl(script)) == script


@pytest.mark.parametrize("seed", seeds(6, 120))
def test_a_damaged_script_is_a_script_or_has_errors(seed: int):
    rng = Random(seed)
    match seed % 3:
        case 0:
            text = "; ".join(statement.text() for statement in world(seed, most=6).statements)
        case 1:
            text = EVENTS + rng.choice(list(FEED_EXAMPLES.values()))
        case _:
            text = "; ".join(TextMaker(rng, "xscl").statement(rng.randrange(12)) for _ in range(3))
    _parse_or_render(" ".join(rng.choices(WRONG, k=9)))
    for _ in range(15):
        damaged = text
        for _ in range(rng.randint(1, 3)):
            damaged = cut_at_random(damaged, rng)
        _parse_or_render(damaged)


# ---------------------------------------------------------------- printed trees

A_SEED = 200
"""Texts of a seed. More than half of them have a tree."""


@pytest.mark.parametrize("seed", seeds(6, 1_000))
def test_parsing_a_printed_tree_gives_an_equal_tree(seed: int) -> None:
    rng, trees = Random(seed), 0
    makers = [(kind, TextMaker(rng, kind)) for kind in KINDS]
    for number in range(A_SEED):
        kind, maker = makers[number % 4]
        text = maker.statement(number % 13)
        try:
            made = parser_of(kind).parse(text, 0, len(text), reuse=False)
        except (Problem, Unparsable):
            continue
        trees += 1
        known = {name.name for name in names_read(made.stream)} if isinstance(made, EventQuery) else set()
        for reuse in (True, False):
            assert syntax_of(to_xscl(made), known, reuse=reuse) == made, text
    assert trees > A_SEED / 2


NESTED = {
    "minus": lambda n: f"FROM FILTER{{y = {'- ' * n}y}} E",
    "not": lambda n: f"FROM FILTER{{{'NOT ' * n}y = 1}} E",
    "parentheses": lambda n: f"FROM FILTER{{{'(' * n}y = 1{')' * n}}} E",
    "sums": lambda n: f"FROM FILTER{{{'(y - ' * n}y{')' * n} = 1}} E",
    "negative sums": lambda n: f"FROM FILTER{{y{' - (- ' * n}y{')' * n} = 1}} E",
    "calls": lambda n: f"FROM FILTER{{{'abs(' * n}y{')' * n} = 1}} E",
    "event conditions": lambda n: f"FROM FILTER{{{'y = 1 AND (y = 2 AND y = 3 OR ' * n}y = 4{')' * n}}} E",
    "filters of events": lambda n: f"FROM {'FILTER{y = 1} ' * n}E",
    "queries": lambda n: f"FROM {'(SELECT * FROM ' * n}E{')' * n}",
    "unions": lambda n: f"FROM E{' UNION (E' * n}{')' * n}",
    "letters": lambda n: f"PATTERN SEQ(E, {'(E, ' * n}E{')' * n}) ERRORS <= 1 WITHIN 5 s",
    "conditions": lambda n: f"FROM S//a[{'a and (b and c or ' * n}d{')' * n}]",
    "filters": lambda n: f"FROM S//a{'[a' * n}{']' * n}",
    "not()": lambda n: f"FROM S//a[{'not(' * n}a{')' * n}]",
    "functions": lambda n: f"FROM S//a[{'lower-case(' * n}a{')' * n} = 'x']",
    "predicates": lambda n: f"FROM S//a->a JOIN {{{'a = b and (b = a or ' * n}a = b{')' * n}, 1 h}} S//b->b",
    "elements": lambda n: f"SELECT {'<a>' * n}{{x}}{'</a>' * n} FROM S//a->x",
    "inner queries": lambda n: f"FROM {'(SELECT x AS x FROM ' * n}S//a->x{')' * n}",
}


KNOWN = EventStreams({"E": (("x", "string"), ("y", "number"))})


@pytest.mark.parametrize("name", NESTED)
def test_the_deepest_statement_that_is_accepted_is_stored_in_a_text_that_can_be_read(name: str) -> None:
    def is_refused(depth: int) -> bool:
        try:
            parse_script(NESTED[name](depth), events=KNOWN)
        except XsclErrors:
            return True
        return False

    deepest = 19 + bisect_left(range(20, 110), True, key=is_refused)
    assert 20 < deepest < 109
    for depth in (deepest - 1, deepest):
        script = parse_script(NESTED[name](depth), events=KNOWN)
        assert parse_script(to_xscl(script), events=KNOWN, stored=True) == script
