"""The benchmark of the thesis on feeds (6.6.3, Figure 6.16): items are joined with all earlier ones, batch by batch.

    mmqjp bench rss [--engine duckdb|spark] [--plan NAME] [--queries N,N] [--quick] [--json FILE] [--csv FILE]
                    [--plot PREFIX]

The feed is synthetic and the window infinite. Each round opens an engine, gives it `state` items (the last of them
joined like any batch) and measures the next batch, until it has listed (pair of documents, row of R_T). The floor does
the same in the same process, in turns. Sequential runs a sample of the queries one by one. Before a time is reported,
the rows of all plans are compared, and the results of the sample's queries with what each gets when it runs alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from statistics import median

import numpy as np
import numpy.typing as npt

from bench.command import with_progress
from bench.stage2_engines import Joined, become_state, medians, opened, plans_of, put_rows, scope, timed_join
from bench.stage2_feed import FEED, ITEMS, columns, feed, strings
from bench.stage2_floor import Floor, postings
from bench.stage2_memory import state_bytes
from bench.stage2_queries import Pairs, Registered, draw, register
from bench.stage2_report import Column, Line, keep, marked, parsed, parser, show, speedup
from bench.stage2_rows import check_equal, check_sample, expanded_count, of_queries, rows_digest
from bench.stage2_sequential import Sequential
from bench.stage2_sequential import measure as measure_sequential
from bench.stage2_witnesses import witnesses
from templates.witness import Witnesses

STREAMS = ("S", "S")
STATE, BATCH, QUERIES = 20_000, 5_000, 10_000
NUMBERS, QUICK_NUMBERS = [10, 100, 1000, 10_000, 100_000], [10, 1000, 100_000]
STATES, STATE_BATCH = [5_000, 20_000, 50_000, 100_000, ITEMS - 1_000], 1_000
BATCHES = [200, 1_000, 5_000]
ROUNDS = 3
SAMPLE = 100
_CHUNK = 25_000


@dataclass(frozen=True)
class Case:
    state: int
    batch: int
    queries: int

    @property
    def warm(self) -> int:
        """How many documents of the state are joined, so that the measured batch is not an engine's first."""
        return min(self.batch, self.state // 2)


def cases(numbers: Sequence[int], *, sweeps: bool) -> list[Case]:
    """Figure 6.16, and with `sweeps` how it changes with the state and the batch."""
    chosen = [Case(STATE, BATCH, number) for number in numbers]
    if sweeps:
        chosen += [Case(state, STATE_BATCH, QUERIES) for state in STATES]
        chosen += [Case(STATE, batch, QUERIES) for batch in BATCHES]
    return list(dict.fromkeys(chosen))


@dataclass(frozen=True)
class FeedWorkload:
    """The queries and the items, as interned values and as witnesses: those that are only kept, in batches, those
    joined to warm up, and those measured, each with the id of their first document."""

    registered: Registered
    items: npt.NDArray[np.int64]
    kept: list[tuple[int, Witnesses]]
    warm: tuple[int, Witnesses]
    measured: tuple[int, Witnesses]


def workload(case: Case) -> FeedWorkload:
    registered = register(FEED, draw(FEED, case.queries, len(FEED.paths), 0.8), STREAMS)
    items = feed(case.state + case.batch)

    def of(first: int, end: int) -> tuple[int, Witnesses]:
        return first, witnesses(registered, "S", strings(items[first:end]), first, groups=first == 0)

    warm = case.state - case.warm
    kept = [of(first, min(first + _CHUNK, warm)) for first in range(0, warm, _CHUNK)]
    return FeedWorkload(registered, items, kept, of(warm, case.state), of(case.state, len(items)))


def measure(case: Case, engine: str, plans: Sequence[str], rounds: int, sample: int = SAMPLE) -> list[Line]:
    """A line for each plan, and one for Sequential if there is a `sample`. Raises AssertionError if any two ways differ
    in a row."""
    work = workload(case)
    registered = work.registered
    joined: dict[str, list[Joined]] = {plan: [] for plan in plans}
    pairs: list[int] = []
    ways: dict[str, Callable[[], float]] = {"floor": partial(_floor, case, work, pairs)}
    ways |= {plan: partial(_plan, engine, plan, work, joined[plan]) for plan in plans}
    seconds = medians(ways, rounds)
    tables = {plan: of[0].table for plan, of in joined.items()}
    check_equal({plan: rows_digest(table) for plan, table in tables.items()})
    first = tables[plans[0]]
    expanded = expanded_count(first, registered)
    sequential = None
    if sample:
        chosen = Random(3).sample(registered.queries, min(sample, len(registered.queries)))
        sequential = _sequential(engine, case, work, chosen)
        check_sample(of_queries(first, registered, chosen), sequential.rows)
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
        return Line(
            bench="rss",
            case={**asdict(case), "items": case.state + case.batch},
            engine=engine,
            plan=plan,
            seconds=taken,
            rows=rows,
            baseline=None if own else baseline,
            speedup=None if own else speedup(baseline_seconds, taken),
            floor=seconds["floor"],
            extrapolated=sequential is not None and sequential.extrapolated,
            details={**shared, "items_a_second": case.batch / taken, **details},
        )

    lines = [line(plan, seconds[plan], of[0].rows, {"call": median(j.call for j in of)}) for plan, of in joined.items()]
    if sequential:
        forms: dict[str, object] = {f"sequential {form}": taken for form, taken in sequential.seconds.items()}
        lines.append(line("sequential", sequential.best, expanded, forms))
    return lines


def _plan(engine: str, plan: str, work: FeedWorkload, joined: list[Joined]) -> float:
    """Joins the batch in a new engine; the rows of the first time are kept."""
    with opened(engine, plan) as store:
        put_rows(store, work.registered)
        become_state(store, work.kept)
        for first, batch in (work.warm, work.measured):
            store.begin()
            one = timed_join(store, batch, first, scope(work.registered), keep=not joined and batch is work.measured[1])
            store.commit()
    joined.append(one)
    return one.seconds


def _floor(case: Case, work: FeedWorkload, pairs: list[int]) -> float:
    with Floor() as floor:
        warm = case.state - case.warm
        floor.keep(*postings(0, work.items[:warm]))
        floor.join(*postings(warm, work.items[warm : case.state]))
        measured = postings(case.state, work.items[case.state :])
        begin = time.perf_counter()
        pairs.append(floor.join(*measured))
        return time.perf_counter() - begin


def _sequential(engine: str, case: Case, work: FeedWorkload, chosen: Sequence[Pairs]) -> Sequential:
    left, right = (
        (witnesses(work.registered, "S", leaves, first), columns(first, leaves))
        for first, leaves in ((0, strings(work.items)), (case.state, strings(work.items[case.state :])))
    )
    return measure_sequential(engine, work.registered, chosen, left, right)


# ------------------------------------------------------------ the report

COLUMNS: tuple[Column, ...] = (
    ("plan", lambda line: line.plan),
    ("state", lambda line: line.case["state"]),
    ("batch", lambda line: line.case["batch"]),
    ("queries", lambda line: line.case["queries"]),
    ("rows of R_T", lambda line: line.details["distinct"]),
    ("pairs of values", lambda line: line.details["value_pairs"]),
    ("rows", lambda line: line.rows),
    ("for queries", lambda line: line.details["expanded"]),
    ("ms", lambda line: line.seconds * 1e3),
    ("call, ms", lambda line: None if (call := line.details.get("call")) is None else float(str(call)) * 1e3),
    ("items/s", lambda line: line.details["items_a_second"]),
    ("floor, ms", lambda line: None if line.floor is None else line.floor * 1e3),
    ("over floor", lambda line: line.over_floor),
    ("times faster", marked),
    ("sequential", lambda line: line.details["baseline_form"]),
)

MEMORY_COLUMNS: tuple[Column, ...] = (
    ("plan", lambda line: line.plan),
    ("documents", lambda line: line.case["items"]),
    ("bytes a document", lambda line: line.details["state_bytes"]),
)


def memory(plans: Sequence[str], few: int, many: int) -> Iterator[Line]:
    """What each document that is kept takes in memory, on DuckDB: a line for each plan."""
    for plan in plans:
        seconds, size = state_bytes(plan, few, many)
        case = {"state": few, "batch": BATCH, "queries": 1000, "items": many}
        yield Line("rss-memory", case, "duckdb", plan, seconds, 0, None, None, details={"state_bytes": size})


def main() -> None:
    options = parsed(parser("rss", "joins the items of a synthetic feed, as section 6.6.3 of the thesis"))
    numbers = options.queries or (QUICK_NUMBERS if options.quick else NUMBERS)
    every = not options.quick and not options.queries
    plans = plans_of(options.engine, options.plan, quick=options.quick)
    lines = [
        line
        for case in with_progress(cases(numbers, sweeps=every), str)
        for line in measure(case, options.engine, plans, ROUNDS, SAMPLE if case.batch == BATCH else 0)
    ]
    show(lines, f"a feed, each batch joined with all before it, {options.engine}", COLUMNS)
    kept = list(memory(plans, STATE, 5 * STATE)) if every and options.engine == "duckdb" else []
    if kept:
        show(kept, "state in memory, duckdb", MEMORY_COLUMNS)
    keep([*lines, *kept], options)
    if options.plot:
        from bench.stage2_plot import draw_rates

        keys = (("queries", "queries"), ("state", "items in the state"), ("batch", "items a batch"))
        draw_rates(lines, options.plot, keys)


if __name__ == "__main__":
    main()
