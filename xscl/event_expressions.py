"""The syntax tree of the expressions of event statements: values, conditions, and the names of streams.

Trees are equal if they say the same, wherever they stand in a text. Spans are places in a statement's own text.
Parentheses that only group are not in the tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.quick import quick
from xscl.algebra.events import ArithmeticOp
from xscl.algebra.expressions import CompareOp, Number, Span, String, nowhere
from xscl.syntax import Window


@quick
@dataclass(frozen=True, slots=True)
class StreamName:
    """The events of a name."""

    name: str
    span: Span = nowhere()


Side = Literal["", "$1", "$2", "$"]
"""What stands before the dot of a reference: of NEXT and FOLD the left event, the right one, or FOLD's latest."""


@quick
@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute: `name`, `$1.name`, `$2.name` or `$.name`."""

    side: Side
    name: str
    span: Span = nowhere()


Place = Literal["", "1", "i", "i-1", "LEN", "[]", "..i-1"]
"""Which event of a variable: `v`, `v[1]`, `v[i]`, `v[i-1]`, `v[v.LEN]`; or those of `v[]`, or of `v[..i-1]`."""


@quick
@dataclass(frozen=True, slots=True)
class ItemReference:
    """In PATTERN, an attribute of an event of a variable, such as `v[1].name`. `v.LEN` looks like an attribute.

    Without a name it is the events of `v[]`, or of `v[..i-1]`, which count() takes.
    """

    variable: str
    place: Place
    name: str
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Alike:
    """`[x, y]`: all events are equal in these attributes."""

    names: tuple[Reference, ...]
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
    | ItemReference
    | Alike
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
