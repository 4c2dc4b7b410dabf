"""The oracle's matches of PATTERN without ERRORS: runs and sets (docs/semantics.md, sections 23 to 25).

In particular:
- Of several events, as those of a SET, the first is the least by `order`. A span is the greatest t1 less the least t0.
- A negated component beside a SET is between all its events and all of the other neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.oracle.events import Event, before
from tests.oracle.pattern_conditions import Conjunct, conjuncts
from tests.oracle.pattern_syntax import Absent, Many, Pattern

Order = Callable[[Event], Any]
"""Orders events: by t1, and those of one t1 in any way that does not depend on when they came."""

Streams = Mapping[str, Iterable[Event]]

Run = tuple[tuple[Event, int], ...]
"""Events, each with the component that it is of, negated ones not counted."""

Bindings = tuple[tuple[Event, ...], ...]
"""The events of each variable, negated ones aside."""


@dataclass(frozen=True)
class Match:
    """The events of each variable; with ERRORS, those of the chain. And when it is known."""

    events: Bindings
    known: int
    errors: int = 0

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
    """All events of all variables."""
    return tuple(one for some in events for one in some)


class Matcher:
    """Finds the matches of a pattern among events."""

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
        self._having = conjuncts(pattern.having)

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
