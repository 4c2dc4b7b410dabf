"""The checkpoint of a file of output lines: its identity and length. Finds the file again and truncates it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmqjp.answers.output import Output
from mmqjp.sinks.sink import Pending
from mmqjp.text import json_line


@dataclass(frozen=True, slots=True)
class FileCheckpoint:
    """A file with a length in bytes. Path and inode identify it; its device may get another number on the next
    mount."""

    file: str
    inode: int | None
    bytes: int

    @classmethod
    def from_details(cls, details: Mapping[str, Any]) -> FileCheckpoint | None:
        """Returns the checkpoint in the details of a position, or None if they are not of a file."""
        return cls(details["file"], details.get("inode"), details["bytes"]) if "file" in details else None

    def to_details(self) -> dict[str, Any]:
        """Returns the details to store in a position."""
        return asdict(self)

    def cut_back(self, pending: Pending) -> bool:
        """Truncates the file to the checkpoint if all that follows is pending outputs, which are written again.

        Also finds a file that was moved within its directory. Returns whether lines of others remain after the
        checkpoint.
        """
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
    """Returns whether all lines of a file from a byte offset on are lines of outputs. The last one may be
    incomplete."""
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
