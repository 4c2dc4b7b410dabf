"""A drop directory as a stream of Spark: files found by `binaryFile`, parsed on the executors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from feeds.document import Document, Reject
from feeds.entries import EntryForm
from feeds.feed_files import read_feed_file
from feeds.files import name_below
from feeds.history import History
from feeds.kinds import FEED_SUFFIXES
from feeds.spark.document_rows import COLUMNS, local_path, row_batches
from feeds.unreadable import or_reject

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SUFFIXES = ",".join(sorted(suffix.removeprefix(".") for suffix in FEED_SUFFIXES))
FILES = {"recursiveFileLookup": "true", "pathGlobFilter": f"*.{{{_SUFFIXES}}}"}
"""The options of `binaryFile` for the feeds in a directory."""

_FILE = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"


def drops(
    session: SparkSession, directory: Path | str, feeds: EntryForm = "item", most_files: int | None = None
) -> DataFrame:
    """A streaming frame of the entries of the feeds in a directory, with the columns of `feeds.spark.document_rows`; a
    batch has at most `most_files` files.

    Sidecars are read by path, so the driver and the executors need the same directory. Each file is read alone: an
    entry that the next version of its feed still lists comes again, with the same id.
    """
    root = local_path(str(directory))
    stream = session.readStream.format("binaryFile").schema(_FILE).options(**FILES)
    if most_files is not None:
        stream = stream.option("maxFilesPerTrigger", most_files)
    return entries(stream.load(str(root)), root, feeds)


def entries(files: DataFrame, root: Path, form: EntryForm) -> DataFrame:
    """The entries of the feeds in files below a directory. The files are rows of `binaryFile`."""
    # The bytes are read where the sidecar is, by the path: what is not selected, Spark does not read.
    return files.select("path").mapInArrow(partial(_entries, root=str(root), form=form), COLUMNS)


def _entries(batches: Iterator[pa.RecordBatch], root: str, form: EntryForm) -> Iterator[pa.RecordBatch]:
    """The rows of the entries in the files."""

    def items() -> Iterator[Document | Reject]:
        for batch in batches:
            for address in batch.column("path").to_pylist():
                path = Path(address.removeprefix("file:"))  # not escaped, as an address would be
                name = name_below(path, Path(root))
                yield from History().settle(or_reject(read_feed_file(path, name, form), name))

    return row_batches(items())
