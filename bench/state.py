"""What a large join state costs on DuckDB (`state`, docs/benchmarks.md), and whether a long run stays small.

`flat-state`: feed items, one per second of their own time, are joined in windows of ten minutes and kept for an hour,
with a state directory. The last tenth of the run must not be larger than the third tenth by half or more.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bench import harness, joins
from bench.harness import Line, columns, in_fresh_process
from bench.plots import Panel, PlotSeries, draw_panels, new_figure, save_figure
from bench.workload import HOUR, SECOND
from common.arrays import Ints
from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.state.engine_choice import directory_bytes

LEAVES = 4
STATE_SCHEMA = joins.DocumentSchema(tuple((f"leaf{i}",) for i in range(LEAVES)))
CHUNK = 25_000  # the number of documents that are generated at a time
SHARED = 20  # at most about as many documents have a value that a measured batch repeats
MANY, REPEATED = 2, 1_000
"""A document of which a batch repeats values has at least MANY that are as rare. REPEATED documents, and as many ranks
of each leaf, are repeated, whatever the number of documents that are kept."""

QUERIES: list[joins.LeafPairs] = [
    tuple((leaf, leaf) for leaf in leaves)
    for count in range(1, LEAVES + 1)
    for leaves in combinations(range(LEAVES), count)
]
"""A query for each set of leaves: the values of all of them are equal."""


def state_queries() -> joins.RegisteredQueries:
    return joins.register_queries(STATE_SCHEMA, QUERIES, ("S", "S"))


def drawn_chunks(
    count: int, first: int, end: int, draw: Callable[[np.random.Generator, tuple[int, int]], npt.NDArray[Any]]
) -> Ints:
    """The values of documents from `first`, a multiple of CHUNK, to `end`, of `count`: a row for each."""
    chunks = [np.zeros((0, LEAVES), np.int64)]
    for start in range(first, end, CHUNK):
        chunks.append(draw(np.random.default_rng((count, start)), (min(CHUNK, end - start), LEAVES)).astype(np.int64))
    return np.concatenate(chunks)


def kept_ranks(count: int, first: int, end: int) -> Ints:
    """The ranks of values. Rank r is drawn with a probability of about 1 / (r ln count)."""
    return drawn_chunks(count, first, end, lambda rng, shape: count ** rng.random(shape))


def batch_ranks(count: int, number: int, size: int) -> Ints:
    """The ranks of the values of a measured batch. They repeat values that as many documents have, however many are
    kept, so that batches have about as many pairs: a fifth of the documents repeat two or more values of one of
    REPEATED kept ones. Of all other values, a quarter are of REPEATED ranks, and the rest are new."""
    rng = np.random.default_rng((count, 1, number))
    commonest = count / (SHARED * np.log(count))
    ranks = (commonest * SHARED ** (rng.integers(0, REPEATED, (size, LEAVES)) / REPEATED)).astype(np.int64)
    fresh = 2 * count + np.arange(size * LEAVES).reshape(size, LEAVES) + number * size * LEAVES
    ranks = np.where(rng.random((size, LEAVES)) < 0.25, ranks, fresh)
    originals = kept_ranks(count, 0, min(CHUNK, count))
    rare = originals >= commonest
    chosen = np.flatnonzero(rare.sum(axis=1) >= MANY)[:REPEATED]
    of = chosen[rng.integers(0, len(chosen), size)]
    again = rare[of] & (rng.random(size) < 0.2)[:, None]
    return np.where(again, originals[of], ranks)


def rank_strings(ranks: Ints) -> list[pa.Array]:
    return [
        pc.binary_join_element_wise(f"what leaf {leaf} says, number", pa.array(ranks[:, leaf]).cast(pa.string()), " ")
        for leaf in range(LEAVES)
    ]


def kept_chunks(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, CHUNK):
        yield start, min(start + CHUNK, count)


def expected_digests(work: joins.RegisteredQueries, count: int, batches: int, size: int) -> list[joins.RowsDigest]:
    """The rows (row of R_T, earlier document, later document) that each batch must find, from the values alone."""
    later = np.concatenate([batch_ranks(count, number, size) for number in range(batches)])
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(batches)]
    masks = [(work.placements[query].row, sum(1 << leaf for leaf, _ in query)) for query in QUERIES]
    for (one, other), mask in shared_leaves(count, later, kept_ranks).items():
        found = [(row, one, other) for row, needed in masks if mask & needed == needed]
        rows[(other - count) // size] += found
    return [joins.columns_digest(list(np.array(of, np.int64).reshape(-1, 3).T.copy())) for of in rows]


def shared_leaves(count: int, later: Ints, kept: Callable[[int, int, int], Ints]) -> dict[tuple[int, int], int]:
    """Pairs of documents with common values, with the leaves as bits. `kept(count, first, end)` gives stored values."""
    pairs: dict[tuple[int, int], int] = {}
    for leaf in range(LEAVES):
        parts = [kept(count, first, end)[:, leaf] for first, end in kept_chunks(count)]
        column = np.concatenate([*parts, later[:, leaf]])
        wanted = np.zeros(int(column.max()) + 1, np.bool_)
        wanted[later[:, leaf]] = True
        docids = np.flatnonzero(wanted[column])
        order = docids[np.argsort(column[docids], kind="stable")]
        for group in np.split(order, np.flatnonzero(np.diff(column[order])) + 1):
            for document in group[group >= count].tolist():
                for other in group[group < document].tolist():
                    pairs[other, document] = pairs.get((other, document), 0) | 1 << leaf
    return pairs


NUMBERS, QUICK_NUMBERS = [100_000, 1_000_000, 10_000_000], [20_000, 100_000]
SIZE, BATCHES, WARM = 5_000, 7, 2
DAYS = 30


@dataclass(frozen=True)
class StateCase:
    documents: int
    directory: Path


Figures = dict[str, float]  # the details of a line; each process measures some of them


def fill_state(case: StateCase) -> Figures:
    """Fills a store. Sizes are in bytes: on disk, a posting, and resident at the end."""
    work = state_queries()
    store = joins.open_engine("duckdb", "signature", case.directory)
    joins.put_rows(store, work)
    begin = time.perf_counter()
    for first, end in kept_chunks(case.documents):
        leaves = rank_strings(kept_ranks(case.documents, first, end))
        joins.become_state(store, [(first, joins.schema_witnesses(work, "S", leaves, first, groups=first == 0))])
    seconds = time.perf_counter() - begin
    while store.plan.counters()["merges"]:  # documents come as fast as this only here
        time.sleep(0.05)  # the merge runs in a thread; a commit takes it over
        store.begin()
        store.commit()
    resident = _memory()["VmRSS"]
    store.close()
    disk = directory_bytes(case.directory)
    sizes = {"disk": disk, "posting_bytes": disk / (case.documents * LEAVES)}
    return {"resident_filled": resident, "filled": seconds, **sizes}


def use_state(case: StateCase) -> tuple[list[float], list[joins.RowsDigest], Figures]:
    """Opens a store: seconds and rows of batches, seconds to open and evict, memory at the end, peak, and mapped."""
    work, count = state_queries(), case.documents
    batches = []
    for number in range(BATCHES):
        values = rank_strings(batch_ranks(count, number, SIZE))
        batches.append(joins.schema_witnesses(work, "S", values, count + number * SIZE, groups=False))
    begin = time.perf_counter()
    store = joins.open_engine("duckdb", "signature", case.directory)
    joins.put_rows(store, work)

    def evict(before: int) -> None:
        store.begin()
        store.evict(before)
        store.commit()

    evict(0)  # nothing goes, but the postings are there from now on
    opened = time.perf_counter() - begin
    seconds, found = list[float](), list[joins.RowsDigest]()
    for number, batch in enumerate(batches):
        store.begin()
        joined = joins.timed_join(store, batch, count + number * SIZE, work.scope, keep=True)
        seconds.append(joined.seconds + harness.seconds_of(store.commit))
        found.append(joins.columns_digest([joined.table[name].to_numpy() for name in ("qid", "docid1", "docid2")]))
    memory = _memory()
    evicted = harness.seconds_of(lambda: evict(count // DAYS * SECOND))
    store.close()
    figures: Figures = {"slowest": max(seconds[WARM:]), "opened": opened, "evicted": evicted}
    sizes = {"resident": memory["VmRSS"], "peak": memory["VmHWM"], "resident_files": memory["RssFile"]}
    return seconds, found, figures | sizes


def _memory() -> dict[str, int]:
    pa.default_memory_pool().release_unused()
    return memory_of("self")


def memory_of(pid: int | str) -> dict[str, int]:
    """The memory of a process in bytes, by the names of the system."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return {
        name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines) if " kB" in rest
    }


def measure_state(documents: int) -> Line:
    wanted = expected_digests(state_queries(), documents, BATCHES, SIZE)
    with tempfile.TemporaryDirectory(prefix="mmqjp-bench-") as directory:
        case = StateCase(documents, Path(directory))
        filled = in_fresh_process(fill_state, case)
        seconds, found, used = in_fresh_process(use_state, case)
    for ours, theirs in zip(found, wanted, strict=True):
        joins.check_equal({"signature": ours, "values": theirs})
    named, rows = {"documents": documents, "batch": SIZE}, int(median(of.rows for of in found[WARM:]))
    return Line("state", named, "duckdb", "signature", median(seconds[WARM:]), rows, details={**used, **filled})


STATE_COLUMNS = columns(
    "documents | rows | ms = seconds * 1e3 | slowest, ms = slowest * 1e3 | of the first = ratio | open, s = opened | "
    "evict, s = evicted | resident, MB = resident * 1e-6 | peak, MB = peak * 1e-6 | "
    "resident files, MB = resident_files * 1e-6 | resident filled, MB = resident_filled * 1e-6 | "
    "disk, MB = disk * 1e-6 | bytes a posting = posting_bytes | filled, s = filled"
)


def draw_state(lines: Sequence[Line], prefix: Path) -> None:
    times = [
        PlotSeries("a batch", "seconds * 1e3", "D-"),
        PlotSeries("evicting a thirtieth", "evicted * 1e3", "s:"),
        PlotSeries("opening the store", "opened * 1e3", "^:"),
    ]
    labels = (("resident", "memory"), ("peak", "peak of memory"), ("disk", "disk"))
    sizes = [PlotSeries(label, f"{name} * 1e-6") for name, label in labels]
    panels = [
        Panel("documents", "documents", "ms", times),
        Panel("documents", "documents", "MB", sizes, "xy", legend=True),
    ]
    draw_panels(lines, prefix, panels)


def bench_state() -> None:
    parser = harness.benchmark_parser("state", "batches beside a large join state")
    parser.add_argument("--documents", type=harness.integers, metavar="N,N", help="numbers of stored documents")
    options = harness.parse_options(parser)
    cases = options.documents or (QUICK_NUMBERS if options.quick else NUMBERS)
    lines = [measure_state(documents) for documents in harness.with_progress(cases, "{:,} documents".format)]
    first = lines[0].seconds / lines[0].rows
    lines = [replace(line, details={**line.details, "ratio": line.seconds / line.rows / first}) for line in lines]
    title = f"batches of {SIZE:,} documents beside those that are kept, duckdb"
    harness.report(lines, title, STATE_COLUMNS, options, draw_state)


FLAT_BATCH, PRUNE_EVERY, SAMPLES = 1_000, 10, 40
FLAT_START = 1_767_225_600 * SECOND
TITLES = 300
SLACK = 1.5
FLAT_QUERIES = """
S//item->a[./title->t] FOLLOWED BY {t = u, 10 min} S//item->b[./title->u] PUBLISH same_title;
S//item->a[./author->t] JOIN {t = u, 1 min} S//item->b[./author->u] PUBLISH same_author;
same_title/match->m[.//title->t] FOLLOWED BY {t = u, 5 min} S//item->c[./title->u] PUBLISH thrice
"""


@dataclass(frozen=True, slots=True)
class StateSample:
    """After some documents: seconds per batch, bytes resident and on disk, documents kept and joined, outputs kept."""

    documents: int
    seconds: float
    memory: int
    state: int
    kept: int
    joined: int
    outputs: int


def small_items(count: int, seed: int = 1) -> Iterator[Document]:
    rng = Random(seed)
    for n in range(count):
        title, author = rng.randrange(TITLES), rng.randrange(TITLES)
        xml = f"<item><title>title {title}</title><author>author {author}</author><guid>{n}</guid></item>"
        yield Document(f"item {n}", xml, "S", FLAT_START + n * SECOND - rng.randrange(30) * SECOND)


def measure_flat_state(documents: int) -> Iterator[StateSample]:
    each = max(documents // FLAT_BATCH // SAMPLES, 1)
    with tempfile.TemporaryDirectory(prefix="mmqjp-") as directory:
        state = Path(directory) / "state"
        with Session("duckdb", state=state, lateness=60 * SECOND) as engine:
            engine.subscribe(FLAT_QUERIES)
            waiting, seconds = small_items(documents), 0.0
            for number in range(1, documents // FLAT_BATCH + 1):
                batch = [next(waiting) for _ in range(FLAT_BATCH)]
                started = time.perf_counter()
                engine.process(batch)
                if number % PRUNE_EVERY == 0:
                    engine.prune(HOUR, HOUR)
                seconds += time.perf_counter() - started
                if number % each == 0:
                    yield _sample(engine, state, number * FLAT_BATCH, seconds / each)
                    seconds = 0.0
            assert engine.counters().dead_letters == 0


def _sample(engine: Session, state: Path, documents: int, seconds: float) -> StateSample:
    tables = ("documents", "r_docts", "outputs")
    kept, joined, outputs = (engine.sql(f"SELECT count(*) AS n FROM {name}")["n"][0].as_py() for name in tables)
    return StateSample(documents, seconds, _memory()["VmRSS"], directory_bytes(state), kept, joined, outputs)


def grown_figures(samples: Sequence[StateSample]) -> list[str]:
    tenth = max(len(samples) // 10, 1)
    early, late = samples[2 * tenth : 3 * tenth], samples[-tenth:]
    return [
        name
        for name in ("seconds", "memory", "state", "kept", "joined", "outputs")
        if max(getattr(s, name) for s in late) > SLACK * max(getattr(s, name) for s in early)
    ]


def draw_flat_state(samples: Sequence[StateSample], prefix: Path) -> None:
    figure = new_figure(10, 6)
    parts = {"seconds": "s a batch", "memory": "MiB resident", "state": "MiB of state", "kept": "documents kept"}
    for axes, (name, title) in zip(figure.subplots(2, 2, sharex=True).flat, parts.items(), strict=True):
        scale = 1 << 20 if name in ("memory", "state") else 1
        axes.plot([s.documents for s in samples], [getattr(s, name) / scale for s in samples])
        axes.set(title=title, ylim=(0, None))
    save_figure(figure, prefix)


def bench_flat_state() -> None:
    description = "measures whether a long run stays small"
    parser = argparse.ArgumentParser(prog="mmqjp bench flat-state", description=description)
    parser.add_argument("--documents", type=int, default=100_000, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="PREFIX")
    options = parser.parse_args()
    samples = []
    print(f"{'documents':>10} {'s/batch':>8} {'MiB':>6} {'state MiB':>9} {'kept':>7} {'joined':>7} {'outputs':>8}")
    for s in measure_flat_state(options.documents):
        samples.append(s)
        sizes = f"{s.memory >> 20:>6,} {s.state / (1 << 20):>9,.1f} {s.kept:>7,} {s.joined:>7,} {s.outputs:>8,}"
        print(f"{s.documents:>10,} {s.seconds:>8.3f} {sizes}", flush=True)
    if options.json is not None:
        options.json.write_text("".join(json.dumps(asdict(sample)) + "\n" for sample in samples))
    if options.plot is not None:
        draw_flat_state(samples, options.plot)
    if names := grown_figures(samples):
        sys.exit(f"not flat: {', '.join(names)}")
