"""The manifests of a Spark store: each names the files that count after a batch. It is there whole or not at all."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from common.whole_file import write_whole
from join_stage.store.protocol import SPARK_MANIFESTS, StoreError
from join_stage.store.tables import TABLES

FORMAT = 2
"""The format of manifests. Since 2 they have digests of themselves and of the files that they name."""

_FOOTER_END = 8
"""A Parquet file ends with its footer, the footer's length in four bytes, and four more."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table. `level` counts how often its rows were merged; `first` and `last` are, in the tables
    of the join state, the least and greatest time at which one of its documents begins.

    `digest` is one of all its bytes, and `footer_digest` of its footer alone; None in a store of an older format.
    Parquet has neither: a byte that has changed is often read as another value, and nobody is told.
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

EMPTY: Files = dict.fromkeys(TABLES, ())


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files that count after a batch, and when it was committed, microseconds; 0 where nobody has noted it."""

    files: Files
    written_at: int


def newest_files(directory: Path) -> Files:
    """The files of each table of a store that a process may be writing at this moment, as of its last batch.

    Raises StoreError if the directory holds no store.
    """
    while True:
        batches = [int(path.stem) for path in (directory / SPARK_MANIFESTS).glob("*.json")]
        if not batches:
            raise StoreError(f"{directory} holds no store of the engine spark")
        with suppress(FileNotFoundError):  # it was the oldest of those that are kept, and newer ones have come
            return read_manifest(directory / SPARK_MANIFESTS / f"{max(batches)}.json").files


def digests(content: bytes | memoryview) -> tuple[int, int]:
    """The digests of a Parquet file and of its footer. They tell damage, not malice."""
    return zlib.crc32(content), zlib.crc32(content[_footer_start(content, len(content)) :])


def check_whole(path: Path, file: DataFile) -> None:
    """Raises StoreError if a file is not what was written."""
    if file.digest is None:
        return
    found = 0
    with path.open("rb") as opened:
        while chunk := opened.read(1 << 20):
            found = zlib.crc32(chunk, found)
    if found != file.digest:
        raise damaged(path)


def check_footer(path: Path, file: DataFile) -> None:
    """Raises StoreError if the footer of a file is not what was written."""
    if file.footer_digest is None:
        return
    with path.open("rb") as opened:
        opened.seek(max(file.size - _FOOTER_END, 0))
        start = _footer_start(opened.read(_FOOTER_END), file.size)
        opened.seek(max(start, 0))
        if start < 0 or zlib.crc32(opened.read()) != file.footer_digest:
            raise damaged(path)


def damaged(path: Path) -> StoreError:
    """The error for a file that is not what was written."""
    return StoreError(f"the store is damaged: {path} is not what was written; take an older copy of the store")


def _footer_start(end: bytes | memoryview, size: int) -> int:
    """Where the footer of a file of this size begins, given the end of the file."""
    return size - _FOOTER_END - int.from_bytes(bytes(end[-_FOOTER_END:-4]), "little")


def read_rows(path: Path | str, schema: pa.Schema, key: str | None = None) -> pa.Table:
    """A file's rows, or those whose column `key` has this value; a column that is younger than the file is null."""
    file = pq.ParquetFile(path)
    names = [name for name in file.schema_arrow.names if name in schema.names]
    rows = file.read(names) if key is None else pq.read_table(path, columns=names, filters=[("key", "=", key)])
    columns = [rows[f.name] if f.name in rows.column_names else pa.nulls(len(rows), f.type) for f in schema]
    return pa.table(columns, schema=schema)


def read_checked(path: Path, file: DataFile) -> pa.Table:
    """All rows of a file of a table, whose name its folder has. Raises StoreError if it is not what was written."""
    check_whole(path, file)
    return read_rows(path, TABLES[path.parent.name])


def highest_number(path: Path | str, column: str) -> int | None:
    """The greatest number in a column of a file, which its footer tells; None if it has none."""
    footer = pq.read_metadata(path)
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    columns = (group.column(place) for group in groups for place in range(group.num_columns))
    numbers = [found.statistics.max for found in columns if found.path_in_schema == column]
    return max((number for number in numbers if number is not None), default=None)


def read_manifest(path: Path) -> Manifest:
    """What a manifest says. Raises StoreError for what is none, or is not what was written, and OSError."""
    try:
        content = json.loads(path.read_bytes())
        digest = content.pop("digest", None)
        if content["format"] not in (1, FORMAT):
            found = content["format"]
            raise StoreError(f"{path} has format {found}; this version of mmqjp reads formats up to {FORMAT}")
        if content["format"] == FORMAT and digest != _digest(content):
            raise damaged(path)
        tables = content["tables"]
        files = {name: tuple(DataFile(**file) for file in tables.get(name, ())) for name in TABLES}
        return Manifest(files, int(content.get("written_at", 0)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"the store is damaged: {path} is no manifest of mmqjp ({error}); take an older copy of the store"
        ) from error


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Makes a manifest appear."""
    tables = {name: [asdict(file) for file in found] for name, found in manifest.files.items() if found}
    content = {"format": FORMAT, "written_at": manifest.written_at, "tables": tables}
    write_whole(path, json.dumps({**content, "digest": _digest(content)}))


def _digest(content: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(content).encode())
