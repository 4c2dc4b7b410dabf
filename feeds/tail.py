"""Directories and files that grow: what has come since they were last read, in order of the time of the fetch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from feeds.bad_input import SourceError
from feeds.crawl import read_feed_file
from feeds.document import DEFAULT_STREAM, Clock, now_us
from feeds.entries import EntryForm, Item
from feeds.files import files_below, name_below, printable
from feeds.history import History, Unsettled
from feeds.jsonl import follow_jsonl, read_jsonl
from feeds.layout import FEED_SUFFIXES, SIDECAR_SUFFIX, read_sidecar, read_stem
from feeds.moves import Moves
from feeds.offsets import ALL_READ, Offset, Positions
from feeds.order import feed_address, fetch_time
from feeds.unreadable import ReplacedError
from feeds.warc import read_warc
from feeds.xml_files import TimeReader, read_xml_file, time_reader

_XML, _JSONL, _WARC = ".xml", ".jsonl", ".warc"
_PACKED = frozenset({".gz"})
_DRAFTS = (".tmp", ".part")


@dataclass(frozen=True, slots=True)
class Piece:
    """One item of a file, or none, and how far the file is read with it."""

    item: Item
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

    def read(self, stop: int | None = None, seal: str = "") -> Iterator[Piece]:
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
        self._moves = Moves(self.name, self._path if self._path.is_dir() else self._path.parent)
        self._beside: set[str] = set()
        if not self._path.exists():
            raise SourceError(printable(str(path)), "no such file or directory", "make it, or check the path")
        if not self._path.is_dir() and not self._taken(self._path):
            raise SourceError(printable(str(path)), "the kind of file is not known from its name", self._kinds())

    @property
    def has_feeds(self) -> bool:
        """Whether what is read are feeds."""
        return self._feeds is not None

    def waiting(self, positions: Positions) -> Iterator[Waiting]:
        """The files that have something to read behind their positions, in no particular order. What cannot be
        looked at is among them, so that whoever reads it says so."""
        lines: dict[str, Path] = {}
        for path in self._files():
            name = self._name(path)
            if _kind(path) == _JSONL:
                lines[name] = path
                continue
            known = positions.get((self.name, name))
            if known is None or known.position != ALL_READ:
                start = known or Offset(self.name, name, 0)
                fetched = 0 if self._is_shut(path) else fetch_time(path)
                yield Waiting(True, fetched, self.name, name, path, self, start, known, lines=False)
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
        paths = list(self._files())
        if any(path.is_dir() for path in paths):
            return None
        return {self._name(path) for path in paths} | self._beside

    def read(self, waiting: Waiting, stop: int | None = None, seal: str = "") -> Iterator[Piece]:
        """A file's items from where it waits, at which the history must be as it was there; no JSON lines that begin at
        byte `stop` or behind it, where the file must have the mark `seal`. Raises OSError where it cannot be read now:
        ReplacedError for another file, which the next look tells from it."""
        path, start = waiting.path, waiting.start
        to = partial(Offset, self.name, waiting.file)
        if not waiting.reads:
            yield Piece(None, start)
        elif waiting.lines:
            for item, end, mark in follow_jsonl(path, start.position, self._now, stop=stop, mark=start.mark, seal=seal):
                yield Piece(item, to(end, mark))
        elif self._is_shut(path):
            os.scandir(path).close()
            raise ReplacedError(f"{waiting.file} can be listed again")
        else:
            items = islice(self._items(path, waiting.file), start.position, None)
            for count, item in enumerate(items, start.position + 1):
                yield Piece(item, to(count))
            yield Piece(None, to(ALL_READ))

    def whole(self) -> Iterator[tuple[str, Iterator[Item]]]:
        """The files that are there, in the order in which they are read, by their names: what each holds, all of it.
        What it holds raises OSError where it cannot be read."""
        for waiting in sorted(self.waiting({})):
            if waiting.lines:
                yield waiting.file, read_jsonl(waiting.path, self._now)
            else:
                yield waiting.file, (piece.item for piece in waiting.read())

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
        found = files_below(self._path, self._suffixes)
        return (path for path in found if self._is_shut(path) or self._taken(path))

    def _is_shut(self, path: Path) -> bool:
        """Whether what was found is a directory that cannot be listed, not a file."""
        return path.suffix.lower() not in self._suffixes

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


def waiting_files(tails: Iterable[Tail], positions: Positions) -> list[Waiting]:
    """What there is to read, in the order in which it is read."""
    return sorted(waiting for tail in tails for waiting in tail.waiting(positions))


def _at_end(path: Path, position: int) -> bool:
    try:
        return path.stat().st_size == position
    except OSError:
        return True  # it went meanwhile


def _kind(path: Path) -> str:
    suffix = path.suffix.lower()
    return "".join(path.suffixes[-2:]).lower() if suffix in _PACKED else suffix
