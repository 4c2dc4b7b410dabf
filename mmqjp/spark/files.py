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
from feeds.parts import GRAIN, NOTED, UNREADABLE, Part, can_be_read
from feeds.reading import Held
from feeds.sightings import Item, size_of
from feeds.tail import Piece, Tail, Waiting, waiting_files
from feeds.unreadable import ReplacedError, cause, is_unreadable
from join_stage.store.spark.tables import spark_columns
from mmqjp.spark.batch_plan import LARGE, PlanFiles, next_plan, shares
from mmqjp.spark.micro_batch import ROWS, row_of, to_batches, unread_row

FORMAT = "mmqjp_files"

LONGEST = 16
"""For so many looks, at the most, a file is let rest that could not be read."""

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

    What feeds show is judged by the driver.
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
            Tail(path, feeds=feeds, time_xpath=self.time_xpath, name=name, now=now)
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
        if not plan.parts:
            return start
        for part in plan.parts:
            self._planned.setdefault((part.source, part.file), positions.get((part.source, part.file)))
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

    def _list(self, positions: Positions) -> list[Waiting]:
        self._tails = self._tails or self._source.tails()
        found = waiting_files(self._tails, positions)
        there = {(waiting.source, waiting.file) for waiting in found}
        self._tries = {file: tries for file, tries in self._tries.items() if file in there}
        resting = {file for file, tries in self._tries.items() if self._only is not None or not tries.are_due()}
        held = Held()
        return [waiting for waiting in found if self._is_wanted(waiting, resting, held)]

    def _is_wanted(self, waiting: Waiting, resting: Container[tuple[str, str]], held: Held) -> bool:
        """Whether a file did not come too late, is not let rest, and has not to wait for another version of its feed
        that is."""
        file = waiting.source, waiting.file
        if held.holds(waiting) or (self._only is not None and file not in self._only):
            return False
        if file in resting:
            held.add(waiting)
        return file not in resting

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
            count = 0
            try:
                for count, piece in enumerate(_read(tails[part.source], part), 1):
                    place = number << 32 | count
                    yield row_of(place, part.known, piece, self._source.max_document, part.before)
            except OSError as error:
                if not is_unreadable(error):
                    raise
                reason = "" if isinstance(error, ReplacedError) else cause(error)
                yield unread_row(number << 32 | count + 1, part, reason, feed_address(Path(part.path)))


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


def _read(tail: Tail, part: Part) -> Iterator[Piece[Item]]:
    """The pieces of a part, up to so many bytes of XML that others have to wait for the next micro-batch. Raises
    OSError where it cannot be read."""
    start = Offset(part.source, part.file, part.start, part.mark)
    reads, lines = part.end != NOTED, part.end != ALL_READ
    waiting = Waiting(reads, 0, part.source, part.file, Path(part.path), tail, start, None, lines=lines)
    if part.end == UNREADABLE:
        can_be_read(waiting.path)
        raise ReplacedError(f"{part.file} can be read again")
    size = 0
    for piece in waiting.read(part.end if part.end >= 0 else None, part.seal):
        yield piece
        size += 0 if piece.item is None else size_of(piece.item)
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
