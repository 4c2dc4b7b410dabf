"""Values and conditions of event statements for single events. An event records its origin: a document or output, or
other events and the operator that combined them; `Covering` maps events to the documents behind them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import assert_never

from mmqjp.documents.record import Record
from xscl.algebra.events import (
    Aggregate,
    Aggregated,
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Constant,
    Duration,
    EventCondition,
    Filter,
    Fold,
    Function,
    Gap,
    Next,
    NullTest,
    Parameter,
    TextTest,
    Value,
)
from xscl.algebra.regex import PatternLimit
from xscl.algebra.regex_syntax import PatternError
from xscl.algebra.values import TESTS, CompareOp, compare, number_text, xpath_number
from xscl.event_forms import arithmetic, function_of

Plain = str | float | None
"""An attribute's value: a text, a number, or None for NULL."""

AttributeValues = Mapping[str, Plain]

DocumentRef = tuple[str, str]
"""The id and the stream of a document or output."""


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """An event of a defined or published stream.

    `source` is its document, or, with `output`, the output that it is. `behind` are the external documents behind it,
    and `roots` their nodes in output lines: for a document, only that of the event's root, and `nodes` distinguish it
    from the document's other events.
    """

    stream: str
    source: DocumentRef
    behind: tuple[DocumentRef, ...]
    roots: tuple[int | str, ...]
    nodes: tuple[tuple[int, int], ...] = ()
    output: bool = False


@dataclass(frozen=True, slots=True)
class PassedFilter:
    """The input event of a FILTER."""

    by: Filter
    source: Event


@dataclass(frozen=True, slots=True)
class Selected:
    """The input event of a SELECT."""

    source: Event


@dataclass(frozen=True, slots=True)
class Followed:
    """The left and the right event of NEXT."""

    by: Next
    left: Event
    right: Event


@dataclass(frozen=True, slots=True)
class Folded:
    """A run: a left event, and right ones, each with the run's values at that time."""

    by: Fold
    first: Event
    steps: tuple[tuple[Event, AttributeValues], ...]

    @property
    def latest(self) -> Event:
        return self.steps[-1][0] if self.steps else self.first

    @property
    def values(self) -> AttributeValues:
        return self.steps[-1][1] if self.steps else self.first.values


@dataclass(frozen=True, slots=True)
class AggregatedEvents:
    """The events of a group's window, in order of time. Those that end with the window are its parts."""

    by: Aggregate
    window: tuple[Event, ...]


Provenance = SourceEvent | PassedFilter | Selected | Followed | Folded | AggregatedEvents


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """An event: attributes, interval in microseconds, and origin."""

    values: AttributeValues
    t0: int
    t1: int
    made: Provenance

    @property
    def parts(self) -> tuple[Event, ...]:
        """The events reported as its inputs: of a run the first and the latest, of a group those that end with its
        window."""
        match self.made:
            case SourceEvent():
                return ()
            case PassedFilter(source=source) | Selected(source=source):
                return (source,)
            case Followed(left=left, right=right):
                return left, right
            case Folded(first=first, latest=latest):
                return first, latest
            case AggregatedEvents(window=window):
                return tuple(one for one in window if one.t1 == self.t1)

    @property
    def inputs(self) -> tuple[Event, ...]:
        if isinstance(self.made, Folded):
            return self.made.first, *(step for step, _ in self.made.steps)
        return self.parts


def given_parts(event: Event) -> Iterator[SourceEvent]:
    """Yields the source events behind an event, as outputs report them."""
    if isinstance(event.made, SourceEvent):
        yield event.made
    for part in event.parts:
        yield from given_parts(part)


def before(left: Event, right: Event) -> bool:
    return left.t1 < right.t0


def is_same(one: Event, other: Event) -> bool:
    """Whether two events are one, computed twice."""
    if one is other:
        return True
    return one.t1 == other.t1 and identity(one) == identity(other)


def identity(event: Event) -> Hashable:
    """Returns an event's identity: attributes, interval and source events, whatever its origin."""
    return tuple(event.values.items()), event.t0, event.t1, frozenset(given_parts(event))


SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class ValueScope:
    """The values of names: of `left`, the `latest` of a run, and `right`. Times are in microseconds."""

    left: AttributeValues
    duration: int
    right: AttributeValues | None = None
    latest: AttributeValues | None = None
    gap: int | None = None

    def value(self, attribute: Attribute) -> Plain:
        values = {"left": self.left, "right": self.right, "latest": self.latest}[attribute.part]
        assert values is not None, "the operator has such a side"
        return values[attribute.name]


def evaluate_value(value: Value, scope: ValueScope) -> Plain:
    match value:
        case Constant(value=constant):
            return constant if isinstance(constant, str) else _finite(constant)
        case Attribute():
            return scope.value(value)
        case Duration():
            return scope.duration / SECOND
        case Gap():
            assert scope.gap is not None, "GAP is in NEXT and FOLD only"
            return scope.gap / SECOND
        case Arithmetic(op=op, left=left, right=right):
            one, other = evaluate_value(left, scope), evaluate_value(right, scope)
            if one is None or other is None:
                return None
            return _folded(arithmetic(op, Constant(one), Constant(other)))
        case Function(name=name, args=args, kind=kind):
            found = [evaluate_value(arg, scope) for arg in args]
            if name == "coalesce":
                return next((arg for arg in found if arg is not None), None)
            constants = tuple(Constant(arg) for arg in found if arg is not None)
            return _folded(function_of(name, constants, kind)) if len(constants) == len(args) else None
        case Parameter():
            raise AssertionError("a statement by itself has no parameters")
    assert_never(value)


def condition_holds(condition: EventCondition, scope: ValueScope) -> bool:
    match condition:
        case AllOf(args=args):
            return all(condition_holds(arg, scope) for arg in args)
        case AnyOf(args=args):
            return any(condition_holds(arg, scope) for arg in args)
        case NullTest(value=value, negated=negated):
            return (evaluate_value(value, scope) is None) != negated
        case Comparison(op=op, left=left, right=right):
            return _compared(op, evaluate_value(left, scope), evaluate_value(right, scope))
        case TextTest(name=name, args=args, negated=negated):
            texts = [as_text(evaluate_value(arg, scope)) for arg in args]
            known = [text for text in texts if text is not None]
            if len(known) < len(texts):
                return False
            try:
                return TESTS[name](*known) != negated
            except (PatternError, PatternLimit):
                return False
    assert_never(condition)


def as_number(value: Plain) -> float | None:
    """Returns a value as a number; None for NULL or no finite number."""
    return _finite(xpath_number(value)) if isinstance(value, str) else value


def as_text(value: Plain) -> str | None:
    return number_text(value) if isinstance(value, float) else value


def aggregate_group(one: Aggregated, group: Sequence[ValueScope]) -> Plain:
    rows = [[evaluate_value(arg, scope) for arg in one.args] for scope in group]
    if one.name == "count":
        return float(sum(None not in row for row in rows))
    if one.name == "argmax":
        sized = [(as_number(size), chosen) for chosen, size in rows]
        known = [(size, chosen) for size, chosen in sized if size is not None and chosen is not None]
        greatest = max((size for size, _ in known), default=None)
        return min((chosen for size, chosen in known if size == greatest), default=None)
    numbers = [number for number in (as_number(value) for (value,) in rows) if number is not None]
    if not numbers:
        return None
    match one.name:
        case "sum":
            return _finite(_sum(numbers))
        case "avg":
            return _finite(_sum(numbers) / len(numbers))
        case "min":
            return min(numbers)
        case "max":
            return max(numbers)


def _sum(numbers: Sequence[float]) -> float:
    try:
        return math.fsum(numbers)
    except OverflowError:  # on the way, perhaps not in the end
        total = sum(map(Fraction, numbers))
    try:
        return float(total)
    except OverflowError:
        return math.inf


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _folded(value: Value) -> Plain:
    """Returns what an operation on constants was folded to; None for NULL."""
    return value.value if isinstance(value, Constant) else None


def _compared(op: CompareOp, left: Plain, right: Plain) -> bool:
    if op in ("=", "!=") and isinstance(left, str) and isinstance(right, str):
        return compare(op, left, right)
    one, other = as_number(left), as_number(right)
    return one is not None and other is not None and compare(op, one, other)


class Covering:
    """Maps an event to the numbers of the documents that it was derived from."""

    def __init__(self, documents: Sequence[Record]) -> None:
        self._sources = [(record.id, record.stream) for record in documents]
        self._known: dict[int, tuple[Event, frozenset[int]]] = {}

    def of(self, event: Event) -> frozenset[int]:
        known = self._known.get(id(event))
        if known is None:
            known = event, self._found(event)  # with the event, so that its id stays its own
            self._known[id(event)] = known
        return known[1]

    def _found(self, event: Event) -> frozenset[int]:
        if isinstance(event.made, SourceEvent):
            sources = {event.made.source, *event.made.behind}
            return frozenset(number for number, source in enumerate(self._sources) if source in sources)
        return frozenset().union(*map(self.of, event.inputs))
