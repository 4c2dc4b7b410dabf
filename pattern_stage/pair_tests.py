"""Conditions of NEXT and FOLD taken apart: what an index finds, what a hash does, and what is left to test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pattern_stage.clauses import Clauses, split_condition, static_clauses
from pattern_stage.columns import Column, Ints, Mask
from pattern_stage.flow import same
from pattern_stage.predicates import Pairs, compile_condition, compile_value, kind_of
from pattern_stage.values import Texts
from xscl.algebra.events import AllOf, Comparison, Condition, Function, Schema, Value

Taken = Callable[[Pairs], Column]


@dataclass(frozen=True, slots=True)
class PairTests:
    """A condition on pairs, taken apart."""

    static: Clauses
    """Clauses about the right event, one of which holds if the condition does; empty if that says nothing."""
    key: tuple[Taken, Taken] | None
    """What is equal in all pairs for which the condition holds: of the instance, and of the right event."""
    rest: Callable[[Pairs], Mask] | None
    """All that has to be tested besides."""


def take_apart(condition: Condition, left: Schema, right: Schema, texts: Texts, hashed: bool) -> PairTests:
    """Takes a condition of NEXT, or FOLD's first one, apart. Without `hashed` no equality is."""
    clauses = split_condition(condition)
    static = static_clauses(clauses)
    common = [one for one in clauses[0].equalities if all(one in other.equalities for other in clauses)]
    key = None
    if hashed and common:
        one, other = (_key(value, common[0], left, right, texts) for value in common[0])
        key = (one, other)
    rest: Condition = condition
    if len(clauses) == 1:
        equalities = clauses[0].equalities
        others = [Comparison("=", *pair) for pair in equalities if key is None or pair != common[0]]
        rest = AllOf((*others, *clauses[0].rest))
    tested = compile_condition(rest, left, right, texts) if rest != AllOf() else None
    return PairTests(() if () in static else static, key, tested)


def _key(value: Value, pair: tuple[Value, Value], left: Schema, right: Schema, texts: Texts) -> Taken:
    if kind_of(value) == "string" and any(kind_of(one) == "number" for one in pair):
        value = Function("number", (value,), "number")
    return compile_value(value, left, right, texts)


def known_keys(column: Column) -> tuple[Ints, Mask]:
    """Returns keys, and where they are not NULL."""
    return same(column), column >= 0 if column.dtype == np.int64 else ~np.isnan(column)
