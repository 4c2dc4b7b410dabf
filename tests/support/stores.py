"""Parquet stores and their tables, opened as the engine on Spark opens them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from join_stage.state_tables import FLAT_STORE
from join_stage.store.spark.parquet_store import ParquetStore
from mmqjp.tables.store_schema import SCHEMA

TABLES = (FLAT_STORE | SCHEMA).tables
"""The tables of a store, including those of the join state."""


def parquet_store(directory: Path | None, now: Callable[[], int] = lambda: time.time_ns() // 1000) -> ParquetStore:
    """A Parquet store in a directory, or in a temporary one."""
    return ParquetStore(FLAT_STORE | SCHEMA, directory, now)
