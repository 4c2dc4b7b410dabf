"""The engines that the benchmarks of stage 2 measure, with their plans, plain SQL on them, and the timing."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import duckdb
import pyarrow as pa

from bench.stage2_queries import Registered
from bench.stage2_rows import CHUNK
from join_stage.duckdb import DuckDBEngine
from join_stage.protocol import PLANS, RESULT, JoinEngine, JoinScope
from join_stage.store.protocol import whole_batch
from mmqjp.tables.schema import SCHEMA
from templates.catalog import INFINITE
from templates.witness import Witnesses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENGINES = ("duckdb", "spark")
PATIENCE = 20.0
"""A way that takes longer, in seconds, is not measured again."""

NOTHING = JoinScope(INFINITE, frozenset())
"""The scope of documents that only become state: no streams are joined."""


def open_engine(engine: str, plan: str, directory: Path | None = None) -> JoinEngine:
    """A new engine with a plan."""
    if engine == "duckdb":
        return DuckDBEngine(directory, plan, schema=SCHEMA)
    from join_stage.spark.engine import SparkEngine

    return SparkEngine(session(), directory, plan, schema=SCHEMA)


def session() -> SparkSession:
    """The Spark session of this process, started with the settings of mmqjp if there is none."""
    from join_stage.store.spark.java import spark_session

    return spark_session()


@contextmanager
def opened(engine: str, plan: str) -> Iterator[JoinEngine]:
    """A context manager for a new engine."""
    store = open_engine(engine, plan)
    try:
        yield store
    finally:
        store.close()


def put_rows(store: JoinEngine, registered: Registered) -> None:
    """Gives all rows of R_T to an engine."""
    for template, rows in registered.tables:
        store.put_rows(template, rows)


def scope(registered: Registered) -> JoinScope:
    """All documents of the two streams, however far apart."""
    return JoinScope(INFINITE, frozenset({registered.streams}))


def become_state(store: JoinEngine, batches: Iterable[tuple[int, Witnesses]]) -> None:
    """Makes documents state, without joining them: each batch with the id of its first document."""
    for first, batch in batches:
        with whole_batch(store):
            store.join(batch, first, NOTHING)


@dataclass(frozen=True)
class Joined:
    """The cost and result of a join: `seconds` until all its rows (pair of documents, row of R_T) were listed, and
    `call` until the call returned, which may be before they are listed. `table` has the rows, if they were kept."""

    seconds: float
    call: float
    rows: int
    table: pa.Table


def timed_join(store: JoinEngine, batch: Witnesses, first: int, among: JoinScope, keep: bool = False) -> Joined:
    """Joins a batch and lists the rows. With `keep`, the result has them."""
    kept = []
    begin = time.perf_counter()
    result = store.join(batch, first, among)
    called = time.perf_counter() - begin
    for rows in result.to_batches(max_chunksize=CHUNK):
        if keep:
            kept.append(rows)
    return Joined(time.perf_counter() - begin, called, result.num_rows, pa.Table.from_batches(kept, RESULT))


def medians(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median seconds of each way, measured in turns. A way that has taken too long is not measured again."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            if sum(taken[name]) < PATIENCE:
                gc.collect()
                taken[name].append(run())
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


# ------------------------------------------------------------ plain SQL


class Sql(Protocol):
    """A database that answers one statement at a time."""

    def load(self, name: str, table: pa.Table) -> None: ...

    def materialize(self, name: str, statement: str) -> None:
        """Keeps the rows of a statement as a table."""

    def answer(self, statement: str) -> pa.Table: ...

    def close(self) -> None: ...


class DuckDBSql:
    """DuckDB with its default settings, and as many threads as mmqjp uses."""

    def __init__(self) -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET preserve_insertion_order = false")

    def load(self, name: str, table: pa.Table) -> None:
        self._connection.register("loaded", table)
        self._connection.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM loaded")
        self._connection.unregister("loaded")

    def materialize(self, name: str, statement: str) -> None:
        self._connection.execute(f"CREATE OR REPLACE TABLE {name} AS {statement}")

    def answer(self, statement: str) -> pa.Table:
        return self._connection.sql(statement).to_arrow_table()

    def prepare(self, name: str, statement: str) -> None:
        self._connection.execute(f"PREPARE {name} AS {statement}")

    def close(self) -> None:
        self._connection.close()


class SparkSql:
    """Spark with the settings of mmqjp and its tables in memory."""

    def __init__(self) -> None:
        self._session = session().newSession()
        self._session.conf.set("spark.sql.execution.arrow.localRelationThreshold", "256m")
        self._cached: dict[str, DataFrame] = {}

    def load(self, name: str, table: pa.Table) -> None:
        self._keep(name, self._session.createDataFrame(table))

    def materialize(self, name: str, statement: str) -> None:
        self._keep(name, self._session.sql(statement))

    def _keep(self, name: str, frame: DataFrame) -> None:
        frame.persist().count()  # which computes it
        frame.createOrReplaceTempView(name)
        if name in self._cached:
            self._cached[name].unpersist()
        self._cached[name] = frame

    def answer(self, statement: str) -> pa.Table:
        return self._session.sql(statement).toArrow()

    def close(self) -> None:
        for frame in self._cached.values():
            frame.unpersist()


def open_sql(engine: str) -> Sql:
    return DuckDBSql() if engine == "duckdb" else SparkSql()


def plans_of(engine: str, wanted: str | None, *, quick: bool) -> Sequence[str]:
    """The plans to measure: the chosen one, or all. With `quick`, the slowest is left out."""
    if wanted:
        return [wanted]
    return [plan for plan in PLANS if not (quick and engine == "spark" and plan == "basic")]
