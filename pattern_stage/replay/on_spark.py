"""Questions in SQL, answered by Spark."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import SparkSession


class SparkDatabase:
    """Implements `pattern_stage.replay.database.Database`."""

    def __init__(self, session: SparkSession) -> None:
        # The views of one session are not those of another.
        self._session = session.newSession()
        self._session.conf.set("spark.sql.shuffle.partitions", session.sparkContext.defaultParallelism)

    def ask(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Returns the answer to a question over tables of these names."""
        for name, table in tables.items():
            self._session.createDataFrame(table.combine_chunks()).createOrReplaceTempView(name)
        try:
            return self._session.sql(sql).toArrow()
        finally:
            for name in tables:
                self._session.catalog.dropTempView(name)
