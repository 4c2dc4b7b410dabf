"""The step-by-step search for matches of a PATTERN that contain given documents. A partial match has the events of the
first variables, in order; each step adds an event to the last variable, if that is repeated, or to the next. Partial
matches that agree in all that matters later are followed once. Whole matches are tested for HAVING, negated events and
EARLIEST MAXIMAL, and the failure that gets furthest is kept."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from functools import partial as bound
from itertools import pairwise, product, takewhile
from typing import NamedTuple

from feeds.documents import iso_utc
from mmqjp.explain.automaton import STRATEGIES, component_text, referent_text
from mmqjp.explain.retrace.stages import (
    GivenEvents,
    MatchBindings,
    display_value,
    event_text,
    operator_condition_text,
    said,
    values_text,
)
from mmqjp.explain.retrace.values import (
    Event,
    Plain,
    SourceEvent,
    ValueScope,
    aggregate_group,
    before,
    condition_holds,
    evaluate_value,
)
from mmqjp.explain.terms import FunnelStage, duration_text, format_window
from xpath_stage.binder import Take
from xscl.algebra.events import (
    AllOf,
    Attribute,
    EventCondition,
    Length,
    Names,
    NearPattern,
    OfItem,
    OfItems,
    Pattern,
    Referent,
    Value,
    Variable,
    WhereConjunct,
    map_leaves,
)

_EACH = ("each", "previous")


class BoundCondition:
    """A condition of a PATTERN, whose names refer to events of a match."""

    def __init__(self, pattern: Pattern, condition: EventCondition, names: Names) -> None:
        self._pattern, self._names = pattern, names
        self._texts = {name: referent_text(of, pattern.variables) for name, of in names}
        self.said = map_leaves(condition, self._renamed)
        """The condition with its names as in the statement."""
        self.variables = tuple(dict.fromkeys(of.variable for _, of in names))
        """The numbers of its variables."""

    def _renamed(self, leaf: Value) -> Value:
        return Attribute(leaf.part, self._texts[leaf.name], leaf.kind) if isinstance(leaf, Attribute) else leaf

    def scopes(self, match: MatchBindings, new: int | None = None) -> Iterator[ValueScope]:
        """Yields the values of the names for each combination of events, in order; of the variable `new`, only for its
        last event."""
        about = {one: self._places(match, one, is_new=one == new) for one in self.variables}
        variables = self._pattern.variables
        for places in product(*about.values()):
            at = dict(zip(about, places, strict=True))
            values = {self._texts[name]: _value(of, match[variables[of.variable].name], at) for name, of in self._names}
            yield ValueScope(values, 0)

    def failing(self, match: MatchBindings, new: int | None = None) -> ValueScope | None:
        """Returns the first scope where it is false; None if it holds."""
        return next((scope for scope in self.scopes(match, new) if not condition_holds(self.said, scope)), None)

    def _places(self, match: MatchBindings, variable: int, *, is_new: bool) -> range:
        """Returns the indexes of a variable's events that it is tested for; one if it does not use the variable."""
        count = len(match[self._pattern.variables[variable].name])
        if self._is_of_pairs(variable):
            return range(count - 1, count) if is_new else range(1, count)
        if any(isinstance(of, OfItem) and of.place == "every" for of in self._of(variable)):
            return range(count - 1, count) if is_new else range(count)
        return range(1)

    def _of(self, variable: int) -> list[Referent]:
        return [of for _, of in self._names if of.variable == variable]

    def _is_of_pairs(self, variable: int) -> bool:
        return any(
            of.earlier if isinstance(of, OfItems) else isinstance(of, OfItem) and of.place in _EACH
            for of in self._of(variable)
        )

    # ------------------------------------------------------------ what matters of partial matches

    def signature(self, match: MatchBindings) -> Iterator[Hashable]:
        """Yields what may still matter to the condition: partial matches with equal signatures stay equal, whatever is
        added to both."""
        for variable in self.variables:
            events = match.get(self._pattern.variables[variable].name, ())
            yield from (_kept(of, events) for of in self._of(variable) if events)
            if events and self._is_of_pairs(variable):
                yield self._pairs(variable, events)

    def _pairs(self, variable: int, events: Sequence[Event]) -> Hashable:
        of = self._of(variable)
        if any(isinstance(one, OfItems) for one in of):
            return tuple(map(id, events))
        names = self._item_names(variable)
        values = [tuple(one.values[name] for name in names) for one in events]
        return frozenset(pairwise(values))

    def _item_names(self, variable: int) -> tuple[str, ...]:
        return tuple(sorted({one.name for one in self._of(variable) if isinstance(one, OfItem)}))

    @cached_property
    def is_of_steps(self) -> bool:
        """Whether it concerns one variable alone, and there each event, or an event and its predecessor."""
        places = {of.place if isinstance(of, OfItem) else "" for _, of in self._names}
        return len(self.variables) == 1 and places <= {*_EACH, "every"}


def conjunct_of(pattern: Pattern, one: WhereConjunct) -> BoundCondition:
    return BoundCondition(pattern, one.condition, one.names)


def having_of(pattern: Pattern) -> list[BoundCondition]:
    having = pattern.having.args if isinstance(pattern.having, AllOf) else (pattern.having,)
    return [BoundCondition(pattern, one, pattern.having_names) for one in having]


def _kept(of: Referent, events: Sequence[Event]) -> Hashable:
    match of:
        case Length():
            return len(events)
        case OfItems(aggregated=one):
            scopes = [ValueScope(event.values, 0) for event in events]
            if one.name in ("min", "max", "count"):
                return aggregate_group(one, scopes)
            values = [tuple(evaluate_value(arg, scope) for arg in one.args) for scope in scopes]
            return tuple(sorted(map(repr, values)))
        case OfItem(place="every", name=name):
            return frozenset(event.values[name] for event in events)
        case OfItem(place=place, name=name):
            return events[0 if place in ("only", "first") else -1].values[name]


def _value(of: Referent, events: Sequence[Event], at: Mapping[int, int]) -> Plain:
    match of:
        case Length():
            return float(len(events))
        case OfItems(aggregated=one, earlier=earlier):
            some = events[: at[of.variable]] if earlier else events
            return aggregate_group(one, [ValueScope(event.values, 0) for event in some])
        case OfItem(place=place, name=name):
            here = at[of.variable]
            which = {"only": 0, "first": 0, "last": -1, "each": here, "previous": here - 1, "every": here}[place]
            return events[which].values[name]


ORDER, EQUAL, WINDOW, FIRST_CONDITION, STRATEGY = 0, 1, 2, 3, 1_000
"""The tests of a next event, in this order."""

TOGETHER, HAVING, ABSENT, MAXIMAL, FOUND = 1_000, 1_001, 2_000, 2_001, 2_002
"""The tests of a match with a complete last variable, after those from FIRST_CONDITION."""

Rank = tuple[int, int, int, int]
"""How far a partial match gets: its documents, those of the failing event included; its variables; the number of the
failed test; and minus its duration."""


@dataclass(frozen=True, slots=True)
class MatchFailure:
    """Why a partial match fails, perhaps with a next `event`. `passed` are the stages before."""

    rank: Rank
    stage: FunnelStage
    near: tuple[Event, ...]


class Furthest:
    """Keeps the failure that got furthest, and how far the matches from each first event got."""

    def __init__(self) -> None:
        self.best: MatchFailure | None = None
        self.reached: dict[tuple[int, int], set[int]] = {}
        """Maps numbers of variables and tests to the ids of the first events whose matches got there."""

    def fails(self, rank: Rank, stage: Callable[[], FunnelStage], near: Sequence[Event]) -> None:
        if self.may_be_better(rank):
            self.best = MatchFailure(rank, stage(), tuple(near))

    def may_be_better(self, rank: Rank) -> bool:
        return self.best is None or rank > self.best.rank

    def comes(self, first: Event, variables: int, test: int = 0) -> None:
        self.reached.setdefault((variables, test), set()).add(id(first))

    def count(self, variables: int, *tests: int) -> int:
        """Counts first events whose matches reached this number of variables and one of the tests."""
        return len(set[int]().union(*(self.reached.get((variables, test), ()) for test in tests or (0,))))


def condition_stage(
    pattern: Pattern, asked: BoundCondition, scope: ValueScope, of: Event | None, kind: str = ""
) -> FunnelStage:
    operator = pattern.variables[0].source
    text = values_text(said(asked.said, operator, scope))
    whose = "" if of is None else f", of {event_text(of)}"
    part = f"{kind}{operator_condition_text(asked.said, operator)}"
    return FunnelStage("condition", part, 0, "events").told(f"{text}{whose}")


def covered_by(match: MatchBindings, covers: Callable[[Event], frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*(covers(one) for events in match.values() for one in events))


def as_match(names: Sequence[str], bound: Sequence[Sequence[Event]]) -> Mapping[str, Sequence[Event]]:
    return dict(zip(names, bound, strict=False))


class Fault(NamedTuple):
    """What is wrong with a whole match: the test, the stage, and the events in the way."""

    test: int
    stage: FunnelStage
    near: tuple[Event, ...]


class Whole:
    def __init__(self, pattern: Pattern, given: GivenEvents, take: Take) -> None:
        self._pattern, self._given, self._take = pattern, given, take
        self._conjuncts = [conjunct_of(pattern, one) for one in pattern.conjuncts]
        self.having = having_of(pattern)
        self.kills: Mapping[int, list[BoundCondition]] = {
            at: [conjunct_of(pattern, kill) for kill in pattern.kills if kill.variable == at]
            for at, one in enumerate(pattern.variables)
            if one.negated
        }
        self._positive = [one for one in pattern.variables if not one.negated]

    def fault(self, match: MatchBindings) -> Fault | None:
        """Returns why a match that satisfies WHERE is none: HAVING, or an event that must not occur."""
        for asked in self.having:
            self._take(1)
            if (scope := asked.failing(match)) is not None:
                stage = condition_stage(self._pattern, asked, scope, None, "HAVING ")
                return Fault(HAVING, stage, ())
        for at in self.kills:
            if (killing := next(self._killing(match, at), None)) is not None:
                what = f"{event_text(killing)} came, at {iso_utc(killing.t1)}"
                stage = FunnelStage("absent", component_text(self._pattern.variables[at]), 0, "events").told(what)
                return Fault(ABSENT, stage, (killing,))
        return None

    def _killing(self, match: MatchBindings, at: int) -> Iterator[Event]:
        variable = self._pattern.variables[at]
        groups = [[one for of in self._of_group(group) for one in match[of]] for group in range(self._pattern.groups)]
        every = [one for some in groups for one in some]
        t0, t1, first = min(one.t0 for one in every), max(one.t1 for one in every), every[0]
        for one in self._given(variable.source.stream):
            self._take(1)
            behind = groups[variable.group - 1] if variable.group else ()
            ahead = groups[variable.group] if variable.group < len(groups) else ()
            if not (all(before(other, one) for other in behind) and all(before(one, other) for other in ahead)):
                continue
            if not behind and not self._fits(one.t0, t1):
                continue
            if not ahead and not self._fits(t0, one.t1):
                continue
            killed = {**match, variable.name: (one,)}
            if self.is_alike(one, first) and all(asked.failing(killed) is None for asked in self.kills[at]):
                yield one

    def _of_group(self, group: int) -> list[str]:
        return [one.name for one in self._positive if one.group == group]

    def _fits(self, t0: int, t1: int) -> bool:
        return self._pattern.within is None or t1 - t0 <= self._pattern.within

    def is_alike(self, one: Event, first: Event) -> bool:
        return all(one.values[key] is not None and one.values[key] == first.values[key] for key in self._pattern.keys)

    # ------------------------------------------------------------ EARLIEST MAXIMAL

    def best(self, match: MatchBindings) -> tuple[MatchBindings, Event | None]:
        """Returns the match that EARLIEST MAXIMAL keeps, reached step by step from this one, and the event of the last
        step."""
        last: Event | None = None
        while True:
            better = next(((one, by) for one, by in self._changed(match) if self._is_match(one)), None)
            if better is None:
                return match, last
            match, last = better

    def _changed(self, match: MatchBindings) -> Iterator[tuple[MatchBindings, Event]]:
        used = {id(one) for events in match.values() for one in events}
        begin = min(_order(one) for events in match.values() for one in events)
        for variable in self._positive:
            events = match[variable.name]
            for one in self._given(variable.source.stream):
                if id(one) in used or _order(one) <= begin:
                    continue
                if _order(one) < _order(events[0]):
                    yield {**match, variable.name: (one, *events[1:])}, one
                if variable.kleene:
                    yield {**match, variable.name: tuple(sorted((*events, one), key=_order))}, one

    def _is_match(self, match: MatchBindings) -> bool:
        """Whether bindings satisfy all but the strategy."""
        self._take(1)
        every = [one for events in match.values() for one in events]
        if not self._fits(min(one.t0 for one in every), max(one.t1 for one in every)):
            return False
        if not all(self.is_alike(one, every[0]) for one in every):
            return False
        for events in match.values():
            if not all(before(one, other) for one, other in pairwise(events)):
                return False
        for group in range(1, self._pattern.groups):
            behind = [one for of in self._of_group(group - 1) for one in match[of]]
            ahead = [one for of in self._of_group(group) for one in match[of]]
            if max(one.t1 for one in behind) >= min(one.t0 for one in ahead):
                return False
        self._take(len(self._conjuncts))
        return all(asked.failing(match) is None for asked in self._conjuncts) and self.fault(match) is None


def _order(event: Event) -> tuple[int, tuple[object, ...]]:
    made = event.made
    assert isinstance(made, SourceEvent), "a pattern reads streams"
    return event.t1, (made.stream, made.source, made.nodes)


def known_at(pattern: Pattern | NearPattern, match: MatchBindings) -> int:
    every = [one for events in match.values() for one in events]
    if isinstance(pattern, Pattern) and pattern.is_late and pattern.within is not None:
        return min(one.t0 for one in every) + pattern.within
    return max(one.t1 for one in every)


@dataclass(frozen=True, slots=True)
class Partial:
    """A partial match: the events of its variables, and the documents they derive from."""

    bound: tuple[tuple[Event, ...], ...]
    covered: frozenset[int]

    @property
    def first(self) -> Event:
        return self.bound[0][0]

    @property
    def last(self) -> Event:
        return self.bound[-1][-1]

    def events(self) -> Iterator[Event]:
        for some in self.bound:
            yield from some

    def span_with(self, one: Event) -> int:
        every = [*self.events(), one]
        return max(other.t1 for other in every) - min(other.t0 for other in every)

    def with_event(self, one: Event, at: int, covers: frozenset[int]) -> Partial:
        own = (*self.bound[at], one) if at < len(self.bound) else (one,)
        return Partial((*self.bound[:at], own), self.covered | covers)


class MatchSearch:
    """Searches for a match that contains documents numbered from 0; `covers` returns those of an event. Variables take
    events one after the other, those of a SET in any order of time."""

    def __init__(
        self,
        pattern: Pattern,
        given: GivenEvents,
        covers: Callable[[Event], frozenset[int]],
        documents: int,
        take: Take,
    ) -> None:
        self.pattern, self.given, self.covers, self.take = pattern, given, covers, take
        self.wanted = frozenset(range(documents))
        self.numbers = [at for at, one in enumerate(pattern.variables) if not one.negated]
        """The numbers of the variables that take events."""
        self.positive = [pattern.variables[at] for at in self.numbers]
        self.names = [one.name for one in self.positive]
        self.whole = Whole(pattern, given, take)
        self.asked = [(conjunct_of(pattern, one), one) for one in pattern.conjuncts]
        self.furthest = Furthest()
        self.better: Event | None = None
        """An event of a match that EARLIEST MAXIMAL keeps instead of one of all documents."""
        self._known = set[Hashable]()
        self._lasting = [asked for asked, one in self.asked if not _is_done(asked, one)]
        self._lasting += [*self.whole.having, *(asked for kills in self.whole.kills.values() for asked in kills)]
        self.named = [[one for one in self.events(at) if covers(one)] for at in range(len(self.positive))]
        """For each variable, the events of its stream that derive from the documents."""
        self._at_once = max((len(covers(one)) for some in self.named for one in some), default=1)

    def variable(self, at: int) -> Variable:
        return self.positive[at]

    def events(self, at: int) -> Sequence[Event]:
        return self.given(self.variable(at).source.stream)

    def match(self, partial: Partial) -> MatchBindings:
        return as_match(self.names, partial.bound)

    def covered(self, match: MatchBindings) -> frozenset[int]:
        return frozenset[int]().union(*(self.covers(one) for some in match.values() for one in some))

    def run(self) -> MatchBindings | None:
        """Returns a match of all documents that is output; None if there is none. Without documents, visits all
        matches."""
        waiting = list(self.steps(None))
        while waiting:
            partial = waiting.pop()
            if self._is_known(partial):
                continue
            self.furthest.comes(partial.first, len(partial.bound))
            if len(partial.bound) == len(self.positive) and self._is_whole(partial) and self.wanted:
                match, by = self.match(partial), None
                if self.pattern.maximal:
                    match, by = self.whole.best(match)
                if by is None or self.wanted <= self.covered(match):
                    return match
                self.better = self.better or by
            waiting += self.steps(partial)
        return None

    # ------------------------------------------------------------ a further event

    def steps(self, partial: Partial | None) -> Iterator[Partial]:
        """Yields a partial match with one event more; those of one event, given None."""
        if partial is None:
            yield from self._to(None, 0, None)
            return
        at = len(partial.bound) - 1
        nexts = [at] if self.variable(at).kleene else []
        nexts += [at + 1] if at + 1 < len(self.positive) else []
        blocking = self._blocking(partial, nexts[0]) if nexts else None
        for to in nexts:
            yield from self._to(partial, to, blocking)

    def _to(self, partial: Partial | None, to: int, blocking: Event | None) -> Iterator[Partial]:
        comes = False
        for one in self._candidates(partial, to):
            self.take(1)
            comes = True
            if not self._is_ok(partial, one, to):
                is_last = partial is not None and self._is_last(partial, one)
            elif is_last := blocking is not None and blocking.t1 < one.t1:
                self._tell_blocked(self.rank(partial, one, to, STRATEGY), blocking)
            else:
                more = self._with(partial, one, to)
                if self._may_have_all(more):
                    yield more
            if is_last and partial is not None and not self._misses(partial, one):
                break  # no later one is better
        if partial is not None:
            self._tell_order(partial, to, comes=comes)

    def _with(self, partial: Partial | None, one: Event, to: int) -> Partial:
        if partial is None:
            return Partial(((one,),), self.covers(one))
        return partial.with_event(one, to, self.covers(one))

    def _latest(self, partial: Partial | None, to: int) -> Event | None:
        """Returns the event that ends last of those that come before an event of a variable; None if there is none."""
        if partial is None:
            return None
        if not self.pattern.has_sets:
            return partial.last
        group = self.variable(to).group
        places = (place for place in range(len(partial.bound)) if place == to or self.variable(place).group < group)
        return max((one for place in places for one in partial.bound[place]), key=_t1, default=None)

    def _candidates(self, partial: Partial | None, to: int) -> Iterator[Event]:
        events, latest = self.events(to), self._latest(partial, to)
        used = set(map(id, partial.events())) if partial is not None and self.pattern.has_sets else ()
        first = 0 if latest is None else bisect_right(events, latest.t1, key=_t1)
        for place in range(first, len(events)):
            one = events[place]
            if id(one) not in used and (latest is None or before(latest, one)):
                yield one

    def _is_last(self, partial: Partial, one: Event) -> bool:
        """Whether later events are too far from the first one, as this event is, which fails."""
        return self._is_too_far(partial, one) and self.whole.is_alike(one, partial.first)

    def _is_too_far(self, partial: Partial, one: Event) -> bool:
        within = self.pattern.within
        return within is not None and one.t1 - partial.first.t0 > within

    def _misses(self, partial: Partial, one: Event) -> bool:
        missing = self.wanted - partial.covered
        return any(
            self.covers(other) & missing
            for at in range(len(partial.bound) - 1, len(self.positive))
            for other in self.named[at]
            if other.t1 >= one.t1
        )

    def _tell_order(self, partial: Partial, to: int, *, comes: bool) -> None:
        latest = self._latest(partial, to)
        if latest is None:
            return
        missing = self.wanted - partial.covered
        for one in self.named[to]:
            if self.covers(one) & missing and not before(latest, one):
                self.take(1)
                self.furthest.fails(self.rank(partial, one, to, ORDER), bound(self._early, latest, one, to), ())
        if not comes and to == len(partial.bound):
            rank = len(partial.covered), to, ORDER, partial.first.t0 - latest.t1
            what = f"no {component_text(self.variable(to))} begins after the end of {event_text(latest)}"
            self.furthest.fails(rank, lambda: self._missing_stage(to).told(what), ())

    def _early(self, latest: Event, one: Event, to: int) -> FunnelStage:
        return self._missing_stage(to).told(early_text(latest, one))

    def _missing_stage(self, at: int) -> FunnelStage:
        return FunnelStage("order", component_text(self.variable(at)), 0, "events")

    # ------------------------------------------------------------ which event may be next

    def _is_ok(self, partial: Partial | None, one: Event, at: int) -> bool:
        return (
            self._is_alike(partial, one, at)
            and self._is_near(partial, one, at)
            and self._holds(partial, one, at, self._tests(partial, one, at))
        )

    def _tests(
        self, partial: Partial | None, one: Event, at: int
    ) -> Iterator[tuple[BoundCondition, MatchBindings, int | None]]:
        is_first = partial is None or at == len(partial.bound)
        if partial is not None and is_first:
            whole = self.match(partial)
            yield from ((asked, whole, None) for asked in self._ends(partial))
        match, number = self.match(self._with(partial, one, at)), self.numbers[at]
        for asked, conjunct in self.asked:
            if self._is_of_step(asked, conjunct, at) and conjunct.phase == ("first" if is_first else "each"):
                yield asked, match, None if is_first else number

    def _ends(self, partial: Partial) -> Iterator[BoundCondition]:
        """Yields the conditions to test when the last variable of a partial match is complete."""
        at = len(partial.bound) - 1
        for asked, conjunct in self.asked:
            if self._last(asked) == at and not self._is_of_step(asked, conjunct, at):
                yield asked

    def _last(self, asked: BoundCondition) -> int:
        return max((self.numbers.index(one) for one in asked.variables), default=0)

    def _is_of_step(self, asked: BoundCondition, conjunct: WhereConjunct, at: int) -> bool:
        is_of_events = len(asked.variables) < 2 or not self.pattern.has_sets
        return self._last(asked) == at and is_of_events and conjunct.phase != "complete"

    # ------------------------------------------------------------ strategies

    def _blocking(self, partial: Partial, wanted: int) -> Event | None:
        """Returns the event that ends first of those a partial match cannot skip; `wanted` is the variable to fill
        next."""
        match self.pattern.strategy:
            case "any":
                return None
            case "next":
                near = takewhile(lambda one: not self._is_too_far(partial, one), self._candidates(partial, wanted))
                return next((one for one in near if self._is_taken(partial, one, wanted)), None)
        every = [one for name in self.pattern.streams for one in self._first_behind(partial, self.given(name))]
        return min(every, key=_t1, default=None)

    def _first_behind(self, partial: Partial, events: Sequence[Event]) -> Iterator[Event]:
        for place in range(bisect_right(events, partial.last.t1, key=_t1), len(events)):
            self.take(1)
            one = events[place]
            if before(partial.last, one) and (
                self.pattern.strategy == "strict" or self.whole.is_alike(one, partial.first)
            ):
                yield one
                return

    def _is_taken(self, partial: Partial, one: Event, at: int) -> bool:
        self.take(1)
        if not self.whole.is_alike(one, partial.first):
            return False
        for asked, match, new in self._tests(partial, one, at):
            self.take(1)
            if asked.failing(match, new) is not None:
                return False
        return True

    def _tell_blocked(self, rank: Rank, by: Event | None) -> None:
        assert by is not None, "it blocks"
        why = {
            "strict": "nothing may come in between",
            "partition": f"it is equal in {', '.join(self.pattern.keys)}",
            "next": "the match so far takes it",
        }[self.pattern.strategy]
        what = f"{event_text(by)} came before, at {iso_utc(by.t1)}, and {why}"
        stage = FunnelStage("strategy", STRATEGIES[self.pattern.strategy], 0, "events")
        self.furthest.fails(rank, lambda: stage.told(what), (by,))

    # ------------------------------------------------------------ which are followed

    def _may_have_all(self, partial: Partial) -> bool:
        missing = self.wanted - partial.covered
        if not missing:
            return True
        if not self._has_room(partial, len(missing)):
            return False
        is_open = not self.pattern.has_sets or self.variable(len(partial.bound) - 1).kleene
        later = [
            self.covers(one)
            for place in range(len(partial.bound) - is_open, len(self.positive))
            for one in self.named[place]
            if self.pattern.has_sets or before(partial.last, one)
        ]
        return missing <= frozenset[int]().union(*later)

    def _has_room(self, partial: Partial, missing: int) -> bool:
        rest = self.positive[len(partial.bound) :]
        if self.positive[len(partial.bound) - 1].kleene or any(one.kleene for one in rest):
            return True
        return missing <= len(rest) * self._at_once

    def _likeness(self, partial: Partial) -> Hashable:
        """Returns what matters later of a partial match besides condition signatures."""
        has_sets = self.pattern.has_sets
        if not has_sets and not self.whole.kills:
            return None
        groups: dict[int, tuple[int, int]] = {}
        shared = list[int]()
        rest = {one.source.stream for one in self.positive[len(partial.bound) - 1 :]}
        for place, some in enumerate(partial.bound):
            variable = self.variable(place)
            t0, t1 = groups.get(variable.group, (some[0].t0, some[0].t1))
            groups[variable.group] = min(t0, *(one.t0 for one in some)), max(t1, *(one.t1 for one in some))
            if has_sets and variable.source.stream in rest:
                shared += map(id, some)
        return frozenset(shared), tuple(groups.items())

    def _is_known(self, partial: Partial) -> bool:
        match = self.match(partial)
        self.take(1 + sum(map(len, partial.bound)) // 8)
        key = (
            len(partial.bound),
            id(partial.first),
            id(partial.last),
            partial.covered,
            self._likeness(partial),
            tuple(id(one) for some in partial.bound for one in some) if self.pattern.maximal else (),
            tuple(one for asked in self._lasting for one in asked.signature(match)),
        )
        if key in self._known:
            return True
        self._known.add(key)
        return False

    def _is_whole(self, partial: Partial) -> bool:
        match, covered, variables = self.match(partial), len(partial.covered), len(partial.bound)
        span = partial.span_with(partial.last)
        for place, asked in enumerate(self._ends(partial)):
            self.take(1)
            if (scope := asked.failing(match)) is not None:
                rank = covered, variables, FIRST_CONDITION + place, -span
                self.furthest.fails(rank, bound(condition_stage, self.pattern, asked, scope, None), ())
                return False
        self.furthest.comes(partial.first, variables, TOGETHER)
        if partial.covered != self.wanted:
            missing = len(self.wanted - partial.covered)
            what = f"no match has all of them: {missing} of {len(self.wanted)} are in none with the others"
            rank = covered, variables, TOGETHER, -span
            self.furthest.fails(rank, lambda: FunnelStage("together", "SEQ", 0, "events").told(what), ())
            return False
        if (fault := self.whole.fault(match)) is not None:
            self.furthest.fails((covered, variables, fault.test, -span), lambda: fault.stage, fault.near)
            self.furthest.comes(partial.first, variables, fault.test)
            return False
        self.furthest.comes(partial.first, variables, FOUND)
        return True

    # ------------------------------------------------------------ tests of a further event

    def rank(self, partial: Partial | None, one: Event, at: int, test: int) -> tuple[int, int, int, int]:
        if partial is None:
            return len(self.covers(one)), at, test, one.t0 - one.t1
        return len(partial.covered | self.covers(one)), at, test, -partial.span_with(one)

    def _is_alike(self, partial: Partial | None, one: Event, at: int) -> bool:
        first = one if partial is None else partial.first
        if self.whole.is_alike(one, first):
            return True
        self.furthest.fails(
            self.rank(partial, one, at, EQUAL), lambda: unequal_stage(self.pattern.keys, one, first), ()
        )
        return False

    def _is_near(self, partial: Partial | None, one: Event, at: int) -> bool:
        within = self.pattern.within
        span = one.t1 - one.t0 if partial is None else partial.span_with(one)
        if within is None or span <= within:
            return True
        self.furthest.fails(self.rank(partial, one, at, WINDOW), bound(too_long_stage, within, span), ())
        return False

    def _holds(
        self,
        partial: Partial | None,
        one: Event,
        at: int,
        tests: Iterator[tuple[BoundCondition, MatchBindings, int | None]],
    ) -> bool:
        """Tests conditions for an event that may be the next."""
        for place, (asked, match, new) in enumerate(tests):
            self.take(1)
            if (scope := asked.failing(match, new)) is not None:
                rank = self.rank(partial, one, at, FIRST_CONDITION + place)
                self.furthest.fails(rank, bound(condition_stage, self.pattern, asked, scope, one), ())
                return False
        return True


def unequal_stage(keys: Sequence[str], one: Event, first: Event) -> FunnelStage:
    """Returns the stage of an event that is not equal to the first one in the keys."""
    key = next(key for key in keys if one.values[key] is None or one.values[key] != first.values[key])
    value = one.values[key]
    what = f"{key} is {display_value(value)}, of {event_text(one)}"
    if value is not None:
        what = f"{what}, and {display_value(first.values[key])} of the first"
    return FunnelStage("equal", f"[{', '.join(keys)}]", 0, "events").told(what)


def too_long_stage(within: int, span: int) -> FunnelStage:
    what = f"it takes {duration_text(span)}, and at most {format_window(within)} is allowed"
    return FunnelStage("window", format_window(within), 0, "events").told(what)


def early_text(earlier: Event, one: Event) -> str:
    if gap := earlier.t1 - one.t0:
        return f"{event_text(one)} begins {duration_text(gap)} before the end of {event_text(earlier)}"
    return f"{event_text(one)} begins just when {event_text(earlier)} ends, and has to begin later"


def _t1(event: Event) -> int:
    return event.t1


def _is_done(asked: BoundCondition, one: WhereConjunct) -> bool:
    """Whether a conjunct, once tested, no longer matters for its variable."""
    return (one.phase == "first" and len(asked.variables) == 1) or (one.phase == "each" and asked.is_of_steps)
