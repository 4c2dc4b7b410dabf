"""The benchmark of the thesis on feeds (6.6.3, Figure 6.16): items are joined with all earlier ones, batch by batch.

The feed is synthetic and the window infinite. Each round opens an engine, gives it `state` items (the last of them
joined like any batch) and measures the next batch. The floor does the same in the same process, in turns.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

import numpy as np
import pyarrow as pa

from bench import harness, joins
from bench.harness import Line, columns
from bench.joins import timed_join
from bench.plots import Panel, PlotSeries, draw_panels, grouped
from bench.technical import STYLES, plan_series, varied_panels
from common.arrays import Ints
from templates.witness import Witnesses

LEAVES = ("item_url", "channel_url", "title", "timestamp", "description")
FEED = joins.DocumentSchema(tuple((leaf,) for leaf in LEAVES))
FEED_ITEMS, FEED_CHANNELS = 225_000, 418

_URL, _CHANNEL, _TITLE, _TIME, _DESCRIPTION = range(len(LEAVES))
_UNTITLED = -1
_KIND = 32
_TEXT = "stream join event query template witness node value path feed book author title data window time graph "


def feed_values(count: int, seed: int = 7) -> Ints:
    """The interned values of `count` items like the thesis' (6.6.3), by time, of Zipf distributed channels. Some repeat
    url, title or description of the channel's last, are described by their title, have its url, or are Untitled."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, FEED_CHANNELS + 1) ** 0.8
    channels = rng.choice(FEED_CHANNELS, count, p=weights / weights.sum())
    fresh = np.arange(count)
    numbers = np.stack([fresh, channels, fresh, rng.integers(0, 5 * count + 10, count), fresh], axis=1)
    values: Ints = numbers + (np.arange(len(LEAVES), dtype=np.int64) << _KIND)
    chance = rng.random((count, 6))
    last: dict[int, int] = {}
    for i, channel in enumerate(channels.tolist()):
        before = last.get(channel)
        if before is not None:
            for leaf, share in ((_URL, 0.03), (_TITLE, 0.08), (_DESCRIPTION, 0.02)):
                if chance[i, leaf] < share:
                    values[i, leaf] = values[before, leaf]
        if chance[i, 3] < 0.05:
            values[i, _DESCRIPTION] = values[i, _TITLE]
        if chance[i, 5] < 0.005:
            values[i, _TITLE] = _UNTITLED
        if chance[i, 1] < 0.01:
            values[i, _URL] = values[i, _CHANNEL]
        last[channel] = i
    return values


def feed_strings(values: Ints) -> list[pa.Array]:
    return [pa.array([_string(value) for value in column.tolist()]) for column in values.T]


def _string(value: int) -> str:
    kind, number = value >> _KIND, value & (1 << _KIND) - 1
    if value == _UNTITLED:
        return "Untitled"
    if kind == _CHANNEL:
        return f"https://channel{number}.example.org/feed.xml"
    if kind == _URL:
        return f"https://news.example.org/2006/10/story-{number}.html"
    if kind == _TITLE:
        return f"{_TEXT[: 20 + number % 30]} {number}"
    return f"2006-10-01T00:00:00Z+{number}" if kind == _TIME else f"{number} {_TEXT * 2}"


def register_feed_queries(count: int) -> joins.RegisteredQueries:
    return joins.register_queries(FEED, joins.draw_queries(FEED, count, len(FEED.paths), 0.8), ("S", "S"))


def feed_batch(registered: joins.RegisteredQueries, values: Ints, first: int, end: int) -> Witnesses:
    return joins.schema_witnesses(registered, "S", feed_strings(values[first:end]), first, groups=first == 0)


STATE, BATCH, QUERIES = 20_000, 5_000, 10_000
NUMBERS, QUICK_NUMBERS = [10, 100, 1000, 10_000, 100_000], [10, 1000, 100_000]
STATES, STATE_BATCH = [5_000, 20_000, 50_000, 100_000, FEED_ITEMS - 1_000], 1_000
BATCHES = [200, 1_000, 5_000]
ROUNDS = 3
SAMPLE = 100
_CHUNK = 25_000


@dataclass(frozen=True)
class RssCase:
    state: int
    batch: int
    queries: int

    @property
    def warm(self) -> int:
        """The documents of the state that are joined, so that the measured batch is not an engine's first."""
        return min(self.batch, self.state // 2)


def rss_cases(numbers: Sequence[int], *, sweeps: bool) -> list[RssCase]:
    """Figure 6.16, and with `sweeps` how it changes with the state and the batch."""
    chosen = [RssCase(STATE, BATCH, number) for number in numbers]
    if sweeps:
        chosen += [RssCase(state, STATE_BATCH, QUERIES) for state in STATES]
        chosen += [RssCase(STATE, batch, QUERIES) for batch in BATCHES]
    return list(dict.fromkeys(chosen))


@dataclass(frozen=True)
class FeedWorkload:
    """The queries and the items, as values and as witnesses with their first docid: kept, to warm up, and measured."""

    registered: joins.RegisteredQueries
    items: Ints
    kept: list[tuple[int, Witnesses]]
    warm: tuple[int, Witnesses]
    measured: tuple[int, Witnesses]


def rss_workload(case: RssCase) -> FeedWorkload:
    registered = register_feed_queries(case.queries)
    items = feed_values(case.state + case.batch)
    warm = case.state - case.warm
    parts = [*((first, min(first + _CHUNK, warm)) for first in range(0, warm, _CHUNK)), (warm, case.state)]
    *kept, warming, measured = (
        (first, feed_batch(registered, items, first, end)) for first, end in [*parts, (case.state, len(items))]
    )
    return FeedWorkload(registered, items, kept, warming, measured)


def measure_rss(case: RssCase, engine: str, plans: Sequence[str], rounds: int, sample: int = SAMPLE) -> list[Line]:
    work = rss_workload(case)
    registered = work.registered
    joined: dict[str, list[joins.Joined]] = {plan: [] for plan in plans}
    pairs: list[int] = []
    ways: dict[str, Callable[[], float]] = {"floor": partial(_floor, case, work, pairs)}
    ways |= {plan: partial(_plan, engine, plan, work, joined[plan]) for plan in plans}
    seconds = harness.medians(ways, rounds)
    tables = {plan: of[0].table for plan, of in joined.items()}
    joins.check_equal({plan: joins.rows_digest(table) for plan, table in tables.items()})
    first = tables[plans[0]]
    expanded = joins.expanded_count(first, registered)
    sequential = None
    if sample:
        chosen = Random(3).sample(registered.queries, min(sample, len(registered.queries)))
        sequential = _sequential(engine, case, work, chosen)
        joins.check_sample(joins.query_digests(first, registered, chosen), sequential.rows)
    over = {"sequential": sequential.best} if sequential else {"basic": seconds["basic"]} if "basic" in plans else {}
    baseline, baseline_seconds = next(iter(over.items()), (None, None))
    shared: dict[str, object] = {
        "value_pairs": pairs[0],
        "templates": len(registered.catalog.templates),
        "distinct": registered.rows,
        "expanded": expanded,
        "baseline_form": sequential.fastest if sequential else None,
    }

    def line(plan: str, taken: float, rows: int, details: dict[str, object]) -> Line:
        own = plan == baseline
        details = {**shared, "items_a_second": case.batch / taken, **details}
        about, scaled = {**asdict(case), "items": case.state + case.batch}, sequential and sequential.extrapolated
        base, faster = (None, None) if own else (baseline, harness.speedup(baseline_seconds, taken))
        return Line("rss", about, engine, plan, taken, rows, base, faster, seconds["floor"], bool(scaled), details)

    lines = [line(plan, seconds[plan], of[0].rows, {"call": median(j.call for j in of)}) for plan, of in joined.items()]
    if sequential:
        lines.append(line("sequential", sequential.best, expanded, sequential.by_form()))
    return lines


def _plan(engine: str, plan: str, work: FeedWorkload, joined: list[joins.Joined]) -> float:
    scope = work.registered.scope
    with joins.opened_engine(engine, plan, work.registered) as store:
        joins.become_state(store, work.kept)
        for first, batch in (work.warm, work.measured):
            store.begin()
            keep = not joined and batch is work.measured[1]
            one = timed_join(store, batch, first, scope, keep=keep)
            store.commit()
    joined.append(one)
    return one.seconds


def _floor(case: RssCase, work: FeedWorkload, pairs: list[int]) -> float:
    warm = case.state - case.warm
    bounds = ((0, warm), (warm, case.state), (case.state, None))
    parts = [joins.postings(first, work.items[first:end]) for first, end in bounds]
    seconds, count = joins.floor_seconds(parts[:1], parts[1], parts[2])
    pairs.append(count)
    return seconds


def _sequential(engine: str, case: RssCase, work: FeedWorkload, chosen: Sequence[joins.LeafPairs]) -> joins.Sequential:
    def side(first: int) -> joins.SqlSide:
        leaves = feed_strings(work.items[first:])
        docids = pa.array(range(first, len(work.items)), pa.int64())
        table = pa.table([docids, *leaves], names=["docid", *LEAVES])
        return joins.schema_witnesses(work.registered, "S", leaves, first), table

    return joins.measure_sequential(engine, work.registered, chosen, side(0), side(case.state))


MEMORY_QUERIES, MEMORY_STEP = 1000, 5_000


def memory_lines(plans: Sequence[str], few: int, many: int) -> Iterator[Line]:
    for plan in plans:
        seconds, size = harness.in_fresh_process(_measure_memory, (plan, few, many))
        case = {"state": few, "batch": BATCH, "queries": MEMORY_QUERIES, "items": many}
        yield Line("rss-memory", case, "duckdb", plan, seconds, 0, details={"state_bytes": size})


def _measure_memory(work: tuple[str, int, int]) -> tuple[float, float | None]:
    plan, few, many = work
    registered = register_feed_queries(MEMORY_QUERIES)
    items = feed_values(many)
    with joins.opened_engine("duckdb", plan, registered) as store:

        def extend(first: int, end: int) -> None:
            for start in range(first, end, MEMORY_STEP):
                batch = feed_batch(registered, items, start, min(start + MEMORY_STEP, end))
                joins.become_state(store, [(start, batch)])

        extend(0, few)
        before = harness.resident_memory()
        seconds = harness.seconds_of(partial(extend, few, many))
        after = harness.resident_memory()
    return seconds, None if before is None or after is None else (after - before) / (many - few)


RSS_COLUMNS = columns(
    "plan | state | batch | queries | rows of R_T = distinct | pairs of values = value_pairs | rows | "
    "for queries = expanded | ms = seconds * 1e3 | call, ms = call * 1e3 | items/s = items_a_second | "
    "floor, ms = floor * 1e3 | over floor = over_floor | times faster = marked | sequential = baseline_form"
)
RSS_MEMORY_COLUMNS = columns("plan | documents = items | bytes a document = state_bytes")


def _rest(key: str, line: Line) -> dict[str, object]:
    return {**line.case, key: None, "items": None}


def draw_rates(lines: Sequence[Line], prefix: Path) -> None:
    panels = []
    for key, label in (("queries", "queries"), ("state", "items in the state"), ("batch", "items a batch")):
        groups = grouped(lines, partial(_rest, key))
        widest = max(groups.values(), key=lambda of: len({line.case[key] for line in of}))
        panels.append(Panel(key, label, "items a second", _rate_series(widest), "xy", ticks=True))
    drawn = varied_panels(panels) or panels[:1]
    draw_panels(lines, prefix, drawn, (5 * max(len(drawn), 1.3), 4))


def _rate_series(lines: Sequence[Line]) -> list[PlotSeries]:
    colour, style = STYLES["floor"]
    first = [line for line in lines if line.plan == lines[0].plan]  # the floor is the same for all plans
    floor = PlotSeries("floor", lambda line: line.number("batch") / line.number("floor"), style, colour, first)
    return [*plan_series(lines, lambda line: line.number("batch") / line.seconds), floor]


def bench_rss() -> None:
    parser = harness.engine_parser("rss", "joins the items of a synthetic feed, as section 6.6.3 of the thesis")
    options = harness.parse_options(parser)
    numbers = options.queries or (QUICK_NUMBERS if options.quick else NUMBERS)
    every = not options.quick and not options.queries
    plans = joins.plans_of(options.engine, options.plan, quick=options.quick)
    lines = [
        line
        for case in harness.with_progress(rss_cases(numbers, sweeps=every))
        for line in measure_rss(case, options.engine, plans, ROUNDS, SAMPLE if case.batch == BATCH else 0)
    ]
    harness.print_table(lines, f"a feed, each batch joined with all before it, {options.engine}", RSS_COLUMNS)
    kept = list(memory_lines(plans, STATE, 5 * STATE)) if every and options.engine == "duckdb" else []
    if kept:
        harness.print_table(kept, "state in memory, duckdb", RSS_MEMORY_COLUMNS)
    harness.save([*lines, *kept], options)
    if options.plot:
        draw_rates(lines, options.plot)
