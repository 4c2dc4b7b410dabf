"""The syntax tree of event statements: definitions of events, and queries over events.

Trees are equal if they say the same, wherever they stand in a text. The `span` of a statement is its place in the
script; those inside a statement are places in its own text. Parentheses that only group are not in the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from common.quick import quick
from xscl.algebra.expressions import Expr, Span, nowhere
from xscl.event_expressions import EventExpr, Reference, StreamName
from xscl.pattern_syntax import Sequenced, streams_of
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
    PUBLISHes ends the statement.

    It may be a PATTERN statement: then `stream` is what it looks for, and `select` what it RETURNs.
    """

    stream: EventStream | Sequenced
    select: tuple[Named | AllAttributes, ...] | None = None
    within: Window | None = None
    publish: str | None = None
    span: Span = nowhere()


EventStatement = EventDefinition | EventQuery


def names_read(stream: EventStream | Sequenced) -> Iterator[StreamName]:
    """The names of streams that a part of the tree reads, from left to right."""
    if isinstance(stream, Sequenced):
        yield from streams_of(stream.components)
        return
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
