"""The syntax tree of XSCL: immutable nodes that print back to the text they came from.

Two trees are equal when they say the same; where a node stood in the text (`span`) does not count.
The parser has already put some spellings into one form: a path without a stream reads stream `S`,
a bare stream name is `stream/*`, `AS x` is `->x`, `[title]` is `[./title]`, `(block)` is the block,
and parentheses without a SELECT are only grouping.
"""

from __future__ import annotations

from dataclasses import dataclass

from xscl.algebra.expressions import ElementConstructor, Expr, Span, Step, nowhere
from xscl.algebra.normal import JoinOp

DEFAULT_STREAM = "S"


@dataclass(frozen=True, slots=True)
class Block:
    """A query block: a tree pattern over one stream. Its root is the node of the last step."""

    stream: str
    steps: tuple[Step, ...]
    span: Span = nowhere()


# ---------------------------------------------------------------- SELECT


@dataclass(frozen=True, slots=True)
class SelectItem:
    """`operand AS name`; for a bare variable the name is the variable's."""

    operand: Expr
    name: str
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class SelectStar:
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class SelectItems:
    items: tuple[SelectItem, ...]
    span: Span = nowhere()


Select = SelectStar | SelectItems | ElementConstructor

# ---------------------------------------------------------------- FROM


@dataclass(frozen=True, slots=True)
class Window:
    """A window in microseconds; None is INF."""

    us: int | None
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class Join:
    """`left FOLLOWED BY{pred, window} right`, or JOIN."""

    op: JoinOp
    left: Input
    right: Input
    pred: Expr
    window: Window
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class SubQuery:
    """A parenthesised query with a SELECT, which limits and renames what the outer query sees."""

    select: SelectStar | SelectItems
    source: Input
    span: Span = nowhere()


Input = Block | Join | SubQuery


@dataclass(frozen=True, slots=True)
class Query:
    """One standing query. `select` is None where none was written (it means `*`)."""

    source: Input
    select: Select | None = None
    publish: str | None = None
    span: Span = nowhere()


@dataclass(frozen=True, slots=True)
class Script:
    """The queries of a text with the namespace prefixes declared in it (prefix -> URI)."""

    queries: tuple[Query, ...]
    namespaces: tuple[tuple[str, str], ...] = ()

    def names(self) -> tuple[str, ...]:
        """The name of each query: its PUBLISH name, else `q` and its position from 1."""
        return tuple(query.publish or f"q{i}" for i, query in enumerate(self.queries, 1))
