"""Computes what streams of event queries are over given events, each with how it came about, as the operators say."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from mmqjp.explain.retrace.event import (
    Event,
    Filtered,
    Folded,
    Followed,
    Plain,
    Selected,
    Together,
    Values,
    identity,
)
from mmqjp.explain.retrace.values import Scope, aggregated, evaluated, holds, number_of
from xscl.algebra.events import (
    Aggregate,
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Condition,
    Constant,
    Events,
    Filter,
    Fold,
    Function,
    Next,
    NullTest,
    Select,
    Stream,
    TextTest,
    Union,
    Value,
)

GivenEvents = Callable[[str], Sequence[Event]]
"""Returns the events of a stream that is defined or published, given its name, in the order of t1."""

Take = Callable[[int], object]
"""Is told of steps. May raise to end the work."""


class Trial:
    """Computes streams over given events. Each test of a condition is a step."""

    def __init__(self, given: GivenEvents, take: Take) -> None:
        self.all_given, self.take = given, take
        self._all: dict[int, list[Event]] = {}
        self._rights: dict[int, Rights] = {}

    def all(self, stream: Stream) -> list[Event]:
        """Returns the events of a stream in the order of t1."""
        found = self._all.get(id(stream))
        if found is None:
            found = self._all[id(stream)] = self.events(stream)
        return found

    def events(self, stream: Stream, t0: int | None = None, t1: int | None = None) -> list[Event]:
        """Returns the events of a stream in the order of t1: those that begin and end at these times, if they are
        given."""
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
                return [selected(stream, one) for one in self.events(source, t0, t1)]
            case Union(left=left, right=right):
                return [*self.events(left, t0, t1), *self.events(right, t0, t1)]
            case Next(left=left):
                return [one for first in self.events(left, t0) for one in self.followed(stream, first)]
            case Fold(left=left):
                return [one for first in self.events(left, t0) for one in self.runs(stream, first)]
            case Aggregate():
                return self.together(stream, t1)

    def filtered(self, stream: Filter, one: Event) -> Event | None:
        """Returns an event that passes a FILTER, or None if it does not."""
        self.take(1)
        if holds(stream.condition, Scope(one.values, one.t1 - one.t0)):
            return Event(one.values, one.t0, one.t1, Filtered(stream, one))
        return None

    def rights(self, stream: Next | Fold) -> Rights:
        """Returns the right events of an operator, as it looks for them."""
        found = self._rights.get(id(stream))
        if found is None:
            condition = stream.condition if isinstance(stream, Next) else stream.chooses
            found = self._rights[id(stream)] = Rights(self.all(stream.right), condition)
        return found

    # ------------------------------------------------------------ NEXT

    def partners(self, stream: Next, left: Event) -> list[Event]:
        """Returns the first right events for which the condition holds, whatever the window."""
        scope = Scope(left.values, 0)
        return self._first(
            self.rights(stream).after(left.t1, scope), lambda one: holds(stream.condition, pair_scope(left, one))
        )

    def followed(self, stream: Next, left: Event) -> list[Event]:
        """Returns what NEXT makes of a left event."""
        partners = self.partners(stream, left)
        return [followed(stream, left, one) for one in partners if is_within(stream, left, one)]

    def _first(self, candidates: Iterator[Event], fits: Callable[[Event], bool]) -> list[Event]:
        """Returns the candidates, which come in the order of t1, that fit and end first."""
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
        """Returns the runs that begin with a left event and are within the window."""
        found: list[Event] = []
        current = [Folded(stream, first, ())]
        while current:
            current = [more for run in current for more in self.longer(stream, run)]
            current = [run for run in distinct(current) if is_within(stream, first, run.latest)]
            found += (run_event(run) for run in current)
        return found

    def chosen(self, stream: Fold, run: Folded) -> list[Event]:
        """Returns the right events with which a run would go on: the first of those that are looked at."""
        scope = Scope(run.first.values, 0, None, run.values)
        return self._first(
            self.rights(stream).after(run.latest.t1, scope), lambda one: holds(stream.chooses, run_scope(run, one))
        )

    def longer(self, stream: Fold, run: Folded) -> Iterator[Folded]:
        """Yields a run with one more event, for each with which it goes on."""
        for one in self.chosen(stream, run):
            scope = run_scope(run, one)
            if holds(stream.continues, scope):
                yield lengthened(run, one)

    # ------------------------------------------------------------ AGGREGATE

    def together(self, stream: Aggregate, t1: int | None = None) -> list[Event]:
        """Returns the events of AGGREGATE: those at a time, if it is given."""
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
    """The right events of NEXT or FOLD in the order of t1, and by a value that the condition asks them to have."""

    def __init__(self, events: Sequence[Event], condition: Condition) -> None:
        self.events = events
        self._equality = next(_equalities(condition), None)
        self._times = [one.t1 for one in events]
        self._by_key: dict[Plain, list[int]] = {}
        if self._equality is not None:
            for place, one in enumerate(events):
                key = self._key(self._equality[1], Scope({}, 0, one.values))
                if key is not None:
                    self._by_key.setdefault(key, []).append(place)

    def after(self, time: int, scope: Scope) -> Iterator[Event]:
        """Yields events that begin after a time, in the order of t1: perhaps without such for which the condition does
        not hold. `scope` has the other side."""
        first = bisect_right(self._times, time)
        places: Iterable[int] = range(first, len(self.events))
        if self._equality is not None:
            with_key = self._by_key.get(self._key(self._equality[0], scope), [])
            places = with_key[bisect_right(with_key, first - 1) :]
        return (one for one in map(self.events.__getitem__, places) if one.t0 > time)

    def _key(self, value: Value, scope: Scope) -> Plain:
        found = evaluated(value, scope)
        return found if self._are_texts else number_of(found)

    @property
    def _are_texts(self) -> bool:
        assert self._equality is not None, "only then is there a key"
        return all(_is_text(value) for value in self._equality)


def selected(stream: Select, one: Event) -> Event:
    """Returns what SELECT makes of an event."""
    scope = Scope(one.values, one.t1 - one.t0)
    values = {name: evaluated(value, scope) for name, value in stream.items}
    return Event(values, one.t0, one.t1, Selected(one))


def followed(stream: Next, left: Event, right: Event) -> Event:
    """Returns an event of both."""
    sides = {"left": left.values, "right": right.values}
    names = zip(stream.schema, stream.names, strict=True)
    values = {name: sides[part][own] for (name, _), (part, own) in names}
    return Event(values, left.t0, right.t1, Followed(stream, left, right))


def lengthened(run: Folded, one: Event) -> Folded:
    """Returns a run with one more event."""
    scope = run_scope(run, one)
    new = {name: evaluated(value, scope) for name, value in run.by.sets}
    values = {**run.values, **one.values, **new}
    return Folded(run.by, run.first, (*run.steps, (one, values)))


def distinct(runs: Iterable[Folded]) -> list[Folded]:
    """Returns runs that begin with one event, each once: those with one latest event and equal values are one."""
    return list({(id(run.latest), *run.values.values()): run for run in runs}.values())


def run_event(run: Folded) -> Event:
    """Returns a run as an event."""
    sides: dict[str, Values] = {"left": run.first.values, "latest": run.values}
    names = zip(run.by.schema, run.by.names, strict=True)
    values = {name: sides[part][own] for (name, _), (part, own) in names}
    return Event(values, run.first.t0, run.latest.t1, run)


def pair_scope(left: Event, right: Event) -> Scope:
    """Returns what names mean in the condition of NEXT."""
    return Scope(left.values, right.t1 - left.t0, right.values, None, right.t0 - left.t1)


def run_scope(run: Folded, one: Event) -> Scope:
    """Returns what names mean in FOLD for a run and the event that may be next."""
    return Scope(run.first.values, one.t1 - run.first.t0, one.values, run.values, one.t0 - run.latest.t1)


def is_within(stream: Next | Fold, left: Event, right: Event) -> bool:
    """Returns whether it is not too long from the beginning of a left event to the end of a right one."""
    return stream.within is None or right.t1 - left.t0 <= stream.within


def _group_event(stream: Aggregate, key: tuple[Plain, ...], window: tuple[Event, ...]) -> Event:
    scopes = [Scope(one.values, one.t1 - one.t0) for one in window]
    values: dict[str, Plain] = dict(zip(stream.by, key, strict=True))
    values |= {name: aggregated(one, scopes) for name, one in stream.items}
    return Event(values, window[-1].t1, window[-1].t1, Together(stream, window))


def _may_repeat(stream: Stream) -> bool:
    """Returns whether one event of a stream may be made in several ways."""
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


def _equalities(condition: Condition) -> Iterator[tuple[Value, Value]]:
    """Yields the equalities that have to hold between a value of the left side and one of the right side."""
    for one in condition.args if isinstance(condition, AllOf) else (condition,):
        if isinstance(one, Comparison) and one.op == "=":
            sides = [set(_parts(value)) for value in (one.left, one.right)]
            for (value, mine), (other, theirs) in (
                ((one.left, sides[0]), (one.right, sides[1])),
                ((one.right, sides[1]), (one.left, sides[0])),
            ):
                if mine and mine <= {"left", "latest"} and theirs == {"right"}:
                    yield value, other


def is_of_right(condition: Condition) -> bool:
    """Returns whether a condition of NEXT or FOLD is about the right event alone, as a FILTER of it."""
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
    """Yields the sides that a value is of; "?" for DUR and GAP, which are of no side alone."""
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
