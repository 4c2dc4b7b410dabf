"""The Parquet files of a Spark store: writing them, and looking up single rows in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.batches import in_batches
from common.distinct import Ints
from common.private import open_like_directory
from common.whole_file import sync_directory, sync_file
from join_stage.store.spark.manifests import DataFile, damaged, digests_of, read_rows

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
        # With checksums of its pages, a part of the file can be read without a look at the rest.
        with pq.ParquetWriter(file, schema, write_page_checksum=True) as writer:
            for some in in_batches(parts, 1 << 30, AT_ONCE, lambda part: int(part.nbytes)):
                table = pa.concat_tables(some)
                writer.write_table(table, _rows_of_group(table))
                rows += len(table)
        file.flush()
        sync_file(file.fileno())
    sync_directory(path.parent)
    return DataFile(path.name, rows, path.stat().st_size, level, first, last, *digests_of(path))


class Merging(NamedTuple):
    """Files of a table that become one, `path`. The rest is what `DataFile` says of it."""

    path: Path
    inputs: tuple[Path | str, ...]
    schema: pa.Schema
    level: int
    first: int | None
    last: int | None


def merge_files(merging: Merging) -> DataFile:
    """Merges files, some rows at a time. Raises OSError."""
    path, inputs, schema, level, first, last = merging
    return write_rows(path, (read_rows(one, schema) for one in inputs), schema, level, first, last)


def _rows_of_group(rows: pa.Table) -> int | None:
    """The number of rows of a row group; None for Parquet's own, which is far more."""
    size = rows.nbytes // max(len(rows), 1)
    return max(LEAST_ROWS, GROUP_BYTES // size) if size > WIDE else None


def find_rows(paths: Sequence[Path | str], schema: pa.Schema, column: str, numbers: pa.Array) -> Iterator[pa.Table]:
    """The rows of some files that have one of these numbers in a column. Reads only those parts of files that may have
    such rows, one part at a time. A path must always name the same file. Raises StoreError if what is read is not what
    was written."""
    wanted = np.sort(numbers.to_numpy())
    for path in paths:
        low, high = _bounds(str(path), column)
        groups = np.flatnonzero(wanted.searchsorted(high, "right") > wanted.searchsorted(low))
        if len(groups):
            test = partial(_has_one_of, column, numbers)
            yield from _rows_in(path, _footer(str(path)), groups.tolist(), schema, test)


def _has_one_of(column: str, numbers: pa.Array, rows: pa.Table) -> pa.ChunkedArray:
    return pc.is_in(rows[column], numbers)


def _rows_in(
    path: Path | str,
    footer: pq.FileMetaData,
    groups: Sequence[int],
    schema: pa.Schema,
    test: Callable[[pa.Table], pa.ChunkedArray],
) -> Iterator[pa.Table]:
    with pq.ParquetFile(path, metadata=footer, page_checksum_verification=True) as file:
        names = [name for name in file.schema_arrow.names if name in schema.names]
        for group in groups:
            found = _row_group(path, file, group, names)
            rows = found.filter(test(found))
            if len(rows):
                columns = [rows[f.name] if f.name in names else pa.nulls(len(rows), f.type) for f in schema]
                yield pa.table(columns, schema=schema)


def _row_group(path: Path | str, file: pq.ParquetFile, group: int, names: Sequence[str]) -> pa.Table:
    try:
        return file.read_row_group(group, names, use_threads=False)
    except OSError as error:
        if error.errno is None:  # of Arrow, and not of the system
            raise damaged(path) from error
        raise


@lru_cache(64)
def _footer(path: str) -> pq.FileMetaData:
    return pq.read_metadata(path)


_LEAST, _GREATEST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@lru_cache(1 << 16)
def _bounds(path: str, column: str) -> tuple[Ints, Ints]:
    """The least and the greatest number of each row group in a column; an empty range if there is none."""
    footer = _footer(path)
    place = footer.schema.names.index(column)
    ranges = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        told = group.column(place).statistics
        if told is not None and told.has_min_max:
            ranges.append((told.min, told.max))
        else:
            is_empty = told is not None and told.has_null_count and told.null_count == group.num_rows
            ranges.append((0, -1) if is_empty else (_LEAST, _GREATEST))
    low, high = np.array(ranges, np.int64).reshape(-1, 2).T
    return low, high
