"""`spark.read.format("mmqjp_warc")` and `spark.readStream`: the documents of WARC files, with a partition for each
file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from feeds.bad_input import SourceError
from feeds.entries import EntryForm
from feeds.files import printable
from feeds.history import History
from feeds.kinds import FileKind
from feeds.listing import Listing, in_order
from feeds.order import fetch_time
from feeds.spark.document_rows import COLUMNS, entry_form, local_path, row_batches
from feeds.splits import can_be_read
from feeds.unreadable import or_reject
from feeds.warc import read_warc

NAME = "mmqjp_warc"


@dataclass
class _File(InputPartition):
    path: str


@dataclass(frozen=True)
class _Archives:
    """The WARC files below a directory, or one file, and the form in which they are read."""

    path: Path
    form: EntryForm | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> _Archives:
        if not options.get("path"):
            raise SourceError(NAME, "no path", 'name a directory or a file: .load("crawl/")')
        archives = cls(local_path(options["path"]), entry_form(options.get("feeds")))
        if not archives.path.exists():
            raise SourceError(str(archives.path), "no such file or directory", "check the path")
        return archives

    def sizes(self) -> dict[str, int]:
        """The sizes of the files that are there, by name, in the order of the fetches."""
        if self.path.is_file():
            return {self.path.name: self.path.stat().st_size}
        files = (file for file in Listing(self.path, feeds=False).files() if file.kind is FileKind.WARC)
        sizes = {}
        for file in in_order(files):
            with suppress(FileNotFoundError):  # it has gone meanwhile
                sizes[file.name] = file.path.stat().st_size
        return sizes

    def can_be_read(self, name: str) -> bool:
        """Whether a file can be opened now. If not, it is read later."""
        try:
            can_be_read(Path(self.partition(name).path))
        except OSError:
            return False
        return True

    def partition(self, name: str) -> _File:
        return _File(str(self.path if self.path.is_file() else self.path / name))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _File):  # where there is none, Spark makes one of its own
            path = Path(partition.path)
            items = or_reject(read_warc(path, self.form), printable(str(path)))
            yield from row_batches(History().settle(items))


class _Reader(DataSourceReader):
    def __init__(self, archives: _Archives) -> None:
        self._archives = archives

    def partitions(self) -> list[InputPartition]:
        return [self._archives.partition(name) for name in self._archives.sizes()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._archives.read(partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset has the names and sizes of the files that were read and are still there. Each file is read once."""

    def __init__(self, archives: _Archives, most: int | None) -> None:
        self._archives, self._most = archives, most
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # Spark's name, as those that follow
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._most is None else ReadMaxFiles(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._archives.sizes()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        there = self._archives.sizes() if self._target is None else self._target
        new = [name for name in there if name not in start and self._archives.can_be_read(name)]
        if isinstance(limit, ReadMaxFiles):
            new = new[: limit.max_files]
        if not new:
            return start
        kept = {name: size for name, size in start.items() if name in there}
        return kept | {name: there[name] for name in new}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        new = [self._archives.partition(name) for name in end if name not in start]
        return [*sorted(new, key=lambda file: (fetch_time(Path(file.path)), file.path))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._archives.read(partition)


class WarcSource(DataSource):
    """Options: the path, `feeds` (item or raw; without it each XML body is a document), and for a stream
    `maxFilesPerTrigger`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: object) -> _Reader:
        return _Reader(_Archives.of(self.options))

    def streamReader(self, schema: object) -> _StreamReader:
        most = self.options.get("maxFilesPerTrigger")
        if most is not None and not (most.isascii() and most.isdecimal() and int(most)):
            raise SourceError(f"maxFilesPerTrigger {most}", "no number of files", "write 1 or more")
        return _StreamReader(_Archives.of(self.options), None if most is None else int(most))
