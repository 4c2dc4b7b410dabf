"""Brings a condition into disjunctive normal form."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from common.errors import InputError
from xscl.algebra.expressions import And, Expr, Or

MAX_DISJUNCTS = 64
"""How many disjuncts a join predicate may have."""


class TooManyDisjuncts(InputError, ValueError):
    """A condition has more disjuncts than `limit`."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"more than {self.limit} disjuncts in disjunctive normal form"


def disjuncts(pred: Expr, limit: int = MAX_DISJUNCTS) -> tuple[tuple[Expr, ...], ...]:
    """The disjuncts of a condition, each a conjunction of literals: `a and (b or c)` gives `((a, b), (a, c))`.

    Everything but `And` and `Or` is a literal. Literals keep the order of the text. A literal that a conjunction has
    already is dropped, and so is a conjunction of the same literals as an earlier one.

    Raises:
        TooManyDisjuncts: if any part of the condition has more than `limit` disjuncts, so that no step makes more
            than the square of that.
    """
    if isinstance(pred, Or):
        return _distinct((conjunction for arg in pred.args for conjunction in disjuncts(arg, limit)), limit)
    if isinstance(pred, And):
        if not any(isinstance(arg, And | Or) for arg in pred.args):
            return (tuple(dict.fromkeys(pred.args)),)
        result: tuple[tuple[Expr, ...], ...] = ((),)
        for arg in pred.args:
            pairs = product(result, disjuncts(arg, limit))
            result = _distinct((left + right for left, right in pairs), limit)
        return result
    return ((pred,),)


def _distinct(conjunctions: Iterable[tuple[Expr, ...]], limit: int) -> tuple[tuple[Expr, ...], ...]:
    found: dict[frozenset[Expr], tuple[Expr, ...]] = {}
    for conjunction in conjunctions:
        literals = tuple(dict.fromkeys(conjunction))
        found.setdefault(frozenset(literals), literals)
        if len(found) > limit:
            raise TooManyDisjuncts(limit)
    return tuple(found.values())
