"""The oracle's matches of PATTERN: runs, sets and, with ERRORS, chains and what they lack (docs/semantics.md, sections
23 to 26). BUDGET is not computed: what a statement with it finds is a part of what is found here.

In particular:
- `v[].x` outside aggregates means every event of v, and `v[i].x`, `v[i-1].x`, `v[..i-1]` every event but the first: a
  conjunct holds if it does for all of them, for all combinations if it mentions several variables so. One that is
  tested as its variable gets events is tested with the new one.
- A condition is cut into conjuncts after NOT has been pushed to the atoms.
- Of several events, as those of a SET, the first is the least by `order`. A span is the greatest t1 less the least t0.
- A negated component beside a SET is between all its events and all of the other neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import inf
from typing import Any, Literal

from tests.oracle.event_syntax import Both, Cond, Fn, Len, Not, Of
from tests.oracle.event_values import AGGREGATES, Bound, Scope, Values, holds
from tests.oracle.events import Event, before
from tests.oracle.pattern_syntax import Absent, Letter, Letters, Many, Near, OneOf, Pattern, Times
from tests.oracle.walk import children, walk

Order = Callable[[Event], Any]
"""Orders events: by t1, and those of one t1 in any way that does not depend on when they came."""

Streams = Mapping[str, Iterable[Event]]

Run = tuple[tuple[Event, int], ...]
"""Events, each with the component that it is of, negated ones not counted."""

Bindings = tuple[tuple[Event, ...], ...]
"""The events of each variable, negated ones aside."""


@dataclass(frozen=True)
class Match:
    """The events of each variable; with ERRORS, those of the chain. And when it is known. Of ALL MATCHES TOGETHER the
    event that all of the `group` end with."""

    events: Bindings
    known: int
    errors: int = 0
    group: frozenset[Match] = frozenset()

    @property
    def flat(self) -> tuple[Event, ...]:
        return flat(self.events)

    @property
    def t0(self) -> int:
        return min(one.t0 for one in self.flat)

    @property
    def last(self) -> int:
        return max(one.t1 for one in self.flat)


def flat(events: Bindings) -> tuple[Event, ...]:
    return tuple(one for some in events for one in some)


class Matcher:
    def __init__(self, pattern: Pattern, streams: Streams, order: Order) -> None:
        self._pattern, self._order = pattern, order
        self._streams = {name: tuple(streams[name]) for name in pattern.streams}
        self._window = pattern.within.us if pattern.within else None
        self._positive = pattern.positive
        self._names = [one.variable for one in self._positive]
        negated = {one.variable for _, one in pattern.absent}
        every = conjuncts(pattern.cond)
        self._tests = [one for one in every if one.variables and not one.variables & negated]
        self._is_possible = all(one.variables or one.holds({}) for one in every)
        self._kills = {name: [one for one in every if name in one.variables] for name in negated}
        self._having = [] if pattern.together else conjuncts(pattern.having)

    def matches(self) -> set[Match]:
        """All matches, or those that EARLIEST MAXIMAL keeps."""
        if not self._is_possible:
            return set()
        in_line = all(len(some) == 1 for some in self._pattern.sets)
        found = set(self._sequences() if in_line else self._sets())
        found = {one for one in found if self._holds(self._having, one) and not self._is_killed(one)}
        if self._pattern.maximal:
            found = {one for one in found if not any(better in found for better in self._changed(one))}
        return {Match(one, self._known(one)) for one in found}

    def _holds(self, tests: Sequence[Conjunct], events: Bindings, more: Mapping[str, tuple[Event, ...]] = {}) -> bool:
        named = {**dict(zip(self._names, events, strict=True)), **more}
        return all(test.holds(named) for test in tests)

    def _is_alike(self, one: Event, first: Event) -> bool:
        """Whether an event is equal to the first in all [attr]."""
        return all(one.values[key] is not None and one.values[key] == first.values[key] for key in self._pattern.keys)

    def _fits(self, t0: int, t1: int) -> bool:
        return self._window is None or t1 - t0 <= self._window

    def _known(self, events: Bindings) -> int:
        t0, last = min(one.t0 for one in flat(events)), max(one.t1 for one in flat(events))
        sets = self._pattern.sets
        waits = isinstance(self._pattern.components[-1], Absent)
        waits |= self._pattern.maximal and any(isinstance(one, Many) for one in sets[-1])
        if not waits:
            return last
        assert self._window is not None, "such a pattern has a window"
        return t0 + self._window

    # ------------------------------------------------------------ runs

    def _sequences(self) -> Iterator[Bindings]:
        waiting: list[Run] = [()]
        while waiting:
            run = waiting.pop()
            if run and run[-1][1] == len(self._positive) - 1 and self._is_complete(run):
                yield self._bound(run)
            for component in self._nexts(run):
                for one in self._of(component):
                    if self._ok(run, one, component) and self._is_reached(run, one):
                        waiting.append((*run, (one, component)))

    def _nexts(self, run: Run) -> list[int]:
        """The components that an event can be behind a run."""
        if not run:
            return [0]
        latest = run[-1][1]
        same = [latest] if isinstance(self._positive[latest], Many) else []
        return same + ([latest + 1] if latest + 1 < len(self._positive) else [])

    def _of(self, component: int) -> Sequence[Event]:
        return self._streams[self._positive[component].stream]

    def _bound(self, run: Run) -> Bindings:
        return tuple(tuple(one for one, of in run if of == at) for at in range(len(self._positive)))

    def _ok(self, run: Run, one: Event, component: int) -> bool:
        """Whether an event, of a component's stream, may extend a run as that component."""
        first = run[0][0] if run else one
        if not (self._fits(first.t0, one.t1) and self._is_alike(one, first)):
            return False
        if run and not before(run[-1][0], one):
            return False
        is_first = not run or run[-1][1] != component
        if run and is_first and not self._is_complete(run):
            return False
        named = dict(zip(self._names, self._bound((*run, (one, component))), strict=True))
        name = self._names[component]
        for test in self._tests:
            match test.last(self._names):
                case (at, 0) if at == component and is_first:
                    holds = test.holds(named)
                case (at, 1) if at == component and not (is_first and test.is_of_further(name)):
                    holds = test.holds(named, new=name)
                case _:
                    holds = True
            if not holds:
                return False
        return True

    def _is_complete(self, run: Run) -> bool:
        """Whether what is tested of a run's last variable as a whole holds."""
        unit = (run[-1][1], 2)
        return self._holds([test for test in self._tests if test.last(self._names) == unit], self._bound(run))

    def _is_reached(self, run: Run, one: Event) -> bool:
        """Whether the strategy lets a run go on with an event: what may lie at the epochs in between."""
        if not run:
            return True
        latest = run[-1][0]
        between = [
            other
            for events in self._streams.values()
            for other in events
            if latest.t1 < other.t1 < one.t1 and before(latest, other)
        ]
        match self._pattern.strategy:
            case "strict_contiguity":
                return not between
            case "partition_contiguity":
                return not any(self._is_alike(other, run[0][0]) for other in between)
            case "skip_till_next_match":
                wanted = self._nexts(run)[0]
                return not any(other in self._of(wanted) and self._ok(run, other, wanted) for other in between)
        return True

    # ------------------------------------------------------------ sets

    def _sets(self) -> Iterator[Bindings]:
        places = [at for at, some in enumerate(self._pattern.sets) for _ in some]
        waiting: list[Bindings] = [()]
        while waiting:
            bound = waiting.pop()
            if len(bound) == len(self._positive):
                yield bound
                continue
            names = self._names[: len(bound) + 1]
            tests = [one for one in self._tests if one.variables <= {*names} and not one.variables <= {*names[:-1]}]
            at = places[len(bound)]
            earlier = [one for some, place in zip(bound, places, strict=False) if place < at for one in some]
            for chain in self._chains(len(bound)):
                events = (*flat(bound), *chain)
                first = min(events, key=self._order)
                if (
                    len(set(events)) == len(events)
                    and all(before(one, other) for one in earlier for other in chain)
                    and self._fits(min(one.t0 for one in events), max(one.t1 for one in events))
                    and all(self._is_alike(one, first) for one in events)
                    and all(test.holds(dict(zip(names, (*bound, chain), strict=True))) for test in tests)
                ):
                    waiting.append((*bound, chain))

    def _chains(self, component: int) -> Iterator[tuple[Event, ...]]:
        """What a variable may be bound to. A chain that no event can mend is left out."""
        name = self._names[component]
        tests = [one for one in self._tests if one.variables == {name} and one.last([name]) != (0, 2)]
        waiting: list[tuple[Event, ...]] = [(one,) for one in self._of(component)]
        while waiting:
            chain = waiting.pop()
            if not all(test.holds({name: chain}) for test in tests):
                continue
            yield chain
            if isinstance(self._positive[component], Many):
                waiting += [
                    (*chain, one)
                    for one in self._of(component)
                    if before(chain[-1], one) and self._fits(chain[0].t0, one.t1)
                ]

    # ------------------------------------------------------------ negation, EARLIEST MAXIMAL

    def _is_killed(self, events: Bindings) -> bool:
        sets: list[list[Event]] = []
        for some in self._pattern.sets:
            start = sum(map(len, self._pattern.sets[: len(sets)]))
            sets.append(list(flat(events[start : start + len(some)])))
        everything = flat(events)
        t0, t1 = min(one.t0 for one in everything), max(one.t1 for one in everything)
        first = min(everything, key=self._order)
        for at, absent in self._pattern.absent:
            for one in self._streams[absent.stream]:
                if at == 0:
                    between = all(before(one, other) for other in sets[0]) and self._fits(one.t0, t1)
                elif at == len(sets):
                    between = all(before(other, one) for other in sets[-1]) and self._fits(t0, one.t1)
                else:
                    between = all(before(other, one) for other in sets[at - 1])
                    between = between and all(before(one, other) for other in sets[at])
                kills = self._kills[absent.variable]
                if between and self._is_alike(one, first) and self._holds(kills, events, {absent.variable: (one,)}):
                    return True
        return False

    def _changed(self, events: Bindings) -> Iterator[Bindings]:
        """The bindings with an earlier first event in one of them, or with one event more."""
        used = flat(events)
        begin = min(map(self._order, used))
        for at, some in enumerate(events):
            for one in self._of(at):
                if one in used or self._order(one) <= begin:
                    continue
                if self._order(one) < self._order(some[0]):
                    yield (*events[:at], (one, *some[1:]), *events[at + 1 :])
                if isinstance(self._positive[at], Many):
                    more = tuple(sorted((*some, one), key=self._order))
                    yield (*events[:at], more, *events[at + 1 :])


Phase = Literal[0, 1, 2]
"""Of a unit: the first event of a variable, or its only one; a further one; all of them."""

FURTHER = ("i", "i-1", "..i-1")
"""The places of further events than the first."""

Events = Mapping[str, Sequence[Event]]
"""The events of each variable."""


@dataclass(frozen=True)
class Conjunct:
    """A conjunct, or, `negated`, that it does not hold, as NOT is pushed to its atoms."""

    cond: Cond
    negated: bool = False

    @cached_property
    def _mentions(self) -> list[tuple[Of | Len, bool]]:
        """What it mentions of variables, each with whether an aggregate is of it."""
        return [(one, one is not leaf) for leaf in leaves(self.cond) for one in walk(leaf) if isinstance(one, Of | Len)]

    @cached_property
    def variables(self) -> frozenset[str]:
        return frozenset(one.variable for one, _ in self._mentions)

    def last(self, order: Sequence[str]) -> tuple[int, Phase] | None:
        """The last unit that it mentions, where `order` has the variables in their order."""
        return max(((order.index(one.variable), _phase(one, inside)) for one, inside in self._mentions), default=None)

    def is_of_further(self, variable: str) -> bool:
        """Whether it is about the second and later events of a variable only."""
        return any(
            isinstance(one, Of) and one.variable == variable and one.place in FURTHER for one, _ in self._mentions
        )

    def holds(self, events: Events, new: str | None = None) -> bool:
        """Whether it holds for the events of the variables, for all that it may mean; `new` is the variable of which it
        means the last event only."""
        ranges: dict[str, range] = {}
        for one, inside in self._mentions:
            count = len(events.get(one.variable, ()))
            if isinstance(one, Len):
                continue
            if one.variable == new:
                ranges[one.variable] = range(count - 1, count)
            elif one.place in FURTHER:
                ranges[one.variable] = range(1, count)
            elif one.place == "[]" and not inside:
                ranges[one.variable] = range(count)
        values: dict[str, tuple[Values, ...]] = {
            variable: tuple(one.values for one in found) for variable, found in events.items()
        }
        for places in product(*ranges.values()):
            scope = Scope({}, 0, bound=Bound(values, dict(zip(ranges, places, strict=True))))
            if not holds(Not(self.cond) if self.negated else self.cond, scope):
                return False
        return True


def conjuncts(cond: Cond | None, *, negated: bool = False) -> list[Conjunct]:
    match cond:
        case None:
            return []
        case Not():
            return conjuncts(cond.arg, negated=not negated)
        case Both() if (cond.word == "AND") is not negated:
            return [one for arg in cond.args for one in conjuncts(arg, negated=negated)]
    return [Conjunct(cond, negated)]


def leaves(node: object) -> Iterator[Of | Len | Fn]:
    """The references and aggregates in a condition or an expression."""
    if isinstance(node, Of | Len) or (isinstance(node, Fn) and node.name in AGGREGATES):
        yield node
    else:
        for child in children(node):
            yield from leaves(child)


def _phase(one: Of | Len, inside: bool) -> Phase:
    if isinstance(one, Of) and one.place in ("", "1"):
        return 1 if inside else 0
    return 2 if isinstance(one, Len) or one.place == ("[]" if inside else "LEN") else 1


# ---------------------------------------------------------------- ERRORS

Chain = tuple[tuple[str, Event], ...]
"""Events, each with its stream."""


def near_matches(near: Near, streams: Mapping[str, Iterable[Event]]) -> set[Match]:
    events = [(name, one) for name in near.streams for one in streams[name]]
    found = set()
    for chain in _chains(near, events):
        errors = lacking(near.word, [name for name, _ in chain])
        if errors <= near.errors:
            found.add(Match((tuple(one for _, one in chain),), chain[-1][1].t1, int(errors)))
    return found


def _chains(near: Near, events: Sequence[tuple[str, Event]]) -> Iterator[Chain]:
    """The chains of events within the window that are equal, and not NULL, in all keys."""

    def alike(one: Event, first: Event) -> bool:
        return all(one.values[key] is not None and one.values[key] == first.values[key] for key in near.keys)

    def fits(one: Event, first: Event) -> bool:
        return near.within is None or one.t1 - first.t0 <= near.within.us

    waiting: list[Chain] = [((name, one),) for name, one in events if alike(one, one) and fits(one, one)]
    while waiting:
        chain = waiting.pop()
        yield chain
        first, latest = chain[0][1], chain[-1][1]
        waiting += [
            (*chain, (name, one))
            for name, one in events
            if before(latest, one) and alike(one, first) and fits(one, first)
        ]


def lacking(word: Sequence[Letters], letters: Iterable[str]) -> float:
    """The least number of letters that may be left out of a word, so that it is these letters; infinite if there is no
    such word."""
    return _lacking(tuple(word), tuple(letters))


@lru_cache(100_000)
def _lacking(word: tuple[Letters, ...], letters: tuple[str, ...]) -> float:
    if not word:
        return inf if letters else 0
    return min(
        _lacking_of(word[0], letters[:end]) + _lacking(word[1:], letters[end:]) for end in range(len(letters) + 1)
    )


@lru_cache(100_000)
def _lacking_of(part: Letters, letters: tuple[str, ...]) -> float:
    match part:
        case Letter():
            if not letters:
                return inf if part.needed else 1
            return 0 if letters == (part.stream,) else inf
        case OneOf():
            return min(_lacking(word, letters) for word in part.words)
        case Times():
            if part.least > 0:
                return _lacking((part.part, Times(part.part, part.least - 1)), letters)
            if not letters:
                return 0
            return min(
                _lacking_of(part.part, letters[:end]) + _lacking_of(part, letters[end:])
                for end in range(1, len(letters) + 1)
            )
