"""Tails: what has come to a directory, or a file, since it was last read, in the order of the fetches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

from feeds.bad_input import SourceError
from feeds.document import DEFAULT_STREAM
from feeds.entries import EntryForm
from feeds.feed_files import read_feed_file
from feeds.files import printable
from feeds.jsonl import follow_jsonl, read_jsonl
from feeds.kinds import EXPECTED, FileKind, is_named_as_feed, kind_of_file
from feeds.listing import Listing, SourceFile, in_order
from feeds.offsets import ALL_READ, Offset, Positions
from feeds.order import feed_address, fetch_time
from feeds.rotation import Rotation
from feeds.sightings import Item
from feeds.times import Now, TimeReader, now_us, time_reader
from feeds.unreadable import ReplacedError
from feeds.warc import read_warc
from feeds.xml_files import read_xml_file

_ItemT = TypeVar("_ItemT", bound=Item, covariant=True)


@dataclass(frozen=True, slots=True)
class ReadItem(Generic[_ItemT]):
    """An item that was read, or none, and the offset behind it."""

    item: _ItemT | None
    offset: Offset


@dataclass(frozen=True, slots=True, order=True)
class WaitingFile:
    """A file with something to read, or, unless it `reads`, with an offset to note: it was read under another name.

    Files are read in the order of the first fields: those to note come first, then the time of the fetch (microseconds)
    decides, then names. Reading begins at `start`; `known` is the offset so far under the file's name. `lines` says
    whether these are JSON lines, to which others may be appended.
    """

    reads: bool
    fetched: int
    source: str
    file: str
    path: Path = field(compare=False)
    tail: Tail = field(compare=False)
    start: Offset = field(compare=False)
    known: Offset | None = field(compare=False)
    lines: bool = field(compare=False)

    def read(self, stop: int | None = None, stop_fingerprint: str = "") -> Iterator[ReadItem[Item]]:
        """See `Tail.read`."""
        return self.tail.read(self, stop, stop_fingerprint)

    def updated(self, positions: Positions) -> WaitingFile:
        """The same file, from its offset among later positions on."""
        now = positions.get((self.source, self.file))
        return self if now is None or now == self.known else replace(self, start=now, known=now)

    def feed(self) -> str:
        """The address of the feed that the file is a version of; "" if it is not known."""
        return feed_address(self.path) if self.tail.has_feeds and not self.lines else ""


def any_file(file: SourceFile) -> bool:
    """The default of `Tail.drain`: every file is wanted."""
    return True


class Tail:
    """A directory that files are dropped into, or one file.

    Writers rename files into place when they are whole; names that begin with a dot or end in .tmp or .part are passed
    over. JSON lines may be appended to a file at any time. Any other file is read once. A feed's sidecar must be there
    before the feed.
    Raises SourceError for a path that is missing or of no known kind, and for a `time_xpath` that is not XPath.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        feeds: EntryForm | None = None,
        time_xpath: str | None = None,
        name: str = "",
        relative: bool = False,
        now: Now = now_us,
    ) -> None:
        """`name` is the source's name in offsets, by default its absolute path. Rejects name a file by its absolute
        path; with `relative` they name it as `path` does."""
        self._path = Path(path) if relative else Path(path).absolute()
        self.name = name or printable(str(self._path.absolute()))
        self._feeds: EntryForm | None = feeds
        self._time: TimeReader | None = None if time_xpath is None else time_reader(time_xpath)
        self._now = now
        self._listing = Listing(self._path, feeds=self.has_feeds)
        self._rotation = Rotation(self.name, self._path if self._path.is_dir() else self._path.parent)
        self._beside: set[str] = set()
        if not self._path.exists():
            raise SourceError(printable(str(path)), "no such file or directory", "make it, or check the path")
        if not self._path.is_dir() and kind_of_file(self._path.name, feeds=self.has_feeds) is None:
            raise _of_no_kind(Path(path))

    @property
    def has_feeds(self) -> bool:
        """Whether what is read are feeds."""
        return self._feeds is not None

    @property
    def path(self) -> Path:
        """The directory, or the file."""
        return self._path

    def is_wanted(self, name: str) -> bool:
        """Whether a file with this name, in the directory or beside the file, may be one to read."""
        return self._listing.is_wanted(name) if self._path.is_dir() else name.startswith(self._path.name)

    def waiting(self, positions: Positions) -> Iterator[WaitingFile]:
        """The files that have something to read behind their positions, in no particular order."""
        lines: dict[str, Path] = {}

        def is_read(name: str) -> bool:
            known = positions.get((self.name, name))
            return known is not None and known.position == ALL_READ

        for file in self._listing.files(is_read):
            if file.kind is FileKind.JSON_LINES:
                lines[file.name] = file.path
                continue
            if not is_read(file.name):  # a source that is one file is listed in any case
                known = positions.get((self.name, file.name))
                start = known or Offset(self.name, file.name, 0)
                yield WaitingFile(
                    True, file.fetched(), self.name, file.name, file.path, self, start, known, lines=False
                )
        noted = {
            file: known
            for (source, file), known in positions.items()
            if source == self.name and (known.fingerprint or file in lines)
        }
        self._beside.clear()
        for found in self._rotation.found(lines, noted):
            name, path, known = found.name, found.path, noted.get(found.name)
            if name not in lines:
                self._beside.add(name)
            if found.moved:
                yield WaitingFile(False, 0, self.name, name, path, self, found.at, known, lines=True)
            if not _at_end(path, found.at.position):
                yield WaitingFile(True, fetch_time(path), self.name, name, path, self, found.at, known, lines=True)

    def names(self) -> set[str] | None:
        """The names of the files that are there, with those of read files that were moved out of the way; None if not
        all could be listed."""
        files = list(self._listing.files())
        if any(file.path.is_dir() for file in files):
            return None
        return {file.name for file in files} | self._beside

    def read(
        self, waiting: WaitingFile, stop: int | None = None, stop_fingerprint: str = ""
    ) -> Iterator[ReadItem[Item]]:
        """The items of a file from where it waits. Of JSON lines only those that begin before byte `stop`, where the
        file must have the fingerprint. Raises OSError if the file cannot be read now, and ReplacedError if another has
        its name, which the next look finds out."""
        path, start = waiting.path, waiting.start
        to = partial(Offset, self.name, waiting.file)
        if not waiting.reads:
            yield ReadItem(None, start)
        elif waiting.lines:
            lines = follow_jsonl(
                path,
                start.position,
                self._now,
                stop=stop,
                fingerprint=start.fingerprint,
                stop_fingerprint=stop_fingerprint,
            )
            yield from (ReadItem(item, to(end, fingerprint)) for item, end, fingerprint in lines)
        else:
            file = SourceFile(path, waiting.file, kind_of_file(path.name, feeds=self.has_feeds))
            for count, item in enumerate(islice(self._items(file), start.position, None), start.position + 1):
                yield ReadItem(item, to(count))
            yield ReadItem(None, to(ALL_READ))

    def drain(self, is_wanted: Callable[[SourceFile], bool] = any_file) -> Iterator[tuple[str, Iterator[Item]]]:
        """All items of each file that is there and wanted, with the file's name, in the order in which files are read,
        as if nothing were ever added. The items raise OSError if the file cannot be read."""
        for file in in_order(filter(is_wanted, self._listing.files())):
            yield file.name, self._items(file)

    def _items(self, file: SourceFile) -> Iterator[Item]:
        """All items of a file, each at its place."""
        match file.kind:
            case None:
                os.scandir(file.path).close()
                raise ReplacedError(f"{file.name} can be listed again")
            case FileKind.JSON_LINES | FileKind.COMPRESSED_JSON_LINES:
                yield from read_jsonl(file.path, self._now)
            case FileKind.WARC:
                yield from read_warc(file.path, self._feeds)
            case FileKind.FEED:
                assert self._feeds is not None, "without feeds no file is of that kind"
                yield from read_feed_file(file.path, file.name, self._feeds)
            case FileKind.XML:
                stream = file.name.partition("/")[0] if "/" in file.name else DEFAULT_STREAM
                yield read_xml_file(file.path, file.name, stream, self._time)


def _of_no_kind(path: Path) -> SourceError:
    name = printable(str(path))
    if is_named_as_feed(path.name):
        return SourceError(name, "a feed file, and feeds were not asked for", "add --feeds")
    cause = f"the kind of file is not known from its name ({path.suffix or 'no suffix'})"
    return SourceError(name, cause, EXPECTED)


def waiting_files(tails: Iterable[Tail], positions: Positions) -> list[WaitingFile]:
    """The files that have something to read, in the order in which they are read."""
    return sorted(waiting for tail in tails for waiting in tail.waiting(positions))


def _at_end(path: Path, position: int) -> bool:
    try:
        return path.stat().st_size == position
    except OSError:
        return True  # it has gone meanwhile
