"""What event statements mean: expressions over attributes, and operators of Cayuga's algebra over streams of events.

Names are resolved here: each reference says whose attribute it is, and each operator says under which name an attribute
leaves it. The page docs/patterns.md describes the operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.quick import quick
from xscl.algebra.expressions import CompareOp

Kind = Literal["string", "number"]

Schema = tuple[tuple[str, Kind], ...]
"""The attributes of a stream's events, in their order: name and kind."""

Part = Literal["left", "latest", "right"]
"""Whose attribute a reference means. Of an operator with one input: `left`. Of NEXT: `left` ($1) and `right` ($2). Of
FOLD: `left` ($1, the values that the instance began with), `latest` ($) and `right` ($2)."""

ArithmeticOp = Literal["+", "-", "*", "/", "%"]

# ---------------------------------------------------------------- expressions


@quick
@dataclass(frozen=True, slots=True)
class Constant:
    """A string or a number. Windows are numbers of seconds."""

    value: str | float


@quick
@dataclass(frozen=True, slots=True)
class Parameter:
    """What stands in a template where statements have different constants: column `index` of their rows."""

    index: int
    kind: Kind


@quick
@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of an event."""

    part: Part
    name: str
    kind: Kind


@quick
@dataclass(frozen=True, slots=True)
class Duration:
    """DUR: `t1 - t0` in seconds; in a condition of NEXT or FOLD that of the concatenation."""


@quick
@dataclass(frozen=True, slots=True)
class Gap:
    """GAP: the right event's t0 less the t1 of the left's latest event, in seconds. In NEXT and FOLD only."""


@quick
@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An operation on two numbers. It is NULL if a number is, or if its result is not finite."""

    op: ArithmeticOp
    left: Value
    right: Value


@quick
@dataclass(frozen=True, slots=True)
class Function:
    """A function of values: a derived value of XSCL, number, string-length, coalesce, concat or abs."""

    name: str
    args: tuple[Value, ...]
    kind: Kind


Value = Constant | Parameter | Attribute | Duration | Gap | Arithmetic | Function


@quick
@dataclass(frozen=True, slots=True)
class Comparison:
    """`left op right`. Two strings are compared as strings by = and !=, all else as numbers. False if one is NULL."""

    op: CompareOp
    left: Value
    right: Value


@quick
@dataclass(frozen=True, slots=True)
class TextTest:
    """`contains`, `starts-with`, `ends-with` or `matches`, or that it does not hold (`negated`). Either is false if an
    argument is NULL."""

    name: str
    args: tuple[Value, ...]
    negated: bool = False


@quick
@dataclass(frozen=True, slots=True)
class NullTest:
    """`value IS NULL`, or, `negated`, `value IS NOT NULL`."""

    value: Value
    negated: bool = False


Atom = Comparison | TextTest | NullTest


@quick
@dataclass(frozen=True, slots=True)
class AllOf:
    """A condition that holds if all of `args` do. Without args it holds."""

    args: tuple[Condition, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class AnyOf:
    """A condition that holds if any of `args` does. NOT has been pushed to the atoms, so there is none."""

    args: tuple[Condition, ...]


Condition = Atom | AllOf | AnyOf
ALWAYS = AllOf()

# ---------------------------------------------------------------- operators


@quick
@dataclass(frozen=True, slots=True)
class Events:
    """The events of a stream: one that is defined, or that event statements PUBLISH."""

    stream: str
    schema: Schema


@quick
@dataclass(frozen=True, slots=True)
class Select:
    """New attributes from old ones (π, ρ and α at once)."""

    source: Stream
    items: tuple[tuple[str, Value], ...]
    schema: Schema


@quick
@dataclass(frozen=True, slots=True)
class Filter:
    """The events for which a condition holds (σ)."""

    source: Stream
    condition: Condition

    @property
    def schema(self) -> Schema:
        """That of its source."""
        return self.source.schema


@quick
@dataclass(frozen=True, slots=True)
class Union:
    """The events of both, equal ones once. The schemas are equal."""

    left: Stream
    right: Stream

    @property
    def schema(self) -> Schema:
        """That of both."""
        return self.left.schema


@quick
@dataclass(frozen=True, slots=True)
class Next:
    """`left NEXT{condition} right`: each left event with the first later right events for which the condition holds.

    `within` is the greatest `t1 - t0` of a result in microseconds; None for no bound. `names` has the attributes of a
    result, in the order of `schema`: whose each is, and its name there.
    """

    left: Stream
    right: Stream
    condition: Condition
    within: int | None
    names: tuple[tuple[Part, str], ...]
    schema: Schema


@quick
@dataclass(frozen=True, slots=True)
class Fold:
    """`left FOLD{chooses, continues, sets} right`: runs of right events that begin with a left event.

    Of the later right events for which `chooses` holds, those with the least t1 are next; the run goes on with each of
    them for which `continues` holds, and has its attributes and those of `sets`. Each run is a result, but those of
    left events alone. `within` is as in Next. `names` has the attributes of a result, in the order of `schema`: the
    first (`left`) or the `latest` value of an attribute of the left schema.
    """

    left: Stream
    right: Stream
    chooses: Condition
    continues: Condition
    sets: tuple[tuple[str, Value], ...]
    within: int | None
    names: tuple[tuple[Part, str], ...]
    schema: Schema


AggregateName = Literal["count", "sum", "avg", "min", "max", "argmax"]


@quick
@dataclass(frozen=True, slots=True)
class Aggregated:
    """An aggregate of the events of a group: `count()`, `count(x)`, `sum(x)`, ..., `argmax(x, y)`."""

    name: AggregateName
    args: tuple[Value, ...]


@quick
@dataclass(frozen=True, slots=True)
class Aggregate:
    """For each group and each t1 of its events: values of the events of the group with `t - over < t1 <= t`.

    Without `over`, in microseconds, those with `t1 = t`. `by` names attributes of the source; `items` may do arithmetic
    on aggregates only through a Select above. The schema has the attributes of `by`, then `items`.
    """

    source: Stream
    items: tuple[tuple[str, Aggregated], ...]
    by: tuple[str, ...]
    over: int | None
    schema: Schema


Stream = Events | Select | Filter | Union | Next | Fold | Aggregate
