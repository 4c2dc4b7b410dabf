"""The grammars of event statements: our parser finds the trees that Lark finds, and refuses what Lark refuses."""

from __future__ import annotations

from random import Random

import pytest
from lark import Lark, UnexpectedInput

from tests.generate.event_worlds import world
from tests.generate.pattern_worlds import pattern_world
from tests.generate.seeds import seeds
from xscl.event_parser import _definition_tables, _definitions, _queries, _query_tables
from xscl.lalr import TableParser, Unparsable
from xscl.problems import Problem
from xscl.text import SyntaxKind

DEFINITIONS = (
    'DEFINE EVENT Link FROM S//item->i[./title][contains(., "a")] (site := host(i/link), target IN i/link/@href)',
    "define event A from news->n (n := number(n/b), m := string-length(n), c := 'x', d := 2)",
)
WRONG = [
    "",
    " ",
    "(",
    ")",
    "{",
    "}",
    "$1.",
    "$",
    "NEXT",
    "=",
    ",",
    "%",
    "80%",
    "3 d",
    "'",
    "AS x",
    "NULL",
    "WITHIN",
    "-",
]


def outcome(parser: TableParser | Lark, text: str) -> object:
    """The tree with its spans, the problem, or nothing if the grammar refuses the text."""
    try:
        if isinstance(parser, TableParser):
            return repr(parser.parse(text, 0, len(text)))
        return repr(parser.parse(text))
    except Problem as problem:
        return problem.message
    except (Unparsable, UnexpectedInput):
        return None


def cut_at_random(text: str, rng: Random) -> str:
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(WRONG) + text[at + rng.choice((0, 1, 1, 5)) :]


@pytest.mark.parametrize("seed", seeds(4, 20))
def test_both_find_the_same_trees_and_refuse_the_same_texts(seed: int):
    rng = Random(seed)
    texts = [statement.text() for statement in world(seed, most=6).statements[:2]]
    texts += [statement.text() for statement in pattern_world(seed).statements[:3]]
    for text in texts:
        kind: SyntaxKind = "pattern" if text.startswith("PATTERN") else "event query"
        assert outcome(_query_tables(kind), text) == outcome(_queries(kind), text) is not None
        for _ in range(10):
            wrong = cut_at_random(text, rng)
            ours, theirs = outcome(_query_tables(kind), wrong), outcome(_queries(kind), wrong)
            assert (ours is None) == (theirs is None), wrong


@pytest.mark.parametrize("text", DEFINITIONS)
def test_both_find_the_same_definitions(text: str):
    rng = Random(text)
    assert outcome(_definition_tables(), text) == outcome(_definitions(), text) is not None
    for _ in range(40):
        wrong = cut_at_random(text, rng)
        ours, theirs = outcome(_definition_tables(), wrong), outcome(_definitions(), wrong)
        assert (ours is None) == (theirs is None), wrong
