"""Match windows (Cadonna, Gamper, Boehlen): what events behind a first one say of whether a match may begin with it.

The window of an event is all that lies within the pattern's window from it on. Three things make it small, or needless
to look at, before anything is matched: events are left out that no variable may have by what they are alone (filter);
events with other keys are in windows of their own (partition); and each variable has to have a candidate, in the order
of the groups (necessary conditions).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pattern_stage.matching.alone import of_event
from xscl.algebra.event_sequences import Conjunct, OfItem, Pattern
from xscl.algebra.events import Attribute, Comparison, Condition

Unit = Literal["first", "further", "absent"]
"""Which event of a variable one is: the first or only one, a further one, or one that must not be there."""

Place = tuple[int, Unit]
"""A variable, and which event of it."""

_OWN = {"first": {"only", "first", "every"}, "further": {"each", "every"}, "absent": {"only", "every"}}
_PHASE = {"first": "first", "further": "each", "absent": "complete"}
_UNITS: dict[str, tuple[Unit, ...]] = {
    "only": ("first",),
    "first": ("first",),
    "each": ("further",),
    "every": ("first", "further"),
}


@dataclass(frozen=True, slots=True)
class Role:
    """What an event may be to a match: it has to satisfy `conditions`, on the event as the left one, and its `keys`
    are equal to those of all other events of the match."""

    variable: int
    unit: Unit
    conditions: tuple[Condition, ...]
    keys: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class MatchWindows:
    """The roles of a pattern. All events of a match have some role of its variable."""

    roles: tuple[Role, ...]
    groups: tuple[int, ...]
    """The group of the variable of each role."""

    @property
    def firsts(self) -> list[int]:
        """The roles of first events: each has to have a candidate."""
        return [at for at, role in enumerate(self.roles) if role.unit == "first"]

    def in_order(self) -> Iterator[tuple[int, int]]:
        """Yields pairs of roles: some candidate of the one ends before some candidate of the other begins."""
        for one in self.firsts:
            for other in self.firsts:
                if self.groups[other] == self.groups[one] + 1:
                    yield one, other


def match_windows(pattern: Pattern) -> MatchWindows | None:
    """Returns the roles of a pattern; None if its matches depend on events that have none: with `strict_contiguity` and
    `partition_contiguity`."""
    if pattern.strategy in ("strict", "partition"):
        return None
    places: list[Place] = []
    for at, one in enumerate(pattern.variables):
        units: tuple[Unit, ...] = ("absent",) if one.negated else ("first", "further") if one.kleene else ("first",)
        places += [(at, unit) for unit in units]
    kinds = [dict(one.source.schema) for one in pattern.variables]
    keys: list[dict[Place, Attribute]] = [
        {(at, unit): Attribute("left", name, kinds[at][name]) for at, unit in places} for name in pattern.keys
    ]
    # With another strategy, an event of any key may be the next one, as long as its equality is not tested yet.
    if pattern.strategy == "any":
        keys += _equated(pattern, places)
    roles = [
        Role(at, unit, _conditions(pattern, at, unit), tuple(key[at, unit] for key in keys)) for at, unit in places
    ]
    return MatchWindows(tuple(roles), tuple(pattern.variables[role.variable].group for role in roles))


def _conditions(pattern: Pattern, variable: int, unit: Unit) -> tuple[Condition, ...]:
    """Returns the conditions on an event alone: those that are tested as a match takes it."""
    tests = pattern.kills if unit == "absent" else pattern.conjuncts
    return tuple(
        of_event(one)
        for one in tests
        if one.variable == variable and one.phase == _PHASE[unit] and _is_about(one, variable, _OWN[unit])
    )


def _is_about(one: Conjunct, variable: int, own: set[str]) -> bool:
    return all(isinstance(of, OfItem) and of.variable == variable and of.place in own for _, of in one.names)


# ---------------------------------------------------------------- keys out of conditions

_Node = tuple[Place, Attribute]


def _equated(pattern: Pattern, places: Sequence[Place]) -> list[dict[Place, Attribute]]:
    """Returns keys that conditions imply: attributes, at least one of each role, that equalities make equal.

    Only first events are in every match: an equality with another one says something of that alone.
    """
    absent = frozenset(at for at, unit in places if unit == "absent")
    pairs = [pair for one in (*pattern.conjuncts, *pattern.kills) for pair in _equal(one, absent)]
    classes: dict[_Node, set[_Node]] = {node: {node} for pair in pairs for node in pair if node[0][1] == "first"}
    for one, other in pairs:
        if one in classes and other in classes:
            merged = classes[one] | classes[other]
            classes |= dict.fromkeys(merged, merged)
    for one, other in (*pairs, *(pair[::-1] for pair in pairs)):
        if one in classes and other not in classes:
            classes[one].add(other)
    found = [dict(sorted(some, key=repr)) for some in {id(some): some for some in classes.values()}.values()]
    return [key for key in found if key.keys() == set(places)]


def _equal(one: Conjunct, absent: frozenset[int]) -> Iterator[tuple[_Node, _Node]]:
    """Yields what a conjunct makes equal, if it is an equality of attributes."""
    condition, names = one.condition, dict(one.names)
    if not isinstance(condition, Comparison) or condition.op != "=":
        return
    left, right = condition.left, condition.right
    if not (isinstance(left, Attribute) and isinstance(right, Attribute)) or left.kind != right.kind:
        return
    of, other = names[left.name], names[right.name]
    if not (isinstance(of, OfItem) and isinstance(other, OfItem)):
        return
    if {of.place, other.place} == {"each", "previous"} and (of.variable, of.name) == (other.variable, other.name):
        # Each event is equal to the one before: so all are equal to the first one.
        attribute = Attribute("left", of.name, left.kind)
        yield ((of.variable, "first"), attribute), ((of.variable, "further"), attribute)
        return
    for unit in _units(of, absent):
        for another in _units(other, absent):
            yield (
                ((of.variable, unit), Attribute("left", of.name, left.kind)),
                ((other.variable, another), Attribute("left", other.name, right.kind)),
            )


def _units(of: OfItem, absent: frozenset[int]) -> tuple[Unit, ...]:
    return ("absent",) if of.variable in absent else _UNITS.get(of.place, ())
