"""Sinks of output lines: a file that grows by each output once, one that is written whole, and a pipe."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from common.whole_file import sync_directory, whole_file
from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.sinks.file_place import FilePlace
from mmqjp.sinks.protocol import Pending, Sink, Tell
from mmqjp.sinks.standard_output import standard_output
from mmqjp.text import json_line

CHUNK = 1 << 20
"""Bytes that are written at a time."""


class _Acknowledged:
    """How far a sink is: the greatest `seq` of what it has written."""

    def __init__(self, position: Position) -> None:
        self._acked = self._greatest = position.acked

    def _passing(self, outputs: Iterable[Output]) -> Iterator[Output]:
        """Outputs on their way to be written."""
        self._greatest = self._acked
        for output in outputs:
            self._greatest = max(self._greatest, output.seq)
            yield output

    def _acknowledge(self) -> None:
        """All that passed is written."""
        self._acked = self._greatest

    def position(self) -> Position:
        """Up to which output the sink is written; what was noted of a place does not stand for this one."""
        return Position(self._acked)


class Pipe(_Acknowledged):
    """Standard output, or what else is no regular file. A line may come again after a kill."""

    def __init__(self, path: Path | None, position: Position) -> None:
        super().__init__(position)
        self._path, self._before = path, FilePlace.of(position.place)
        self._file: BinaryIO = standard_output() if path is None else path.open("wb")

    def prepare(self, pending: Pending) -> bool:
        """Cuts back the file that lines went to before, if any."""
        before, self._before = self._before, None
        if before is not None:
            before.cut_back(pending)
        return before is not None

    def write(self, outputs: Iterable[Output]) -> int:
        """Writes lines and flushes them. Raises OSError, also if nobody reads any more."""
        try:
            count = _write(self._passing(outputs), self._file)
            self._file.flush()
        except OSError as error:
            error.filename = error.filename or str(self._path or "standard output")
            raise
        self._acknowledge()
        return count

    def close(self) -> None:
        """Closes a named pipe. Standard output stays open."""
        if self._path is not None:
            self._file.close()


class WholeFile(_Acknowledged):
    """A file that appears, or takes the place of another, when all its lines are there: those of one call."""

    def __init__(self, path: Path) -> None:
        super().__init__(Position())
        self._path = path

    def prepare(self, pending: Pending) -> bool:
        """There is nothing to find again."""
        return False

    def write(self, outputs: Iterable[Output]) -> int:
        """Writes the file whole. Raises OSError."""
        with whole_file(self._path) as file:
            count = _write(self._passing(outputs), file)
        self._acknowledge()
        return count

    def close(self) -> None:
        """Nothing is open."""


class GrowingFile(_Acknowledged):
    """A file that output lines are appended to.

    What is behind the noted position was written by a process that could not note it any more: it is cut off, and comes
    again. What others have written there stays. If the file is moved away, removed, cut or replaced, lines go on behind
    whatever has its name then.
    """

    def __init__(self, path: Path, position: Position, tell: Tell = lambda text: None) -> None:
        super().__init__(position)
        self._path, self._tell = path, tell
        self._place = FilePlace.of(position.place)
        self._handle, self._end = -1, 0
        self._break = b""

    def prepare(self, pending: Pending) -> bool:
        """Opens the file anew if it was moved, cut or replaced, and cuts back what was not noted."""
        if self._is_as_left():
            return False
        before, path = self._place, self._path.resolve()
        try:
            created = not path.exists()
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            # Whoever moves the file may be about to make the new one, where we may not.
            if self._handle >= 0 and os.fstat(self._handle).st_nlink:
                return False
            raise
        self.close()
        self._handle = handle
        if created:
            sync_directory(path.parent)
        if before is not None:
            self._take_up(before, path, created, pending)
        status = os.fstat(handle)
        self._place = FilePlace(str(path), status.st_ino, status.st_size)
        ends = not status.st_size or os.pread(handle, 1, status.st_size - 1) == b"\n"
        self._break = b"" if ends else b"\n"
        return self._place != before

    def _is_as_left(self) -> bool:
        if self._handle < 0 or self._place is None:
            return False
        own = os.fstat(self._handle)
        with suppress(OSError):
            return os.path.samestat(self._path.stat(), own) and own.st_size == self._place.bytes
        return False

    def _take_up(self, before: FilePlace, path: Path, created: bool, pending: Pending) -> None:
        """Cuts off what was not noted, and tells of what is not as it was left."""
        stays = before.cut_back(pending)
        if before.file != str(path):
            return
        status = path.stat()
        if created:
            self._tell(f"{path} was gone: lines go on in a new file")
        elif before.inode not in (None, status.st_ino):
            self._tell(f"{path} is another file than before: lines are appended to it")
        elif status.st_size < before.bytes:
            self._tell(f"{path} was cut to {status.st_size:,} of {before.bytes:,} bytes: lines are appended to it")
        elif stays:
            self._tell(f"{path} has got {status.st_size - before.bytes:,} bytes from others: lines are appended to it")

    def write(self, outputs: Iterable[Output]) -> int:
        """Appends lines, and has them on disk when it returns; if that fails none is there. Raises OSError."""
        place = self._place
        assert place is not None, "prepare comes first"
        self._end = place.bytes
        try:
            count = self._append(self._passing(outputs))
        except BaseException as error:
            self._withdraw(place.bytes)
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(self._path)
            raise
        self._acknowledge()
        self._place, self._break = replace(place, bytes=self._end), b""
        return count

    def _append(self, outputs: Iterable[Output]) -> int:
        count, chunk = 0, bytearray(self._break)
        for output in outputs:
            chunk += json_line(output.to_dict())
            count += 1
            if len(chunk) >= CHUNK:
                self._put(chunk)
        if count:
            self._put(chunk)
            os.fsync(self._handle)
        return count

    def _put(self, chunk: bytearray) -> None:
        while chunk:
            del chunk[: os.write(self._handle, chunk)]
            self._end = os.lseek(self._handle, 0, os.SEEK_CUR)

    def _withdraw(self, length: int) -> None:
        """Cuts off what could not be written whole, lest half a line stand there until the next process."""
        with suppress(OSError):
            if os.fstat(self._handle).st_size == self._end:
                os.ftruncate(self._handle, length)

    def position(self) -> Position:
        """Up to which output the file is written, and how long it is with these."""
        return Position(self._acked, {} if self._place is None else self._place.to_note())

    def close(self) -> None:
        """Closes the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def is_stream(path: Path) -> bool:
    """Whether there is something that is no regular file, but a pipe or a device: it is written to directly."""
    return path.exists() and not path.is_file()


def open_sink(path: Path | None, position: Position, tell: Tell = lambda text: None, *, growing: bool = True) -> Sink:
    """The sink that --output names: standard output for None, or a file that is `growing` or else written whole.
    `position` is what was noted last. Raises OSError."""
    if path is None or is_stream(path):
        return Pipe(path, position)
    return GrowingFile(path, position, tell) if growing else WholeFile(path)


def refuse_missing_directory(path: Path) -> None:
    """Raises FileNotFoundError if there is no directory for a file: now rather than after hours."""
    if not path.resolve().parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _write(outputs: Iterable[Output], file: BinaryIO) -> int:
    count = 0
    for output in outputs:
        file.write(json_line(output.to_dict()))
        count += 1
    return count
