"""Where event queries are answered: in the driver, on executors of Spark, or as SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from common.errors import InvalidValue

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from mmqjp.answers.patterns.kernels import Kernel, MakeKernel
    from mmqjp.answers.quota import Quota
    from pattern_stage.horizon import Settle
    from pattern_stage.limits import Limits
    from pattern_stage.lineage import Lineage
    from pattern_stage.partition.kernel import PartitionedKernel
    from pattern_stage.replay.database import Database
    from pattern_stage.values import Texts
    from xscl import Script

DRIVER, EXECUTORS, SQL = "driver", "executors", "sql"

PLACES = (DRIVER, EXECUTORS, SQL)
"""The names of places."""


def check_place(place: str, *, on_spark: bool, lasts: bool, settle: Settle) -> None:
    """Checks that event queries can be answered in a place. `lasts` says whether there is a state that stays.

    Raises:
        InvalidValue: if there is no such place here.
    """
    if place not in PLACES:
        raise InvalidValue(f"event queries are answered by one of {', '.join(PLACES)}, not {place!r}")
    if place == EXECUTORS and not on_spark:
        raise InvalidValue("only Spark has executors: answer event queries in the driver, or take the engine spark")
    if place == SQL and (lasts or settle is not None):
        raise InvalidValue(
            "SQL answers event queries once, at the end of a run that keeps no state: leave out the state, and let "
            "settle be INF"
        )


def check_backfill(place: str, script: Script, *, backfill: bool) -> None:
    """Checks that a script can be registered in a place, with a `backfill` or without.

    Raises:
        InvalidValue: if it has event queries, and these have no backfill there.
    """
    if backfill and script.event_queries and place == SQL:
        raise InvalidValue(
            "SQL answers event queries at the end of a run, and has no backfill: answer them in the driver"
        )


def kernels(place: str, session: SparkSession | None, quota: Quota | None = None) -> MakeKernel:
    """Returns what makes the kernels of a place. What the driver answers is within a quota, if there is any."""
    from mmqjp.answers.patterns.limits import limits_of
    from pattern_stage.limits import NO_LIMITS

    limits = NO_LIMITS if quota is None else limits_of(quota)
    if place == EXECUTORS and session is not None:
        return _on_executors(session, limits)
    if place == SQL:
        return _as_sql(session, limits)
    from pattern_stage.kernel import Kernel

    return partial(Kernel, limits=limits)


def _on_executors(session: SparkSession, limits: Limits) -> Callable[[Texts, Lineage], PartitionedKernel]:
    from join_stage.store.spark.loss import telling_loss
    from pattern_stage.partition.kernel import PartitionedKernel
    from pattern_stage.partition.on_spark import SparkRunner
    from pattern_stage.partition.work import Done, Told, Work

    @telling_loss
    class Runner(SparkRunner):
        def run(self, told: Told, works: Sequence[Work]) -> list[Done]:
            return super().run(told, works)

    runner = Runner(session.sparkContext)

    def make(texts: Texts, lineage: Lineage) -> PartitionedKernel:
        return PartitionedKernel(texts, lineage, runner, limits=limits)

    return make


def _as_sql(session: SparkSession | None, limits: Limits) -> MakeKernel:
    from pattern_stage.kernel import Kernel as Others
    from pattern_stage.replay.kernel import ReplayKernel
    from pattern_stage.replay.windowed import Matcher

    database = _duckdb() if session is None else _spark(session)
    matching: Callable[[Texts, Lineage], Matcher] = partial(Others, limits=limits)
    if session is not None:
        matching = _on_executors(session, limits)

    def make(texts: Texts, lineage: Lineage) -> Kernel:
        others = Others(texts, lineage, limits=limits)
        return ReplayKernel(texts, database, others, partial(matching, texts, lineage))

    return make


def _duckdb() -> Database:
    import duckdb

    from join_stage.store.duckdb_tables import set_up
    from join_stage.store.protocol import OutOfMemory
    from pattern_stage.replay.on_duckdb import DuckDBDatabase

    class Asked(DuckDBDatabase):
        def ask(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
            try:
                return super().ask(sql, tables)
            except duckdb.OutOfMemoryException as error:
                raise OutOfMemory(f"event queries as SQL take too much memory: {error}; use the driver") from error

    return Asked(set_up)


def _spark(session: SparkSession) -> Database:
    from join_stage.store.spark.loss import telling_loss
    from pattern_stage.replay.on_spark import SparkDatabase

    @telling_loss
    class Asked(SparkDatabase):
        def ask(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
            return super().ask(sql, tables)

    return Asked(session)
