"""Manifests of a Spark store. A manifest names the files that are valid after a batch, and appears as a whole."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from common.whole_file import write_whole
from join_stage.store.protocol import SPARK_MANIFESTS, StoreError
from join_stage.store.schema import StoreSchema

FORMAT = 2
"""The format of manifests. Since format 2 they have digests of themselves and of their files."""

_FOOTER_END = 8
"""The bytes behind the footer of a Parquet file: its length in four bytes, and four more."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table: `name`, number of `rows`, and `size` in bytes. `level` counts the merges of its rows.

    In dated tables `first` and `last` are the least and the greatest time at which a document of a row begins, in
    microseconds. `digest` covers all bytes and `footer_digest` the footer; both are None in a store of format 1.
    Parquet itself does not detect a changed byte, and often reads another value.
    """

    name: str
    rows: int
    size: int
    level: int = 0
    first: int | None = None
    last: int | None = None
    digest: int | None = None
    footer_digest: int | None = None


Files = Mapping[str, tuple[DataFile, ...]]
"""The files of each table, oldest first."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files that are valid after a batch, and when it was committed, in microseconds; 0 if that is not known."""

    files: Files
    written_at: int


def newest_files(directory: Path, schema: StoreSchema) -> Files:
    """The files of the tables after the last batch. Another process may be writing the store.

    Raises StoreError if the directory holds no store.
    """
    while True:
        batches = [int(path.stem) for path in (directory / SPARK_MANIFESTS).glob("*.json")]
        if not batches:
            raise StoreError(f"{directory} holds no store of the engine spark")
        with suppress(FileNotFoundError):  # newer manifests have come, and this one was removed
            return read_manifest(directory / SPARK_MANIFESTS / f"{max(batches)}.json", schema).files


def digests_of(path: Path) -> tuple[int, int]:
    """The digests of a Parquet file and of its footer. They detect damage, not malice."""
    with path.open("rb") as file:
        return _digest_of_rest(file), zlib.crc32(_footer(file, path.stat().st_size))


def _digest_of_rest(file: BinaryIO) -> int:
    found = 0
    while chunk := file.read(1 << 20):
        found = zlib.crc32(chunk, found)
    return found


def _footer(file: BinaryIO, size: int) -> bytes:
    """The footer of a file of this size; nothing if the file is none of Parquet."""
    file.seek(max(size - _FOOTER_END, 0))
    start = size - _FOOTER_END - int.from_bytes(file.read(_FOOTER_END)[:4], "little")
    file.seek(max(start, 0))
    return file.read() if start >= 0 else b""


def check_whole(path: Path, file: DataFile) -> None:
    """Raises StoreError if a file is not what was written."""
    if file.digest is None:
        return
    with path.open("rb") as opened:
        if _digest_of_rest(opened) != file.digest:
            raise damaged(path)


def check_footer(path: Path, file: DataFile) -> None:
    """Raises StoreError if the footer of a file is not what was written."""
    if file.footer_digest is None:
        return
    with path.open("rb") as opened:
        if zlib.crc32(_footer(opened, file.size)) != file.footer_digest:
            raise damaged(path)


def damaged(path: Path | str) -> StoreError:
    """The error for a file that is not what was written."""
    return StoreError(f"the store is damaged: {path} is not what was written; take an older copy of the store")


def read_rows(path: Path | str, schema: pa.Schema, key: str | None = None) -> pa.Table:
    """The rows of a file, or those whose column `key` has this value. A column that the file lacks is null."""
    file = pq.ParquetFile(path)
    names = [name for name in file.schema_arrow.names if name in schema.names]
    rows = file.read(names) if key is None else pq.read_table(path, columns=names, filters=[("key", "=", key)])
    columns = [rows[f.name] if f.name in rows.column_names else pa.nulls(len(rows), f.type) for f in schema]
    return pa.table(columns, schema=schema)


def read_checked(path: Path, file: DataFile, schema: pa.Schema) -> pa.Table:
    """All rows of a file of a table with this schema. Raises StoreError if the file is not what was written."""
    check_whole(path, file)
    return read_rows(path, schema)


def highest_number(path: Path | str, column: str) -> int | None:
    """The greatest number in a column of a file, read from its footer; None if there is none."""
    footer = pq.read_metadata(path)
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    columns = (group.column(place) for group in groups for place in range(group.num_columns))
    numbers = [found.statistics.max for found in columns if found.path_in_schema == column]
    return max((number for number in numbers if number is not None), default=None)


def read_manifest(path: Path, schema: StoreSchema) -> Manifest:
    """What a manifest says of the tables.

    Raises StoreError for what is no manifest, or is not what was written, and OSError.
    """
    try:
        content = json.loads(path.read_bytes())
        digest = content.pop("digest", None)
        if content["format"] not in (1, FORMAT):
            found = content["format"]
            raise StoreError(f"{path} has format {found}; this version of mmqjp reads formats up to {FORMAT}")
        if content["format"] == FORMAT and digest != _digest(content):
            raise damaged(path)
        named = content["tables"]
        files = {
            table: tuple(DataFile(**file) for file in named.get(schema.folder(table), ())) for table in schema.tables
        }
        return Manifest(files, int(content.get("written_at", 0)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"the store is damaged: {path} is no manifest of mmqjp ({error}); take an older copy of the store"
        ) from error


def write_manifest(path: Path, manifest: Manifest, schema: StoreSchema) -> None:
    """Writes a manifest, which appears as a whole."""
    tables = {schema.folder(name): [asdict(file) for file in found] for name, found in manifest.files.items() if found}
    content = {"format": FORMAT, "written_at": manifest.written_at, "tables": tables}
    write_whole(path, json.dumps({**content, "digest": _digest(content)}))


def _digest(content: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(content).encode())
