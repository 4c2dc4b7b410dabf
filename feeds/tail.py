"""Directories and files that grow: what has come since they were last read, in order of the time of the fetch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

from feeds.crawl import read_feed_file
from feeds.document import DEFAULT_STREAM, Clock, now_us
from feeds.entries import EntryForm
from feeds.errors import SourceError
from feeds.files import printable
from feeds.jsonl import follow_jsonl, read_jsonl
from feeds.kinds import EXPECTED, Kind, is_named_as_feed, kind_of_file
from feeds.listing import Listing, SourceFile, in_order
from feeds.moves import Moves
from feeds.offsets import ALL_READ, Offset, Positions
from feeds.order import feed_address, fetch_time
from feeds.sightings import Item
from feeds.unreadable import ReplacedError
from feeds.warc import read_warc
from feeds.xml_files import TimeReader, read_xml_file, time_reader

_ItemT = TypeVar("_ItemT", bound=Item, covariant=True)


@dataclass(frozen=True, slots=True)
class Piece(Generic[_ItemT]):
    """One item of a file, or none, and how far the file is read with it."""

    item: _ItemT | None
    offset: Offset


@dataclass(frozen=True, slots=True, order=True)
class Waiting:
    """A file with something to read: after those of which there is only something to note, because they were read under
    other names, `fetched` (microseconds) and then names are the order in which files are read.

    Reading begins behind `start`; `known` is what was noted under the file's name so far. `lines` says whether it is of
    JSON lines, to which others may be appended.
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

    def read(self, stop: int | None = None, seal: str = "") -> Iterator[Piece[Item]]:
        """See `Tail.read`."""
        return self.tail.read(self, stop, seal)

    def resumed(self, positions: Positions) -> Waiting:
        """The same behind what was noted since."""
        now = positions.get((self.source, self.file))
        return self if now is None or now == self.known else replace(self, start=now, known=now)

    def feed(self) -> str:
        """The address of the feed of which it is a version; "" for none that is known."""
        return feed_address(self.path) if self.tail.has_feeds and not self.lines else ""


class Tail:
    """A directory that files are dropped into, or one file.

    Files are renamed into place when they are whole; names that begin with a dot or end in .tmp or .part are passed
    over. JSON lines may be appended to a file as long as one likes; every other file is read once. A feed's sidecar is
    put in its place before the feed.
    Raises SourceError for a path that is missing or holds something else, and for a `time_xpath` that is not XPath.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        feeds: EntryForm | None = None,
        time_xpath: str | None = None,
        name: str = "",
        relative: bool = False,
        now: Clock = now_us,
    ) -> None:
        """`name` is what the source is called in offsets, its absolute path without one. Rejects call a file by its
        absolute path, with `relative` by the one given."""
        self._path = Path(path) if relative else Path(path).absolute()
        self.name = name or printable(str(self._path.absolute()))
        self._feeds: EntryForm | None = feeds
        self._time: TimeReader | None = None if time_xpath is None else time_reader(time_xpath)
        self._now = now
        self._listing = Listing(self._path, feeds=self.has_feeds)
        self._moves = Moves(self.name, self._path if self._path.is_dir() else self._path.parent)
        self._beside: set[str] = set()
        if not self._path.exists():
            raise SourceError(printable(str(path)), "no such file or directory", "make it, or check the path")
        if not self._path.is_dir() and kind_of_file(self._path.name, feeds=self.has_feeds) is None:
            raise _of_no_kind(Path(path))

    @property
    def has_feeds(self) -> bool:
        """Whether what is read are feeds."""
        return self._feeds is not None

    def waiting(self, positions: Positions) -> Iterator[Waiting]:
        """The files that have something to read behind their positions, in no particular order."""
        lines: dict[str, Path] = {}
        for file in self._listing.files():
            if file.kind is Kind.JSON_LINES:
                lines[file.name] = file.path
                continue
            known = positions.get((self.name, file.name))
            if known is None or known.position != ALL_READ:
                start = known or Offset(self.name, file.name, 0)
                yield Waiting(True, file.fetched(), self.name, file.name, file.path, self, start, known, lines=False)
        marked = {file: known for (source, file), known in positions.items() if source == self.name and known.mark}
        noted = marked | {name: known for name in lines if (known := positions.get((self.name, name))) is not None}
        self._beside.clear()
        for found in self._moves.found(lines, noted):
            name, path, known = found.name, found.path, noted.get(found.name)
            if name not in lines:
                self._beside.add(name)
            if found.moved:
                yield Waiting(False, 0, self.name, name, path, self, found.at, known, lines=True)
            if not _at_end(path, found.at.position):
                yield Waiting(True, fetch_time(path), self.name, name, path, self, found.at, known, lines=True)

    def names(self) -> set[str] | None:
        """The names of the files that are there, also of those that were read under others and moved out of the way;
        None where not all could be listed."""
        files = list(self._listing.files())
        if any(file.path.is_dir() for file in files):
            return None
        return {file.name for file in files} | self._beside

    def read(self, waiting: Waiting, stop: int | None = None, seal: str = "") -> Iterator[Piece[Item]]:
        """A file's items from where it waits; no JSON lines that begin at byte `stop` or behind it, where the file must
        have the mark `seal`. Raises OSError where it cannot be read now: ReplacedError for another file, which the next
        look tells from it."""
        path, start = waiting.path, waiting.start
        to = partial(Offset, self.name, waiting.file)
        if not waiting.reads:
            yield Piece(None, start)
        elif waiting.lines:
            lines = follow_jsonl(path, start.position, self._now, stop=stop, mark=start.mark, seal=seal)
            yield from (Piece(item, to(end, mark)) for item, end, mark in lines)
        else:
            file = SourceFile(path, waiting.file, kind_of_file(path.name, feeds=self.has_feeds))
            for count, item in enumerate(islice(self._items(file), start.position, None), start.position + 1):
                yield Piece(item, to(count))
            yield Piece(None, to(ALL_READ))

    def drain(self) -> Iterator[tuple[str, Iterator[Item]]]:
        """The files that are there, in the order in which they are read, by their names: what each holds, all of it, as
        if nothing were ever added. What it holds raises OSError where it cannot be read."""
        for file in in_order(self._listing.files()):
            yield file.name, self._items(file)

    def _items(self, file: SourceFile) -> Iterator[Item]:
        """What a file holds, place by place."""
        match file.kind:
            case None:
                os.scandir(file.path).close()
                raise ReplacedError(f"{file.name} can be listed again")
            case Kind.JSON_LINES | Kind.COMPRESSED_JSON_LINES:
                yield from read_jsonl(file.path, self._now)
            case Kind.WARC:
                yield from read_warc(file.path, self._feeds)
            case Kind.FEED:
                assert self._feeds is not None, "without feeds no file is of that kind"
                yield from read_feed_file(file.path, file.name, self._feeds)
            case Kind.XML:
                stream = file.name.partition("/")[0] if "/" in file.name else DEFAULT_STREAM
                yield read_xml_file(file.path, file.name, stream, self._time)


def _of_no_kind(path: Path) -> SourceError:
    name = printable(str(path))
    if is_named_as_feed(path.name):
        return SourceError(name, "a feed file, and feeds were not asked for", "add --feeds")
    cause = f"the kind of file is not known from its name ({path.suffix or 'no suffix'})"
    return SourceError(name, cause, EXPECTED)


def waiting_files(tails: Iterable[Tail], positions: Positions) -> list[Waiting]:
    """What there is to read, in the order in which it is read."""
    return sorted(waiting for tail in tails for waiting in tail.waiting(positions))


def _at_end(path: Path, position: int) -> bool:
    try:
        return path.stat().st_size == position
    except OSError:
        return True  # it went meanwhile
