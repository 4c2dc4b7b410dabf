"""From bytes to outputs: all queries at once beside one query at a time, and beside a program written by hand.

`whole-path` has the items and queries of `bench.workload`; Sequential runs a sample of the queries alone, scaled up to
all. `expert` has subscriptions to one channel each, in turns with the program that an expert would write for them.
"""

import json
import re
import statistics
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
from lxml import etree

from bench import harness
from bench.harness import Line, columns
from bench.plots import Panel, PlotSeries, draw_panels
from bench.services import percentile
from bench.workload import HOUR, LONGEST_WINDOWS, VARIANTS, Parameters, items, parameters, queries, script_of
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

_cpu = partial(harness.seconds_of, clock=time.process_time)

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
ITEMS, QUICK_ITEMS, ROUNDS = 20_000, 5_000, 3


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


_TABLES = {
    "items": "doc BIGINT, t BIGINT, channel TEXT, url TEXT, title TEXT",
    "authors": "doc BIGINT, author TEXT",
    "links": "doc BIGINT, href TEXT",
    "near": "one BIGINT, other BIGINT",
}
_JOINS = {
    "title": "items l JOIN items r ON r.title = l.title",
    "author": "items l JOIN authors a ON a.doc = l.doc JOIN authors b USING (author) JOIN items r ON r.doc = b.doc",
    "mention": "items l JOIN links k ON k.href = l.url JOIN items r ON r.doc = k.doc",
}
_THIRD = {
    "title": "items x ON x.title = r.title",
    "author": "authors d ON d.author = b.author JOIN items x ON x.doc = d.doc",
    "mention": "links m ON m.href = k.href JOIN items x ON x.doc = m.doc",
}
_KEYS = {"title": "l.title", "author": "a.author", "mention": "l.url"}


class Expert:
    """The program an expert would write by hand: lxml, three joins in DuckDB, whose pairs are joined with a table of
    parameters, and lines of pieces that are escaped once. Near titles are found by a prefix filter, whose rarest words
    are those of the first batch. Close it."""

    def __init__(self, subscriptions: Sequence[Parameters], lines: Path) -> None:
        self._connection, self._variant = duckdb.connect(), subscriptions[0].variant
        rows = [asdict(one) | {"width": one.hours * HOUR} for one in subscriptions]
        self._connection.register("given", pa.Table.from_pylist(rows))
        self._connection.execute("CREATE TABLE parameters AS SELECT * FROM given")
        self._connection.execute("".join([f"CREATE TABLE {name} ({schema});" for name, schema in _TABLES.items()]))
        self._known = list[tuple[int, int, str, str, str]]()  # documents: interval, id, stream and body as in lines
        self._told, self._words = set[tuple[str, str]](), list[frozenset[str]]()
        self._with_key, self._counts = defaultdict[str, list[int]](list), Counter[str]()
        self._lines = lines.open("wb")

    def process(self, batch: Documents) -> None:
        first, once = len(self._known), self._variant == "once"
        for name, rows in self._read(batch).items():
            if rows:
                arrived = pa.table([*map(pa.array, zip(*rows, strict=True))], [*"abcde"[: len(rows[0])]])
                self._connection.register("arrived", arrived)
                self._connection.execute(f"INSERT INTO {name} SELECT * FROM arrived")
        line = lru_cache(maxsize=None)(self._pieces)
        for kind in _JOINS:
            found = self._connection.execute(self._statement(kind, first, batch[0].t0))
            while rows := found.fetchall() if once else found.fetchmany(10_000):
                pieces = ((name, *line(*docs)) for name, *docs in (self._not_told(rows) if once else rows))
                text = "".join([f'{{"query": "{name}{head}{name}{rest}' for name, head, rest in pieces])
                self._lines.write(text.encode())

    def _read(self, batch: Documents) -> dict[str, list[Any]]:
        rows: dict[str, list[Any]] = {name: [] for name in _TABLES}
        for doc, one in enumerate(batch, len(self._known)):
            root = etree.fromstring(one.xml_bytes())
            texts = {node.tag: node.text or "" for node in root.iterchildren("item_url", "channel_url", "title")}
            title = texts["title"].lower() if self._variant in ("second", "near") else texts["title"]
            rows["items"].append((doc, one.t0, texts["channel_url"], texts["item_url"], title))
            rows["authors"] += [(doc, node.text) for node in root.iterchildren("author")]
            rows["links"] += [(doc, node.get("href")) for node in root.iterchildren("link")]
            body = json.dumps(etree.tostring(root, encoding="unicode"), ensure_ascii=False)[1:-1]
            self._known.append((one.t0, one.t1, json.dumps(one.id), json.dumps(one.stream), body))
        if self._variant == "near":
            rows["near"] += self._near([row[4] for row in rows["items"]])
        return rows

    def _near(self, titles: Sequence[str]) -> Iterator[tuple[int, int]]:
        first = len(self._words)
        self._words += [frozenset(re.findall("[0-9a-z]+", title)) for title in titles]
        if not first:
            self._counts.update(chain.from_iterable(self._words))
        for doc, words in enumerate(self._words[first:], first):
            since = bisect_left(self._known, (self._known[doc][0] - LONGEST_WINDOWS["title"] * HOUR,))
            met = set[int]()
            for key in sorted(words, key=lambda word: (self._counts[word], word))[: len(words) // 5 + 1]:
                with_key = self._with_key[key]
                met.update(with_key[bisect_left(with_key, since) :])
                with_key.append(doc)
            pairs = ((one, len(words & self._words[one]), len(words) + len(self._words[one])) for one in met)
            yield from ((one, doc) for one, common, both in pairs if 9 * common >= 4 * both)  # 4 of 5 are common

    def _statement(self, kind: str, first: int, begin: int) -> str:
        joins, docs, more, width = _JOINS[kind], ["l", "r"], "", LONGEST_WINDOWS[kind] * HOUR
        if self._variant == "second" and kind != "author":
            more = " AND l.channel <> r.channel"
        elif self._variant == "near" and kind == "title":
            joins = "items l JOIN near n ON n.one = l.doc JOIN items r ON r.doc = n.other"
        elif self._variant == "three":
            joins, docs, more = f"{joins} JOIN {_THIRD[kind]}", ["l", "r", "x"], " AND r.t < x.t"
        last, keys = docs[-1], f", list({_KEYS[kind]}) AS keys" if self._variant == "once" else ""
        columns = ", ".join([f"{last}.t - l.t AS apart", "l.channel", *(f"{one}.doc AS {one}" for one in docs)])
        where = f"{last}.doc >= {first} AND l.t >= {begin - width} AND l.t < r.t AND apart <= {width}{more}"
        pairs = f"SELECT {columns}{keys} FROM {joins} WHERE {where} GROUP BY ALL"
        near = f"p.kind = '{kind}' AND p.channel = s.channel AND s.apart <= p.width"
        return f"SELECT p.name, s.* EXCLUDE (apart, channel) FROM ({pairs}) s JOIN parameters p ON {near}"

    def _not_told(self, rows: list[Any]) -> Iterator[tuple[str, int, int]]:
        """The rows with a key that was not told before, in the order of output lines."""
        for name, *pair, keys in sorted(rows, key=lambda row: (row[2], *(self._known[doc][2] for doc in row[1:3]))):
            if not self._told.issuperset(own := {(name, key) for key in keys}):
                self._told |= own
                yield name, pair[0], pair[1]

    def _pieces(self, *docs: int) -> tuple[str, str]:
        """The line of some documents, without the query's name, which comes before each piece."""
        begins, ends, ids, streams, bodies = zip(*(self._known[doc] for doc in docs), strict=True)
        t0, t1, names = begins[0], ends[-1], f'"documents": [{", ".join(ids)}], "streams": [{", ".join(streams)}]'
        rest = f'\\" t0=\\"{t0}\\" t1=\\"{t1}\\">{"".join(bodies)}</match>"}}\n'
        return f'", "t0": {t0}, "t1": {t1}, {names}, "xml": "<match query=\\"', rest

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


def run_engine(
    engine: str, plan: str, batches: Batches, singles: Documents, subscriptions: Sequence[Parameters], lines: Path
) -> ExpertRun:
    with Session(engine, plan=plan) as opened:
        registering = _cpu(partial(opened.subscribe, script_of(subscriptions))) + _cpu(opened.registry.flush)
        sink = GrowingFile(lines, Position())
        sink.prepare(list)
        run = ExpertRun(*_clocked(lambda batch: sink.write(opened.process(batch)), batches, singles), registering)
        sink.close()
        return run


def _clocked(process: Callable[[Documents], object], batches: Batches, singles: Documents) -> tuple[float, list[float]]:
    with gc_frozen():
        together = sum(_cpu(partial(process, batch)) for batch in batches)
        return together, [_cpu(partial(process, [document])) for document in singles]


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
        "document_p95_ms": statistics.median(percentile(run.singles, 95) for run in ours) * 1000,
        "expert_document_ms": theirs * 1000,
        "registering": statistics.median(run.registering for run in ours),
    }
    return [Line("expert", about, engine, plan, seconds, rows, "expert", baseline / seconds, details=details)]


EXPERT_COLUMNS = columns(
    "variant | queries | items | lines = rows | seconds of CPU = seconds | items/s = items_a_second | "
    "expert, s = expert | over expert = over_expert | one document, ms = document_ms | p95 = document_p95_ms | "
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
