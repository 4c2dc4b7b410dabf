"""From bytes to outputs: all queries at once beside one query at a time, and beside a program written by hand.

`whole-path` has the items and queries of `bench.workload`; Sequential runs a sample of the queries alone, scaled up to
all. `expert` has subscriptions to one channel each, in turns with the program that an expert would write for them.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from lxml import etree

from bench import harness
from bench.harness import Line, columns
from bench.plots import Panel, PlotSeries, draw_panels
from bench.workload import (
    HOUR,
    VARIANTS,
    FieldDatabase,
    Parameters,
    items,
    parameters,
    queries,
    script_of,
    tables_of,
)  # fmt: skip
from common.tools import gc_frozen
from feeds.documents import Document
from join_stage.plans import DEFAULT_PLAN
from mmqjp.answers.fan_out import Position
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.sinks.files import GrowingFile
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Script

BATCH = 500

Documents = Sequence[Document]
Batches = Sequence[Documents]


@dataclass(frozen=True)
class WholePathCase:
    queries: int
    items: int
    sample: int = 100
    rounds: int = 3


def measure_whole_path(case: WholePathCase, engine: str) -> Line:
    documents = list(items(case.items))
    texts = [document.xml_bytes() for document in documents]
    script = parse_script(queries(case.queries))
    names = script.names()
    # A reader of a PUBLISHed stream means nothing alone.
    alone = [place for place, query in enumerate(script.queries) if "same_story/" not in to_xscl(query)]
    sample = sorted(Random(3).sample(alone, min(case.sample, len(alone))))
    together, floors = [], []
    outputs: list[Output] = []
    for _ in range(case.rounds):
        floors.append(harness.seconds_of(partial(harness.parse_floor, texts)))
        with Session(engine) as opened:
            opened.ensure(script)
            seconds, outputs = harness.timed(partial(_process, opened, documents))
        together.append(seconds)
    by_query: dict[str, list[Output]] = {}
    for output in outputs:
        by_query.setdefault(output.query, []).append(output)
    sequential = 0.0
    for place in sample:
        with Session(engine) as opened:
            name = opened.ensure(Script((script.queries[place],), script.namespaces))[0]
            seconds, found = harness.timed(partial(_process, opened, documents))
        sequential += seconds
        expected = _rows(by_query.get(names[place], []), names[place])
        assert _rows(found, name) == expected, f"{names[place]} differs"
    seconds, scaled = statistics.median(together), sequential * case.queries / len(sample)
    about = {"queries": case.queries, "items": case.items}
    return Line(
        "whole-path", about, engine, DEFAULT_PLAN, seconds, len(outputs), "sequential", scaled / seconds,
        statistics.median(floors), len(sample) < case.queries,
    )  # fmt: skip


def _process(engine: Session, documents: Documents) -> list[Output]:
    return [o for start in range(0, len(documents), BATCH) for o in engine.process(documents[start : start + BATCH])]


def _rows(outputs: Iterable[Output], name: str) -> list[tuple[object, ...]]:
    return sorted(
        (o.t0, o.t1, o.documents, tuple(o.nodes.items()), o.xml.replace(f'query="{name}"', "")) for o in outputs
    )


WHOLE_PATH_COLUMNS = columns(
    "queries | items | outputs = rows | seconds | items/s | over lxml floor = over_floor | "
    "times faster than sequential = marked",
    **{"items/s": lambda line: line.number("items") / line.seconds},
)


def bench_whole_path() -> None:
    parser = harness.bare_parser("whole-path", "the whole path")
    parser.add_argument("--engine", choices=harness.ENGINES, default="duckdb")
    numbers = [10, 100, 1000, 5000]
    parser.add_argument("--queries", type=harness.integers, default=numbers, metavar="N,N", help="numbers of queries")
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--sample", type=int, default=100, help="number of queries that are run alone")
    options = parser.parse_args()
    cases = [WholePathCase(count, options.items, options.sample) for count in options.queries]
    lines = [measure_whole_path(case, options.engine) for case in harness.with_progress(cases)]
    harness.print_table(lines, f"the whole path, {options.engine}", WHOLE_PATH_COLUMNS)
    if options.json:
        harness.write_json(lines, options.json)


NUMBERS, QUICK_NUMBERS, VARIANT_NUMBER = [1, 100, 1_000, 10_000], [1, 1_000], 1_000
ITEMS, QUICK_ITEMS = 20_000, 5_000
ROUNDS = 3


@dataclass(frozen=True)
class ExpertCase:
    queries: int
    variant: str = "second"
    items: int = ITEMS
    batch: int = 5_000
    singles: int = 200


@dataclass(frozen=True)
class ExpertRun:
    seconds: float
    singles: list[float]
    registering: float = 0.0


_LEFT = "items l ON l.channel = p.channel JOIN "
_JOINS = {
    "title": _LEFT + "items r ON r.title = l.title",
    "author": _LEFT + "authors a ON a.doc = l.doc JOIN authors b ON b.author = a.author JOIN items r ON r.doc = b.doc",
    "mention": _LEFT + "links k ON k.href = l.url JOIN items r ON r.doc = k.doc",
}
_THIRD = {
    "title": "items x ON x.title = r.title",
    "author": "authors d ON d.author = b.author JOIN items x ON x.doc = d.doc",
    "mention": "links m ON m.href = k.href JOIN items x ON x.doc = m.doc",
}
_KEYS = {"title": "l.title", "author": "a.author", "mention": "l.url"}


class Expert:
    """The program an expert would write by hand: lxml, three joins in DuckDB, a table of parameters. Close it."""

    def __init__(self, subscriptions: Sequence[Parameters], lines: Path) -> None:
        self._database, self._variant = FieldDatabase(), subscriptions[0].variant
        self._told = set[tuple[str, str]]()
        rows = [asdict(one) | {"width": one.hours * HOUR} for one in subscriptions]
        self._database.connection.register("given", pa.Table.from_pylist(rows))
        self._database.connection.execute("CREATE TABLE parameters AS SELECT * FROM given")
        self._documents, self._bodies = list[Document](), list[str]()
        self._lines = lines.open("wb")

    def process(self, batch: Documents) -> None:
        self._documents += batch
        roots = [etree.fromstring(one.xml_bytes()) for one in batch]
        self._bodies += [etree.tostring(root, encoding="unicode") for root in roots]
        tables = tables_of(zip(batch, roots, strict=True), self._database.documents)
        if self._variant == "second":  # in which titles are equal in lower case
            items = tables["items"]
            place = items.schema.get_field_index("title")
            tables["items"] = items.set_column(place, "title", pc.utf8_lower(items["title"]))
        first = self._database.insert_tables(tables, len(batch))
        for kind in _JOINS:
            found = self._database.connection.execute(self._statement(kind, first))
            while rows := found.fetchall() if self._variant == "once" else found.fetchmany(10_000):
                told = self._not_told(rows) if self._variant == "once" else rows
                self._lines.write("".join(self._line(*row) for row in told).encode())

    def _statement(self, kind: str, first: int) -> str:
        joins, columns, last, more, group = _JOINS[kind], "l.doc, r.doc", "r", "", ""
        if self._variant == "second" and kind != "author":
            more = " AND l.channel <> r.channel"
        elif self._variant == "three":
            joins, columns, last, more = f"{joins} JOIN {_THIRD[kind]}", "l.doc, r.doc, x.doc", "x", " AND r.t < x.t"
        elif self._variant == "once":
            columns, group = f"l.doc, r.doc, list(DISTINCT {_KEYS[kind]})", " GROUP BY p.name, l.doc, r.doc"
        where = f"p.kind = '{kind}' AND {last}.doc >= {first} AND l.t < r.t AND {last}.t - l.t <= p.width{more}"
        return f"SELECT DISTINCT p.name, {columns} FROM parameters p JOIN {joins} WHERE {where}{group}"

    def _not_told(self, rows: list[Any]) -> Iterator[tuple[str, int, int]]:
        """The rows with a key that was not told before, in the order of output lines."""
        for name, *pair, keys in sorted(rows, key=lambda row: (row[2], *(self._documents[doc].id for doc in row[1:3]))):
            if not self._told.issuperset(own := {(name, key) for key in keys}):
                self._told |= own
                yield name, pair[0], pair[1]

    def close(self) -> None:
        self._lines.close()
        self._database.connection.close()

    def _line(self, name: str, *docs: int) -> str:
        found = [self._documents[doc] for doc in docs]
        t0, t1, body = found[0].t0, found[-1].t1, "".join([self._bodies[doc] for doc in docs])
        xml = f'<match query="{name}" t0="{t0}" t1="{t1}">{body}</match>'
        given = {"documents": [one.id for one in found], "streams": [one.stream for one in found]}
        return json.dumps({"query": name, "t0": t0, "t1": t1, **given, "xml": xml}, ensure_ascii=False) + "\n"


def run_engine(
    engine: str, plan: str, batches: Batches, singles: Documents, subscriptions: Sequence[Parameters], lines: Path
) -> ExpertRun:
    with Session(engine, plan=plan) as opened:

        def register() -> None:
            opened.subscribe(script_of(subscriptions))
            opened.registry.flush()

        registering = harness.seconds_of(register, time.process_time)
        sink = GrowingFile(lines, Position())
        sink.prepare(list)
        with gc_frozen():
            run = ExpertRun(*_clocked(lambda batch: sink.write(opened.process(batch)), batches, singles), registering)
        sink.close()
        return run


def _clocked(process: Callable[[Documents], object], batches: Batches, singles: Documents) -> tuple[float, list[float]]:
    def seconds(batch: Documents) -> float:
        return harness.seconds_of(partial(process, batch), time.process_time)

    return sum(map(seconds, batches)), [seconds([document]) for document in singles]


def compared_lines(path: Path) -> Iterator[tuple[object, ...]]:
    with path.open("rb") as lines:
        for o in map(json.loads, lines):
            yield o["query"], o["t0"], o["t1"], *o["documents"], *o["streams"], o["xml"]


def line_digests(path: Path) -> list[bytes]:
    """The digests of a file's lines, sorted: the lines themselves may be too many for the memory."""
    return sorted(blake2b(repr(line).encode(), digest_size=16).digest() for line in compared_lines(path))


def measure_expert(
    case: ExpertCase, engine: str = "duckdb", plan: str = DEFAULT_PLAN, rounds: int = ROUNDS
) -> list[Line]:
    documents = list(items(case.items + case.singles))
    batches = [documents[start : min(start + case.batch, case.items)] for start in range(0, case.items, case.batch)]
    singles, subscriptions = documents[case.items :], parameters(case.queries, variant=case.variant)
    ours, experts, rows = list[ExpertRun](), list[ExpertRun](), 0
    with TemporaryDirectory(prefix="mmqjp-expert-") as directory:
        for number in range(rounds):
            mine, other = Path(directory) / f"ours{number}", Path(directory) / f"expert{number}"
            ours.append(run_engine(engine, plan, batches, singles, subscriptions, mine))
            with closing(Expert(subscriptions, other)) as expert:
                experts.append(ExpertRun(*_clocked(expert.process, batches, singles)))
            if number == 0:
                expected, found = line_digests(other), line_digests(mine)
                assert found == expected, "the engine and the expert write different lines"
                rows = len(found)
            mine.unlink()
            other.unlink()
    seconds, baseline = (statistics.median(run.seconds for run in runs) for runs in (ours, experts))
    one, theirs = (statistics.median(second for run in runs for second in run.singles) for runs in (ours, experts))
    about = {"variant": case.variant, "queries": case.queries, "items": case.items, "batch": case.batch}
    details = {
        "items_a_second": case.items / seconds,
        "expert": baseline,
        "over_expert": seconds / baseline,
        "document_ms": one * 1000,
        "expert_document_ms": theirs * 1000,
        "registering": statistics.median(run.registering for run in ours),
    }
    return [Line("expert", about, engine, plan, seconds, rows, "expert", baseline / seconds, details=details)]


EXPERT_COLUMNS = columns(
    "variant | queries | items | lines = rows | seconds of CPU = seconds | items/s = items_a_second | "
    "expert, s = expert | over expert = over_expert | one document, ms = document_ms | "
    "expert, ms = expert_document_ms | registering, s = registering"
)


def draw_expert(lines: Sequence[Line], prefix: Path) -> None:
    rates = [
        PlotSeries("mmqjp", "items_a_second", "D-"),
        PlotSeries("by hand", lambda line: line.number("items") / line.number("expert"), "s:"),
    ]
    times = [PlotSeries("mmqjp", "document_ms", "D-"), PlotSeries("by hand", "expert_document_ms", "s:")]
    panels = [
        Panel("queries", "queries", "items a second of CPU", rates, "xy"),
        Panel("queries", "queries", "ms of CPU for one document", times),
    ]
    draw_panels(lines, prefix, panels)


def bench_expert() -> None:
    parser = harness.engine_parser("expert", "from bytes to lines, beside a program written by hand")
    options = harness.parse_options(parser)
    numbers = options.queries or (QUICK_NUMBERS if options.quick else NUMBERS)
    plan, count = options.plan or DEFAULT_PLAN, QUICK_ITEMS if options.quick else ITEMS
    cases = [ExpertCase(number, "second", count) for number in numbers]
    if not options.queries:
        cases += [ExpertCase(VARIANT_NUMBER, variant, count) for variant in VARIANTS if variant != "second"]
    lines = [line for case in harness.with_progress(cases) for line in measure_expert(case, options.engine, plan)]
    harness.report(lines, f"beside a program written by hand, {options.engine}", EXPERT_COLUMNS, options, draw_expert)
