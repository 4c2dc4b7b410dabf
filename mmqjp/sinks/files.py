"""Sinks of output lines: a growing file, a file written whole, and a pipe; also one that writes nothing. A checkpoint
(path, inode, length) finds a file again after a crash and truncates lines past the stored position, so that each is
written once. Handles standard output that is closed or whose reader goes away."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from common.files import sync_directory, whole_file
from mmqjp.answers.fan_out import lines_of
from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.process import json_line, standard_output
from mmqjp.sinks.sink import Pending, Sink, Warn


@dataclass(frozen=True, slots=True)
class FileCheckpoint:
    """A file with a length in bytes. Path and inode identify it; its device number may change with the next mount."""

    file: str
    inode: int | None
    bytes: int

    @classmethod
    def from_details(cls, details: Mapping[str, Any]) -> FileCheckpoint | None:
        """Returns the checkpoint in a position's details; None if they are not of a file."""
        return cls(details["file"], details.get("inode"), details["bytes"]) if "file" in details else None

    def cut_back(self, pending: Pending) -> bool:
        """Truncates the file, even if moved within its directory, to the checkpoint if all that follows is pending
        outputs. Returns whether other lines remain after it."""
        stays = [path for path in self._files() if not _cut_back(path, self.bytes, pending)]
        return bool(stays)

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
        file.truncate(length)
        os.fsync(file.fileno())
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
        for line in (json_line(written), json_line(older)):
            missing.discard(_digest(line))
            half = b"" if line.startswith(half) else half
    return not missing and not half


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=16).digest()


CHUNK = 1 << 20  # bytes per write


class _LineSink(Sink):
    """Lines in a file; None: standard output."""

    def __init__(self, path: Path | None, position: Position) -> None:
        self._path, self._acked = path, position.acked
        self._checkpoint = FileCheckpoint.from_details(position.details)

    def write(self, outputs: Iterable[Output]) -> int:
        """Raises OSError, also if the reader of a pipe has gone."""
        count, greatest = 0, self._acked

        def texts() -> Iterator[bytes]:
            nonlocal count, greatest
            for lines in lines_of(outputs):
                count, greatest = count + lines.count, max(greatest, lines.greatest)
                yield lines.text

        try:
            self._write(texts())
        except OSError as error:
            error.filename = error.filename or str(self._path or "standard output")
            raise
        self._acked = greatest
        return count

    def _write(self, texts: Iterable[bytes]) -> None:
        raise NotImplementedError

    def position(self) -> Position:
        return Position(self._acked)


class Pipe(_LineSink):
    """Standard output, or a path that is no regular file. After a crash, lines may be written twice."""

    def __init__(self, path: Path | None, position: Position) -> None:
        super().__init__(path, position)
        self._file: BinaryIO = standard_output() if path is None else path.open("wb")

    def prepare(self, pending: Pending) -> bool:
        before, self._checkpoint = self._checkpoint, None
        if before is not None:
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


class GrowingFile(_LineSink):
    """A file that output lines are appended to.

    Lines past the stored position come from a process that was killed before it stored its position: they are cut off
    and written again. Lines of others stay. If the file is moved, removed, truncated or replaced, lines go to the file
    that then has its name. A `write` appends and syncs all lines or none.
    """

    _path: Path

    def __init__(self, path: Path, position: Position, warn: Warn = lambda text: None) -> None:
        super().__init__(path, position)
        self._warn = warn
        self._handle, self._end = -1, 0
        self._break = b""

    def prepare(self, pending: Pending) -> bool:
        """Reopens a moved, truncated or replaced file, and truncates it to the position."""
        if self._is_as_left():
            return False
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
        checkpoint = self._checkpoint
        assert checkpoint is not None, "prepare comes first"
        self._end, chunk, is_empty = checkpoint.bytes, bytearray(self._break), True
        try:
            for text in texts:
                chunk += text
                is_empty = False
                if len(chunk) >= CHUNK:
                    self._put(chunk)
            if is_empty:
                return
            self._put(chunk)
            os.fsync(self._handle)
        except BaseException:
            self._truncate(checkpoint.bytes)
            raise
        self._checkpoint, self._break = replace(checkpoint, bytes=self._end), b""

    def _put(self, chunk: bytearray) -> None:
        while chunk:
            del chunk[: os.write(self._handle, chunk)]
            self._end = os.lseek(self._handle, 0, os.SEEK_CUR)

    def _truncate(self, length: int) -> None:
        with suppress(OSError):
            if os.fstat(self._handle).st_size == self._end:
                os.ftruncate(self._handle, length)

    def position(self) -> Position:
        return Position(self._acked, {} if self._checkpoint is None else asdict(self._checkpoint))

    def close(self) -> None:
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

    def position(self) -> Position:
        return Position(self._acked)
