"""A snapshot of a store: the files of its tables after one batch, for readers beside the store."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pyarrow as pa

from join_stage.store.schema import StoreSchema
from join_stage.store.spark.manifests import Files, read_rows


class FileTables(Protocol):
    """Tables whose rows are in files, except for those of the running batch."""

    schema: StoreSchema

    files: Files
    """The files of each table."""

    def paths(self, table: str) -> list[str]: ...

    def parts(self, table: str) -> tuple[pa.Table, ...]: ...

    def fresh(self, table: str) -> pa.Table: ...

    def read(self, table: str) -> pa.Table: ...


class Snapshot:
    """The files of a store after a batch. They are kept for a while after they are superseded."""

    def __init__(self, schema: StoreSchema, directory: Path, files: Files) -> None:
        self.schema, self._directory, self.files = schema, directory.absolute(), files

    def paths(self, table: str) -> list[str]:
        """The paths of the files of a table."""
        folder = self._directory / self.schema.folder(table)
        return [str(folder / file.name) for file in self.files[table]]

    def parts(self, table: str) -> tuple[pa.Table, ...]:
        """No rows: all of them are in files."""
        return ()

    def fresh(self, table: str) -> pa.Table:
        """No rows: all of them are in files."""
        return self.schema.tables[table].empty_table()

    def read(self, table: str) -> pa.Table:
        """The whole table."""
        rows = (read_rows(path, self.schema.tables[table]) for path in self.paths(table))
        return pa.concat_tables([self.fresh(table), *rows])
