"""The whole path, from bytes to output documents: all queries at once, compared with one query at a time.

Items and queries are those of `bench.workload`. The floor is to parse the same documents with lxml and read
every tag. Sequential runs each of a sample of the queries alone over the same documents, scaled up to all of them.
Before a time is reported, the sample's outputs of both ways are compared row by row.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from lxml import etree
from rich.console import Console
from rich.table import Table

from bench.workload import items, queries
from feeds.documents import Document
from join_stage.protocol import DEFAULT_PLAN
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Script

BATCH = 500


@dataclass(frozen=True)
class Case:
    """How much is measured: `sample` queries run alone, `rounds` times all together."""

    queries: int
    items: int
    sample: int = 100
    rounds: int = 3


@dataclass(frozen=True)
class Measurement:
    """One line of `--json`. Seconds are medians; `speedup` is the baseline's time over this one's."""

    bench: str
    case: dict[str, int]
    engine: str
    plan: str
    seconds: float
    rows: int
    baseline: str
    speedup: float
    floor: float
    over_floor: float
    extrapolated: bool


def measure(case: Case, engine: str) -> Measurement:
    """Measures one case. Raises AssertionError if the two ways differ in any output of the sample."""
    documents = list(items(case.items))
    script = parse_script(queries(case.queries))
    names = script.names()
    # A reader of a PUBLISHed stream means nothing alone.
    alone = [place for place, query in enumerate(script.queries) if "same_story/" not in to_xscl(query)]
    sample = sorted(Random(3).sample(alone, min(case.sample, len(alone))))

    together, floors = [], []
    outputs: list[Output] = []
    for _ in range(case.rounds):
        floors.append(_floor(documents))
        with Session(engine) as opened:
            opened.ensure(script)
            elapsed, outputs = _run(opened, documents)
        together.append(elapsed)
    by_query: dict[str, list[Output]] = {}
    for output in outputs:
        by_query.setdefault(output.query, []).append(output)

    sequential = 0.0
    for place in sample:
        with Session(engine) as opened:
            name = opened.ensure(Script((script.queries[place],), script.namespaces))[0]
            elapsed, found = _run(opened, documents)
        sequential += elapsed
        assert _rows(found, name) == _rows(by_query.get(names[place], []), names[place]), f"{names[place]} differs"

    seconds, floor = statistics.median(together), statistics.median(floors)
    scaled = sequential * case.queries / len(sample)
    return Measurement(
        "whole-path",
        {"queries": case.queries, "items": case.items},
        engine,
        DEFAULT_PLAN,
        seconds,
        len(outputs),
        "sequential",
        scaled / seconds,
        floor,
        seconds / floor,
        len(sample) < case.queries,
    )


def report(measurements: Iterable[Measurement], json_file: Path | None) -> None:
    """Prints a table, and writes one JSON line for each measurement."""
    measured = list(measurements)
    table = Table(
        "queries", "items", "outputs", "seconds", "items/s", "over lxml floor", "times faster than sequential"
    )
    for m in measured:
        mark = "~" if m.extrapolated else ""
        rate = m.case["items"] / m.seconds
        table.add_row(
            f"{m.case['queries']:,}",
            f"{m.case['items']:,}",
            f"{m.rows:,}",
            f"{m.seconds:.2f}",
            f"{rate:,.0f}",
            f"{m.over_floor:.1f}",
            f"{mark}{m.speedup:,.0f}",
        )
    Console().print(table)
    if json_file is not None:
        json_file.write_text("".join(json.dumps(asdict(m)) + "\n" for m in measured), encoding="utf-8")


def _floor(documents: Sequence[Document]) -> float:
    """Seconds to parse the documents and to read every tag."""
    begin = time.perf_counter()
    for document in documents:
        for element in etree.fromstring(document.xml_bytes()).iter():
            element.tag  # noqa: B018  # reading it is the work
    return time.perf_counter() - begin


def _run(engine: Session, documents: Sequence[Document]) -> tuple[float, list[Output]]:
    """Seconds to process the documents, and their outputs."""
    outputs: list[Output] = []
    begin = time.perf_counter()
    for start in range(0, len(documents), BATCH):
        outputs += engine.process(documents[start : start + BATCH])
    return time.perf_counter() - begin, outputs


def _rows(outputs: Iterable[Output], name: str) -> list[tuple[object, ...]]:
    """The outputs without their query's name, which differs between the two ways."""
    return sorted(
        (o.t0, o.t1, o.documents, tuple(o.nodes.items()), o.xml.replace(f'query="{name}"', "")) for o in outputs
    )
