"""Match windows (section 6 of its paper): what making windows small, or skipping them, saves.

The paper's matcher runs window by window: without pruning, on filtered windows (f), on windows partitioned by patient
(fp; trades are not), and where, besides, the necessary conditions hold (fpc). Beside it stand our replay, which finds
windows by SQL, and the kernel alone. All matches are compared with those found without pruning.

`Pseq` and `Pset` have more and more variables, two patterns of each size drawn at random (ten in the paper); `Ponco`
and `Pnyse` longer windows; `Pnyse, events` more events.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import Literal, NamedTuple

import numpy as np

from bench import patterns_kernel as kit
from bench.harness import Line, columns, compared_turns, timed
from common.bounds import BEGINNING
from pattern_stage.in_sql import ReplayKernel, ask_duckdb
from pattern_stage.kernel import Kernel
from pattern_stage.values import Texts
from xscl.algebra.events import Schema, Statement

WindowData = Literal["onco", "nyse"]
PatternShape = Literal["Pseq", "Pset", "Ponco", "Pnyse"]

WINDOW_STREAM = "Event"
WINDOW_SCHEMA: Schema = (("of", "string"), ("kind", "string"), ("value", "number"))
"""The patient; a drug, a blood count or a symbol; and a dose, a count or a price."""

DAY = 86_400 * kit.SECOND
MILLISECOND = kit.SECOND // 1000

DRUGS = ("c", "d", "p", "r", "b", "h")
ONCO_KINDS = (*DRUGS, *(f"x{number}" for number in range(34)))
PROTOCOL = (*(("c", 0), ("d", 0), ("p", 1), ("p", 2), ("p", 3)), *(("r", 1), ("r", 3), ("b", 8), ("h", 8), ("b", 15)))
"""The events of a cycle, with their days."""
CYCLES, CYCLE_DAYS, PATIENTS_PER_YEAR, OTHERS_PER_CYCLE = 6, 21, 160, 25
TRADED = 500  # the number of symbols


def window_events(data: WindowData, count: int, seed: int = 1) -> kit.StreamEvents:
    """Events like those of chemotherapies, or trades of shares; the paper's data are not public. Here each patient has
    six cycles of three weeks, with the protocol's events in order, among others. Trades come every millisecond here,
    their symbols follow Zipf's law, and prices are random walks."""
    chance = np.random.default_rng(seed)
    return _chemotherapies(count, chance) if data == "onco" else _trades(count, chance)


def _chemotherapies(count: int, chance: np.random.Generator) -> kit.StreamEvents:
    patients = count // (CYCLES * (len(PROTOCOL) + OTHERS_PER_CYCLE)) + 200
    begins = np.cumsum(chance.exponential(365 / PATIENTS_PER_YEAR, patients)) * DAY
    drugs = [ONCO_KINDS.index(name) for name, _ in PROTOCOL]
    times, kinds, owners = [], [], []
    for patient in range(patients):
        for cycle in range(CYCLES):
            others = chance.integers(len(DRUGS), len(ONCO_KINDS), OTHERS_PER_CYCLE)
            days = np.concatenate([[day for _, day in PROTOCOL], chance.integers(0, CYCLE_DAYS, OTHERS_PER_CYCLE)])
            # Within a day, the events of the protocol come in its order.
            within = np.concatenate([np.linspace(0, 0.4, len(PROTOCOL)), chance.uniform(0, 1, OTHERS_PER_CYCLE)])
            times.append(begins[patient] + (cycle * CYCLE_DAYS + days + within) * DAY)
            kinds.append(np.concatenate([drugs, others]))
            owners.append(np.full(len(kinds[-1]), patient))
    at = np.concatenate(times)
    order = np.argsort(at, kind="stable")
    # The first patients come one by one: events count from where as many are treated as later on.
    settled = order[np.searchsorted(at[order], CYCLES * CYCLE_DAYS * DAY) :][:count]
    assert len(settled) == count, "too few patients"
    places = np.arange(count)
    distinct = np.maximum.accumulate(np.round(at[settled]).astype(np.int64) - places) + places
    values = chance.integers(1, 1000, count).astype(np.float64)
    names = np.array(ONCO_KINDS)[np.concatenate(kinds)[settled]]
    return kit.StreamEvents(WINDOW_SCHEMA, distinct, places, (np.concatenate(owners)[settled], names, values))


def _trades(count: int, chance: np.random.Generator) -> kit.StreamEvents:
    kinds = chance.choice(TRADED, count, p=kit.zipf_weights(TRADED, 1.0))
    prices = np.zeros(count)
    for symbol in range(TRADED):
        own = np.flatnonzero(kinds == symbol)
        prices[own] = 100 + np.cumsum(chance.choice((-1.0, 1.0), len(own)))
    names = np.array([f"s{symbol}" for symbol in range(TRADED)])[kinds]
    numbers = np.arange(count)
    attributes = (np.zeros(count, np.int64), names, prices)
    return kit.StreamEvents(WINDOW_SCHEMA, (numbers + 1) * MILLISECOND, numbers, attributes)


@dataclass(frozen=True)
class PatternVariable:
    """A variable for events of a kind. The values of a Kleene variable may have to rise or to fall."""

    name: str
    kind: str
    kleene: bool = False
    rises: bool = False
    falls: bool = False


@dataclass(frozen=True)
class WindowPattern:
    """Sets of variables one after the other, of one patient if `together`, within a window in microseconds."""

    sets: tuple[tuple[PatternVariable, ...], ...]
    window: int
    together: bool

    def text(self) -> str:
        written = []
        for some in self.sets:
            members = [f"{WINDOW_STREAM}{'+' * one.kleene} {one.name}{'[]' * one.kleene}" for one in some]
            written.append(f"SET({', '.join(members)})" if len(members) > 1 else members[0])
        tests = ["[of]"] if self.together else []
        for one in (one for some in self.sets for one in some):
            tests.append(f'{one.name}{"[]" * one.kleene}.kind = "{one.kind}"')
            if one.rises or one.falls:
                tests.append(f"{one.name}[i].value {'>' if one.rises else '<'} {one.name}[i-1].value")
        return (
            f"PATTERN SEQ({', '.join(written)}) WHERE {{{' AND '.join(tests)}}} "
            f"WITHIN {self.window / kit.SECOND:.10g} s EARLIEST MAXIMAL"
        )


def ponco(days: int) -> WindowPattern:
    sets = (
        (PatternVariable("c", "c"), PatternVariable("d", "d")),
        (PatternVariable("p", "p", True), PatternVariable("r", "r", True)),
        (PatternVariable("b", "b"), PatternVariable("h", "h")),
    )
    return WindowPattern(sets, days * DAY, True)


def pnyse(milliseconds: int) -> WindowPattern:
    sets = (
        (PatternVariable("a", "s5", True, rises=True), PatternVariable("g", "s8", True, rises=True)),
        (PatternVariable("i", "s12", True, falls=True),),
    )
    return WindowPattern(sets, milliseconds * MILLISECOND, False)


def random_pattern(data: WindowData, shape: PatternShape, size: int, chance: np.random.Generator) -> WindowPattern:
    names = ONCO_KINDS if data == "onco" else tuple(f"s{symbol}" for symbol in range(40))
    kinds = chance.choice(len(names), size, replace=False).tolist()
    some = tuple(PatternVariable(f"v{place}", names[kind]) for place, kind in enumerate(kinds, 1))
    window = 10 * DAY if data == "onco" else 20 * MILLISECOND
    return WindowPattern((some,) if shape == "Pset" else tuple((one,) for one in some), window, data == "onco")


class WindowEvent(NamedTuple):
    number: int
    time: int
    of: int
    kind: str
    value: float


Bindings = tuple[tuple[WindowEvent, ...], ...]  # the events of each variable
WindowMatch = tuple[tuple[int, ...], ...]  # their numbers


class AutomatonInstance(NamedTuple):
    """Its set, its bindings, and whether it has passed over what would have closed its set since its last event."""

    place: int
    bound: Bindings
    passed: bool


class SetAutomaton:
    """The paper's automaton, whose states are the sets of variables that have events.

    Each event of a window meets all instances; one that goes on in several ways becomes several. Where conditions are
    about single events only, an instance takes all that it can, as it would otherwise be neither earliest nor maximal;
    only what closes a set with `+` may be passed over, if the set goes on later. Else an instance may leave out what it
    could take, and matches that could be earlier or longer are dropped at the end.
    """

    def __init__(self, pattern: WindowPattern, *, partitioned: bool) -> None:
        self._variables = [one for some in pattern.sets for one in some]
        self._set_of = [place for place, some in enumerate(pattern.sets) for _ in some]
        self._of_set = [[at for at, of in enumerate(self._set_of) if of == place] for place in range(len(pattern.sets))]
        self._together = pattern.together and not partitioned
        self._is_free = not any(one.rises or one.falls for one in self._variables)
        self._goes_on = [any(one.kleene for one in some) for some in pattern.sets]

    def matches(self, window: Sequence[WindowEvent]) -> Iterator[WindowMatch]:
        """Yields the matches that begin with the first event of a window."""
        first = window[0]
        nothing: Bindings = ((),) * len(self._variables)
        live = [
            AutomatonInstance(0, _bind(nothing, at, first), False)
            for at in self._of_set[0]
            if self._variables[at].kind == first.kind
        ]
        complete = [one for one in live if self._is_complete(one)]
        live = [one for one in live if not self._is_over(one)]
        for event in islice(window, 1, None):
            if not live:
                break
            steps = [(one, step) for one in live for step in self._steps(one, event, first)]
            complete += [step for one, step in steps if step is not one and self._is_complete(step)]
            live = [step for _, step in steps if not self._is_over(step)]
        for bound in self._chosen([one.bound for one in complete], window):
            yield tuple(tuple(event.number for event in some) for some in bound)

    def _is_complete(self, one: AutomatonInstance) -> bool:
        return one.place == len(self._of_set) - 1 and self._is_full(one)

    def _is_over(self, one: AutomatonInstance) -> bool:
        return self._is_complete(one) and not self._goes_on[one.place]

    def _is_full(self, one: AutomatonInstance) -> bool:
        return all(one.bound[at] for at in self._of_set[one.place])

    def _steps(self, one: AutomatonInstance, event: WindowEvent, first: WindowEvent) -> list[AutomatonInstance]:
        if self._together and event.of != first.of:
            return [one]
        found = []
        for at in self._of_set[one.place]:
            variable = self._variables[at]
            if event.kind == variable.kind and _takes(variable, one.bound[at], event):
                found.append(AutomatonInstance(one.place, _bind(one.bound, at, event), False))
        if found:
            return found if self._is_free else [*found, one]
        if one.place + 1 < len(self._of_set) and self._is_full(one):
            for at in self._of_set[one.place + 1]:
                if event.kind == self._variables[at].kind:
                    if not one.passed:
                        found.append(AutomatonInstance(one.place + 1, _bind(one.bound, at, event), False))
                    if self._goes_on[one.place] or not self._is_free:
                        found.append(one._replace(passed=self._is_free))
                    return found
        return [one]

    def _chosen(self, complete: list[Bindings], window: Sequence[WindowEvent]) -> list[Bindings]:
        if not self._is_free:
            return [one for one in complete if not any(map(self._is_valid, self._changed(one, window)))]
        if not self._goes_on[-1]:
            return complete
        return [one for one in complete if not any(_is_part(one, other) for other in complete)]

    def _changed(self, bound: Bindings, window: Sequence[WindowEvent]) -> Iterator[Bindings]:
        used = {event.number for some in bound for event in some}
        for at, some in enumerate(bound):
            for event in window:
                if event.number in used or event.kind != self._variables[at].kind or event is window[0]:
                    continue
                if event.time < some[0].time:
                    yield (*bound[:at], (event, *some[1:]), *bound[at + 1 :])
                if self._variables[at].kleene:
                    more = tuple(sorted((*some, event), key=lambda one: one.time))
                    yield (*bound[:at], more, *bound[at + 1 :])

    def _is_valid(self, bound: Bindings) -> bool:
        of_variables = zip(self._variables, bound, strict=True)
        if not all(_takes(variable, (one,), other) for variable, some in of_variables for one, other in pairwise(some)):
            return False
        if self._together and len({event.of for some in bound for event in some}) > 1:
            return False
        return all(
            bound[at][-1].time < bound[other][0].time
            for at, place in enumerate(self._set_of)
            for other, behind in enumerate(self._set_of)
            if behind == place + 1
        )


def _bind(bound: Bindings, at: int, event: WindowEvent) -> Bindings:
    return (*bound[:at], (*bound[at], event), *bound[at + 1 :])


def _takes(variable: PatternVariable, before: tuple[WindowEvent, ...], event: WindowEvent) -> bool:
    if not before:
        return True
    if not variable.kleene or event.time <= before[-1].time:
        return False
    if variable.rises:
        return event.value > before[-1].value
    return not variable.falls or event.value < before[-1].value


def _is_part(one: Bindings, other: Bindings) -> bool:
    return one != other and all(set(some) <= set(more) for some, more in zip(one, other, strict=True))


def window_matches(pattern: WindowPattern, events: Sequence[WindowEvent], pruned: str) -> set[WindowMatch]:
    """The matches of a pattern, window by window: the paper's Algorithm 1, with two faults mended. At the end, windows
    that cannot match are skipped, instead of ending all; and candidates in order are looked for in the window as it is.
    `pruned` has `f` for filtered windows, `p` for partitioned ones, and `c` if the necessary conditions are checked."""
    filtered, partitioned, checked = "f" in pruned, "p" in pruned and pattern.together, "c" in pruned
    automaton = SetAutomaton(pattern, partitioned=partitioned)
    sets = [[one.kind for one in some] for some in pattern.sets]
    kinds = {kind for some in sets for kind in some}
    found: set[WindowMatch] = set()

    def match_first(window: deque[WindowEvent]) -> None:
        if not checked or _may_match(window, sets, len(kinds)):
            found.update(automaton.matches(window))
        window.popleft()

    windows: dict[int, deque[WindowEvent]] = defaultdict(deque)
    for event in events:
        if filtered and event.kind not in kinds:
            continue
        window = windows[event.of if partitioned else 0]
        while window and event.time - window[0].time > pattern.window:
            match_first(window)
        window.append(event)
    for window in windows.values():
        while window:
            match_first(window)
    return found


def _may_match(window: deque[WindowEvent], sets: Sequence[Sequence[str]], count: int) -> bool:
    if len(window) < count or window[0].kind not in sets[0]:
        return False
    first, last = dict[str, int](), dict[str, int]()
    for event in window:
        first.setdefault(event.kind, event.time)
        last[event.kind] = event.time
    if any(kind not in first for some in sets for kind in some):
        return False
    return all(first[one] < last[other] for some, behind in pairwise(sets) for one in some for other in behind)


UNPRUNED = "no pruning"


@dataclass(frozen=True)
class WindowsCase:
    """Patterns of a shape: several, of `size` variables, or one, with a window of as many days or milliseconds."""

    figure: str
    shape: PatternShape
    data: WindowData
    events: int
    size: int = 0
    window: int = 0
    questions: int = 1

    def patterns(self) -> list[WindowPattern]:
        if self.shape == "Ponco":
            return [ponco(self.window)]
        if self.shape == "Pnyse":
            return [pnyse(self.window)]
        chance = np.random.default_rng((self.size, 7))
        return [random_pattern(self.data, self.shape, self.size, chance) for _ in range(self.questions)]


WindowRun = tuple[float, list[set[WindowMatch]]]  # CPU seconds, and the matches of each pattern


def run_matcher(patterns: Sequence[WindowPattern], events: kit.StreamEvents, pruned: str) -> WindowRun:
    rows = zip(events.times.tolist(), *(column.tolist() for column in events.columns), strict=True)
    singles = [WindowEvent(number, *row) for number, row in enumerate(rows)]
    return timed(lambda: [window_matches(one, singles, pruned) for one in patterns], time.process_time)


def run_window_kernel(patterns: Sequence[WindowPattern], events: kit.StreamEvents, replayed: bool) -> WindowRun:
    statements = kit.lower_texts([one.text() for one in patterns], {WINDOW_STREAM: WINDOW_SCHEMA})
    runs = [_run_statement(statement, events, replayed) for statement in statements]
    return sum(seconds for seconds, _ in runs), [found for _, found in runs]


def _run_statement(statement: Statement, events: kit.StreamEvents, replayed: bool) -> tuple[float, set[WindowMatch]]:
    texts, tracked = Texts(), kit.TrackedLineage()
    lineage = tracked.lineage
    registered = tracked.register({WINDOW_STREAM: events.encoded(texts)})
    kernel = Kernel(texts, lineage)
    if replayed:
        ask = partial(ask_duckdb, set_up=lambda connection: connection.execute("SET threads = 1"))
        kernel = ReplayKernel(texts, lineage, ask, Kernel)
    start = time.process_time()
    kernel.add(0, statement, BEGINNING)
    lineage.begin()
    kernel.begin(1 << 61)
    results = kernel.feed(registered) + kernel.end()
    seconds = time.process_time() - start
    return seconds, {match for one in results for _, match in tracked.matches(one)}


def measure_windows(case: WindowsCase, quick: bool = False, turns: int = 1) -> Iterator[Line]:
    """Lines of a case: medians over turns; each turn runs all ways over all events."""
    patterns, events = case.patterns(), window_events(case.data, case.events)
    ways: dict[str, Callable[[], WindowRun]] = {UNPRUNED: partial(run_matcher, patterns, events, "")}
    for pruned in ("f", "fp", "fpc") if case.data == "onco" else ("f", "fc"):
        ways[pruned] = partial(run_matcher, patterns, events, pruned)
    ways["SQL, then kernel"] = partial(run_window_kernel, patterns, events, True)
    ways["kernel"] = partial(run_window_kernel, patterns, events, False)
    taken, found = compared_turns(ways, turns, case, "matches")
    yield from kit.turn_lines(asdict(case), taken, sum(map(len, found)), case.events * case.questions, UNPRUNED)


def windows_cases(options: kit.PatternOptions) -> list[WindowsCase]:
    quick = options.quick
    onco, nyse = (options.events or (6_000 if quick else full) for full in (20_000, 50_000))
    questions = 1 if quick else 2
    streams: tuple[tuple[WindowData, int], ...] = (("onco", onco), ("nyse", nyse))
    cases = [
        WindowsCase(f"{shape}, {data}", shape, data, events, size, questions=questions)
        for data, events in streams
        for shape in ("Pseq", "Pset")
        for size in ((1, 4, 10) if quick else range(1, 11))
    ]
    base = WindowsCase("Ponco", "Ponco", "onco", onco)
    cases += [replace(base, window=days) for days in ((10, 30) if quick else (5, 10, 20, 30, 40, 50))]
    base = WindowsCase("Pnyse", "Pnyse", "nyse", nyse)
    cases += [replace(base, window=window) for window in ((20, 60) if quick else (10, 20, 40, 60, 80, 100))]
    counts = (1_000, 10_000) if quick else (100, 1_000, 10_000, 100_000, 1_000_000)
    return cases + [replace(base, figure="Pnyse, events", window=50, events=number) for number in counts]


WINDOWS_COLUMNS = columns(
    "figure | = plan | variables = size | window | events | events/s = events_a_second | matches = rows | "
    "times as fast as without = marked",
    size=lambda line: line.case["size"] or None,
    window=lambda line: line.case["window"] or None,
)

WINDOW_BENCHMARKS = {"windows": kit.PatternBenchmark(windows_cases, kit.each_case(measure_windows), WINDOWS_COLUMNS)}
