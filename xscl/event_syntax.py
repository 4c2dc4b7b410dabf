"""The syntax tree of event statements: definitions of events, and queries over events.

Trees are equal if they say the same, wherever they stand in a text. The `span` of a statement is its place in the
script; those inside a statement are places in its own text. Parentheses that only group are not in the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from common.quick import quick
from xscl.algebra.events import ArithmeticOp
from xscl.algebra.expressions import CompareOp, Expr, Number, Span, String, nowhere
from xscl.syntax import Block, Window

# ---------------------------------------------------------------- definitions


@quick
@dataclass(frozen=True, slots=True)
class DefinedAttribute:
    """`name := operand` or `name IN path`.

    With `number` the value is the operand's as a number: `number(operand)` is written, or the operand is a number by
    itself. With `each` there is an event for each node of the path, else the first one counts.
    """

    name: str
    operand: Expr
    number: bool
    each: bool
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class EventDefinition:
    """`DEFINE EVENT name FROM block (attributes)`."""

    name: str
    block: Block
    attributes: tuple[DefinedAttribute, ...]
    span: Span = nowhere()


# ---------------------------------------------------------------- expressions

Side = Literal["", "$1", "$2", "$"]
"""What stands before the dot of a reference: of NEXT and FOLD the left event, the right one, or FOLD's latest."""


@quick
@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute: `name`, `$1.name`, `$2.name` or `$.name`."""

    side: Side
    name: str
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Measure:
    """DUR or GAP."""

    name: Literal["DUR", "GAP"]
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Percentage:
    """`80%`: a number of hundredths, as it is written, without the sign."""

    text: str
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Null:
    """NULL, which no expression may be."""

    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on two numbers."""

    op: ArithmeticOp
    left: EventExpr
    right: EventExpr
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Minus:
    """`-x`."""

    arg: EventExpr
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class EventCall:
    """A function of values, a test of texts, or an aggregate."""

    name: str
    args: tuple[EventExpr, ...]
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class EventCompare:
    """A comparison of two values."""

    op: CompareOp
    left: EventExpr
    right: EventExpr
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class IsNull:
    """`value IS NULL`, or, `negated`, `value IS NOT NULL`."""

    value: EventExpr
    negated: bool = False
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Both:
    """A condition that holds if all of `args` do."""

    args: tuple[EventExpr, ...]
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Either:
    """A condition that holds if any of `args` does."""

    args: tuple[EventExpr, ...]
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Negated:
    """`NOT condition`."""

    arg: EventExpr
    span: Span = nowhere()


EventExpr = (
    Reference
    | Measure
    | String
    | Number
    | Percentage
    | Window
    | Null
    | Operation
    | Minus
    | EventCall
    | EventCompare
    | IsNull
    | Both
    | Either
    | Negated
)
"""A Window among them is a number of seconds."""

# ---------------------------------------------------------------- streams


@quick
@dataclass(frozen=True, slots=True)
class Named:
    """`expression AS name`. An attribute alone has its own name. The name is empty if one is missing."""

    expr: EventExpr
    name: str
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class AllAttributes:
    """`*` among the items of a SELECT."""

    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class StreamName:
    """The events of a name."""

    name: str
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Filtered:
    """`FILTER{condition} source`."""

    condition: EventExpr
    source: EventStream
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Grouped:
    """`AGGREGATE{items BY by OVER over} source`."""

    items: tuple[Named, ...]
    by: tuple[Reference, ...]
    over: Window | None
    source: EventStream
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Sequence:
    """`left NEXT{condition} right`. The span is that of NEXT."""

    left: EventStream
    right: EventStream
    condition: EventExpr | None = None
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Iteration:
    """`left FOLD{chooses, continues, sets} right`. The span is that of FOLD."""

    left: EventStream
    right: EventStream
    chooses: EventExpr | None = None
    continues: EventExpr | None = None
    sets: tuple[Named, ...] = ()
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Together:
    """`left UNION right`. The span is that of UNION."""

    left: EventStream
    right: EventStream
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Inner:
    """A query in parentheses with a SELECT or a WITHIN."""

    select: tuple[Named | AllAttributes, ...] | None
    stream: EventStream
    within: Window | None
    span: Span = nowhere()


EventStream = StreamName | Filtered | Grouped | Sequence | Iteration | Together | Inner


@quick
@dataclass(frozen=True, slots=True)
class EventQuery:
    """A standing query over events. `select` is None if none is written, which means all attributes. The name that it
    PUBLISHes ends the statement."""

    stream: EventStream
    select: tuple[Named | AllAttributes, ...] | None = None
    within: Window | None = None
    publish: str | None = None
    span: Span = nowhere()


EventStatement = EventDefinition | EventQuery


def names_read(stream: EventStream) -> Iterator[StreamName]:
    """The names of streams that a part of the tree reads, from left to right."""
    waiting = [stream]
    while waiting:
        node = waiting.pop()
        match node:
            case StreamName():
                yield node
            case Inner():
                waiting.append(node.stream)
            case Filtered() | Grouped():
                waiting.append(node.source)
            case _:
                waiting += node.right, node.left
