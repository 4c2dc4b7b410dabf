"""Event patterns beside what else one would take, and where they are answered.

`peers` compares with Flink's MATCH_RECOGNIZE, one for each statement, and with an expert's SQL on DuckDB, one query
over a table of parameters, over the same events of 200 keys, a second apart. Beside Flink, both are processes, from a
CSV file to a file of rows; beside the expert, both are in this process and get all events in memory at once.

`places` compares the driver, executors of Spark, and SQL on DuckDB and Spark, for events that come at once, as in a
finite run, or in intervals, as in a service.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, get_args

import duckdb
import numpy as np
import pyarrow as pa
from pyarrow import compute
from pyarrow import csv as arrow_csv

from bench import patterns_kernel as kit
from bench import peer_protocol
from bench.harness import Line, columns, compared_turns, timed, with_progress
from bench.patterns_kernel import intervals
from bench.peers import PeerSystem, run_program
from common.arrays import Ints
from common.bounds import BEGINNING
from mmqjp.answers.events_run import DRIVER, EXECUTORS, SQL, MakeKernel, kernels
from pattern_stage.columns import Columns
from pattern_stage.kernel import Kernel, Results
from pattern_stage.values import Texts
from xscl.algebra.events import Schema, Statement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STREAMS: dict[str, Schema] = {"A": (("k", "string"), ("x", "number")), "B": (("b", "string"), ("y", "number"))}

TASK_INTERVAL = 5_000  # seconds of an interval


def task_statements(task: peer_protocol.PatternTask) -> list[str]:
    texts = []
    for low, high in task.ranges:
        first = f"FILTER {{x >= {low!r} AND x < {high!r}}} A"
        if task.template == "first after":
            texts.append(f"{first} NEXT {{k = b AND y > x}} B WITHIN 1 d")
        else:
            rising = f"{first} FOLD {{$2.k = $.k, $2.x > $.x, }} A NEXT {{$2.k = $1.k}} A WITHIN 1 d"
            texts.append(f"FILTER {{x <= x_1}} ({rising})")
    return texts


def task_streams(events: pa.Table) -> dict[str, kit.StreamEvents]:
    streams = {}
    for name, schema in _STREAMS.items():
        rows = events.filter(compute.equal(events["kind"], name))
        keys = np.array([int(key[1:]) for key in rows["k"].to_pylist()], np.int64)
        times = (rows["t"].to_numpy() + 1) * kit.SECOND
        streams[name] = kit.StreamEvents(schema, times, rows["id"].to_numpy(), (keys, rows["x"].to_numpy()))
    return streams


ReadyKernel = tuple[Kernel, dict[str, Columns]]  # A kernel that has statements, and the events for it


def ready_kernel(statements: Sequence[Statement], streams: Mapping[str, kit.StreamEvents]) -> ReadyKernel:
    kernel = kit.add_all(Kernel(Texts(), kit.NumberedLineage()), statements)
    return kernel, {name: events.encoded(kernel.texts) for name, events in streams.items()}


def kernel_rows(ready: ReadyKernel, interval: int) -> Ints:
    kernel, events = ready
    found = [np.zeros((0, 4), np.int64)]

    def take(results: Results) -> None:
        rows = np.zeros((len(results), 4), np.int64)
        parts = results.events.parts
        rows[:, 0], rows[:, 1 : 1 + parts.shape[1]] = results.statements, parts[results.at]
        found.append(rows)

    kit.feed(kernel, events, interval * kit.SECOND, take)
    return np.concatenate(found)


def run_mmqjp_task(directory: Path) -> None:
    options = arrow_csv.ReadOptions(column_names=list(peer_protocol.EVENT_COLUMNS))
    streams = task_streams(arrow_csv.read_csv(directory / "events.csv", options))
    statements = kit.lower_texts(task_statements(peer_protocol.read_task(directory)), _STREAMS)
    peer_protocol.finish_task(directory, kernel_rows(ready_kernel(statements, streams), TASK_INTERVAL).tolist())


_STARTS = """
    WITH starts AS (
        SELECT * FROM events e
        WHERE kind = 'A' AND EXISTS (SELECT 1 FROM parameters WHERE e.x >= low AND e.x < high)
    ), pairs AS (
        SELECT l.id, l.x, r.id AS b, r.t FROM starts l JOIN events r
        ON r.kind = 'B' AND r.k = l.k AND r.x > l.x AND r.t > l.t AND r.t <= l.t + 86400
    )"""
_PARAMETERS = "JOIN parameters ON x >= low AND x < high"

SQL_FORMS: dict[str, dict[str, str]] = {
    "first after": {
        "rank": f"""{_STARTS}, ranked AS (
            SELECT id, x, b, rank() OVER (PARTITION BY id ORDER BY t) AS place FROM pairs
        ) SELECT n, id, b, 0 FROM ranked {_PARAMETERS} WHERE place = 1""",
        "arg_min": f"""{_STARTS}, firsts AS (
            SELECT id, any_value(x) AS x, arg_min(b, t) AS b FROM pairs GROUP BY id
        ) SELECT n, id, b, 0 FROM firsts {_PARAMETERS}""",
    },
    "rising runs": {
        "lead": f"""
        WITH steps AS (
            SELECT *, lead(x) OVER later > x AS rises, lead(id) OVER later AS following, lead(t) OVER later AS end_t
            FROM events WHERE kind = 'A' WINDOW later AS (PARTITION BY k ORDER BY t)
        ), runs AS (
            SELECT id, x, t, rises, min(CASE WHEN NOT rises THEN id END) OVER rest AS latest,
                min(CASE WHEN NOT rises THEN following END) OVER rest AS following,
                min(CASE WHEN NOT rises THEN end_t END) OVER rest AS end_t
            FROM steps
            WINDOW rest AS (PARTITION BY k ORDER BY t ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
        ) SELECT n, id, latest, following FROM runs {_PARAMETERS}
        WHERE rises AND following IS NOT NULL AND end_t - t <= 86400"""
    },
}
"""The forms of a template that we could think of, by name. Numbers of events ascend as their times do."""


def task_database(events: pa.Table, task: peer_protocol.PatternTask) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    low, high = zip(*task.ranges, strict=True)
    parameters = pa.table({"n": np.arange(len(low)), "low": low, "high": high})
    for name, table in (("events", events), ("parameters", parameters)):
        connection.register("given", table)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        connection.unregister("given")
    return connection


def sql_rows(connection: duckdb.DuckDBPyConnection, template: str, form: str) -> Ints:
    found = connection.execute(SQL_FORMS[template][form]).fetchnumpy()
    return np.column_stack([column.astype(np.int64) for column in found.values()])


OURS = PeerSystem("mmqjp", "mmqjp-patterns", "mmqjp", uses_ours=True)
FLINK = PeerSystem("flink", "flink-patterns", "pyflink", java=True)
KEYS = 200
PROCESS_SECONDS = 3600.0  # seconds after which a process is killed


@dataclass(frozen=True)
class PatternPeersCase:
    template: str
    queries: int
    events: int
    beside: str


def pattern_peer_cases(options: kit.PatternOptions) -> list[PatternPeersCase]:
    """Says on the standard error if Flink is left out, and why."""
    peers = ["expert", "flink"]
    if lacking := FLINK.lacking(options.flink_python or sys.executable):
        print(f"Flink is left out: {lacking}", file=sys.stderr)
        peers.remove("flink")
    numbers = options.queries or ([1, 10] if options.quick else [1, 10, 100])
    count = options.events or (10_000 if options.quick else 100_000)
    return [
        PatternPeersCase(template, number, count, beside)
        for beside in peers
        for template in peer_protocol.TASK_TEMPLATES
        for number in numbers
    ]


def peer_events(case: PatternPeersCase) -> pa.Table:
    chance = np.random.default_rng(4)
    numbers = np.arange(1, case.events + 1)
    kinds = np.where(numbers % 2, "A", "B")
    keys = [f"v{key}" for key in chance.integers(0, KEYS, case.events).tolist()]
    values = chance.random(case.events) * 100
    return pa.table(dict(zip(peer_protocol.EVENT_COLUMNS, (numbers, numbers, kinds, keys, values), strict=True)))


_TimedRows = tuple[float, set[tuple[int, ...]]]  # CPU seconds and rows
_RowsWay = Callable[[], _TimedRows]


def measure_pattern_peers(case: PatternPeersCase, python: str, turns: int) -> Iterator[Line]:
    task, events = peer_protocol.PatternTask(case.template, peer_protocol.task_ranges(case.queries)), peer_events(case)
    with TemporaryDirectory(prefix="mmqjp-patterns-") as directory:
        if case.beside == "flink":
            turns = 1  # a process of Flink takes half a minute and more
            ways: dict[str, _RowsWay] = {
                system.name: partial(_run_task, system, path, task, events, Path(directory))
                for system, path in ((OURS, sys.executable), (FLINK, python))
            }
        else:
            ways = _in_this_process(case, task, events)
        taken, rows = compared_turns(ways, turns, case, "rows")
    for line in kit.turn_lines({**asdict(case), "figure": case.beside}, taken, len(rows), case.events, "mmqjp"):
        over = {"over_ours": 1 / line.speedup} if line.speedup else {}
        yield replace(line, details={**line.details, **over})


def _in_this_process(case: PatternPeersCase, task: peer_protocol.PatternTask, events: pa.Table) -> dict[str, _RowsWay]:
    streams = task_streams(events)
    statements = kit.lower_texts(task_statements(task), _STREAMS)
    database = task_database(events, task)

    def clocked(work: Callable[[], Ints]) -> _TimedRows:
        seconds, rows = timed(work, time.process_time)
        return seconds, set(map(tuple, rows.tolist()))

    forms = {f"SQL, {form}": partial(sql_rows, database, case.template, form) for form in SQL_FORMS[case.template]}
    return {
        "mmqjp": lambda: clocked(partial(kernel_rows, ready_kernel(statements, streams), case.events + 2)),
        **{name: partial(clocked, work) for name, work in forms.items()},
    }


def _run_task(
    system: PeerSystem, python: str, task: peer_protocol.PatternTask, events: pa.Table, directory: Path
) -> _TimedRows:
    with TemporaryDirectory(dir=directory) as name:
        place = Path(name)
        task.write(place)
        rows = zip(*(column.to_pylist() for column in events.columns), strict=True)
        peer_protocol.write_table(place / "events.csv", (), rows)
        report, _ = run_program(system, place, python, PROCESS_SECONDS)
        return report["processor"], peer_protocol.read_task_rows(place)


def measure_all_peers(cases: Sequence[PatternPeersCase], options: kit.PatternOptions) -> Iterator[Line]:
    for case in with_progress(cases):
        yield from measure_pattern_peers(case, options.flink_python or sys.executable, 1 if options.quick else 5)


PEER_COLUMNS = columns(
    "template | = plan | statements = queries | beside | rows | CPU s = seconds | times our time = over_ours"
)


PlacesTemplate = Literal["first after", "rare partners", "rising runs", "rising averages"]
SQL_ON_SPARK = "sql on spark"


@dataclass(frozen=True)
class PlacesCase:
    """Statements that have an equality of all inputs and differ in a constant, over events of two streams."""

    template: PlacesTemplate
    queries: int
    events: int = 100_000
    keys: int = 200
    intervals: int = 1

    def streams(self) -> dict[str, kit.StreamEvents]:
        chance = np.random.default_rng(4)
        streams = {}
        for first, (name, schema) in enumerate(_STREAMS.items()):
            numbers = np.arange(first, self.events, 2)
            values = chance.random(len(numbers)) * 100
            attributes = (chance.integers(0, self.keys, len(numbers)), values)
            streams[name] = kit.StreamEvents(schema, (numbers + 1) * kit.SECOND, numbers, attributes)
        return streams

    def texts(self) -> Iterator[str]:
        for place in range(self.queries):
            first = f"FILTER {{(x * 1000 + {100 * place / self.queries}) % 100 < 10}}"
            match self.template:
                case "first after":
                    yield f"{first} A NEXT {{k = b AND y > x}} B WITHIN 1 d"
                case "rare partners":
                    yield f"{first} A NEXT {{k = b AND y - x > 99}} B WITHIN 1 d"
                case "rising runs":
                    yield f"{first} A FOLD {{$2.k = $.k, $2.x > $.x, }} A WITHIN 1 d"
                case "rising averages":
                    mean = "(AGGREGATE {avg(x) AS x BY k OVER 1 h} A)"
                    yield f"{first} {mean} FOLD {{$2.k = $.k, $2.x > $.x, }} {mean} WITHIN 1 d"


def places_cases(options: kit.PatternOptions) -> list[PlacesCase]:
    templates: tuple[PlacesTemplate, ...] = get_args(PlacesTemplate)
    numbers = options.queries or ([10] if options.quick else [1, 10, 100])
    base = PlacesCase("rare partners", 10, options.events or (10_000 if options.quick else 100_000))
    cases = [replace(base, template=template, queries=number) for template in templates for number in numbers]
    if not options.quick:
        cases += [replace(base, queries=number, keys=10) for number in numbers if number <= 10]
        cases += [replace(base, template=template, intervals=20) for template in templates]
    return cases


def places_ways(case: PlacesCase, session: SparkSession) -> dict[str, MakeKernel]:
    ways = {DRIVER: kernels(DRIVER, None), EXECUTORS: kernels(EXECUTORS, session)}
    if case.template in ("first after", "rare partners") and case.intervals == 1:
        ways |= {SQL: kernels(SQL, None), SQL_ON_SPARK: kernels(SQL, session)}
    return ways


def run_place(make: MakeKernel, case: PlacesCase, statements: Sequence[Statement]) -> tuple[float, list[list[int]]]:
    texts, tracked = Texts(), kit.TrackedLineage()
    kernel = make(texts, tracked.lineage)
    events = tracked.register({name: some.encoded(texts) for name, some in case.streams().items()})
    for place, statement in enumerate(statements):
        kernel.add(place, statement, BEGINNING)
    found: list[Results] = []
    begin = time.perf_counter()
    for part, until in intervals(events, -(-(case.events + 2) // case.intervals) * kit.SECOND):
        tracked.lineage.begin()
        kernel.begin(until)
        found += kernel.feed(part)
        found += kernel.end()
    seconds = time.perf_counter() - begin
    rows = [
        np.column_stack([one.statements, one.events.t0[one.at], one.events.t1[one.at], one.events.parts[one.at]])
        for one in found
    ]
    return seconds, sorted(np.concatenate(rows).tolist()) if rows else []


def measure_places(case: PlacesCase, session: SparkSession, turns: int) -> Iterator[Line]:
    """Lines of a case: medians of turns, after one that is not counted."""
    statements = kit.lower_texts(list(case.texts()), _STREAMS)
    ways = {name: partial(run_place, make, case, statements) for name, make in places_ways(case, session).items()}
    every, rows = compared_turns(ways, turns + 1, case, "results")
    taken = {name: times[1:] for name, times in every.items()}
    for line in kit.turn_lines(asdict(case), taken, len(rows), case.events, None):
        faster = None if line.plan == DRIVER else median(taken[DRIVER]) / line.seconds
        yield replace(line, baseline=DRIVER, speedup=faster)


def measure_all_places(cases: Sequence[PlacesCase], options: kit.PatternOptions) -> Iterator[Line]:
    from join_stage.store.spark.session import spark_session

    session = spark_session(app_name="places")
    try:
        for case in with_progress(cases):
            yield from measure_places(case, session, 1 if options.quick else 3)
    finally:
        session.stop()


PLACES_COLUMNS = columns(
    "template | = plan | statements = queries | keys | intervals | s = seconds | events/s = events_a_second | "
    "results = rows | times the driver's speed = speedup"
)

PEER_BENCHMARKS = {
    "places": kit.PatternBenchmark(places_cases, measure_all_places, PLACES_COLUMNS, drawn=False),
    "peers": kit.PatternBenchmark(pattern_peer_cases, measure_all_peers, PEER_COLUMNS),
}
