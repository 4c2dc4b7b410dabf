"""Event queries made of the tree and the stream of one with other constants mean what they mean by themselves."""

from __future__ import annotations

import re
from random import Random

import pytest

from tests.generate.event_worlds import world
from tests.generate.seeds import seeds
from xscl import event_parser
from xscl.algebra.events import Schema
from xscl.event_lower import KnownEventSkeletons, lower_event_query
from xscl.event_parser import schemas_of
from xscl.parser import _Parser, parse_script
from xscl.problems import XsclErrors
from xscl.syntax import EventStreams

SCHEMAS: dict[str, Schema] = {"S": (("a", "string"), ("b", "string"), ("x", "number")), "T": (("c", "string"),)}


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_parser, "_skeletons", KnownEventSkeletons(event_parser._in_own_place))


def outcome(text: str, known: EventStreams, *, reuse: bool) -> object:
    """What the queries of a script say and mean, or what is wrong with them."""
    try:
        script = parse_script(text, events=known) if reuse else _Parser(text, known).script(reuse=False)
    except XsclErrors as errors:
        return list(map(str, errors.errors))
    schemas = schemas_of(script, known)
    return script, [repr(lower_event_query(query, schemas)) for query in script.event_queries]


def check(text: str, known: EventStreams) -> None:
    assert outcome(text, known, reuse=True) == outcome(text, known, reuse=False), text


def respelled(rng: Random, text: str) -> str:
    """The text with other constants: few, so that some are equal, and some that are refused."""
    words = ["p", "q", "5", "", 'say ""a""', "it's", ";", "1 s", "["]
    text = re.sub(r"""(?<!\w)("(?:[^"\n]|"")*"|'(?:[^'\n]|'')*')""", lambda _: f'"{rng.choice(words)}"', text)
    numbers = ["0", "1", "2", "2.0", "7", "12.5", ".5", "9" * 25] + ["9" * 400] * (rng.random() < 0.1)
    return re.sub(r"""(?<![\w.'"$])[0-9.]+(?![\w.])""", lambda _: rng.choice(numbers), text)


@pytest.mark.parametrize("seed", seeds(5, 3_000))
def test_other_constants_mean_what_they_mean(seed: int):
    made, rng = world(seed), Random(seed)
    known = EventStreams({name: tuple(schema.items()) for name, schema in made.schemas.items()})
    for statement in made.statements:
        if statement.publish is not None:
            continue
        text = statement.text()
        for variant in [text, *(respelled(rng, text) for _ in range(4))]:
            check(rng.choice(("", "FROM T;\n")) + variant, known)


STRINGS = """
    FROM FILTER{{a = {} OR a = {}}} S
    FROM FILTER{{a = {} AND (x > 5 OR NOT b != {})}} S
    FROM FILTER{{matches(a, {})}} S
    FROM FILTER{{x = {} OR x < {}}} S
    FROM FILTER{{a < {}}} S
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
def test_other_constants_of_a_kind(queries: str, constants: tuple[str, ...]):
    for query in queries.strip().splitlines():
        rng = Random(query)
        for _ in range(15):
            check(query.strip().format(*rng.choices(constants, k=3)), EventStreams(SCHEMAS))


def test_mistakes_have_their_own_places():
    known = EventStreams(SCHEMAS)
    good = "FROM FILTER{a < '1'} S"
    three = f"{good};\nFROM FILTER{{a < 'abc'}}   S; FROM FILTER{{y = 1}} S"
    for text in (good, good, f"\n  {good.replace('1', 'one')}", three):
        check(text, known)
