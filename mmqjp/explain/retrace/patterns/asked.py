"""A condition of a PATTERN: for which events it is asked, whether it holds, and what tells partial matches apart for
it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise, product

from mmqjp.explain.pattern_text import referent_text
from mmqjp.explain.retrace.event import Event, Plain
from mmqjp.explain.retrace.values import Scope, aggregated, evaluated, holds
from pattern_stage.formula import rewritten_condition
from xscl.algebra.event_sequences import Conjunct, Length, Names, OfItem, OfItems, Pattern, Referent
from xscl.algebra.events import AllOf, Attribute, Condition, Value

Match = Mapping[str, Sequence[Event]]
"""Of each variable, or of each letter, its events in the order of time."""

_EACH = ("each", "previous")


class Asked:
    """A condition, whose names stand for something of a match."""

    def __init__(self, pattern: Pattern, condition: Condition, names: Names) -> None:
        self._pattern, self._names = pattern, names
        self._texts = {name: referent_text(of, pattern.variables) for name, of in names}
        self.said = rewritten_condition(condition, self._renamed)
        """The condition with its names as in the statement."""
        self.variables = tuple(dict.fromkeys(of.variable for _, of in names))
        """The variables that it is about, by their numbers."""

    def _renamed(self, leaf: Value) -> Value:
        return Attribute(leaf.part, self._texts[leaf.name], leaf.kind) if isinstance(leaf, Attribute) else leaf

    def scopes(self, match: Match, new: int | None = None) -> Iterator[Scope]:
        """Yields what the names mean, for all events that it is about, in their order; of the variable `new`, only for
        its last event."""
        about = {one: self._places(match, one, is_new=one == new) for one in self.variables}
        variables = self._pattern.variables
        for places in product(*about.values()):
            at = dict(zip(about, places, strict=True))
            values = {self._texts[name]: _value(of, match[variables[of.variable].name], at) for name, of in self._names}
            yield Scope(values, 0)

    def failing(self, match: Match, new: int | None = None) -> Scope | None:
        """Returns what the names mean where it does not hold; None if it holds."""
        return next((scope for scope in self.scopes(match, new) if not holds(self.said, scope)), None)

    def _places(self, match: Match, variable: int, *, is_new: bool) -> range:
        """Returns the places of a variable's events for each of which it has to hold: one, if it is about none."""
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

    def signature(self, match: Match) -> Iterator[Hashable]:
        """Yields what of the variables that a partial match has may matter for the condition later: partial matches
        with the same have it alike, with whatever is added to both."""
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
        """Whether it is about one variable alone, and there about an event and the one before it, or each event."""
        places = {of.place if isinstance(of, OfItem) else "" for _, of in self._names}
        return len(self.variables) == 1 and places <= {*_EACH, "every"}


def conjunct_of(pattern: Pattern, one: Conjunct) -> Asked:
    """Returns a conjunct of WHERE."""
    return Asked(pattern, one.condition, one.names)


def having_of(pattern: Pattern) -> list[Asked]:
    """Returns the conditions of HAVING."""
    having = pattern.having.args if isinstance(pattern.having, AllOf) else (pattern.having,)
    return [Asked(pattern, one, pattern.having_names) for one in having]


def _kept(of: Referent, events: Sequence[Event]) -> Hashable:
    match of:
        case Length():
            return len(events)
        case OfItems(aggregated=one):
            scopes = [Scope(event.values, 0) for event in events]
            if one.name in ("min", "max", "count"):
                return aggregated(one, scopes)
            values = [tuple(evaluated(arg, scope) for arg in one.args) for scope in scopes]
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
            return aggregated(one, [Scope(event.values, 0) for event in some])
        case OfItem(place=place, name=name):
            here = at[of.variable]
            which = {"only": 0, "first": 0, "last": -1, "each": here, "previous": here - 1, "every": here}[place]
            return events[which].values[name]
