"""The manifests of a Spark store: each names the files that count after a batch. It is there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from join_stage.engine import SPARK_MANIFESTS, StoreError
from join_stage.private import as_its_directory
from join_stage.tables import TABLES

FORMAT = 1


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table. `level` counts how often its rows were merged; `first` and `last` are, in the tables
    of the join state, the least and greatest time at which one of its documents begins."""

    name: str
    rows: int
    size: int
    level: int = 0
    first: int | None = None
    last: int | None = None


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


def read_rows(path: Path | str, schema: pa.Schema) -> pa.Table:
    """A file's rows; a column that is younger than the file is null."""
    file = pq.ParquetFile(path)
    rows = file.read([name for name in file.schema_arrow.names if name in schema.names])
    columns = [rows[f.name] if f.name in rows.column_names else pa.nulls(len(rows), f.type) for f in schema]
    return pa.table(columns, schema=schema)


def highest_number(path: Path | str, column: str) -> int | None:
    """The greatest number in a column of a file, which its footer tells; None if it has none."""
    footer = pq.read_metadata(path)
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    columns = (group.column(place) for group in groups for place in range(group.num_columns))
    numbers = [found.statistics.max for found in columns if found.path_in_schema == column]
    return max((number for number in numbers if number is not None), default=None)


def read_manifest(path: Path) -> Manifest:
    """What a manifest says. Raises StoreError for what is none, OSError."""
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise StoreError(f"{path} has format {content['format']}; this version of mmqjp reads format {FORMAT}")
        tables = content["tables"]
        files = {name: tuple(DataFile(**file) for file in tables.get(name, ())) for name in TABLES}
        return Manifest(files, int(content.get("written_at", 0)))
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is no manifest of mmqjp: {error}") from error


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Makes a manifest appear."""
    tables = {name: [asdict(file) for file in found] for name, found in manifest.files.items() if found}
    draft = path.with_suffix(".tmp")
    with open(draft, "w", opener=as_its_directory) as file:
        json.dump({"format": FORMAT, "written_at": manifest.written_at, "tables": tables}, file)
        file.flush()
        to_disk(file.fileno())
    draft.replace(path)
    directory_to_disk(path.parent)


def to_disk(handle: int) -> None:
    """What is written to a file lasts from here on."""
    os.fsync(handle)


def directory_to_disk(path: Path) -> None:
    """The names in a directory last from here on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        to_disk(handle)
    finally:
        os.close(handle)
