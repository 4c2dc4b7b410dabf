"""Disjunctive normal form of conditions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from common.errors import InputError
from xscl.algebra.expressions import And, Expr, Or

MAX_DISJUNCTS = 64
"""Most disjuncts that a join predicate may have."""


class TooManyDisjuncts(InputError, ValueError):
    """A condition's disjunctive normal form is larger than the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"more than {self.limit} disjuncts in disjunctive normal form"


def disjuncts(pred: Expr, limit: int = MAX_DISJUNCTS) -> tuple[tuple[Expr, ...], ...]:
    """The conjunctions whose disjunction is `pred`: `a and (b or c)` gives `((a, b), (a, c))`.

    Everything but `And` and `Or` is a literal. Literals stay in the order of the text; one that stands twice in
    a conjunction, and a conjunction of the same literals as an earlier one, is dropped. The limit holds for every
    part of the condition on the way, so that no step builds more than its square.

    Raises:
        TooManyDisjuncts: when a part of the condition has more than `limit` disjuncts.
    """
    if isinstance(pred, Or):
        return _distinct((conjunction for arg in pred.args for conjunction in disjuncts(arg, limit)), limit)
    if isinstance(pred, And):
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
