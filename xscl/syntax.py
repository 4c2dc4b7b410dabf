"""The syntax tree of XSCL: immutable nodes that print back to the text they came from.

Two trees are equal when they say the same; where a node stood in the text (`span`) does not count.
The parser has already put some spellings into one form: a path without a stream reads stream `S`,
a bare stream name is `stream/*`, `AS x` is `->x`, `[title]` is `[./title]`, `(block)` is the block,
and parentheses without a SELECT are only grouping.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

DEFAULT_STREAM = "S"

Axis = Literal["/", "//"]
NodeKind = Literal["element", "attribute"]
CompareOp = Literal["=", "!=", "<", "<=", ">", ">="]
JoinOp = Literal["FOLLOWED BY", "JOIN"]


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open range of character offsets in the script."""

    start: int
    end: int


NOWHERE = Span(0, 0)


def _span() -> Span:
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
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a path: axis, test, filters (all must hold) and at most one binding."""

    axis: Axis
    test: NameTest
    filters: tuple[Expr, ...] = ()
    var: str | None = None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Rel:
    """A path relative to the filtered node; no steps at all is `.`, the node itself."""

    steps: tuple[Step, ...] = ()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Block:
    """A query block: a tree pattern over one stream. Its root is the node of the last step."""

    stream: str
    steps: tuple[Step, ...]
    span: Span = _span()


# ---------------------------------------------------------------- expressions
# One family serves filters (leaves: Rel) and join predicates and SELECT (leaves: VarPath).


@dataclass(frozen=True, slots=True)
class VarPath:
    """A variable, or with steps a path on it: `x1`, `x1/title`."""

    var: str
    steps: tuple[Step, ...] = ()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class String:
    value: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Number:
    """A number literal, as written."""

    text: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Call:
    """A function call: of a filter, of a predicate (`contains`...), or a derived value (`host`...)."""

    name: str
    args: tuple[Expr, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Compare:
    op: CompareOp
    left: Expr
    right: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class And:
    args: tuple[Expr, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Or:
    args: tuple[Expr, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Not:
    arg: Expr
    span: Span = _span()


Expr = Rel | VarPath | String | Number | Call | Compare | And | Or | Not
Operand = VarPath | String | Number | Call

# ---------------------------------------------------------------- SELECT


@dataclass(frozen=True, slots=True)
class SelectItem:
    """`operand AS name`; for a bare variable the name is the variable's."""

    operand: Expr
    name: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class SelectStar:
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class SelectItems:
    items: tuple[SelectItem, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Hole:
    """`{operand}` in an element constructor; `text` is what stood between the braces, stripped."""

    operand: Expr
    text: str = field(default="", compare=False)
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class ElementConstructor:
    """`<name attr="text {hole}">text {hole} <child/></name>`; `name` and attribute names may be `p:local`."""

    name: str
    attributes: tuple[tuple[str, tuple[str | Hole, ...]], ...] = ()
    children: tuple[str | Hole | ElementConstructor, ...] = ()
    span: Span = _span()


Select = SelectStar | SelectItems | ElementConstructor

# ---------------------------------------------------------------- FROM


@dataclass(frozen=True, slots=True)
class Window:
    """A window in microseconds; None is INF."""

    us: int | None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Join:
    """`left FOLLOWED BY{pred, window} right`, or JOIN."""

    op: JoinOp
    left: Input
    right: Input
    pred: Expr
    window: Window
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class SubQuery:
    """A parenthesised query with a SELECT, which limits and renames what the outer query sees."""

    select: SelectStar | SelectItems
    source: Input
    span: Span = _span()


Input = Block | Join | SubQuery


@dataclass(frozen=True, slots=True)
class Query:
    """One standing query. `select` is None where none was written (it means `*`)."""

    source: Input
    select: Select | None = None
    publish: str | None = None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Script:
    """The queries of a text with the namespace prefixes declared in it (prefix -> URI)."""

    queries: tuple[Query, ...]
    namespaces: tuple[tuple[str, str], ...] = ()

    def names(self) -> tuple[str, ...]:
        """The name of each query: its PUBLISH name, else `q` and its position from 1."""
        return tuple(query.publish or f"q{i}" for i, query in enumerate(self.queries, 1))
