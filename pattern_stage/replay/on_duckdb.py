"""Questions in SQL, answered by DuckDB over Arrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa


class DuckDBDatabase:
    """Implements `pattern_stage.replay.database.Database`."""

    def __init__(self, set_up: Callable[[duckdb.DuckDBPyConnection], object] = lambda connection: None) -> None:
        """`set_up` gets each connection first."""
        self._set_up = set_up

    def ask(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Returns the answer to a question over tables of these names."""
        # By default a database in memory spills into the working directory, which is the user's.
        with (
            TemporaryDirectory(prefix="mmqjp-") as spilled,
            duckdb.connect(config={"temp_directory": spilled}) as connection,
        ):
            self._set_up(connection)
            for name, table in tables.items():
                connection.register(name, table)
            return connection.sql(sql).to_arrow_table()
