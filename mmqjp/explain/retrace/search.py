"""The step-by-step search for events that make up a result: of NEXT and FOLD, and matches of a PATTERN. A result fills
places with events: the left and right operand, or variables. A partial result has the events of the first places; each
step adds an event to the last place, if that takes several, or to the next. Partial results that agree in all that
matters later are followed once. The failure that gets furthest is kept, and how far those from each first event got."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from functools import partial as bound
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any

from common.dates import iso_utc
from common.tools import gathered
from mmqjp.explain.retrace import values as traced
from mmqjp.explain.terms import FunnelStage, Plain, StageKind, display_value, duration_text, format_window
from pattern_stage.clauses import common_equalities, referenced_parts, split_condition
from pattern_stage.definition import inputs, pattern_template
from pattern_stage.pattern.program import LetterAutomaton, Vector
from xpath_stage.binder import Take
from xscl.algebra import events as algebra
from xscl.event_patterns import STRATEGIES

ORDER, EQUAL, WINDOW, FIRST_CONDITION, STRATEGY, ENDED = 0, 1, 2, 3, 1_000, 1_001
"""The tests of a next event, in order; conditions count from FIRST_CONDITION. ENDED: a FOLD stops at a chosen event."""

TOGETHER, HAVING, ABSENT, LETTERS, FOUND = 1_000, 1_001, 1_002, 1_003, 1_004
"""The tests of a result with a complete last place, after those from FIRST_CONDITION."""

Rank = tuple[int, int, int, int]
"""How far a partial result gets: its documents, those of the failing event included; its places; the number of the
failed test; and minus its duration, or minus the letters that it lacks."""

_t1 = attrgetter("t1")

GivenEvents = Callable[[str], Sequence[traced.Event]]
"""Returns the events of a defined or published stream, given its name, in order of t1."""


ToldEnds = Callable[[algebra.Pattern, GivenEvents], Collection[int] | None]


@dataclass(frozen=True, slots=True)
class SearchGoal:
    """The documents, by number, that a result derives from; those that an event derives from; and a count of steps.
    `ends` returns the identities of the events for which ALL MATCHES TOGETHER has an output."""

    covers: Callable[[traced.Event], frozenset[int]]
    docs: Collection[int]
    take: Take
    ends: ToldEnds = lambda pattern, given: None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A test that a partial result fails, perhaps with a next event: its stage, what to say of it, and the events in
    the way. `is_for_all`: later events fail it, too. `less` ranks failures of one test instead of the duration."""

    test: int
    kind: StageKind
    part: str
    what: Callable[[], str]
    hint: str = ""
    near: tuple[traced.Event, ...] = ()
    is_for_all: bool = False
    less: int | None = None


def event_stage(kind: StageKind, part: str, found: int, message: str = "", hint: str = "") -> FunnelStage:
    return FunnelStage(kind, part, found, "events", message=message, hint=hint)


@dataclass(frozen=True, slots=True)
class Partial:
    """A partial result: the events of its places, and the documents they derive from. `state` has the values of a FOLD
    at each step, or the position in the letters of a PATTERN and how many are left out so far."""

    bound: tuple[tuple[traced.Event, ...], ...] = ()
    covered: frozenset[int] = frozenset()
    state: tuple[Any, ...] = ()

    @property
    def first(self) -> traced.Event:
        return self.bound[0][0]

    @property
    def last(self) -> traced.Event:
        return self.bound[-1][-1]

    def events(self) -> Iterator[traced.Event]:
        return chain.from_iterable(self.bound)

    def span_with(self, *more: traced.Event) -> int:
        every = [*self.events(), *more]
        return max(one.t1 for one in every) - min(one.t0 for one in every)

    def with_event(self, one: traced.Event, to: int, covers: frozenset[int], state: tuple[Any, ...] = ()) -> Partial:
        own = (*self.bound[to], one) if to < len(self.bound) else (one,)
        return Partial((*self.bound[:to], own), self.covered | covers, state)


Barrier = tuple[traced.Event, Callable[[traced.Event], Refusal]]
"""An event that no other passes, and a function that says why one that fits is not next: it comes after that."""


class SequenceSearch(ABC):
    """Searches for results that derive from all of `docs`, numbers of documents; without them, for all results.
    `events` has those of each place, in order of t1, and `repeats` whether a place takes several."""

    keys: tuple[str, ...] = ()  # attributes that are equal in all events
    part = "SEQ"  # how failures name the order and what is together
    conditions_part = "WHERE"
    has_sets = False  # whether events of some places come in any order

    def __init__(
        self, events: Sequence[Sequence[traced.Event]], repeats: Sequence[bool], within: int | None, goal: SearchGoal
    ) -> None:
        self.events, self.repeats, self.within, self.take = events, repeats, within, goal.take
        wanted = self.wanted = frozenset(goal.docs)
        self.covers: Callable[[traced.Event], frozenset[int]] = lambda one: goal.covers(one) & wanted
        self.named = [[one for one in some if wanted and self.covers(one)] for some in events]
        """Of each place, the events that derive from the documents."""
        self.fits: Callable[[Partial, traced.Event, int], bool] | None = None
        """Whether an event may fill a place next."""
        self.best: Refusal | None = None  # the failure that gets furthest
        self.rank: Rank = (-1, 0, 0, 0)
        self._reached: dict[int, tuple[int, int]] = {}
        """Maps ids of first events to how far their results got: places, and the test of a further event or the end."""
        self._by_key = cache(self._keyed)
        self._places = {self.covers(one): at for at, some in reversed([*enumerate(self.named)]) for one in some}
        """Maps the documents of these to the first place that they may fill."""
        self._at_once = max((len(self.covers(one)) for some in self.named for one in some), default=1)
        self._known = set[Hashable]()

    # ------------------------------------------------------------ what an operator or pattern adds

    @abstractmethod
    def component(self, at: int) -> str:
        """Returns the text of a place."""

    def source(self, at: int) -> str:
        """Returns the text of what a place takes."""
        return self.component(at)

    @abstractmethod
    def milestones(self) -> Iterator[tuple[StageKind, str, tuple[int, int]]]:
        """Yields the stages of results, each with how far first events that pass it get."""

    def chosen(self, match: traced.MatchBindings) -> tuple[traced.MatchBindings, traced.Event | None]:
        """Returns the match that EARLIEST MAXIMAL keeps, found from this step by step, and the last event, if any."""
        return match, None

    @abstractmethod
    def conditions(self, partial: Partial, one: traced.Event, to: int) -> Iterator[Refusal | None]:
        """Yields for each condition on a next event why it fails, or None."""

    def barrier(self, partial: Partial, to: int) -> Barrier | None:
        """Returns the first event that a partial result does not pass over; `to` is the place that it fills first."""
        return None

    def refuses(self, partial: Partial, one: traced.Event) -> Refusal | None:
        """Returns why a run ends at an event that it has chosen; None if it goes on."""
        return None

    def longer(self, partial: Partial, one: traced.Event, to: int) -> Iterator[Partial]:
        yield partial.with_event(one, to, self.covers(one))

    def signature(self, partial: Partial) -> Hashable:
        """Returns what matters later besides the number of places, the first and last event, and the documents."""
        return partial.state

    def ends(self, partial: Partial) -> Iterator[Refusal | None]:
        """Yields for each condition on a complete last place why it fails, or None."""
        return iter(())

    def fault(self, partial: Partial) -> Refusal | None:
        """Returns why what has all documents and satisfies the conditions is no result."""
        return None

    def latest(self, partial: Partial, to: int) -> traced.Event | None:
        """Returns the event that ends last of those that come before an event of a place; None if there is none."""
        return partial.last if partial.bound else None

    def key_of(self, to: int) -> Callable[[traced.Event], Hashable] | None:
        """Returns the key of events of a place, if any; those with another key than `wanted_key` cannot be next."""
        return (lambda one: tuple([one.values[key] for key in self.keys])) if self.keys else None

    def wanted_key(self, partial: Partial) -> Hashable:
        return tuple([partial.first.values[key] for key in self.keys])

    def results(self) -> Iterator[Partial]:
        waiting = [Partial()]
        while waiting:
            partial = waiting.pop()
            if partial.bound and self._is_known(partial):
                continue
            if len(partial.bound) == len(self.events) and self._is_whole(partial):
                yield partial
            waiting += self._steps(partial)

    def _is_known(self, partial: Partial) -> bool:
        self.take(1 + sum(map(len, partial.bound)) // 8)
        self._comes(partial.first, (len(partial.bound), -1))
        count = 0 if self.fits is None else sum(map(len, partial.bound))
        key = len(partial.bound), count, id(partial.first), id(partial.last), partial.covered, self.signature(partial)
        known = len(self._known)
        self._known.add(key)
        return len(self._known) == known

    def _is_whole(self, partial: Partial) -> bool:
        refusal = self._first_false(self.ends(partial))
        if refusal is None and (missing := len(self.wanted - partial.covered)):
            what = f"no result has all of them: {missing} of {len(self.wanted)} are in none with the others"
            refusal = Refusal(TOGETHER, "together", self.part, lambda: what)
        refusal = refusal or self.fault(partial)
        self._comes(partial.first, (len(partial.bound), FOUND if refusal is None else refusal.test))
        if refusal is not None:
            less = partial.span_with() if refusal.less is None else refusal.less
            self._fails((len(partial.covered), len(partial.bound), refusal.test, -less), refusal)
        return refusal is None

    def _first_false(self, conditions: Iterator[Refusal | None]) -> Refusal | None:
        for test, refusal in enumerate(conditions, FIRST_CONDITION):
            self.take(1)
            if refusal is not None:
                return replace(refusal, test=test)
        return None

    def _steps(self, partial: Partial) -> Iterator[Partial]:
        missing, at = self.wanted - partial.covered, len(partial.bound)
        nexts = [at - 1] if at and self.repeats[at - 1] else []
        nexts += [at] if at < len(self.events) else []
        if not nexts:
            return
        self._tell_early(partial, missing, nexts[0])
        if not self._may_have_all(partial, missing, nexts[0]):
            return
        barrier = cache(lambda: self.barrier(partial, nexts[0]) if at else None)
        for to in nexts:
            tried: dict[int, traced.Event] = {}
            named = [one for one in self.named[to] if self.covers(one) & missing]
            is_only = bool(missing) and to == len(self.events) - 1 and not self.repeats[to]  # no others have them
            for one in () if is_only else self._candidates(partial, to):
                tried[id(one)] = one
                refusal = self._refusal(partial, one, to, barrier)
                if refusal is None:
                    yield from self.longer(partial, one, to)
                elif refusal.is_for_all or (refusal.test == WINDOW and self._is_too_far(partial, one)):
                    break  # no later one is better
            for one in self._behind(partial, named, to):
                if id(one) not in tried and self._refusal(partial, one, to, barrier) is None:
                    yield from self.longer(partial, one, to)
            if at == to and at and not tried and not is_only:
                self._tell_none(partial, to)

    def _behind(self, partial: Partial, events: Sequence[traced.Event], to: int) -> Iterator[traced.Event]:
        """Yields those of events in order of t1 that may be next in time."""
        latest = self.latest(partial, to)
        used = set(map(id, partial.events())) if self.has_sets else ()
        for place in range(0 if latest is None else bisect_right(events, latest.t1, key=_t1), len(events)):
            one = events[place]
            is_later = id(one) not in used and (latest is None or traced.before(latest, one))
            if is_later and (self.fits is None or self.fits(partial, one, to)):
                yield one

    def _candidates(self, partial: Partial, to: int) -> Iterator[traced.Event]:
        """Yields the events of a place that may be next in time; of those without the wanted key, the first at most."""
        keyed = self._by_key(to) if partial.bound else None
        if keyed is None:
            yield from self._behind(partial, self.events[to], to)
            return
        first = next(self._behind(partial, self.events[to], to), None)
        if first is not None:
            yield first
        with_key = keyed.get(self.wanted_key(partial), ())
        yield from (one for one in self._behind(partial, with_key, to) if one is not first)

    def _keyed(self, to: int) -> dict[Hashable, list[traced.Event]] | None:
        if (key_of := self.key_of(to)) is None:
            return None
        return gathered((key_of(one), one) for one in self.events[to])

    def first_taken(self, partial: Partial, to: int) -> traced.Event | None:
        for one in self._candidates(partial, to):
            self.take(1)
            if self._misfit(partial, one, to) is None:
                return one
            if self._is_too_far(partial, one):
                break
        return None

    def _is_too_far(self, partial: Partial, one: traced.Event) -> bool:
        return bool(partial.bound) and self.within is not None and one.t1 - partial.first.t0 > self.within

    def _may_have_all(self, partial: Partial, missing: frozenset[int], to: int) -> bool:
        """Whether what comes later may have all missing documents; `to` is the next place that can be filled."""
        if not missing:
            return True
        rest = self.repeats[to:]
        if not any(rest) and len(missing) > len(rest) * self._at_once:
            return False
        found = set[int]()
        for place in range(to, len(self.events)):
            latest = self.latest(partial, place)
            for one in self.named[place]:
                if latest is None or traced.before(latest, one):
                    found |= self.covers(one)
        return missing <= found

    # ------------------------------------------------------------ tests of a next event

    def _refusal(
        self, partial: Partial, one: traced.Event, to: int, barrier: Callable[[], Barrier | None]
    ) -> Refusal | None:
        """Returns why an event is not next, and tells it."""
        self.take(1)
        refusal = self._misfit(partial, one, to)
        if refusal is None and (before := barrier()) is not None and before[0].t1 < one.t1:
            refusal = before[1](one)
        refusal = refusal or self.refuses(partial, one)
        if refusal is not None:
            if not refusal.near:
                ends = (partial.first, one) if partial.bound else (one,)
                refusal = replace(refusal, near=tuple([other for other in ends if not self.covers(other)]))
            self._fails(self._rank(partial, one, to, refusal.test), refusal)
            if partial.bound:
                self._comes(partial.first, (to, refusal.test))
        return refusal

    def _misfit(self, partial: Partial, one: traced.Event, to: int) -> Refusal | None:
        """Returns the first test that a next event does not pass, apart from others that come before."""
        first = partial.first if partial.bound else one
        if not self.is_alike(one, first):
            return Refusal(EQUAL, "equal", f"[{', '.join(self.keys)}]", bound(self._unequal, one, first))
        if self.within is not None and (span := partial.span_with(one)) > self.within:
            window = format_window(self.within)
            what = f"it takes {duration_text(span)}, and at most {window} is allowed"
            return Refusal(WINDOW, "window", window, lambda: what)
        return self._first_false(self.conditions(partial, one, to))

    def _rank(self, partial: Partial, one: traced.Event, to: int, test: int) -> Rank:
        return len(partial.covered | self.covers(one)), to, test, -partial.span_with(one)

    def is_alike(self, one: traced.Event, first: traced.Event) -> bool:
        return all(one.values[key] is not None and one.values[key] == first.values[key] for key in self.keys)

    def _fails(self, rank: Rank, refusal: Refusal) -> None:
        if self.best is None or rank > self.rank:
            self.rank, self.best = rank, refusal

    def _comes(self, first: traced.Event, far: tuple[int, int]) -> None:
        self._reached[id(first)] = max(far, self._reached.get(id(first), far))

    def _tell_early(self, partial: Partial, missing: frozenset[int], to: int) -> None:
        """Notes which events of the documents come too early for a partial result and cannot stand earlier."""
        for place in range(to, len(self.events)):
            latest = self.latest(partial, place)
            for one in self.named[place] if latest is not None else ():
                assert latest is not None
                may_lead = traced.before(one, latest) and self._places[self.covers(one)] < len(partial.bound)
                if self.covers(one) & missing and not traced.before(latest, one) and not may_lead:
                    self.take(1)
                    refusal = Refusal(ORDER, "order", self.component(place), bound(traced.early_text, latest, one))
                    self._fails(self._rank(partial, one, place, ORDER), refusal)

    def _tell_none(self, partial: Partial, to: int) -> None:
        if (latest := self.latest(partial, to)) is not None:
            rank = len(partial.covered), to, ORDER, partial.first.t0 - latest.t1
            what = f"no {self.source(to)} begins after the end of "
            self._fails(rank, Refusal(ORDER, "order", self.component(to), lambda: what + traced.event_text(latest)))

    def _unequal(self, one: traced.Event, first: traced.Event) -> str:
        key = next(key for key in self.keys if one.values[key] is None or one.values[key] != first.values[key])
        what = f"{key} is {display_value(one.values[key])}, of {traced.event_text(one)}"
        return what if one.values[key] is None else f"{what}, and {display_value(first.values[key])} of the first"

    def failed(self) -> tuple[FunnelStage, ...]:
        """Returns the stages up to the failure that got furthest."""
        if self.best is None:
            what = "the documents cannot be in one match: there is no place for all of them"
            return (event_stage("together", self.part, 0, what),)
        passed: list[tuple[int, StageKind, str]] = [(ORDER, "order", self.part)]
        if self.keys:
            passed.append((EQUAL, "equal", f"[{', '.join(self.keys)}]"))
        if self.within is not None:
            passed.append((WINDOW, "window", format_window(self.within)))
        if self.conditions_part and self.best.test >= STRATEGY:
            passed.append((FIRST_CONDITION, "condition", self.conditions_part))
        stages = [event_stage(kind, part, 1) for own, kind, part in passed if own < self.best.test]
        last = event_stage(self.best.kind, self.best.part, 0, self.best.what(), self.best.hint)
        return (*(stages if self.rank[1] < len(self.events) else ()), last)

    @property
    def starts(self) -> int:
        """The number of events that are first in a result."""
        return sum(far >= (len(self.events), FOUND) for far in self._reached.values())

    def counted(self) -> tuple[FunnelStage, ...]:
        """Returns the stages of all results, up to the first that no first event passes."""
        stages: list[FunnelStage] = []
        for kind, part, least in self.milestones():
            found = sum(far >= least for far in self._reached.values())
            if not found and self.best is not None:
                what = self.best.what()
                message = what if self.best.part == part else f"{self.best.part}: {what}"
                return (*stages, event_stage(kind, part, 0, message, self.best.hint))
            stages.append(event_stage(kind, part, found))
        return tuple(stages)


class RunSearch(SequenceSearch):
    """Results of NEXT and FOLD: a left event with the first later right events for which a condition holds. A FOLD goes
    on from there; its partial results have the values of each step."""

    def __init__(
        self, stream: algebra.Next | algebra.Fold, sides: Sequence[Sequence[traced.Event]], goal: SearchGoal
    ) -> None:
        super().__init__(sides, (False, isinstance(stream, algebra.Fold)), stream.within, goal)
        self._stream, self._name = stream, algebra.operator_name(stream)
        chooses = stream.chooses if isinstance(stream, algebra.Fold) else stream.condition
        self._chooses = [(one, traced.operator_condition_text(one, stream)) for one in traced.conjuncts(chooses)]
        continues = traced.conjuncts(stream.continues) if isinstance(stream, algebra.Fold) else ()
        self._continues = [(one, traced.operator_condition_text(one, stream)) for one in continues]
        self._equality = next(iter(common_equalities(split_condition(chooses))), None)
        self.part = f"{self._name} {traced.stream_text(stream.right)}"
        self.conditions_part = " AND ".join(text for _, text in self._chooses)

    def component(self, at: int) -> str:
        return self.part if at else self.source(at)

    def source(self, at: int) -> str:
        return traced.stream_text(self._stream.right if at else self._stream.left)

    def milestones(self) -> Iterator[tuple[StageKind, str, tuple[int, int]]]:
        yield "order", f"before {traced.stream_text(self._stream.right)}", (1, EQUAL)
        if self.within is not None:
            yield "window", format_window(self.within), (1, FIRST_CONDITION)
        yield "condition", self.part, (2, FOUND if isinstance(self._stream, algebra.Latest) else -1)

    def event(self, partial: Partial) -> traced.Event:
        return traced.sequence_event(self._stream, tuple(partial.events()), partial.state)

    def longer(self, partial: Partial, one: traced.Event, to: int) -> Iterator[Partial]:
        steps = partial.state
        if to and isinstance(self._stream, algebra.Fold):
            scope = self._scope(partial, one)
            sets = {name: traced.evaluate_value(value, scope) for name, value in self._stream.sets}
            steps = (*steps, {**self._values(partial), **one.values, **sets})
        yield partial.with_event(one, to, self.covers(one), steps)

    def signature(self, partial: Partial) -> Hashable:
        return tuple(partial.state[-1].values()) if partial.state else ()

    def key_of(self, to: int) -> Callable[[traced.Event], Hashable] | None:
        if self._equality is None or not to:
            return None
        value = self._equality[1]
        return lambda one: self._key(traced.evaluate_value(value, traced.ValueScope({}, 0, one.values)))

    def wanted_key(self, partial: Partial) -> Hashable:
        assert self._equality is not None, "else events have no key"
        scope = traced.ValueScope(partial.first.values, 0, None, self._values(partial))
        key = self._key(traced.evaluate_value(self._equality[0], scope))
        return self if key is None else key  # no event has the key of an unknown value

    def _key(self, value: Plain) -> Plain:
        assert self._equality is not None, "else events have no key"
        return value if all(algebra.value_kind(one) == "string" for one in self._equality) else traced.as_number(value)

    def _values(self, partial: Partial) -> traced.AttributeValues:
        return partial.state[-1] if partial.state else partial.first.values

    def _scope(self, partial: Partial, one: traced.Event) -> traced.ValueScope:
        return traced.step_scope(partial.first, partial.last, one, self._values(partial))

    def conditions(self, partial: Partial, one: traced.Event, to: int) -> Iterator[Refusal | None]:
        if to:
            yield from (self._failing("condition", asked, partial, one) for asked in self._chooses)

    def refuses(self, partial: Partial, one: traced.Event) -> Refusal | None:
        every = (self._failing("ended", asked, partial, one) for asked in self._continues if partial.bound)
        refusal = next(filter(None, every), None)
        return None if refusal is None else replace(refusal, test=ENDED)

    def _failing(
        self, kind: StageKind, asked: tuple[algebra.EventCondition, str], partial: Partial, one: traced.Event
    ) -> Refusal | None:
        scope, parts = self._scope(partial, one), referenced_parts(asked[0])
        if traced.condition_holds(asked[0], scope):
            return None
        whose = one if "right" in parts else partial.first if parts == {"left"} else None
        return Refusal(FIRST_CONDITION, kind, asked[1], bound(traced.false_text, asked[0], self._stream, scope, whose))

    def barrier(self, partial: Partial, to: int) -> Barrier | None:
        by = None if isinstance(self._stream, algebra.Latest) else self.first_taken(partial, to)
        return None if by is None else (by, bound(self._blocked, partial, by))

    @cached_property
    def _lefts(self) -> dict[Hashable, list[traced.Event]]:
        """The left events in order of time, by the key of their partners, if there is one."""
        if self._equality is None:
            return {None: list(self.events[0])}
        return gathered((self.wanted_key(Partial(((one,),))), one) for one in self.events[0])

    def fault(self, partial: Partial) -> Refusal | None:
        """Of LATEST BEFORE, returns the left event that is later."""
        if not isinstance(self._stream, algebra.Latest):
            return None
        mine, one = partial.first, partial.last
        lefts = self._lefts.get(None if self._equality is None else self.wanted_key(Partial(((mine,),))), [])
        for place in range(bisect_right(lefts, mine.t1, key=_t1), bisect_right(lefts, one.t0 - 1, key=_t1)):
            self.take(1)
            later = lefts[place]
            if all(refusal is None for refusal in self.conditions(Partial(((later,),)), one, 1)):
                hint = f"{self._name} takes the latest left event for which its condition holds"
                return Refusal(STRATEGY, "later", self.part, bound(_later, later), hint, (later,))
        return None

    def _blocked(self, partial: Partial, by: traced.Event, one: traced.Event) -> Refusal:
        if (ended := self.refuses(partial, by)) is not None:
            head = f"the run has ended at {iso_utc(by.t1)}: "
            return replace(ended, what=lambda: head + ended.what(), near=(by,), is_for_all=True)
        hint = f"{self._name} takes the first right event for which its condition holds"
        hint += "; FOLLOWED BY takes all" if self._name == "NEXT" else ""

        def what() -> str:
            return f"{traced.event_text(by)} was first, at {iso_utc(by.t1)}, {duration_text(one.t1 - by.t1)} earlier"

        return Refusal(STRATEGY, "consumed", self.part, what, hint, (by,), is_for_all=True)


def _later(one: traced.Event) -> str:
    return f"{traced.event_text(one)} is later, at {iso_utc(one.t1)}"


class PatternSearch(SequenceSearch):
    """Matches of a PATTERN without ERRORS. Variables take events one after the other, those of a SET in any order."""

    def __init__(self, pattern: algebra.Pattern, given: GivenEvents, goal: SearchGoal) -> None:
        self._pattern, self._given = pattern, given
        self.keys, self.has_sets = pattern.keys, pattern.has_sets
        self._numbers = [at for at, one in enumerate(pattern.variables) if not one.negated]
        """The numbers of the variables that take events."""
        self._positive = [pattern.variables[at] for at in self._numbers]
        self._asked = [(traced.conjunct_of(pattern, one), one) for one in pattern.conjuncts]
        is_whole = isinstance(pattern, algebra.Together)
        self._having = [] if is_whole else traced.having_of(pattern)
        self._ends = goal.ends(pattern, given) if is_whole and pattern.having != algebra.ALWAYS else None
        """The events for which HAVING of ALL MATCHES TOGETHER holds."""
        self.kills = {
            at: [traced.conjunct_of(pattern, kill) for kill in pattern.kills if kill.variable == at]
            for at, one in enumerate(pattern.variables)
            if one.negated
        }
        """The conditions of each negated variable, by its number."""
        self._lasting = [
            asked
            for asked, one in self._asked
            if not (asked.is_of_steps if one.phase == "each" else one.phase == "first" and len(asked.variables) == 1)
        ]  # the conditions that still matter for a variable that they were tested for
        self._lasting += [*self._having, *(asked for some in self.kills.values() for asked in some)]
        events = [given(one.source.stream) for one in self._positive]
        super().__init__(events, [one.kleene for one in self._positive], pattern.within, goal)

    def component(self, at: int) -> str:
        return traced.component_text(self._positive[at])

    def milestones(self) -> Iterator[tuple[StageKind, str, tuple[int, int]]]:
        every = len(self._positive)
        yield from (("run", traced.component_text(one), (at, -1)) for at, one in enumerate(self._positive, 1))
        yield "condition", "WHERE", (every, TOGETHER)
        if self._pattern.having != algebra.ALWAYS:
            yield "condition", "HAVING", (every, ABSENT)
        if self.kills:
            yield "absent", "~", (every, FOUND)

    def name(self, one: traced.Event, to: int) -> str:
        return self._positive[to].name

    def match(self, partial: Partial) -> traced.MatchBindings:
        return {one.name: events for one, events in zip(self._positive, partial.bound, strict=False)}

    def latest(self, partial: Partial, to: int) -> traced.Event | None:
        if not self.has_sets or not partial.bound:
            return super().latest(partial, to)
        group = self._positive[to].group
        places = (at for at in range(len(partial.bound)) if at == to or self._positive[at].group < group)
        return max((one for at in places for one in partial.bound[at]), key=_t1, default=None)

    def signature(self, partial: Partial) -> Hashable:
        match = self.match(partial)
        events = tuple(map(id, partial.events())) if self._pattern.maximal else ()
        return self._likeness(partial), events, tuple(one for asked in self._lasting for one in asked.signature(match))

    def _likeness(self, partial: Partial) -> Hashable:
        """Returns what matters later of a partial match besides condition signatures."""
        if not self.has_sets and not self.kills:
            return None
        groups: dict[int, tuple[int, int]] = {}
        shared = list[int]()
        rest = {one.source.stream for one in self._positive[len(partial.bound) - 1 :]}
        for variable, some in zip(self._positive, partial.bound, strict=False):
            t0, t1 = groups.get(variable.group, (some[0].t0, some[0].t1))
            groups[variable.group] = min(t0, *(one.t0 for one in some)), max(t1, *(one.t1 for one in some))
            if self.has_sets and variable.source.stream in rest:
                shared += map(id, some)
        return frozenset(shared), tuple(groups.items())

    def conditions(self, partial: Partial, one: traced.Event, to: int) -> Iterator[Refusal | None]:
        is_first = to == len(partial.bound)
        if is_first and partial.bound:
            yield from self.ends(partial)
        match, number = self.match(partial.with_event(one, to, self.covers(one))), self._numbers[to]
        for asked, conjunct in self._asked_at(to, of_steps=True):
            if conjunct.phase == ("first" if is_first else "each"):
                yield self._false(asked, match, None if is_first else number, one)

    def ends(self, partial: Partial) -> Iterator[Refusal | None]:
        asked_here, match = self._asked_at(len(partial.bound) - 1, of_steps=False), self.match(partial)
        return (self._false(asked, match) for asked, _ in asked_here)

    def _false(
        self,
        asked: traced.BoundCondition,
        match: traced.MatchBindings,
        new: int | None = None,
        of: traced.Event | None = None,
    ) -> Refusal | None:
        if (scope := asked.failing(match, new)) is None:
            return None
        what = bound(traced.false_text, asked.said, self._pattern.variables[0].source, scope, of)
        return Refusal(FIRST_CONDITION, "condition", asked.text, what)

    def _asked_at(self, at: int, *, of_steps: bool) -> Iterator[tuple[traced.BoundCondition, algebra.WhereConjunct]]:
        """Yields the conditions whose last variable this is: those on each event of it, or those on all."""
        for asked, conjunct in self._asked:
            last = max((self._numbers.index(one) for one in asked.variables), default=0)
            is_of_events = len(asked.variables) < 2 or not self.has_sets
            if last == at and of_steps == (is_of_events and conjunct.phase != "complete"):
                yield asked, conjunct

    def barrier(self, partial: Partial, to: int) -> Barrier | None:
        if self._pattern.strategy == "any":
            return None
        if self._pattern.strategy == "next":
            by = self.first_taken(partial, to)
        else:
            every = [one for name in self._pattern.streams for one in self._first_behind(partial, self._given(name))]
            by = min(every, key=_t1, default=None)
        return None if by is None else (by, bound(self._blocked, by))

    def _first_behind(self, partial: Partial, events: Sequence[traced.Event]) -> Iterator[traced.Event]:
        for place in range(bisect_right(events, partial.last.t1, key=_t1), len(events)):
            self.take(1)
            one = events[place]
            is_any = self._pattern.strategy == "strict"
            if traced.before(partial.last, one) and (is_any or self.is_alike(one, partial.first)):
                yield one
                return

    def _blocked(self, by: traced.Event, one: traced.Event) -> Refusal:
        why = {
            "strict": "nothing may come in between",
            "partition": f"it is equal in {', '.join(self.keys)}",
            "next": "the match so far takes it",
        }[self._pattern.strategy]
        part = next(name for name, strategy in STRATEGIES.items() if strategy == self._pattern.strategy)
        what = f"{traced.event_text(by)} came before, at {iso_utc(by.t1)}, and {why}"
        return Refusal(STRATEGY, "strategy", part, lambda: what, "", (by,), is_for_all=True)

    # ------------------------------------------------------------ HAVING and negated events

    def fault(self, partial: Partial) -> Refusal | None:
        return self._fault(self.match(partial))

    def _fault(self, match: traced.MatchBindings) -> Refusal | None:
        """Returns why a match that satisfies WHERE is none: HAVING, or an event that must not occur."""
        for asked in self._having:
            self.take(1)
            if (refusal := self._false(asked, match)) is not None:
                return replace(refusal, test=HAVING, part=f"HAVING {refusal.part}")
        if self._ends is not None and id(last := list(match.values())[-1][-1]) not in self._ends:
            text = f"HAVING {' AND '.join(one.text for one in traced.having_of(self._pattern))}"
            what = f"that is false of all matches together that end with {traced.event_text(last)}"
            return Refusal(HAVING, "condition", text, lambda: what)
        killing = next(((one, at) for at in self.kills for one in self._killing(match, at)), None)
        if killing is None:
            return None
        one, part = killing[0], traced.component_text(self._pattern.variables[killing[1]])
        return Refusal(
            ABSENT, "absent", part, lambda: f"{traced.event_text(one)} came, at {iso_utc(one.t1)}", near=(one,)
        )

    def _killing(self, match: traced.MatchBindings, at: int) -> Iterator[traced.Event]:
        variable = self._pattern.variables[at]
        groups = self._groups(match)
        every = [one for some in groups for one in some]
        t0, t1 = min(one.t0 for one in every), max(one.t1 for one in every)
        behind = groups[variable.group - 1] if variable.group else ()
        ahead = groups[variable.group] if variable.group < len(groups) else ()
        for one in self._given(variable.source.stream):
            self.take(1)
            is_behind = all(traced.before(other, one) for other in behind) if behind else self._fits(t1 - one.t0)
            is_ahead = all(traced.before(one, other) for other in ahead) if ahead else self._fits(one.t1 - t0)
            if not is_behind or not is_ahead:
                continue
            killed = {**match, variable.name: (one,)}
            if self.is_alike(one, every[0]) and all(asked.failing(killed) is None for asked in self.kills[at]):
                yield one

    def _groups(self, match: traced.MatchBindings) -> list[list[traced.Event]]:
        groups: list[list[traced.Event]] = [[] for _ in range(self._pattern.groups)]
        for one in self._positive:
            groups[one.group] += match[one.name]
        return groups

    def _fits(self, span: int) -> bool:
        return self.within is None or span <= self.within

    # ------------------------------------------------------------ EARLIEST MAXIMAL

    def chosen(self, match: traced.MatchBindings) -> tuple[traced.MatchBindings, traced.Event | None]:
        last: traced.Event | None = None
        while self._pattern.maximal:
            better = next(((one, by) for one, by in self._changed(match) if self._is_match(one)), None)
            if better is None:
                break
            match, last = better
        return match, last

    def _changed(self, match: traced.MatchBindings) -> Iterator[tuple[traced.MatchBindings, traced.Event]]:
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

    def _is_match(self, match: traced.MatchBindings) -> bool:
        """Whether bindings satisfy all but the strategy."""
        self.take(1 + len(self._asked))
        every, groups = [one for events in match.values() for one in events], pairwise(self._groups(match))
        return (
            self._fits(max(one.t1 for one in every) - min(one.t0 for one in every))
            and all(self.is_alike(one, every[0]) for one in every)
            and all(traced.before(one, other) for events in match.values() for one, other in pairwise(events))
            and all(max(one.t1 for one in behind) < min(one.t0 for one in ahead) for behind, ahead in groups)
            and all(asked.failing(match) is None for asked, _ in self._asked)
            and self._fault(match) is None
        )


def _order(event: traced.Event) -> tuple[int, tuple[object, ...]]:
    made = event.made
    assert isinstance(made, traced.SourceEvent), "a pattern reads streams"
    return event.t1, (made.stream, made.source, made.nodes)


class LetterSearch(SequenceSearch):
    """Matches of a PATTERN with ERRORS: chains of events of any letters. The state of a partial match is its position
    in the expression, with the letters that it lacks so far."""

    conditions_part = ""

    def __init__(self, pattern: algebra.NearPattern, given: GivenEvents, goal: SearchGoal) -> None:
        numbered = pattern_template(pattern, lambda leaf: leaf)
        assert isinstance(numbered, algebra.NearPattern)
        self._automaton = LetterAutomaton(numbered.letters, algebra.count_letters(pattern.letters, sum, 1))
        self._numbers = {name: number for number, (name, _) in enumerate(inputs(pattern))}
        self._errors, self.keys = pattern.errors, pattern.keys
        self.kills: dict[int, list[traced.BoundCondition]] = {}
        events = sorted((one for name in self._numbers for one in given(name)), key=_t1)
        super().__init__([events], [True], pattern.within, goal)

    def component(self, at: int) -> str:
        return "letter"

    def milestones(self) -> Iterator[tuple[StageKind, str, tuple[int, int]]]:
        yield "letters", f"ERRORS <= {self._errors}", (1, FOUND)

    def name(self, one: traced.Event, to: int) -> str:
        return stream_of(one)

    def match(self, partial: Partial) -> traced.MatchBindings:
        return gathered((stream_of(one), one) for one in partial.events())

    def longer(self, partial: Partial, one: traced.Event, to: int) -> Iterator[Partial]:
        for state in self._vector(partial, one):
            yield partial.with_event(one, to, self.covers(one), state)

    def _vector(self, partial: Partial, one: traced.Event) -> Vector:
        number = self._numbers[stream_of(one)]
        return self._automaton.step((partial.state,), number) if partial.bound else self._automaton.begin(number)

    def conditions(self, partial: Partial, one: traced.Event, to: int) -> Iterator[Refusal | None]:
        yield None if self._vector(partial, one) else self._no_word

    def fault(self, partial: Partial) -> Refusal | None:
        lacking = self._automaton.lacking((partial.state,))
        if lacking is None:
            return self._no_word
        what = f"{missing_letters(lacking)} at least"
        return None if lacking <= self._errors else replace(self._no_word, what=lambda: what, less=lacking)

    @cached_property
    def _no_word(self) -> Refusal:
        what = "no word has them in this order, or a letter with ! is missing"
        return Refusal(LETTERS, "letters", f"ERRORS <= {self._errors}", lambda: what, less=1 << 30)


def stream_of(event: traced.Event) -> str:
    assert isinstance(event.made, traced.SourceEvent), "a pattern reads streams"
    return event.made.stream


def missing_letters(count: int) -> str:
    return "1 letter is missing" if count == 1 else f"{count:,} letters are missing"


def search_of(
    pattern: algebra.Pattern | algebra.NearPattern, given: GivenEvents, goal: SearchGoal
) -> PatternSearch | LetterSearch:
    if isinstance(pattern, algebra.NearPattern):
        return LetterSearch(pattern, given, goal)
    return PatternSearch(pattern, given, goal)
