"""Finds documents by near-equal text: the value join of a disjunct that has no equality, but near()."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from xscl.algebra.expressions import Call, Compare, Expr, Number
from xscl.algebra.functions import number_string, with_literal
from xscl.algebra.near import MANY_WORDS, join_threshold
from xscl.algebra.normal import Term, shared_term

Joined = tuple[Term, Term]


def near_join(residual: Iterable[Expr], pair_of: Callable[[Expr], Joined | None]) -> Joined | None:
    """The terms of both inputs whose words have a key in common, if they are near as a residual predicate says: that
    with the greatest threshold, which fewest pairs satisfy. None if there is none. `pair_of` returns the terms of an
    equality, the left one first."""
    found: tuple[str, Joined] | None = None
    for expr in residual:
        match expr:
            case Call(name="near", args=(one, other, Number(text=text))):
                pair, threshold = pair_of(Compare("=", one, other)), join_threshold(number_string(text))
                if pair is not None and (found is None or threshold > found[0]):
                    found = threshold, pair
    if found is None:
        return None
    threshold, pair = found
    name = with_literal(MANY_WORDS, threshold)
    left, right = (shared_term(term.var, (*term.functions, name)) for term in pair)
    return left, right
