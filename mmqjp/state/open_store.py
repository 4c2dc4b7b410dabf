"""Opens what an engine runs on: a Spark session, and the store with its join engine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import InvalidValue
from join_stage.joiner import JoinEngine
from mmqjp.state.choice import SPARK, stored_engine
from mmqjp.tables.store_schema import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_session(engine: str | SparkSession, master: str | None) -> SparkSession:
    """Returns the Spark session that `engine` is or names.

    Raises JavaNotFound if Spark cannot start, OtherSession if a session with another master runs, and InvalidValue for
    an unknown engine.
    """
    if not isinstance(engine, str):
        return engine
    if engine != "spark":
        raise InvalidValue(f"an engine is 'auto', 'duckdb', 'spark' or a SparkSession, not {engine!r}")
    from join_stage.store.spark.start import spark_session

    return spark_session(master)


def directory_bytes(directory: Path) -> int:
    """Returns the total size of the files in a directory. Ignores files that vanish meanwhile."""
    size = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def open_store(
    session: SparkSession | None, state: Path | None, plan: str, cache_bytes: int, *, read_only: bool = False
) -> JoinEngine:
    """Opens the store and its join engine: on Spark if there is a session, otherwise on DuckDB. To read only, DuckDB
    opens stores of both engines.

    Raises StoreError, UnknownPlan, and InvalidValue for `read_only` without a state directory.
    """
    if read_only:
        return _open_reader(session, state)
    if session is None:
        from join_stage.duckdb_engine import DuckDBEngine

        return DuckDBEngine(state, plan, schema=SCHEMA, cache_bytes=cache_bytes)
    from join_stage.spark.engine import SparkEngine

    return SparkEngine(session, state, plan, schema=SCHEMA, cache_bytes=cache_bytes)


def _open_reader(session: SparkSession | None, state: Path | None) -> JoinEngine:
    if state is None:
        raise InvalidValue("a read-only engine needs a state directory: name one")
    if session is None and stored_engine(state) == SPARK:
        from join_stage.duckdb_files import DuckDBFilesReader

        return DuckDBFilesReader(SCHEMA, state)
    if session is None:
        from join_stage.duckdb_reader import DuckDBReader

        return DuckDBReader(SCHEMA, state)
    from join_stage.spark.reader import SparkReader

    return SparkReader(session, SCHEMA, state)
