"""Where a run's data goes: standard output, or a file that appears whole."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from mmqjp.text import json_line


class Sink:
    """Standard output for None; else a file that is put in the place of `path` by `finish`, or not at all.

    What is no regular file (a pipe, a device) is written to directly.
    """

    def __init__(self, path: Path | None) -> None:
        self._target: Path | None = None
        self._draft: Path | None = None
        if path is None:
            self._file: BinaryIO = sys.stdout.buffer
            return
        direct = path.exists() and not path.is_file()
        # Through a link, its target is replaced and not the link.
        self._target = path if direct else path.resolve()
        self._draft = None if direct else self._target.with_name(f".{self._target.name}.{os.getpid()}")
        self._file = (self._draft or self._target).open("wb")

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._target is not None:
            self._file.close()
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)

    def write(self, line: bytes) -> None:
        self._file.write(line)

    def finish(self) -> None:
        """Everything is written: from now on it is there for others."""
        self._file.flush()
        if self._target is not None and self._draft is not None:
            os.fsync(self._file.fileno())
            self._draft.replace(self._target)


class DeadLetters:
    """The dead letters of a run: counted, the first reasons kept, all of them written if a file is named."""

    SHOWN = 3

    def __init__(self, path: Path | None) -> None:
        if path is not None and not path.parent.is_dir():  # said now rather than after hours
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self.count = 0
        self.reasons: list[str] = []
        self._path = path
        self._file: BinaryIO | None = None

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Takes in those of a batch that is committed. The file is made, anew, for the first of them."""
        for row in rows:
            if len(self.reasons) < self.SHOWN:
                known = row["reason"].startswith(f"{row['id']}:")
                self.reasons.append(row["reason"] if known else f"{row['id']}: {row['reason']}")
            if self._path is not None:
                self._file = self._file or self._path.open("wb")
                self._file.write(json_line(_shown(row)))
        self.count += len(rows)
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A dead letter as a line shows it."""
    raw = row["raw"].decode("utf-8", "backslashreplace")
    return {key: raw if key == "raw" else value for key, value in row.items() if key != "noted_at"}
