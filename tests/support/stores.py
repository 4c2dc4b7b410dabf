"""Parquet stores and their tables, opened as the engine on Spark opens them, and made of stores on DuckDB."""

import time
from collections.abc import Callable
from pathlib import Path

from join_stage.protocol import FLAT_STORE
from join_stage.store.spark.parquet_store import ParquetStore
from mmqjp.engine import Session
from mmqjp.tables.schema import SCHEMA

TABLES = (FLAT_STORE | SCHEMA).tables
"""The tables of a store, including those of the join state."""


def parquet_store(directory: Path | None, now: Callable[[], int] = lambda: time.time_ns() // 1000) -> ParquetStore:
    return ParquetStore(FLAT_STORE | SCHEMA, directory, now)


def as_files(duckdb: Path, directory: Path, batches: int = 1) -> None:
    """Makes a store of files, as Spark's are, with what a store on DuckDB holds. It is written in some batches."""
    with Session("duckdb", state=duckdb) as engine:
        tables = {name: engine._store.read(name, schema.names) for name, schema in TABLES.items()}
    store = parquet_store(directory)
    for number in range(batches):
        for name, rows in tables.items():
            size = -(-len(rows) // batches)
            store.append(name, rows.slice(number * size, size))
        store.commit()
    store.close()
