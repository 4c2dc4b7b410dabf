"""Stamps of files: they tell whether a file has changed since it was read, if possible without reading it."""

from __future__ import annotations

import stat
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from feeds.readers import sidecar_path

SETTLED = 2 * 10**9
"""Nanoseconds after which a change of a file changes its times for certain: some file systems count in two seconds."""


class Stamp(NamedTuple):
    """`times` has the sizes and times of a file and its sidecar, or is empty if they were too new to be relied on.
    `digest` is of their contents."""

    times: str
    digest: str

    def __str__(self) -> str:
        return f"{self.times} {self.digest}"


def stamp_of(path: Path, known: str, now: int) -> Stamp | None:
    """The stamp of a file and its sidecar, now; None if they cannot be read or are no regular files.

    Given the text of an earlier stamp, the file is only read if its size or times have changed since. `now` is in
    nanoseconds.
    """
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
    """Whether a file has the times of a stamp; if the stamp has none, whether it has its digest. `now` is as above."""
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
