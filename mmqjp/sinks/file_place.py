"""The place of a file of output lines: noted, found again, and cut back to what was noted."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmqjp.answers.output import Output
from mmqjp.sinks.protocol import Pending
from mmqjp.text import json_line


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A file of so many bytes, by its path and inode. (Its device may have another number when it is mounted again.)"""

    file: str
    inode: int | None
    bytes: int

    @classmethod
    def of(cls, noted: Mapping[str, Any]) -> FilePlace | None:
        """The place that was noted; None if what was noted is no file."""
        return cls(noted["file"], noted.get("inode"), noted["bytes"]) if "file" in noted else None

    def to_note(self) -> dict[str, Any]:
        """What to note of it."""
        return asdict(self)

    def cut_back(self, pending: Pending) -> bool:
        """Cuts off what is behind the place if it is among the pending outputs: these are written again, maybe
        elsewhere. Also finds a file that was moved within its directory. Returns whether something stays, which others
        have written."""
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
    """Cuts a file to a length if all behind it are pending outputs. Returns whether they are."""
    if not path.is_file() or path.stat().st_size <= length:
        return True
    if not _is_in(path, length, pending()):
        return False
    with path.open("rb+") as file:
        file.truncate(length)
        os.fsync(file.fileno())
    return True


def _is_in(path: Path, start: int, outputs: Iterable[Output]) -> bool:
    """Whether the lines of a file from a position on, of which the last may be broken off, are lines of outputs."""
    missing: set[bytes] = set()
    half = b""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                half = line
            elif line != b"\n":  # which ends what others left without an end
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
