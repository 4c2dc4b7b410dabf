"""The m-rules of the optimiser: which operators of statements become one m-op, and which of its rows one.

Each rule is a function of a placement, which says where a node of a normal form goes. They are applied in the order of
RULES when the first statement of a form comes, so that a plan grows statement by statement as if made at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from pattern_stage.definition import Definition
from xscl.algebra.events import Aggregate, Filter, Fold, Next

RuleName = Literal["cse", "s_sigma", "s_alpha", "s_window", "channels", "c_alpha"]

RULE_NAMES: tuple[RuleName, ...] = get_args(RuleName)
"""All rules, in the order in which they are applied. What none applies to runs as it stands."""

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a node of a normal form goes: into the m-op of that key, over these m-ops."""

    definition: Definition
    inputs: tuple[int, ...]
    key: Key
    """What the nodes of one m-op have in common."""
    own_rows: bool = True
    """Each statement has rows of its own, else equal rows are one."""
    own_left: bool = True
    """Rows that differ in their left rows keep instances of their own."""
    own_window: bool = True
    """Rows that differ in their windows keep instances of their own."""
    own_since: bool = True
    """Rows of AGGREGATE that differ in since when they see events keep windows of their own."""
    partial: Key | None = None
    """What AGGREGATEs have in common that are made of the same partial aggregates; None if it is made of events."""
    hashed: bool = False
    """A static index finds the rows that an event satisfies."""


Rule = Callable[[Placement], Placement]


def cse(placement: Placement) -> Placement:
    """s_;, s_μ and equal operators of all kinds: those on equal inputs are one row, counted (prefix merging)."""
    return replace(placement, own_rows=False)


def s_sigma(placement: Placement) -> Placement:
    """s_σ: all selections of a stream are one m-op, and a static index finds those that an event satisfies. So are all
    NEXT and all FOLD over the same inputs with results of one schema: their conditions on right events are indexed."""
    match placement.definition.operator:
        case Filter():
            kind: Key = ("σ",)
        case Next(names=names, schema=schema):
            kind = (";", names, schema)
        case Fold(names=names, schema=schema):
            kind = ("μ", names, schema)
        case _:
            kind = (placement.definition,)
    return replace(placement, key=(*kind, placement.inputs), hashed=True)


def s_alpha(placement: Placement) -> Placement:
    """s_α: AGGREGATEs over one input have what is simultaneous aggregated once, in the finest of their groups, and roll
    it up: all but argmax, and what computes with constants."""
    operator = placement.definition.operator
    if not isinstance(operator, Aggregate) or placement.definition.kinds:
        return placement
    if any(one.name == "argmax" for _, one in operator.items):
        return placement
    return replace(placement, partial=("α", placement.inputs))


def s_window(placement: Placement) -> Placement:
    """s_W: operators that differ in the upper bound on DUR run at the largest, and results are checked."""
    if isinstance(placement.definition.operator, Next | Fold):
        return replace(placement, own_window=False)
    return placement


def channels(placement: Placement) -> Placement:
    """c_;, c_μ, c_σ and c_π: rows that differ in their left rows alone share instances, which have a membership."""
    return replace(placement, own_left=False)


def c_alpha(placement: Placement) -> Placement:
    """c_α: AGGREGATE of one definition over one input keeps each event once, whatever OVER and since when. Queries that
    began at different times have the same results as soon as their windows have the same events: once all are full."""
    if isinstance(placement.definition.operator, Aggregate):
        return replace(placement, own_window=False, own_since=False)
    return placement


RULES: dict[RuleName, Rule] = {
    "cse": cse,
    "s_sigma": s_sigma,
    "s_alpha": s_alpha,
    "s_window": s_window,
    "channels": channels,
    "c_alpha": c_alpha,
}


def placed(definition: Definition, inputs: tuple[int, ...], rules: frozenset[RuleName]) -> Placement:
    """Returns where a definition over these m-ops goes by the rules that are on."""
    placement = Placement(definition, inputs, (definition, inputs))
    for name in RULE_NAMES:
        if name in rules:
            placement = RULES[name](placement)
    return placement
