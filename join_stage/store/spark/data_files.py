"""The Parquet files of a Spark store: writing them, and looking up single rows in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.batches import in_batches
from common.distinct import Ints
from common.private import open_like_directory
from common.whole_file import sync_directory, sync_file
from join_stage.store.spark.manifests import DataFile, digests_of

GROUP_BYTES = 256 << 10
"""About the bytes of a row group of wide rows, in memory: to look up a row, its row group is read."""

WIDE = 100
"""Rows of more bytes are wide."""

LEAST_ROWS = 256
"""The fewest rows of a row group that is not the last."""

AT_ONCE = 8 << 20
"""The bytes of rows, in memory, that are put into one file at a time."""


def write_rows(
    path: Path,
    parts: Iterable[pa.Table],
    schema: pa.Schema,
    level: int = 0,
    first: int | None = None,
    last: int | None = None,
) -> DataFile:
    """Writes a file of a table, some rows at a time, and makes it survive a power failure. Raises OSError."""
    rows = 0
    with open(path, "wb", opener=open_like_directory) as file:
        with pq.ParquetWriter(file, schema) as writer:
            for some in in_batches(parts, 1 << 30, AT_ONCE, lambda part: int(part.nbytes)):
                table = pa.concat_tables(some)
                writer.write_table(table, _rows_of_group(table))
                rows += len(table)
        file.flush()
        sync_file(file.fileno())
    sync_directory(path.parent)
    return DataFile(path.name, rows, path.stat().st_size, level, first, last, *digests_of(path))


def _rows_of_group(rows: pa.Table) -> int | None:
    """The number of rows of a row group; None for Parquet's own, which is far more."""
    size = rows.nbytes // max(len(rows), 1)
    return max(LEAST_ROWS, GROUP_BYTES // size) if size > WIDE else None


def find_rows(paths: Sequence[Path | str], schema: pa.Schema, column: str, numbers: pa.Array) -> Iterator[pa.Table]:
    """The rows of some files that have one of these numbers in a column. Reads only those parts of files that may have
    such rows, one part at a time. Files never change."""
    wanted = np.sort(numbers.to_numpy())
    for path in paths:
        footer, low, high = _footer(str(path), _version(path), column)
        groups = np.flatnonzero(wanted.searchsorted(high, "right") > wanted.searchsorted(low))
        if len(groups):
            yield from _rows_in(path, footer, groups.tolist(), schema, lambda found: pc.is_in(found[column], numbers))


def _rows_in(
    path: Path | str,
    footer: pq.FileMetaData,
    groups: Sequence[int],
    schema: pa.Schema,
    test: Callable[[pa.Table], pa.ChunkedArray],
) -> Iterator[pa.Table]:
    with pq.ParquetFile(path, metadata=footer) as file:
        names = [name for name in file.schema_arrow.names if name in schema.names]
        for group in groups:
            found = file.read_row_group(group, names, use_threads=False)
            rows = found.filter(test(found))
            if len(rows):
                columns = [rows[f.name] if f.name in names else pa.nulls(len(rows), f.type) for f in schema]
                yield pa.table(columns, schema=schema)


def _version(path: Path | str) -> tuple[int, int, int]:
    """Tells a file from a later one of its name."""
    found = Path(path).stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(256)
def _footer(path: str, version: tuple[int, int, int], column: str) -> tuple[pq.FileMetaData, Ints, Ints]:
    """The footer of a file, and the least and the greatest number of each row group in a column; an empty range where
    there is none."""
    footer = pq.read_metadata(path)
    place = footer.schema.names.index(column)
    found = [footer.row_group(number).column(place).statistics for number in range(footer.num_row_groups)]
    ranges = [(one.min, one.max) if one is not None and one.has_min_max else (0, -1) for one in found]
    low, high = np.array(ranges, np.int64).reshape(-1, 2).T
    return footer, low, high
