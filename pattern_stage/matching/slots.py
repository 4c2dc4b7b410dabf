"""The values of events that a pattern needs, and where each is in the tuple that an event is."""

from __future__ import annotations

from pattern_stage.predicates import kind_of
from xscl.algebra.events import Aggregated, Attribute, Function, Schema, Value

FIRST_SLOT = 3
"""An event is a tuple: t0, t1, the number of its part, and from this place on values."""


class Slots:
    """The values of events that anything needs, by input: each is computed once for all events of an interval."""

    def __init__(self) -> None:
        self.values: dict[int, list[Value]] = {}

    def slot(self, stream: int, value: Value) -> int:
        """Returns where a value of an event is in its tuple."""
        known = self.values.setdefault(stream, [])
        if value not in known:
            known.append(value)
        return FIRST_SLOT + known.index(value)


def slots_of(slots: Slots, stream: int, schema: Schema) -> list[int]:
    """Returns where the attributes of the events of a stream are."""
    return [slots.slot(stream, Attribute("left", name, kind)) for name, kind in schema]


def as_aggregated(aggregated: Aggregated, place: int) -> Value:
    """Returns an argument of an aggregate as it is computed: a string as a number, where numbers are aggregated."""
    argument = aggregated.args[place]
    as_is = aggregated.name == "count" or (aggregated.name == "argmax" and place == 0)
    if kind_of(argument) == "string" and not as_is:
        return Function("number", (argument,), "number")
    return argument
