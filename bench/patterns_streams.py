"""Event patterns as texts of the language: feeds, RUMOR's rules, hybrid workloads, shared aggregates and double tops.

`feeds`, `rumor` and `hybrid` are Figures 4.18 and 5.8 to 5.10 of the thesis (4.6.3, 5.5.2, 5.5.3): all statements
together, with and without channels, and a sample of them one at a time. `aggregates` measures AGGREGATEs over one input
with and without the rule s_α, by the number of simultaneous events. `double-top` is Figure 4.17.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Literal, get_args

import duckdb
import numpy as np
import pyarrow as pa

from bench import patterns_kernel as kit
from bench.harness import Line, columns, compared_turns, ratio, timed
from common.arrays import Ints
from pattern_stage.columns import Floats, mixed, same
from pattern_stage.kernel import Kernel, Results
from pattern_stage.plan import RULE_NAMES, RuleName
from pattern_stage.values import Texts
from xscl.algebra.events import Schema, Statement

WorkloadName = Literal["feeds", "rumor", "hybrid"]

SITES, POPULARITY, ITEMS = 415, 100, 26_623
PROCESSES = 104
WITHOUT_CHANNELS: tuple[RuleName, ...] = tuple(rule for rule in RULE_NAMES if rule != "channels")
INTERVAL = 1000  # events of an interval, without those of streams that are copies


@dataclass(frozen=True)
class StreamWorkload:
    """A template with the `domain` of constants, its longest `window` in seconds, `capacity` streams on a channel, and
    the share `sel` of events that satisfy a start condition. Without `channels`, equal streams share nothing."""

    figure: str
    template: str
    queries: int
    events: int
    domain: int = 1000
    window: int = 1000
    zipf: float = 1.5
    capacity: int = 10
    sel: float = 0.5
    channels: bool = True

    @property
    def rules(self) -> Sequence[RuleName]:
        return RULE_NAMES if self.channels or self.template == "channel" else WITHOUT_CHANNELS


_RUMOR: Schema = (("a0", "string"), *((f"a{place}", "number") for place in range(1, 10)))
_ITEM: Schema = (("site", "string"), ("channel", "string"), ("popularity", "number"))
_LOAD: Schema = (("pid", "string"), ("load", "number"))


def stream_events(one: StreamWorkload) -> dict[str, kit.StreamEvents]:
    chance = np.random.default_rng(1)
    if one.figure == "4.18":
        sites = _zipf(chance, SITES, 1, one.events)
        popularity: Floats = 1.0 + _zipf(chance, POPULARITY, 1, one.events).astype(np.float64)
        channels = sites * 10 + chance.integers(0, 3, one.events)
        return {"Items": kit.every_second(_ITEM, (sites, channels, popularity))}
    if one.figure.startswith("5.10"):
        seconds = np.repeat(np.arange(one.events // PROCESSES), PROCESSES)
        pids = np.tile(np.arange(PROCESSES), one.events // PROCESSES)
        return {"Load": kit.every_second(_LOAD, (pids, chance.random(len(pids)) * 100), seconds)}
    streams = {}
    for first, name in enumerate(("S", "T")):
        numbers = np.arange(first, one.events, 2)
        values = chance.integers(0, 1000, (10, len(numbers)))
        attributes = (values[0] % one.domain, *values[1:].astype(np.float64))
        streams[name] = kit.StreamEvents(_RUMOR, (numbers + 1) * kit.SECOND, numbers, attributes)
    if one.template == "channel" and not one.channels:
        equal = streams.pop("S")
        return {f"S{place}": equal for place in range(one.capacity)} | streams
    return streams


def stream_statements(one: StreamWorkload) -> Iterator[str]:
    chance = np.random.default_rng(2)
    count = one.queries
    if one.figure == "4.18":
        for site, least in zip(chance.integers(0, SITES, count), chance.integers(0, POPULARITY, count), strict=True):
            yield _feed_statement(one.template, f'site = "v{site}"', f"popularity > {least}")
        return
    if one.figure.startswith("5.10"):
        smoothed = "(AGGREGATE {avg(load) AS load BY pid OVER 60 s} Load)"
        for place in range(count):
            start = f"(load * 1000 + {100 * place / count}) % 100 < {100 * one.sel}"
            fold = f"FOLD {{$2.pid = $1.pid, $2.load > $.load, }} {smoothed}"
            yield f"FILTER {{load > 10}} (FILTER {{{start}}} {smoothed} {fold}) WITHIN 600 s"
        return
    windows = one.window - _zipf(chance, one.window, one.zipf, count)
    constants = _zipf(chance, one.domain, one.zipf, 2 * count)
    for place, window in enumerate(windows.tolist()):
        match one.template:
            case "constants":
                first, second = constants[2 * place : 2 * place + 2]
                yield f'FILTER {{a0 = "v{first}"}} S NEXT {{$2.a0 = "v{second}"}} T WITHIN {window} s'
            case "NEXT":
                yield f"S NEXT {{$2.a0 = $1.a0}} T WITHIN {window} s"
            case "FOLD":
                yield f"S FOLD {{$2.a0 = $1.a0, $2.a1 > $.a1, }} T WITHIN {window} s"
            case "channel":
                number = place % one.capacity
                stream = "S" if one.channels else f"S{number}"
                yield f"FILTER {{a2 >= 0 - {number}}} {stream} NEXT {{$2.a0 = $1.a0}} T WITHIN {window} s"


def _feed_statement(template: str, site: str, popular: str) -> str:
    first = f"FILTER {{{site}}} Items"
    match template:
        case "Stateless":
            return f"FILTER {{{site} AND {popular}}} Items"
        case "Concatenation":
            following = f"NEXT {{$2.{site} AND $2.{popular}}} Items"
            return f"FILTER {{{site} AND {popular}}} Items {following} {following} WITHIN 100 s"
        case "Parameterization":
            rising = f"NEXT {{$2.{site} AND $2.channel = $1.channel AND $2.popularity > $1.popularity}} Items"
            return f"{first} {rising} {rising} WITHIN 100 s"
    chooses = f"$2.{site} AND $2.channel = $1.channel AND $2.popularity > $.popularity"
    return f"{first} FOLD {{{chooses}, , }} Items WITHIN 100 s"


def _zipf(chance: np.random.Generator, count: int, power: float, size: int) -> Ints:
    return chance.choice(count, size, p=kit.zipf_weights(count, power))


def stream_cases(name: WorkloadName, options: kit.PatternOptions) -> list[StreamWorkload]:
    queries, quick = options.queries, options.quick
    if name == "feeds":
        count = options.events or (3_000 if quick else ITEMS)
        templates = ("Stateless", "Concatenation", "Parameterization", "Iteration")
        numbers = queries or ([4_000] if quick else [10_000, 20_000, 40_000])
        return [StreamWorkload("4.18", template, number, count) for template in templates for number in numbers]
    if name == "hybrid":
        base = StreamWorkload("5.10a", "hybrid", 10, options.events or PROCESSES * (100 if quick else 600))
        by_number = [replace(base, queries=number) for number in queries or ([10] if quick else [1, 10, 30, 100])]
        return by_number + [replace(base, figure="5.10b", sel=sel) for sel in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    base = StreamWorkload("5.8a", "constants", 1000, options.events or (4_000 if quick else 100_000))
    cases = [replace(base, queries=number) for number in queries or ([1_000] if quick else [1_000, 10_000, 100_000])]
    if not quick:
        cases += [replace(base, figure="5.8b", domain=domain) for domain in (10, 100, 1000)]
        cases += [replace(base, figure="5.8c", window=window) for window in (10, 100, 1000, 10_000)]
        cases += [replace(base, figure="5.8d", zipf=zipf) for zipf in (1.2, 1.6, 2.0)]
    fewer = queries or ([100] if quick else [1_000, 10_000])
    for figure, template in (("5.9a", "NEXT"), ("5.9b", "FOLD")):
        cases += [replace(base, figure=figure, template=template, queries=number) for number in fewer]
    shared = replace(base, figure="5.9c", template="channel", queries=100 if quick else 1000)
    cases += [replace(shared, queries=number) for number in queries or ([10, 100] if quick else [10, 100, 1_000])]
    return cases + [replace(shared, figure="5.9d", capacity=size) for size in ((1, 10) if quick else (1, 2, 5, 10, 20))]


def measure_streams(
    one: StreamWorkload, quick: bool = False, sample_size: int | None = None, turns: int | None = None
) -> Iterator[Line]:
    sets = [_statement_set("together", one)]
    if one.template in ("channel", "hybrid"):  # they read streams that one channel can have
        sets.append(_statement_set("without channels", replace(one, channels=False)))
    sample = kit.choose_sample(one.queries, sample_size or (3 if quick else 5))
    return kit.sample_lines(asdict(one), sets, sample, turns or (1 if quick else 3))


def _statement_set(plan: str, one: StreamWorkload) -> kit.StatementSet:
    events = stream_events(one)
    statements = kit.lower_texts(list(stream_statements(one)), {name: some.schema for name, some in events.items()})
    last = max(int(some.times[-1]) for some in events.values())
    step = max(1, last * INTERVAL // one.events // kit.SECOND) * kit.SECOND
    kernel = partial(Kernel, rules=one.rules)
    return kit.StatementSet(plan, statements, events, lambda: kernel(Texts(), kit.NumberedLineage()), step)


STREAM_COLUMNS = columns(
    "figure | template | = plan | statements = queries | domain | window | zipf | capacity | sel | "
    "events/s = events_a_second | results = rows | over floor = over_floor | times faster = marked | "
    "than without channels = over_channels | registered/s = registered"
)


AGGREGATE_TURNS = 3
AGGREGATE_INTERVAL = 10_000  # about as many events are in an interval: simultaneous ones come together
GROUP_SIZES = (10, 5, 5)  # the numbers of hosts, users and processes

_GROUPED: Schema = (("host", "string"), ("user", "string"), ("pid", "string"), ("load", "number"))


@dataclass(frozen=True)
class AggregateCase:
    at_once: int
    events: int


def aggregate_cases(options: kit.PatternOptions) -> list[AggregateCase]:
    count = options.events or (2_000 if options.quick else 60_000)
    return [AggregateCase(at_once, count) for at_once in ((1, 200) if options.quick else (1, 20, 200, 1_000))]


def aggregate_statements() -> list[str]:
    return [
        f"AGGREGATE {{{function}{' BY ' * bool(by)}{by} OVER {window} s}} Load"
        for by in ("host", "user", "pid", "host, user", "")
        for function in ("avg(load) AS mean", "sum(load) AS total, count() AS n", "max(load) AS most")
        for window in (10, 30, 60)
    ]


def measure_aggregates(case: AggregateCase, quick: bool = False) -> Iterator[Line]:
    chance = np.random.default_rng(1)
    seconds: Ints = np.sort(chance.integers(0, max(1, case.events // case.at_once), case.events))
    groups = [chance.integers(0, size, case.events) for size in GROUP_SIZES]
    load: Floats = np.round(chance.random(case.events) * 100, 2)
    events = kit.every_second(_GROUPED, (*groups, load), seconds)
    statements = kit.lower_texts(aggregate_statements(), {"Load": _GROUPED})
    step = max(1, AGGREGATE_INTERVAL // case.at_once) * kit.SECOND
    kept: dict[str, int] = {}

    def run(plan: str) -> tuple[float, tuple[int, int]]:
        tracked, found = kit.TrackedLineage(), [0, 0]

        def take(results: Results) -> None:
            values = [same(column[results.at]) for column in results.events.values]
            found[0] += len(results)
            found[1] += int(mixed([*values, results.events.t1[results.at], results.statements]).sum())

        rules = [rule for rule in RULE_NAMES if plan == "s_alpha" or rule != "s_alpha"]
        kernel = Kernel(Texts(), tracked.lineage, rules=rules)
        kit.add_all(kernel, statements)
        taken = kit.feed(kernel, {"Load": events.encoded(kernel.texts)}, step, take, tracked)
        kept[plan] = sum(len(some) for name, some in kernel.state().items() if name != "format" and "/" not in name)
        return taken, (found[0], found[1])

    ways = {plan: partial(run, plan) for plan in ("s_alpha", "without")}
    taken, (results, _) = compared_turns(ways, AGGREGATE_TURNS, case, "results")
    for line in kit.turn_lines({**asdict(case), "figure": "aggregates"}, taken, results, case.events, "without"):
        yield replace(line, details={**line.details, "kept": kept[str(line.plan)]})


AGGREGATE_COLUMNS = columns(
    "= plan | at once = at_once | events/s = events_a_second | results = rows | rows kept = kept | "
    "times faster = speedup"
)


COMPANIES, CLOSES = 24, 112_635
SMOOTHINGS, QUICK_SMOOTHINGS = (1, 2, 5, 10, 15, 20), (1, 10)
VOLATILITY = 0.08  # the standard deviation of the logarithm of a day's change

# A double top is five extrema of a company's closes in a row: a minimum A, a maximum B of at least 1.2 A, a minimum C
# within 10% of A, a maximum D within 10% of B, and a minimum E of at most A. FOLDs follow each rise and fall;
# resubscription takes five events of a stream of extrema.
_CLOSE: Schema = (("name", "string"), ("price", "number"))
_RISES = "{$2.name = $.name, $2.price > $.price, } Close"
_FALLS = "{$2.name = $.name, $2.price < $.price, } Close"
_SAME = "{$2.name = $1.name}"


def _folded() -> str:
    text = f"(SELECT name, price, price AS a FROM FILTER {{price < price_1}} (Close NEXT {_SAME} Close))"
    for before, name, condition, moves in (
        ("a", "b", "price >= 1.2 * a", _RISES),
        ("a, b", "c", "price >= 0.9 * a AND price <= 1.1 * a", _FALLS),
        ("a, b, c", "d", "price >= 0.9 * b AND price <= 1.1 * b", _RISES),
        ("a, b, c, d", "e", "price <= a", _FALLS),
    ):
        text = f"(SELECT name, price, {before}, price AS {name} FROM FILTER {{{condition}}} ({text} FOLD {moves}))"
    prices = ", ".join(f"{name}_1 AS {name}" for name in "abcde")
    return f"SELECT name, {prices} FROM FILTER {{price > e_1}} ({text} NEXT {_SAME} Close)"


def _resubscribed() -> str:
    two = f"(SELECT name, price_1 AS p, price AS q FROM (Close NEXT {_SAME} Close))"
    high, low = (
        f"(SELECT name, q_1 AS price, {up} AS up FROM "
        f"FILTER {{q_1 {turns} price}} (FILTER {{q {turns} p}} {two} NEXT {_SAME} Close))"
        for up, turns in ((1, ">"), (0, "<"))
    )
    # Extrema lie between two closes, so neighbouring ones overlap. As an aggregate each has one time: when it is known.
    extrema = f"(AGGREGATE {{max(price) AS price, max(up) AS up BY name}} ({high} UNION {low}))"
    text, kept = f"(SELECT name, price AS a FROM FILTER {{up = 0}} {extrema})", "a"
    for name, condition in (
        ("b", "price >= 1.2 * a_1"),
        ("c", "price >= 0.9 * a_1 AND price <= 1.1 * a_1"),
        ("d", "price >= 0.9 * b_1 AND price <= 1.1 * b_1"),
        ("e", "price <= a_1"),
    ):
        prices = "".join(f"{one}_1 AS {one}, " for one in kept)
        source = f"FILTER {{{condition}}} ({text} NEXT {_SAME} {extrema})"
        text, kept = f"(SELECT name, {prices}price AS {name} FROM {source})", kept + name
    return text[1:-1]


DOUBLE_TOPS = {"FOLDs": _folded(), "resubscription": _resubscribed()}

_WHERE = """b.price >= 1.2 * a.price AND c.price BETWEEN 0.9 * a.price AND 1.1 * a.price
    AND d.price BETWEEN 0.9 * b.price AND 1.1 * b.price AND e.price <= a.price"""
_FOLLOWING = "".join(
    f" JOIN numbered {name} ON {name}.name = a.name AND {name}.n = a.n + {n}" for n, name in enumerate("bcde", 1)
)
_LEADS = ", ".join(f"lead(price, {place}) OVER w AS {name}" for place, name in enumerate("bcde", 1))

DOUBLE_TOP_QUERIES = {
    "self-joins": f"""
    WITH extrema AS (
        SELECT two.name, two.day, three.day AS known, two.price, two.price > one.price AS up
        FROM closes one JOIN closes two ON two.name = one.name AND two.day = one.day + 1
        JOIN closes three ON three.name = two.name AND three.day = two.day + 1
        WHERE (two.price - one.price) * (three.price - two.price) < 0
    ), numbered AS (SELECT *, row_number() OVER (PARTITION BY name ORDER BY day) AS n FROM extrema)
    SELECT e.known, a.name, a.price AS a, b.price AS b, c.price AS c, d.price AS d, e.price AS e
    FROM numbered a{_FOLLOWING} WHERE NOT a.up AND {_WHERE}""",
    "windows": f"""
    WITH steps AS (
        SELECT *, lag(price) OVER w AS before, lead(price) OVER w AS after, lead(day) OVER w AS known FROM closes
        WINDOW w AS (PARTITION BY name ORDER BY day)
    ), five AS (
        SELECT name, price > before AS up, price AS a, {_LEADS}, lead(known, 4) OVER w AS known
        FROM steps WHERE (price - before) * (after - price) < 0 WINDOW w AS (PARTITION BY name ORDER BY day)
    ) SELECT known, name, a, b, c, d, e FROM five WHERE NOT up AND {_WHERE.replace(".price", "")}""",
}


@dataclass(frozen=True)
class DoubleTopCase:
    """Closes are averages of random walks over `smoothing` days: the more, the fewer extrema."""

    smoothing: int
    closes: int = CLOSES


DoubleTop = tuple[float, ...]  # when a double top is known, the number of its company, and its five prices


def double_top_cases(options: kit.PatternOptions) -> list[DoubleTopCase]:
    count = options.events or (20_000 if options.quick else CLOSES)
    return [DoubleTopCase(smoothing, count) for smoothing in (QUICK_SMOOTHINGS if options.quick else SMOOTHINGS)]


def closes(case: DoubleTopCase) -> tuple[Ints, Ints, Floats]:
    days = -(-case.closes // COMPANIES)
    walks = np.exp(np.cumsum(np.random.default_rng(5).normal(0, VOLATILITY, (days + case.smoothing, COMPANIES)), 0))
    sums = np.cumsum(walks, 0)
    prices = (sums[case.smoothing :] - sums[: -case.smoothing]) / case.smoothing
    day, company = np.divmod(np.arange(case.closes), COMPANIES)
    return day, company, prices.reshape(-1)[: case.closes]


def run_double_top(statement: Statement, events: kit.StreamEvents, interval: int) -> tuple[float, set[DoubleTop]]:
    """CPU seconds and rows of a statement that gets the closes of `interval` days at once."""
    texts = Texts()
    encoded = events.encoded(texts)
    kernel = kit.add_all(Kernel(texts, kit.NumberedLineage(encoded.t1)), [statement])
    rows: set[DoubleTop] = set()

    def take(results: Results) -> None:
        names, *prices = (column[results.at] for column in results.events.values)
        companies = [float((text or "v")[1:]) for text in kernel.texts.texts(names.astype(np.int64))]
        known = (results.events.t1[results.at] / kit.SECOND).tolist()
        rows.update(zip(known, companies, *(column.tolist() for column in prices), strict=True))

    return kit.feed(kernel, {"Close": encoded}, interval * kit.SECOND, take, clock=time.process_time), rows


def run_double_top_sql(table: pa.Table, query: str, interval: int) -> tuple[float, set[DoubleTop]]:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("CREATE TABLE closes (name BIGINT, day BIGINT, price DOUBLE)")
    connection.register("given", table)
    rows: set[DoubleTop] = set()

    def run() -> None:
        for low in range(0, int(table["day"][-1].as_py()), interval):
            connection.execute(f"INSERT INTO closes SELECT * FROM given WHERE day > {low} AND day <= {low + interval}")
            # What is known by now and was not before.
            found = connection.execute(f"SELECT * FROM ({query}) WHERE known > {low}").fetchnumpy()
            rows.update(zip(*(column.astype(np.float64).tolist() for column in found.values()), strict=True))

    return timed(run, time.process_time)[0], rows


def measure_double_tops(case: DoubleTopCase, quick: bool = False) -> Iterator[Line]:
    day, company, price = closes(case)
    events = kit.every_second(_CLOSE, (company, price), day)
    table = pa.table({"name": company, "day": day + 1, "price": price})
    statements = dict(zip(DOUBLE_TOPS, kit.lower_texts(list(DOUBLE_TOPS.values()), {"Close": _CLOSE}), strict=True))
    forms: dict[str, Callable[[], tuple[float, set[DoubleTop]]]] = {}
    for ending, interval in (("", INTERVAL // COMPANIES), (", at once", case.closes)):
        for name, statement in statements.items():
            forms[name + ending] = partial(run_double_top, statement, events, interval)
        for name, query in DOUBLE_TOP_QUERIES.items():
            forms[f"SQL, {name}{ending}"] = partial(run_double_top_sql, table, query, interval)
    taken, rows = compared_turns(forms, 1 if quick else 5, case, "rows")
    for line in kit.turn_lines({**asdict(case), "figure": "4.17"}, taken, len(rows), case.closes, None):
        baseline = "SQL, self-joins" + ", at once" * str(line.plan).endswith("at once")
        yield replace(line, baseline=baseline, speedup=ratio(taken[baseline], taken[str(line.plan)]))


DOUBLE_TOP_COLUMNS = columns(
    "form = plan | days averaged = smoothing | closes | double tops = rows | closes/s = events_a_second | "
    "times faster than self-joins = speedup"
)

STREAM_BENCHMARKS = {
    "double-top": kit.PatternBenchmark(double_top_cases, kit.each_case(measure_double_tops), DOUBLE_TOP_COLUMNS),
    **{
        name: kit.PatternBenchmark(partial(stream_cases, name), kit.each_case(measure_streams), STREAM_COLUMNS)
        for name in get_args(WorkloadName)
    },
    "aggregates": kit.PatternBenchmark(aggregate_cases, kit.each_case(measure_aggregates), AGGREGATE_COLUMNS),
}
