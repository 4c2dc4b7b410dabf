"""Sinks that are files: output lines in a growing file, a file written whole or a pipe, and a feed with its archives,
for any server of static directories; also one that writes nothing. Opens any kind of sink, as its definition says. A
checkpoint (path, inode, length) finds a file of lines again after a crash and truncates lines past the stored position,
so that each is written once. Handles standard output that is closed or whose reader goes away."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread
from typing import BinaryIO
from uuid import NAMESPACE_URL, uuid5

from common.files import drafts, sync_directory, whole_file
from feeds.documents import Now, now_us
from mmqjp.answers.fan_out import Position, lines_of
from mmqjp.answers.output import BodyForm, Output, output_json
from mmqjp.present.item import ShownMatch, missing_item
from mmqjp.process import json_line, standard_output
from mmqjp.sinks import definition as kinds
from mmqjp.sinks.definition import AtomOptions, JsonlOptions, SinkDefinition, named_secrets, path_of
from mmqjp.sinks.secrets import Secrets
from mmqjp.sinks.sink import Pending, Receiver, Sink, Warn
from mmqjp.syndication.atom import NEWEST, AtomEntry, AtomFeed, archive_of, entry_of, feed_document, unarchived_from


def try_to_write(definition: SinkDefinition) -> str:
    """Writes a file where a sink of files writes, and removes it. Returns "" or why that fails."""
    path = path_of(definition.options)
    assert path is not None, "it writes files"
    try:
        directory = path.parent if isinstance(definition.options, JsonlOptions) else path
        directory.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=directory, prefix=".mmqjp-test-") as file:
            file.write(b"test\n" * 1_000)
            file.flush()
            os.fsync(file.fileno())
        if path.exists() and not os.access(path, os.W_OK):
            return f"{path} may not be written"
    except OSError as error:
        return f"nothing can be written to {path}: {error.strerror}"
    return ""


@dataclass(frozen=True, slots=True)
class FileCheckpoint:
    """A file with a length in bytes. Path and inode identify it; its device number may change with the next mount."""

    file: str
    inode: int | None
    bytes: int

    def cut_back(self, pending: Pending) -> bool:
        """Truncates the file, even if moved, if only pending outputs follow. Returns whether other lines remain."""
        return bool([path for path in self._files() if not _cut_back(path, self.bytes, pending)])

    def _files(self) -> Iterator[Path]:
        path = Path(self.file)
        with suppress(FileNotFoundError):
            if path.stat().st_ino == self.inode:
                yield path
                return
        yield path
        if self.inode is not None and path.parent.is_dir():
            with os.scandir(path.parent) as entries:
                yield from [Path(e.path) for e in entries if e.inode() == self.inode and e.is_file()]


def _cut_back(path: Path, length: int, pending: Pending) -> bool:
    """Truncates a file to a length if all that follows is pending outputs. Returns whether it is."""
    if not path.is_file() or path.stat().st_size <= length:
        return True
    if not _is_in(path, length, pending()):
        return False
    with path.open("rb+") as file:
        try:
            file.truncate(length)
            os.fsync(file.fileno())
        except OSError as error:
            error.filename = str(path)
            raise
    return True


def _is_in(path: Path, start: int, outputs: Iterable[Output]) -> bool:
    """Whether all lines from a byte offset on are outputs; the last may be incomplete."""
    missing: set[bytes] = set()
    half = b""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                half = line
            elif line != b"\n":  # ends a line that others left incomplete
                missing.add(_digest(line))
    for output in outputs:
        if not missing and not half:
            break
        written = output.to_dict()
        older = {key: value for key, value in written.items() if key not in ("id", "seq")}  # before format 5
        for line in (json_line(written), json_line(older), f"{output_json(written, 'json')}\n".encode()):
            missing.discard(_digest(line))
            half = b"" if line.startswith(half) else half
    return not missing and not half


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=16).digest()


def _with_json(lines: bytes) -> bytes:
    """Output lines with bodies in JSON."""
    texts = (output_json(json.loads(line), "json") for line in lines.splitlines())
    return "".join(f"{text}\n" for text in texts).encode()


CHUNK = 1 << 20  # bytes per write


class _LineSink(Sink):
    """Lines in a file; None: standard output."""

    def __init__(self, path: Path | None, position: Position, body: BodyForm = "xml") -> None:
        self._path, self._acked, at, self._body = path, position.acked, position.details, body
        self._checkpoint = FileCheckpoint(at["file"], at.get("inode"), at["bytes"]) if "file" in at else None

    def write(self, outputs: Iterable[Output]) -> int:
        """Raises OSError, also if the reader of a pipe has gone."""
        count, greatest = 0, self._acked

        def texts() -> Iterator[bytes]:
            nonlocal count, greatest
            for lines in lines_of(outputs):
                count, greatest = count + lines.count, max(greatest, lines.greatest)
                yield lines.text if self._body == "xml" else _with_json(lines.text)

        try:
            self._write(texts())
        except OSError as error:
            error.filename = error.filename or str(self._path or "standard output")
            raise
        self._acked = greatest
        return count

    @abstractmethod
    def _write(self, texts: Iterable[bytes]) -> None: ...


class Pipe(_LineSink):
    """Standard output, or a path that is no regular file. After a crash, lines may be written twice."""

    def __init__(self, path: Path | None, position: Position) -> None:
        super().__init__(path, position)
        self._file: BinaryIO = standard_output() if path is None else path.open("wb")

    def prepare(self, pending: Pending) -> bool:
        before, self._checkpoint = self._checkpoint, None
        if before is not None and before.inode is not None:
            before.cut_back(pending)
        return before is not None

    def _write(self, texts: Iterable[bytes]) -> None:
        for text in texts:
            self._file.write(text)
        self._file.flush()

    def close(self) -> None:
        if self._path is not None:
            self._file.close()


class WholeFile(_LineSink):
    """A file that appears, or replaces another, once all lines of a `write` are there."""

    _path: Path

    def __init__(self, path: Path) -> None:
        super().__init__(path, Position())

    def _write(self, texts: Iterable[bytes]) -> None:
        with whole_file(self._path) as file:
            file.writelines(texts)


class _Sync(Thread):
    """Syncs the lines of a file in a thread, so that the next documents are answered meanwhile. `before` is the sink's
    position without these lines."""

    def __init__(self, handle: int, before: tuple[int, FileCheckpoint]) -> None:
        super().__init__(name="mmqjp sync", daemon=True)
        self._handle, self.before = handle, before
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            os.fsync(self._handle)
        except BaseException as error:  # whoever asks for the position gets it
            self.error = error


class GrowingFile(_LineSink):
    """A file that output lines are appended to. Lines past the stored position come from a process that was killed
    before it stored its position: they are cut off and written again. Lines of others stay. If the file is moved,
    removed, truncated or replaced, lines go to the file that then has its name. A `write` appends all lines or none;
    `position` waits until they are on disk."""

    _path: Path

    def __init__(self, path: Path, position: Position, warn: Warn = lambda text: None, body: BodyForm = "xml") -> None:
        super().__init__(path, position, body)
        self._warn = warn
        self._handle, self._end = -1, 0
        self._break = b""
        self._sync: _Sync | None = None

    def prepare(self, pending: Pending) -> bool:
        """Reopens a moved, truncated or replaced file, and truncates it to the position."""
        if self._is_as_left():
            return False
        self._wait()
        before, path = self._checkpoint, self._path.resolve()
        try:
            created = not path.exists()
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            # The file was moved, and its owner may be about to create the new one, where we may not.
            if self._handle >= 0 and os.fstat(self._handle).st_nlink:
                return False
            raise
        self.close()
        self._handle = handle
        if created:
            sync_directory(path.parent)
        if before is not None:
            self._resume(before, path, created, pending)
        status = os.fstat(handle)
        self._checkpoint = FileCheckpoint(str(path), status.st_ino, status.st_size)
        ends = not status.st_size or os.pread(handle, 1, status.st_size - 1) == b"\n"
        self._break = b"" if ends else b"\n"
        return self._checkpoint != before

    def _is_as_left(self) -> bool:
        if self._handle < 0 or self._checkpoint is None:
            return False
        own = os.fstat(self._handle)
        with suppress(OSError):
            return os.path.samestat(self._path.stat(), own) and own.st_size == self._checkpoint.bytes
        return False

    def _resume(self, before: FileCheckpoint, path: Path, created: bool, pending: Pending) -> None:
        """Truncates the file to the position; warns if others changed it."""
        if before.inode is None and before.file != str(path):
            return  # of a restored copy: that file may be the original's
        stays = before.cut_back(pending)
        if before.file != str(path):
            return
        status = path.stat()
        if created:
            self._warn(f"{path} was gone: appending to a new file")
        elif before.inode not in (None, status.st_ino):
            self._warn(f"{path} was replaced by another file: appending to it")
        elif status.st_size < before.bytes:
            self._warn(f"{path} was cut to {status.st_size:,} of {before.bytes:,} bytes: appending to it")
        elif stays:
            self._warn(f"{path} has {status.st_size - before.bytes:,} bytes from others: appending to it")

    def _write(self, texts: Iterable[bytes]) -> None:
        self._wait()
        checkpoint = self._checkpoint
        assert checkpoint is not None, "prepare comes first"
        self._end, chunk, is_empty = checkpoint.bytes, bytearray(self._break), True
        try:
            for text in texts:
                is_empty = False
                if len(text) < CHUNK:
                    chunk += text
                if len(chunk) >= CHUNK or len(text) >= CHUNK:
                    self._put(chunk)
                    chunk.clear()
                if len(text) >= CHUNK:
                    self._put(text)
            if is_empty:
                return
            self._put(chunk)
            sync = _Sync(self._handle, (self._acked, checkpoint))
            sync.start()
            self._sync = sync
        except BaseException:
            self._truncate(checkpoint.bytes)
            raise
        self._checkpoint, self._break = replace(checkpoint, bytes=self._end), b""

    def _wait(self) -> None:
        """Waits until all lines are on disk. If they cannot be brought there, they count as not written."""
        sync, self._sync = self._sync, None
        if sync is not None:
            sync.join()
            if sync.error is not None:
                self._acked, self._checkpoint = sync.before
                self._truncate(sync.before[1].bytes)
                if isinstance(sync.error, OSError):
                    sync.error.filename = str(self._path)
                raise sync.error

    def _put(self, text: bytes | bytearray) -> None:
        with memoryview(text) as left:
            while left:
                left = left[os.write(self._handle, left) :]
                self._end = os.lseek(self._handle, 0, os.SEEK_CUR)

    def _truncate(self, length: int) -> None:
        with suppress(OSError):
            if os.fstat(self._handle).st_size == self._end:
                os.ftruncate(self._handle, length)

    def position(self) -> Position:
        """Raises OSError if lines could not be brought to disk."""
        self._wait()
        return Position(self._acked, {} if self._checkpoint is None else asdict(self._checkpoint))

    def close(self) -> None:
        with suppress(OSError):  # then the stored position has been that before these lines
            self._wait()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def is_stream(path: Path) -> bool:
    return path.exists() and not path.is_file()


def open_sink(path: Path | None, position: Position, warn: Warn = lambda text: None, *, growing: bool = True) -> Sink:
    """Opens the sink of `--output`: standard output for None, otherwise a file, appended to if `growing`. `position` is
    the stored one; `warn` reports changes by others. Raises OSError."""
    if path is None or is_stream(path):
        return Pipe(path, position)
    return GrowingFile(path, position, warn) if growing else WholeFile(path)


def refuse_missing_directory(path: Path) -> None:
    """Raises FileNotFoundError if the directory of a file is missing, before any work is done."""
    if not path.resolve().parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


class Nowhere(Sink):
    """Acknowledges all outputs without writing. `last_seq` returns the last committed number."""

    def __init__(self, last_seq: Callable[[], int]) -> None:
        self._last_seq = last_seq
        self._acked = last_seq()

    def write(self, outputs: Iterable[Output]) -> int:
        before, self._acked = self._acked, self._last_seq()
        return self._acked - before


FEED = "feed.atom"  # the file with the newest entries

_ARCHIVE = re.compile(r"archive-(\d{1,17})\.atom")
_ENTRY = re.compile(r"<!-- (\d+) (-?\d+) --><entry>.*</entry>")


class AtomSink(Sink):
    """The files of a feed: FEED has the newest outputs and all that are in no archive, `archive-K.atom` those of a full
    archive. Archives never change. Entries live in the files alone; rewriting them after a kill changes nothing."""

    shows_items = True

    def __init__(self, name: str, options: AtomOptions, position: Position, warn: Warn, now: Now = now_us) -> None:
        address = options.url + FEED
        id = uuid5(NAMESPACE_URL, f"mmqjp:{address}").urn
        self._feed = AtomFeed(id, options.title or f"mmqjp: {name}", address, now())
        self._options, self._warn, self._now = options, warn, now
        self._acked = position.acked
        self._entries: dict[int, AtomEntry] | None = None
        self._archives: set[int] = set()

    def prepare(self, pending: Pending) -> bool:
        """Reads the files, removes leftovers of a killed process, and creates a missing feed. Raises OSError."""
        path = self._options.path / FEED
        if self._entries is not None and path.exists():
            return False
        if not self._options.path.is_dir():
            self._options.path.mkdir()
        for draft in drafts(self._options.path):
            if draft.name.startswith((f".{FEED}.", ".archive-")):
                draft.unlink(missing_ok=True)
        found = (_ARCHIVE.fullmatch(one.name) for one in self._options.path.iterdir())
        self._archives = {int(one[1]) for one in found if one is not None}
        if path.exists():
            self._entries = self._read(path)
        else:
            if self._entries is not None:
                self._warn(f"{path} was removed: it is written again")
            self._entries = self._entries or {}
            self._write_feed(self._entries)
        return False

    def write(self, outputs: Iterable[Output]) -> int:
        """Writes outputs without their items. Raises OSError."""
        matches = (ShownMatch(one, tuple(map(missing_item, one.documents, one.streams))) for one in outputs)
        return self.write_matches(matches)

    def write_matches(self, matches: Iterable[ShownMatch]) -> int:
        """Writes outputs with their items: first the archives they fill, then the feed. Raises OSError."""
        assert self._entries is not None, "prepare comes first"
        entries, count, last = dict(self._entries), 0, self._acked
        for match in matches:
            seq = match.output.seq
            count, last = count + 1, max(last, seq)
            if seq not in entries and archive_of(seq) in self._archives:  # by a process that was killed then
                entries |= self._read(self._options.path / _archive_name(archive_of(seq)))
            if seq not in entries:
                entry = entry_of(match, self._now())
                entries[seq] = replace(entry, xml=f"<!-- {seq} {entry.committed_at} -->{entry.xml}")
        begin = unarchived_from(max([last, *entries]))
        for archive in sorted({archive_of(seq) for seq in entries if seq < begin} - self._archives):
            self._write_archive(archive, {seq: one for seq, one in entries.items() if archive_of(seq) == archive})
        newest = dict[str, int]()  # by id: of a story the last one
        for seq in sorted(entries, reverse=True):
            newest.setdefault(entries[seq].id, seq)
        kept = {seq: entries[seq] for place, seq in enumerate(newest.values()) if place < NEWEST or seq >= begin}
        if count:
            self._write_feed(kept)
        self._entries, self._acked = kept, last
        return count

    def _write_archive(self, archive: int, entries: Mapping[int, AtomEntry]) -> None:
        name, before = _archive_name(archive), self._archive_before(archive)
        self._put(name, feed_document(self._feed, _newest_first(entries), before, self._options.url + name))
        self._archives.add(archive)

    def _write_feed(self, entries: Mapping[int, AtomEntry]) -> None:
        before = self._archive_before(max(self._archives, default=0) + 1)
        self._put(FEED, feed_document(self._feed, _newest_first(entries), before))

    def _archive_before(self, archive: int) -> str | None:
        before = max((one for one in self._archives if one < archive), default=None)
        return None if before is None else self._options.url + _archive_name(before)

    def _put(self, name: str, content: bytes) -> None:
        with whole_file(self._options.path / name) as file:
            file.write(content)

    def _read(self, path: Path) -> dict[int, AtomEntry]:
        """Returns the entries of a file. Raises FileExistsError if it is of another feed."""
        text = path.read_text("utf-8", "replace")
        if f"\n<id>{self._feed.id}</id>\n" not in text:
            cause = f"{path} is of another feed, or of this one at another address"
            raise FileExistsError(f"{cause}: choose another directory, or move its files away")
        found = (_ENTRY.fullmatch(line) for line in text.split("\n"))
        return {int(one[1]): AtomEntry(int(one[2]), one[0]) for one in found if one is not None}


def _newest_first(entries: Mapping[int, AtomEntry]) -> list[AtomEntry]:
    return [entries[seq] for seq in sorted(entries, reverse=True)]


def _archive_name(archive: int) -> str:
    return f"archive-{archive}.atom"


Opener = Callable[[SinkDefinition, Position, Warn], Receiver | Sink]
"""Opens the receiver of a push sink, or another sink at a position."""


def open_destination(secrets: Secrets, definition: SinkDefinition, position: Position, warn: Warn) -> Receiver | Sink:
    """An Opener, given the secrets. Raises OSError and SecretError if the sink is unusable as configured."""
    secrets.check(named_secrets(definition.options))
    if definition.is_live and (path := path_of(definition.options)) is not None:
        path.parent.mkdir(exist_ok=True)  # the directory of the state that all live sinks share
    match definition.options:  # with libraries that only some kinds need
        case kinds.CommandOptions() as options:
            from mmqjp.sinks.webhook import CommandReceiver

            return CommandReceiver(options, secrets)
        case kinds.MailOptions() as options:
            from mmqjp.sinks.webhook import MailReceiver

            return MailReceiver(options, secrets)
        case kinds.WebhookOptions() as options:
            from mmqjp.sinks.webhook import WebhookReceiver

            return WebhookReceiver(options, secrets)
        case kinds.JsonlOptions() as options:
            return GrowingFile(options.path, position, warn, options.body)
        case kinds.ParquetOptions() as options:
            from mmqjp.sinks.parquet import ParquetSink

            return ParquetSink(options, position, warn)
        case AtomOptions() as options:
            return AtomSink(definition.name, options, position, warn)


def shown_target(definition: SinkDefinition, secrets: Secrets) -> str:
    """Returns a sink's destination for display; of a secret URL only the host."""
    match definition.options:
        case kinds.WebhookOptions(url=url):
            return secrets.shown_address(url)
        case kinds.MailOptions(to=to):
            return ", ".join(to)
        case kinds.CommandOptions(command=command):
            return command[0]
        case kinds.JsonlOptions(path=path) | kinds.ParquetOptions(path=path) | AtomOptions(path=path):
            return str(path)
