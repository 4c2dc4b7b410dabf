"""Runs the statements of a world of events in a kernel, cut into intervals, for comparison with the oracle."""

import pickle
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from common.arrays import Ints
from common.bounds import BEGINNING, Micros
from common.limits import UNLIMITED, Excess, Quota
from pattern_stage.columns import Column, Columns
from pattern_stage.kernel import Kernel, Results
from pattern_stage.lineage import Lineage
from pattern_stage.partition.kernel import GroupDone, GroupWork, Worker, WorkerPlan
from pattern_stage.pattern.match import event_order
from pattern_stage.plan import RULE_NAMES, RuleName
from pattern_stage.values import Texts
from tests.generate.documents import SECOND
from tests.oracle.event_values import Value
from tests.oracle.events import EVER, Event, Events, World, event
from tests.oracle.pattern_syntax import Near
from tests.oracle.pattern_world import PatternWorld, by_parts, returned
from xscl.algebra.events import Schema
from xscl.event_lower import lower_statement, schemas_of
from xscl.parser import parse_script
from xscl.syntax import EventStreams

Parts = frozenset[Hashable]
Bound = tuple[tuple[Event, ...], ...]
Told = tuple[Bound, int, int, Any]
"""A match: the events of each variable, when it is known, its errors, and its values."""


def lowered_texts(texts: Sequence[str], given: Mapping[str, Schema]) -> tuple[list[Any], dict[str, Schema]]:
    """Statements over given streams in the algebra of events, and the attributes of all streams in their order."""
    known = EventStreams(given)
    if not texts:
        return [], dict(given)
    script = parse_script("; ".join(texts), events=known)
    schemas = {name: schema for name, schema in schemas_of(script, known).items() if schema is not None}
    return [lower_statement(query, schemas) for query in script.event_queries], schemas


def lowered(world: World) -> tuple[list[Any], dict[str, Schema]]:
    given = {name: tuple(world.schemas[name].items()) for name in world.given}
    return lowered_texts([statement.text() for statement in world.statements], given)


class Numbers:
    """The numbers of the oracle's events, and what they are made of."""

    def __init__(self) -> None:
        self.lineage = Lineage()
        self.events: dict[int, Event] = {}

    def of(self, stream: str, events: Sequence[Event]) -> Ints:
        t0, t1 = (np.array([getattr(one, name) for one in events], np.int64) for name in ("t0", "t1"))
        numbers = self.lineage.of_documents(
            stream, np.arange(len(events)), t0, t1, np.zeros((len(events), 1), np.int64)
        )
        self.events.update(zip(numbers.tolist(), events, strict=True))
        return numbers

    def parts(self, numbers: Ints) -> Parts:
        """The parts behind numbers, of which some may be sets."""
        found = self.lineage.origins(numbers)
        singles = [part for number, origin in found.items() for part in origin.parts or (number,)]
        return frozenset[Hashable]().union(*(self.events[number].parts for number in singles))

    def bound(self, numbers: Ints) -> Bound:
        found = self.lineage.origins(numbers)
        variables = [found[number].parts or (number,) for number in numbers.tolist() if number >= 0]
        return tuple(tuple(sorted((self.events[part] for part in some), key=by_parts)) for some in variables)


class Columnar:
    def __init__(self, numbers: Numbers | None = None) -> None:
        self.texts, self.numbers = Texts(), numbers or Numbers()

    def columns(self, name: str, schema: Schema, events: Iterable[Event], begin: int, end: int) -> Columns:
        """The events of a stream in an interval, in order of t1."""
        chosen = sorted((one for one in events if begin <= one.t1 < end), key=lambda one: one.t1)
        return Columns(
            np.array([one.t0 for one in chosen], np.int64),
            np.array([one.t1 for one in chosen], np.int64),
            tuple(self._column([one.values[key] for one in chosen], kind) for key, kind in schema),
            self.numbers.of(name, chosen).reshape(-1, 1),
        )

    def _column(self, values: Sequence[Value], kind: str) -> Column:
        if kind == "string":
            return self.texts.codes(None if value is None else str(value) for value in values)
        return np.array([np.nan if value is None else value for value in values], np.float64)

    def events(self, found: Results) -> list[Event]:
        columns = found.events
        values: list[list[Value]] = []
        for (_, kind), column in zip(found.schema, columns.values, strict=True):
            if kind == "string":
                values.append([*self.texts.texts(column.astype(np.int64))])
            else:
                values.append([None if number != number else number for number in column.tolist()])
        names = [name for name, _ in found.schema]
        return [
            event(dict(zip(names, row, strict=True)), t0, t1, self.numbers.parts(parts))
            for t0, t1, parts, *row in zip(
                columns.t0.tolist(), columns.t1.tolist(), columns.parts, *values, strict=True
            )
        ]


class Trial(Columnar):
    """A kernel with statements over some streams, which is given events in intervals."""

    def __init__(self, schemas: Mapping[str, Schema], *texts: str, **options: Any) -> None:
        super().__init__()
        self.schemas = schemas
        self.kernel = Kernel(self.texts, self.numbers.lineage, **options)
        self.found: dict[int, list[Event]] = {}
        self.add(0, *texts)

    def add(self, place: int, *texts: str, since: Micros = BEGINNING) -> None:
        for number, stream in enumerate(lowered_texts(texts, self.schemas)[0], place):
            self.kernel.add(number, stream, since)
        self.kernel.instances()  # which takes them into the plan

    def run(self, streams: Mapping[str, Iterable[Event]], start: int, until: int) -> None:
        self.numbers.lineage.begin()
        given = {name: self.columns(name, self.schemas[name], some, start, until) for name, some in streams.items()}
        for results in self.kernel.run(given, until):
            events = self.events(results)
            for at, statement in zip(results.at.tolist(), results.statements.tolist(), strict=True):
                self.found.setdefault(statement, []).append(events[at])

    def results(self, statement: int) -> Events:
        found = self.found.get(statement, [])
        assert len(set(found)) == len(found), "an event is found once"
        return frozenset(found)

    def saved(self) -> list[int]:
        return sorted(len(rows) for name, rows in self.kernel.state().items() if "/" not in name and name != "format")


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


MakeKernel = Callable[[Texts, Lineage, Run], Any]
"""Makes a kernel, or what has the methods of one."""


class Runner:
    """Runs a world in a kernel, or in what `make` makes for a run, which has the methods of one. With limits, a
    statement that exceeds one goes, and `exceeded` has when, and which limit it was."""

    def __init__(self, world: World, run: Run, make: MakeKernel | None = None, limits: Quota = UNLIMITED) -> None:
        def limited(texts: Texts, lineage: Lineage, run: Run) -> Kernel:
            return Kernel(texts, lineage, rules=run.rules, hashed=run.hashed, limits=limits)

        self._world, self._run, self._make = world, run, make or limited
        self._streams, self._names = lowered(world)
        self.numbers = Numbers()
        self._there: dict[int, Micros] = {}
        self._begin()
        self._found: list[set[Event]] = [set() for _ in world.statements]
        self._tells = [statement.text().startswith("PATTERN") for statement in world.statements]
        self.told: list[list[Told]] = [[] for _ in world.statements]
        self.exceeded: dict[int, Excess] = {}

    def _begin(self) -> None:
        self._columnar = Columnar(self.numbers)
        self._kernel = self._make(self._columnar.texts, self.numbers.lineage, self._run)

    def _restart(self) -> None:
        state = self._kernel.state()
        self._begin()
        for place, since in sorted(self._there.items(), reverse=True):
            self._kernel.add(place, self._streams[place], since)
        self._kernel.restore(state)

    def results(self) -> list[Events]:
        begin = -SECOND
        for end in self._run.cuts:
            if begin in self._run.restarts:
                self._restart()
            self._come_and_go(begin)
            self._interval(begin, end)
            begin = end
        return [frozenset(found) for found in self._found]

    def _come_and_go(self, now: int) -> None:
        lives = [self._run.lives.get(place, (-SECOND, now + 1)) for place in range(len(self._streams))]
        living = {place for place, (begin, end) in enumerate(lives) if begin <= now < end} - self.exceeded.keys()
        if gone := self._there.keys() - living:
            self._kernel.remove(sorted(gone))
            self._there = {place: since for place, since in self._there.items() if place in living}
        for place in sorted(living - self._there.keys()):
            self._there[place] = since = Micros(now - 1)
            self._kernel.add(place, self._streams[place], since)

    def _interval(self, begin: int, end: int) -> None:
        self.numbers.lineage.begin()
        self._kernel.begin(end)
        given = self._world.given
        self._feed(given, begin, end)
        for name in sorted(self._names.keys() - given.keys()):
            published = [
                Event(one.attributes, one.t0, one.t1, frozenset({(name, place, one)}))
                for place, statement in enumerate(self._world.statements)
                if statement.publish == name
                for one in self._found[place]
            ]
            self._feed({name: published}, begin, end)
        self._take(self._kernel.end(), begin, end)
        if isinstance(self._kernel, Kernel):
            self.exceeded |= self._kernel.exceeded
            self._columnar.texts.keep(self._kernel.codes())

    def _feed(self, events: Mapping[str, Iterable[Event]], begin: int, end: int) -> None:
        given = {n: self._columnar.columns(n, self._names[n], some, begin, end) for n, some in events.items()}
        self._take(self._kernel.feed(given), begin, end)

    def _take(self, results: Iterable[Results], begin: int, end: int) -> None:
        for result in results:
            events, columns = self._columnar.events(result), result.events
            assert all(begin <= one.t1 < end for one in events), "what is found in an interval becomes known in it"
            bounds: dict[int, Bound] = {}
            for at, place in zip(result.at.tolist(), result.statements.tolist(), strict=True):
                one = events[at]
                if self._tells[place]:
                    if at not in bounds:
                        bounds[at] = self.numbers.bound(columns.parts[at])
                    told = (bounds[at], one.t1, int(one.values.get("errors") or 0), one.attributes)
                    assert told not in self.told[place], f"{place} has this twice: {told}"
                    self.told[place].append(told)
                else:
                    assert one not in self._found[place], f"{place} has this twice: {one}"
                self._found[place].add(one)

    def found_by(self, place: int) -> Events:
        return frozenset(self._found[place])

    def order(self) -> Any:
        ranks = event_order(self.numbers.lineage, self.numbers.events)
        of = {self.numbers.events[number]: rank for number, rank in ranks.items()}
        return lambda one: of.get(one, (one.t1, "", 0, (), b"", 0))


def expected(world: PatternWorld, place: int) -> set[Told]:
    """What the oracle says that a pattern tells, as `Runner.told` has it."""
    statement: Any = world.statements[place]
    found = set()
    for one in world.matches(place):
        values = {name: value for name, value in returned(statement, one) if not isinstance(value, tuple)}
        attributes = event(values, 0, 0, ["x"]).attributes
        each = (one.flat,) if isinstance(statement, Near) else one.events
        found.add((tuple(tuple(sorted(some, key=by_parts)) for some in each), one.known, one.errors, attributes))
    return found


def assert_finds(made: World, run: Run, make: MakeKernel | None = None) -> None:
    """Asserts that a kernel finds what the oracle does; of patterns, that it tells the same."""
    runner = Runner(made, run, make)
    results = runner.results()
    patterns, end = isinstance(made, PatternWorld), run.cuts[-1]
    lives = {place: run.lives.get(place, EVER) for place in range(len(made.statements))}
    lives = {place: (begin, min(until, end)) for place, (begin, until) in lives.items()}
    if isinstance(made, PatternWorld):
        judge: Any = PatternWorld(made.schemas, made.given, made.statements, lives, order=runner.order())
    else:
        judge = World(made.schemas, made.given, made.statements, lives)
    for place, statement in enumerate(made.statements):
        found: Any = set(runner.told[place]) if patterns else results[place]
        right: Any = expected(judge, place) if patterns else judge.results(place)
        assert found == right, f"{statement.text()}\n{run}\nmissing: {right - found}\ntoo many: {found - right}"


class HereRunner:
    """Does the work in this process, through the same serialised form."""

    def __init__(self, parts: int, workers: int = 1) -> None:
        self.parts = parts
        self._workers = [Worker() for _ in range(workers)]
        self._next = 0

    def run(self, told: WorkerPlan, works: Sequence[Sequence[GroupWork]]) -> list[list[GroupDone]]:
        found = []
        for work in pickle.loads(pickle.dumps(works)):
            self._next = (self._next + 1) % len(self._workers)
            found.append(self._workers[self._next].work(told, work))
        done: list[list[GroupDone]] = pickle.loads(pickle.dumps(found))
        return done
