"""The syntax tree of XSCL: immutable nodes, which can be printed as text again.

Trees are equal if they say the same, wherever they stand in a text (`span`). The parser brings some spellings into one
form: a path without a stream reads the stream `S`, the name of a stream alone is `stream/*`, `AS x` is `->x`, `[title]`
is `[./title]`, `(block)` is the block, and parentheses without a SELECT only group.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.quick import quick
from xscl.algebra.expressions import ElementConstructor, Expr, Span, Step, nowhere
from xscl.algebra.normal import JoinOp

DEFAULT_STREAM = "S"


@quick
@dataclass(frozen=True, slots=True)
class Block:
    """A tree pattern over one stream. Its root is the node of the last step."""

    stream: str
    steps: tuple[Step, ...]
    span: Span = nowhere()


# ---------------------------------------------------------------- SELECT


@quick
@dataclass(frozen=True, slots=True)
class SelectItem:
    """`operand AS name`. A variable alone is selected under its own name."""

    operand: Expr
    name: str
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class SelectStar:
    """`*`: the block roots and the items of SELECTs in parentheses."""

    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class SelectItems:
    """A list of items."""

    items: tuple[SelectItem, ...]
    span: Span = nowhere()


Select = SelectStar | SelectItems | ElementConstructor

# ---------------------------------------------------------------- FROM


@quick
@dataclass(frozen=True, slots=True)
class Window:
    """A window of so many microseconds; None is INF."""

    us: int | None
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Join:
    """`left FOLLOWED BY{pred, window} right`, or JOIN, or JOIN UNORDERED."""

    op: JoinOp
    left: Input
    right: Input
    pred: Expr
    window: Window
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class SubQuery:
    """A query in parentheses with a SELECT, which says what the outer query sees and under which names."""

    select: SelectStar | SelectItems
    source: Input
    span: Span = nowhere()


Input = Block | Join | SubQuery


@quick
@dataclass(frozen=True, slots=True)
class Once:
    """`ONCE PER (keys) WITHIN window`, behind the name in PUBLISH. None is for ever. The span begins with the name."""

    keys: tuple[Expr, ...]
    window: Window | None = None
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Query:
    """One standing query. `select` is None if none is written, which means `*`. With `once` it has a PUBLISH name."""

    source: Input
    select: Select | None = None
    publish: str | None = None
    span: Span = nowhere()
    once: Once | None = None

    def shared_parts(self) -> tuple[object, ...]:
        """The identities of all parts but the PUBLISH name and the window of a join. The parser gives statements that
        differ only in these the same parts."""
        source = self.source
        if isinstance(source, Join):
            return source.op, id(source.left), id(source.right), id(source.pred), id(self.select), id(self.once)
        return id(source), id(self.select), id(self.once)
