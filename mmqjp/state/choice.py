"""Chooses the engine that "auto" stands for: that of the store, else Spark if it is at hand or needed, else DuckDB."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from join_stage.store.protocol import DUCKDB_FILE, SPARK_MANIFESTS
from join_stage.store.spark.running import has_session, runs_in_submit

AUTO, DUCKDB, SPARK = "auto", "duckdb", "spark"

ENGINES = (AUTO, DUCKDB, SPARK)
"""The names that an engine may be asked for by."""

MOST_FOR_DUCKDB = 256 << 20
"""The most bytes of documents for which DuckDB is chosen."""

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine, and why it was chosen; `why` is empty if it was asked for."""

    engine: str
    why: str = ""


def choose(
    engine: str = AUTO,
    state: Path | None = None,
    asked_by: str | None = None,
    documents: int | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    session_runs: Callable[[], bool] | None = None,
    most: int = MOST_FOR_DUCKDB,
) -> Choice:
    """Returns the engine for a name of ENGINES.

    `asked_by` names what only Spark can do, such as the option --master. `documents` is the size of the documents in
    bytes, if it is known.
    """
    if engine != AUTO:
        return Choice(engine)
    if state is not None and (stored := stored_engine(state)) is not None:
        return Choice(stored, f"the store in {state} is on it")
    if asked_by is not None:
        return Choice(SPARK, f"{asked_by} is given")
    if runs_in_submit(environ):
        return Choice(SPARK, "spark-submit started this process")
    if (session_runs or has_session)():
        return Choice(SPARK, "this process has a Spark session")
    if documents is not None and documents > most:
        return Choice(SPARK, f"the documents have more than {most // MIB} MiB")
    return Choice(DUCKDB, "nothing asks for spark" if documents is None else f"{most // MIB} MiB of documents or less")


def stored_engine(state: Path) -> str | None:
    """Returns the engine of the store in a directory, `duckdb` or `spark`, or None if there is no store."""
    if (state / DUCKDB_FILE).exists():
        return DUCKDB
    return SPARK if (state / SPARK_MANIFESTS).exists() else None
