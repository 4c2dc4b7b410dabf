"""Runs a kernel over the oracle's events, and gives its results as the oracle's."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from common.arrays import Ints
from pattern_stage.columns import Column, Columns
from pattern_stage.kernel import Kernel, Results
from pattern_stage.values import Texts
from tests.oracle.events import Event, Events, event
from xscl.algebra.events import Schema


class Parts:
    """Numbers of events, and of sets of events, for a kernel."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self._parts: list[frozenset[Hashable]] = []
        self._ends: list[int] = []

    def number(self, parts: frozenset[Hashable], t1: int) -> int:
        """The number of an event or set with these parts."""
        if parts not in self.numbers:
            self.numbers[parts] = len(self._parts)
            self._parts.append(parts)
            self._ends.append(t1)
        return self.numbers[parts]

    def of(self, numbers: Iterable[int]) -> frozenset[Hashable]:
        """The events behind numbers."""
        return frozenset[Hashable]().union(*(self._parts[number] for number in numbers if number >= 0))

    def ends(self, numbers: Ints) -> Ints:
        """The t1 of the events with these numbers."""
        return np.array([self._ends[number] for number in numbers.tolist()], np.int64)

    def together(self, parts: Ints, groups: Ints) -> Ints:
        """A number for the set of the events of each group."""
        found = []
        for group in range(int(groups.max(initial=-1)) + 1):
            numbers = parts[groups == group].ravel().tolist()
            whole = self.of(numbers)
            found.append(self.number(whole, max(self._ends[number] for number in numbers if number >= 0)))
        return np.array(found, np.int64)


def columns_of(events: Iterable[Event], schema: Schema, texts: Texts, parts: Parts) -> Columns:
    """The oracle's events as columns, in order of t1."""
    ordered = sorted(events, key=lambda one: (one.t1, repr(one)))
    values: list[Column] = []
    for name, kind in schema:
        column = [one.values[name] for one in ordered]
        if kind == "string":
            values.append(texts.codes(None if value is None else str(value) for value in column))
        else:
            values.append(np.array([np.nan if value is None else float(value) for value in column], np.float64))
    numbers = [parts.number(one.parts, one.t1) for one in ordered]
    t0, t1 = (np.array([getattr(one, name) for one in ordered], np.int64) for name in ("t0", "t1"))
    return Columns(t0, t1, tuple(values), np.array(numbers, np.int64).reshape(-1, 1))


def events_of(found: Results, texts: Texts, parts: Parts) -> list[tuple[int, Event]]:
    """Results as pairs of a statement and an event of the oracle."""
    columns = found.events
    made = []
    for place in range(len(columns)):
        values = {
            name: texts.text(int(column[place])) if kind == "string" else _number(float(column[place]))
            for (name, kind), column in zip(found.schema, columns.values, strict=True)
        }
        times = int(columns.t0[place]), int(columns.t1[place])
        made.append(event(values, *times, parts.of(columns.parts[place].tolist())))
    return [(int(number), made[place]) for number, place in zip(found.statements, found.at, strict=True)]


def _number(number: float) -> float | None:
    return None if np.isnan(number) else number


class Trial:
    """A kernel with all that it needs, which is given events in intervals."""

    def __init__(self, schemas: Mapping[str, Schema], **options: object) -> None:
        self.schemas = schemas
        self.texts, self.parts = Texts(), Parts()
        self.kernel = Kernel(self.texts, self.parts, **options)  # type: ignore[arg-type]  # those of Kernel
        self.found: dict[int, list[Event]] = {}

    def run(self, streams: Mapping[str, Events], start: int, until: int) -> None:
        """Runs an interval."""
        given = {
            name: columns_of(
                (one for one in found if start <= one.t1 < until), self.schemas[name], self.texts, self.parts
            )
            for name, found in streams.items()
        }
        for results in self.kernel.run(given, until):
            for statement, one in events_of(results, self.texts, self.parts):
                self.found.setdefault(statement, []).append(one)

    def run_all(self, streams: Mapping[str, Events], bounds: Sequence[int]) -> None:
        """Runs the intervals between bounds."""
        for start, until in pairwise(bounds):
            self.run(streams, start, until)

    def results(self, statement: int) -> Events:
        """What a statement has found, each event once."""
        found = self.found.get(statement, [])
        assert len(set(found)) == len(found), "an event is found once"
        return frozenset(found)
