"""The kernel finds what the oracle does, whatever the intervals, what comes and goes, the m-rules, and restarts."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from pattern_stage.plan import RULE_NAMES
from tests.generate.event_worlds import world
from tests.generate.events import LENGTH
from tests.generate.seeds import seeds
from tests.oracle.event_cases import events, schema
from tests.oracle.event_syntax import Aggregate, Cel, Fn, Item, Name, Next, Ref, Stream, Union, Window
from tests.oracle.events import World
from tests.support.event_agreement import Run, Trial, assert_finds, random_run

WHOLE = ((LENGTH + 1) * 10**6,)
A = Cel(Name("E1"), (Item(Ref("a")),))
LATER = Cel(Next(Name("E1"), None, Name("E2")), (Item(Ref("a")),))
C = Cel(Name("E3"), (Item(Ref("x")),))
SHORT_OR_LONG = Next(Union(A, LATER), None, C)
GREATEST = Item(Fn("max", (Ref("x"),)), "x")
SAME_EVENTS: list[Stream] = [
    Union(SHORT_OR_LONG, Next(A, None, C)),
    Union(Next(A, None, C), SHORT_OR_LONG),
    Aggregate((Item(Fn("count"), "n"),), (), Window("50"), Cel(Union(SHORT_OR_LONG, Next(A, None, C)))),
    Union(
        Aggregate((GREATEST,), (), None, Name("E4")),
        Aggregate((GREATEST,), (), None, Aggregate((GREATEST,), ("g",), None, Name("E4"))),
    ),
]
GIVEN = (
    ("E1", "a", "p @1 | q @2"),
    ("E2", "b", "u @3"),
    ("E3", "x:number", "5 @4 | 6 @5"),
    ("E4", "g x:number", "p 1 @1 | p 0 @1 | q 2 @1 | p 7 @2"),
)


def test_events_derived_in_two_ways_are_one():
    known = {name: schema(of) for name, of, _ in GIVEN}
    given = {name: events(known[name], text) for name, _, text in GIVEN}
    assert_finds(World(known, given, [Cel(stream) for stream in SAME_EVENTS]), Run(WHOLE))


@pytest.mark.parametrize("seed", seeds(16, 4_000, first=10_000))
def test_random_statements(seed: int):
    made = world(seed)
    assert_finds(made, random_run(Random(seed), len(made.statements), LENGTH))


@pytest.mark.parametrize("seed", seeds(1, 500, first=20_000))
@pytest.mark.parametrize("on", [(), *((name,) for name in RULE_NAMES)], ids=lambda on: "".join(on) or "none")
def test_each_rule_alone_and_none(on, seed: int):
    assert_finds(world(seed), Run(WHOLE, rules=on))


@pytest.mark.parametrize("seed", seeds(4, 600, first=30_000))
def test_many_statements_of_one_template(seed: int, monkeypatch: pytest.MonkeyPatch):
    """In some cases two at a time come into the plan, filters are found by an index, and blocks of events are small."""
    if seed % 2:
        monkeypatch.setattr("pattern_stage.statements._MANY", 2)
        monkeypatch.setattr("pattern_stage.select._DEAR", 0)
        monkeypatch.setattr("pattern_stage.select._BLOCK", 5)
    made = world(seed, templates=3, statements=40, most=12, depth=2)
    assert_finds(made, random_run(Random(seed), len(made.statements), LENGTH))


@pytest.mark.parametrize("seed", seeds(12, 1_000, first=40_000))
def test_dense_streams(seed: int, monkeypatch: pytest.MonkeyPatch):
    """Many events, most of which end with others, and many statements with one operator each."""
    monkeypatch.setattr("pattern_stage.select._DEAR", seed % 4)
    made = world(seed, templates=10, statements=50, most=30, depth=1)
    assert_finds(made, random_run(Random(seed), len(made.statements), LENGTH))


def test_a_state_of_another_version_is_refused():
    with pytest.raises(ValueError, match="has format 99; this version reads 1"):
        Trial({}).kernel.restore({"format": pa.table({"version": [99]})})
