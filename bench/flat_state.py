"""Checks that a long run stays small: memory, state and time per batch, while documents are added and dropped.

    mmqjp bench flat-state [--documents N] [--json FILE] [--plot PREFIX]

Feed items, one per second of their own time, are joined in windows of ten minutes and kept for an hour, on DuckDB with
a state directory. At regular intervals a line shows the sizes. The last tenth of the run must not be larger than the
third tenth by half or more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from time import perf_counter

from feeds.documents import Document
from mmqjp.engine import Session

BATCH, PRUNED, LINES = 1_000, 10, 40
SECOND = 1_000_000
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
START = 1_767_225_600 * SECOND
TITLES = 300
SLACK = 1.5
QUERIES = """
S//item->a[./title->t] FOLLOWED BY {t = u, 10 min} S//item->b[./title->u] PUBLISH same_title;
S//item->a[./author->t] JOIN {t = u, 1 min} S//item->b[./author->u] PUBLISH same_author;
same_title/match->m[.//title->t] FOLLOWED BY {t = u, 5 min} S//item->c[./title->u] PUBLISH thrice
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """The sizes after a number of documents: seconds per batch, resident bytes, bytes of the state directory, documents
    kept, documents in the join state, outputs kept."""

    documents: int
    seconds: float
    memory: int
    state: int
    kept: int
    joined: int
    outputs: int


def items(count: int, seed: int = 1) -> Iterator[Document]:
    """Small feed items, one a second, slightly out of order."""
    rng = Random(seed)
    for n in range(count):
        title, author = rng.randrange(TITLES), rng.randrange(TITLES)
        xml = f"<item><title>title {title}</title><author>author {author}</author><guid>{n}</guid></item>"
        yield Document(f"item {n}", xml, "S", START + n * SECOND - rng.randrange(30) * SECOND)


def measure(documents: int) -> Iterator[Sample]:
    """Runs, and yields about LINES samples."""
    each = max(documents // BATCH // LINES, 1)
    with tempfile.TemporaryDirectory(prefix="mmqjp-") as directory:
        state = Path(directory) / "state"
        with Session("duckdb", state=state, lateness=MINUTE) as engine:
            engine.subscribe(QUERIES)
            waiting, seconds = items(documents), 0.0
            for number in range(1, documents // BATCH + 1):
                batch = [next(waiting) for _ in range(BATCH)]
                started = perf_counter()
                engine.process(batch)
                if number % PRUNED == 0:
                    engine.prune(HOUR, HOUR)
                seconds += perf_counter() - started
                if number % each == 0:
                    yield _sample(engine, state, number * BATCH, seconds / each)
                    seconds = 0.0
            assert engine.counters().dead_letters == 0


def _sample(engine: Session, state: Path, documents: int, seconds: float) -> Sample:
    size = sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
    tables = ("documents", "r_docts", "outputs")
    kept, joined, outputs = (engine.sql(f"SELECT count(*) AS n FROM {name}")["n"][0].as_py() for name in tables)
    return Sample(documents, seconds, _resident(), size, kept, joined, outputs)


def _resident() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def grown(samples: Sequence[Sample]) -> list[str]:
    """What has grown between the early part of the run and its end."""
    tenth = max(len(samples) // 10, 1)
    early, late = samples[2 * tenth : 3 * tenth], samples[-tenth:]
    return [
        name
        for name in ("seconds", "memory", "state", "kept", "joined", "outputs")
        if max(getattr(s, name) for s in late) > SLACK * max(getattr(s, name) for s in early)
    ]


def plot(samples: Sequence[Sample], prefix: str) -> None:
    """Draws the samples into PREFIX.png."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 6), sharex=True)
    parts = {"seconds": "s a batch", "memory": "MiB resident", "state": "MiB of state", "kept": "documents kept"}
    for axis, (name, title) in zip(axes.flat, parts.items(), strict=True):
        scale = 1 << 20 if name in ("memory", "state") else 1
        axis.plot([s.documents for s in samples], [getattr(s, name) / scale for s in samples])
        axis.set_title(title)
        axis.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(f"{prefix}.png")


def main() -> None:
    description = "measures whether a long run stays small"
    parser = argparse.ArgumentParser(prog="mmqjp bench flat-state", description=description)
    parser.add_argument("--documents", type=int, default=100_000, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", metavar="PREFIX")
    options = parser.parse_args()
    samples = []
    print(f"{'documents':>10} {'s/batch':>8} {'MiB':>6} {'state MiB':>9} {'kept':>7} {'joined':>7} {'outputs':>8}")
    for s in measure(options.documents):
        samples.append(s)
        sizes = f"{s.memory >> 20:>6,} {s.state / (1 << 20):>9,.1f} {s.kept:>7,} {s.joined:>7,} {s.outputs:>8,}"
        print(f"{s.documents:>10,} {s.seconds:>8.3f} {sizes}", flush=True)
    if options.json is not None:
        options.json.write_text("".join(json.dumps(asdict(sample)) + "\n" for sample in samples))
    if options.plot is not None:
        plot(samples, options.plot)
    if names := grown(samples):
        sys.exit(f"not flat: {', '.join(names)}")


if __name__ == "__main__":
    main()
