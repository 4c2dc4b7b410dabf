"""The streaming data source of files that come: the driver plans what is read next, executors read it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from feeds.document import Clock, now_us
from feeds.entries import EntryForm
from feeds.offsets import ALL_READ, Offset, Positions
from feeds.order import feed_address
from feeds.sightings import Item, size_of
from feeds.splits import GRAIN, NOTED, UNREADABLE, Split, can_be_read
from feeds.tail import ReadItem, Tail, WaitingFile, waiting_files
from feeds.unreadable import ReplacedError, cause, is_unreadable
from feeds.waiting import BlockedFeeds
from join_stage.store.spark.tables import spark_columns
from mmqjp.spark.batch_plan import LARGE, PlanFiles, next_plan, shares
from mmqjp.spark.micro_batch import ROWS, row_of, to_batches, unread_row

FORMAT = "mmqjp_files"

LONGEST = 16
"""For so many looks, at the most, a file is let rest that could not be read."""

_PLAN = "plan"


@dataclass(frozen=True, slots=True)
class SourcePath:
    """A directory, or a file that grows; the form in which the entries of its feeds are read, None if it has none; and
    its name in offsets, by default its path."""

    path: Path
    feeds: EntryForm | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class FileSource:
    """Which files are read and how (see `feeds.tail.Tail`), how large micro-batches and documents may be, in how many
    tasks a micro-batch is read at most, and how many bytes are worth one.

    What feeds show is judged by the driver.
    """

    paths: tuple[SourcePath, ...]
    time_xpath: str | None = None
    most: int = 5_000
    most_bytes: int = 16 << 20
    max_document: int | None = None
    tasks: int = 4
    grain: int = GRAIN

    def tails(self, now: Clock = now_us) -> list[Tail]:
        """The paths as sources. Raises SourceError."""
        return [
            Tail(path, feeds=feeds, time_xpath=self.time_xpath, name=name, now=now)
            for path, feeds, name in map(attrgetter("path", "feeds", "name"), self.paths)
        ]


@dataclass
class Share(InputPartition):
    """What a task reads of a plan: splits in their order, `first` the number of the first, and the time of the plan."""

    time: int
    first: int
    splits: tuple[Split, ...]


class FileReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches of files.

    `positions` tells how far files are read, as it is committed; offsets of Spark's are the numbers of plans.
    """

    def __init__(
        self, source: FileSource, positions: Callable[[], Positions], plans: PlanFiles, now: Clock = now_us
    ) -> None:
        self._source, self._positions, self._plans, self._now = source, positions, plans, now
        self._tails: list[Tail] = []
        self._waiting: list[WaitingFile] = []
        self._only: set[tuple[str, str]] | None = None
        self._planned: dict[tuple[str, str], Offset | None] = {}
        self._tries: dict[tuple[str, str], Tries] = {}
        self._last = -1

    # ------------------------------------------------------------ on the driver

    def initialOffset(self) -> dict[str, int]:
        return {_PLAN: 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The number of the next plan, if there is something to read. The limits are the source's own."""
        number, positions = start[_PLAN], self._positions()
        self._judge(positions, is_done=number == self._last)
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
        """Of what comes from now on, only lines of files that are there are read."""
        self._only = {(waiting.source, waiting.file) for waiting in self._list(self._positions())}

    def _judge(self, positions: Positions, *, is_done: bool) -> None:
        """Notes which files the last plan had that are read no further, once it is done: they could not be, and are let
        rest."""
        for file, before in self._planned.items() if is_done else ():
            if positions.get(file) != before:
                self._tries.pop(file, None)
                continue
            self._tries.setdefault(file, Tries()).failed()
            self._waiting.clear()  # what waits for it is found anew
        self._planned.clear()

    def _list(self, positions: Positions) -> list[WaitingFile]:
        self._tails = self._tails or self._source.tails()
        found = waiting_files(self._tails, positions)
        there = {(waiting.source, waiting.file) for waiting in found}
        self._tries = {file: tries for file, tries in self._tries.items() if file in there}
        resting = {file for file, tries in self._tries.items() if self._only is not None or not tries.are_due()}
        blocked = BlockedFeeds()
        return [waiting for waiting in found if self._is_wanted(waiting, resting, blocked)]

    def _is_wanted(self, waiting: WaitingFile, resting: Container[tuple[str, str]], blocked: BlockedFeeds) -> bool:
        """Whether a file did not come too late, is not let rest, and has not to wait for another version of its feed
        that is."""
        file = waiting.source, waiting.file
        if blocked.has(waiting) or (self._only is not None and file not in self._only):
            return False
        if file in resting:
            blocked.add(waiting)
        return file not in resting

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [
            Share(plan.time, first, tuple(splits))
            for number in range(start[_PLAN] + 1, end[_PLAN] + 1)
            for plan in [self._plans.read(number)]
            for first, splits in shares(plan, self._source.tasks, self._source.grain)
        ]

    def commit(self, end: dict[str, int]) -> None:
        self._plans.drop_before(end[_PLAN])

    # ------------------------------------------------------------ on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Share):
            yield from to_batches(self._rows(partition))

    def _rows(self, share: Share) -> Iterator[tuple[Any, ...]]:
        tails = {tail.name: tail for tail in self._source.tails(lambda: share.time)}
        for number, split in enumerate(share.splits, share.first):
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


class Tries:
    """Vain tries to read a file: it is let rest for twice as many looks after each, up to LONGEST."""

    def __init__(self) -> None:
        self._rest = self._left = 0

    def failed(self) -> None:
        self._rest = self._left = min(max(1, 2 * self._rest), LONGEST)

    def are_due(self) -> bool:
        """Whether it is time for another; asked once a look."""
        self._left -= 1
        return self._left < 0


def _read(tail: Tail, split: Split) -> Iterator[ReadItem[Item]]:
    """The items of a split. After LARGE bytes of XML the rest waits for the next micro-batch. Raises OSError if it
    cannot be read."""
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
    """The data source for `readStream`. Executors find the files under the same paths."""

    class Files(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            return spark_columns(ROWS)

        def streamReader(self, schema: object) -> FileReader:
            return FileReader(source, positions, PlanFiles(plans))

    return Files
