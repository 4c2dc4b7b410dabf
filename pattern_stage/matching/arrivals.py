"""The events of an interval, epoch by epoch: of each its key, its values, and what it may be to which rows by these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from pattern_stage.clauses import Clauses, TooManyClauses, clauses_of
from pattern_stage.columns import Column, Columns, Ints, Mask
from pattern_stage.flow import Flow
from pattern_stage.formula import has_parameters
from pattern_stage.matching.static_test import StaticTest
from pattern_stage.operators import Index, RowVectors
from pattern_stage.predicates import Pairs, compile_condition, compile_value, single_events
from pattern_stage.values import Texts
from xscl.algebra.events import AllOf, Condition, Schema, Value

Key = Any
"""The values of the keys of an event; None if one is NULL."""

MakeIndex = Callable[[Schema, Texts], Index]


class Arrival(NamedTuple):
    """An event, and for each role of its stream the rows that may have it there. Roles are numbered for all streams;
    `masks` has 0 for those of others."""

    key: Key
    event: tuple[Any, ...]
    """Its t0, t1, the number of its part, and values."""
    masks: tuple[int, ...]
    stream: int


class Role:
    """What an event of a stream may be to a pattern, by conditions on the event alone."""

    def __init__(
        self, stream: int, schema: Schema, conditions: Sequence[Condition], texts: Texts, index: MakeIndex
    ) -> None:
        self.stream = stream
        plain = [one for one in conditions if not has_parameters(one)]
        self._plain = compile_condition(AllOf(tuple(plain)), schema, None, texts) if plain else None
        self._tests = [
            StaticTest(some, clauses, index(schema, texts))
            for some, clauses in _clauses([one for one in conditions if has_parameters(one)])
        ]

    def add_rows(self, new: Ints, rows: RowVectors) -> None:
        """Takes in rows."""
        for test in self._tests:
            test.add_rows(new, rows)

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows."""
        for test in self._tests:
            test.remove_rows(gone)

    def codes(self) -> Iterator[Ints]:
        """Yields the codes of the texts of its rows."""
        for test in self._tests:
            yield from test.codes()

    def masks(self, events: Columns, every: int) -> list[int]:
        """Returns of each event the rows that may have it, of `every`."""
        count = len(events)
        found = [every] * count
        if self._plain is not None:
            at = np.arange(count)
            held = self._plain(single_events(events, at, at, ()))
            found = [every if one else 0 for one in held.tolist()]
        for test in self._tests:
            found = [one & other for one, other in zip(found, test.masks(events), strict=True)]
        return found


class Arrivals:
    """Makes the events of intervals ready for all roles of a pattern."""

    def __init__(
        self, schemas: Sequence[Schema], keys: Sequence[str], roles: Sequence[Role], texts: Texts, *, all_events: bool
    ) -> None:
        """`all_events`: also those that no role may have."""
        self._schemas, self._roles, self._all = schemas, roles, all_events
        self._texts = texts
        self._keys = [[[name for name, _ in schema].index(key) for key in keys] for schema in schemas]
        self._values: list[list[Callable[[Pairs], Column]]] = [[] for _ in schemas]

    def compute(self, values: dict[int, list[Value]]) -> None:
        """Takes in what is computed of the events of each input."""
        for stream, some in values.items():
            made = self._values[stream]
            made += [compile_value(one, self._schemas[stream], None, self._texts) for one in some[len(made) :]]

    def epochs(
        self, inputs: Sequence[Flow], every: int, since: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, list[Arrival]]]:
        """Yields the t1 of each epoch with its events, in order. `since` has times and rows that see what ends after
        them; other rows see all."""
        arrivals: list[Arrival] = []
        for stream, flow in enumerate(inputs):
            if len(flow.events):
                arrivals += self._arrivals(stream, flow.events, every, since)
        if len([flow for flow in inputs if len(flow.events)]) > 1:
            arrivals.sort(key=lambda one: cast(int, one.event[1]))
        epoch: list[Arrival] = []
        time = None
        for one in arrivals:
            if one.event[1] != time:
                if epoch:
                    yield cast(int, time), epoch
                time, epoch = one.event[1], []
            epoch.append(one)
        if epoch:
            yield cast(int, time), epoch

    def _arrivals(self, stream: int, events: Columns, every: int, since: Sequence[tuple[int, int]]) -> list[Arrival]:
        count = len(events)
        nothing = [0] * count
        masks = [role.masks(events, every) if role.stream == stream else nothing for role in self._roles]
        chosen: Ints | None = None
        if not self._all:
            some: Mask = np.zeros(count, np.bool_)
            for column in masks:
                if column is not nothing:
                    some |= np.fromiter(map(bool, column), np.bool_, count)
            if not some.all():
                chosen = np.flatnonzero(some)
                events = events.take(chosen)
                masks = [[column[at] for at in chosen.tolist()] for column in masks]
                count = len(events)
        at = np.arange(count)
        pairs = single_events(events, at, at, ())
        columns = [value(pairs).tolist() for value in self._values[stream]]
        tuples = zip(events.t0.tolist(), events.t1.tolist(), events.parts[:, 0].tolist(), *columns, strict=True)
        found = [
            Arrival(key, event, mask, stream)
            for key, event, mask in zip(self._key_of(stream, events), tuples, zip(*masks, strict=True), strict=True)
        ]
        if since and len(found) and found[0].event[1] <= max(time for time, _ in since):
            found = [_seen(one, since) for one in found]
        return found

    def _key_of(self, stream: int, events: Columns) -> list[Key]:
        places = self._keys[stream]
        if not places:
            return [()] * len(events)
        columns = []
        for place in places:
            column = events.values[place]
            if column.dtype == np.int64:
                columns.append([code if code >= 0 else None for code in column.tolist()])
            else:
                columns.append([number + 0.0 if number == number else None for number in column.tolist()])
        if len(columns) == 1:
            return [None if value is None else (value,) for value in columns[0]]
        return [None if None in values else values for values in zip(*columns, strict=True)]


def _seen(one: Arrival, since: Sequence[tuple[int, int]]) -> Arrival:
    hidden = 0
    for time, rows in since:
        if one.event[1] <= time:
            hidden |= rows
    return one._replace(masks=tuple([mask & ~hidden for mask in one.masks]))


def _clauses(conditions: Sequence[Condition]) -> list[tuple[Sequence[Condition], Clauses]]:
    """Returns conditions in disjunctive normal form: all as one, if it has few clauses, else each."""
    if not conditions:
        return []
    try:
        return [(conditions, clauses_of(AllOf(tuple(conditions))))]
    except TooManyClauses:
        return [([one], clauses_of(one)) for one in conditions]
