"""Complete matches as columns, and what is asked of them: conditions and values, of many at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pattern_stage.columns import Column, Columns, Ints, Mask, column_of
from pattern_stage.formula import rewritten_condition
from pattern_stage.matching.arrays import json_arrays, plain_values
from pattern_stage.matching.slots import Slots, as_aggregated, slots_of
from pattern_stage.matching.tables import Table
from pattern_stage.operators import Origins
from pattern_stage.predicates import Pairs, compile_condition, compile_value, kind_of
from pattern_stage.range_aggregates import aggregated
from pattern_stage.stretches import spread
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import EVENTS, Length, Names, OfItem, OfItems, Pattern, Referent, Returned
from xscl.algebra.events import AllOf, Attribute, Condition, Kind, Schema, Value

Rows = tuple[Ints, tuple[Column, ...]]
"""For each pair its row, and the columns of parameters."""

_Computed = Callable[[Table, Ints, Mapping[int, Ints]], Column]
"""A column for places of matches. Where a name means each event of a variable, these are given by their numbers."""


class Conditions:
    """Compiles what is over complete matches of a pattern."""

    def __init__(self, pattern: Pattern, texts: Texts, slots: Slots) -> None:
        self._pattern, self._texts, self._slots = pattern, texts, slots
        self._positive = [at for at, one in enumerate(pattern.variables) if not one.negated]

    def condition(
        self, condition: Condition, names: Names, negated: int | None = None
    ) -> Callable[[Table, Ints, Rows, Sequence[tuple[Any, ...]], Ints | None], Mask]:
        """Returns a condition on matches at places, with rows. It may mention an event of a negated variable: then it
        is on pairs of a match and such an event."""
        positive: Names = tuple((name, of) for name, of in names if of.variable != negated)
        columns = self._columns(positive)
        right: Schema = ()
        slots: list[int] = []
        if negated is not None:
            source = self._pattern.variables[negated].source
            own = {name: of for name, of in names if of.variable == negated}
            used = {of.name for of in own.values() if isinstance(of, OfItem)}
            right = tuple((name, kind) for name, kind in source.schema if name in used)
            slots = [self._slots.slot(int(source.stream), Attribute("left", name, kind)) for name, kind in right]
            condition = _of_right(condition, own)
        holds = compile_condition(condition, self._schema(positive), right or None, self._texts)
        ranges = _ranges(positive)

        def held(table: Table, at: Ints, rows: Rows, others: Sequence[tuple[Any, ...]], other_at: Ints | None) -> Mask:
            pair, items = np.arange(len(at)), dict[int, Ints]()
            for variable, first in ranges.items():
                place = self._positive.index(variable)
                sizes = np.maximum(table.sizes(place)[at[pair]] - first, 0)
                numbers, of = spread(np.full(len(pair), first), sizes)
                items = {key: column[of] for key, column in items.items()} | {place: numbers}
                pair = pair[of]
            values = tuple([compute(table, at[pair], items) for compute in columns])
            every = np.arange(len(pair))
            none = np.zeros(len(pair), np.int64)
            left = Columns(none, none, values, none.reshape(-1, 1))
            there = None if other_at is None else other_at[pair]
            events = _as_columns(others, slots, right)
            outcome = holds(Pairs(left, every, events, there, None, rows[0][pair], rows[1]))
            if not ranges:
                return outcome
            result: Mask = np.ones(len(at), np.bool_)
            result[pair[~outcome]] = False
            return result

        return held

    def item(self, item: Returned) -> Callable[[Table], Column]:
        """Returns an item of RETURN."""
        return self._value(item.value, item.names) if item.each is None else self._values(item)

    def _value(self, value: Value, names: Names) -> Callable[[Table], Column]:
        columns = self._columns(names)
        computed = compile_value(value, self._schema(names), None, self._texts)

        def found(table: Table) -> Column:
            at = np.arange(table.count)
            values = tuple([compute(table, at, {}) for compute in columns])
            left = Columns(at, at, values, at.reshape(-1, 1))
            return computed(Pairs(left, at, None, None, None, at, ()))

        return found

    def _values(self, item: Returned) -> Callable[[Table], Column]:
        """Returns an item that has a value for each event of a variable: of each match a JSON array."""
        assert item.each is not None
        columns, variable = self._columns(item.names), self._positive.index(item.each)
        computed = compile_value(item.value, self._schema(item.names), None, self._texts)

        def found(table: Table) -> Column:
            sizes = table.sizes(variable)
            numbers, at = spread(np.zeros(table.count, np.int64), sizes)
            values = tuple([compute(table, at, {variable: numbers}) for compute in columns])
            every = np.arange(len(at))
            left = Columns(every, every, values, every.reshape(-1, 1))
            column = computed(Pairs(left, every, None, None, None, every, ()))
            return self._texts.codes(json_arrays(plain_values(column, self._texts), np.cumsum(sizes).tolist()))

        return found

    def events(self) -> Callable[[Table], Column]:
        """Returns the attribute EVENTS."""
        variables = [self._pattern.variables[at].source for at in self._positive]
        slots = [slots_of(self._slots, int(one.stream), one.schema) for one in variables]

        def found(table: Table) -> Column:
            sizes = [table.sizes(variable) for variable in range(len(variables))]
            starts, ends = _in_turn(sizes)
            rows: list[tuple[Any, ...]] = [()] * int(ends[-1]) if table.count else []
            for variable, (one, places) in enumerate(zip(variables, slots, strict=True)):
                items = table.events(variable)
                at, _ = spread(items.starts, sizes[variable])
                columns = [
                    plain_values(items.column(slot, at, kind), self._texts)
                    for slot, (_, kind) in zip(places, one.schema, strict=True)
                ]
                to, _ = spread(starts[variable], sizes[variable])
                for place, values in zip(to.tolist(), zip(*columns, strict=True), strict=False):  # none has no values
                    rows[place] = values
            return self._texts.codes(json_arrays(rows, ends.tolist()))

        return found

    def _schema(self, names: Names) -> Schema:
        return tuple((name, self._kind(of)) for name, of in names)

    def _kind(self, of: Referent) -> Kind:
        if isinstance(of, OfItem):
            return dict(self._pattern.variables[of.variable].source.schema)[of.name]
        if isinstance(of, OfItems) and of.aggregated.name == "argmax":
            return kind_of(of.aggregated.args[0])
        return "number"

    def _columns(self, names: Names) -> list[_Computed]:
        return [self._referent(of) for _, of in names]

    def _referent(self, of: Referent) -> _Computed:
        variable = self._positive.index(of.variable)
        stream = int(self._pattern.variables[of.variable].source.stream)
        if isinstance(of, Length):
            return lambda table, at, items: table.sizes(variable)[at].astype(np.float64)
        if isinstance(of, OfItems):
            return self._aggregate(of, variable, stream)
        kind = self._kind(of)
        slot = self._slots.slot(stream, Attribute("left", of.name, kind))
        place = of.place

        def taken(table: Table, at: Ints, items: Mapping[int, Ints]) -> Column:
            if place in ("only", "first", "last"):
                return table.ends(variable, slot, kind, last=place == "last")[at]
            places = table.events(variable).starts[at] + items[variable]
            return table.events(variable).column(slot, places - (place == "previous"), kind)

        return taken

    def _aggregate(self, of: OfItems, variable: int, stream: int) -> _Computed:
        one = of.aggregated
        args = [as_aggregated(one, place) for place in range(len(one.args))]
        slots, kinds = [self._slots.slot(stream, arg) for arg in args], [kind_of(arg) for arg in args]

        def computed(table: Table, at: Ints, items: Mapping[int, Ints]) -> Column:
            sizes = items[variable] if of.earlier else table.sizes(variable)[at]
            if not args:
                return sizes.astype(np.float64)
            events = table.events(variable)
            places, _ = spread(events.starts[at], sizes)
            columns = [events.column(slot, places, kind) for slot, kind in zip(slots, kinds, strict=True)]
            ends = np.cumsum(sizes)
            return aggregated(one.name, columns, ends - sizes, ends, self._texts)

        return computed


class Found:
    """What is made of the matches of a pattern that are told."""

    def __init__(self, pattern: Pattern, texts: Texts, slots: Slots, lineage: Origins) -> None:
        self._lineage = lineage
        self._kleene = [one.kleene for one in pattern.variables if not one.negated]
        conditions = Conditions(pattern, texts, slots)
        self._having = None
        if pattern.having != AllOf():
            self._having = conditions.condition(pattern.having, pattern.having_names)
        returned = {item.name: item for item in pattern.returned or ()}
        self._items = [
            conditions.events() if name == EVENTS else conditions.item(returned[name]) for name, _ in pattern.schema
        ]

    @property
    def has_having(self) -> bool:
        """Whether there is HAVING."""
        return self._having is not None

    def having(self, table: Table, at: Ints, rows: Ints, parameters: tuple[Column, ...]) -> Mask:
        """Returns which pairs of a match and a row HAVING holds for."""
        if self._having is None:
            return np.ones(len(at), np.bool_)
        return self._having(table, at, (rows, parameters), (), None)

    def events(self, table: Table, t0: Ints, t1: Ints) -> Columns:
        """Returns matches as events with this t0 and t1."""
        return Columns(t0, t1, tuple([item(table) for item in self._items]), self._parts(table))

    def _parts(self, table: Table) -> Ints:
        """Returns the parts of matches: a column for each variable, of a Kleene one the set of its events."""
        parts = [table.parts(variable, self._lineage) for variable in range(len(self._kleene))]
        return np.stack(parts, axis=1)


def _in_turn(sizes: Sequence[Ints]) -> tuple[list[Ints], Ints]:
    """Returns for each variable where the events of each match begin, if all stand in turn, match by match and variable
    by variable, and where the matches end."""
    table = np.stack(sizes, axis=1)
    ends = np.cumsum(table.ravel()).reshape(table.shape)
    return list((ends - table).T), ends[:, -1]


def _ranges(names: Names) -> dict[int, int]:
    """Returns the variables of whose events a condition holds for all, each with the first of them."""
    found: dict[int, int] = {}
    for _, of in names:
        if (isinstance(of, OfItem) and of.place in ("each", "previous")) or (isinstance(of, OfItems) and of.earlier):
            found[of.variable] = 1
        elif isinstance(of, OfItem) and of.place == "every":
            found[of.variable] = 0
    return found


def _as_columns(events: Sequence[tuple[Any, ...]], slots: Sequence[int], schema: Schema) -> Columns:
    none = np.zeros(len(events), np.int64)
    values = tuple(
        column_of([event[slot] for event in events], are_texts=kind == "string")
        for slot, (_, kind) in zip(slots, schema, strict=True)
    )
    return Columns(none, none, values, none.reshape(-1, 1))


def _of_right(condition: Condition, own: Mapping[str, Referent]) -> Condition:
    def leaf(value: Value) -> Value:
        of = own.get(value.name) if isinstance(value, Attribute) else None
        if isinstance(value, Attribute) and isinstance(of, OfItem):
            return Attribute("right", of.name, value.kind)
        return value

    return rewritten_condition(condition, leaf)
