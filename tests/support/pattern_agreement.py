"""Runs worlds with PATTERN statements in the kernel, for comparison with the oracle: of each match its bindings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from common.arrays import Ints
from pattern_stage.columns import Columns
from pattern_stage.kernel import Kernel, Results
from pattern_stage.lineage import Lineage
from pattern_stage.operators import Excess, RowLimits
from pattern_stage.pattern.match import event_order
from pattern_stage.values import Texts
from tests.generate.documents import SECOND
from tests.oracle.events import Event, event
from tests.oracle.pattern_syntax import Near, Pattern
from tests.oracle.pattern_world import PatternWorld, by_parts
from tests.support.event_agreement import MakeKernel, Numbers, Run, Runner
from tests.support.pattern_lowering import lowered_pattern
from xscl.algebra.events import Schema, Statement

Told = tuple[tuple[tuple[Event, ...], ...], int, int, Any]
"""A match: the events of each variable, when it is known, its errors, and its values."""


def lowered_statements(world: PatternWorld) -> tuple[list[Statement], dict[str, Schema]]:
    """The statements of a world in the algebra, and the attributes of its streams."""
    found: list[Statement] = []
    for one in world.statements:
        assert isinstance(one, Pattern | Near)
        found.append(lowered_pattern(one, world.schemas))
    return found, {name: tuple(schema.items()) for name, schema in world.schemas.items()}


class _Numbers(Numbers):
    """Knows the events behind numbers, too."""

    def __init__(self) -> None:
        super().__init__()
        self.events: dict[int, Event] = {}

    def of(self, stream: str, events: Sequence[Event]) -> Ints:
        numbers = super().of(stream, events)
        self.events.update(zip(numbers.tolist(), events, strict=True))
        return numbers

    def bound(self, numbers: Ints) -> tuple[tuple[Event, ...], ...]:
        """The events of each variable."""
        found = []
        for number in numbers.tolist():
            if number < 0:
                continue
            origin = self.lineage.origins(number_array(number))[number]
            found.append(tuple(sorted((self.events[part] for part in origin.parts or (number,)), key=by_parts)))
        return tuple(found)


def number_array(number: int) -> Ints:
    import numpy as np

    return np.array([number], np.int64)


class PatternRunner(Runner):
    """Runs a world with patterns."""

    def __init__(self, world: PatternWorld, run: Run, make: MakeKernel | None = None) -> None:
        self._pattern_world = world
        self._streams_of = lowered_statements(world)
        super().__init__(world, run, make)
        self.told: list[list[Told]] = [[] for _ in world.statements]

    def _lowered(self) -> tuple[list[Statement], dict[str, Schema]]:
        return self._streams_of

    def _made_numbers(self) -> Numbers:
        return _Numbers()

    def order(self) -> Any:
        """The kernel's order of events of one t1."""
        numbers = self._numbers
        assert isinstance(numbers, _Numbers)
        ranks = event_order(numbers.lineage, numbers.events)
        of = {numbers.events[number]: rank for number, rank in ranks.items()}
        return lambda one: of.get(one, (one.t1, "", 0, (), b"", 0))

    def _take(self, results: Iterable[Results]) -> None:
        for result in results:
            events = self._pattern_events(result)
            for at, place in zip(result.at.tolist(), result.statements.tolist(), strict=True):
                made, bound = events[at]
                statement = self._pattern_world.statements[place]
                if isinstance(statement, Pattern | Near):
                    told: Told = (bound, made.t1, int(made.values.get("errors") or 0), made.attributes)
                    assert told not in self.told[place], f"{place} has this twice: {told}"
                    self.told[place].append(told)
                else:
                    assert made not in self._found[place]
                self._found[place].add(made)

    def _pattern_events(self, result: Results) -> list[tuple[Event, tuple[tuple[Event, ...], ...]]]:
        numbers = self._numbers
        assert isinstance(numbers, _Numbers)
        columns: Columns = result.events
        events = self._events(result.schema, columns)
        return [(one, numbers.bound(parts)) for one, parts in zip(events, columns.parts, strict=True)]


class LimitedRunner(PatternRunner):
    """Runs a world with limits: a statement that exceeds one goes, and `exceeded` says when, and by which limit."""

    def __init__(self, world: PatternWorld, run: Run, limits: RowLimits) -> None:
        def make(texts: Texts, lineage: Lineage, run: Run) -> Kernel:
            return Kernel(texts, lineage, rules=run.rules, hashed=run.hashed, limits=limits)

        super().__init__(world, run, make)
        self.exceeded: dict[int, Excess] = {}

    def _is_there(self, place: int, now: int) -> bool:
        return place not in self.exceeded and super()._is_there(place, now)

    def _interval(self, begin: int, end: int) -> None:
        super()._interval(begin, end)
        assert isinstance(self._kernel, Kernel)
        for place, excess in self._kernel.exceeded.items():
            self.exceeded[place] = excess


def expected(world: PatternWorld, place: int) -> set[tuple[Any, ...]]:
    """What the oracle says that a pattern tells, as `PatternRunner.told` has it."""
    from tests.oracle.pattern_world import returned

    statement = world.statements[place]
    assert isinstance(statement, Pattern | Near)
    found = set()
    for one in world.matches(place):
        values = {name: value for name, value in returned(statement, one) if not isinstance(value, tuple)}
        attributes = event(values, 0, 0, ["x"]).attributes
        bound = tuple(tuple(sorted(some, key=by_parts)) for some in one.events)
        if isinstance(statement, Near):
            bound = (tuple(sorted(one.flat, key=by_parts)),)
        found.add((bound, one.known, one.errors, attributes))
    return found


__all__ = ["SECOND", "PatternRunner", "expected", "lowered_statements"]
