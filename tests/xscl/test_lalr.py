"""Our parser over Lark's tables finds the trees that Lark finds."""

from __future__ import annotations

from random import Random

import pytest
from lark import UnexpectedInput

from tests.generate.strategies import random_case
from xscl import to_xscl
from xscl.lalr import Unparsable
from xscl.parser import _lark, _tables
from xscl.problems import Problem
from xscl.statements import split_script


def outcome(text: str, *, ours: bool) -> object:
    """The tree with its spans, the problem, or nothing if the grammar refuses the text."""
    try:
        return repr(_tables().parse(f"; {text};", 2, 2 + len(text)) if ours else _lark().parse(text))
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
