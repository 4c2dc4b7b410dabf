"""Our parser over Lark's tables finds the trees that Lark finds."""

from __future__ import annotations

from random import Random

import pytest
from lark import UnexpectedInput

from tests.generate.strategies import random_case
from xscl import XsclErrors, lalr, parse_script, to_xscl
from xscl.algebra.expressions import Span
from xscl.lalr import TableParser, Unparsable
from xscl.parser import _lark, _tables
from xscl.problems import Problem
from xscl.statements import split_script


def outcome(text: str, *, ours: bool, reuse: bool = False) -> object:
    """The tree with its spans, the problem, or nothing if the grammar refuses the text."""
    try:
        return repr(_tables().parse(f"; {text};", 2, 2 + len(text), reuse=reuse) if ours else _lark().parse(text))
    except Problem as problem:
        return problem.message
    except (Unparsable, UnexpectedInput):
        return None


def with_places(text: str) -> tuple[object, object]:
    """What both find in a text that begins its script."""
    try:
        return repr(_tables().parse(text, 0, len(text))), repr(_lark().parse(text))
    except (Problem, Unparsable):
        return None, outcome(text, ours=False)


@pytest.mark.parametrize("seed", range(40))
def test_both_find_the_same_tree(seed: int):
    text = to_xscl(random_case(seed, 4, 1)[0])
    clean, statements = split_script(text)
    for statement in statements:
        ours, theirs = with_places(clean[statement.span.start : statement.span.end])
        assert ours is not None and ours == theirs


@pytest.mark.parametrize("seed", range(40))
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


@pytest.mark.parametrize("seed", range(40))
def test_filters_of_other_texts_are_the_same(seed: int):
    text = to_xscl(random_case(seed, 4, 1)[0])
    clean, statements = split_script(text)
    for _ in range(2):
        for statement in statements:
            one = clean[statement.span.start : statement.span.end]
            assert repr(_tables().parse(one, 0, len(one), reuse=True)) == repr(_lark().parse(one))


FILTERS = [
    *("[a]", "[./a->x]", '[a = "]"]', '[a = """"]', "[a = '[']", '[contains(., "a")]', "[a[b]]", "[x -> y]"),
    *("[a", "[", "[]"),
]


@pytest.mark.parametrize("first", FILTERS)
@pytest.mark.parametrize("second", FILTERS)
def test_texts_with_known_filters_are_what_they_are(first: str, second: str):
    join = f"//a/b{second} JOIN {{x = y, INF}} //c{first}"
    for text in (f"//a{first}", f"//b{first}{second}", join, f"//a{second} x"):
        assert outcome(text, ours=True, reuse=True) == outcome(text, ours=False), text


def test_a_filter_is_parsed_once_and_few_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lalr, "MAX_FILTERS", 3)
    tables, texts = TableParser(_lark()), ["//a[b]", "//c//d[b]"]
    trees = [tables.parse(text, 0, len(text), reuse=True) for text in texts]
    assert trees[0].source.steps[0].filters[0] is trees[1].source.steps[1].filters[0]
    for n in range(9):
        tables.parse(f"//a[b{n}]", 0, 8, reuse=True)
        assert len(tables._filters) <= 3


def test_a_mistake_behind_a_known_filter_has_its_place():
    parse_script("//aaaaaaaaaaaa[b]")
    with pytest.raises(XsclErrors, match="needs a name") as found:
        parse_script("SELECT x/y[b] FROM //a->x")
    assert found.value.errors[0].span == Span(7, 13)
