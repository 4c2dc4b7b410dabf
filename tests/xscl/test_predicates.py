"""Disjunctive normal form: which conjunctions a condition stands for, and how large it may get."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xscl.algebra.values import And, Compare, Expr, Or, String, VarPath
from xscl.check import TooManyDisjuncts, disjuncts

A, B, C, D = (Compare("=", VarPath(name), String("1")) for name in "abcd")


def test_and_distributes_over_or_in_the_order_of_the_text_and_duplicates_are_removed() -> None:
    assert disjuncts(A) == ((A,),)
    assert disjuncts(And((A, Or((B, C)), D))) == ((A, B, D), (A, C, D))
    assert disjuncts(And((Or((A, B)), Or((C, D))))) == ((A, C), (A, D), (B, C), (B, D))
    assert disjuncts(Or((A, B, A))) == ((A,), (B,))
    assert disjuncts(And((A, B, A))) == ((A, B),)
    assert disjuncts(Or((And((A, B)), And((B, A))))) == ((A, B),)
    assert disjuncts(And((Or((A, A)),) * 50)) == ((A,),)


def literal(i: int) -> Expr:
    return Compare("=", VarPath(f"x{i}"), VarPath(f"y{i}"))


def test_the_limit() -> None:
    pairs = tuple(Or((literal(2 * i), literal(2 * i + 1))) for i in range(5_000))
    assert len(disjuncts(And(pairs[:6]))) == 64
    for many in (pairs[:7], pairs):
        with pytest.raises(TooManyDisjuncts, match="64"):
            disjuncts(And(many))
    assert len(disjuncts(And(pairs[:7]), limit=128)) == 128
    with pytest.raises(TooManyDisjuncts):
        disjuncts(Or(tuple(literal(i) for i in range(65))))


expressions = st.recursive(
    st.sampled_from((A, B, C, D)),
    lambda inner: st.builds(
        lambda kind, args: kind(tuple(args)), st.sampled_from((And, Or)), st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


@given(expressions)
@settings(deadline=None)
def test_the_normal_form_says_the_same(expr: Expr) -> None:
    conjunctions = disjuncts(expr, limit=10_000)
    for values in product((False, True), repeat=4):
        truth: dict[Expr, bool] = dict(zip((A, B, C, D), values, strict=True))
        assert holds(expr, truth) == any(all(truth[part] for part in conjunction) for conjunction in conjunctions)


def holds(expr: Expr, truth: dict[Expr, bool]) -> bool:
    if isinstance(expr, And):
        return all(holds(arg, truth) for arg in expr.args)
    if isinstance(expr, Or):
        return any(holds(arg, truth) for arg in expr.args)
    return truth[expr]
