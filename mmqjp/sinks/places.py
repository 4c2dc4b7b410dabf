"""A file of output lines as it was left: noted, found again, and rid of what was written and not noted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mmqjp.answers.output import Output
from mmqjp.text import json_line

NOWHERE = "{}"
"""What is noted where lines went to nothing that can be taken up."""

Left = Callable[[], Iterable[Output]]
"""Gives the outputs that are committed, and not noted as written."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file of so many bytes, by its path and inode. (Its device may have another number when it is mounted again.)"""

    file: str
    inode: int | None
    bytes: int

    @classmethod
    def noted(cls, note: str | None) -> Place | None:
        """The place that a note is of; None if it is of none."""
        found = json.loads(note or NOWHERE)
        return cls(found["file"], found.get("inode"), found["bytes"]) if "file" in found else None

    def note(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    def cut_back(self, left: Left) -> bool:
        """Cuts off what is behind the place and in `left`, since that is written again, maybe elsewhere; also if the
        file was moved within its directory. Whether it stays, being of others."""
        stays = [path for path in self._files() if not _cut_back(path, self.bytes, left)]
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


def _cut_back(path: Path, length: int, left: Left) -> bool:
    """Cuts a file to a length if all behind it is in `left`; whether it is."""
    if not path.is_file() or path.stat().st_size <= length:
        return True
    if not _is_in(path, length, left()):
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
        line = json_line(output.to_dict())
        missing.discard(_digest(line))
        half = b"" if line.startswith(half) else half
    return not missing and not half


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=16).digest()
