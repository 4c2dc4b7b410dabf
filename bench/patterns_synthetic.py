"""Event patterns over synthetic events (4.4 of the thesis): five templates, the optimiser's parts, and registration.

`technical` is Figure 4.13: the templates, and for one of them other Zipf powers and selectivities. `indexes` is Figure
4.14: parts of the optimiser switched off. `memory` registers statements in a process for each case.

An event has four discrete attributes, of 100 values by default, and four continuous ones, all uniform. A step asks for
values of two discrete ones, first the primary one, the same in all steps, and for ranges of two continuous ones.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from random import Random
from typing import Literal, get_args

import numpy as np

from bench import patterns_kernel as kit
from bench.harness import Line, columns, in_fresh_process, resident_memory
from common.arrays import Ints, Mask
from common.bounds import BEGINNING
from common.tools import gc_paused
from pattern_stage.columns import Floats
from pattern_stage.kernel import Kernel
from pattern_stage.plan import RULE_NAMES, RuleName
from pattern_stage.values import Texts
from xscl.algebra import events as ev
from xscl.algebra.values import CompareOp

SyntheticTemplate = Literal["LinearStat", "LinearDyn", "Filter", "NonDeterministic", "NonDeterministicAgg"]
TEMPLATES: tuple[SyntheticTemplate, ...] = get_args(SyntheticTemplate)

DISCRETE, CONTINUOUS, DOMAIN, RANGES = 4, 4, 100, 25
WITHIN_SECONDS = 20
INTERVAL = 1000  # events of an interval
SAMPLE, QUICK_SAMPLE = 30, 10

STREAM = "S"
SYNTHETIC_SCHEMA: ev.Schema = (
    *((f"d{place}", "string") for place in range(DISCRETE)),
    *((f"c{place}", "number") for place in range(CONTINUOUS)),
)

SWITCHES: dict[str, tuple[tuple[RuleName, ...], bool]] = {
    "": ((), True),
    "merging": (("cse",), True),
    "static index": (("s_sigma",), True),
    "dynamic index": ((), False),
    "all": (RULE_NAMES, False),
}
"""The rules that are switched off, and whether dynamic equalities are hashed."""


@dataclass(frozen=True)
class SyntheticCase:
    """`domain` is the number of values of a discrete attribute, `without` a key of SWITCHES."""

    template: SyntheticTemplate
    queries: int
    events: int
    zipf: float = 1.0
    selectivity: float = 0.7
    domain: int = DOMAIN
    without: str = ""
    figure: str = "4.13a"


@dataclass(frozen=True)
class SyntheticEvents:
    discrete: Ints
    continuous: Floats

    def stream(self) -> kit.StreamEvents:
        return kit.every_second(SYNTHETIC_SCHEMA, (*self.discrete, *self.continuous))


@dataclass(frozen=True, slots=True)
class PatternStep:
    """Two discrete attributes with their values, the primary one first, and two continuous ones with ranges."""

    equal: tuple[tuple[int, int], tuple[int, int]]
    ranges: tuple[tuple[int, float, float], tuple[int, float, float]]


StepTriple = tuple[PatternStep, PatternStep, PatternStep]


def plant_matches(events: SyntheticEvents, statements: Sequence[StepTriple]) -> SyntheticEvents:
    discrete, continuous = events.discrete.copy(), events.continuous.copy()
    starts = range(0, discrete.shape[1] - 2, discrete.shape[1] // len(statements))
    for first, steps in zip(starts, statements, strict=False):
        for event, step in enumerate(steps, first):
            for place, value in step.equal:
                discrete[place, event] = value
            for place, low, high in step.ranges:
                continuous[place, event] = (low + high) / 2
    return SyntheticEvents(discrete, continuous)


def random_steps(
    count: int, zipf: Sequence[float] = (1, 1, 0.8), selectivity: float = 0.7, domain: int = DOMAIN, seed: int = 2
) -> list[StepTriple]:
    chance = np.random.default_rng(seed)
    primary = chance.choice(domain, count, p=kit.zipf_weights(domain, zipf[0]))
    first, second, third = (_column_of_steps(chance, primary, power, selectivity, domain) for power in zipf)
    return list(zip(first, second, third, strict=True))


def _column_of_steps(
    chance: np.random.Generator, primary: Ints, power: float, selectivity: float, domain: int
) -> list[PatternStep]:
    count = len(primary)

    def draw(number: int) -> Ints:
        return chance.choice(number, count, p=kit.zipf_weights(number, power))

    other, values, one = 1 + draw(DISCRETE - 1), draw(domain), draw(CONTINUOUS)
    two = (one + 1 + draw(CONTINUOUS - 1)) % CONTINUOUS
    lows = chance.choice(RANGES, (2, count), p=kit.zipf_weights(RANGES, power)) * ((1 - selectivity) / (RANGES - 1))
    rows = zip(*(column.tolist() for column in (primary, other, values, one, two, *lows)), strict=True)
    return [
        PatternStep(((0, p), (o, v)), ((a, low, low + selectivity), (b, other_low, other_low + selectivity)))
        for p, o, v, a, b, low, other_low in rows
    ]


_BASE = ev.Events(STREAM, SYNTHETIC_SCHEMA)


def template_stream(template: SyntheticTemplate, steps: StepTriple) -> ev.Stream:
    summed = template == "NonDeterministicAgg"
    stream: ev.Stream = ev.Filter(_BASE, _condition(steps[0]))
    for number, step in enumerate(steps[1:]):
        condition = _condition(step)
        match template:
            case "LinearStat":
                stream = ev.Filter(_next(stream), condition)
            case "LinearDyn":
                stream = ev.Filter(_next(stream), ev.AllOf((condition, _rises(step))))
            case "Filter":
                stream = ev.Filter(_next(stream, _primary(step), WITHIN_SECONDS * kit.SECOND), condition)
            case "NonDeterministic" | "NonDeterministicAgg":
                total = ev.Attribute("left", "total" if number else "c0", "number") if summed else None
                start = _latest(stream, total) if number or summed else stream
                stream = ev.Filter(_fold(start, _primary(step), summed), condition)
    return stream


def chain_of(conditions: Sequence[ev.EventCondition]) -> ev.Stream:
    stream: ev.Stream = ev.Filter(_BASE, conditions[0])
    for condition in conditions[1:]:
        stream = ev.Filter(_next(stream), condition)
    return stream


def _condition(step: PatternStep) -> ev.EventCondition:
    atoms: list[ev.Atom] = [
        ev.Comparison("=", ev.Attribute("left", f"d{place}", "string"), ev.Constant(f"v{value}"))
        for place, value in step.equal
    ]
    for place, low, high in step.ranges:
        value = ev.Attribute("left", f"c{place}", "number")
        atoms += [ev.Comparison(">=", value, ev.Constant(low)), ev.Comparison("<=", value, ev.Constant(high))]
    return ev.AllOf(tuple(atoms))


def _primary(step: PatternStep) -> ev.EventCondition:
    (place, value), _ = step.equal
    return ev.Comparison("=", ev.Attribute("right", f"d{place}", "string"), ev.Constant(f"v{value}"))


def _rises(step: PatternStep) -> ev.EventCondition:
    name = f"c{step.ranges[0][0]}"
    return ev.Comparison(">", ev.Attribute("left", name, "number"), ev.Attribute("left", f"{name}_1", "number"))


def _renamed(left: ev.Stream, later: ev.Part, schema: ev.Schema) -> tuple[tuple[tuple[ev.Part, str], ...], ev.Schema]:
    names: tuple[tuple[ev.Part, str], ...] = (
        *(("left", name) for name, _ in left.schema),
        *((later, name) for name, _ in schema),
    )
    return names, (*((f"{name}_1", kind) for name, kind in left.schema), *schema)


def _next(left: ev.Stream, condition: ev.EventCondition = ev.ALWAYS, within: int | None = None) -> ev.Stream:
    return ev.Next(left, _BASE, condition, within, *_renamed(left, "right", SYNTHETIC_SCHEMA))


def _fold(left: ev.Stream, chooses: ev.EventCondition, summed: bool) -> ev.Stream:
    total = ev.Arithmetic("+", ev.Attribute("latest", "total", "number"), ev.Attribute("right", "c0", "number"))
    sets: tuple[tuple[str, ev.Value], ...] = (("total", total),) if summed else ()
    return ev.Fold(
        left, _BASE, chooses, ev.ALWAYS, sets, WITHIN_SECONDS * kit.SECOND, *_renamed(left, "latest", left.schema)
    )


def _latest(source: ev.Stream, total: ev.Value | None) -> ev.Stream:
    items: list[tuple[str, ev.Value]] = [(name, ev.Attribute("left", name, kind)) for name, kind in SYNTHETIC_SCHEMA]
    added: tuple[tuple[str, ev.Kind], ...] = () if total is None else (("total", "number"),)
    return ev.Select(source, (*items, *([] if total is None else [("total", total)])), (*SYNTHETIC_SCHEMA, *added))


Triples = set[tuple[int, ...]]  # results, by the numbers of the events of the three steps


def match_by_hand(template: SyntheticTemplate, steps: StepTriple, events: SyntheticEvents) -> Triples:
    one, two, three = (_holding(step, events) for step in steps)
    if template in ("LinearStat", "LinearDyn"):
        starts = one[:-2] & two[1:-1] & three[2:]
        if template == "LinearDyn":
            rising, again = (np.diff(events.continuous[step.ranges[0][0]]) > 0 for step in steps[1:])
            starts &= rising[:-1] & again[1:]
        return {(start, start + 1, start + 2) for start in np.flatnonzero(starts).tolist()}
    chosen, chosen_again = (
        np.flatnonzero(events.discrete[place] == value) for place, value in (step.equal[0] for step in steps[1:])
    )
    found: Triples = set()
    for first in np.flatnonzero(one).tolist():
        for second in _followers(template, chosen, first, first):
            if two[second]:
                thirds = _followers(template, chosen_again, second, first)
                found |= {(first, second, third) for third in thirds if three[third]}
    return found


def _holding(step: PatternStep, events: SyntheticEvents) -> Mask:
    held: Mask = np.ones(events.discrete.shape[1], np.bool_)
    for place, value in step.equal:
        held &= events.discrete[place] == value
    for place, low, high in step.ranges:
        held &= (events.continuous[place] >= low) & (events.continuous[place] <= high)
    return held


def _followers(template: SyntheticTemplate, chosen: Ints, after: int, first: int) -> list[int]:
    """The events that may follow: with NEXT one, with FOLD all that are chosen within the window."""
    begin, end = np.searchsorted(chosen, (after, first + WITHIN_SECONDS), side="right").tolist()
    return chosen[begin : min(end, begin + 1) if template == "Filter" else end].tolist()  # type: ignore[no-any-return]


def measure_synthetic(case: SyntheticCase, quick: bool = False, sample_size: int | None = None) -> Iterator[Line]:
    steps = random_steps(case.queries, (case.zipf, 1, 0.8), case.selectivity, case.domain)
    sample = kit.choose_sample(case.queries, sample_size or (QUICK_SAMPLE if quick else SAMPLE))
    chance, count = np.random.default_rng(1), case.events
    events = SyntheticEvents(chance.integers(0, case.domain, (DISCRETE, count)), chance.random((CONTINUOUS, count)))
    events = plant_matches(events, [steps[place] for place in sample])
    off, hashed = SWITCHES[case.without]
    rules = [rule for rule in RULE_NAMES if rule not in off]
    statements = kit.StatementSet(
        "together",
        [template_stream(case.template, some) for some in steps],
        {STREAM: events.stream()},
        lambda: Kernel(Texts(), kit.NumberedLineage(), rules=rules, hashed=hashed),
        INTERVAL * kit.SECOND,
    )
    lines = kit.sample_lines(
        asdict(case), [statements], sample, 1, lambda place: match_by_hand(case.template, steps[place], events)
    )
    return islice(lines, 1 if case.without else None)


def technical_sweeps(options: kit.PatternOptions) -> list[SyntheticCase]:
    """Figure 4.13: numbers of statements; without --quick also Zipf powers, selectivities, and the numbers again with
    attributes of more values, so that an event satisfies as many static conditions."""
    queries = options.queries or ([20_000] if options.quick else [100_000, 400_000])
    count = options.events or (5_000 if options.quick else 20_000)
    cases = [SyntheticCase(template, number, count) for template in TEMPLATES for number in queries]
    if not options.quick:
        base = SyntheticCase("LinearStat", queries[0], count)
        cases += [replace(base, zipf=zipf, figure="4.13b") for zipf in (0.8, 1.0, 1.2, 1.4)]
        cases += [replace(base, selectivity=one, figure="4.13c") for one in (0.5, 0.6, 0.7, 0.8, 0.9)]
        for number in queries:
            domain = round(DOMAIN * (number / queries[0]) ** 0.5)  # a step asks for two discrete attributes
            cases.append(replace(base, queries=number, domain=domain, figure="4.13, equal hits"))
    return cases


def index_cases(options: kit.PatternOptions) -> list[SyntheticCase]:
    queries = options.queries or ([2_000] if options.quick else [10_000, 20_000, 40_000])
    count = options.events or (1_000 if options.quick else 5_000)
    cases = [SyntheticCase("Filter", number, count, figure="4.14") for number in queries]
    return [replace(case, without=one) for case in cases for one in SWITCHES]


SYNTHETIC_COLUMNS = columns(
    "template | = plan | without | statements = queries | zipf | selectivity | values = domain | "
    "events/s = events_a_second | results = rows | over floor = over_floor | times faster = marked | "
    "than by hand = over_hand | registered/s = registered"
)


MemoryKind = Literal["LinearStat", "different"]
_BATCH = 1000  # statements that are built before they are registered


@dataclass(frozen=True)
class MemoryCase:
    """LinearStat has up to 46,656 forms; `different` statements have three filters that hardly any other one shares."""

    kind: MemoryKind
    queries: int


def memory_cases(options: kit.PatternOptions) -> list[MemoryCase]:
    if options.queries or options.quick:
        kinds: tuple[MemoryKind, ...] = get_args(MemoryKind)
        return [MemoryCase(kind, number) for number in options.queries or [5_000] for kind in kinds]
    return [MemoryCase("LinearStat", 100_000), MemoryCase("LinearStat", 400_000), MemoryCase("different", 20_000)]


def measure_registration(case: MemoryCase, quick: bool = False) -> Iterator[Line]:
    seconds, size = in_fresh_process(_registered, case)
    details = {"registered": case.queries / seconds, "bytes": size}
    yield Line("patterns", asdict(case), None, "registration", seconds, case.queries, details=details)


MEMORY_COLUMNS = columns("kind | statements = queries | registered/s = registered | bytes of each = bytes")


def memory_statements(case: MemoryCase) -> Iterator[ev.Stream]:
    if case.kind == "LinearStat":
        return (template_stream("LinearStat", steps) for steps in random_steps(case.queries))
    chance = Random(1)
    return (chain_of([_random_condition(chance) for _ in range(3)]) for _ in range(case.queries))


def _random_condition(chance: Random) -> ev.EventCondition:
    atoms: list[ev.Atom] = []
    for name, kind in SYNTHETIC_SCHEMA:
        if chance.random() < 0.5:
            continue
        ways: tuple[CompareOp, ...] = ("=", "!=") if kind == "string" else ("<", "<=", ">", ">=")
        value = f"v{chance.randrange(100)}" if kind == "string" else round(chance.random(), 2)
        atoms.append(ev.Comparison(chance.choice(ways), ev.Attribute("left", name, kind), ev.Constant(value)))
    return ev.AllOf(tuple(atoms))


def _registered(case: MemoryCase) -> tuple[float, float | None]:
    kernel, streams, first = Kernel(Texts(), kit.NumberedLineage()), memory_statements(case), 0
    seconds, before = 0.0, resident_memory()
    while batch := list(islice(streams, _BATCH)):
        begin = time.thread_time()
        with gc_paused(lasting=True):  # as the engine does
            for number, stream in enumerate(batch, first):
                kernel.add(number, stream, BEGINNING)
        seconds += time.thread_time() - begin
        first += len(batch)
    begin = time.thread_time()
    with gc_paused(lasting=True):
        kernel.run({}, 0)
    seconds += time.thread_time() - begin
    after = resident_memory()
    return seconds, None if before is None or after is None else (after - before) / case.queries


SYNTHETIC_BENCHMARKS = {
    "technical": kit.PatternBenchmark(technical_sweeps, kit.each_case(measure_synthetic), SYNTHETIC_COLUMNS),
    "indexes": kit.PatternBenchmark(index_cases, kit.each_case(measure_synthetic), SYNTHETIC_COLUMNS),
    "memory": kit.PatternBenchmark(memory_cases, kit.each_case(measure_registration), MEMORY_COLUMNS, drawn=False),
}
