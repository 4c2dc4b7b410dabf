"""What `xscl.algebra.events` says, computed word by word over few events.

It checks how PATTERN statements are lowered: the oracle finds matches with the conditions as they are written, and here
it finds them with the conjuncts of the algebra.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from tests.oracle.event_syntax import Window
from tests.oracle.event_values import Value as Held
from tests.oracle.events import Event
from tests.oracle.near_matches import near_matches
from tests.oracle.pattern_matches import Match, Matcher, Order, Streams
from tests.oracle.pattern_syntax import (
    STRATEGIES,
    Absent,
    AnyOrder,
    Component,
    Letter,
    Letters,
    Many,
    Near,
    One,
    OneOf,
    Pattern,
    Times,
)
from tests.support.event_algebra import Pair, aggregate_of, holds, value_of
from xscl.algebra import events as algebra
from xscl.algebra.events import Length, Names, OfItem, OfItems, Referent

_STRATEGIES = dict(zip(("strict", "partition", "next", "any"), STRATEGIES, strict=True))
_PHASES = {"first": 0, "each": 1, "complete": 2}
_FURTHER = ("each", "previous")


@dataclass(frozen=True)
class _Conjunct:
    """A conjunct, as the oracle's matcher asks for it. `order` has the names of all variables."""

    conjunct: algebra.WhereConjunct
    order: tuple[str, ...]

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(self.order[referent.variable] for _, referent in self.conjunct.names)

    def last(self, positive: Sequence[str]) -> tuple[int, int]:
        return positive.index(self.order[self.conjunct.variable]), _PHASES[self.conjunct.phase]

    def is_of_further(self, variable: str) -> bool:
        return self.conjunct.phase == "each" and self.order[self.conjunct.variable] == variable

    def holds(self, events: Mapping[str, Sequence[Event]], new: str | None = None) -> bool:
        names = self.conjunct.names
        return all(
            holds(self.conjunct.condition, _pair(names, self.order, events, chosen))
            for chosen in _choices(names, self.order, events, new)
        )


def _choices(
    names: Names, order: Sequence[str], events: Mapping[str, Sequence[Event]], new: str | None
) -> Iterator[Mapping[int, int]]:
    """For each variable of which names mean one event after the other, its place."""
    ranges: dict[int, range] = {}
    for _, referent in names:
        count = len(events[order[referent.variable]])
        if order[referent.variable] == new:
            ranges[referent.variable] = range(count - 1, count)
        elif isinstance(referent, OfItem) and referent.place == "every":
            ranges[referent.variable] = range(count)
        elif (isinstance(referent, OfItem) and referent.place in _FURTHER) or (
            isinstance(referent, OfItems) and referent.earlier
        ):
            ranges[referent.variable] = range(1, count)
    for places in product(*ranges.values()):
        yield dict(zip(ranges, places, strict=True))


def _pair(names: Names, order: Sequence[str], events: Mapping[str, Sequence[Event]], chosen: Mapping[int, int]) -> Pair:
    values = {name: _referred(referent, events[order[referent.variable]], chosen) for name, referent in names}
    return Pair({"left": values}, 0)


def _referred(referent: Referent, events: Sequence[Event], chosen: Mapping[int, int]) -> Held:
    place = chosen.get(referent.variable, 0)
    match referent:
        case Length():
            return float(len(events))
        case OfItems():
            return aggregate_of(referent.aggregated, events[:place] if referent.earlier else events)
    at = {"only": 0, "first": 0, "each": place, "every": place, "previous": place - 1, "last": -1}[referent.place]
    return events[at].values[referent.name]


def matches(statement: algebra.Pattern | algebra.NearPattern, streams: Streams, order: Order) -> set[Match]:
    """The matches of a pattern, those of which NON OVERLAPPING keeps some included."""
    if isinstance(statement, algebra.NearPattern):
        near = Near((_letters(statement.letters),), statement.errors, _window(statement.within), statement.keys)
        return near_matches(near, streams)
    return _Matcher(statement, streams, order).matches()


class _Matcher(Matcher):
    """Finds the matches of the algebra's conjuncts."""

    def __init__(self, pattern: algebra.Pattern, streams: Streams, order: Order) -> None:
        names = tuple(one.name for one in pattern.variables)
        shape = Pattern(
            tuple(_components(pattern)),
            _window(pattern.within),
            _STRATEGIES[pattern.strategy],
            pattern.keys,
            maximal=pattern.maximal,
        )
        super().__init__(shape, streams, order)
        having = algebra.WhereConjunct(pattern.having, pattern.having_names, 0, "complete")
        self._tests = [_Conjunct(one, names) for one in pattern.conjuncts]  # type: ignore[misc]  # as it asks for it
        self._kills = {
            one.name: [_Conjunct(kill, names) for kill in pattern.kills if kill.variable == number]  # type: ignore[misc]  # the same
            for number, one in enumerate(pattern.variables)
            if one.negated
        }
        self._having = [_Conjunct(having, names)]  # type: ignore[list-item]  # the same


def returned(pattern: algebra.Pattern, match: Match) -> tuple[tuple[str, Held | tuple[Held, ...]], ...]:
    """The items of RETURN."""
    order = [one.name for one in pattern.variables]
    positive = [one.name for one in pattern.variables if not one.negated]
    events = dict(zip(positive, match.events, strict=True))
    told: list[tuple[str, Held | tuple[Held, ...]]] = []
    for item in pattern.returned or ():
        found = tuple(
            value_of(item.value, _pair(item.names, order, events, chosen))
            for chosen in _choices(item.names, order, events, None)
        )
        told.append((item.name, found[0] if item.each is None else found))
    return tuple(told)


def _components(pattern: algebra.Pattern) -> Iterator[Component]:
    sets: dict[int, list[One | Many]] = {}
    for one in pattern.variables:
        if not one.negated:
            sets.setdefault(one.group, []).append((Many if one.kleene else One)(one.source.stream, one.name))
    for group in range(pattern.groups + 1):
        for one in pattern.variables:
            if one.negated and one.group == group:
                yield Absent(one.source.stream, one.name)
        if group in sets:
            yield sets[group][0] if len(sets[group]) == 1 else AnyOrder(tuple(sets[group]))


def _letters(node: algebra.Letters) -> Letters:
    match node:
        case algebra.Letter():
            return Letter(node.source.stream, node.needed)
        case algebra.Word():
            return OneOf((tuple(map(_letters, node.parts)),))
        case algebra.OneOf():
            return OneOf(tuple((_letters(part),) for part in node.parts))
        case algebra.Repeated():
            part = _letters(node.part)
            return Times(OneOf(((part,),)) if isinstance(part, Times) else part, node.least)


def _window(us: int | None) -> Window | None:
    return None if us is None else Window(str(us), "us")
