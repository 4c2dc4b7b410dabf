"""Output lines of a service: a file that grows by each output once, or a pipe."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from mmqjp.outputs import Output
from mmqjp.text import json_line

WRITTEN = "written"
"""The setting with the file of output lines, and how long it was with the last batch that is marked as delivered."""


class Lines(Protocol):
    """Where output lines go."""

    def write(self, outputs: Iterable[Output]) -> None:
        """Writes outputs, so that they are there whatever happens next."""

    def position(self) -> str | None:
        """What has to be noted under WRITTEN to go on from here; None where nothing can be."""

    def close(self) -> None: ...


class Pipe:
    """Standard output, or what else is no regular file. A line may come again after a kill."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: BinaryIO = sys.stdout.buffer if path is None else path.open("wb")

    def write(self, outputs: Iterable[Output]) -> None:
        self._file.writelines(json_line(output.to_dict()) for output in outputs)
        self._file.flush()

    def position(self) -> str | None:
        return None

    def close(self) -> None:
        if self._path is not None:
            self._file.close()


class GrowingFile:
    """A file that output lines are appended to.

    What is behind the noted position was written by a batch that had not been marked as delivered: it is cut off, and
    comes again. A file that is shorter than noted, or another, is appended to.
    """

    def __init__(self, path: Path, noted: str | None) -> None:
        self._path = path.resolve()
        if not self._path.parent.is_dir():  # said now rather than after hours
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._file = self._path.open("ab")
        place = {} if noted is None else json.loads(noted)
        size = self._file.tell()
        if place.get("file") == str(self._path) and place["bytes"] <= size:
            self._file.truncate(place["bytes"])
            self._file.seek(place["bytes"])

    def write(self, outputs: Iterable[Output]) -> None:
        try:
            self._file.writelines(json_line(output.to_dict()) for output in outputs)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            error.filename = str(self._path)
            raise

    def position(self) -> str | None:
        return json.dumps({"file": str(self._path), "bytes": self._file.tell()}, ensure_ascii=False)

    def close(self) -> None:
        with suppress(OSError):  # what could not be written comes again
            self._file.close()


def open_lines(path: Path | None, noted: str | None) -> Lines:
    """The place that --output names: standard output for None. `noted` is what stands under WRITTEN."""
    if path is None or (path.exists() and not path.is_file()):
        return Pipe(path)
    return GrowingFile(path, noted)
