"""Spark data sources `mmqjp_feeds` (live feeds) and `mmqjp_warc` (WARC files), and streams of drop directories.

Drops are found by `binaryFile` and parsed on the executors; WARC files have a partition each. Live feeds are fetched by
the driver into an inbox, one SQLite file whose segments are written in one transaction with file offsets and entry
history: a batch that Spark plans again has the same rows, and no entry comes twice.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from lxml import etree
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from common.arrays import batch_of_rows, packed, unpacked
from common.dates import DAY, SECOND
from common.files import make_private_file
from common.tools import in_batches
from common.xml import read_prolog, xml_parser
from feeds.documents import Document, Reject, SourceError, SourceItem, Visit, as_bytes, now_us
from feeds.feed import EntryForm
from feeds.fetch.fetcher import Job, Settings, own_agent, remove_read
from feeds.fetch.lists import read_feed_lists
from feeds.fetch.state import Pace
from feeds.files import FEED_SUFFIX, FEED_SUFFIXES, FileKind, name_below, printable
from feeds.history import History, size_of
from feeds.readers import ALL_READ, Offset, fetch_time, or_reject, read_feed_file, read_warc
from feeds.splits import can_be_read
from feeds.tail import Listing, ReadItem, Tail, Turns, judged, sort_files, waiting_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "id STRING, stream STRING, t0 BIGINT, t1 BIGINT, xml STRING, reason STRING, raw BINARY"
"""A document has no `reason` and `raw`; a reject has no `xml`, and nulls for unknowns. Times are microseconds of
UTC."""

_TEXT, _INT, _RAW = pa.string(), pa.int64(), pa.binary()
SCHEMA = pa.schema({"id": _TEXT, "stream": _TEXT, "t0": _INT, "t1": _INT, "xml": _TEXT, "reason": _TEXT, "raw": _RAW})
"""COLUMNS for Arrow."""

ROWS, BYTES = 1_000, 8 * 1024 * 1024  # rows and characters at which a batch ends


def row_batches(items: Iterable[SourceItem]) -> Iterator[pa.RecordBatch]:
    rows = (item for item in items if not isinstance(item, Visit))
    return (batch_of_rows(map(_row, some), SCHEMA) for some in in_batches(rows, ROWS, BYTES, size_of))


def _row(item: Document | Reject) -> tuple[object, ...]:
    if isinstance(item, Document):
        try:
            return item.id, item.stream, item.t0, item.t1, _text(item), None, None
        except (etree.XMLSyntaxError, ValueError) as error:
            cause = f"not well-formed: {error}" if isinstance(error, etree.XMLSyntaxError) else error
            item = Reject(item.id, item.stream, item.t1, f"{item.id}: {cause}", item.xml)
    return item.id, item.stream, item.time, item.time, None, item.reason, as_bytes(item.raw)


def _text(document: Document) -> str:
    """The document without an encoding declaration. Anything but plain UTF-8 is parsed and serialised again."""
    data = document.xml_bytes()
    if not data.lstrip().startswith(b"<?xml"):
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            pass
    if refused := read_prolog(data).refused:  # the DOCTYPE is not written
        raise ValueError(refused)
    return etree.tostring(etree.fromstring(data, xml_parser()), encoding="unicode")


def local_path(address: str) -> Path:
    """The path, or that of a `file:` address. Raises SourceError for any other scheme."""
    parts = urlsplit(address)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if parts.scheme and "://" in address:
        hint = "name a directory that the driver and the executors share"
        raise SourceError(address, f"{parts.scheme}: addresses cannot be read", hint)
    return Path(address).absolute()


def entry_form(value: str | None) -> EntryForm | None:
    """The form of entries that an option names; None if unset. Raises SourceError for any other value."""
    if value not in (None, "item", "raw"):
        raise SourceError(str(value), "no form of entries", "feeds is item or raw; lists names lists of feeds")
    return cast("EntryForm | None", value)


_SUFFIXES = ",".join(sorted(suffix.removeprefix(".") for suffix in FEED_SUFFIXES))
FILES = {"recursiveFileLookup": "true", "pathGlobFilter": f"*.{{{_SUFFIXES}}}"}
"""The options of `binaryFile` for the feeds in a directory."""

_FILE = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"


def drops(
    session: SparkSession, directory: Path | str, feeds: EntryForm = "item", most_files: int | None = None
) -> DataFrame:
    """A streaming frame of the entries of the feeds in a directory; a batch has at most `most_files` files. Sidecars
    are read by path, so the driver and the executors need the same directory. Each file is read alone: an entry that
    the next version of its feed still lists comes again, with the same id."""
    root = local_path(str(directory))
    stream = session.readStream.format("binaryFile").schema(_FILE).options(**FILES)
    if most_files is not None:
        stream = stream.option("maxFilesPerTrigger", most_files)
    return entries(stream.load(str(root)), root, feeds)


def entries(files: DataFrame, root: Path, form: EntryForm) -> DataFrame:
    # The bytes are read by path, like the sidecar: Spark does not read a column that is not selected.
    return files.select("path").mapInArrow(partial(_entries, root=str(root), form=form), COLUMNS)


def _entries(batches: Iterator[pa.RecordBatch], root: str, form: EntryForm) -> Iterator[pa.RecordBatch]:
    def items() -> Iterator[SourceItem]:
        for batch in batches:
            for address in batch.column("path").to_pylist():
                path = Path(address.removeprefix("file:"))  # Spark does not percent-encode it
                name = name_below(path, Path(root))
                yield from History().settle(or_reject(read_feed_file(path, name, form), name))

    return row_batches(items())


FILE = "read.sqlite"
DOCUMENTS = 1_000  # maximum number of documents of a segment

_SCHEMA = """
CREATE TABLE IF NOT EXISTS segments (number INTEGER PRIMARY KEY AUTOINCREMENT, rows BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS files (source TEXT, file TEXT, position INTEGER NOT NULL, PRIMARY KEY (source, file));
CREATE TABLE IF NOT EXISTS history (feed TEXT PRIMARY KEY, entries TEXT NOT NULL);
"""


class Inbox:
    """The segments of a state directory, numbered from 1. One process at a time uses them."""

    def __init__(self, directory: Path) -> None:
        make_private_file(directory / FILE)
        self._database = sqlite3.connect(directory / FILE, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        self._database.close()

    def take(self, tail: Tail, history: History) -> None:
        """Stores unread items as segments, judged by `history`, whose state is loaded here. Unreadable files wait."""
        history.load(dict(self._database.execute("SELECT feed, entries FROM history")))
        rows = self._database.execute("SELECT source, file, position FROM files").fetchall()
        positions = {(source, file): Offset(source, file, position) for source, file, position in rows}
        items = judged(Turns(None).read(waiting_files([tail], positions), lambda waiting, cause: None), history)
        while segment := list(islice(items, DOCUMENTS)):
            self._commit(segment, history)

    def _commit(self, items: Sequence[ReadItem[SourceItem]], history: History) -> None:
        batches = list(row_batches(read.item for read in items if read.item is not None))
        offsets = {(read.offset.source, read.offset.file): read.offset.position for read in items}
        with self._database:
            self._database.execute("BEGIN")
            if batches:
                rows = packed(pa.Table.from_batches(batches))
                self._database.execute("INSERT INTO segments (rows) VALUES (?)", (rows,))
            files = [(*key, position) for key, position in offsets.items()]
            self._database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", files)
            self._database.executemany("INSERT OR REPLACE INTO history VALUES (?, ?)", history.changed().items())

    def newest(self) -> int:
        rows = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'segments'").fetchall()
        return int(rows[0][0]) if rows else 0

    def segments(self, start: int, end: int) -> list[bytes]:
        sql = "SELECT rows FROM segments WHERE number > ? AND number <= ? ORDER BY number"
        return [row[0] for row in self._database.execute(sql, (start, end))]

    def drop(self, end: int) -> None:
        self._database.execute("DELETE FROM segments WHERE number <= ?", (end,))

    def read_files(self, source: str) -> set[str]:
        sql = "SELECT file FROM files WHERE source = ? AND position = ?"
        return {row[0] for row in self._database.execute(sql, (source, ALL_READ))}

    def forget_files(self, source: str, there: set[str] | None) -> None:
        """Removes the offsets of files of a source that are gone. None: the files present are unknown."""
        gone = [(source, file) for file in self.read_files(source) - there] if there is not None else []
        self._database.executemany("DELETE FROM files WHERE source = ? AND file = ?", gone)


class _Source(DataSource):
    """Creates its readers from the options."""

    source: ClassVar[str]
    readers: ClassVar[tuple[type[Any], type[Any]]]

    @classmethod
    def name(cls) -> str:
        return cls.source

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: object) -> Any:
        return self._opened(self.readers[0])

    def streamReader(self, schema: object) -> Any:
        return self._opened(self.readers[1])

    def _opened(self, reader: type[Any]) -> Any:
        try:
            return reader(self.options)
        except SourceError:
            # Spark shows it without the traceback of its Python process, which serves one call only.
            spec = sys.modules["__main__"].__spec__
            if spec is not None and spec.name.startswith("pyspark."):
                sys.tracebacklimit = 0
            raise


LIVE_SOURCE = "mmqjp_feeds"
DROPS = "drops"  # the state's folder of fetched feeds, and its name as a source
KEPT = DAY  # retention of a version after a stream has read it; the newest of each feed stays
KNOWN = 30 * DAY  # retention of an entry after its feed has dropped it


class _Live:
    def __init__(self, options: Mapping[str, str]) -> None:
        lists = re.split(r"[,\s]+", options.get("lists", "").strip())
        self.form: EntryForm = entry_form(options.get("feeds")) or "item"
        if not any(lists):
            raise SourceError(LIVE_SOURCE, "no feeds", 'name OPML files or addresses: .option("lists", "feeds.opml")')
        if not options.get("state"):
            raise SourceError(LIVE_SOURCE, "no state", 'name a directory: .option("state", "state/")')
        self.state = local_path(options["state"])
        listed = read_feed_lists(lists)
        if listed.complaints:
            raise SourceError(LIVE_SOURCE, listed.complaints[0].removesuffix("; it is left out"))
        settings = Settings(
            options.get("userAgent") or own_agent(),
            pace=Pace(_seconds(options, "interval", Pace().interval)),
            robots=_truth(options, "robots"),
            spacing=_seconds(options, "spacing", SECOND),
            allow_private=_truth(options, "allowPrivate"),
        )
        self.out = self.state / DROPS
        self._job = Job(listed.feeds, self.out, settings, listed=listed.changes)

    def fetch(self) -> None:
        self.state.mkdir(0o700, parents=True, exist_ok=True)
        asyncio.run(self._job.run())


def _seconds(options: Mapping[str, str], key: str, otherwise: int) -> int:
    text = options.get(key)
    if text is None:
        return otherwise
    if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text):
        raise SourceError(f"{key} {text}", "no number of seconds", "write 3600, or 0.5")
    return int(float(text) * SECOND)


def _truth(options: Mapping[str, str], key: str) -> bool:
    text = options.get(key, "false").lower()
    if text not in ("true", "false"):
        raise SourceError(f"{key} {text}", "neither true nor false")
    return text == "true"


class _LiveReader(_Live, DataSourceReader):
    """Fetches due feeds, and reads all versions in the state, with a partition per feed."""

    def partitions(self) -> list[InputPartition]:
        self.fetch()
        folders = sorted(path for path in self.out.iterdir() if path.is_dir())
        found = [sorted(f"{folder.name}/{path.name}" for path in folder.glob(f"*{FEED_SUFFIX}")) for folder in folders]
        return [InputPartition(names) for names in found if names]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        names: list[str] = partition.value or []  # without partitions, Spark creates one with None
        items = (or_reject(read_feed_file(self.out / name, name, self.form), name) for name in names)
        yield from row_batches(History().settle(chain.from_iterable(items)))


class _LiveStreamReader(_Live, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is the number of the inbox's last segment. The driver reads entries, since it has their history."""

    _target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # Spark's name, like those below
        return {"segment": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._taken()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        newest = self._taken() if self._target is None else self._target
        return {"segment": max(newest, start["segment"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        first, last = start["segment"], end["segment"]
        with self._inbox() as inbox:
            found = inbox.segments(first, last)
        if len(found) < last - first:
            cause = f"the checkpoint refers to segments {first + 1} to {last}, but only {len(found)} exist"
            raise SourceError(str(self.state), cause, "a state belongs to one query and its checkpoint")
        return [InputPartition(data) for data in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is not None:
            yield from unpacked(partition.value).to_batches()

    def commit(self, end: dict[str, int]) -> None:
        with self._inbox() as inbox:
            inbox.drop(end["segment"])

    def _taken(self) -> int:
        with self._inbox() as inbox:
            self.fetch()
            tail = Tail(self.out, feeds=self.form, name=DROPS)
            inbox.take(tail, History(keep=KNOWN))
            remove_read(self.out, inbox.read_files(DROPS), now_us() - KEPT)
            inbox.forget_files(DROPS, tail.names())
            return inbox.newest()

    def _inbox(self) -> closing[Inbox]:
        self.state.mkdir(0o700, parents=True, exist_ok=True)
        return closing(Inbox(self.state))


class FeedSource(_Source):
    """Options: `lists` (OPML files, text files or addresses, separated by commas), `state` (a directory), `feeds`
    (`item`, the default, or `raw`), `interval` and `spacing` in seconds, `robots`, `allowPrivate`, `userAgent`."""

    source, readers = LIVE_SOURCE, (_LiveReader, _LiveStreamReader)


WARC_SOURCE = "mmqjp_warc"


class _Archives:
    def __init__(self, options: Mapping[str, str]) -> None:
        if not options.get("path"):
            raise SourceError(WARC_SOURCE, "no path", 'name a directory or a file: .load("crawl/")')
        self.path, self.form = local_path(options["path"]), entry_form(options.get("feeds"))
        if not self.path.exists():
            raise SourceError(str(self.path), "no such file or directory", "check the path")

    def sizes(self) -> dict[str, int]:
        if self.path.is_file():
            return {self.path.name: self.path.stat().st_size}
        files = (file for file in Listing(self.path, feeds=False).files() if file.kind is FileKind.WARC)
        sizes = {}
        for file in sort_files(files):
            with suppress(FileNotFoundError):  # it has disappeared in the meantime
                sizes[file.name] = file.path.stat().st_size
        return sizes

    def can_be_read(self, name: str) -> bool:
        """A file that cannot be opened now is read later."""
        try:
            can_be_read(self.path_of(name))
        except OSError:
            return False
        return True

    def path_of(self, name: str) -> Path:
        return self.path if self.path.is_file() else self.path / name

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if (path := partition.value) is not None:
            items = or_reject(read_warc(path, self.form), printable(str(path)))
            yield from row_batches(History().settle(items))


class _WarcReader(_Archives, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.path_of(name)) for name in self.sizes()]


class _WarcStreamReader(_Archives, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset has the names and sizes of the files that were read and still exist. Each file is read once."""

    _target: dict[str, int] | None = None

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        most = options.get("maxFilesPerTrigger")
        if most is not None and not (most.isascii() and most.isdecimal() and int(most)):
            raise SourceError(f"maxFilesPerTrigger {most}", "no number of files", "write 1 or more")
        self._limit = ReadAllAvailable() if most is None else ReadMaxFiles(int(most))

    def initialOffset(self) -> dict[str, int]:  # Spark's name, like those below
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return self._limit

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.sizes()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        there = self.sizes() if self._target is None else self._target
        new = [name for name in there if name not in start and self.can_be_read(name)]
        if isinstance(limit, ReadMaxFiles):
            new = new[: limit.max_files]
        if not new:
            return start
        kept = {name: size for name, size in start.items() if name in there}
        return kept | {name: there[name] for name in new}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        new = (self.path_of(name) for name in end if name not in start)
        return [InputPartition(path) for path in sorted(new, key=lambda path: (fetch_time(path), str(path)))]


class WarcSource(_Source):
    """Options: the path, `feeds` (item or raw; else each XML body is a document), for streams `maxFilesPerTrigger`."""

    source, readers = WARC_SOURCE, (_WarcReader, _WarcStreamReader)
