"""The streaming data sources of a service on Spark: files, or any source whose rows have a `value`. For files, the
driver writes a read plan (which splits of which files) before Spark starts a micro-batch; the plan's number is Spark's
offset, so that a repeated micro-batch reads the same splits, and the plan is removed once committed. Executors turn
splits into rows, one per item or bare offset, in source order. A `value` is XML or a JSON record. Also makes our data
sources, and the tables of a store, available in any session."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from math import ceil
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from common.arrays import batch_of_rows, rows_of
from common.executors import in_task
from common.files import write_whole
from common.tools import in_batches
from feeds import readers
from feeds.confined import HurriedError
from feeds.documents import (
    DEFAULT_STREAM,
    Document,
    Now,
    Reject,
    SourceError,
    as_bytes,
    now_us,
    refuse_own_stream,
    unix_time_refusal,
)
from feeds.feed import EntryForm
from feeds.files import FileKind, FileState, file_state, kind_of_file
from feeds.history import (
    EndOfFetch,
    InputItem,
    NotedVisit,
    Sighting,
    decode_sighting,
    encode_sighting,
    fetched_feed,
    size_of,
)
from feeds.json_documents import JsonForm
from feeds.spark.sources import FeedSource, WarcSource
from feeds.splits import GRAIN, NOTED, UNREADABLE, Split, can_be_read, splits_of
from feeds.tail import (
    TURN,
    BlockedFeeds,
    ReadItem,
    Tail,
    WaitingFile,
    in_a_hurry,
    is_little,
    start_thread,
    waiting_files,
)
from join_stage.protocol import FLAT_STORE
from join_stage.store.protocol import StoreSchema
from join_stage.store.spark.manifests import Files, FileTables
from join_stage.store.spark.parquet_store import DATABASE
from join_stage.store.spark.parquet_store import attach_store as _attach
from join_stage.store.spark.session import use_own_python
from mmqjp.documents.admission import size_refusal
from mmqjp.tables.schema import OFFSETS, SCHEMA, SPARK_VIEWS, latest_offsets
from xpath_stage.spark import PACKED, TaskReads, packed_rows

LARGE = 64 << 20
"""Bytes of XML after which the rest of a file is left to a later micro-batch. A file of this size ends its plan."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The splits of a micro-batch, in the order of admission. `time`, in microseconds, is for documents without one."""

    time: int
    splits: tuple[Split, ...] = ()


def next_plan(
    waiting: list[WaitingFile], positions: readers.Positions, time: int, most: int, most_bytes: int, grain: int = GRAIN
) -> ReadPlan:
    """Plans a micro-batch of about `most` documents and `most_bytes` bytes. Removes finished files from `waiting`."""
    splits: list[Split] = []
    documents = size = 0
    while waiting and documents < most and size < most_bytes:
        found = list(splits_of(waiting[0], positions, most - documents, most_bytes - size, grain))
        splits += found
        documents += sum(split.documents for split in found)
        size += sum(split.weight for split in found)
        if found and found[-1].end >= 0 and (documents >= most or size >= most_bytes):
            break  # there may be more lines
        del waiting[0]
        if size >= LARGE:
            waiting.clear()  # to be listed again once this file is read
    return ReadPlan(time, tuple(splits))


def plan_partitions(plan: ReadPlan, most: int, grain: int = GRAIN) -> Iterator[tuple[int, Sequence[Split]]]:
    """Yields about `most` equal parts of at least `grain` bytes: the number of the first split, and the splits."""
    aim = max(sum(split.weight for split in plan.splits) / most, grain)
    first = 0
    for splits in in_batches(plan.splits, len(plan.splits), ceil(aim), attrgetter("weight")):
        yield first, splits
        first += len(splits)


class PlanFiles:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, number: int, plan: ReadPlan) -> None:
        """Writes a plan, perhaps replacing one that Spark never started."""
        self._directory.mkdir(parents=True, exist_ok=True)
        # The keys must stay: an older version may have left plans that have them.
        content = {"time": plan.time, "parts": [astuple(split) for split in plan.splits]}
        write_whole(self._path(number), json.dumps(content))

    def read(self, number: int) -> ReadPlan:
        """Reads a plan. A missing one is empty: its uncommitted files are still waiting."""
        try:
            found = json.loads(self._path(number).read_text("utf-8"))
        except FileNotFoundError:
            return ReadPlan(0)
        return ReadPlan(found["time"], tuple(Split(*split) for split in found["parts"]))

    def drop_before(self, number: int) -> None:
        """Removes the committed plans before a number."""
        for path in self._directory.glob("*.json"):
            if path.stem.isdecimal() and int(path.stem) < number:
                path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number}.json"


_TEXT, _INT, _BYTES = pa.string(), pa.int64(), pa.binary()
ROWS = pa.schema(
    {"place": _INT, "source": _TEXT, "file": _TEXT, "known": _INT, "position": _INT}
    | {"id": _TEXT, "stream": _TEXT, "t0": _INT, "t1": _INT, "xml": _BYTES, "reason": _TEXT, "raw": _BYTES}
    | {"seen": _TEXT, "fingerprint": _TEXT, "known_fingerprint": _TEXT}
)
"""The schema of the rows. `place` is the row's number in the micro-batch; `source`, `file`, `position` and
`fingerprint` are the offset after the row; `known` and `known_fingerprint` are the file's committed offset when the
micro-batch was planned. A document has `xml`; a reject has `reason` and `raw`. A sighting, which has `xml`, the end of
a fetch and a noted visit have in `seen` what the driver needs to judge them. Other rows are bare offsets; one at UNREAD
says by `reason` why its file cannot be read further, and `seen` is its feed's address; one at CUT ends the batch."""

NOWHERE = -2  # a position that no file has
UNREAD = -3  # the position of an unreadable file
CUT = -4  # the position after LARGE bytes of a file, whose rest comes before what follows: both are planned again

ROWS_AT_ONCE = 1_000
BYTES_AT_ONCE = 4 << 20


def row_of(
    place: int, known: int, read: ReadItem[InputItem], max_document: int | None, known_fingerprint: str = ""
) -> tuple[Any, ...]:
    """Returns the row of an item. A document of more than `max_document` bytes becomes a reject."""
    offset, item = read.offset, read.item
    seen = encode_sighting(item) if isinstance(item, Sighting | EndOfFetch | NotedVisit) else None
    if isinstance(item, Sighting):
        item = item.at(item.fetch.time)
    if isinstance(item, Document) and (reason := size_refusal(item, max_document)):
        item, seen = Reject(item.id, item.stream, item.t0, reason, item.xml), None
    columns: tuple[Any, ...] = (None,) * 7
    if isinstance(item, Document):
        columns = item.id, item.stream, item.t0, item.t1, item.xml_bytes(), None, None
    elif isinstance(item, Reject):
        columns = item.id, item.stream, item.time, None, None, item.reason, as_bytes(item.raw)
    where = place, offset.source, offset.file, known, offset.position
    return (*where, *columns, seen, offset.fingerprint or None, known_fingerprint or None)


def _end_row(place: int, split: Split, position: int, reason: str | None = None) -> tuple[Any, ...]:
    """Returns the row that ends what is read of a file: at CUT, or at UNREAD with the reason."""
    feed = None if position == CUT else readers.feed_address(Path(split.path))
    where = place, split.source, split.file, split.known, position
    return (*where, *[None] * 5, reason, None, feed, None, split.known_fingerprint or None)


def to_batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    xml, raw = ROWS.names.index("xml"), ROWS.names.index("raw")
    some = in_batches(rows, ROWS_AT_ONCE, BYTES_AT_ONCE, lambda row: len(row[xml] or row[raw] or b""))
    return (batch_of_rows(batch, ROWS) for batch in some)


def uncommitted(rows: pa.Table, positions: readers.Positions) -> pa.Table:
    """Returns the rows after committed offsets: part of a repeated micro-batch may be committed."""
    names = "source", "file", "known", "known_fingerprint", "position"
    stays = [
        not _is_done(known, fingerprint or "", position, positions.get((source, file)))
        for source, file, known, fingerprint, position in rows_of(rows, *names)
    ]
    return rows.filter(pa.array(stays, pa.bool_()))


def _is_done(known: int, fingerprint: str, position: int, committed: readers.Offset | None) -> bool:
    """Whether an offset is committed. Offsets of a replaced file start again."""
    now = (0, "") if committed is None else (committed.position, committed.fingerprint)
    if now == (known, fingerprint):
        return False
    return now[0] == readers.ALL_READ or readers.ALL_READ != position <= now[0]


def split_unreadable(rows: pa.Table) -> tuple[pa.Table, dict[_FileKey, str]]:
    """Returns the rows of readable files before the first cut, in order, and reasons for the unreadable ones by
    (source, file). It is "" for a file that was replaced, or waits for an unreadable version of its feed."""
    failed: dict[_FileKey, str] = {}
    cut = pc.index(rows["position"], CUT).as_py()
    if cut >= 0:
        rows = rows.slice(0, cut)
    if pc.min(rows["position"]).as_py() != UNREAD:
        return rows, failed
    feeds = {""}
    stays: list[bool] = []
    for source, file, position, reason, seen in rows_of(rows, "source", "file", "position", "reason", "seen"):
        if position == UNREAD:
            failed.setdefault((source, file), reason)
            feeds.add(seen)
        elif seen is not None and len(feeds) > 1 and fetched_feed(seen) in feeds - {""}:
            failed.setdefault((source, file), "")
        stays.append((source, file) not in failed)
    return rows.filter(pa.array(stays, pa.bool_())), failed


def assign_positions(rows: pa.Table, source: str, file: str, batch: int) -> pa.Table:
    """Numbers the rows of a source without offsets, as positions in the given source and file."""
    count, first = len(rows), (batch << 32) + 1
    same = {"source": source, "file": file, "known": NOWHERE, "fingerprint": None, "known_fingerprint": None}
    columns = {name: pa.repeat(pa.scalar(value, ROWS.field(name).type), count) for name, value in same.items()}
    for name, column in (columns | {"position": pa.array(range(first, first + count), _INT)}).items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def decode_items(rows: pa.Table) -> Iterator[ReadItem[InputItem]]:
    """Yields the items of executors' rows: `text` is a decoded document, `unread` the bytes of an undecodable one."""
    where = "source", "file", "position", "fingerprint"
    what = "id", "stream", "t0", "t1", "reason", "raw", "seen", "text", "unread"
    for row in rows_of(rows, *where, *what):
        source, file, position, fingerprint, id, stream, t0, t1, reason, raw, seen, text, unread = row
        offset, xml = readers.Offset(source, file, position, fingerprint or ""), unread if text is None else text
        if seen is not None:
            yield ReadItem(decode_sighting(seen, id, xml), offset)
        elif id is None:
            yield ReadItem(None, offset)
        elif reason is not None:
            yield ReadItem(Reject(id, stream, t0, reason, raw), offset)
        else:
            yield ReadItem(Document(id, xml, stream, (t0, t1)), offset)


FORMAT = "mmqjp_files"

LEFT_FOR = 1_000_000  # microseconds for which what is little is left to the driver

MAX_SKIPS = 16  # maximum number of listings that skip an unreadable file before a retry

_PLAN = "plan"


@dataclass(frozen=True, slots=True)
class SourcePath:
    """A directory or growing file, the form of feed entries (None: no feeds), its name in offsets ("": its path)."""

    path: Path
    feeds: EntryForm | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class FileSource:
    """What to read and how (see `feeds.tail.Tail`). A micro-batch has about `most` documents and `most_bytes` bytes,
    and about `tasks` tasks at most, of at least `grain` bytes. A document of more than `max_document` bytes is a dead
    letter. The driver knows which entries are new. `waits`: what `is_little` to read is left to the driver for
    LEFT_FOR."""

    paths: tuple[SourcePath, ...]
    time_xpath: str | None = None
    json: JsonForm | None = None
    most: int = 5_000
    most_bytes: int = 16 << 20
    max_document: int | None = None
    tasks: int = 4
    grain: int = GRAIN
    waits: bool = False

    def tails(self, now: Now = now_us) -> list[Tail]:
        tail = partial(Tail, time_xpath=self.time_xpath, json=self.json, now=now)
        return [tail(one.path, feeds=one.feeds, name=one.name) for one in self.paths]


_FileKey = tuple[str, str]  # a source and the name of a file in it

_Ahead = dict[_FileKey, tuple[readers.Offset, FileState | None, list[ReadItem[InputItem]], str]]
"""What was read of files: the offset before it, the file's state, the items, and why no more can be ("": it can)."""


@dataclass
class PlanPartition(InputPartition):
    """The part of a plan for one task: splits in order, the number of the first, and the plan's time. A feed that takes
    more than `turn` seconds to parse is left to the driver; `ahead` has what it has read of such files."""

    time: int
    first: int
    splits: tuple[Split, ...]
    turn: int | None = None
    ahead: _Ahead = field(default_factory=dict)


class FileReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches of files. `positions` returns the committed offsets; Spark's are plan numbers."""

    def __init__(
        self, source: FileSource, positions: Callable[[], readers.Positions], plans: PlanFiles, now: Now = now_us
    ) -> None:
        self._source, self._positions, self._plans, self._now = source, positions, plans, now
        self._slow = SlowLane()
        self._has_feeds = any(path.feeds is not None for path in source.paths)
        self._tails: list[Tail] = []
        self._waiting: list[WaitingFile] = []
        self._available: set[_FileKey] | None = None
        self._planned: dict[_FileKey, tuple[readers.Offset | None, Split]] = {}
        self._delays: dict[_FileKey, RetryDelay] = {}
        self._left: dict[tuple[str, str, int], int] = {}
        """When what is left to the driver was first listed, by source, file and position."""
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
            if self._leaves(self._waiting):
                self._waiting = []
                return start
        source = self._source
        plan = next_plan(self._waiting, positions, self._now(), source.most, source.most_bytes, source.grain)
        if not plan.splits:
            return start
        for split in plan.splits:
            file = split.source, split.file
            self._planned.setdefault(file, (positions.get(file), split))
        self._plans.write(number + 1, plan)
        self._last = number + 1
        return {_PLAN: number + 1}

    def _leaves(self, found: list[WaitingFile]) -> bool:
        now, keys = self._now(), ((one.source, one.file, one.start.position) for one in found)
        self._left = {key: self._left.get(key, now) for key in keys}
        if not self._source.waits or self._available is not None:
            return False
        return all(now - since < LEFT_FOR for since in self._left.values()) and is_little(found)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limits reading to the files that exist now, including lines appended later."""
        self._available = {(waiting.source, waiting.file) for waiting in self._list(self._positions())}

    def _note_unread(self, positions: readers.Positions, *, is_done: bool) -> None:
        """Once the last plan is done, delays retries of its unreadable files."""
        feeds: set[str] = set()
        for file, (before, split) in self._planned.items() if is_done else ():
            now, end = positions.get(file), split.end
            if now == before:
                self._waiting.clear()  # files that wait for it are listed again
                feed = readers.feed_address(Path(split.path)) if self._has_feeds else ""
                if feed not in feeds:  # else it only waits for an earlier version of its feed
                    self._delays.setdefault(file, RetryDelay()).failed()
                    self._slow.ahead.pop(file, None)
                    kind = kind_of_file(split.file, feeds=True)
                    if end == readers.ALL_READ and self._has_feeds and kind in (FileKind.FEED, FileKind.WARC):
                        self._slow.waiting.add(file)
                    if feed or not feeds:  # it does not wait, so it was not cut: what is after it was read
                        feeds |= {feed} - {""}
                        continue
            else:
                self._delays.pop(file, None)
            if end == readers.ALL_READ and (now is None or now.position != end):
                self._waiting.clear()  # unreadable or cut: perhaps nothing after it was read
                break
        self._planned.clear()

    def _list(self, positions: readers.Positions) -> list[WaitingFile]:
        self._tails = self._tails or self._source.tails()
        found = waiting_files(self._tails, positions)
        there = {(waiting.source, waiting.file): waiting for waiting in found}
        self._delays = {file: delay for file, delay in self._delays.items() if file in there}
        delayed = {file for file, delay in self._delays.items() if self._available is not None or not delay.is_over()}
        self._slow.go_on(there)
        ready = {file for file, (*_, reason) in self._slow.ahead.copy().items() if not reason}
        delayed = (delayed | self._slow.waiting) - ready
        blocked, readable = BlockedFeeds(), []
        for waiting in found:  # but what is late, delayed, or after a delayed version of its feed
            file = waiting.source, waiting.file
            if not blocked.has(waiting) and (self._available is None or file in self._available):
                if file in delayed:
                    blocked.add(waiting)
                else:
                    readable.append(waiting)
        return readable

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        turn, ahead = TURN if self._available is None else None, self._slow.ahead.copy()
        return [
            PlanPartition(plan.time, first, tuple(splits), turn, {file: ahead[file] for file in files & ahead.keys()})
            for number in range(start[_PLAN] + 1, end[_PLAN] + 1)
            for plan in [self._plans.read(number)]
            for first, splits in plan_partitions(plan, self._source.tasks, self._source.grain)
            for files in [{(split.source, split.file) for split in splits}]
        ]

    def parts(self, checkpoint: Path, batch: int) -> TaskReads | None:
        """What a micro-batch reads, by Spark's log. None unless it is JSON lines: of others, some are read ahead."""
        logs = [checkpoint / "offsets" / str(number) for number in (batch - 1, batch)]
        start, end = (json.loads(log.read_bytes().splitlines()[-1]) if log.exists() else {_PLAN: 0} for log in logs)
        parts: list[Any] = self.partitions(start, end)
        is_lines = all(split.end >= 0 for part in parts for split in part.splits)
        return TaskReads(self.read, parts) if parts and is_lines else None

    def commit(self, end: dict[str, int]) -> None:
        self._plans.drop_before(end[_PLAN])

    # ------------------------------------------------------------ on executors

    @in_task
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, PlanPartition):
            yield from map(packed_rows, to_batches(self._rows(partition)))

    def _rows(self, partition: PlanPartition) -> Iterator[tuple[Any, ...]]:
        tails = {tail.name: tail for tail in self._source.tails(lambda: partition.time)}
        for number, split in enumerate(partition.splits, partition.first):
            count = size = 0
            offset, _, found, reason = partition.ahead.get((split.source, split.file), (None, (), [], ""))
            is_ahead = offset is not None and offset.position == split.start and split.end == readers.ALL_READ
            items = iter(found) if is_ahead else in_a_hurry(_read(tails[split.source], split), partition.turn)
            try:
                for count, read in enumerate(items, 1):
                    place = number << 32 | count
                    yield row_of(place, split.known, read, self._source.max_document, split.known_fingerprint)
                    size += size_of(read.item) or 0
                    if split.end == readers.ALL_READ and size >= LARGE:
                        yield _end_row(place + 1, split, CUT)
                        return
                if not (is_ahead and reason):
                    continue
            except HurriedError:
                reason = ""
            except OSError as error:
                if not readers.is_unreadable(error):
                    raise
                reason = "" if isinstance(error, readers.ReplacedError) else readers.read_error_text(error)
            yield _end_row(number << 32 | count + 1, split, UNREAD, reason)


class SlowLane:
    """Reads files that executors could not, or not within their turn: on the driver, one at a time, in a thread.
    `waiting` has the files that it will read, and `ahead` what it has read: up to LARGE bytes of a file, and why it
    cannot be read further, which an executor reports."""

    def __init__(self) -> None:
        self.waiting: set[_FileKey] = set()
        self.ahead: _Ahead = {}
        self._is_reading = False

    def go_on(self, there: Mapping[_FileKey, WaitingFile]) -> None:
        for file, (offset, state, *_) in [*self.ahead.items()]:
            if file not in there or there[file].start != offset or file_state(there[file].path) != state:
                del self.ahead[file]
        if not self._is_reading:
            self.waiting &= there.keys()
            if self.waiting:
                self._is_reading = True
                start_thread(partial(self._read, min(self.waiting), there[min(self.waiting)]))

    def _read(self, file: _FileKey, waiting: WaitingFile) -> None:
        items: list[ReadItem[InputItem]] = []
        size, reason, state = 0, "", file_state(waiting.path)
        try:
            for read in waiting.read():
                items.append(read)
                size += size_of(read.item) or 0
                if size >= LARGE:
                    break
        except readers.ReplacedError:
            items.clear()
        except Exception as error:  # an executor reports it: by itself it would leave the file to this thread
            reason = readers.read_error_text(error) if isinstance(error, OSError) else f"cannot be read: {error!r}"
        finally:
            if items or reason:
                self.ahead[file] = waiting.start, state, items, reason
            self.waiting.discard(file)
            self._is_reading = False


class RetryDelay:
    """The number of listings that skip an unreadable file: doubles with each attempt, up to MAX_SKIPS."""

    def __init__(self) -> None:
        self._skips = self._left = 0

    def failed(self) -> None:
        self._skips = self._left = min(max(1, 2 * self._skips), MAX_SKIPS)

    def is_over(self) -> bool:
        """Whether to retry. Must be called once in each listing."""
        self._left -= 1
        return self._left < 0


def _read(tail: Tail, split: Split) -> Iterator[ReadItem[InputItem]]:
    start = readers.Offset(split.source, split.file, split.start, split.start_fingerprint)
    reads, lines = split.end != NOTED, split.end != readers.ALL_READ
    waiting = WaitingFile(reads, 0, split.source, split.file, Path(split.path), tail, start, None, lines)
    if split.end == UNREADABLE:
        can_be_read(waiting.path)
        raise readers.ReplacedError(f"{split.file} can be read again")
    stop = readers.Offset(split.source, split.file, split.end, split.end_fingerprint)
    yield from waiting.read(stop if split.end >= 0 else None)


def file_source(source: FileSource, positions: Callable[[], readers.Positions], plans: Path) -> type[DataSource]:
    """Returns the data source for `readStream`. Executors must see the files under the same paths."""

    class Files(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            return f"{PACKED} BINARY"

        def streamReader(self, schema: object) -> FileReader:
            return FileReader(source, positions, PlanFiles(plans))

    return Files


class StoredPositions:
    """Returns a store's committed offsets, read by another process; rereads them only after changes."""

    def __init__(self, state: Path) -> None:
        self._state = state.absolute()
        self._files: Files = {}
        self._positions: readers.Positions = {}

    def __call__(self) -> readers.Positions:
        tables = FileTables(StoreSchema({"offsets": OFFSETS}), self._state)
        if tables.files != self._files:
            self._positions = latest_offsets(tables.read("offsets"))
            self._files = tables.files
        return self._positions


VALUES = ("value", "xml")  # The columns that may hold a document. The first one present is used.


def rows_frame(frame: DataFrame, source: str, max_document: int | None, json: JsonForm | None = None) -> DataFrame:
    """Returns the documents of a streaming source as rows of `ROWS`, without offsets, which Spark stores itself.
    Documents of more than `max_document` bytes are rejects. Raises SourceError if no column holds documents. The id of
    an XML document is the column `id`, else Kafka's `topic/partition/offset`, else a hash; its stream is the column
    `stream`, else the `topic`, else S; its time is the column `time`, else the `timestamp`, else now. JSON has these
    itself, unless it is a document (`json`).
    """
    value = next((name for name in VALUES if name in frame.columns), None)
    if value is None:
        hint = f"it has {', '.join(frame.columns) or 'none'}"
        raise SourceError(source, f"no column is called {' or '.join(VALUES)}", hint)
    kinds, none, kafka = dict(frame.dtypes), f.lit(None), ("topic", "partition", "offset")
    ids = [f.col("id")] if "id" in kinds else []
    if kinds.keys() >= {*kafka}:
        ids.append(f.concat_ws("/", *(f.col(name).cast("string") for name in kafka)))
    streams = [f.col(name).cast("string") for name in ("stream", "topic") if name in kinds]
    times = [name for name in ("time", "timestamp") if name in kinds]
    numbers = [name for name in times if kinds[name] in ("bigint", "int")]  # which are microseconds
    micros = [f.col(name) if name in numbers else f.unix_micros(f.col(name).cast("timestamp")) for name in times]
    chosen = frame.select(
        f.col(value).cast("binary").alias("value"),
        f.coalesce(*(id.cast("string") for id in ids), none).cast("string").alias("id"),
        f.coalesce(*streams, none).cast("string").alias("stream"),
        f.coalesce(*(time.cast("bigint") for time in micros), none).cast("bigint").alias("time"),
    )

    @in_task
    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        first = (0 if context is None else context.partitionId()) << 32
        found = _rows(batches, first, source, max_document, json, is_number=bool(numbers))
        return map(packed_rows, to_batches(found))

    return chosen.mapInArrow(rows, f"{PACKED} BINARY")


def _rows(
    batches: Iterable[pa.RecordBatch],
    first: int,
    source: str,
    max_document: int | None,
    json: JsonForm | None,
    *,
    is_number: bool,
) -> Iterator[tuple[Any, ...]]:
    place = first
    for batch in batches:
        for value, id, stream, time in rows_of(batch, "value", "id", "stream", "time"):
            if value is not None:
                item = _item(value, id, stream, time, source, json, is_number=is_number)
                yield row_of(place, 0, ReadItem(item, readers.Offset("", "", 0)), max_document)
                place += 1


def _item(
    value: bytes,
    id: str | None,
    stream: str | None,
    time: int | None,
    source: str,
    json: JsonForm | None,
    *,
    is_number: bool,
) -> Document | Reject:
    """Returns the document or reject of a row. `is_number`: the time column is numeric."""
    read_at = now_us() if time is None else time
    name = id or blake2b(value + str(time).encode(), digest_size=16).hexdigest()
    if json is None and value.lstrip().startswith(b"{"):
        return readers.read_line(value, f"{source}: {name}", lambda: read_at)
    try:
        if is_number and (refusal := unix_time_refusal(time)) is not None:
            raise ValueError(refusal)
        refuse_own_stream(stream)
        if json is not None:
            typed = json == "typed"
            return readers.read_json(value, name, stream or DEFAULT_STREAM, read_at, now_us, typed=typed)
        return Document(name, value, stream or DEFAULT_STREAM, read_at)
    except ValueError as error:
        return Reject(name, stream or DEFAULT_STREAM, None, f"{source}: {name}: {error}", value)


PLANS = "plans"  # the folder inside a checkpoint that holds the read plans


@dataclass(frozen=True, slots=True)
class ValueSource:
    """A streaming source of Spark: name, options, and maximum size of a document in bytes. With `json`, its values are
    documents in JSON themselves."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    max_document: int | None = None
    json: JsonForm | None = None


def streaming_frame(
    session: SparkSession, source: FileSource | ValueSource, state: Path, checkpoint: Path
) -> DataFrame:
    """Returns a streaming data frame of `mmqjp.spark.source.ROWS`, in a new session. `state` is the directory of an
    existing store, `checkpoint` Spark's directory for the query's state. Raises SourceError."""
    own = session.newSession()
    if isinstance(source, ValueSource):
        own.conf.set("spark.sql.streaming.schemaInference", "true")
        try:
            frame = own.readStream.format(source.name).options(**source.options).load()
        except (PySparkException, Py4JJavaError) as error:
            message = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
            cause = message.strip().splitlines()[0].rstrip(".")
            raise SourceError(source.name, cause, "is its connector among the packages of this application?") from None
        return rows_frame(frame, source.name, source.max_document, source.json)
    # Spark's default takes three times as long for the files of a local checkpoint.
    managers = "org.apache.spark.sql.execution.streaming.checkpointing"
    own.conf.set("spark.sql.streaming.checkpointFileManagerClass", f"{managers}.FileSystemBasedCheckpointFileManager")
    tasks = 2 * session.sparkContext.defaultParallelism
    known = StoredPositions(state)
    own.dataSource.register(file_source(replace(source, tasks=tasks), known, checkpoint.absolute() / PLANS))
    return own.readStream.format(FORMAT).load()


def file_reader(session: SparkSession, source: FileSource, checkpoint: Path) -> FileReader:
    """A reader for `FileReader.parts`."""
    tasks = session.sparkContext.defaultParallelism
    return FileReader(replace(source, tasks=tasks), dict, PlanFiles(checkpoint.absolute() / PLANS))


def attach(spark: SparkSession, warehouse: Path | str, database: str = DATABASE) -> None:
    """Makes the store in the directory `warehouse` readable in a session, as a database.

    The database has the tables `documents`, `outputs`, `dead_letters`, `batches`, `r_bin`, `r_doc` and `r_docts`, and
    the views `items`, `versions`, `queries`, `matches`, `costs` and `r_t_0`, `r_t_1`, ...

    The database exists for all sessions, but each session chooses, and may change, which store it shows. A query sees
    the batches committed when it is planned, including those after this call. Call again for the views of templates
    added later. Executors need this package. Raises StoreError if there is no store, or the database has a table that
    is not ours.
    """
    use_own_python(spark)
    _attach(spark, FLAT_STORE | SCHEMA | StoreSchema(views=SPARK_VIEWS), Path(warehouse), database)


def register(spark: SparkSession) -> None:
    """Registers the data sources `mmqjp_warc` (WARC) and `mmqjp_feeds` (live feeds). Executors need this package."""
    use_own_python(spark)
    for source in (WarcSource, FeedSource):
        spark.dataSource.register(source)
