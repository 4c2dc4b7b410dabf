"""The files of a Spark store: manifests, Parquet data files, and snapshots for readers. A manifest appears atomically
and names the files that are valid after a batch. A snapshot is the files after one batch, for readers beside the store;
readers in other processes check the digests of files."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.arrays import Ints
from common.files import open_like_directory, sync_directory, sync_file, write_mark, write_whole
from common.tools import in_batches
from join_stage.store.protocol import (
    COMMITTED,
    LOST,
    SPARK_MANIFESTS,
    CopyFile,
    StoreError,
    StoreSchema,
    last_commit,
    manifest_batches,
)

FORMAT = 2
"""Manifest format. Since 2 manifests have digests of themselves and of their files."""

_FOOTER_END = 8  # bytes behind the footer of a Parquet file: its length in four bytes, and four more


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table: `name`, number of `rows`, `size` in bytes; `level` counts the merges of its rows. In
    dated tables `first` and `last` bound when the documents of rows begin, in microseconds. `digest` covers all bytes,
    `footer_digest` the footer; both are None in format 1. Parquet itself does not detect a changed byte."""

    name: str
    rows: int
    size: int
    level: int = 0
    first: int | None = None
    last: int | None = None
    digest: int | None = None
    footer_digest: int | None = None


Files = Mapping[str, tuple[DataFile, ...]]  # the files of each table, oldest first


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files valid after a batch, and its commit time in microseconds, 0 if unknown."""

    files: Files
    written_at: int


def newest_files(directory: Path, schema: StoreSchema) -> Files:
    """The files of the tables after the last batch; another process may be writing. Raises StoreError."""
    while True:
        mark = last_commit(directory)  # first: another process may commit in between
        batches = manifest_batches(directory)
        check_newest(directory, max(batches, default=0), mark)
        if not batches:
            raise StoreError(f"{directory} holds no store of the engine spark")
        with suppress(FileNotFoundError):  # there are newer manifests, and this one was removed
            return read_manifest(directory / SPARK_MANIFESTS / f"{batches[-1]}.json", schema).files


def copy_files(directory: Path, target: Path, copy: CopyFile) -> bool:
    """Copies the newest manifest and its files. False if some were removed meanwhile. Raises StoreError if commits are
    lost."""
    with suppress(FileNotFoundError):
        copy(COMMITTED)
    batches = manifest_batches(directory)
    check_newest(directory, max(batches, default=0), last_commit(target))
    manifest = f"{SPARK_MANIFESTS}/{batches[-1]}.json"
    try:
        copy(manifest)
        for folder, files in json.loads((target / manifest).read_bytes())["tables"].items():
            for file in files:
                name = f"{folder}/{file['name']}"  # a name is used for one content only
                if not (target / name).exists():
                    copy(name)
    except FileNotFoundError:
        return False
    return True


def check_newest(directory: Path, newest: int, mark: tuple[int, ...] | None) -> None:
    """Raises StoreError if the newest manifest is older than the last batch, of the store's mark, if any."""
    if mark is not None and newest < mark[0]:
        raise StoreError(
            f"the store in {directory} has lost commits: its manifest {mark[0]}.json is gone, and the newest one is "
            f"{f'{newest}.json' if newest else 'gone, too'}; put it back, or restore an older copy of the directory"
            + (f"; {LOST.format(directory)}" if newest else "")
        )


def _digest_of_rest(file: BinaryIO) -> int:
    """Detects damage, not malice."""
    found = 0
    while chunk := file.read(1 << 20):
        found = zlib.crc32(chunk, found)
    return found


def _footer_bytes(file: BinaryIO, size: int) -> bytes:
    file.seek(max(size - _FOOTER_END, 0))
    start = size - _FOOTER_END - int.from_bytes(file.read(_FOOTER_END)[:4], "little")
    file.seek(max(start, 0))
    return file.read() if start >= 0 else b""


def check_digest(path: Path, file: DataFile, *, whole: bool = True) -> None:
    """Raises StoreError if a file, or if not `whole` its footer, is not as written."""
    if (wanted := file.digest if whole else file.footer_digest) is None:
        return
    with path.open("rb") as opened:
        found = _digest_of_rest(opened) if whole else zlib.crc32(_footer_bytes(opened, file.size))
    if found != wanted:
        raise damaged(path)


def damaged(path: Path | str) -> StoreError:
    return StoreError(f"the store is damaged: {path} is not what was written; restore an older copy of the store")


def read_rows(path: Path | str, schema: pa.Schema, key: str | None = None) -> pa.Table:
    """The rows of a file, or those with value `key` in the key column; missing columns are null."""
    file = pq.ParquetFile(path)
    names = [name for name in file.schema_arrow.names if name in schema.names]
    rows = file.read(names) if key is None else pq.read_table(path, columns=names, filters=[("key", "=", key)])
    return _padded(rows, schema)


def _padded(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [rows[f.name] if f.name in rows.column_names else pa.nulls(len(rows), f.type) for f in schema]
    return pa.table(columns, schema=schema)


def highest_number(path: Path | str, column: str) -> int | None:
    """The greatest number in a column, read from the footer; None if there is none."""
    footer = pq.read_metadata(path)
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    columns = (group.column(place) for group in groups for place in range(group.num_columns))
    numbers = [found.statistics.max for found in columns if found.path_in_schema == column]
    return max((number for number in numbers if number is not None), default=None)


def read_manifest(path: Path, schema: StoreSchema) -> Manifest:
    """Raises StoreError for a file that is no manifest or not as written, and OSError."""
    try:
        content = json.loads(path.read_bytes())
        digest = content.pop("digest", None)
        if (found := content["format"]) not in (1, FORMAT):
            raise StoreError(f"{path} has format {found}; this version of mmqjp reads formats up to {FORMAT}")
        if content["format"] == FORMAT and digest != _digest(content):
            raise damaged(path)
        if content.get("batch", int(path.stem)) != int(path.stem):
            raise damaged(path)
        named, folder = content["tables"], schema.folder
        files = {table: tuple(DataFile(**file) for file in named.get(folder(table), ())) for table in schema.tables}
        return Manifest(files, int(content.get("written_at", 0)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"the store is damaged: {path} is not a manifest of mmqjp ({error}); restore an older copy of the store"
        ) from error


def write_manifest(path: Path, manifest: Manifest, schema: StoreSchema) -> None:
    """Writes a manifest atomically, and then the mark of the store."""
    tables = {schema.folder(name): [asdict(file) for file in found] for name, found in manifest.files.items() if found}
    content = {"format": FORMAT, "batch": int(path.stem), "written_at": manifest.written_at, "tables": tables}
    write_whole(path, json.dumps({**content, "digest": _digest(content)}))
    with suppress(OSError):  # then the mark is for an earlier batch
        write_mark(path.parents[1] / COMMITTED, int(path.stem))


def _digest(content: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(content).encode())


GROUP_BYTES = 256 << 10  # approximate bytes, in memory, of a row group of wide rows: a row look-up reads its row group

WIDE = 100  # rows of more bytes are wide

LEAST_ROWS = 256  # minimum rows of a row group that is not the last

AT_ONCE = 8 << 20  # bytes of rows, in memory, written to a file at a time


def write_data_file(
    path: Path,
    parts: Iterable[pa.Table],
    schema: pa.Schema,
    level: int = 0,
    first: int | None = None,
    last: int | None = None,
) -> DataFile:
    """Writes and syncs a file of a table, part by part. Raises OSError."""
    rows = 0
    with open(path, "wb", opener=open_like_directory) as file:
        # With checksums of pages, a part of the file can be read and checked alone.
        with pq.ParquetWriter(file, schema, write_page_checksum=True) as writer:
            for some in in_batches(parts, 1 << 30, AT_ONCE, lambda part: int(part.nbytes)):
                table = pa.concat_tables(some)
                size = table.nbytes // max(len(table), 1)
                writer.write_table(table, max(LEAST_ROWS, GROUP_BYTES // size) if size > WIDE else None)
                rows += len(table)
        file.flush()
        sync_file(file.fileno())
    sync_directory(path.parent)
    size = path.stat().st_size
    with path.open("rb") as opened:
        digests = _digest_of_rest(opened), zlib.crc32(_footer_bytes(opened, size))
    return DataFile(path.name, rows, size, level, first, last, *digests)


class Merging(NamedTuple):
    """Files of a table to merge into `path`; the rest as in `DataFile`."""

    path: Path
    inputs: tuple[Path | str, ...]
    schema: pa.Schema
    level: int
    first: int | None
    last: int | None


def merge_files(merging: Merging) -> DataFile:
    """Merges files, some rows at a time. Raises OSError."""
    path, inputs, schema, level, first, last = merging
    return write_data_file(path, (read_rows(one, schema) for one in inputs), schema, level, first, last)


def find_rows(paths: Sequence[Path | str], schema: pa.Schema, column: str, numbers: pa.Array) -> Iterator[pa.Table]:
    """Rows with one of these numbers, from row groups that may have them. A path names one file. Raises StoreError."""
    wanted = np.sort(numbers.to_numpy())
    for path in paths:
        low, high = _bounds(str(path), column)
        groups = np.flatnonzero(wanted.searchsorted(high, "right") > wanted.searchsorted(low))
        if not len(groups):
            continue
        with pq.ParquetFile(path, metadata=_read_metadata(str(path)), page_checksum_verification=True) as file:
            names = [name for name in file.schema_arrow.names if name in schema.names]
            for group in groups.tolist():
                try:
                    found = file.read_row_group(group, names, use_threads=False)
                except OSError as error:
                    if error.errno is None:  # raised by Arrow, not by the system
                        raise damaged(path) from error
                    raise
                rows = found.filter(pc.is_in(found[column], numbers))
                if len(rows):
                    yield _padded(rows, schema)


@lru_cache(64)
def _read_metadata(path: str) -> pq.FileMetaData:
    return pq.read_metadata(path)


_LEAST, _GREATEST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@lru_cache(1 << 16)
def _bounds(path: str, column: str) -> tuple[Ints, Ints]:
    footer = _read_metadata(path)
    place = footer.schema.names.index(column)
    ranges = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        statistics = group.column(place).statistics
        if statistics is not None and statistics.has_min_max:
            ranges.append((statistics.min, statistics.max))
        else:
            is_empty = statistics is not None and statistics.has_null_count and statistics.null_count == group.num_rows
            ranges.append((0, -1) if is_empty else (_LEAST, _GREATEST))
    low, high = np.array(ranges, np.int64).reshape(-1, 2).T
    return low, high


class FileTables:
    """The tables of a store after a batch, by default the last. Raises StoreError for missing or damaged files."""

    def __init__(self, schema: StoreSchema, directory: Path, files: Files | None = None) -> None:
        """Raises StoreError if the directory holds no store."""
        self.schema, self.directory = schema, directory.absolute()
        self.files = newest_files(directory, schema) if files is None else files
        self._whole, self._footers = set[str](), set[str]()
        """The paths of files with checked content, and with checked footer."""

    def folder(self, table: str) -> Path:
        return self.directory / self.schema.folder(table)

    def parts(self, table: str) -> tuple[pa.Table, ...]:
        """The rows of a table that are not in files yet: those of a running batch."""
        return ()

    def fresh(self, table: str) -> pa.Table:
        return pa.concat_tables([self.schema.tables[table].empty_table(), *self.parts(table)])

    def path(self, table: str, file: DataFile, *, whole: bool = True) -> str:
        """The path of a file, which exists; it, or if not `whole` its footer, is checked the first time."""
        path, done = self.folder(table) / file.name, self._whole if whole else self._footers
        look_at(path, file, whole=None if (name := str(path)) in self._whole or name in done else whole)
        done.add(name)
        return name

    def paths(self, table: str, *, whole: bool = True) -> list[str]:
        """The paths of the files of a table. For `find_rows`, which checks what it reads, checked footers will do."""
        return [self.path(table, file, whole=whole) for file in self.files[table]]

    def unchecked_paths(self, table: str) -> list[str]:
        folder = self.folder(table)
        return [str(folder / file.name) for file in self.files[table]]

    @contextmanager
    def reading(self, tables: Iterable[str], errors: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
        """Wraps reading the files of tables: a file that vanished since its check is reported instead of `errors`."""
        try:
            yield
        except errors:
            for table in tables:
                for file in self.files[table]:
                    look_at(self.folder(table) / file.name, file)
            raise

    def read(self, table: str, columns: Sequence[str] | None = None, key: str | None = None) -> pa.Table:
        """A table, or some of its columns; with `key`, only rows with this value in that column."""
        schema, paths, fresh = self.schema.tables[table], self.paths(table), self.fresh(table)
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        if key is not None:
            fresh = fresh.filter(pc.equal(fresh["key"], key))
        with self.reading([table]):
            return pa.concat_tables([*(read_rows(path, schema, key) for path in paths), fresh.select(schema.names)])

    def find(self, table: str, column: str, numbers: pa.Array, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows with one of these numbers in a column; reads only row groups that may have them."""
        schema = self.schema.tables[table]
        schema = pa.schema([schema.field(name) for name in columns or schema.names])
        paths, fresh = self.paths(table, whole=False), self.fresh(table).select(schema.names)
        with self.reading([table]):
            kept = find_rows(paths, schema, column, numbers)
            return pa.concat_tables([*kept, fresh.filter(pc.is_in(fresh[column], numbers))])

    def highest(self, table: str, column: str) -> int:
        """The greatest number in a column, -1 if there is none; reads only footers."""
        paths = self.paths(table, whole=False)
        with self.reading([table]):
            found = [pc.max(self.fresh(table)[column]).as_py(), *(highest_number(path, column) for path in paths)]
        return max((number for number in found if number is not None), default=-1)

    def numbered_views(self, first_index: int) -> dict[str, str]:
        """The SELECTs of the numbered views, by name."""
        if (numbered := self.schema.numbered) is None:
            return {}
        return numbered.of_rows(self.read(numbered.table, [numbered.numbers, numbered.argument]), first_index)


class Snapshot(FileTables):
    """The tables of a store that this process writes, after a batch. They outlive their successor for a while."""

    def paths(self, table: str, *, whole: bool = True) -> list[str]:
        return self.unchecked_paths(table)


_OUTLIVED = (
    "{} has gone: the store has changed for longer than it keeps old files; ask again, and if it stays, take an older "
    "copy of the store"
)


def look_at(path: Path, file: DataFile, *, whole: bool | None = None, gone: str = _OUTLIVED) -> None:
    """Raises StoreError if a file is missing or has another size, or by `check_digest` unless `whole` is None."""
    try:
        if path.stat().st_size != file.size:
            raise damaged(path)
        if whole is not None:
            check_digest(path, file, whole=whole)
    except FileNotFoundError:
        raise StoreError(gone.format(path)) from None
    except OSError as error:
        raise StoreError(f"cannot read the store: {path}: {error.strerror or error}") from error
