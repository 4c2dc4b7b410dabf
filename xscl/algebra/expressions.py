"""Expressions of XSCL: paths, operands, conditions, element constructors; immutable, and equal where they say the same.

Where one stood in the text (`span`) does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Axis = Literal["/", "//"]
NodeKind = Literal["element", "attribute"]
CompareOp = Literal["=", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open range of character offsets in the script."""

    start: int
    end: int


NOWHERE = Span(0, 0)


def nowhere() -> Span:
    """The field of a node for where it stands, which is nowhere if nothing is said."""
    return field(default=NOWHERE, compare=False, repr=False)


# ---------------------------------------------------------------- paths


@dataclass(frozen=True, slots=True)
class NameTest:
    """What a step accepts: `name`, `p:name`, `*:name`, `p:*`, `*`, `@name`, `@p:name`, `@*`.

    `prefix` is None for no prefix and "*" for any namespace; `local` is "*" for any name.
    """

    kind: NodeKind
    local: str
    prefix: str | None = None
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a path: axis, test, filters (all must hold) and at most one binding."""

    axis: Axis
    test: NameTest
    filters: tuple[Expr, ...] = ()
    var: str | None = None
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class Rel:
    """A path relative to the filtered node; no steps at all is `.`, the node itself."""

    steps: tuple[Step, ...] = ()
    span: Span = nowhere()


# ---------------------------------------------------------------- operands and conditions
# One family serves filters (leaves: Rel) and join predicates and SELECT (leaves: VarPath).


@dataclass(frozen=True, slots=True)
class VarPath:
    """A variable, or with steps a path on it: `x1`, `x1/title`."""

    var: str
    steps: tuple[Step, ...] = ()
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class String:
    value: str
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class Number:
    """A number literal, as written."""

    text: str
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class Call:
    """A function call: of a filter, of a predicate (`contains`...), or a derived value (`host`...)."""

    name: str
    args: tuple[Expr, ...]
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class Compare:
    op: CompareOp
    left: Expr
    right: Expr
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class And:
    args: tuple[Expr, ...]
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class Or:
    args: tuple[Expr, ...]
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class Not:
    arg: Expr
    span: Span = nowhere()


Expr = Rel | VarPath | String | Number | Call | Compare | And | Or | Not
Operand = VarPath | String | Number | Call

# ---------------------------------------------------------------- constructors


@dataclass(frozen=True, slots=True)
class Hole:
    """`{operand}` in an element constructor; `text` is what stood between the braces, stripped."""

    operand: Expr
    text: str = field(default="", compare=False)
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class ElementConstructor:
    """`<name attr="text {hole}">text {hole} <child/></name>`; `name` and attribute names may be `p:local`."""

    name: str
    attributes: tuple[tuple[str, tuple[str | Hole, ...]], ...] = ()
    children: tuple[str | Hole | ElementConstructor, ...] = ()
    span: Span = nowhere()
