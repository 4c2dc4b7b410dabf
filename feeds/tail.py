"""Tails: the unread files of a directory, or of one file, in the order of their fetches.

A name does not identify a file: log rotation renames a log and creates a new one, or copies and truncates it. The
fingerprint of the bytes read does, so reading resumes under any name, including lines appended after the renaming; a
file without a known fingerprint is new. Command-line paths are tails that are drained once, lazily and in a fixed
order. Files that cannot be read now are skipped and wait.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, starmap
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Generic, TypeVar

from feeds import files as feed_files
from feeds import readers
from feeds.confined import HurriedError, hurried
from feeds.documents import DEFAULT_STREAM, Now, SourceError, SourceItem, TimeReader, Visit, now_us, time_reader
from feeds.feed import EntryForm
from feeds.history import History, InputItem
from feeds.json_documents import JsonForm


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a source, by its name there, and its kind; None for an unlistable directory."""

    path: Path
    name: str
    kind: feed_files.FileKind | None

    def fetched(self) -> int:
        """When its content was fetched; 0 for a directory, so that it is reported first."""
        return 0 if self.kind is None else readers.fetch_time(self.path)


class Listing:
    """Lists a source's files: a directory's without unfinished files and sidecars, or the single file."""

    def __init__(self, path: Path, *, feeds: bool) -> None:
        self._path = path
        self._kind = partial(feed_files.kind_of_file, feeds=feeds)
        self._sidecars: set[str] = set()

    def files(self, is_known: Callable[[str], bool] = lambda name: False) -> Iterator[SourceFile]:
        """The files present, in no particular order. In a directory, those known by their names are skipped."""
        if not self._path.is_dir():
            yield SourceFile(self._path, feed_files.printable(self._path.name), self._kind(self._path.name))
            return
        sidecars: set[str] = set()

        def is_passed_over(name: str) -> bool:
            if name in self._sidecars:
                sidecars.add(name)
                return True
            return is_known(name)

        passed_over = is_passed_over if self._sidecars else is_known
        for path, name in feed_files.files_below(self._path, self.is_wanted, passed_over):
            with suppress(OSError):  # its reader reports the error
                if readers.is_sidecar(path):
                    sidecars.add(name)
            if name not in sidecars:
                yield SourceFile(path, name, self._kind(path.name) if self.is_wanted(path.name) else None)
        self._sidecars = sidecars

    def is_wanted(self, name: str) -> bool:
        return not feed_files.is_unfinished(name) and self._kind(name) is not None


def sort_files(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Sorts by fetch time, then by name: the order of reading."""
    return sorted(files, key=lambda file: (file.fetched(), file.name))


UNKNOWN = "0 1 none 0 0"  # a fingerprint that no file has


@dataclass(frozen=True, slots=True)
class LinesFile:
    """A JSON lines file, read up to `at`; `moved`: it was read under another name."""

    name: str
    path: Path
    at: readers.Offset
    moved: bool = False


class Rotation:
    """Recognises a source's JSON lines files. A poll costs a system call per file; only changed files are opened."""

    def __init__(self, source: str, directory: Path) -> None:
        self._source, self._directory = source, directory
        self._unchanged: dict[str, tuple[feed_files.FileState, readers.Offset]] = {}
        self._searched: dict[Path, tuple[tuple[object, ...], list[Path]]] = {}
        self._strange: dict[Path, feed_files.FileState] = {}

    def found(self, present: Mapping[str, Path], known: Mapping[str, readers.Offset]) -> list[LinesFile]:
        """The offsets of the present files. `known` has the offsets so far, by name. A file whose name the source does
        not accept is included if it was read under another name."""
        paths = dict(present)
        for name, offset in known.items():
            if name not in paths and offset.fingerprint:
                with suppress(OSError):  # its directory cannot be listed, which is reported there
                    if (path := self._directory / name).is_file():
                        paths[name] = path
        noted = ((name, path, known.get(name)) for name, path in paths.items())
        kept = {name: LinesFile(name, path, at) for name, path, at in noted if at and self._is_same(name, path, at)}
        fresh = {name: path for name, path in paths.items() if name not in kept}
        self._unchanged = {name: state for name, state in self._unchanged.items() if name in kept}
        lost = [one for name, one in known.items() if name not in kept and one.position > 0 and one.fingerprint]
        beside = {path: (name, state) for name, path, state in self._beside(lost, paths)}
        unjudged = [(name, path) for path, (name, state) in beside.items() if self._strange.get(path) != state]
        moved: dict[str, LinesFile] = {}
        index = _Index(known.values() if fresh or unjudged else ())
        for name, path in [*fresh.items(), *unjudged]:
            if (read := index.of(path)) is not None:
                offset = readers.Offset(self._source, name, read.position, readers.with_inode(read.fingerprint, path))
                moved[name] = LinesFile(name, path, offset, moved=True)
        strange = ((path, state) for path, (name, state) in beside.items() if name not in moved and state.is_settled)
        self._strange = {path: state for path, state in strange if path not in index.unreadable}
        for name, path in fresh.items():
            if name in present:
                offset = readers.Offset(self._source, name, 0)
                try:
                    path.open("rb").close()
                except OSError:  # it may be a known file, so it is not read until it can be opened
                    offset = readers.Offset(self._source, name, 1, UNKNOWN)
                kept[name] = LinesFile(name, path, offset)
        return list((kept | moved).values())

    def _is_same(self, name: str, path: Path, offset: readers.Offset) -> bool:
        """Whether the file under a name is the one that was read. If it cannot be opened, the inode decides."""
        if (found := feed_files.file_state(path)) is None:
            return False
        if self._unchanged.get(name) == (found, offset):
            return True
        try:
            with path.open("rb") as file:
                same = readers.has_fingerprint(file, offset)
        except OSError:
            fingerprint = readers.parse_fingerprint(offset.fingerprint)
            return fingerprint is None or fingerprint.inode == found.inode
        if same and found.is_settled:
            self._unchanged[name] = found, offset
        return same

    def _beside(
        self, lost: Iterable[readers.Offset], paths: Container[str]
    ) -> Iterator[tuple[str, Path, feed_files.FileState]]:
        """Possible new names or copies of lost files, with their states."""
        wanted: dict[Path, list[readers.Offset]] = {}
        for offset in lost:
            wanted.setdefault((self._directory / offset.file).parent, []).append(offset)
        self._searched = {directory: seen for directory, seen in self._searched.items() if directory in wanted}
        for directory, offsets in wanted.items():
            for path in self._candidates(directory, offsets):
                name = feed_files.name_below(path, self._directory)
                if name not in paths and (state := feed_files.file_state(path)) is not None:
                    yield name, path, state

    def _candidates(self, directory: Path, offsets: Sequence[readers.Offset]) -> list[Path]:
        """Files with a lost file's inode, or whose names begin with its name. Lists it only after changes."""
        found = feed_files.file_state(directory)
        seen, candidates = self._searched.get(directory, ((), []))
        if seen == (now := (found, *offsets)):
            return candidates
        try:
            entries = list(os.scandir(directory))
        except OSError:
            return []  # it is gone, or its listing reports the error
        known = (readers.parse_fingerprint(offset.fingerprint) for offset in offsets)
        inodes = {fingerprint.inode for fingerprint in known if fingerprint is not None}
        stems = tuple(Path(offset.file).name for offset in offsets)
        alike = (entry for entry in entries if entry.inode() in inodes or entry.name.startswith(stems))
        candidates = [Path(entry.path) for entry in alike if entry.is_file(follow_symlinks=False)]
        candidates = [path for path in candidates if path.suffix not in feed_files.COMPRESSED_SUFFIXES]
        if found is not None and found.is_settled:
            self._searched[directory] = now, candidates
        return candidates


class _Index:
    def __init__(self, known: Iterable[readers.Offset]) -> None:
        self._known: dict[tuple[int, str], list[tuple[readers.Fingerprint, readers.Offset]]] = {}
        self.unreadable: set[Path] = set()
        for offset in known:
            fingerprint = readers.parse_fingerprint(offset.fingerprint)
            if fingerprint is not None and offset.position > 0:
                self._known.setdefault((fingerprint.head, fingerprint.digest), []).append((fingerprint, offset))
        self._lengths = {length for length, _ in self._known}

    def of(self, path: Path) -> readers.Offset | None:
        """The furthest offset whose fingerprint the file has, or None."""
        if not self._known:
            return None
        best: readers.Offset | None = None
        try:
            with path.open("rb") as file:
                head = file.read(readers.HEAD)
                size = os.fstat(file.fileno()).st_size
                for length in self._lengths:
                    key = length, readers.digest_of(head[:length])
                    for fingerprint, offset in self._known.get(key, ()) if length <= len(head) else ():
                        further = best is None or offset.position > best.position
                        if further and offset.position <= size and fingerprint.fits(head, file, offset.position):
                            best = offset
        except FileNotFoundError:
            return None
        except OSError:  # until it can be opened, the inode decides
            self.unreadable.add(path)
            inode = -1 if (state := feed_files.file_state(path)) is None else state.inode
            same = (offset for known in self._known.values() for found, offset in known if found.inode == inode)
            return max(same, key=lambda offset: offset.position, default=None)
        return best


_ItemT = TypeVar("_ItemT", bound=InputItem | Visit, covariant=True)


@dataclass(frozen=True, slots=True)
class ReadItem(Generic[_ItemT]):
    item: _ItemT | None
    offset: readers.Offset


@dataclass(frozen=True, slots=True, order=True)
class WaitingFile:
    """A file with something to read or, unless it `reads`, only an offset to record because it was read under another
    name.

    Ordered by the first fields: files to record first, then by fetch time (microseconds), then by name. Reading begins
    at `start`; `known` is the offset so far under the file's name. `lines`: JSON lines, which may grow.
    """

    reads: bool
    fetched: int
    source: str
    file: str
    path: Path = field(compare=False)
    tail: Tail = field(compare=False)
    start: readers.Offset = field(compare=False)
    known: readers.Offset | None = field(compare=False)
    lines: bool = field(compare=False, default=False)

    def read(self, stop: readers.Offset | None = None) -> Iterator[ReadItem[InputItem]]:
        return self.tail.read(self, stop)

    def updated(self, positions: readers.Positions) -> WaitingFile:
        now = positions.get((self.source, self.file))
        return self if now is None or now == self.known else replace(self, start=now, known=now)

    def feed(self) -> str:
        return readers.feed_address(self.path) if self.tail.has_feeds and not self.lines else ""


class Tail:
    """A directory that files are dropped into, or one file.

    Writers rename files into place when complete; names that begin with a dot or end in .tmp or .part are skipped. JSON
    lines may be appended at any time; any other file is read once. A feed's sidecar must be there before the feed.
    Raises SourceError for a path that is missing or of an unknown kind, and for an invalid `time_xpath`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        feeds: EntryForm | None = None,
        time_xpath: str | None = None,
        json: JsonForm | None = None,
        name: str = "",
        relative: bool = False,
        now: Now = now_us,
    ) -> None:
        """`name` is the source's in offsets, else its absolute path. `relative`: rejects name files as `path` does.
        `json`: lines are documents in JSON themselves."""
        self.path = Path(path) if relative else Path(path).absolute()
        self.name = name or feed_files.printable(str(self.path.absolute()))
        self._feeds: EntryForm | None = feeds
        self.has_feeds = feeds is not None
        self._time: TimeReader | None = None if time_xpath is None else time_reader(time_xpath)
        self._now = now
        typed = json == "typed"
        self.read_line = None if json is None else readers.json_line_reader(typed=typed, time=self._time)
        self._listing = Listing(self.path, feeds=self.has_feeds)
        self._rotation = Rotation(self.name, self.path if self.path.is_dir() else self.path.parent)
        self._beside: set[str] = set()
        shown, file_name = feed_files.printable(str(path)), self.path.name
        if not self.path.exists():
            raise SourceError(shown, "no such file or directory", "create it, or check the path")
        if not self.path.is_dir() and feed_files.kind_of_file(file_name, feeds=self.has_feeds) is None:
            if feed_files.is_named_as_feed(file_name):
                raise SourceError(shown, "a feed file, which is read only with --feeds", "add --feeds")
            suffix = self.path.suffix or "no suffix"
            raise SourceError(shown, f"the name does not tell the kind of file ({suffix})", feed_files.EXPECTED)

    def is_wanted(self, name: str) -> bool:
        """Whether a file of this name, in the directory or beside the file, may be one to read."""
        return self._listing.is_wanted(name) if self.path.is_dir() else name.startswith(self.path.name)

    def waiting(self, positions: readers.Positions) -> Iterator[WaitingFile]:
        """The files with unread content, in no particular order."""
        lines: dict[str, Path] = {}
        own = {file: known for (source, file), known in positions.items() if source == self.name}
        is_read = {file for file, known in own.items() if known.position == readers.ALL_READ}.__contains__
        for file in self._listing.files(is_read):
            if file.kind is feed_files.FileKind.JSON_LINES:
                lines[file.name] = file.path
            elif not is_read(file.name):  # a single-file source is listed even if it was read
                yield self._waiting(file, own.get(file.name))
        noted = {file: known for file, known in own.items() if known.fingerprint or file in lines}
        self._beside.clear()
        for found in self._rotation.found(lines, noted):
            name, path, known = found.name, found.path, noted.get(found.name)
            if name not in lines:
                self._beside.add(name)
            if found.moved:
                yield WaitingFile(False, 0, self.name, name, path, self, found.at, known, lines=True)
            state = feed_files.file_state(path)
            if state is not None and state.size != found.at.position:
                fetched = readers.fetch_time(path)
                yield WaitingFile(True, fetched, self.name, name, path, self, found.at, known, lines=True)

    def among(self, paths: Iterable[str], positions: readers.Positions) -> list[WaitingFile] | None:
        """As `waiting`, of the files at these paths; None if others must be known, too."""
        if self.has_feeds or not self.path.is_dir():
            return None
        found, start = [], f"{self.path}/"
        for path in (Path(path) for path in paths if path.startswith(start)):
            if not self._listing.is_wanted(path.name):
                continue
            name = feed_files.printable(str(path)[len(start) :])
            known = positions.get((self.name, name))
            if known is None or known.position != readers.ALL_READ:
                try:
                    is_regular = stat.S_ISREG(path.lstat().st_mode)
                except FileNotFoundError:
                    continue
                except OSError:
                    return None
                if not is_regular or feed_files.kind_of_file(path.name, feeds=False) is not feed_files.FileKind.XML:
                    return None
                found.append(self._waiting(SourceFile(path, name, feed_files.FileKind.XML), known))
        return found

    def _waiting(self, file: SourceFile, known: readers.Offset | None) -> WaitingFile:
        start = known or readers.Offset(self.name, file.name, 0)
        return WaitingFile(True, file.fetched(), self.name, file.name, file.path, self, start, known)

    def names(self) -> set[str] | None:
        """The names of present files and of read files that were moved away; None if a directory cannot be listed."""
        files = list(self._listing.files())
        if any(file.path.is_dir() for file in files):
            return None
        return {file.name for file in files} | self._beside

    def read(self, waiting: WaitingFile, stop: readers.Offset | None = None) -> Iterator[ReadItem[InputItem]]:
        """The unread items of a file; of JSON lines, only those that begin before `stop`, which the file must match.
        Raises OSError, and ReplacedError if another file has taken the name, which the next poll handles."""
        path, start = waiting.path, waiting.start
        if not waiting.reads:
            yield ReadItem(None, start)
        elif waiting.lines:
            yield from starmap(ReadItem, readers.follow_jsonl(path, start, self._now, stop, self.read_line))
        else:
            to = partial(readers.Offset, self.name, waiting.file)
            file = SourceFile(path, waiting.file, feed_files.kind_of_file(path.name, feeds=self.has_feeds))
            for count, item in enumerate(islice(self._items(file), start.position, None), start.position + 1):
                yield ReadItem(item, to(count))
            yield ReadItem(None, to(readers.ALL_READ))

    def drain(self, is_wanted: Callable[[SourceFile], bool] | None = None) -> Iterator[tuple[str, Iterator[InputItem]]]:
        """The items of each wanted file, with its name, in the order of reading, ignoring offsets. Iterating over items
        may raise OSError."""
        for file in sort_files(filter(is_wanted, self._listing.files())):
            yield file.name, self._items(file)

    def _items(self, file: SourceFile) -> Iterator[InputItem]:
        match file.kind:
            case None:
                os.scandir(file.path).close()
                raise readers.ReplacedError(f"{file.name} can be listed again")
            case feed_files.FileKind.JSON_LINES | feed_files.FileKind.COMPRESSED_JSON_LINES:
                yield from readers.read_jsonl(file.path, self._now, self.read_line)
            case feed_files.FileKind.WARC:
                yield from readers.read_warc(file.path, self._feeds)
            case feed_files.FileKind.FEED:
                assert self._feeds is not None, "without feeds no file is of that kind"
                yield from readers.read_feed_file(file.path, file.name, self._feeds)
            case feed_files.FileKind.VISITS:
                yield from readers.read_visits_file(file.path, file.name)
            case feed_files.FileKind.XML:
                stream = file.name.partition("/")[0] if "/" in file.name else DEFAULT_STREAM
                yield readers.read_xml_file(file.path, file.name, stream, self._time)


def waiting_files(
    tails: Iterable[Tail], positions: readers.Positions, changed: Collection[str] | None = None
) -> list[WaitingFile]:
    """Sorted. If only the files at the paths `changed` may have been changed since the last call, only these are looked
    at where that is enough: to list 10,000 files takes 8 ms."""
    tails = list(tails)
    if changed is not None and None not in (some := [tail.among(changed, positions) for tail in tails]):
        return sorted(chain.from_iterable(filter(None, some)))
    return sorted(waiting for tail in tails for waiting in tail.waiting(positions))


LITTLE = 256 << 10
"""Bytes that one process handles before a cluster has even started its tasks."""


def is_little(found: Iterable[WaitingFile]) -> bool:
    """Whether the files have at most LITTLE bytes to read and none is a feed or an archive, which take longer."""
    left = LITTLE
    for waiting in found:
        kind = feed_files.kind_of_file(waiting.path.name, feeds=waiting.tail.has_feeds)
        if kind is feed_files.FileKind.JSON_LINES:
            left += waiting.start.position
        elif kind is not feed_files.FileKind.XML:
            return False
        left -= feed_files.content_bytes(waiting.path)
        if left < 0:
            return False
    return True


def read_documents(
    paths: Iterable[str | Path],
    *,
    feeds: EntryForm | None = None,
    time_xpath: str | None = None,
    json: JsonForm | None = None,
    now: Now = now_us,
    history: History | None = None,
) -> Iterator[SourceItem]:
    """The documents of all paths in order, a Reject for everything unreadable, files included, and the visits of feeds,
    which advance the stream. `history` knows earlier entries and decides whether changed ones become documents again
    (the default). See `tails_of`."""
    return settled(tails_of(paths, feeds=feeds, time_xpath=time_xpath, json=json, now=now), history or History())


def settled(tails: Iterable[Tail], history: History) -> Iterator[SourceItem]:
    files = chain.from_iterable(tail.drain() for tail in tails)
    return history.settle(chain.from_iterable(readers.or_reject(items, file) for file, items in files))


def tails_of(
    paths: Iterable[str | Path],
    *,
    feeds: EntryForm | None = None,
    time_xpath: str | None = None,
    json: JsonForm | None = None,
    now: Now = now_us,
    prefix: str = "",
) -> list[Tail]:
    """A tail for each path, with `prefix` before its name. All paths are checked.

    `feeds` makes each entry of a feed file a document ("item": normalised, "raw": unchanged). `time_xpath` locates the
    time in an XML file, or in a line with `json`, which makes each line a document in JSON ("plain", or "typed" with
    the types of values). `now` times JSON lines without a time. Raises SourceError for a path that is missing, empty or
    of an unknown kind, and for an invalid `time_xpath`.
    """
    if time_xpath is not None:
        time_reader(time_xpath)  # raises even if there is no path to read
    tails = []
    for path in map(Path, paths):
        shown = feed_files.printable(str(path))
        try:
            if is_directory := path.is_dir():
                os.scandir(path).close()
            else:
                path.open("rb").close()
        except FileNotFoundError:
            raise SourceError(shown, "no such file or directory", "check the path") from None
        except OSError as error:
            raise SourceError(shown, readers.read_error_text(error), "check its permissions") from None
        name = prefix + feed_files.printable(str(path.absolute()))
        tail = Tail(path, feeds=feeds, time_xpath=time_xpath, json=json, name=name, relative=not is_directory, now=now)
        if is_directory and tail.names() == set():
            wanted = ", ".join(f"*{suffix}" for suffix in sorted(feed_files.FEED_SUFFIXES)) if feeds else "*.xml"
            cause = f"the directory holds no {wanted} file, nor *.jsonl[.gz] or *.warc[.gz]"
            raise SourceError(shown, cause, "give a directory with feed files" if feeds else "feeds need --feeds")
        tails.append(tail)
    return tails


def in_a_hurry(items: Iterator[ReadItem[InputItem]], seconds: int | None) -> Iterator[ReadItem[InputItem]]:
    """The items, until a feed takes more than these seconds to parse, which raises HurriedError."""
    while True:
        with hurried(seconds):
            read = next(items, None)
        if read is None:
            return
        yield read


_OnUnreadable = Callable[[WaitingFile, str], object]


def start_thread(work: Callable[[], None]) -> None:
    Thread(target=work, name="mmqjp slow feeds", daemon=True).start()


TURN = 2  # seconds that reading and processing the items of a file may take while others wait
AHEAD = 1_000  # number of items that the slow lane reads ahead


class Turns:
    """Reads waiting files so that slow ones do not hold up others.

    A file whose items take more than `turn` seconds continues when nothing else waits, one turn at a time. A file whose
    feeds take longer than that to parse goes to the slow lane: a thread, started with `start`, reads such files one
    after another while others are read. Later versions of its feed wait.
    """

    def __init__(
        self,
        turn: int | None = TURN,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], object] = start_thread,
    ) -> None:
        """Without a `turn`, files are read in order, however long each takes."""
        self._turn, self._clock, self._start = turn, clock, start
        self._begun: dict[object, tuple[WaitingFile, Iterator[ReadItem[InputItem]]]] = {}
        self._slow: dict[object, WaitingFile] = {}
        self._ahead: _Ahead | None = None
        self._was_cut = False

    def is_ready(self) -> bool:
        """Whether `read` has items even if no more files are waiting."""
        return self._was_cut or bool(self._begun) or (self._ahead is not None and not self._ahead.empty())

    def read(
        self, files: Iterable[WaitingFile], on_unreadable: _OnUnreadable, *, wait: bool = False
    ) -> Iterator[ReadItem[InputItem]]:
        """The items of the files, until one has used up its turn: then the caller lists files again, if this
        `is_ready`. With `wait`, also the items that the slow lane has yet to read.

        `on_unreadable` is called with a file that cannot be read (further) and the reason: it stays waiting, and so do
        later versions of its feed, because their new entries depend on it."""
        self._was_cut, self._blocked, self._on_unreadable = False, BlockedFeeds(), on_unreadable
        for waiting in files:
            if not (self._blocked.has(waiting) or self._holds(waiting)):
                yield from self._take_turn(waiting, in_a_hurry(waiting.read(), self._turn))
                if self._was_cut:
                    return
        if self._begun:
            yield from self._take_turn(*self._begun.pop(next(iter(self._begun))))
        elif self._slow:
            yield from self._take_slow(wait)

    def _holds(self, waiting: WaitingFile) -> bool:
        held = self._begun.keys() | self._slow.keys()
        return bool(held) and not held.isdisjoint({_key(waiting), (waiting.source, waiting.file)})

    def _take_turn(self, waiting: WaitingFile, items: Iterator[ReadItem[InputItem]]) -> Iterator[ReadItem[InputItem]]:
        begun, start = self._clock(), waiting.start
        try:
            for read in items:
                start = read.offset
                yield read
                if self._turn is not None and self._clock() - begun >= self._turn:
                    self._begun[_key(waiting)] = replace(waiting, start=start), items
                    self._was_cut = True
                    return
        except HurriedError:
            self._slow[_key(waiting)] = replace(waiting, start=start)
            self._was_cut = True
            self._go_on()
        except OSError as error:
            self._note(waiting, error)

    def _take_slow(self, wait: bool) -> Iterator[ReadItem[InputItem]]:
        begun = self._clock()
        while self._ahead is not None and (wait or not self._ahead.empty()):
            read = self._ahead.get()
            if isinstance(read, ReadItem):
                yield read
                if self._turn is not None and self._clock() - begun >= self._turn:
                    self._was_cut = True
                    return
                continue
            waiting, self._ahead = self._slow.pop(next(iter(self._slow))), None
            self._go_on()
            if isinstance(read, OSError):
                self._note(waiting, read)
            elif read is not None:
                raise read

    def _go_on(self) -> None:
        if self._ahead is None and self._slow:
            self._ahead = Queue(AHEAD)
            self._start(partial(_read_ahead, next(iter(self._slow.values())), self._ahead))

    def _note(self, waiting: WaitingFile, error: OSError) -> None:
        if not readers.is_unreadable(error):
            raise error
        if not isinstance(error, readers.ReplacedError):  # otherwise the next poll handles the new file
            self._blocked.add(waiting)
            self._on_unreadable(waiting, readers.read_error_text(error))


def _key(waiting: WaitingFile) -> object:
    return waiting.feed() or (waiting.source, waiting.file)


_Ahead = Queue[ReadItem[InputItem] | BaseException | None]
"""The items of a file that a thread reads, followed by None or the error that ended reading."""


def _read_ahead(waiting: WaitingFile, found: _Ahead) -> None:
    try:
        for read in waiting.read():
            found.put(read)
        found.put(None)
    except BaseException as error:
        found.put(error)


def judged(items: Iterable[ReadItem[InputItem]], history: History) -> Iterator[ReadItem[SourceItem]]:
    return (ReadItem(None if read.item is None else history.judge(read.item), read.offset) for read in items)


class BlockedFeeds:
    def __init__(self) -> None:
        self._feeds: set[str] = set()

    def add(self, waiting: WaitingFile) -> None:
        self._feeds |= {waiting.feed()} - {""}

    def has(self, waiting: WaitingFile) -> bool:
        return bool(self._feeds) and waiting.feed() in self._feeds


def input_bytes(paths: Iterable[str | Path], enough: int, *, feeds: bool) -> int:
    """The approximate decompressed size of all files below the paths. Stops counting above `enough`."""
    size = 0
    for file in chain.from_iterable(Listing(Path(path), feeds=feeds).files() for path in paths):
        size += 0 if file.kind is None else feed_files.content_bytes(file.path)
        if size > enough:
            break
    return size
