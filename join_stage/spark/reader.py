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
from join_stage.store.spark.data_files import find_rows
from join_stage.store.spark.manifests import highest_number, newest_files, read_rows
from join_stage.store.spark.question import SparkQuestion
from join_stage.store.spark.snapshot import Snapshot
from join_stage.store.spark.tables import TableViews, local_frame


class SparkReader(OnlyRead):
    """A `JoinEngine` that only reads, while others may write the store."""

    def __init__(self, session: SparkSession, schema: StoreSchema, directory: Path) -> None:
        """`schema` declares the tables beside the join state. Raises StoreError if there is no store."""
        self.schema = FLAT_STORE | schema
        self._files = Snapshot(self.schema, directory, newest_files(directory, self.schema))
        self._session = session.newSession()
        self._views = TableViews(self._session, self._files)

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        self._views.refresh(sql)
        for name, table in (views or {}).items():
            local_frame(self._session, table).createOrReplaceTempView(name)
        return self._session.sql(sql).toArrow()

    def question(self, sql: str, bounds: Bounds = UNBOUNDED) -> SparkQuestion:
        return SparkQuestion(self._session, self._files, sql, bounds)

    def read(self, table: str, columns: Sequence[str], key: str | None = None) -> pa.Table:
        schema = pa.schema([self.schema.tables[table].field(name) for name in columns])
        kept = (read_rows(path, schema, key) for path in self._files.paths(table))
        return pa.concat_tables([schema.empty_table(), *kept])

    def find(self, table: str, column: str, numbers: pa.Array) -> pa.Table:
        schema = self.schema.tables[table]
        return pa.concat_tables([schema.empty_table(), *find_rows(self._files.paths(table), schema, column, numbers)])

    def highest(self, table: str, column: str) -> int:
        found = [highest_number(path, column) for path in self._files.paths(table)]
        return max((number for number in found if number is not None), default=-1)

    def close(self) -> None:
        """Does nothing: no file stays open."""
