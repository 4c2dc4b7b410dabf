"""Lifelike subscriptions with windows of hours to days: stage 2 alone, and the whole path from bytes to outputs.

    mmqjp bench realistic [--engine duckdb|spark] [--plan NAME] [--queries N,N] [--quick] [--json FILE] [--csv FILE]
                          [--plot PREFIX]

The whole path is reported as a ratio to parsing the same documents with lxml and reading their tags, and by stage.
Stage 2 is measured by repeating its calls on a new engine, as a ratio to the floor over the documents that are still
kept. Both are compared with programs that do not use mmqjp: one statement per subscription; on Spark, a streaming join
for each of a few; a dictionary in Python for one. Before a time is reported, the results of all of them are compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.command import with_progress
from bench.realistic_naive import Pairs, SameTitle, by_statements, by_stream_join
from bench.realistic_split import PARTS, Call, PartTimes, recorded, replayed
from bench.realistic_workload import POPULAR, RealisticQuery, script, subscriptions
from bench.stage2_engines import medians, opened, plans_of, session
from bench.stage2_floor import LEAF_BITS, Floor
from bench.stage2_report import Column, Line, keep, marked, parsed, parser, show, speedup
from bench.stage2_rows import check_equal, rows_digest
from bench.timing import clocked, floor
from bench.workload import HOUR, channel, items
from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.process import gc_frozen

NUMBERS = [1000, 10_000, 100_000]
ITEMS, QUICK_ITEMS, BATCH = 20_000, 10_000, 5_000
ROUNDS = 3
SAMPLE = 100


@dataclass(frozen=True)
class Case:
    queries: int
    items: int
    batch: int = BATCH


Batches = list[list[Document]]


def workload(case: Case) -> tuple[Batches, list[RealisticQuery]]:
    """The documents as bytes, batch by batch, and the subscriptions."""
    documents = [Document(d.id, d.xml_bytes(), stream=d.stream, time=(d.t0, d.t1)) for d in items(case.items)]
    batches = [documents[first : first + case.batch] for first in range(0, case.items, case.batch)]
    return batches, subscriptions(case.queries)


# ------------------------------------------------------------ the whole path


@dataclass(frozen=True)
class Run:
    """A run of the whole path: the seconds of registration and of all batches, the latter also by stage, the outputs,
    and the calls of stage 2."""

    registering: float
    seconds: float
    parts: Mapping[str, float]
    outputs: list[Output]
    calls: list[Call]


def run(engine: str, plan: str, batches: Batches, asked: Sequence[RealisticQuery]) -> Run:
    """Runs all batches through a new engine. Work left to the first batch is done before the timing."""
    with Session(engine, lateness=HOUR, plan=plan) as opened_engine:
        calls = recorded(opened_engine._store)
        begin = time.perf_counter()
        opened_engine.subscribe(script(asked))
        opened_engine.registry.flush()
        registering = time.perf_counter() - begin
        outputs: list[Output] = []
        split = PartTimes(opened_engine)
        split.reset()
        with gc_frozen():  # as `mmqjp run` does: registered queries need no collection
            begin = time.perf_counter()
            for batch in batches:
                outputs += opened_engine.process(batch)
            seconds = time.perf_counter() - begin
        split.stop()
    return Run(registering, seconds, split.seconds, outputs, calls)


def lxml_floor(batches: Batches) -> float:
    """Seconds to parse the documents and to read every tag."""
    return clocked(partial(floor, [document.xml_bytes() for batch in batches for document in batch]))


def pairs_of(outputs: Sequence[Output], batches: Batches, places: Sequence[int]) -> list[Pairs]:
    """The results of the subscriptions with these numbers, as pairs of item numbers."""
    number = {document.id: place for place, document in enumerate(d for batch in batches for d in batch)}
    found: dict[str, Pairs] = {f"q{place + 1}": set() for place in places}
    for output in outputs:
        if output.query in found:
            one, other = output.documents
            found[output.query].add((number[one], number[other]))
    return list(found.values())


def check_pairs(name: str, found: Sequence[Pairs], expected: Sequence[Pairs]) -> None:
    """Raises AssertionError unless a program without mmqjp finds what the engine finds."""
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one == other, f"{name} tells subscription {place} of the sample of other items"


# ------------------------------------------------------------ stage 2 alone


@dataclass(frozen=True)
class FloorInput:
    """The input of the floor for each join: the values that it keeps and those that it joins, as interned values."""

    kept: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    joined: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    documents: int
    """How many documents are kept."""


def floor_inputs(calls: Sequence[Call]) -> Iterator[FloorInput]:
    """The values of each recorded join and of the documents kept until then."""
    known: dict[str, int] = {}
    values, arrived, docids = (np.zeros(0, np.int64) for _ in range(3))
    starts: dict[int, int] = {}
    before: int | None = None
    for name, arguments in calls:
        if name == "evict":
            before = arguments[0]
        elif name == "join":
            if before is not None:
                gone = {docid for docid, start in starts.items() if start < before}
                starts = {docid: start for docid, start in starts.items() if docid not in gone}
                still = ~np.isin(docids, np.fromiter(gone, np.int64, len(gone)))
                values, arrived, docids = values[still], arrived[still], docids[still]
            batch = arguments[0]
            new = _postings(batch.r_doc, known)
            yield FloorInput((values, arrived), new, len(starts))
            starts.update(zip(batch.r_docts["docid"].to_pylist(), batch.r_docts["t0"].to_pylist(), strict=True))
            values, arrived = np.concatenate([values, new[0]]), np.concatenate([arrived, new[1]])
            docids = arrived >> LEAF_BITS


def _postings(r_doc: pa.Table, known: dict[str, int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The interned values of a batch, and for each the document and its place among the document's values."""
    texts = r_doc["strval"].to_pylist()
    values = np.array([known.setdefault(text, len(known)) for text in texts], np.int64)
    docids = r_doc["docid"].to_numpy()
    order = np.argsort(docids, kind="stable")
    values, docids = values[order], docids[order]
    place = np.arange(len(docids)) - np.searchsorted(docids, docids)
    assert len(place) == 0 or place.max() < 1 << LEAF_BITS
    return values, docids << LEAF_BITS | place


def _floor(inputs: Sequence[FloorInput]) -> float:
    seconds = 0.0
    for one in inputs:
        with Floor() as floor:
            floor.keep(*one.kept)
            begin = time.perf_counter()
            floor.join(*one.joined)
            seconds += time.perf_counter() - begin
    return seconds


def _replay(engine: str, plan: str, calls: Sequence[Call], tables: dict[str, pa.Table]) -> float:
    with opened(engine, plan) as store:
        seconds, rows = replayed(store, calls, plan not in tables)
    tables.setdefault(plan, rows)
    return sum(seconds)


# ------------------------------------------------------------ measuring


def measure(case: Case, engine: str, plans: Sequence[str], rounds: int, sample: int = SAMPLE) -> list[Line]:
    """Lines for stage 2 alone, the whole path and the programs without mmqjp. Raises AssertionError if any two ways
    differ."""
    batches, asked = workload(case)
    runs: dict[str, list[Run]] = {plan: [] for plan in plans}
    ways: dict[str, Callable[[], float]] = {"floor": partial(lxml_floor, batches)}
    ways |= {plan: partial(_path, engine, plan, batches, asked, runs[plan]) for plan in plans}
    path = medians(ways, rounds)
    first = runs[plans[0]][0]
    for plan in plans:
        assert runs[plan][0].outputs == first.outputs, f"{plan} has other outputs than {plans[0]}"

    inputs = list(floor_inputs(first.calls))
    tables: dict[str, pa.Table] = {}
    joins: dict[str, Callable[[], float]] = {"floor": partial(_floor, inputs)}
    joins |= {plan: partial(_replay, engine, plan, first.calls, tables) for plan in plans}
    stage2 = medians(joins, rounds)
    check_equal({plan: rows_digest(table) for plan, table in tables.items()})

    without = list(_without_us(case, engine, batches, asked, first, sample))
    baseline = without[0] if without else None
    basic = stage2.get("basic")
    about = {"state": inputs[-1].documents, "batch": case.batch, "queries": case.queries, "items": case.items}
    lines = [
        Line(
            bench="realistic",
            case=about,
            engine=engine,
            plan=plan,
            seconds=stage2[plan],
            rows=tables[plan].num_rows,
            baseline=None if basic is None or plan == "basic" else "basic",
            speedup=None if plan == "basic" else speedup(basic, stage2[plan]),
            floor=stage2["floor"],
        )
        for plan in plans
    ]
    for plan in plans:
        parts = {part: median(one.parts[part] for one in runs[plan]) for part in PARTS}
        lines.append(
            Line(
                bench="realistic-path",
                case=about,
                engine=engine,
                plan=plan,
                seconds=path[plan],
                rows=len(first.outputs),
                baseline=baseline.plan if baseline else None,
                speedup=speedup(baseline.seconds if baseline else None, path[plan]),
                floor=path["floor"],
                extrapolated=baseline is not None and baseline.extrapolated,
                details={
                    "outputs_a_document": len(first.outputs) / case.items,
                    "registering": median(one.registering for one in runs[plan]),
                    **parts,
                },
            )
        )
    return lines + without


def _path(engine: str, plan: str, batches: Batches, asked: Sequence[RealisticQuery], runs: list[Run]) -> float:
    runs.append(run(engine, plan, batches, asked))
    return runs[-1].seconds


def _without_us(
    case: Case, engine: str, batches: Batches, asked: Sequence[RealisticQuery], ours: Run, sample: int
) -> Iterator[Line]:
    """Lines for the programs without mmqjp, the baseline of the whole path first. Each result is checked."""

    def line(plan: str, of: str, seconds: float, rows: int, queries: int, extrapolated: bool) -> Line:
        about = {"state": None, "batch": case.batch, "queries": queries, "items": case.items}
        return Line("realistic-without", about, of, plan, seconds, rows, None, None, extrapolated=extrapolated)

    popular = range(min(len(POPULAR), case.queries))
    expected = pairs_of(ours.outputs, batches, popular)
    if engine == "spark":
        wanted = [(channel(one), channel(other), hours) for one, other, hours in POPULAR]
        seconds, found = by_stream_join(session(), batches, [wanted[place] for place in popular])
        check_pairs("a streaming join on Spark", found, expected)
        rows = sum(map(len, found))
        scaled = sum(seconds) / len(seconds) * case.queries
        yield line("streaming joins", "spark", scaled, rows, case.queries, case.queries > len(popular))
    places = sorted({*popular, *Random(5).sample(range(case.queries), min(sample, case.queries))})
    taken_in, joined, found = by_statements(batches, [asked[place] for place in places])
    check_pairs("a statement on DuckDB", found, pairs_of(ours.outputs, batches, places))
    scaled = taken_in + joined / len(places) * case.queries
    yield line("statements", "duckdb", scaled, sum(map(len, found)), case.queries, len(places) < case.queries)
    one, other, hours = POPULAR[0]
    alone, pairs = SameTitle(channel(one), channel(other), hours).run(batches)
    check_pairs("the program in Python", [pairs], expected[:1])
    yield line("Python, one query", "python", alone, len(pairs), 1, False)


# ------------------------------------------------------------ the report

_NAMES = {"realistic": "stage 2", "realistic-path": "whole path", "realistic-without": "without us"}
COLUMNS: tuple[Column, ...] = (
    ("", lambda line: _NAMES[line.bench]),
    ("plan", lambda line: line.plan),
    ("queries", lambda line: line.case["queries"]),
    ("items", lambda line: line.case["items"]),
    ("state", lambda line: line.case["state"]),
    ("seconds", lambda line: line.seconds),
    ("items/s", lambda line: float(str(line.case["items"])) / line.seconds),
    ("rows", lambda line: line.rows),
    ("floor, s", lambda line: line.floor),
    ("over floor", lambda line: line.over_floor),
    ("times faster", marked),
    ("than", lambda line: line.baseline),
)

PART_COLUMNS: tuple[Column, ...] = (
    ("plan", lambda line: line.plan),
    ("queries", lambda line: line.case["queries"]),
    ("outputs a document", lambda line: line.details["outputs_a_document"]),
    ("registering, s", lambda line: line.details["registering"]),
    *((f"{part}, s", lambda line, part=part: line.details[part]) for part in PARTS),
)


def main() -> None:
    options = parsed(parser("realistic", "lifelike subscriptions with windows: stage 2, and the whole path"))
    numbers = options.queries or ([10_000] if options.quick else NUMBERS)
    plans = plans_of(options.engine, options.plan, quick=options.quick)
    cases = [Case(number, QUICK_ITEMS if options.quick else ITEMS) for number in numbers]
    lines = [line for case in with_progress(cases, str) for line in measure(case, options.engine, plans, ROUNDS)]
    show(lines, f"lifelike subscriptions, {options.engine}", COLUMNS)
    paths = [line for line in lines if line.bench == "realistic-path"]
    show(paths, "the whole path by stage", PART_COLUMNS)
    keep(lines, options)
    if options.plot:
        from bench.stage2_plot import draw_parts

        draw_parts(paths, PARTS, options.plot)


if __name__ == "__main__":
    main()
