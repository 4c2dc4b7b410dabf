"""Directories and files that grow: what has come since they were last read, in order of the time of the fetch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from feeds.crawl import read_feed_file
from feeds.document import DEFAULT_STREAM, Clock, now_us
from feeds.entries import EntryForm, Item
from feeds.errors import SourceError
from feeds.files import files_below, name_below, printable
from feeds.history import History, Unsettled
from feeds.jsonl import follow_jsonl, read_jsonl
from feeds.layout import FEED_SUFFIXES, SIDECAR_SUFFIX, fetch_time, read_sidecar, read_stem
from feeds.warc import archive_time, read_warc
from feeds.xml_files import TimeReader, read_xml_file, time_reader

ALL_READ = -1
"""The position of a file that is read to its end and not looked at again."""

_XML, _JSONL, _WARC = ".xml", ".jsonl", ".warc"
_PACKED = frozenset({".gz"})
_DRAFTS = (".tmp", ".part")


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a file of a source was read: bytes of JSON lines, else its first so many items; ALL_READ."""

    source: str
    file: str
    position: int


@dataclass(frozen=True, slots=True)
class Piece:
    """One item of a file, or none, and how far the file is read with it."""

    item: Item
    offset: Offset


@dataclass(frozen=True, slots=True, order=True)
class Waiting:
    """A file with something to read; `fetched` (microseconds) and then names are the order in which files are read."""

    fetched: int
    source: str
    file: str
    path: Path = field(compare=False)
    tail: Tail = field(compare=False)


Positions = Mapping[tuple[str, str], int]
"""Where reading goes on: positions of files by source and name; 0 for those that are missing."""


class Tail:
    """A directory that files are dropped into, or one file that grows.

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
        history: History | Unsettled | None = None,
        name: str = "",
        now: Clock = now_us,
    ) -> None:
        """`history` is what is known of the entries of feeds before. `name` is what the source is called in offsets,
        its path without one."""
        self._path = Path(path).absolute()
        self.name = name or printable(str(self._path))
        self._feeds: EntryForm | None = feeds
        self._time: TimeReader | None = None if time_xpath is None else time_reader(time_xpath)
        self._history, self._now = history or History(), now
        self._suffixes = frozenset({_XML, _JSONL, _WARC}) | _PACKED | (FEED_SUFFIXES if feeds else frozenset())
        self._sidecars: set[Path] = set()
        if not self._path.exists():
            raise SourceError(printable(str(path)), "no such file or directory", "make it, or check the path")
        if not self._path.is_dir() and not self._taken(self._path):
            raise SourceError(printable(str(path)), "the kind of file is not known from its name", self._kinds())

    def waiting(self, positions: Positions) -> Iterator[Waiting]:
        """The files that have something to read beyond their positions, in no particular order."""
        for path in self._files():
            name = self._name(path)
            position = positions.get((self.name, name), 0)
            if position != ALL_READ and not self._at_end(path, position):
                yield Waiting(self._fetched(path), self.name, name, path, self)

    def names(self) -> set[str]:
        """The names of the files that are there."""
        return {self._name(path) for path in self._files()}

    def read(self, waiting: Waiting, position: int, stop: int | None = None) -> Iterator[Piece]:
        """A file's items from a position on, at which the history must be as it was there; no JSON lines that begin at
        byte `stop` or behind it."""
        to = partial(Offset, self.name, waiting.file)
        if _kind(waiting.path) == _JSONL:
            for item, end in follow_jsonl(waiting.path, position, self._now, stop=stop):
                yield Piece(item, to(end))
            return
        items = islice(self._items(waiting.path, waiting.file), position, None)
        for count, item in enumerate(items, position + 1):
            yield Piece(item, to(count))
        yield Piece(None, to(ALL_READ))

    def _items(self, path: Path, name: str) -> Iterator[Item]:
        """What a file holds, place by place."""
        kind = _kind(path)
        if kind == _JSONL + ".gz":
            yield from read_jsonl(path, self._now)
        elif kind.startswith(_WARC):
            yield from read_warc(path, self._feeds, history=self._history)
        elif self._feeds:
            yield from read_feed_file(path, name, self._feeds, self._history)
        else:
            stream = name.partition("/")[0] if "/" in name else DEFAULT_STREAM
            yield read_xml_file(path, name, stream, self._time)

    def _files(self) -> Iterator[Path]:
        if not self._path.is_dir():
            return iter([self._path])
        return (path for path in files_below(self._path, self._suffixes) if self._taken(path))

    def _taken(self, path: Path) -> bool:
        if path.name.startswith(".") or path.name.endswith(_DRAFTS):
            return False
        kinds = {_JSONL, _JSONL + ".gz", _WARC, _WARC + ".gz", *(FEED_SUFFIXES if self._feeds else (_XML,))}
        return _kind(path) in kinds and not self._is_sidecar(path)

    def _is_sidecar(self, path: Path) -> bool:
        """Whether the file only holds notes on another, which may come after it."""
        if path.suffix.lower() != SIDECAR_SUFFIX:
            return False
        if read_stem(path.stem) is not None:
            return True
        if path not in self._sidecars:
            try:
                if read_sidecar(path) is None:
                    return False
            except (ValueError, OSError):
                return False
            self._sidecars.add(path)
        return True

    def _kinds(self) -> str:
        return "sources are directories, .jsonl or .warc files" + ("" if self._feeds else "; feeds need --feeds")

    def _name(self, path: Path) -> str:
        return name_below(path, self._path) if path != self._path else printable(path.name)

    def _at_end(self, path: Path, position: int) -> bool:
        try:
            return _kind(path) == _JSONL and path.stat().st_size == position
        except OSError:
            return True  # it went meanwhile

    def _fetched(self, path: Path) -> int:
        """When the file was fetched: as its name, its sidecar or its first record says, else when it was written."""
        return archive_time(path) if _kind(path).startswith(_WARC) else fetch_time(path)


def waiting_files(tails: Iterable[Tail], positions: Positions) -> list[Waiting]:
    """What there is to read, in the order in which it is read."""
    return sorted(waiting for tail in tails for waiting in tail.waiting(positions))


def _kind(path: Path) -> str:
    suffix = path.suffix.lower()
    return "".join(path.suffixes[-2:]).lower() if suffix in _PACKED else suffix
