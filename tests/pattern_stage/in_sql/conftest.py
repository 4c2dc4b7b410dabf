"""The databases that replay statements."""

from __future__ import annotations

import pytest

from pattern_stage.in_sql.kernel import Database, DuckDBDatabase, SparkDatabase


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.soak])])
def database(request: pytest.FixtureRequest) -> Database:
    """DuckDB, and in the long run Spark."""
    if request.param == "duckdb":
        return DuckDBDatabase()
    return SparkDatabase(request.getfixturevalue("spark"))
