"""Stamps of files detect changes since a file was read, if possible without reading it."""

from __future__ import annotations

import stat
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from feeds.readers import sidecar_path

SETTLED = 2 * 10**9
"""Nanoseconds after which a change certainly alters a file's times: some file systems have a resolution of two
seconds."""


class Stamp(NamedTuple):
    """`times` (with sizes; empty if too recent to rely on) and content `digest` of a file and its sidecar."""

    times: str
    digest: str

    def __str__(self) -> str:
        return f"{self.times} {self.digest}"


def stamp_of(path: Path, known: str, now: int) -> Stamp | None:
    """The current stamp of a file and its sidecar; None if they cannot be read or are not regular files. Given the text
    of an earlier stamp, the file is read only if its size or times have changed. `now` is in nanoseconds."""
    earlier = _parsed(known)
    try:
        sidecar = sidecar_path(path)
        paths = [path] if sidecar is None else [path, sidecar]
        found = [one.stat() for one in paths]
        if not all(stat.S_ISREG(one.st_mode) for one in found):
            return None
        newest = max(max(one.st_mtime_ns, one.st_ctime_ns) for one in found)
        times = ",".join(f"{one.st_size}:{one.st_mtime_ns}:{one.st_ctime_ns}" for one in found)
        if earlier is not None and earlier.times == times:
            return earlier
        return Stamp(times if newest + SETTLED < now else "", _digest(paths))
    except OSError:
        return None


def is_still(path: Path, stamp: Stamp, now: int) -> bool:
    """Whether a file has the times of a stamp or, if the stamp has none, its digest. `now` is in nanoseconds."""
    found = stamp_of(path, str(stamp), now)
    return found is not None and found.digest == stamp.digest and stamp.times in ("", found.times)


def _parsed(text: str) -> Stamp | None:
    times, _, digest = text.partition(" ")
    return Stamp(times, digest) if digest else None


def _digest(paths: list[Path]) -> str:
    found = blake2b(digest_size=16)
    for path in paths:
        with path.open("rb") as file:
            size = 0
            while chunk := file.read(1 << 20):
                found.update(chunk)
                size += len(chunk)
            found.update(size.to_bytes(8, "little"))  # which tells where one file ends
    return found.hexdigest()
