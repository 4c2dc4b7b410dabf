"""Runs the statements of a random world of events in the kernel, cut into intervals, for comparison with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import numpy as np
import pyarrow as pa

from common.arrays import Ints
from pattern_stage.columns import Column, Columns
from pattern_stage.kernel import Kernel, Results
from pattern_stage.lineage import Lineage
from pattern_stage.operators import Excess, RowLimits
from pattern_stage.plan import RULE_NAMES, RuleName
from pattern_stage.values import Texts
from tests.generate.documents import SECOND
from tests.oracle.event_values import Value
from tests.oracle.events import Event, Events, World, event
from xscl.algebra.events import Schema, Statement, Stream
from xscl.event_lower import lower_event_query
from xscl.event_parser import schemas_of
from xscl.parser import parse_script
from xscl.syntax import EventStreams

Parts = frozenset[Hashable]


def lowered(world: World) -> tuple[list[Stream], dict[str, Schema]]:
    """The statements of a world in the algebra of events, and the attributes of its streams in their order."""
    known = EventStreams({name: tuple(world.schemas[name].items()) for name in world.given})
    script = parse_script("; ".join(statement.text() for statement in world.statements), events=known)
    schemas = {name: schema for name, schema in schemas_of(script, known).items() if schema is not None}
    return [lower_event_query(query, schemas) for query in script.event_queries], schemas


class Numbers:
    """The numbers of the oracle's events, and what they are made of."""

    def __init__(self) -> None:
        self.lineage = Lineage()
        self._parts: dict[int, Parts] = {}

    def of(self, stream: str, events: Sequence[Event]) -> Ints:
        """Numbers events of a stream, each of which is one part."""
        t0, t1 = (np.array([getattr(one, name) for one in events], np.int64) for name in ("t0", "t1"))
        numbers = self.lineage.of_documents(
            stream, np.arange(len(events)), t0, t1, np.zeros((len(events), 1), np.int64)
        )
        self._parts.update(zip(numbers.tolist(), (one.parts for one in events), strict=True))
        return numbers

    def parts(self, numbers: Ints) -> Parts:
        """The parts behind numbers, of which some may be sets."""
        found = self.lineage.origins(numbers)
        singles = [part for number, origin in found.items() for part in origin.parts or (number,)]
        return frozenset[Hashable]().union(*(self._parts[number] for number in singles))


@dataclass(frozen=True)
class Run:
    """How a world is run: where it is cut, which statements come and go at which cut, which rules are on."""

    cuts: tuple[int, ...]
    lives: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    rules: tuple[RuleName, ...] = RULE_NAMES
    hashed: bool = True
    restarts: frozenset[int] = frozenset()
    """The cuts after which a new kernel takes over what the one before has saved."""


def random_run(rng: Random, statements: int, last: int) -> Run:
    """Some cuts, the last one behind all events; statements that come and go at cuts; all rules, or some."""
    inner = sorted({rng.randint(0, last) for _ in range(rng.choice((0, 1, 3, 8)))})
    cuts = tuple(cut * SECOND for cut in [*inner, last + 1])
    lives = {}
    for place in range(statements):
        if len(cuts) > 1 and rng.randrange(3) == 0:
            begin, end = sorted(rng.choices((-SECOND, *cuts), k=2))
            lives[place] = (begin, end if rng.randrange(2) else last * SECOND * 2)
    rules = RULE_NAMES if rng.randrange(2) else tuple(name for name in RULE_NAMES if rng.randrange(2))
    restarts = frozenset(cut for cut in cuts if rng.randrange(3) == 0)
    return Run(cuts, lives, rules, rng.randrange(4) > 0, restarts)


class AnyKernel(Protocol):
    """What a runner asks of a kernel."""

    def add(self, statement: int, stream: Statement, since: int) -> None: ...
    def remove(self, statements: Sequence[int]) -> None: ...
    def begin(self, until: int) -> None: ...
    def feed(self, events: Mapping[str, Columns]) -> Sequence[Results]: ...
    def end(self) -> Sequence[Results]: ...
    def state(self) -> dict[str, pa.Table]: ...
    def restore(self, state: Mapping[str, pa.Table]) -> None: ...


MakeKernel = Callable[[Texts, Lineage, Run], AnyKernel]


def _kernel(texts: Texts, lineage: Lineage, run: Run) -> AnyKernel:
    return Kernel(texts, lineage, rules=run.rules, hashed=run.hashed)


class Runner:
    """Runs a world in a kernel, or in what `make` makes for a run, which has the methods of one."""

    def __init__(self, world: World, run: Run, make: MakeKernel | None = None) -> None:
        self._world, self._run = world, run
        self._make = make or _kernel
        self._streams, self._names = self._lowered()
        self._numbers = self._made_numbers()
        self._there: dict[int, int] = {}
        self._begin()
        self._found: list[set[Event]] = [set() for _ in world.statements]

    def _lowered(self) -> tuple[Sequence[Statement], dict[str, Schema]]:
        return lowered(self._world)

    def _made_numbers(self) -> Numbers:
        return Numbers()

    def _begin(self) -> None:
        self._texts = Texts()
        self._kernel = self._make(self._texts, self._numbers.lineage, self._run)

    def _restart(self) -> None:
        state = self._kernel.state()
        self._begin()
        for place, since in sorted(self._there.items(), reverse=True):
            self._kernel.add(place, self._streams[place], since)
        self._kernel.restore(state)

    def results(self) -> list[Events]:
        """What each statement finds."""
        begin = -SECOND
        for end in self._run.cuts:
            if begin in self._run.restarts:
                self._restart()
            self._come_and_go(begin)
            self._interval(begin, end)
            begin = end
        return [frozenset(found) for found in self._found]

    def found_by(self, place: int) -> Events:
        """What a statement has found so far."""
        return frozenset(self._found[place])

    def _come_and_go(self, now: int) -> None:
        living = {place for place in range(len(self._streams)) if self._is_there(place, now)}
        if gone := self._there.keys() - living:
            self._kernel.remove(sorted(gone))
            self._there = {place: since for place, since in self._there.items() if place in living}
        for place in sorted(living - self._there.keys()):
            self._kernel.add(place, self._streams[place], now - 1)
            self._there[place] = now - 1

    def _is_there(self, place: int, now: int) -> bool:
        begin, end = self._run.lives.get(place, (-SECOND, now + 1))
        return begin <= now < end

    def _interval(self, begin: int, end: int) -> None:
        self._numbers.lineage.begin()
        self._now = begin, end
        self._kernel.begin(end)
        given = self._world.given
        self._take(self._kernel.feed({name: self._columns(name, given[name], begin, end) for name in given}))
        for name in sorted(self._names.keys() - given.keys()):
            published = [
                (place, one)
                for place, statement in enumerate(self._world.statements)
                if statement.publish == name
                for one in self._found[place]
            ]
            events = frozenset(
                Event(one.attributes, one.t0, one.t1, frozenset({(name, place, one)})) for place, one in published
            )
            self._take(self._kernel.feed({name: self._columns(name, events, begin, end)}))
        self._take(self._kernel.end())

    def _columns(self, name: str, events: Iterable[Event], begin: int, end: int) -> Columns:
        chosen = sorted((one for one in events if begin <= one.t1 < end), key=lambda one: one.t1)
        return Columns(
            np.array([one.t0 for one in chosen], np.int64),
            np.array([one.t1 for one in chosen], np.int64),
            tuple(self._column([one.values[key] for one in chosen], kind) for key, kind in self._names[name]),
            self._numbers.of(name, chosen).reshape(-1, 1),
        )

    def _column(self, values: Sequence[Value], kind: str) -> Column:
        if kind == "string":
            return self._texts.codes(None if value is None else str(value) for value in values)
        return np.array([np.nan if value is None else value for value in values], np.float64)

    def _take(self, results: Iterable[Results]) -> None:
        for result in results:
            events = self._events(result.schema, result.events)
            pairs = list(zip(result.at.tolist(), result.statements.tolist(), strict=True))
            for at, place in pairs:
                assert events[at] not in self._found[place], f"{place} has this twice: {events[at]}"
                self._found[place].add(events[at])

    def _events(self, schema: Schema, columns: Columns) -> list[Event]:
        begin, end = self._now
        assert all(begin <= t1 < end for t1 in columns.t1.tolist()), "what is found in an interval becomes known in it"
        values: list[list[Value]] = []
        for (_, kind), column in zip(schema, columns.values, strict=True):
            if kind == "string":
                values.append([*self._texts.texts(column.astype(np.int64))])
            else:
                values.append([None if number != number else number for number in column.tolist()])
        names = [name for name, _ in schema]
        return [
            event(dict(zip(names, row, strict=True)), t0, t1, self._numbers.parts(parts))
            for t0, t1, parts, *row in zip(
                columns.t0.tolist(), columns.t1.tolist(), columns.parts, *values, strict=True
            )
        ]


class LimitedRunner(Runner):
    """Runs a world with limits: a statement that exceeds one goes, and `exceeded` says when, and by which limit."""

    def __init__(self, world: World, run: Run, limits: RowLimits) -> None:
        def make(texts: Texts, lineage: Lineage, run: Run) -> Kernel:
            return Kernel(texts, lineage, rules=run.rules, hashed=run.hashed, limits=limits)

        super().__init__(world, run, make)
        self.exceeded: dict[int, Excess] = {}

    def _is_there(self, place: int, now: int) -> bool:
        return place not in self.exceeded and super()._is_there(place, now)

    def _interval(self, begin: int, end: int) -> None:
        super()._interval(begin, end)
        assert isinstance(self._kernel, Kernel)
        self.exceeded |= self._kernel.exceeded


def with_lives(world: World, run: Run) -> World:
    """The world, as the oracle sees this run."""
    return World(world.schemas, world.given, world.statements, run.lives)
