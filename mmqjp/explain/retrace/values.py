"""Events that record their origin: a document or output, or other events and the operator that combined them. Values
and conditions of event statements for single events, also as text. `Covering` maps events to their documents."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise, product
from typing import assert_never

from common.dates import SECOND
from mmqjp.explain import terms
from pattern_stage.clauses import EVENT_SIGNS, expression_text
from xscl.algebra import events as algebra
from xscl.algebra.regex import PatternError, PatternLimit
from xscl.algebra.values import TESTS, call_text, compare, xpath_number
from xscl.event_forms import arithmetic, function_of

AttributeValues = Mapping[str, terms.Plain]

DocumentRef = tuple[str, str]  # the id and the stream of a document or output


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """An event of a defined or published stream. `source` is its document, or, with `output`, the output that it is.
    `behind` are the external documents behind it, and `roots` their nodes in output lines: for a document, only that of
    the event's root, and `nodes` distinguish it from the document's other events."""

    stream: str
    source: DocumentRef
    behind: tuple[DocumentRef, ...]
    roots: tuple[int | str, ...]
    nodes: tuple[tuple[int, int], ...] = ()
    output: bool = False


@dataclass(frozen=True, slots=True)
class Derived:
    """The operator that made an event, and the events that it is made of: of FOLD a left event and the right ones, with
    the run's values at each of these (`steps`); of AGGREGATE those of a group's window, in order of time."""

    by: algebra.Filter | algebra.Select | algebra.Next | algebra.Fold | algebra.Aggregate
    inputs: tuple[Event, ...]
    steps: tuple[AttributeValues, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """An event: attributes, interval in microseconds, and origin."""

    values: AttributeValues
    t0: int
    t1: int
    made: SourceEvent | Derived

    @property
    def parts(self) -> tuple[Event, ...]:
        """The events reported as its inputs: of a run the first and last, of a group those at its window's end, of a
        session all."""
        match self.made:
            case SourceEvent():
                return ()
            case Derived(by=algebra.Fold(), inputs=inputs):
                return inputs[0], inputs[-1]
            case Derived(by=algebra.Sessions(), inputs=inputs):
                return inputs
            case Derived(by=algebra.Aggregate(), inputs=inputs):
                return tuple(one for one in inputs if one.t1 == self.t1)
        return self.made.inputs


def given_parts(event: Event) -> Iterator[SourceEvent]:
    """Yields the source events behind an event, as outputs report them."""
    if isinstance(event.made, SourceEvent):
        yield event.made
    for part in event.parts:
        yield from given_parts(part)


def before(left: Event, right: Event) -> bool:
    return left.t1 < right.t0


def identity(event: Event) -> Hashable:
    return tuple(event.values.items()), event.t0, event.t1, frozenset(given_parts(event))


@dataclass(frozen=True, slots=True)
class ValueScope:
    """The values of names: of `left`, the `latest` of a run, and `right`. Times are in microseconds."""

    left: AttributeValues
    duration: int
    right: AttributeValues | None = None
    latest: AttributeValues | None = None
    gap: int | None = None

    def value(self, attribute: algebra.Attribute) -> terms.Plain:
        values = {"left": self.left, "right": self.right, "latest": self.latest}[attribute.part]
        assert values is not None, "the operator has such a side"
        return values[attribute.name]


def evaluate_value(value: algebra.Value, scope: ValueScope) -> terms.Plain:
    match value:
        case algebra.Constant(value=constant):
            return constant if isinstance(constant, str) else _finite(constant)
        case algebra.Attribute():
            return scope.value(value)
        case algebra.Duration():
            return scope.duration / SECOND
        case algebra.Gap():
            assert scope.gap is not None, "GAP is in NEXT and FOLD only"
            return scope.gap / SECOND
        case algebra.Arithmetic(op=op, left=left, right=right):
            one, other = evaluate_value(left, scope), evaluate_value(right, scope)
            if one is None or other is None:
                return None
            return _folded(arithmetic(op, algebra.Constant(one), algebra.Constant(other)))
        case algebra.Function(name=name, args=args, kind=kind):
            found = [evaluate_value(arg, scope) for arg in args]
            if name == "coalesce":
                return next((arg for arg in found if arg is not None), None)
            constants = tuple(algebra.Constant(arg) for arg in found if arg is not None)
            return _folded(function_of(name, constants, kind)) if len(constants) == len(args) else None
        case algebra.Parameter():
            raise AssertionError("a statement by itself has no parameters")
    assert_never(value)


def condition_holds(condition: algebra.EventCondition, scope: ValueScope) -> bool:
    match condition:
        case algebra.AllOf(args=args):
            return all(condition_holds(arg, scope) for arg in args)
        case algebra.AnyOf(args=args):
            return any(condition_holds(arg, scope) for arg in args)
        case algebra.NullTest(value=value, negated=negated):
            return (evaluate_value(value, scope) is None) != negated
        case algebra.Comparison(op=op, left=left, right=right):
            one, other = evaluate_value(left, scope), evaluate_value(right, scope)
            if one is None or other is None:
                return False
            as_texts = op in ("=", "!=") and isinstance(one, str) and isinstance(other, str)
            return (as_texts or None not in (as_number(one), as_number(other))) and compare(op, one, other)
        case algebra.TextTest(name=name, args=args, negated=negated):
            texts = [terms.as_text(evaluate_value(arg, scope)) for arg in args]
            known = [text for text in texts if text is not None]
            if len(known) < len(texts):
                return False
            try:
                return TESTS[name](*known) != negated
            except (PatternError, PatternLimit):
                return False
    assert_never(condition)


def as_number(value: terms.Plain) -> float | None:
    """Returns a value as a number; None for NULL or no finite number."""
    return _finite(xpath_number(value)) if isinstance(value, str) else value


def aggregate_group(one: algebra.Aggregated, group: Sequence[ValueScope]) -> terms.Plain:
    rows = [[evaluate_value(arg, scope) for arg in one.args] for scope in group]
    if one.name == "count":
        return float(sum(None not in row for row in rows))
    if one.name == "count distinct":
        return float(len({value for (value,) in rows} - {None}))
    if one.name == "argmax":
        sized = [(as_number(size), chosen) for chosen, size in rows]
        known = [(size, chosen) for size, chosen in sized if size is not None and chosen is not None]
        greatest = max((size for size, _ in known), default=None)
        return min((chosen for size, chosen in known if size == greatest), default=None)
    numbers = [number for number in (as_number(row[0]) for row in rows) if number is not None]
    if not numbers:
        return None
    if one.name in ("median", "percentile"):
        share = as_number(rows[0][1]) if one.name == "percentile" else 50.0
        assert share is not None, "the statement says which"
        return _quantile(sorted(numbers), share / 100)
    if one.name in ("min", "max"):
        return min(numbers) if one.name == "min" else max(numbers)
    return _finite(_sum(numbers) / len(numbers) if one.name == "avg" else _sum(numbers))


def _quantile(numbers: Sequence[float], share: float) -> float:
    """Returns what lies between the two nearest of sorted numbers, by their distances."""
    place = (len(numbers) - 1) * share
    low, high = math.floor(place), math.ceil(place)
    return numbers[low] * (1 - (place - low)) + numbers[high] * (place - low)


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


def _folded(value: algebra.Value) -> terms.Plain:
    """Returns what an operation on constants was folded to; None for NULL."""
    return value.value if isinstance(value, algebra.Constant) else None


class Covering:
    """Maps an event to the numbers of the documents that it was derived from."""

    def __init__(self, documents: Sequence[DocumentRef]) -> None:
        self._documents = documents
        self._known: dict[int, tuple[Event, frozenset[int]]] = {}

    def of(self, event: Event) -> frozenset[int]:
        if id(event) not in self._known:
            if isinstance(event.made, SourceEvent):
                sources = {event.made.source, *event.made.behind}
                found = frozenset(number for number, source in enumerate(self._documents) if source in sources)
            else:
                is_run = isinstance(event.made.by, algebra.Fold)
                found = frozenset().union(*map(self.of, event.made.inputs if is_run else event.parts))
            self._known[id(event)] = event, found  # with the event, so that its id stays its own
        return self._known[id(event)][1]


# ---------------------------------------------------------------- what operators make


def own_scope(event: Event) -> ValueScope:
    return ValueScope(event.values, event.t1 - event.t0)


def step_scope(first: Event, latest: Event, one: Event, values: AttributeValues) -> ValueScope:
    """Returns the values for a right event of NEXT or FOLD, behind a run, or behind the left event alone."""
    return ValueScope(first.values, one.t1 - first.t0, one.values, values, one.t0 - latest.t1)


def sequence_event(
    stream: algebra.Next | algebra.Fold, inputs: tuple[Event, ...], steps: tuple[AttributeValues, ...]
) -> Event:
    left, last = inputs[0], inputs[-1]
    sides = {"left": left.values, "right": last.values, "latest": steps[-1] if steps else left.values}
    values = {name: sides[part][own] for (name, _), (part, own) in zip(stream.schema, stream.names, strict=True)}
    return Event(values, left.t0, last.t1, Derived(stream, inputs, steps))


def group_event(stream: algebra.Aggregate, key: tuple[terms.Plain, ...], window: tuple[Event, ...]) -> Event:
    scopes = list(map(own_scope, window))
    values: dict[str, terms.Plain] = dict(zip(stream.by, key, strict=True))
    values |= {name: aggregate_group(one, scopes) for name, one in stream.items}
    begin = end = window[-1].t1
    if isinstance(stream, algebra.Sessions):
        begin, end = window[0].t1, end + (stream.over or 0)
    return Event(values, begin, end, Derived(stream, window))


# ---------------------------------------------------------------- texts


@dataclass(frozen=True, slots=True)
class NamedValue:
    """An attribute, DUR or GAP in a condition, with its value; DUR and GAP in seconds."""

    name: str
    value: terms.Plain

    @property
    def text(self) -> str:
        return terms.display_value(self.value, is_time=self.name in ("DUR", "GAP"))


Said = tuple[str | NamedValue, ...]  # a condition as text in parts, with event values in place of attributes


def said(condition: algebra.EventCondition, operator: algebra.Stream, scope: ValueScope | None = None) -> Said:
    """Returns a condition of an operator with the values of a scope; without one, with NULL for all."""
    found, windows = list[NamedValue](), list[str]()
    common: Set[str] = frozenset()
    if isinstance(operator, algebra.Next | algebra.Fold):  # what both sides have needs a $1 or $2
        common = dict(operator.left.schema).keys() & dict(operator.right.schema).keys()

    def named(leaf: algebra.Value) -> algebra.Value:
        match leaf:
            case algebra.Attribute(part=part, name=name):
                text = f"{EVENT_SIGNS[part]}.{name}" if part == "latest" or name in common else name
            case algebra.Duration() | algebra.Gap():
                text = "DUR" if isinstance(leaf, algebra.Duration) else "GAP"
            case _:
                return leaf
        found.append(NamedValue(text, None if scope is None else evaluate_value(leaf, scope)))
        return algebra.Attribute("left", terms.placeholder(len(found) - 1), "string")

    def in_time(part: algebra.EventCondition) -> algebra.EventCondition:
        """Puts windows for numbers of seconds that DUR or GAP are compared to."""
        match part:
            case algebra.AllOf(args=args):
                return algebra.AllOf(tuple(map(in_time, args)))
            case algebra.AnyOf(args=args):
                return algebra.AnyOf(tuple(map(in_time, args)))
            case algebra.Comparison(
                op=op, left=algebra.Duration() | algebra.Gap() as left, right=algebra.Constant(value=float(seconds))
            ):
                windows.append(terms.format_window(round(seconds * SECOND)))
                return algebra.Comparison(op, left, algebra.Parameter(len(windows) - 1, "number"))
        return part

    written = algebra.map_leaves(in_time(condition), named)
    text = expression_text(written, lambda window: windows[window.index], bare=True)
    return terms.with_placeholders(text, found)


def operator_condition_text(condition: algebra.EventCondition, operator: algebra.Stream) -> str:
    return "".join(part if isinstance(part, str) else part.name for part in said(condition, operator))


def conjuncts(condition: algebra.EventCondition) -> tuple[algebra.EventCondition, ...]:
    return condition.args if isinstance(condition, algebra.AllOf) else (condition,)


def stream_text(stream: algebra.Stream) -> str:
    """Returns a short name for a stream: `Advisory`, `Advisory NEXT Release`."""
    match stream:
        case algebra.Events(stream=name):
            return name
        case algebra.Filter(source=source) | algebra.Select(source=source):
            return stream_text(source)
        case algebra.Aggregate(source=source):
            return f"AGGREGATE of {stream_text(source)}"
        case algebra.Stories(source=source):
            return f"STORIES of {stream_text(source)}"
        case algebra.Next() | algebra.Fold() | algebra.Union():
            text = stream_text(stream.right)
            inner = f"({text})" if re.search(" (NEXT|BEFORE|FOLD|UNION) ", text) else text
            return f"{stream_text(stream.left)} {algebra.operator_name(stream)} {inner}"


SHOWN = 3  # maximum number of attributes shown of an event


def event_text(event: Event) -> str:
    """Returns an event in short: `Release (project "tarbox", version "0.9.4")`."""
    one = event
    while isinstance(one.made, Derived) and len(one.parts) == 1:
        (one,) = one.parts
    name = one.made.stream if isinstance(one.made, SourceEvent) else "the event"
    values = ", ".join(f"{name} {terms.display_value(value)}" for name, value in list(event.values.items())[:SHOWN])
    return f"{name} ({values})" if values else name


def false_text(asked: algebra.EventCondition, operator: algebra.Stream, scope: ValueScope, of: Event | None) -> str:
    """Returns the values in a condition: `score is 5, project is "tarbox"`."""
    named = dict.fromkeys(part for part in said(asked, operator, scope) if isinstance(part, NamedValue))
    text = ", ".join(f"{one.name} is {one.text}" for one in named) or "it never holds"
    return text if of is None else f"{text}, of {event_text(of)}"


def early_text(latest: Event, one: Event) -> str:
    if gap := latest.t1 - one.t0:
        return f"{event_text(one)} begins {terms.duration_text(gap)} before the end of {event_text(latest)}"
    return f"{event_text(one)} begins just when {event_text(latest)} ends, and has to begin later"


_PLACES = {"only": "", "first": "[1]", "each": "[i]", "previous": "[i-1]", "every": "[]"}


def all_written(conjuncts: Sequence[algebra.WhereConjunct], pattern: algebra.Pattern) -> str:
    return " AND ".join(conjunct_of(pattern, one).text for one in conjuncts)


def referent_text(of: algebra.Referent, variables: Sequence[algebra.Variable]) -> str:
    name = variables[of.variable].name
    if isinstance(of, algebra.Length):
        return f"{name}.LEN"
    if isinstance(of, algebra.OfItem):
        place = f"[{name}.LEN]" if of.place == "last" else _PLACES[of.place]
        return f"{name}{place}.{of.name}"
    if of.aggregated is None:
        return "count(*)"
    items = f"{name}[]" if variables[of.variable].kleene else name
    if isinstance(of, algebra.OfItems) and of.earlier:
        items = f"{name}[..i-1]"
    named = [algebra.map_leaves(arg, _named_by(lambda name: f"{items}.{name}")) for arg in of.aggregated.args]
    args = [expression_text(arg, str, bare=True) for arg in named]
    return call_text(of.aggregated.name, args or [items])


def component_text(variable: algebra.Variable) -> str:
    one = f"{variable.source.stream}{'+' if variable.kleene else ''} {variable.name}{'[]' if variable.kleene else ''}"
    return f"~({one})" if variable.negated else one


def _named_by(name_of: Callable[[str], str]) -> Callable[[algebra.Value], algebra.Value]:
    return lambda leaf: (
        algebra.Attribute(leaf.part, name_of(leaf.name), leaf.kind) if isinstance(leaf, algebra.Attribute) else leaf
    )


# ---------------------------------------------------------------- conditions on matches

MatchBindings = Mapping[str, Sequence[Event]]  # maps each variable or stream to its events in order of time


class BoundCondition:
    """A condition of a PATTERN, whose names refer to events of a match."""

    def __init__(self, pattern: algebra.Pattern, condition: algebra.EventCondition, names: algebra.Names) -> None:
        self._pattern, self._names = pattern, names
        self._texts = {name: referent_text(of, pattern.variables) for name, of in names}
        self.said = algebra.map_leaves(condition, _named_by(self._texts.__getitem__))
        """The condition with its names as in the statement."""
        self.variables = tuple(dict.fromkeys(of.variable for _, of in names))  # the numbers of its variables

    def scopes(self, match: MatchBindings, new: int | None = None) -> Iterator[ValueScope]:
        """Yields values by name for each combination of events, in order; of `new`, only for its last event."""
        variables = self._pattern.variables
        for places in product(*(self._places(match, one, is_new=one == new) for one in self.variables)):
            at = dict(zip(self.variables, places, strict=True))
            values = {self._texts[name]: _value(of, match[variables[of.variable].name], at) for name, of in self._names}
            yield ValueScope(values, 0)

    def failing(self, match: MatchBindings, new: int | None = None) -> ValueScope | None:
        """Returns the first scope where it is false; None if it holds."""
        return next((scope for scope in self.scopes(match, new) if not condition_holds(self.said, scope)), None)

    @cached_property
    def text(self) -> str:
        return operator_condition_text(self.said, self._pattern.variables[0].source)

    def _places(self, match: MatchBindings, variable: int, *, is_new: bool) -> range:
        """Returns the indexes of a variable's events that it is tested for; one if it does not use the variable."""
        count, first = len(match[self._pattern.variables[variable].name]), int(self._is_of_pairs(variable))
        if not first and not any(isinstance(of, algebra.OfItem) and of.place == "every" for of in self._of(variable)):
            return range(1)
        return range(count - 1 if is_new else first, count)

    def _of(self, variable: int) -> list[algebra.Referent]:
        return [of for _, of in self._names if of.variable == variable]

    def _is_of_pairs(self, variable: int) -> bool:
        return any(
            of.earlier if isinstance(of, algebra.OfItems) else isinstance(of, algebra.OfItem) and of.place in _EACH
            for of in self._of(variable)
        )

    # ------------------------------------------------------------ what matters of partial matches

    def signature(self, match: MatchBindings) -> Iterator[Hashable]:
        """Yields what may still matter: partial matches that are equal in it stay equal, whatever is added to both."""
        for variable in self.variables:
            events = match.get(self._pattern.variables[variable].name, ())
            every = self._of(variable) if events else []
            yield from (_kept(of, events) for of in every)
            if every and self._is_of_pairs(variable):
                names = sorted({of.name for of in every if isinstance(of, algebra.OfItem)})
                pairs = pairwise(tuple(one.values[name] for name in names) for one in events)
                has_items = any(isinstance(of, algebra.OfItems) for of in every)
                yield tuple(map(id, events)) if has_items else frozenset(pairs)

    @cached_property
    def is_of_steps(self) -> bool:
        """Whether it concerns one variable alone, and there each event, or an event and its predecessor."""
        places = {of.place if isinstance(of, algebra.OfItem) else "" for _, of in self._names}
        return len(self.variables) == 1 and places <= {*_EACH, "every"}


_EACH = ("each", "previous")


def conjunct_of(pattern: algebra.Pattern, one: algebra.WhereConjunct) -> BoundCondition:
    return BoundCondition(pattern, one.condition, one.names)


def having_of(pattern: algebra.Pattern) -> list[BoundCondition]:
    return [BoundCondition(pattern, one, pattern.having_names) for one in conjuncts(pattern.having)]


def _kept(of: algebra.Referent, events: Sequence[Event]) -> Hashable:
    match of:
        case algebra.Length():
            return len(events)
        case algebra.OfMatches():
            return None  # of no match by itself
        case algebra.OfItems(aggregated=one):
            scopes = [ValueScope(event.values, 0) for event in events]
            if one.name in ("min", "max", "count"):
                return aggregate_group(one, scopes)
            values = [tuple(evaluate_value(arg, scope) for arg in one.args) for scope in scopes]
            return tuple(sorted(map(repr, values)))
        case algebra.OfItem(place="every", name=name):
            return frozenset(event.values[name] for event in events)
        case algebra.OfItem(place=place, name=name):
            return events[0 if place in ("only", "first") else -1].values[name]


def _value(of: algebra.Referent, events: Sequence[Event], at: Mapping[int, int]) -> terms.Plain:
    match of:
        case algebra.Length():
            return float(len(events))
        case algebra.OfItems(aggregated=one, earlier=earlier):
            some = events[: at[of.variable]] if earlier else events
            return aggregate_group(one, [ValueScope(event.values, 0) for event in some])
        case algebra.OfMatches():
            raise AssertionError("this is a value of all matches")
        case algebra.OfItem(place=place, name=name):
            here = at[of.variable]
            which = {"only": 0, "first": 0, "last": -1, "each": here, "previous": here - 1, "every": here}[place]
            return events[which].values[name]
