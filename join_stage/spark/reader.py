"""A store of Parquet files that is opened to be read only, as of the last batch at that time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from join_stage.only_read import OnlyRead
from join_stage.state_tables import FLAT_STORE
from join_stage.store.reading import UNBOUNDED, Bounds
from join_stage.store.schema import StoreSchema
from join_stage.store.spark.checked_snapshot import CheckedSnapshot
from join_stage.store.spark.question import SparkQuestion
from join_stage.store.spark.tables import TableViews, local_frame


class SparkReader(OnlyRead):
    """A `JoinEngine` that only reads, while others may write the store."""

    def __init__(self, session: SparkSession, schema: StoreSchema, directory: Path) -> None:
        """`schema` declares the tables beside the join state. Raises StoreError if there is no store."""
        self.schema = FLAT_STORE | schema
        self._files = CheckedSnapshot(self.schema, directory)
        self._session = session.newSession()
        self._views = TableViews(self._session, self._files)

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        self._views.refresh(sql)
        for name, table in (views or {}).items():
            local_frame(self._session, table).createOrReplaceTempView(name)
        return self._session.sql(sql).toArrow()

    def question(self, sql: str, bounds: Bounds = UNBOUNDED, *, own: bool = False) -> SparkQuestion:
        return SparkQuestion(self._session, self._files, sql, bounds)

    def read(self, table: str, columns: Sequence[str], key: str | None = None) -> pa.Table:
        return self._files.columns(table, columns, key)

    def find(self, table: str, column: str, numbers: pa.Array) -> pa.Table:
        return self._files.find(table, column, numbers)

    def highest(self, table: str, column: str) -> int:
        return self._files.highest(table, column)

    def close(self) -> None:
        """Does nothing: no file stays open."""
