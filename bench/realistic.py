"""Lifelike subscriptions with windows of hours to days: stage 2 alone, and the whole path from bytes to outputs.

Stage 2 is measured by repeating its calls on a new engine, as a ratio to the floor over the documents that are kept.
Both stand beside programs without mmqjp: a statement per subscription, joins of Spark, a dictionary in Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lxml import etree

from bench import harness, joins, workload
from bench.harness import Line, columns, timed
from bench.plots import new_figure, save_figure, stack_bars
from bench.workload import channel, items
from common.arrays import Ints
from common.tools import gc_frozen
from feeds.documents import Document
from join_stage.plans import JoinEngine
from mmqjp.answers.output import Output
from mmqjp.engine import Session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUMBERS = [1000, 10_000, 100_000]
ITEMS, QUICK_ITEMS, BATCH = 20_000, 10_000, 5_000
ROUNDS = 3
SAMPLE = 100

ItemBatches = Sequence[Sequence[Document]]
ItemPairs = set[tuple[int, int]]  # numbers of items, the earlier first
Subscriptions = Sequence[workload.RealisticQuery]


@dataclass(frozen=True)
class RealisticCase:
    queries: int
    items: int
    batch: int = BATCH


def realistic_workload(case: RealisticCase) -> tuple[ItemBatches, list[workload.RealisticQuery]]:
    documents = [Document(d.id, d.xml_bytes(), stream=d.stream, time=(d.t0, d.t1)) for d in items(case.items)]
    batches = [documents[first : first + case.batch] for first in range(0, case.items, case.batch)]
    return batches, workload.subscriptions(case.queries)


def by_statements(batches: ItemBatches, queries: Subscriptions) -> tuple[float, float, list[ItemPairs]]:
    """On DuckDB, a statement for each batch and subscription: seconds to insert, seconds to select, and the pairs."""
    found: list[ItemPairs] = [set() for _ in queries]
    inserting = joining = 0.0
    database = workload.FieldDatabase()
    with closing(database.connection) as connection:
        for batch in batches:
            begin = time.perf_counter()
            first = database.insert(batch)
            old = f"SELECT doc FROM items WHERE t < {batch[0].t0 - workload.LONGEST_HOURS * workload.HOUR}"
            for name in ("links", "authors", "categories", "items"):
                connection.execute(f"DELETE FROM {name} WHERE doc IN ({old})")
            between = time.perf_counter()
            for one, pairs in zip(queries, found, strict=True):
                pairs.update(connection.execute(one.sql.replace("$new", str(first))).fetchall())
            joining += time.perf_counter() - between
            inserting += between - begin
    return inserting, joining, found


def by_dictionary(batches: ItemBatches, first: str, second: str, hours: int) -> ItemPairs:
    """In Python, the pairs of one subscription: items of two channels that have the same title."""
    found: ItemPairs = set()
    seen: dict[str, list[tuple[int, int]]] = {}
    window, numbers = hours * workload.HOUR, count()
    for batch in batches:
        for document in batch:
            number, root = next(numbers), etree.fromstring(document.xml_bytes())
            channel_url, title = root.findtext("channel_url"), (root.findtext("title") or "").lower()
            if channel_url == second:
                earlier = seen.get(title, ())
                found.update((one, number) for one, when in earlier if when < document.t0 <= when + window)
            if channel_url == first:
                seen.setdefault(title, []).append((number, document.t0))
        before = batch[-1].t0 - window
        seen = {title: live for title, of in seen.items() if (live := [one for one in of if one[1] >= before])}
    return found


def by_stream_join(
    session: SparkSession, batches: ItemBatches, wanted: Sequence[tuple[str, str, int]]
) -> tuple[list[float], list[ItemPairs]]:
    """On Spark, a stream-stream join for each (channel, channel, hours): seconds and pairs. Each batch is a file."""
    seconds, found = [], []
    with TemporaryDirectory(prefix="mmqjp-naive-") as directory:
        arriving, first = Path(directory) / "items", 0
        arriving.mkdir()
        for number, batch in enumerate(batches):
            rows = workload.field_tables(batch, first)["items"]
            stamped = rows.append_column("at", rows["t"].cast(pa.timestamp("us", "UTC")))
            pq.write_table(stamped, arriving / f"{number:04}.parquet")
            first += len(batch)
        for number, one in enumerate(wanted):
            pairs: ItemPairs = set()
            checkpoint = Path(directory) / f"checkpoint{number}"
            seconds.append(harness.seconds_of(partial(_run_stream_join, session, arriving, checkpoint, *one, pairs)))
            found.append(pairs)
    return seconds, found


def _run_stream_join(
    session: SparkSession, arriving: Path, checkpoint: Path, one: str, other: str, hours: int, pairs: ItemPairs
) -> None:
    from pyspark.sql.functions import expr

    def side(channel: str, name: str) -> DataFrame:
        schema = "doc long, t long, channel string, url string, title string, guid string, at timestamp"
        stream = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(arriving))
        return stream.where(f"channel = '{channel}'").withWatermark("at", "1 hour").alias(name)

    condition = f"lower(l.title) = lower(r.title) AND r.at > l.at AND r.at <= l.at + INTERVAL {hours} HOURS"
    joined = side(one, "l").join(side(other, "r"), expr(condition)).selectExpr("l.doc AS doc1", "r.doc AS doc2")

    def collect(rows: DataFrame, _: int) -> None:
        pairs.update((row.doc1, row.doc2) for row in rows.collect())

    writer = joined.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


PARTS = ("admission and parse", "stage 1", "stage 2", "expansion", "store", "rest")
_JOIN = "stage 2"


class PartTimes:
    """The seconds of each part of an engine, without those of the parts inside it; observed by wrapping its methods."""

    def __init__(self, engine: Session) -> None:
        self._inside = ["rest"]
        self.reset()
        # The engine's parts are its own business; only a benchmark looks behind them.
        components, store = engine._batches, engine._store
        self._wrap(components.admission, "admission and parse", "admit")
        self._wrap(components.stage1, "stage 1", "evaluate", "finish_batch")
        self._wrap_readers(components.pipeline)
        self._wrap(components.records, "store", "load", "flush")
        self._wrap(components.outbox, "store", "save_matches", "save_answers")
        self._wrap(store, "store", "append", "select", "find", "evict", "begin", "commit")
        join = self._timed(store.join, _JOIN)
        cast(Any, store).join = lambda *arguments: _Listed(self, join(*arguments))

    def reset(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._since = time.perf_counter()

    def charge(self) -> None:
        """Charges the time since the last part to the current one; call it at the end."""
        now = time.perf_counter()
        self.seconds[self._inside[-1]] += now - self._since
        self._since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charges the block to a part. What a join does with its own store is the join's."""
        self.charge()
        self._inside.append(_JOIN if self._inside[-1] == _JOIN else name)
        try:
            yield
        finally:
            self.charge()
            self._inside.pop()

    def _wrap(self, owner: object, part: str, *names: str) -> None:
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name), part))

    def _wrap_readers(self, pipeline: Any) -> None:
        make_reader = pipeline._reader

        def made(*arguments: Any) -> Any:
            reader = make_reader(*arguments)
            self._wrap(reader, "expansion", "read_chunk")
            return reader

        pipeline._reader = made

    def _timed(self, method: Callable[..., Any], part: str) -> Callable[..., Any]:
        @wraps(method)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            with self.part(part):
                return method(*arguments, **keywords)

        return timed


class _Listed:
    def __init__(self, split: PartTimes, matches: Any) -> None:
        self._split, self._matches = split, matches
        self.num_rows = matches.num_rows

    def to_batches(self, max_chunksize: int) -> Iterator[pa.RecordBatch]:
        with self._split.part(_JOIN):
            batches = iter(self._matches.to_batches(max_chunksize=max_chunksize))
        while True:
            with self._split.part(_JOIN):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


StoreCall = tuple[str, tuple[Any, ...]]  # A method of a store, and its arguments
OF_PLANS = ("put_rows", "drop_rows")


def record_calls(store: JoinEngine) -> list[StoreCall]:
    """The calls that an engine makes of its store from now on, as far as joins depend on them: a list that grows."""
    calls: list[StoreCall] = []

    def recording(name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        if name != "append" or arguments[0] == "documents":
            calls.append((name, arguments))
        return method(*arguments)

    for name in OF_PLANS:
        setattr(store.plan, name, partial(recording, name, getattr(store.plan, name)))
    for name in ("begin", "commit", "join", "evict", "append"):
        setattr(store, name, partial(recording, name, getattr(store, name)))
    return calls


def replay_calls(store: JoinEngine, calls: Iterable[StoreCall], keep: bool) -> tuple[float, pa.Table]:
    seconds, tables = 0.0, []
    for name, arguments in calls:
        if name == "join":
            batch, first, scope = arguments
            joined = joins.timed_join(store, batch, first, scope, keep)
            seconds += joined.seconds
            tables.append(joined.table)
        else:
            getattr(store.plan if name in OF_PLANS else store, name)(*arguments)
    return seconds, pa.concat_tables(tables)


@dataclass(frozen=True)
class PathRun:
    """Seconds of registration and of all batches, the latter also by stage; the outputs; the calls of stage 2."""

    registering: float
    seconds: float
    parts: Mapping[str, float]
    outputs: list[Output]
    calls: list[StoreCall]


def run_path(engine: str, plan: str, batches: ItemBatches, queries: Subscriptions) -> PathRun:
    with Session(engine, lateness=workload.HOUR, plan=plan) as opened:
        calls = record_calls(opened._store)

        def register() -> None:
            opened.subscribe(workload.script_of(queries))
            opened.registry.flush()

        registering = harness.seconds_of(register)
        split = PartTimes(opened)
        split.reset()
        with gc_frozen():  # as `mmqjp run` does: registered queries need no collection
            seconds, outputs = timed(lambda: [output for batch in batches for output in opened.process(batch)])
        split.charge()
    return PathRun(registering, seconds, split.seconds, outputs, calls)


def output_pairs(outputs: Sequence[Output], batches: ItemBatches, places: Sequence[int]) -> list[ItemPairs]:
    number = {document.id: place for place, document in enumerate(d for batch in batches for d in batch)}
    found: dict[str, ItemPairs] = {f"q{place + 1}": set() for place in places}
    for output in outputs:
        if output.query in found:
            one, other = output.documents
            found[output.query].add((number[one], number[other]))
    return list(found.values())


def check_pairs(name: str, found: Sequence[ItemPairs], expected: Sequence[ItemPairs]) -> None:
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one == other, f"{name} tells subscription {place} of the sample of other items"


@dataclass(frozen=True)
class FloorInput:
    kept: joins.Postings
    joined: joins.Postings
    documents: int


def floor_inputs(calls: Sequence[StoreCall]) -> Iterator[FloorInput]:
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
            new = _interned(batch.r_doc, known)
            yield FloorInput((values, arrived), new, len(starts))
            starts.update(zip(batch.r_docts["docid"].to_pylist(), batch.r_docts["t0"].to_pylist(), strict=True))
            values, arrived = np.concatenate([values, new[0]]), np.concatenate([arrived, new[1]])
            docids = arrived >> joins.LEAF_BITS


def _interned(r_doc: pa.Table, known: dict[str, int]) -> joins.Postings:
    texts = r_doc["strval"].to_pylist()
    values: Ints = np.array([known.setdefault(text, len(known)) for text in texts], np.int64)
    docids = r_doc["docid"].to_numpy()
    order = np.argsort(docids, kind="stable")
    values, docids = values[order], docids[order]
    place = np.arange(len(docids)) - np.searchsorted(docids, docids)
    assert len(place) == 0 or place.max() < 1 << joins.LEAF_BITS
    return values, docids << joins.LEAF_BITS | place


def _replay(engine: str, plan: str, calls: Sequence[StoreCall], tables: dict[str, pa.Table]) -> float:
    with joins.opened_engine(engine, plan) as store:
        seconds, rows = replay_calls(store, calls, plan not in tables)
    tables.setdefault(plan, rows)
    return seconds


def measure_realistic(
    case: RealisticCase, engine: str, plans: Sequence[str], rounds: int, sample: int = SAMPLE
) -> list[Line]:
    """Lines for stage 2 alone, the whole path and the programs without mmqjp."""
    batches, queries = realistic_workload(case)
    texts = [document.xml_bytes() for batch in batches for document in batch]
    runs: dict[str, list[PathRun]] = {plan: [] for plan in plans}
    ways: dict[str, Callable[[], float]] = {"floor": partial(harness.seconds_of, partial(harness.parse_floor, texts))}
    ways |= {plan: partial(_path, engine, plan, batches, queries, runs[plan]) for plan in plans}
    path = harness.medians(ways, rounds)
    first = runs[plans[0]][0]
    for plan in plans:
        assert runs[plan][0].outputs == first.outputs, f"{plan} has other outputs than {plans[0]}"

    inputs = list(floor_inputs(first.calls))
    tables: dict[str, pa.Table] = {}
    joining: dict[str, Callable[[], float]] = {
        "floor": lambda: sum(joins.floor_seconds([one.kept], None, one.joined)[0] for one in inputs)
    }
    joining |= {plan: partial(_replay, engine, plan, first.calls, tables) for plan in plans}
    stage2 = harness.medians(joining, rounds)
    joins.check_equal({plan: joins.rows_digest(table) for plan, table in tables.items()})

    without = list(_without_us(case, engine, batches, queries, first, sample))
    baseline = without[0]
    basic = stage2.get("basic")
    about = {"state": inputs[-1].documents, "batch": case.batch, "queries": case.queries, "items": case.items}
    lines = []
    for plan in plans:
        rows, base = tables[plan].num_rows, None if plan == "basic" or basic is None else "basic"
        times = harness.speedup(basic if base else None, stage2[plan])
        lines.append(Line("realistic", about, engine, plan, stage2[plan], rows, base, times, stage2["floor"]))
    for plan in plans:
        details = {
            "outputs_a_document": len(first.outputs) / case.items,
            "registering": median(one.registering for one in runs[plan]),
            **{part: median(one.parts[part] for one in runs[plan]) for part in PARTS},
        }
        outputs, times = len(first.outputs), baseline.seconds / path[plan]
        line = Line("realistic-path", about, engine, plan, path[plan], outputs, baseline.plan, times, path["floor"])
        lines.append(replace(line, extrapolated=baseline.extrapolated, details=details))
    return lines + without


def _path(engine: str, plan: str, batches: ItemBatches, queries: Subscriptions, runs: list[PathRun]) -> float:
    runs.append(run_path(engine, plan, batches, queries))
    return runs[-1].seconds


def _without_us(
    case: RealisticCase, engine: str, batches: ItemBatches, queries: Subscriptions, ours: PathRun, sample: int
) -> Iterator[Line]:
    """Lines for the programs without mmqjp, the baseline of the whole path first. Each result is checked."""

    def line(plan: str, of: str, seconds: float, found: Sequence[ItemPairs], queries: int, extrapolated: bool) -> Line:
        about = {"state": None, "batch": case.batch, "queries": queries, "items": case.items}
        return Line("realistic-without", about, of, plan, seconds, sum(map(len, found)), extrapolated=extrapolated)

    popular = range(min(len(workload.POPULAR), case.queries))
    expected = output_pairs(ours.outputs, batches, popular)
    wanted = [(channel(one), channel(other), hours) for one, other, hours in workload.POPULAR]
    if engine == "spark":
        from join_stage.store.spark.session import spark_session

        seconds, found = by_stream_join(spark_session(), batches, [wanted[place] for place in popular])
        check_pairs("a streaming join on Spark", found, expected)
        scaled = sum(seconds) / len(seconds) * case.queries
        yield line("streaming joins", "spark", scaled, found, case.queries, case.queries > len(popular))
    places = sorted({*popular, *Random(5).sample(range(case.queries), min(sample, case.queries))})
    inserting, joining, found = by_statements(batches, [queries[place] for place in places])
    check_pairs("a statement on DuckDB", found, output_pairs(ours.outputs, batches, places))
    scaled = inserting + joining / len(places) * case.queries
    yield line("statements", "duckdb", scaled, found, case.queries, len(places) < case.queries)
    alone, pairs = timed(partial(by_dictionary, batches, *wanted[0]))
    check_pairs("the program in Python", [pairs], expected[:1])
    yield line("Python, one query", "python", alone, [pairs], 1, False)


_NAMES = {"realistic": "stage 2", "realistic-path": "whole path", "realistic-without": "without us"}
REALISTIC_COLUMNS = columns(
    "= name | plan | queries | items | state | seconds | items/s = rate | rows | floor, s = floor | "
    "over floor = over_floor | times faster = marked | than = baseline",
    name=lambda line: _NAMES[line.bench],
    rate=lambda line: line.number("items") / line.seconds,
)
PART_COLUMNS = columns(
    "plan | queries | outputs a document = outputs_a_document | registering, s = registering | "
    + " | ".join(f"{part}, s = {part}" for part in PARTS)
)


def draw_parts(lines: Sequence[Line], prefix: Path) -> None:
    figure = new_figure(8, 1.6 + 0.6 * len(lines))
    axes = figure.subplots()
    names = [f"{line.plan}, {line.case['queries']:,} queries" for line in lines]
    stack_bars(axes.barh, "left", names, lines, PARTS, height=0.6)
    for place, line in enumerate(lines):
        axes.plot([line.floor] * 2, [place - 0.4, place + 0.4], color="black")
    axes.set(xlabel="seconds; the black line is lxml alone")
    axes.invert_yaxis()
    save_figure(figure, prefix)


def bench_realistic() -> None:
    parser = harness.engine_parser("realistic", "lifelike subscriptions with windows: stage 2, and the whole path")
    options = harness.parse_options(parser)
    plans = joins.plans_of(options.engine, options.plan, quick=options.quick)
    numbers = options.queries or ([10_000] if options.quick else NUMBERS)
    cases = [RealisticCase(number, QUICK_ITEMS if options.quick else ITEMS) for number in numbers]
    lines = [
        line for case in harness.with_progress(cases) for line in measure_realistic(case, options.engine, plans, ROUNDS)
    ]
    harness.print_table(lines, f"lifelike subscriptions, {options.engine}", REALISTIC_COLUMNS)
    paths = [line for line in lines if line.bench == "realistic-path"]
    harness.print_table(paths, "the whole path by stage", PART_COLUMNS)
    harness.save(lines, options)
    if options.plot:
        draw_parts(paths, options.plot)
