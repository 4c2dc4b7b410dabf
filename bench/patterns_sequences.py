"""PATTERN statements: runs of any length (SASE+, section 6), missing letters, and what a BUDGET leaves.

`kleene` has the experiments of SASE+ over prices of stocks: E1 six patterns at one window, E2 larger windows, E3
backtracking, the paper's baseline, E4 NON OVERLAPPING, E5 runs that are merged because they remember the same, E6 these
without the time to tell matches. `many` has many patterns beside a sample of them one at a time. `held` has
windows of 100 to 100,000 events whose matches are the same. `trends` counts all matches of windows of 12 to 10,000
events, beside enumeration where that ends. `errors` compares missing letters with the exact pattern,
and measures the share of matches that a BUDGET leaves.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from statistics import median
from typing import Any, Literal, cast, get_args
from unittest.mock import patch

import numpy as np

from bench import patterns_kernel as kit
from bench.harness import Line, charged, columns, compared_turns, ratio, turns_of
from common.arrays import Ints
from pattern_stage.columns import Columns, Floats, whole
from pattern_stage.definition import inputs, pattern_template
from pattern_stage.index import StaticIndex
from pattern_stage.kernel import Kernel, Results
from pattern_stage.lineage import Lineage
from pattern_stage.pattern import host
from pattern_stage.pattern.found import expand_bundles
from pattern_stage.pattern.history import Extension, KeyTuple, NearHistory, PartialCandidate, PartialName, hashed
from pattern_stage.pattern.program import CompiledEdge, EventSlots, PatternProgram
from pattern_stage.pattern.rows import Arrival, EventRole, RoleEvents
from pattern_stage.pattern.runs import RunMatching
from pattern_stage.pattern.together import decimal_text
from pattern_stage.values import Texts
from xscl.algebra.events import Pattern, Schema, Statement

INTERVAL = 1000  # events of an interval
Predicate = Literal["p1", "p2", "p3"]
Strategy = Literal["s2", "s3"]
PREDICATES: tuple[Predicate, ...] = get_args(Predicate)

STOCK_STREAM = "Stock"
STOCK_SCHEMA: Schema = (("symbol", "string"), ("price", "number"), ("volume", "number"))
SYMBOLS, ROUND, LOW = 2, 500, 150
TOP = 1000  # the number of prices, and of volumes
PER_WINDOW = 40  # the length of a stream in windows; 200 in the paper

_PREDICATES = {"p1": "", "p2": " AND a[i].price > a[i-1].price", "p3": " AND a[i].price > min(a[..i-1].price)"}
_STRATEGIES = {"s2": "partition_contiguity", "s3": "skip_till_next_match"}


def stock_events(count: int, rises: float, seed: int = 1) -> kit.StreamEvents:
    """Symbols in turn, a second apart. Prices (0 to 999, cyclic) rise by 1 with chance `rises`; volumes: 1 to 1000."""
    chance = np.random.default_rng(seed)
    symbols = np.arange(count) % SYMBOLS
    prices: Floats = np.zeros(count)
    falls = (1 - rises) / 2
    for symbol in range(SYMBOLS):
        own = symbols == symbol
        steps = chance.choice((1, -1, 0), int(own.sum()), p=(rises, falls, falls))
        prices[own] = (chance.integers(0, TOP) + np.cumsum(steps)) % TOP
    return kit.every_second(STOCK_SCHEMA, (symbols, prices, chance.integers(1, TOP + 1, count).astype(np.float64)))


@dataclass(frozen=True)
class KleeneCase:
    """A pattern, or many that differ in a constant: a round price, further events, and a low volume, within as many
    events of each symbol. `apart`: NON OVERLAPPING. `three`: a third price lies between the first and the last one."""

    figure: str
    predicate: Predicate
    strategy: Strategy
    window: int
    events: int
    rises: float = 0.7
    apart: bool = False
    three: bool = False
    queries: int = 1

    @property
    def template(self) -> str:
        return f"{self.predicate}{'*' * self.three}{self.strategy}"

    def texts(self) -> list[str]:
        lows = [LOW * (place + 1) / self.queries for place in range(self.queries)]
        components, between = "Stock+ a[], Stock b", ""
        if self.three:
            components += ", Stock c"
            between = " AND a[1].price < c.price AND c.price < a[a.LEN].price"
        start = f"[symbol] AND a[1].price % {ROUND} = 0{_PREDICATES[self.predicate]}"
        pattern = f"PATTERN SEQ({components}) WHERE {_STRATEGIES[self.strategy]} {{{start}"
        end = f"{between}}} WITHIN {self.window * SYMBOLS} s{' NON OVERLAPPING' * self.apart}"
        return [f"{pattern} AND b.volume < {low:g}{end}" for low in lows]


MatchPath = list[tuple[int, int]]  # the events of a match: the number of each, and its variable

_Path = tuple[int, int, Any]  # the last event of a run, its variable, and the path before it


class Backtracking:
    """What SASE+ is compared with in its paper: one run at a time, depth first; where it may go on in several ways, the
    others wait on a stack. Patterns have no SET, negation, HAVING or output modes; their events do not overlap."""

    def __init__(self, pattern: Pattern, texts: Texts) -> None:
        assert pattern.within is not None and not pattern.kills and not pattern.apart and not pattern.maximal
        self._window = pattern.within
        numbered = pattern_template(pattern, lambda leaf: leaf)
        assert isinstance(numbered, Pattern)
        self._pattern = pattern = numbered
        slots = EventSlots()
        self._program = program = PatternProgram(pattern, texts, slots)
        self._schemas = [schema for _, schema in inputs(pattern)]
        self._roles: list[EventRole] = []
        self._begins = [self._role(at, edge, texts) for at, edge in enumerate(program.begins)]
        self._takes = [self._role(at, edge, texts) for at, edge in enumerate(program.takes)]
        self._arrivals = RoleEvents(self._schemas, pattern.keys, self._roles, texts, slots.values, all_events=True)

    def _role(self, variable: int, edge: CompiledEdge, texts: Texts) -> int:
        stream = self._program.streams[variable]
        self._roles.append(EventRole(stream, self._schemas[stream], edge.static, texts, StaticIndex))
        return len(self._roles) - 1

    def run(self, streams: Sequence[Columns]) -> Iterator[MatchPath]:
        by_key: dict[Any, list[Arrival]] = {}
        for _, arrivals in self._arrivals.epochs([whole(events) for events in streams], 1, ()):
            for one in arrivals:
                if one.key is not None:
                    by_key.setdefault(one.key, []).append(one)
        for events in by_key.values():
            for first, one in enumerate(events):
                if one.masks[self._begins[0]]:
                    yield from self._from(events, first)

    def _from(self, events: Sequence[Arrival], first: int) -> Iterator[MatchPath]:
        program, strategy = self._program, self._pattern.strategy
        begin = events[first].event
        stack: list[tuple[int, Any, int, _Path]] = [(0, program.begin[0]((), begin), first, (begin[2], 0, None))]
        while stack:
            state, registers, at, path = stack.pop()
            if state == program.last and _edge_holds(program.completes[state], registers, ()):
                yield _listed(path)
            for place in range(at + 1, len(events)):
                one = events[place]
                event = one.event
                if event[1] - begin[0] > self._window:
                    break
                takes = (
                    program.kleene[state]
                    and one.masks[self._takes[state]]
                    and _edge_holds(program.takes[state], registers, event)
                )
                begins = (
                    state < program.last
                    and one.masks[self._begins[state + 1]]
                    and _edge_holds(program.completes[state], registers, ())
                    and _edge_holds(program.begins[state + 1], registers, event)
                )
                if begins:
                    moved = program.begin[state + 1](registers, event)
                    stack.append((state + 1, moved, place, (event[2], state + 1, path)))
                if takes:
                    stack.append((state, program.take[state](registers, event), place, (event[2], state, path)))
                if strategy == "partition" or (strategy == "next" and (takes if program.kleene[state] else begins)):
                    break


def _listed(path: _Path) -> MatchPath:
    found = []
    rest: Any = path
    while rest is not None:
        number, variable, rest = rest
        found.append((number, variable))
    return found[::-1]


def _edge_holds(edge: CompiledEdge, registers: tuple[Any, ...], event: tuple[Any, ...]) -> bool:
    return edge.holds is None or edge.holds(registers, event)


def backtracked_matches(pattern: Pattern, texts: Texts, streams: Mapping[str, Columns]) -> Iterator[MatchPath]:
    return Backtracking(pattern, texts).run([streams[name] for name, _ in inputs(pattern)])


MatchHash = int  # A hash of the numbers of the events of each variable


@dataclass
class KleeneRun:
    """CPU seconds, and of these those to tell matches; how many matches; of patterns of a sample, the number of events
    in matches, and the matches."""

    seconds: float = 0.0
    telling: float = 0.0
    matches: int = 0
    length: int = 0
    found: dict[int, set[MatchHash]] | None = None


def run_kleene(
    patterns: Sequence[Statement], events: kit.StreamEvents, sample: Iterable[int] = (), *, merged: bool = True
) -> KleeneRun:
    tracked, wanted = kit.TrackedLineage(), sorted(sample)
    kernel = Kernel(Texts(), tracked.lineage, merged=merged)
    kit.add_all(kernel, patterns)
    found: dict[int, set[MatchHash]] = {place: set() for place in wanted}
    run = KleeneRun(found=found)

    def take(results: Results) -> None:
        run.matches += len(results)
        for place, match in tracked.matches(results, np.flatnonzero(np.isin(results.statements, wanted))):
            run.length += sum(map(len, match))
            found[place].add(hash(match))

    telling: list[float] = []  # of a few calls for an interval, as each look at the clock takes long
    clocked = partial(charged, charge=telling.append, clock=time.thread_time)
    bundles = patch.object(host, "expand_bundles", clocked(expand_bundles))
    with bundles, patch.object(RunMatching, "_results", clocked(RunMatching._results)):
        streams = {STOCK_STREAM: events.encoded(kernel.texts)}
        run.seconds = kit.feed(kernel, streams, INTERVAL * kit.SECOND, take, tracked)
    run.telling = sum(telling)
    return run


def run_backtracking(statement: Statement, events: kit.StreamEvents) -> KleeneRun:
    texts = Texts()
    streams = {STOCK_STREAM: events.encoded(texts)}
    found: set[MatchHash] = set()
    run = KleeneRun(found={0: found})
    start = time.thread_time()
    for path in backtracked_matches(cast(Pattern, statement), texts, streams):
        run.matches += 1
        run.length += len(path)
    run.seconds = time.thread_time() - start
    for path in backtracked_matches(cast(Pattern, statement), texts, streams):
        by_variable = groupby(path, key=lambda one: one[1])
        found.add(hash(tuple(tuple(number for number, _ in some) for _, some in by_variable)))
    return run


def measure_kleene(
    case: KleeneCase, quick: bool = False, turns: int | None = None, sample: int | None = None
) -> Iterator[Line]:
    """Lines of a case: medians over turns; each turn runs all ways. The last way is the baseline."""
    patterns = kit.lower_texts(case.texts(), {STOCK_STREAM: STOCK_SCHEMA})
    events = stock_events(case.events, case.rises)
    chosen = kit.choose_sample(case.queries, sample or (2 if quick else 5))
    ways: dict[str, Callable[[], KleeneRun]] = {"together": partial(run_kleene, patterns, events, chosen)}
    if case.queries > 1:
        ways["one at a time"] = partial(_one_at_a_time, patterns, events, chosen)
    else:
        ways["without merging"] = partial(run_kleene, patterns, events, [0], merged=False)
        if not case.apart:
            ways["backtracking"] = lambda: run_backtracking(patterns[0], events)
    runs: dict[str, list[KleeneRun]] = {plan: [] for plan in ways}
    for _ in range(turns or (1 if quick else 3)):
        for plan, way in ways.items():
            runs[plan].append(way())
            assert runs[plan][-1].found == runs["together"][-1].found, f"{case}: {plan} has other matches"
    base, scale = list(ways)[-1], case.queries / len(chosen)
    together, baseline = runs["together"], [run.seconds * scale for run in runs[base]]
    for plan, some in runs.items():
        taken = median(run.seconds for run in some) * (scale if plan == "one at a time" else 1)
        count = sum(map(len, (some[0].found or {}).values()))
        details: dict[str, object] = {
            "events_a_second": case.events / taken,
            "length": some[0].length / count if some[0].length else None,
            "template": case.template,
        }
        if plan == "without merging":
            details["merging"] = ratio([run.seconds for run in some], [run.seconds for run in together])
            matching = [[run.seconds - run.telling for run in each] for each in (some, together)]
            details["matching"] = ratio(*matching)
        times = None if plan == base else ratio(baseline, [run.seconds for run in some])
        yield Line(
            "patterns", {**asdict(case), "template": case.template}, None, plan, taken, some[0].matches,
            base if times else None, times, None, scale > 1, details,
        )  # fmt: skip


def _one_at_a_time(patterns: Sequence[Statement], events: kit.StreamEvents, sample: Sequence[int]) -> KleeneRun:
    found: dict[int, set[MatchHash]] = {}
    total = KleeneRun(found=found)
    for place in sample:
        one = run_kleene([patterns[place]], events, [0])
        total.seconds += one.seconds
        total.matches += one.matches
        found[place] = (one.found or {})[0]
    return total


def kleene_cases(options: kit.PatternOptions) -> list[KleeneCase]:
    quick, window = options.quick, 100 if options.quick else 500

    def count(window: int) -> int:
        return options.events or (20 if quick else PER_WINDOW) * window * SYMBOLS

    base = KleeneCase("E1", "p1", "s3", window, count(window))
    cases = [
        replace(base, predicate=predicate, strategy=strategy, rises=rises)
        for predicate in PREDICATES
        for strategy in get_args(Strategy)
        for rises in ((0.7,) if quick else (0.55, 0.7))
    ]
    for size in () if quick else (500, 1000, 1500, 2000):
        cases += [replace(base, figure="E2", predicate=one, window=size, events=count(size)) for one in PREDICATES]
    cases += [replace(base, figure="E4", predicate=one, apart=True, three=True) for one in PREDICATES]
    numbers = options.queries or ([1_000] if quick else [1_000, 10_000])
    return cases + [replace(base, figure="many", queries=one, events=options.events or 10_000) for one in numbers]


KLEENE_COLUMNS = columns(
    "figure | = template | = plan | rises | window | queries | events/s = events_a_second | matches = rows | "
    "events a match = length | times as fast as the last = marked | merging | matching only = matching"
)

HELD_WINDOWS = (100, 1_000, 10_000, 100_000)
HELD_EVERY, HELD_SPAN = 500, 20  # events from one planted match to the next, and how long it takes
_HELD = {
    "no end": "Price a, Stock+ b[], Trade c) WHERE {strategy} {{c.key < 0}}",
    "equal": "Price a, Stock b, Trade c) WHERE {strategy} {{b.key = a.key AND c.key = a.key}}",
    "equal+": "Price a, Stock+ b[], Trade c) WHERE {strategy} {{b[].key = a.key AND c.key = a.key}}",
}


@dataclass(frozen=True)
class HeldCase:
    """Three events of one key, where every match lies within the least window: so all windows have the same matches,
    and longer ones only more runs that wait."""

    template: str
    strategy: Strategy | Literal["any"]
    events: int

    def text(self, window: int) -> str:
        strategy = _STRATEGIES.get(self.strategy, "skip_till_any_match")
        return f"PATTERN SEQ({_HELD[self.template].format(strategy=strategy)} WITHIN {window} s"


def held_events(count: int) -> dict[str, kit.StreamEvents]:
    """Events of three streams in random order, a second apart, each with a key of its own but for planted matches."""
    numbers = np.arange(1, count + 1)
    streams, keys = np.random.default_rng(1).integers(0, 3, count), numbers.astype(np.float64)
    for first in range(HELD_EVERY, count - HELD_SPAN, HELD_EVERY):
        for stream in range(3):
            streams[first + stream * HELD_SPAN // 2], keys[first + stream * HELD_SPAN // 2] = stream, first + 0.5
    found = {}
    for stream, name in enumerate(("Price", "Stock", "Trade")):
        own = np.flatnonzero(streams == stream)
        found[name] = kit.StreamEvents(_HELD_SCHEMA, numbers[own] * kit.SECOND, numbers[own], (keys[own],))
    return found


_HELD_SCHEMA: Schema = (("key", "number"),)


def measure_held(case: HeldCase, quick: bool = False) -> Iterator[Line]:
    """The lines of all windows, which have the same matches: medians of turns, once the longest window is full. The
    least one is the baseline."""
    streams = held_events(case.events)

    def run(window: int) -> tuple[float, MatchSet]:
        tracked, found = kit.TrackedLineage(), MatchSet()
        kernel = Kernel(Texts(), tracked.lineage)
        kit.add_all(kernel, kit.lower_texts([case.text(window)], dict.fromkeys(streams, _HELD_SCHEMA)))
        encoded = {name: some.encoded(kernel.texts) for name, some in streams.items()}

        def take(results: Results) -> None:
            found.update(tuple(sorted(sum(match, ()))) for _, match in tracked.matches(results))

        return kit.feed(kernel, encoded, INTERVAL * kit.SECOND, take, tracked, since=full * kit.SECOND), found

    windows = HELD_WINDOWS[:2] if quick else HELD_WINDOWS
    full = windows[-1]  # only then the longest window keeps as much as it ever will
    ways = {f"{window:,}": partial(run, window) for window in windows}
    taken, found = compared_turns(ways, 1 if quick else 3, case, "matches")
    assert bool(found) == (case.template != "no end"), f"{case} has {len(found)} matches"
    yield from kit.turn_lines(asdict(case), taken, len(found), case.events - full, next(iter(ways)))


def held_cases(options: kit.PatternOptions) -> list[HeldCase]:
    count = options.events or (5_000 if options.quick else 300_000)
    strategies: tuple[Strategy | Literal["any"], ...] = ("any",) if options.quick else ("s3", "any")
    return [HeldCase(template, strategy, count) for template in _HELD for strategy in strategies]


HELD_COLUMNS = columns(
    "pattern = template | strategy | window = plan | events/s = events_a_second | matches = rows | "
    "times as fast as the least window = marked"
)


@dataclass(frozen=True)
class TrendsCase:
    """ALL MATCHES TOGETHER over one stream, beside all matches, counted by their last event where there are few."""

    template: str
    window: int
    enumerated: bool

    def text(self, *, together: bool) -> str:
        where = "WHERE skip_till_any_match {a[i].key > a[i-1].key}" if self.template == "rising" else ""
        returned = "count(*) AS n, max(a[].key) AS m ALL MATCHES TOGETHER" if together else "a[a.LEN].key AS k"
        where = where or "WHERE skip_till_any_match {}" * (not together)
        return f"PATTERN SEQ(A+ a[]) {where} WITHIN {self.window - 1} s RETURN {returned}"


def measure_trends(case: TrendsCase, quick: bool = False) -> Iterator[Line]:
    """Events a second of a second window of events, while the first one slides out."""
    count = max(2 * case.window, 100)
    numbers, keys = np.arange(1, count + 1), np.random.default_rng(1).integers(0, 1_000, count)
    given = {"A": kit.StreamEvents(_HELD_SCHEMA, numbers * kit.SECOND, numbers, (keys.astype(np.float64),))}

    def run(together: bool) -> tuple[float, Mapping[int, int]]:
        kernel, found = Kernel(Texts(), Lineage()), Counter[int]()
        kit.add_all(kernel, kit.lower_texts([case.text(together=together)], {"A": _HELD_SCHEMA}))

        def take(results: Results) -> None:
            texts = kernel.texts.texts(results.events.values[0].astype(np.int64)) if together else ()
            found.update(dict(zip(results.events.t1.tolist(), map(int, map(str, texts)), strict=False)))
            found.update(() if together else results.events.t1.tolist())

        encoded = {name: some.encoded(kernel.texts) for name, some in given.items()}
        return kit.feed(kernel, encoded, case.window * kit.SECOND, take, since=case.window * kit.SECOND), found

    ways = {"together": partial(run, True)} | ({"one by one": partial(run, False)} if case.enumerated else {})
    taken, found = compared_turns(ways, 1 if quick else 3, case, "matches")
    details = {"digits": max(len(decimal_text(one)) for one in found.values())}
    lines = kit.turn_lines(asdict(case), taken, len(found), count - case.window, "together")
    yield from (replace(line, details={**line.details, **details}) for line in lines)


def trends_cases(options: kit.PatternOptions) -> list[TrendsCase]:
    free = [
        TrendsCase("all", window, window <= 12) for window in ((8, 100) if options.quick else (12, 100, 1_000, 10_000))
    ]
    return free + [
        TrendsCase("rising", window, window <= 30) for window in ((30,) if options.quick else (30, 100, 300))
    ]


TRENDS_COLUMNS = columns(
    "pattern = template | window | plan | events/s = events_a_second | outputs = rows | "
    "digits | times as fast as together = marked"
)

ERROR_STREAMS, DRIFT_STREAMS = ("A", "B", "C"), ("A", "B", "C", "D")
KEY_SCHEMA: Schema = (("key", "string"),)
ERROR_KEYS, DRIFT_KEYS = 100, 20
ERROR_WITHIN, DRIFT_WITHIN = 1000, 400  # seconds, as events are a second apart
EPISODE = 60  # one of as many events begins an episode, which is a match, in the stream that drifts
MatchSet = set[tuple[int, ...]]  # matches: the numbers of their events


@dataclass(frozen=True)
class ErrorsCase:
    """At most `errors` missing letters; each key keeps `budget` partial matches, 0 for all."""

    figure: str
    errors: int
    events: int
    budget: int = 0

    def text(self) -> str:
        sequence, within = ("A!, B, C, D!", DRIFT_WITHIN) if self.figure == "drift" else ("A, B, C", ERROR_WITHIN)
        budget = f" BUDGET {self.budget}" if self.budget else ""
        return f"PATTERN SEQ({sequence}) WHERE {{[key]}} ERRORS <= {self.errors}{budget} WITHIN {within} s"


EXACT = f"PATTERN SEQ(A a, B b, C c) WHERE skip_till_any_match {{[key]}} WITHIN {ERROR_WITHIN} s"


@dataclass(frozen=True)
class KeyedEvents:
    names: Sequence[str]
    streams: Ints
    keys: Ints

    def by_stream(self) -> dict[str, kit.StreamEvents]:
        found = {}
        for place, name in enumerate(self.names):
            numbers = np.flatnonzero(self.streams == place) + 1
            found[name] = kit.StreamEvents(KEY_SCHEMA, numbers * kit.SECOND, numbers, (self.keys[numbers - 1],))
        return found


def keyed_events(count: int, seed: int = 1) -> KeyedEvents:
    chance = np.random.default_rng(seed)
    streams = chance.integers(0, len(ERROR_STREAMS), count)
    return KeyedEvents(ERROR_STREAMS, streams, chance.integers(0, ERROR_KEYS, count))


def run_errors(text: str, events: KeyedEvents) -> tuple[float, MatchSet]:
    tracked = kit.TrackedLineage()
    kernel = Kernel(Texts(), tracked.lineage)
    streams = events.by_stream()
    kit.add_all(kernel, kit.lower_texts([text], dict.fromkeys(streams, KEY_SCHEMA)))
    found: MatchSet = set()

    def take(results: Results) -> None:
        found.update(tuple(sorted(sum(match, ()))) for _, match in tracked.matches(results))

    encoded = {name: some.encoded(kernel.texts) for name, some in streams.items()}
    return kit.feed(kernel, encoded, INTERVAL * kit.SECOND, take, tracked), found


def measure_errors(cases: Sequence[ErrorsCase], turns: int) -> Iterator[Line]:
    """The lines of cases over the same events. The exact pattern, which is the baseline, is run once in each turn."""
    events = keyed_events(cases[0].events)
    ways = {case: partial(run_errors, case.text() if case else EXACT, events) for case in (None, *cases)}
    taken, found = turns_of(ways, turns)
    every = {case.errors: found[case] for case in cases if not case.budget}
    for case in cases:
        assert found[None] <= found[case] or case.budget, f"{case}: an exact match is missing"
        assert found[case] == found[None] or case.errors, f"{case}: other matches than {EXACT}"
        recall = None
        if case.budget:
            if case.errors not in every:
                _, every[case.errors] = run_errors(replace(case, budget=0).text(), events)
            assert found[case] <= every[case.errors], f"{case}: a match that there is not"
            recall = len(found[case]) / len(every[case.errors])
        seconds, times = median(taken[case]), ratio(taken[None], taken[case])
        details = {"events_a_second": case.events / seconds, "recall": recall}
        rows = len(found[case])
        yield Line("patterns", asdict(case), None, "errors", seconds, rows, "exact", times, details=details)


def errors_cases(options: kit.PatternOptions) -> list[ErrorsCase]:
    count, drift = [options.events or given for given in ((2_000, 4_000) if options.quick else (10_000, 12_000))]
    budgets = (1, 2, 4, 8, 16, 32)
    return [
        *(ErrorsCase("errors", errors, count) for errors in (0, 1, 2)),
        *(ErrorsCase("budget", 1, count, budget) for budget in budgets),
        *(ErrorsCase("drift", 1, drift, budget) for budget in budgets),
    ]


ERRORS_COLUMNS = columns(
    "missing letters = errors | BUDGET = budget | kept by = kept_by | events/s = events_a_second | matches = rows | "
    "times as fast as exact = speedup | recall | times the time by rank = over_rank",
    budget=lambda line: line.case["budget"] or None,
    kept_by=lambda line: line.plan if line.case["figure"] == "drift" else None,
)


class ByRank(NearHistory):
    """Learns nothing, and keeps partial matches by rank: those that lack least, then the latest."""

    def pass_until(self, time: int) -> None:
        pass

    def learn(self, time: int, made: Iterable[tuple[KeyTuple, Extension]]) -> None:
        pass

    def chosen(self, time: int, key: KeyTuple, candidates: Sequence[PartialCandidate], most: int) -> set[PartialName]:
        return {one.name for one in sorted(candidates, key=lambda one: one.rank)[:most]}


class ByHash(ByRank):
    def chosen(self, time: int, key: KeyTuple, candidates: Sequence[PartialCandidate], most: int) -> set[PartialName]:
        return {one.name for one in sorted(candidates, key=lambda one: (hashed(one), one.rank))[:most]}


def drifting_events(count: int, seed: int = 1) -> KeyedEvents:
    """Mostly noise, with A B D and pairs A C in the first half, A C D and A B in the second: ranks must adapt."""
    chance = np.random.default_rng(seed)
    streams, keys = np.zeros(count, np.int64), chance.integers(0, DRIFT_KEYS, count)
    for begin in range(0, count - EPISODE + 1, EPISODE):
        places = begin + np.sort(chance.choice(EPISODE, 5, replace=False))
        leads, misleads = (2, 1) if begin >= count // 2 else (1, 2)
        keys[places[[0, 1, 4]]] = chance.integers(0, DRIFT_KEYS)
        streams[places[[1, 4]]] = leads, 3
        keys[places[[2, 3]]] = chance.integers(0, DRIFT_KEYS)
        streams[places[3]] = misleads
    return KeyedEvents(DRIFT_STREAMS, streams, keys)


def bundles(found: MatchSet, events: KeyedEvents) -> list[set[int]]:
    """The last events of each bundle: matches of one key, each within the window of the one before."""
    ends: dict[int, set[int]] = {}
    for match in found:
        ends.setdefault(int(events.keys[match[-1] - 1]), set()).add(match[-1])
    grouped: list[set[int]] = []
    for some in map(sorted, ends.values()):
        breaks = [at for at, (one, other) in enumerate(pairwise(some), 1) if other - one > DRIFT_WITHIN]
        grouped += [set(some[low:high]) for low, high in pairwise([0, *breaks, len(some)])]
    return grouped


def measure_budgets(cases: Sequence[ErrorsCase], turns: int) -> Iterator[Line]:
    """The lines of budgets in the stream that drifts, for each way to choose partial matches to keep. `recall` is the
    share of bundles with a match found, `over_rank` the time over that of keeping by rank: what the history costs."""
    events = drifting_events(cases[0].events)
    _, exact = run_errors(replace(cases[0], budget=0).text(), events)
    every = bundles(exact, events)

    def run(case: ErrorsCase, history: type[NearHistory]) -> tuple[float, MatchSet]:
        with patch("pattern_stage.pattern.with_errors.NearHistory", history):
            return run_errors(case.text(), events)

    for case in cases:
        histories = {"history": NearHistory, "rank": ByRank, "random": ByHash}
        seconds, found = turns_of({name: partial(run, case, each) for name, each in histories.items()}, turns)
        for name, some in found.items():
            assert some <= exact, f"{case}: a match that there is not"
            ends = {match[-1] for match in some}
            details = {
                "events_a_second": case.events / median(seconds[name]),
                "recall": sum(bool(one & ends) for one in every) / len(every),
                "bundles": len(every),
                "over_rank": ratio(seconds[name], seconds["rank"]),
            }
            yield Line("patterns", asdict(case), None, name, median(seconds[name]), len(some), details=details)


def measure_all_errors(cases: Sequence[ErrorsCase], options: kit.PatternOptions) -> Iterator[Line]:
    turns = 1 if options.quick else 3
    yield from measure_errors([case for case in cases if case.figure != "drift"], turns)
    yield from measure_budgets([case for case in cases if case.figure == "drift"], turns)


SEQUENCE_BENCHMARKS = {
    "kleene": kit.PatternBenchmark(kleene_cases, kit.each_case(measure_kleene), KLEENE_COLUMNS),
    "held": kit.PatternBenchmark(held_cases, kit.each_case(measure_held), HELD_COLUMNS, drawn=False),
    "trends": kit.PatternBenchmark(trends_cases, kit.each_case(measure_trends), TRENDS_COLUMNS, drawn=False),
    "errors": kit.PatternBenchmark(errors_cases, measure_all_errors, ERRORS_COLUMNS),
}
