"""Cuts the conditions of PATTERN statements into conjuncts, and says when each is tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from xscl.algebra.event_sequences import Conjunct, Length, Names, OfItem, OfItems, Phase, Place, Referent
from xscl.algebra.events import ALWAYS, AllOf, Attribute, Condition, Value
from xscl.event_forms import mapped, mapped_condition, parts_of, values_of

_PHASES: tuple[Phase, ...] = ("first", "each", "complete")


def renamed(value: Value, known: Mapping[str, Referent]) -> tuple[Value, Names]:
    """A value with the names `#0`, `#1`, ... for what it mentions, and what they stand for."""
    names = _numbered(parts_of(value), known)
    return mapped(value, _renaming(known, names)), _sorted(names)


def renamed_condition(condition: Condition, known: Mapping[str, Referent]) -> tuple[Condition, Names]:
    """The same for a condition."""
    names = _numbered((part for value in values_of(condition) for part in parts_of(value)), known)
    return mapped_condition(condition, _renaming(known, names)), _sorted(names)


def mentioned(condition: Condition, known: Mapping[str, Referent]) -> list[Referent]:
    """What a condition mentions."""
    return list(_numbered((part for value in values_of(condition) for part in parts_of(value)), known))


def conjuncts_of(condition: Condition, known: Mapping[str, Referent], negated: Sequence[int]) -> Iterator[Conjunct]:
    """The conjuncts of a condition. `negated` has the numbers of the variables that are negated; a conjunct mentions at
    most one of these."""
    for one in condition.args if isinstance(condition, AllOf) else (condition,):
        if one == ALWAYS:
            continue
        referents = mentioned(one, known)
        variable = next((referent.variable for referent in referents if referent.variable in negated), None)
        if variable is not None:
            yield _conjunct(one, known, variable, "complete")
            continue
        variable, phase = max(map(_unit, referents), default=(min(set(range(len(negated) + 1)) - {*negated}), 0))
        own = {_place(referent) for referent in referents if referent.variable == variable}
        if phase == 1 and "every" in own:
            yield _conjunct(one, _narrowed(known, variable, "first"), variable, "first")
            yield _conjunct(one, _narrowed(known, variable, "each"), variable, "each")
        else:
            yield _conjunct(one, known, variable, _PHASES[phase])


def clashing(referents: Sequence[Referent]) -> int | None:
    """A variable of which a condition mentions every event, and the one before another; None if there is none."""
    for one in referents:
        if _is_every(one, one.variable):
            for other in referents:
                if other.variable == one.variable and _place(other) in ("each", "previous", "earlier"):
                    return one.variable
    return None


def in_order(conjuncts: Sequence[Conjunct]) -> tuple[Conjunct, ...]:
    """Conjuncts in the order of time, as they are written where that is the same."""
    return tuple(sorted(conjuncts, key=lambda one: (one.variable, _PHASES.index(one.phase))))


def _conjunct(condition: Condition, known: Mapping[str, Referent], variable: int, phase: Phase) -> Conjunct:
    return Conjunct(*renamed_condition(condition, known), variable, phase)


def _narrowed(known: Mapping[str, Referent], variable: int, place: Place) -> dict[str, Referent]:
    """What names stand for, with one event of a variable in place of every one."""
    return {
        name: OfItem(variable, place, found.name) if isinstance(found, OfItem) and _is_every(found, variable) else found
        for name, found in known.items()
    }


def _place(referent: Referent) -> str:
    match referent:
        case OfItem(place=place):
            return place
        case OfItems(earlier=True):
            return "earlier"
    return "all"


def _is_every(referent: Referent, variable: int) -> bool:
    return isinstance(referent, OfItem) and referent.variable == variable and referent.place == "every"


def _unit(referent: Referent) -> tuple[int, int]:
    """The variable of a referent, and the phase from which on it is known."""
    match referent:
        case OfItem(variable=variable, place="only" | "first"):
            return variable, 0
        case Length() | OfItem(place="last") | OfItems(earlier=False):
            return referent.variable, 2
    return referent.variable, 1


def _numbered(parts: Iterator[Value], known: Mapping[str, Referent]) -> dict[Referent, str]:
    """Names for the referents, in the order in which they are mentioned."""
    found: dict[Referent, str] = {}
    for part in parts:
        if isinstance(part, Attribute):
            found.setdefault(known[part.name], f"#{len(found)}")
    return found


def _renaming(known: Mapping[str, Referent], names: Mapping[Referent, str]) -> Callable[[Value], Value]:
    def leaf(value: Value) -> Value:
        return replace(value, name=names[known[value.name]]) if isinstance(value, Attribute) else value

    return leaf


def _sorted(names: Mapping[Referent, str]) -> Names:
    return tuple((name, referent) for referent, name in names.items())
