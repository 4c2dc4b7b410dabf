"""EARLIEST MAXIMAL is found without trying the subsets of events, of which there may be any number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_stage.operators import RowLimits
from tests.oracle import pattern_cases
from tests.oracle.event_syntax import Cmp, Of, Str, Window
from tests.oracle.pattern_cases import brief
from tests.oracle.pattern_matches import Match
from tests.oracle.pattern_syntax import AnyOrder, Many, One, Pattern
from tests.pattern_stage.test_exact_patterns import LATE
from tests.support.event_agreement import Run, Runner

MANY = 60
IN_SETS = Pattern((AnyOrder((One("A", "a"), Many("B", "b"))), One("C", "c")), Window("900"), maximal=True)
A = ("A", "x", "p @1")
B = ("B", "x", " | ".join(f"p @{second}" for second in range(2, 2 + MANY)))


def told(pattern: Pattern, *given: pattern_cases.Given) -> set[str]:
    """What the kernel tells, if it tries no more than 200 choices of events at a time."""
    limits = RowLimits(partial=1_000, matches=200)
    runner = Runner(pattern_cases._world(pattern, given), Run((LATE,)), limits=limits)
    runner.results()
    assert not runner.exceeded
    return {brief(Match(bound, known, errors)) for bound, known, errors, _ in runner.told[0]}


def numbers(first: int, last: int) -> str:
    return " ".join(map(str, range(first, last + 1)))


@pytest.mark.parametrize("condition", [None, Cmp("=", Of("b", "x", "[]"), Str("p")), Cmp("=", Of("a", "x"), Str("p"))])
def test_a_free_variable_takes_all_events(condition: Cmp | None):
    pattern = replace(IN_SETS, cond=condition)
    assert told(pattern, A, B, ("C", "x", "p @100")) == {f"1 | {numbers(2, 61)} | 62 @100"}


def test_all_up_to_each_that_closes_the_set():
    given = A, B, ("C", "x", "p @21.5 | p @21.7 | p @41.5 | p @100")
    # The second C is no earliest one: the first closes the set with the same events.
    assert told(IN_SETS, *given) == {
        f"1 | {numbers(2, 21)} | 62 @21.5",
        f"1 | {numbers(2, 41)} | 64 @41.5",
        f"1 | {numbers(2, 61)} | 65 @100",
    }


def test_all_in_the_window_of_a_last_set():
    last = Pattern((One("A", "a"), AnyOrder((Many("B", "b"), One("C", "c")))), Window("30"), maximal=True)
    assert told(last, A, B, ("C", "x", "p @5.5 | p @7")) == {f"1 | {numbers(2, 31)} | 62 @31"}
