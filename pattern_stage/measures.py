"""What the aggregates of AGGREGATE are computed from: for each event, or for several that were merged, some numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from pattern_stage.columns import Column, Floats, Ints
from pattern_stage.merging import Kind
from pattern_stage.predicates import Pairs, compile_value, kind_of
from pattern_stage.range_aggregates import aggregated, known, sums
from pattern_stage.values import Texts
from xscl.algebra.events import Aggregate, Aggregated, AggregateName, Function, Schema, Value


class Measure(NamedTuple):
    """What is kept of an argument: whether it is `known`, as a number; a number that is merged in a way; or the `value`
    as it is, which cannot be merged."""

    what: Literal["known", "sum", "min", "max", "value"]
    of: Value

    @property
    def is_text(self) -> bool:
        """Whether its column is one of texts."""
        return self.what == "value" and kind_of(self.of) == "string"

    @property
    def kind(self) -> Kind:
        """How its column is merged."""
        assert self.what != "value"
        return "count" if self.what == "known" else self.what


class Item(NamedTuple):
    """An aggregate: its name, and the places of its measures."""

    name: AggregateName
    places: tuple[int, ...]


def measures_of(one: Aggregated) -> tuple[Measure, ...]:
    """Returns what an aggregate is computed from; count() of nothing but how many events there are."""
    match one.name:
        case "count":
            return tuple(Measure("known", argument) for argument in one.args)
        case "sum" | "avg":
            return Measure("sum", _number(one.args[0])), Measure("known", _number(one.args[0]))
        case "min" | "max":
            return (Measure(one.name, _number(one.args[0])),)
        case "argmax":
            return Measure("value", one.args[0]), Measure("value", _number(one.args[1]))


def _number(value: Value) -> Value:
    return Function("number", (value,), "number") if kind_of(value) == "string" else value


def compile_measure(measure: Measure, schema: Schema, texts: Texts) -> Callable[[Pairs], Column]:
    """Returns a function that computes a measure of events."""
    value = compile_value(measure.of, schema, None, texts)
    return lambda pairs: _as_measure(measure, value(pairs))


def _as_measure(measure: Measure, values: Column) -> Column:
    if measure.what == "value":
        return values
    # -0 is 0: which of them is the least does not depend on their order.
    return known(values).astype(np.float64) if measure.what == "known" else values + np.float64(0)


def kept_before(definition: Aggregate) -> list[bool]:
    """Returns which columns are of texts where a state has the arguments of the aggregates, as it once had."""
    return [kind_of(argument) == "string" for _, one in definition.items for argument in _arguments(one)]


def as_measures(definition: Aggregate, columns: Sequence[Column], measures: Sequence[Measure]) -> list[Column]:
    """Returns such columns as measures."""
    found: dict[Measure, Column] = {}
    arguments = [(one, argument) for _, one in definition.items for argument in _arguments(one)]
    for (one, argument), column in zip(arguments, columns, strict=True):
        for measure in measures_of(one):
            if measure.of == argument:
                found[measure] = _as_measure(measure, column)
    return [found[measure] for measure in measures]


def _arguments(one: Aggregated) -> tuple[Value, ...]:
    if one.name == "argmax":
        return tuple(measure.of for measure in measures_of(one))
    return tuple(dict.fromkeys(measure.of for measure in measures_of(one)))


def computed(
    item: Item, columns: Sequence[Column], totals: Sequence[Ints], starts: Ints, ends: Ints, texts: Texts
) -> Column:
    """Returns an aggregate of ranges of rows, none of them empty. `totals` has the running sums of how many events the
    rows stand for, and then those of each column of counts, from 0 on."""
    at = item.places
    if item.name == "count":
        total = totals[at[0] + 1 if at else 0]
        return (total[ends] - total[starts]).astype(np.float64)
    if item.name in ("sum", "avg"):
        total = totals[at[1] + 1]
        numbers: Floats = columns[at[0]]  # type: ignore[assignment]  # a sum's column is of numbers
        return sums(item.name, numbers, total[ends] - total[starts], starts, ends)
    return aggregated(item.name, [columns[place] for place in at], starts, ends, texts)


def totals_of(weights: Ints, columns: Sequence[Column], measures: Sequence[Measure]) -> list[Ints]:
    """Returns the `totals` of rows; nothing for what is no count."""
    none = np.zeros(0, np.int64)
    found = [np.append(0, np.cumsum(weights))]
    for column, measure in zip(columns, measures, strict=True):
        is_count = measure.what == "known"
        found.append(np.append(0, np.cumsum(column.astype(np.int64))) if is_count else none)
    return found
