"""The streaming data source for files as they arrive: the driver plans what to read next, executors read it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from feeds.entries import EntryForm
from feeds.offsets import ALL_READ, Offset, Positions
from feeds.order import feed_address
from feeds.sightings import Item, size_of
from feeds.splits import GRAIN, NOTED, UNREADABLE, Split, can_be_read
from feeds.tail import ReadItem, Tail, WaitingFile, waiting_files
from feeds.times import Now, now_us
from feeds.unreadable import ReplacedError, cause, is_unreadable
from feeds.waiting import BlockedFeeds
from join_stage.store.spark.tables import spark_columns
from mmqjp.spark.batch_plan import LARGE, PlanFiles, next_plan, plan_partitions
from mmqjp.spark.micro_batch import ROWS, row_of, to_batches, unread_row

FORMAT = "mmqjp_files"

MAX_SKIPS = 16
"""The most listings for which a file that could not be read is skipped before the next attempt."""

_PLAN = "plan"


@dataclass(frozen=True, slots=True)
class SourcePath:
    """A directory, or a file that grows.

    `feeds` is the form in which the entries of its feeds are read (None: it has no feeds). `name` is its name in
    offsets, by default its path.
    """

    path: Path
    feeds: EntryForm | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class FileSource:
    """What to read and how (see `feeds.tail.Tail`).

    A micro-batch has about `most` documents and `most_bytes` bytes. It is read by at most about `tasks` tasks, of at
    least `grain` bytes each. A document of more than `max_document` bytes is a dead letter. Executors only read feeds;
    which entries are new is judged by the driver.
    """

    paths: tuple[SourcePath, ...]
    time_xpath: str | None = None
    most: int = 5_000
    most_bytes: int = 16 << 20
    max_document: int | None = None
    tasks: int = 4
    grain: int = GRAIN

    def tails(self, now: Now = now_us) -> list[Tail]:
        """The sources for the paths. Raises SourceError."""
        return [
            Tail(path, feeds=feeds, time_xpath=self.time_xpath, name=name, now=now)
            for path, feeds, name in map(attrgetter("path", "feeds", "name"), self.paths)
        ]


@dataclass
class PlanPartition(InputPartition):
    """The part of a plan that one task reads: splits in order, the number of the first one, and the plan's time."""

    time: int
    first: int
    splits: tuple[Split, ...]


class FileReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches of files.

    `positions` returns the committed offsets of the files. The offsets that Spark sees are the numbers of plans.
    """

    def __init__(
        self, source: FileSource, positions: Callable[[], Positions], plans: PlanFiles, now: Now = now_us
    ) -> None:
        self._source, self._positions, self._plans, self._now = source, positions, plans, now
        self._tails: list[Tail] = []
        self._waiting: list[WaitingFile] = []
        self._available: set[tuple[str, str]] | None = None
        self._planned: dict[tuple[str, str], Offset | None] = {}
        self._delays: dict[tuple[str, str], RetryDelay] = {}
        self._last = -1

    # ------------------------------------------------------------ on the driver

    def initialOffset(self) -> dict[str, int]:
        return {_PLAN: 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Plans the next micro-batch and returns its number; `start` if there is nothing to read. Ignores `limit`."""
        number, positions = start[_PLAN], self._positions()
        self._note_unread(positions, is_done=number == self._last)
        if number != self._last or not self._waiting:
            self._waiting = self._list(positions)
        source = self._source
        plan = next_plan(self._waiting, positions, self._now(), source.most, source.most_bytes, source.grain)
        if not plan.splits:
            return start
        for split in plan.splits:
            self._planned.setdefault((split.source, split.file), positions.get((split.source, split.file)))
        self._plans.write(number + 1, plan)
        self._last = number + 1
        return {_PLAN: number + 1}

    def prepareForTriggerAvailableNow(self) -> None:
        """Limits reading to the files that exist now. Lines that are added to them later are still read."""
        self._available = {(waiting.source, waiting.file) for waiting in self._list(self._positions())}

    def _note_unread(self, positions: Positions, *, is_done: bool) -> None:
        """Once the last plan is done, delays the next attempt at those of its files that could not be read further."""
        for file, before in self._planned.items() if is_done else ():
            if positions.get(file) != before:
                self._delays.pop(file, None)
                continue
            self._delays.setdefault(file, RetryDelay()).failed()
            self._waiting.clear()  # files that wait for it are listed again
        self._planned.clear()

    def _list(self, positions: Positions) -> list[WaitingFile]:
        self._tails = self._tails or self._source.tails()
        found = waiting_files(self._tails, positions)
        there = {(waiting.source, waiting.file) for waiting in found}
        self._delays = {file: delay for file, delay in self._delays.items() if file in there}
        delayed = {file for file, delay in self._delays.items() if self._available is not None or not delay.is_over()}
        blocked = BlockedFeeds()
        return [waiting for waiting in found if self._is_readable(waiting, delayed, blocked)]

    def _is_readable(self, waiting: WaitingFile, delayed: Container[tuple[str, str]], blocked: BlockedFeeds) -> bool:
        """Whether to read a file now: it did not arrive too late, is not delayed, and follows no delayed version of its
        feed."""
        file = waiting.source, waiting.file
        if blocked.has(waiting) or (self._available is not None and file not in self._available):
            return False
        if file in delayed:
            blocked.add(waiting)
        return file not in delayed

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [
            PlanPartition(plan.time, first, tuple(splits))
            for number in range(start[_PLAN] + 1, end[_PLAN] + 1)
            for plan in [self._plans.read(number)]
            for first, splits in plan_partitions(plan, self._source.tasks, self._source.grain)
        ]

    def commit(self, end: dict[str, int]) -> None:
        self._plans.drop_before(end[_PLAN])

    # ------------------------------------------------------------ on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, PlanPartition):
            yield from to_batches(self._rows(partition))

    def _rows(self, partition: PlanPartition) -> Iterator[tuple[Any, ...]]:
        tails = {tail.name: tail for tail in self._source.tails(lambda: partition.time)}
        for number, split in enumerate(partition.splits, partition.first):
            count = 0
            try:
                for count, read in enumerate(_read(tails[split.source], split), 1):
                    place = number << 32 | count
                    yield row_of(place, split.known, read, self._source.max_document, split.known_fingerprint)
            except OSError as error:
                if not is_unreadable(error):
                    raise
                reason = "" if isinstance(error, ReplacedError) else cause(error)
                yield unread_row(number << 32 | count + 1, split, reason, feed_address(Path(split.path)))


class RetryDelay:
    """How many listings to skip a file that could not be read: twice as many after each attempt, up to MAX_SKIPS."""

    def __init__(self) -> None:
        self._skips = self._left = 0

    def failed(self) -> None:
        self._skips = self._left = min(max(1, 2 * self._skips), MAX_SKIPS)

    def is_over(self) -> bool:
        """Whether it is time for another attempt. Must be called once in each listing."""
        self._left -= 1
        return self._left < 0


def _read(tail: Tail, split: Split) -> Iterator[ReadItem[Item]]:
    """The items of a split. After LARGE bytes of XML the rest is left to the next micro-batch.

    Raises OSError if the file cannot be read.
    """
    start = Offset(split.source, split.file, split.start, split.start_fingerprint)
    reads, lines = split.end != NOTED, split.end != ALL_READ
    waiting = WaitingFile(reads, 0, split.source, split.file, Path(split.path), tail, start, None, lines=lines)
    if split.end == UNREADABLE:
        can_be_read(waiting.path)
        raise ReplacedError(f"{split.file} can be read again")
    size = 0
    for read in waiting.read(split.end if split.end >= 0 else None, split.end_fingerprint):
        yield read
        size += 0 if read.item is None else size_of(read.item)
        if size >= LARGE:
            return


def file_source(source: FileSource, positions: Callable[[], Positions], plans: Path) -> type[DataSource]:
    """The data source for `readStream`. Executors must see the files under the same paths."""

    class Files(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            return spark_columns(ROWS)

        def streamReader(self, schema: object) -> FileReader:
            return FileReader(source, positions, PlanFiles(plans))

    return Files
