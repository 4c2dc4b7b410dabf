"""The reference evaluator for event queries, over single events. Derives the events of documents by their definitions
and computes the streams of operators over given events, each event with its origin. `Looked` has the events found, or
the stages up to the first that nothing passes; conditions are rendered as text with the events' values."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from mmqjp.documents.record import Record
from mmqjp.explain.evidence import BlockEvidence
from mmqjp.explain.retrace.values import (
    SECOND,
    AggregatedEvents,
    AttributeValues,
    Event,
    Folded,
    Followed,
    PassedFilter,
    Plain,
    Selected,
    SourceEvent,
    ValueScope,
    aggregate_group,
    as_number,
    as_text,
    condition_holds,
    evaluate_value,
    identity,
)
from mmqjp.explain.terms import (
    CHARACTERS_PER_STEP,
    FunnelStage,
    ReadableQuery,
    TooLong,
    duration_text,
    format_window,
    placeholder,
    truncate_value,
    with_placeholders,
)
from mmqjp.queries.compile import stored_definition
from mmqjp.queries.registry import RegisteredDefinition
from xpath_stage.binder import Node, PreparedNode, Take, each_below, each_binding, uncounted
from xscl.algebra.events import (
    Aggregate,
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Constant,
    Duration,
    EventAttribute,
    EventCondition,
    Events,
    Filter,
    Fold,
    Function,
    Gap,
    Next,
    NullTest,
    Parameter,
    Select,
    Stream,
    TextTest,
    Union,
    Value,
)
from xscl.algebra.trees import naming
from xscl.algebra.values import derive, xpath_number
from xscl.printer import to_xscl
from xscl.syntax import Query, Script, SelectItem, SelectItems

MAX_DOCUMENT_EVENTS = 10_000
"""A document with more events of a definition has none."""


@dataclass(frozen=True)
class DocumentEvents:
    """Derives a definition's events from documents."""

    definition: RegisteredDefinition

    @cached_property
    def _pattern(self) -> PreparedNode:
        return PreparedNode(naming(self.definition.pattern.pattern, self.definition.pattern.variables))

    @cached_property
    def _paths(self) -> dict[str, PreparedNode]:
        return {one.name: PreparedNode(one.path) for one in self.definition.pattern.attributes if one.path is not None}

    def of(self, record: Record, take: Take = uncounted) -> list[Event]:
        """Returns the events of a document. Raises TooLong if there are more than MOST_EVENTS."""
        pattern = self.definition.pattern
        if record.stream != pattern.stream:
            return []
        made = dict[tuple[Node, ...], Event]()
        for binding in each_binding(self._pattern, record.tree, {}, take):
            bound = dict(binding)
            nodes = tuple(bound[var] for var in pattern.variables)
            if nodes in made:
                continue
            if len(made) == MAX_DOCUMENT_EVENTS:
                raise TooLong
            values = {one.name: self._value(one, record, bound, take) for one in pattern.attributes}
            source = record.id, record.stream
            given = SourceEvent(self.definition.name, source, record.sources, (_label(record, nodes[0]),), nodes)
            made[nodes] = Event(values, record.t0, record.t1, given)
        return list(made.values())

    def _value(self, attribute: EventAttribute, record: Record, bound: dict[str, Node], take: Take) -> Plain:
        if attribute.var is None:
            return _typed(attribute, attribute.constant)
        node: Node | None = bound[attribute.var]
        if (part := self._paths.get(attribute.name)) is not None:
            below = each_below(part, record.tree, bound[attribute.var], take)
            node = min((end for ((_, end),) in below), default=None)
        if node is None:
            return None
        text = record.tree.string_value(*node)
        take(1 + len(text) // CHARACTERS_PER_STEP)
        for name in attribute.functions:
            text = derive(name, text)
        return _typed(attribute, text)

    @cached_property
    def _readable(self) -> ReadableQuery:
        found, script = stored_definition(self.definition.text)
        each = tuple(SelectItem(one.operand, f"v{place}") for place, one in enumerate(found.attributes) if one.each)
        query = Query(found.block, SelectItems(each) if each else None)
        return ReadableQuery.of(to_xscl(Script((query,), script.namespaces)))

    def why_none(self, record: Record, take: Take = uncounted) -> Iterator[FunnelStage]:
        """Yields the stages of the definition up to the first that a document does not pass."""
        side = self._readable.normal.conjuncts[0].left
        block = BlockEvidence(self._readable, 0, side)
        block.look(record, take)
        for stage in (one.shown() for one in block.told()):
            if stage.kind == "asked" and not stage.found:
                stage = replace(stage, hint="each event takes one with IN")
            yield replace(stage, block=0)


def _typed(attribute: EventAttribute, text: str) -> Plain:
    if attribute.kind == "string":
        return text
    number = xpath_number(text)
    return number if math.isfinite(number) else None


def _label(record: Record, node: Node) -> int | str:
    element, place = node
    return f"{element}/@{record.tree.attribute(element, place)[0]}" if place else element


GivenEvents = Callable[[str], Sequence[Event]]
"""Returns the events of a defined or published stream, given its name, in order of t1."""


class Trial:
    """Computes streams over given events. Each test of a condition is a step."""

    def __init__(self, given: GivenEvents, take: Take) -> None:
        self.all_given, self.take = given, take
        self._all: dict[int, list[Event]] = {}
        self._rights: dict[int, Rights] = {}

    def all(self, stream: Stream) -> list[Event]:
        found = self._all.get(id(stream))
        if found is None:
            found = self._all[id(stream)] = self.events(stream)
        return found

    def events(self, stream: Stream, t0: int | None = None, t1: int | None = None) -> list[Event]:
        """Returns the events of a stream in order of t1, optionally only those with interval t0 to t1."""
        found: Iterable[Event] = _at(self._events(stream, t0, t1), t0, t1)
        if _may_repeat(stream):
            found = {identity(one): one for one in found}.values()
        return sorted(found, key=lambda one: one.t1)

    def _events(self, stream: Stream, t0: int | None, t1: int | None) -> Iterable[Event]:
        match stream:
            case Events(stream=name):
                return self.all_given(name)
            case Filter(source=source):
                return filter(None, (self.filtered(stream, one) for one in self.events(source, t0, t1)))
            case Select(source=source):
                return [apply_select(stream, one) for one in self.events(source, t0, t1)]
            case Union(left=left, right=right):
                return [*self.events(left, t0, t1), *self.events(right, t0, t1)]
            case Next(left=left):
                return [one for first in self.events(left, t0) for one in self.followed(stream, first)]
            case Fold(left=left):
                return [one for first in self.events(left, t0) for one in self.runs(stream, first)]
            case Aggregate():
                return self.together(stream, t1)

    def filtered(self, stream: Filter, one: Event) -> Event | None:
        self.take(1)
        if condition_holds(stream.condition, ValueScope(one.values, one.t1 - one.t0)):
            return Event(one.values, one.t0, one.t1, PassedFilter(stream, one))
        return None

    def rights(self, stream: Next | Fold) -> Rights:
        found = self._rights.get(id(stream))
        if found is None:
            condition = stream.condition if isinstance(stream, Next) else stream.chooses
            found = self._rights[id(stream)] = Rights(self.all(stream.right), condition)
        return found

    # ------------------------------------------------------------ NEXT

    def partners(self, stream: Next, left: Event) -> list[Event]:
        """Returns the right events that satisfy the condition and end first, whatever the window."""
        scope = ValueScope(left.values, 0)
        return self._first(
            self.rights(stream).after(left.t1, scope),
            lambda one: condition_holds(stream.condition, pair_scope(left, one)),
        )

    def followed(self, stream: Next, left: Event) -> list[Event]:
        partners = self.partners(stream, left)
        return [join_events(stream, left, one) for one in partners if is_within(stream, left, one)]

    def _first(self, candidates: Iterator[Event], fits: Callable[[Event], bool]) -> list[Event]:
        """Returns the fitting candidates that end first. `candidates` are in order of t1."""
        for _, simultaneous in groupby(candidates, key=lambda one: one.t1):
            found = []
            for one in simultaneous:
                self.take(1)
                if fits(one):
                    found.append(one)
            if found:
                return found
        return []

    # ------------------------------------------------------------ FOLD

    def runs(self, stream: Fold, first: Event) -> list[Event]:
        found: list[Event] = []
        current = [Folded(stream, first, ())]
        while current:
            current = [more for run in current for more in self.longer(stream, run)]
            current = [run for run in distinct_runs(current) if is_within(stream, first, run.latest)]
            found += (run_event(run) for run in current)
        return found

    def chosen(self, stream: Fold, run: Folded) -> list[Event]:
        """Returns the right events that would continue a run: the earliest that qualify."""
        scope = ValueScope(run.first.values, 0, None, run.values)
        return self._first(
            self.rights(stream).after(run.latest.t1, scope),
            lambda one: condition_holds(stream.chooses, run_scope(run, one)),
        )

    def longer(self, stream: Fold, run: Folded) -> Iterator[Folded]:
        for one in self.chosen(stream, run):
            scope = run_scope(run, one)
            if condition_holds(stream.continues, scope):
                yield lengthened(run, one)

    # ------------------------------------------------------------ AGGREGATE

    def together(self, stream: Aggregate, t1: int | None = None) -> list[Event]:
        """Returns the events of AGGREGATE, optionally only those at `t1`."""
        groups: dict[tuple[Plain, ...], list[Event]] = {}
        for one in self.all(stream.source):
            self.take(1)
            groups.setdefault(tuple([one.values[name] for name in stream.by]), []).append(one)
        found: list[Event] = []
        for key, events in groups.items():
            times = [one.t1 for one in events]
            for end in [t1] if t1 is not None else dict.fromkeys(times):
                last = bisect_right(times, end)
                first = bisect_right(times, end - (1 if stream.over is None else stream.over))
                if last and times[last - 1] == end:
                    self.take(last - first)
                    found.append(_group_event(stream, key, tuple(events[first:last])))
        return found


class Rights:
    """The right events of NEXT or FOLD in order of t1, hashed by a value that the condition requires."""

    def __init__(self, events: Sequence[Event], condition: EventCondition) -> None:
        self.events = events
        self._equality = next(_equalities(condition), None)
        self._times = [one.t1 for one in events]
        self._by_key: dict[Plain, list[int]] = {}
        if self._equality is not None:
            for place, one in enumerate(events):
                key = self._key(self._equality[1], ValueScope({}, 0, one.values))
                if key is not None:
                    self._by_key.setdefault(key, []).append(place)

    def after(self, time: int, scope: ValueScope) -> Iterator[Event]:
        """Yields events that begin after a time, in order of t1; may omit those that fail the condition. `scope` has
        the other side."""
        first = bisect_right(self._times, time)
        places: Iterable[int] = range(first, len(self.events))
        if self._equality is not None:
            with_key = self._by_key.get(self._key(self._equality[0], scope), [])
            places = with_key[bisect_right(with_key, first - 1) :]
        return (one for one in map(self.events.__getitem__, places) if one.t0 > time)

    def _key(self, value: Value, scope: ValueScope) -> Plain:
        found = evaluate_value(value, scope)
        return found if self._are_texts else as_number(found)

    @property
    def _are_texts(self) -> bool:
        assert self._equality is not None, "only then is there a key"
        return all(_is_text(value) for value in self._equality)


def apply_select(stream: Select, one: Event) -> Event:
    scope = ValueScope(one.values, one.t1 - one.t0)
    values = {name: evaluate_value(value, scope) for name, value in stream.items}
    return Event(values, one.t0, one.t1, Selected(one))


def join_events(stream: Next, left: Event, right: Event) -> Event:
    sides = {"left": left.values, "right": right.values}
    names = zip(stream.schema, stream.names, strict=True)
    values = {name: sides[part][own] for (name, _), (part, own) in names}
    return Event(values, left.t0, right.t1, Followed(stream, left, right))


def lengthened(run: Folded, one: Event) -> Folded:
    scope = run_scope(run, one)
    new = {name: evaluate_value(value, scope) for name, value in run.by.sets}
    values = {**run.values, **one.values, **new}
    return Folded(run.by, run.first, (*run.steps, (one, values)))


def distinct_runs(runs: Iterable[Folded]) -> list[Folded]:
    """Returns runs from one event, deduplicated by latest event and values."""
    return list({(id(run.latest), *run.values.values()): run for run in runs}.values())


def run_event(run: Folded) -> Event:
    sides: dict[str, AttributeValues] = {"left": run.first.values, "latest": run.values}
    names = zip(run.by.schema, run.by.names, strict=True)
    values = {name: sides[part][own] for (name, _), (part, own) in names}
    return Event(values, run.first.t0, run.latest.t1, run)


def pair_scope(left: Event, right: Event) -> ValueScope:
    return ValueScope(left.values, right.t1 - left.t0, right.values, None, right.t0 - left.t1)


def run_scope(run: Folded, one: Event) -> ValueScope:
    return ValueScope(run.first.values, one.t1 - run.first.t0, one.values, run.values, one.t0 - run.latest.t1)


def is_within(stream: Next | Fold, left: Event, right: Event) -> bool:
    return stream.within is None or right.t1 - left.t0 <= stream.within


def _group_event(stream: Aggregate, key: tuple[Plain, ...], window: tuple[Event, ...]) -> Event:
    scopes = [ValueScope(one.values, one.t1 - one.t0) for one in window]
    values: dict[str, Plain] = dict(zip(stream.by, key, strict=True))
    values |= {name: aggregate_group(one, scopes) for name, one in stream.items}
    return Event(values, window[-1].t1, window[-1].t1, AggregatedEvents(stream, window))


def _may_repeat(stream: Stream) -> bool:
    match stream:
        case Events():
            return False
        case Select(source=source) | Filter(source=source) | Aggregate(source=source):
            return _may_repeat(source)
        case Next(left=left, right=right):
            return _may_repeat(left) or _may_repeat(right)
        case Union() | Fold():
            return True


def _at(events: Iterable[Event], t0: int | None, t1: int | None) -> Iterator[Event]:
    return (one for one in events if t0 in (None, one.t0) and t1 in (None, one.t1))


def _equalities(condition: EventCondition) -> Iterator[tuple[Value, Value]]:
    """Yields the necessary equalities between values of the left and of the right side."""
    for one in condition.args if isinstance(condition, AllOf) else (condition,):
        if isinstance(one, Comparison) and one.op == "=":
            sides = [set(_parts(value)) for value in (one.left, one.right)]
            for (value, mine), (other, theirs) in (
                ((one.left, sides[0]), (one.right, sides[1])),
                ((one.right, sides[1]), (one.left, sides[0])),
            ):
                if mine and mine <= {"left", "latest"} and theirs == {"right"}:
                    yield value, other


def is_of_right(condition: EventCondition) -> bool:
    """Whether a condition of NEXT or FOLD tests the right event alone, like a FILTER."""
    match condition:
        case AllOf(args=args) | AnyOf(args=args):
            return bool(args) and all(map(is_of_right, args))
        case Comparison(left=left, right=right):
            values: tuple[Value, ...] = left, right
        case TextTest(args=values):
            pass
        case NullTest(value=value):
            values = (value,)
    return {part for value in values for part in _parts(value)} == {"right"}


def _parts(value: Value) -> Iterator[str]:
    """Yields the sides a value depends on; "?" for DUR and GAP, which depend on both."""
    match value:
        case Attribute(part=part):
            yield part
        case Function(args=args):
            for arg in args:
                yield from _parts(arg)
        case Arithmetic(left=left, right=right):
            yield from _parts(left)
            yield from _parts(right)
        case Constant():
            return
        case _:
            yield "?"


def _is_text(value: Value) -> bool:
    return isinstance(value, Attribute | Function) and value.kind == "string"


_SIGN = {"left": "$1", "latest": "$", "right": "$2"}


@dataclass(frozen=True, slots=True)
class NamedValue:
    """An attribute, DUR or GAP in a condition, with its value; DUR and GAP in seconds."""

    name: str
    value: Plain

    @property
    def text(self) -> str:
        return display_value(self.value, is_time=self.name in ("DUR", "GAP"))


Said = tuple[str | NamedValue, ...]
"""A condition as text in parts, with event values in place of attributes."""


def said(condition: EventCondition, operator: Stream, scope: ValueScope) -> Said:
    found: list[NamedValue] = []

    def named(name: str, value: Value) -> str:
        found.append(NamedValue(name, evaluate_value(value, scope)))
        return placeholder(len(found) - 1)

    return with_placeholders(_ConditionText(_common(condition, operator), named).of(condition), found)


def operator_condition_text(condition: EventCondition, operator: Stream) -> str:
    return _ConditionText(_common(condition, operator), lambda name, _: name).of(condition)


def _common(condition: EventCondition, operator: Stream) -> frozenset[str]:
    """Returns the attributes that both sides have, and which therefore need a $1 or $2."""
    if not isinstance(operator, Next | Fold) or is_of_right(condition):
        return frozenset()
    return frozenset(dict(operator.left.schema)) & frozenset(dict(operator.right.schema))


def values_text(found: Said) -> str:
    """Returns the values in a condition: `score is 5, project is "tarbox"`."""
    named = dict.fromkeys(part for part in found if isinstance(part, NamedValue))
    return ", ".join(f"{one.name} is {one.text}" for one in named) or "it never holds"


def conjuncts(condition: EventCondition) -> tuple[EventCondition, ...]:
    return condition.args if isinstance(condition, AllOf) else (condition,)


def display_value(value: Plain, *, is_time: bool = False) -> str:
    if isinstance(value, str):
        return f'"{truncate_value(value)}"'
    if is_time and value is not None:
        return duration_text(round(value * SECOND))
    return as_text(value) or "NULL"


def stream_text(stream: Stream) -> str:
    """Returns a short name for a stream: `Advisory`, `Advisory NEXT Release`."""
    match stream:
        case Events(stream=name):
            return name
        case Filter(source=source) | Select(source=source):
            return stream_text(source)
        case Aggregate(source=source):
            return f"AGGREGATE of {stream_text(source)}"
        case Next(left=left, right=right):
            return f"{stream_text(left)} NEXT {_right_text(right)}"
        case Fold(left=left, right=right):
            return f"{stream_text(left)} FOLD {_right_text(right)}"
        case Union(left=left, right=right):
            return f"{stream_text(left)} UNION {_right_text(right)}"


def _right_text(stream: Stream) -> str:
    text = stream_text(stream)
    return f"({text})" if isinstance(stream, Next | Fold | Union) else text


@dataclass(frozen=True)
class _ConditionText:
    """Formats conditions. Names `common` to both sides are qualified; `named` formats an attribute, DUR or GAP."""

    common: frozenset[str]
    named: Callable[[str, Value], str]

    def of(self, condition: EventCondition) -> str:
        match condition:
            case AllOf(args=args) | AnyOf(args=args):
                return (" AND " if isinstance(condition, AllOf) else " OR ").join(map(self._inner, args))
            case Comparison(op=op, left=left, right=right):
                times = any(isinstance(side, Duration | Gap) for side in (left, right))
                return f"{self._side(left, times)} {op} {self._side(right, times)}"
            case TextTest(name=name, args=args, negated=negated):
                return f"{'NOT ' if negated else ''}{name}({', '.join(map(self._value, args))})"
            case NullTest(value=value, negated=negated):
                return f"{self._value(value)} IS {'NOT ' if negated else ''}NULL"

    def _inner(self, condition: EventCondition) -> str:
        is_several = isinstance(condition, AllOf | AnyOf) and len(condition.args) > 1
        return f"({self.of(condition)})" if is_several else self.of(condition)

    def _side(self, value: Value, is_time: bool) -> str:
        if is_time and isinstance(value, Constant) and isinstance(value.value, float):
            return format_window(round(value.value * SECOND))
        return self._value(value)

    def _value(self, value: Value) -> str:
        match value:
            case Constant(value=constant):
                return '"' + constant.replace('"', '""') + '"' if isinstance(constant, str) else as_text(constant) or ""
            case Attribute(part=part, name=name):
                return self.named(f"{_SIGN[part]}.{name}" if part == "latest" or name in self.common else name, value)
            case Duration():
                return self.named("DUR", value)
            case Gap():
                return self.named("GAP", value)
            case Arithmetic(op=op, left=left, right=right):
                return f"{self._operand(left)} {op} {self._operand(right)}"
            case Function(name=name, args=args):
                name, _, literal = name.partition(" ")
                return f"{name}({', '.join([*map(self._value, args), *([literal] if literal else [])])})"
            case Parameter():
                raise AssertionError("a statement by itself has no parameters")

    def _operand(self, value: Value) -> str:
        return f"({self._value(value)})" if isinstance(value, Arithmetic) else self._value(value)


Docs = tuple[int, ...]
"""Document numbers, ascending."""

MatchBindings = Mapping[str, Sequence[Event]]
"""Maps each variable or letter to its events in order of time."""

SHOWN = 3
"""Maximum number of attributes shown of an event."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The result for a stream: its `events`, and the `stages`, the last of them empty if there is no event.

    `found` counts the documents with an event; `rank` says how far they got: the height of the operator that nothing
    passes and its stage. `near` are events in the way, and `without` documents that have no event. Of a PATTERN,
    `match` has the events by variable, and `starts` counts the events at which a match begins, if no documents are
    given.
    """

    events: Sequence[Event]
    stages: tuple[FunnelStage, ...]
    found: int
    rank: tuple[int, ...] = ()
    near: tuple[Event, ...] = ()
    without: Docs = ()
    match: MatchBindings | None = None
    starts: int = 0

    @staticmethod
    def at_match(match: MatchBindings, stages: tuple[FunnelStage, ...], found: int, starts: int = 0) -> Looked:
        events = [one for some in match.values() for one in some]
        return Looked(events, stages, found, match=match, starts=starts)

    def with_events(self, events: Sequence[Event]) -> Looked:
        return replace(self, events=events)


class Stages:
    """The stages of an operator, after those of its inputs."""

    def __init__(self, source: Looked, height: int) -> None:
        self.source, self._height = source, height
        self._stages = list(source.stages)

    @property
    def _own(self) -> int:
        return len(self._stages) - len(self.source.stages)

    def add(self, stage: FunnelStage) -> int:
        self._stages.append(stage)
        return stage.found

    def failed(self, message: str = "", hint: str = "", near: Sequence[Event] = (), part: int = 0) -> Looked:
        """Returns the result if nothing passes the last stage, which may already have a message. `part` ranks failures
        within it."""
        if message:
            self._stages[-1] = self._stages[-1].told(message, hint)
        rank = self._height, self._own, part
        return Looked([], tuple(self._stages), self.source.found, rank, tuple(near))

    def filter(
        self, condition: EventCondition, operator: Stream, events: Sequence[Event], scope: Callable[[Event], ValueScope]
    ) -> list[Event]:
        """Adds a condition on single events, at least one, and returns those that pass."""
        passed = [one for one in events if condition_holds(condition, scope(one))]
        stage = FunnelStage("filtered", operator_condition_text(condition, operator), len(passed), "events")
        if not passed:
            more = f", of the last of {len(events):,} events" if len(events) > 1 else ""
            stage = stage.told(f"{values_text(said(condition, operator, scope(events[-1])))}{more}")
        self.add(stage)
        return passed

    def done(self, events: Sequence[Event]) -> Looked:
        return Looked(events, tuple(self._stages), self.source.found, (self._height, self._own))


def both(left: Looked, right: Looked) -> Looked:
    """Combines the results of two inputs: no events unless both have some."""
    found = left.found + right.found
    for side in (left, right):
        if not side.events:
            return replace(side, found=found)
    return Looked([], left.stages + right.stages, found, ())


def furthest_trace(ways: Iterable[Looked]) -> Looked:
    """Returns the first result that has events, else the one that got furthest."""
    return max(ways, key=lambda one: (bool(one.events), one.found, one.rank))


def height(stream: Stream) -> int:
    match stream:
        case Events():
            return 0
        case Select(source=source) | Filter(source=source) | Aggregate(source=source):
            return 1 + height(source)
        case Union(left=left, right=right) | Next(left=left, right=right) | Fold(left=left, right=right):
            return 1 + max(height(left), height(right))


def event_text(event: Event) -> str:
    """Returns an event in short: `Release (project "tarbox", version "0.9.4")`."""
    one = event
    while not isinstance(one.made, SourceEvent) and len(one.parts) == 1:
        (one,) = one.parts
    name = one.made.stream if isinstance(one.made, SourceEvent) else "the event"
    values = ", ".join(f"{name} {display_value(value)}" for name, value in list(event.values.items())[:SHOWN])
    return f"{name} ({values})" if values else name
