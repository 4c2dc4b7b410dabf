"""The kernel finds what the oracle does, whatever the intervals, what comes and goes, the m-rules, and restarts."""

from __future__ import annotations

from random import Random

import pytest

from pattern_stage import statements
from pattern_stage.plan import RULE_NAMES
from tests.generate.event_worlds import world
from tests.generate.events import LENGTH
from tests.generate.seeds import seeds
from tests.oracle.event_cases import events, schema
from tests.oracle.event_syntax import Aggregate, Cel, Fn, Item, Name, Next, Ref, Stream, Union, Window
from tests.oracle.events import World
from tests.support.event_agreement import Run, Runner, random_run, with_lives

WHOLE = ((LENGTH + 1) * 10**6,)
A = Cel(Name("E1"), (Item(Ref("a")),))
LATER = Cel(Next(Name("E1"), None, Name("E2")), (Item(Ref("a")),))
C = Cel(Name("E3"), (Item(Ref("x")),))
SHORT_OR_LONG = Next(Union(A, LATER), None, C)
GREATEST = Item(Fn("max", (Ref("x"),)), "x")
SAME_EVENTS = [
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


def check(made: World, run: Run) -> None:
    found, judge = Runner(made, run).results(), with_lives(made, run)
    for place, statement in enumerate(made.statements):
        expected = judge.results(place)
        shown = f"{statement.text()}\n{run}\nmissing: {expected - found[place]}\ntoo many: {found[place] - expected}"
        assert found[place] == expected, shown


@pytest.mark.parametrize("stream", SAME_EVENTS)
def test_events_that_were_made_in_two_ways_are_one(stream: Stream):
    known = {name: schema(of) for name, of, _ in GIVEN}
    made = World(known, {name: events(known[name], text) for name, _, text in GIVEN}, [Cel(stream)])
    check(made, Run(WHOLE))


@pytest.mark.parametrize("seed", seeds(6, 2_000))
def test_events_in_any_intervals(seed: int):
    made = world(seed)
    check(made, Run(random_run(Random(seed), 0, LENGTH).cuts))


@pytest.mark.parametrize("seed", seeds(10, 4_000, first=10_000))
def test_statements_that_come_and_go_by_any_rules(seed: int):
    made = world(seed)
    check(made, random_run(Random(seed), len(made.statements), LENGTH))


@pytest.mark.parametrize("seed", seeds(2, 500, first=20_000))
@pytest.mark.parametrize("on", [(), *((name,) for name in RULE_NAMES)], ids=lambda on: "".join(on) or "none")
def test_each_rule_alone_and_none(on, seed: int):
    check(world(seed), Run(WHOLE, rules=on))


@pytest.mark.parametrize("seed", seeds(2, 300, first=30_000))
def test_many_statements_of_one_template(seed: int):
    made = world(seed, templates=3, statements=40, most=12, depth=2)
    check(made, random_run(Random(seed), len(made.statements), LENGTH))


@pytest.mark.parametrize("seed", seeds(2, 300, first=40_000))
def test_statements_that_come_into_the_plan_two_at_a_time(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(statements, "_MANY", 2)
    made = world(seed)
    check(made, random_run(Random(seed), len(made.statements), LENGTH))
