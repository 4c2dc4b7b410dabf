"""The newest snapshot of a Spark store for a reader in another process, which checks the files that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from join_stage.store.protocol import StoreError
from join_stage.store.schema import StoreSchema
from join_stage.store.spark.data_files import find_rows
from join_stage.store.spark.manifests import (
    DataFile,
    check_footer,
    check_whole,
    damaged,
    highest_number,
    newest_files,
    read_rows,
)
from join_stage.store.spark.snapshot import Snapshot


class CheckedSnapshot(Snapshot):
    """Tables as of the last batch when this was made. Methods raise StoreError if a file is not what was written, or
    has gone."""

    def __init__(self, schema: StoreSchema, directory: Path) -> None:
        """Raises StoreError if the directory holds no store."""
        super().__init__(schema, directory, newest_files(directory, schema))
        self._whole, self._footers = set[str](), set[str]()

    def paths(self, table: str) -> list[str]:
        """The paths of the files of a table. Each is checked as a whole the first time."""
        self.check([table])
        return self.unchecked_paths(table)

    def unchecked_paths(self, table: str) -> list[str]:
        """The paths of the files of a table."""
        return super().paths(table)

    def check(self, tables: Iterable[str]) -> None:
        """Checks the files of tables: the content of each once, and each time that it is there."""
        for table in tables:
            for file, path in self._files_of(table):
                _look_at(Path(path), file, None if path in self._whole else check_whole)
                self._whole.add(path)

    @contextmanager
    def reading(self, tables: Iterable[str], errors: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
        """Wraps reading the files of tables. If one has gone since it was checked, that is told instead of `errors`."""
        try:
            yield
        except errors:
            for table in tables:
                for file, path in self._files_of(table):
                    _look_at(Path(path), file, None)
            raise

    def columns(self, table: str, columns: Sequence[str], key: str | None = None) -> pa.Table:
        """Some columns of a table: all rows, or those whose column `key` has this value."""
        schema, paths = pa.schema([self.schema.tables[table].field(name) for name in columns]), self.paths(table)
        with self.reading([table]):
            return pa.concat_tables([schema.empty_table(), *(read_rows(path, schema, key) for path in paths)])

    def find(self, table: str, column: str, numbers: pa.Array) -> pa.Table:
        """The rows of a table that have one of these numbers in a column. What is read of a file is checked."""
        schema, paths = self.schema.tables[table], self._with_footers(table)
        with self.reading([table]):
            return pa.concat_tables([schema.empty_table(), *find_rows(paths, schema, column, numbers)])

    def highest(self, table: str, column: str) -> int:
        """The greatest number in a column of a table, -1 if there is none. Reads only the footers of files."""
        found = (highest_number(path, column) for path in self._with_footers(table))
        with self.reading([table]):
            return max((number for number in found if number is not None), default=-1)

    def _with_footers(self, table: str) -> list[str]:
        """The paths of the files of a table, which are there. The footer of each is checked the first time."""
        for file, path in self._files_of(table):
            is_known = path in self._whole or path in self._footers
            _look_at(Path(path), file, None if is_known else check_footer)
            self._footers.add(path)
        return self.unchecked_paths(table)

    def _files_of(self, table: str) -> Iterable[tuple[DataFile, str]]:
        return zip(self.files[table], self.unchecked_paths(table), strict=True)


def _look_at(path: Path, file: DataFile, check: Callable[[Path, DataFile], object] | None) -> None:
    """Raises StoreError if a file has gone, has another size, or does not pass the check."""
    try:
        if path.stat().st_size != file.size:
            raise damaged(path)
        if check is not None:
            check(path, file)
    except FileNotFoundError:
        raise StoreError(
            f"{path} has gone: the store has changed for longer than it keeps old files; ask again, and if it "
            "stays, take an older copy of the store"
        ) from None
    except OSError as error:
        raise StoreError(f"cannot read the store: {path}: {error.strerror or error}") from error
