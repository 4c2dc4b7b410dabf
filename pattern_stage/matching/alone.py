"""Which conditions of a pattern are about each event of a variable alone."""

from __future__ import annotations

from typing import Any

from pattern_stage.formula import rewritten_condition
from xscl.algebra.event_sequences import Conjunct, OfItem, Pattern
from xscl.algebra.events import Attribute, Condition


def is_alone(one: Conjunct, pattern: Pattern) -> bool:
    """Whether a conjunct is about each event of its own variable alone."""
    places = {of.place if isinstance(of, OfItem) and of.variable == one.variable else "" for _, of in one.names}
    if places <= {"only", "every"}:
        return True
    if len(places) > 1 or not places <= {"first", "each"}:
        return False
    # What is said of the first event may be said of all others, too: then it is about each.
    twins = (other for other in pattern.conjuncts if other.variable == one.variable and other.phase != one.phase)
    return any(
        {of.place if isinstance(of, OfItem) and of.variable == one.variable else "" for _, of in other.names}
        == ({"first", "each"} - places)
        and of_event(other) == of_event(one)
        for other in twins
    )


def of_event(one: Conjunct) -> Condition:
    """Returns such a conjunct as a condition on an event."""
    names = dict(one.names)

    def leaf(value: Any) -> Any:
        of = names.get(value.name) if isinstance(value, Attribute) else None
        return Attribute("left", of.name, value.kind) if isinstance(of, OfItem) else value

    return rewritten_condition(one.condition, leaf)
