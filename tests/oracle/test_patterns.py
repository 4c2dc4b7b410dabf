"""The oracle's runs (docs/semantics.md, section 23): the examples of SASE+, and hand-checked cases."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.oracle.event_syntax import Cmp, Fn, Item, Len, Num, Of, Op, Str, Window
from tests.oracle.pattern_cases import both, text, told, values
from tests.oracle.pattern_syntax import STRATEGIES, Absent, Many, One, Pattern, Strategy

SECONDS = {number: Window(str(number)) for number in (1, 2, 3, 4, 5, 10, 100)}


# ---------------------------------------------------------------- S: stock quotes, Q3 of SASE+

MANY = Cmp(">", Of("a", "volume", "1"), Num("1000"))
ABOVE = Cmp(">", Of("a", "price", "i"), Fn("avg", (Of("a", "price", "..i-1"),)))
LOW = Cmp("<", Of("b", "volume"), Op("*", Num("80%"), Of("a", "volume", "LEN")))
Q3 = Pattern(
    (Many("Stock", "a"), One("Stock", "b")), SECONDS[100], "skip_till_next_match", ("symbol",), both(MANY, ABOVE, LOW)
)
QUOTES = (
    "Stock",
    "symbol price:number volume:number",
    "A 100 1010 @1 | A 120 990 @2 | A 120 1005 @3 | A 121 999 @4 | A 120 999 @5 | A 125 750 @6 | A 120 950 @7"
    " | A 120 700 @8",
)
R1, R2, R3 = "1 2 3 4 5 | 6 @6", "3 4 | 6 @6", "1 2 3 4 5 6 7 | 8 @8"


@pytest.mark.parametrize(
    ("strategy", "count"),
    [("strict_contiguity", 2), ("partition_contiguity", 2), ("skip_till_next_match", 3), ("skip_till_any_match", 68)],
)
def test_s1_matches_by_strategy(strategy, count):
    found = told(replace(Q3, strategy=strategy), QUOTES)
    assert len(found) == count
    assert set(found) >= {R1, R3}
    assert (R2 in found) == strategy.startswith("skip")


def test_s1_non_overlapping():
    assert told(replace(Q3, apart=True), QUOTES) == [R1]


def test_s2_values_of_runs():
    sums = tuple(
        Item(expr, name)
        for name, expr in (
            ("sum", Fn("sum", (Of("a", "price", "[]"),))),
            ("count", Len("a")),
            ("volume", Of("a", "volume", "LEN")),
        )
    )
    until_4 = (*QUOTES[:2], " | ".join(QUOTES[2].split(" | ")[:4]))
    runs = replace(Q3, components=(Many("Stock", "a"),), select=sums, cond=both(MANY, ABOVE))
    found = [one for one in values(runs, until_4) if one["volume"] == 999]
    assert found == [{"sum": 461, "count": 4, "volume": 999}, {"sum": 241, "count": 2, "volume": 999}]


def test_s3_runs_that_would_be_merged_naively_are_not_matches():
    assert "1 2 3 4 | 6 @6" not in told(Q3, QUOTES)


def test_s5_strategies_include_each_other_and_smaller_windows_are_spans_of_larger_ones():
    rng = Random(5)
    for _ in range(10):
        rows = " | ".join(
            f"{rng.choice('AB')} {rng.randint(1, 4)} {rng.choice((700, 1100))} @{time}" for time in range(1, 9)
        )
        given = (*QUOTES[:2], rows)
        before: set[str] = set()
        for strategy in STRATEGIES:
            found = set(told(replace(Q3, strategy=strategy), given))
            assert before <= found, strategy
            before = found
        for strategy in STRATEGIES:
            wide = replace(Q3, strategy=strategy)
            small = [one for one in told(wide, given) if _span(one) <= 4]
            assert told(replace(wide, within=SECONDS[4]), given) == small


def _span(brief: str) -> int:
    numbers = [int(word) for word in brief.split(" @")[0].replace(" | ", " ").split()]
    return numbers[-1] - numbers[0]


# ---------------------------------------------------------------- Q: a closure

Q2 = Pattern(
    (One("Alert", "a"), Many("Shipment", "b")),
    Window("3", "h"),
    "skip_till_any_match",
    (),
    both(
        text("a", "type", "contaminated"),
        Cmp("=", Of("b", "origin", "1"), Of("a", "site")),
        Cmp("=", Of("b", "origin", "i"), Of("b", "target", "i-1")),
    ),
)
ROUTES = (
    ("Alert", "type site", "contaminated W @1"),
    ("Shipment", "origin target", "W X @2 | X Y @3 | X Z @4 | W V @5"),
)


def test_q2_any_follows_all_ways_and_next_the_first():
    assert told(Q2, *ROUTES) == ["1 | 2 @2", "1 | 2 3 @3", "1 | 2 4 @4", "1 | 5 @5"]
    assert told(replace(Q2, strategy="skip_till_next_match"), *ROUTES) == ["1 | 2 @2", "1 | 2 3 @3"]


# ---------------------------------------------------------------- N: negation, contiguity


@pytest.mark.parametrize(("other", "found"), [(4, []), (5, ["1 @4"])])
def test_n1_trailing_negation(other, found):
    silent = Pattern((One("A", "a"), Absent("B", "b")), SECONDS[3])
    assert told(silent, ("A", "x", "- @1"), ("B", "x", f"- @{other}")) == found


@pytest.mark.parametrize(("other", "found"), [(2, []), (1, ["1 @5"])])
def test_n1_leading_negation(other, found):
    silent = Pattern((Absent("B", "b"), One("A", "a")), SECONDS[3])
    assert told(silent, ("A", "x", "- @5"), ("B", "x", f"- @{other}")) == found


def test_negation_between_two():
    between = Pattern((One("A", "a"), Absent("B", "b"), One("A", "c")), SECONDS[10], "skip_till_any_match", ("x",))
    given = ("A", "x", "p @1 | p @3 | p @5")
    assert told(between, given, ("B", "x", "p @2 | q @4 | - @4")) == ["2 | 3 @5"]
    ties = told(between, given, ("B", "x", "p @1 | p @3"))  # one at the time of an event is not between
    assert ties == ["1 | 2 @3", "2 | 3 @5"]


def test_n2_an_event_that_overlaps_does_not_exist_for_strict_contiguity():
    pair = Pattern((One("A", "a"), One("B", "b")), SECONDS[10], "strict_contiguity", (), text("b", "x", "p"))
    assert told(pair, ("A", "x", "- @1-3"), ("B", "x", "q @2-4 | p @5 | q @5")) == ["1 | 3 @5"]
    assert told(pair, ("A", "x", "- @1-3"), ("B", "x", "q @4 | p @5")) == []


def test_what_only_the_next_component_takes_does_not_end_a_run():
    kleene = Pattern((Many("A", "a"), One("B", "b")), SECONDS[10], "skip_till_next_match")
    assert told(kleene, ("A", "x", "- @1"), ("B", "x", "- @2 | - @3")) == ["1 | 2 @2", "1 | 3 @3"]


@pytest.mark.parametrize(
    ("strategy", "found"),
    [
        ("strict_contiguity", ["1 | 2 @2"]),
        ("partition_contiguity", ["1 | 2 @2"]),
        ("skip_till_next_match", ["1 | 2 @2"]),
        ("skip_till_any_match", ["1 | 2 @2", "1 | 3 @3"]),
    ],
)
def test_plain_pairs(strategy: Strategy, found):
    pair = Pattern((One("A", "a"), One("B", "b")), SECONDS[10], strategy, ("x",))
    assert told(pair, ("A", "x", "p @1"), ("B", "x", "p @2 | p @3")) == found


def test_keys_are_not_null_and_do_not_matter_to_strict_contiguity():
    pair = Pattern((One("A", "a"), One("B", "b")), SECONDS[10], "strict_contiguity", ("x",))
    given = ("A", "x", "p @1 | - @1"), ("B", "x", "- @2 | q @2 | p @3")
    assert told(pair, *given) == []
    assert told(replace(pair, strategy="partition_contiguity"), *given) == ["1 | 5 @3"]


def test_every_item_and_conditions_on_all_items():
    base = Pattern((Many("A", "a"), One("B", "b")), SECONDS[10], "skip_till_next_match")
    given = ("A", "x:number", "1 @1 | 5 @2 | 2 @3"), ("B", "x:number", "3 @4")
    every = replace(base, cond=Cmp("<", Of("a", "x", "[]"), Num("4")))
    assert told(every, *given) == ["1 3 | 4 @4", "3 | 4 @4"]
    all_below = replace(base, cond=Cmp("<", Of("a", "x", "[]"), Of("b", "x")))
    assert told(all_below, *given) == ["3 | 4 @4"]
    last = replace(base, cond=Cmp(">", Of("a", "x", "LEN"), Num("4")))
    assert told(last, *given) == []
    counted = replace(base, having=Cmp(">=", Fn("count", (Of("a", "", "[]"),)), Num("2")))
    assert told(counted, *given) == ["1 2 3 | 4 @4", "2 3 | 4 @4"]


def test_a_final_kleene_variable_matches_at_every_item():
    rising = Pattern(
        (Many("A", "a"),), SECONDS[10], "skip_till_next_match", (), Cmp(">", Of("a", "x", "i"), Of("a", "x", "i-1"))
    )
    assert told(rising, ("A", "x:number", "1 @1 | 3 @2 | 2 @3")) == ["1 @1", "1 2 @2", "2 @2", "3 @3"]


def test_returned_items():
    pairs = Pattern(
        (Many("A", "a"), One("B", "b")),
        SECONDS[10],
        "strict_contiguity",
        select=(Item(Of("a", "x", "[]"), "each"), Item(Of("b", "y"), "y"), Item(Len("a"), "n"), Item(Str("c"), "c")),
    )
    assert values(pairs, ("A", "x:number", "1 @1 | 2 @2"), ("B", "y", "q @3")) == [
        {"each": (1.0, 2.0), "y": "q", "n": 2.0, "c": "c"},
        {"each": (2.0,), "y": "q", "n": 1.0, "c": "c"},
    ]
