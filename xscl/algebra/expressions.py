"""Expressions: paths, operands, conditions and element constructors, as immutable nodes.

Expressions are equal if they say the same, wherever they stand in a text (`span`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from common.quick import quick

Axis = Literal["/", "//"]
NodeKind = Literal["element", "attribute"]
CompareOp = Literal["=", "!=", "<", "<=", ">", ">="]


@quick
@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of character offsets in a script."""

    start: int
    end: int


NOWHERE = Span(0, 0)


def nowhere() -> Span:
    """The field of a node that says where it stands: nowhere, unless it is given."""
    return field(default=NOWHERE, compare=False, repr=False)


# ---------------------------------------------------------------- paths


@quick
@dataclass(frozen=True, slots=True)
class NameTest:
    """Which nodes a step takes: `name`, `p:name`, `*:name`, `p:*`, `*`, `@name`, `@p:name` or `@*`.

    `prefix` is None if there is none, and "*" for any namespace. `local` is "*" for any name.
    """

    kind: NodeKind
    local: str
    prefix: str | None = None
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Step:
    """One step of a path: its axis and test, filters that must all hold, and the variable that it binds, if any."""

    axis: Axis
    test: NameTest
    filters: tuple[Expr, ...] = ()
    var: str | None = None
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Rel:
    """A path from the filtered node. Without steps it is `.`, the node itself."""

    steps: tuple[Step, ...] = ()
    span: Span = nowhere()


# ---------------------------------------------------------------- operands and conditions
# The same classes serve filters, whose leaves are Rel, and predicates and SELECT, whose leaves are VarPath.


@quick
@dataclass(frozen=True, slots=True)
class VarPath:
    """A variable or, with steps, a path on it: `x1`, `x1/title`."""

    var: str
    steps: tuple[Step, ...] = ()
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class String:
    """A string literal; `value` is the text that it stands for."""

    value: str
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Number:
    """A number literal, as it is written."""

    text: str
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Call:
    """A function call: a condition such as `contains(...)`, or a value such as `host(...)`."""

    name: str
    args: tuple[Expr, ...]
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of two operands."""

    op: CompareOp
    left: Expr
    right: Expr
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class And:
    """A condition that holds if all of `args` do."""

    args: tuple[Expr, ...]
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Or:
    """A condition that holds if any of `args` does."""

    args: tuple[Expr, ...]
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Not:
    """A condition that holds if `arg` does not."""

    arg: Expr
    span: Span = nowhere()


Expr = Rel | VarPath | String | Number | Call | Compare | And | Or | Not
Operand = VarPath | String | Number | Call

# ---------------------------------------------------------------- constructors


@quick
@dataclass(frozen=True, slots=True)
class Hole:
    """`{operand}` in an element constructor. `text` is what stands between the braces, stripped."""

    operand: Expr
    text: str = field(default="", compare=False)
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class ElementConstructor:
    """`<name attr="text {hole}">text {hole} <child/></name>`. Names may have a prefix."""

    name: str
    attributes: tuple[tuple[str, tuple[str | Hole, ...]], ...] = ()
    children: tuple[str | Hole | ElementConstructor, ...] = ()
    span: Span = nowhere()


def holes_of(element: ElementConstructor) -> Iterator[Hole]:
    """The holes of a constructor and of the elements in it, in their order."""
    for _, parts in element.attributes:
        yield from (part for part in parts if isinstance(part, Hole))
    for child in element.children:
        if isinstance(child, Hole):
            yield child
        elif isinstance(child, ElementConstructor):
            yield from holes_of(child)
