"""The streaming data source of files that come: the driver plans what is read next, executors read it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from feeds.document import Clock, Reject, now_us
from feeds.entries import EntryForm
from feeds.history import Unsettled
from feeds.parts import GRAIN, UNREADABLE, Part
from feeds.tail import ALL_READ, Offset, Piece, Positions, Tail, Waiting, waiting_files
from join_stage.spark.tables import spark_columns
from mmqjp.batches import size_of
from mmqjp.streaming.plans import LARGE, PlanFiles, next_plan, shares
from mmqjp.streaming.rows import ROWS, row_of, to_batches

FORMAT = "mmqjp_files"

_PLAN = "plan"


@dataclass(frozen=True, slots=True)
class Place:
    """A directory, or a file that grows; the form in which the entries of its feeds are read, if it has feeds; and what
    it is called in offsets, its path without that."""

    path: Path
    feeds: EntryForm | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class FileSource:
    """Which files are read and how (see `feeds.tail.Tail`), how large micro-batches and documents may be, in how many
    tasks a micro-batch is read at the most, and how many bytes are worth one.

    What feeds show is left unsettled.
    """

    places: tuple[Place, ...]
    time_xpath: str | None = None
    most: int = 5_000
    most_bytes: int = 16 << 20
    max_document: int | None = None
    tasks: int = 4
    grain: int = GRAIN

    def tails(self, now: Clock = now_us) -> list[Tail]:
        """The places as sources. Raises SourceError."""
        return [
            Tail(path, feeds=feeds, time_xpath=self.time_xpath, history=Unsettled(), name=name, now=now)
            for path, feeds, name in map(attrgetter("path", "feeds", "name"), self.places)
        ]


@dataclass
class Share(InputPartition):
    """What a task reads of a plan of some time: parts in their order, the first of them with its number."""

    time: int
    first: int
    parts: tuple[Part, ...]


class FileReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches of files.

    `positions` tells how far files are read, as it is committed; offsets of Spark's are the numbers of plans.
    """

    def __init__(
        self, source: FileSource, positions: Callable[[], Positions], plans: PlanFiles, now: Clock = now_us
    ) -> None:
        self._source, self._positions, self._plans, self._now = source, positions, plans, now
        self._tails: list[Tail] = []
        self._waiting: list[Waiting] = []
        self._only: set[tuple[str, str]] | None = None
        self._unreadable: set[tuple[str, str]] = set()
        self._last = -1

    # ------------------------------------------------------------ on the driver

    def initialOffset(self) -> dict[str, int]:
        return {_PLAN: 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The number of the next plan, if there is something to read. The limits are the source's own."""
        number, positions = start[_PLAN], self._positions()
        if number != self._last or not self._waiting:
            self._waiting = self._list(positions)
        source = self._source
        plan = next_plan(self._waiting, positions, self._now(), source.most, source.most_bytes, source.grain)
        if not plan.parts:
            return start
        self._unreadable |= {(part.source, part.file) for part in plan.parts if part.end == UNREADABLE}
        self._plans.write(number + 1, plan)
        self._last = number + 1
        return {_PLAN: number + 1}

    def prepareForTriggerAvailableNow(self) -> None:
        """Of what comes from now on, only lines of files that are there are read."""
        self._only = {(waiting.source, waiting.file) for waiting in self._list(self._positions())}

    def _list(self, positions: Positions) -> list[Waiting]:
        self._tails = self._tails or self._source.tails()
        return [waiting for waiting in waiting_files(self._tails, positions) if self._is_wanted(waiting)]

    def _is_wanted(self, waiting: Waiting) -> bool:
        """Whether it is not out of the question: come too late, or told already that it cannot be read."""
        file = waiting.source, waiting.file
        if file in self._unreadable and not os.access(waiting.path, os.R_OK):
            return False
        return self._only is None or file in self._only

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [
            Share(plan.time, first, tuple(parts))
            for number in range(start[_PLAN] + 1, end[_PLAN] + 1)
            for plan in [self._plans.read(number)]
            for first, parts in shares(plan, self._source.tasks, self._source.grain)
        ]

    def commit(self, end: dict[str, int]) -> None:
        self._plans.drop_before(end[_PLAN])

    # ------------------------------------------------------------ on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Share):
            yield from to_batches(self._rows(partition))

    def _rows(self, share: Share) -> Iterator[tuple[Any, ...]]:
        tails = {tail.name: tail for tail in self._source.tails(lambda: share.time)}
        for number, part in enumerate(share.parts, share.first):
            for count, piece in enumerate(_read(tails[part.source], part)):
                yield row_of(number << 32 | count, part.known, piece, self._source.max_document)


def _read(tail: Tail, part: Part) -> Iterator[Piece]:
    """The pieces of a part, up to so many bytes of XML that others have to wait for the next micro-batch."""
    waiting = Waiting(0, part.source, part.file, Path(part.path), tail)
    size = 0
    try:
        for piece in tail.read(waiting, part.start, part.end if part.end >= 0 else None):
            yield piece
            size += 0 if piece.item is None else size_of(piece.item)
            if size >= LARGE:
                return
    except OSError as error:  # it is gone, though it was there when the micro-batch was planned
        reason = f"{part.file}: cannot be read: {error.strerror or error}"
        offset = Offset(part.source, part.file, ALL_READ)
        yield Piece(Reject(part.file, "S", None, reason, b""), offset)


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
