"""What the benchmarks of event patterns share: events as columns, statements from texts, and runs of a kernel."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bench.harness import Line, TableColumn, ratio, with_progress
from common.arrays import Ints
from common.bounds import BEGINNING
from common.tools import gc_paused
from pattern_stage.columns import Columns
from pattern_stage.kernel import Kernel, Results
from pattern_stage.lineage import Lineage
from pattern_stage.values import Texts
from xscl.algebra.events import Schema, Statement
from xscl.event_lower import lower_statement, schemas_of
from xscl.parser import parse_script
from xscl.syntax import EventStreams

SECOND = 1_000_000

EventRow = tuple[int, ...]  # A result: t0, t1, and the numbers of its events


@dataclass(frozen=True)
class PatternOptions:
    queries: Sequence[int] | None = None
    events: int | None = None
    quick: bool = False
    flink_python: str | None = None


@dataclass(frozen=True)
class PatternBenchmark:
    cases: Callable[[PatternOptions], Sequence[Any]]
    measure: Callable[[Sequence[Any], PatternOptions], Iterator[Line]]
    columns: tuple[TableColumn, ...]
    drawn: bool = True


def each_case(work: Callable[[Any, bool], Iterator[Line]]) -> Callable[[Sequence[Any], PatternOptions], Iterator[Line]]:
    """Measures cases that do not depend on each other, given whether they are quick."""
    return lambda cases, options: (line for case in with_progress(cases) for line in work(case, options.quick))


def turn_lines(
    case: Mapping[str, object], taken: Mapping[str, Sequence[float]], rows: int, events: object, baseline: str | None
) -> Iterator[Line]:
    """The lines of ways whose results are the same: medians of turns, beside a baseline if there is one."""
    for plan, times in taken.items():
        base = None if plan == baseline else baseline
        faster = ratio(taken[base], times) if base else None
        details = {"events_a_second": cast(float, events) / median(times)}
        yield Line("patterns", case, None, plan, median(times), rows, base, faster, details=details)


@dataclass(frozen=True)
class StreamEvents:
    """The events of a stream, in the order of `times` in microseconds. `numbers` are unique among all streams. A column
    of integers for a string attribute stands for the strings v0, v1, ..."""

    schema: Schema
    times: Ints
    numbers: Ints
    columns: Sequence[NDArray[Any]]

    def __len__(self) -> int:
        return len(self.times)

    def encoded(self, texts: Texts) -> Columns:
        values = tuple(
            _codes(column, texts) if kind == "string" else column
            for (_, kind), column in zip(self.schema, self.columns, strict=True)
        )
        return Columns(self.times, self.times, values, self.numbers.reshape(-1, 1))


def every_second(schema: Schema, columns: Sequence[NDArray[Any]], seconds: Ints | None = None) -> StreamEvents:
    numbers = np.arange(len(columns[0]))
    return StreamEvents(schema, ((numbers if seconds is None else seconds) + 1) * SECOND, numbers, columns)


def _codes(column: NDArray[Any], texts: Texts) -> Ints:
    if column.dtype.kind == "U":
        return texts.codes(column.tolist())
    values, places = np.unique(column, return_inverse=True)
    return texts.codes(f"v{value}" for value in values.tolist())[places]


def zipf_weights(count: int, power: float) -> NDArray[np.float64]:
    """The probabilities of ranks 1 to `count`, proportional to 1 / rank ** power."""
    weights = 1 / np.arange(1, count + 1) ** power
    normalised: NDArray[np.float64] = weights / weights.sum()
    return normalised


def lower_texts(texts: Sequence[str], schemas: Mapping[str, Schema]) -> list[Statement]:
    """The statements that texts over these streams mean. Equal texts give the same object."""
    known = EventStreams(dict(schemas))
    lowered: dict[str, Statement] = {}
    for text in dict.fromkeys(texts):
        script = parse_script(text, events=known)
        (query,) = script.event_queries
        lowered[text] = lower_statement(query, schemas_of(script, known))
    return [lowered[text] for text in texts]


class NumberedLineage(Lineage):
    """The lineage of events whose parts are their numbers. `t1` is needed only where AGGREGATEs have durations."""

    def __init__(self, t1: Ints | None = None) -> None:
        super().__init__()
        self._t1 = t1

    def ends(self, numbers: Ints) -> Ints:
        assert self._t1 is not None, "every statement sees all events, so nobody asks"
        return self._t1[numbers]

    def together(self, parts: Ints, groups: Ints) -> Ints:
        assert len(np.unique(groups)) == len(groups), "simultaneous events of a group"
        found = np.zeros(len(groups), np.int64)
        found[groups] = parts[:, 0]
        return found


class TrackedLineage:
    """Registers events with a lineage as they arrive, and translates results back to the numbers of events."""

    def __init__(self) -> None:
        self.lineage = Lineage()
        self._numbers: dict[int, int] = {}

    def register(self, events: Mapping[str, Columns]) -> dict[str, Columns]:
        registered = {}
        for name, some in events.items():
            nodes = np.zeros((len(some), 1), np.int64)
            parts = self.lineage.of_documents(name, some.parts[:, 0], some.t0, some.t1, nodes)
            self._numbers.update(zip(parts.tolist(), some.parts[:, 0].tolist(), strict=True))
            registered[name] = Columns(some.t0, some.t1, some.values, parts.reshape(-1, 1))
        return registered

    def matches(self, results: Results, among: Ints | None = None) -> Iterator[tuple[int, tuple[tuple[int, ...], ...]]]:
        chosen = np.arange(len(results)) if among is None else among
        parts = results.events.parts[results.at[chosen]]
        events = {
            number: tuple(sorted(self._numbers[part] for part in origin.parts or (number,)))
            for number, origin in self.lineage.origins(np.unique(parts)).items()
        }
        for statement, row in zip(results.statements[chosen].tolist(), parts.tolist(), strict=True):
            yield statement, tuple(events[number] for number in row)


def intervals(events: Mapping[str, Columns], step: int) -> Iterator[tuple[dict[str, Columns], int]]:
    last = max(int(some.t1[-1]) for some in events.values() if len(some))
    for low in range(0, last + 1, step):
        part = {}
        for name, some in events.items():
            first, end = np.searchsorted(some.t1, (low, low + step)).tolist()
            part[name] = some.take(np.arange(first, end))
        yield part, low + step


def feed(
    kernel: Kernel,
    events: Mapping[str, Columns],
    step: int,
    take: Callable[[Results], None],
    tracked: TrackedLineage | None = None,
    clock: Callable[[], float] = time.thread_time,
    since: int = 0,
) -> float:
    """Runs a kernel over all intervals, hands its results to `take`, and returns the seconds that the kernel took for
    those that end after `since`."""
    seconds = 0.0
    for plain, until in intervals(events, step):
        part = tracked.register(plain) if tracked else plain
        begin = clock()
        with gc_paused():  # as the engine does
            if tracked:
                tracked.lineage.begin()
            results = kernel.run(part, until)
            sum(map(len, results))
        if until > since:
            seconds += clock() - begin
        for one in results:
            take(one)
        if tracked and tracked.lineage.crowded:
            tracked.lineage.keep(kernel.parts())
    return seconds


def add_all(kernel: Kernel, statements: Sequence[Statement]) -> Kernel:
    for place, statement in enumerate(statements):
        kernel.add(place, statement, BEGINNING)
    kernel.run({}, 0)
    return kernel


@dataclass(frozen=True)
class KernelRun:
    registering: float
    seconds: float
    results: int
    found: dict[int, set[EventRow]]


@dataclass(frozen=True)
class StatementSet:
    plan: str
    statements: Sequence[Statement]
    events: Mapping[str, StreamEvents]
    kernel: Callable[[], Kernel]
    step: int

    def run(self, sample: Sequence[int], only: int | None = None) -> KernelRun:
        """Runs all statements together, or `only` one of them, whose place is 0 then."""
        kernel = self.kernel()
        events = {name: some.encoded(kernel.texts) for name, some in self.events.items()}
        begin = time.thread_time()
        add_all(kernel, self.statements if only is None else [self.statements[only]])
        registering = time.thread_time() - begin
        wanted = np.array(sorted(sample), np.int64)
        found: dict[int, set[EventRow]] = {place: set() for place in wanted.tolist()}
        counts: list[int] = []

        def take(results: Results) -> None:
            counts.append(len(results))
            for place in np.flatnonzero(np.isin(results.statements, wanted)).tolist():
                at, some = results.at[place], results.events
                row = (int(some.t0[at]), int(some.t1[at]), *some.parts[at].tolist())
                found[int(results.statements[place])].add(row)

        return KernelRun(registering, feed(kernel, events, self.step, take), sum(counts), found)

    def floor(self) -> float:
        """CPU seconds of a dictionary probe for each attribute of each event."""
        rows = [column.tolist() for events in self.events.values() for column in events.columns]
        known = [dict.fromkeys(column, 1) for column in rows]
        begin = time.thread_time()
        for probed, column in zip(known, rows, strict=True):
            get = probed.get
            for value in column:
                get(value)
        return time.thread_time() - begin


def choose_sample(count: int, size: int) -> list[int]:
    chosen: list[int] = np.random.default_rng(3).choice(count, min(size, count), replace=False).tolist()
    return chosen


def sample_lines(
    case: Mapping[str, Any],
    sets: Sequence[StatementSet],
    sample: Sequence[int],
    turns: int,
    by_hand: Callable[[int], set[tuple[int, ...]]] | None = None,
) -> Iterator[Line]:
    """The lines of equivalent sets, and of a sample of the first set's statements one by one, scaled up: medians over
    turns. `by_hand` computes a statement's results without a kernel. Raises AssertionError if results differ."""
    first, queries = sets[0], int(case["queries"])
    runs: dict[str, list[KernelRun]] = {one.plan: [] for one in sets}
    alone, hand, floors, rows = list[float](), list[float](), list[float](), 0
    for _ in range(turns):
        for one in sets:
            runs[one.plan].append(one.run(sample))
        seconds, written, rows = 0.0, 0.0, 0
        for place in sample:
            single, named = first.run([0], place), f"statement {place} of {case}"
            seconds, rows = seconds + single.seconds, rows + single.results
            for plan, some in runs.items():
                assert single.found[0] == some[-1].found[place], f"{named} has something else alone than {plan}"
            if by_hand:
                begin = time.thread_time()
                expected = by_hand(place)
                written += time.thread_time() - begin
                assert {row[2:] for row in single.found[0]} == expected, f"{named} has something else alone"
        scale = queries / len(sample)
        alone.append(seconds * scale)
        hand.append(written * scale)
        floors.append(first.floor())
    count = sum(map(len, first.events.values()))

    def line(plan: str, seconds: float, rows: int, speedup: float | None, **details: object) -> Line:
        baseline = None if speedup is None else "one at a time"
        details = {"events_a_second": count / seconds, **details}
        scaled = len(sample) < queries
        return Line("patterns", case, None, plan, seconds, rows, baseline, speedup, median(floors), scaled, details)

    for one in sets:
        taken = [run.seconds for run in runs[one.plan]]
        details: dict[str, object] = {"registered": queries / median(run.registering for run in runs[one.plan])}
        if by_hand:
            details["over_hand"] = ratio(hand, taken)
        if one is first and len(sets) > 1:
            details["over_channels"] = ratio([run.seconds for run in runs[sets[1].plan]], taken)
        yield line(one.plan, median(taken), runs[one.plan][0].results, ratio(alone, taken), **details)
    yield line("one at a time", median(alone), rows, None)
    if by_hand:
        yield line("one by hand", median(hand), rows, None)
