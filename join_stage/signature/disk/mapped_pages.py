"""Keeps the pages of mapped files that are in this process's memory few, however much of the files is looked at."""

from __future__ import annotations

import mmap
from pathlib import Path
from weakref import WeakSet

LIMIT = 96 << 20
"""More bytes of mapped files than this are let go of. They stay in the memory of the system as long as it has room."""

LOOKED_UP = 1_000
"""The bytes are counted after so many look-ups. Each may bring sixteen pages into memory."""

_STATM = Path("/proc/self/statm")
_SHARED = 2


class MappedPages:
    """The pages of some mapped files that are only read."""

    def __init__(self) -> None:
        self._mapped: WeakSet[_Mapping] = WeakSet()
        self._looked_up = 0
        self._before = _mapped_bytes()

    def map(self, handle: int) -> mmap.mmap:
        """Maps a whole file. Raises OSError, and ValueError if the file is empty."""
        mapped = _Mapping(handle, 0, access=mmap.ACCESS_READ)
        self._mapped.add(mapped)
        return mapped

    def looked_up(self, count: int) -> None:
        """Is told of so many look-ups in any of the files."""
        self._looked_up += count
        if self._looked_up > LOOKED_UP:
            self._looked_up = 0
            if _mapped_bytes() - self._before > LIMIT:
                self.release()

    def release(self) -> None:
        """Lets go of all pages."""
        for mapped in self._mapped:
            if hasattr(mapped, "madvise"):
                mapped.madvise(mmap.MADV_DONTNEED)


class _Mapping(mmap.mmap):
    """A mapped file, to which there may be weak references."""

    __hash__ = object.__hash__


def _mapped_bytes() -> int:
    """How much of mapped files is in memory, with programs and libraries; 0 where the system does not say."""
    try:
        return int(_STATM.read_bytes().split()[_SHARED]) * mmap.PAGESIZE
    except OSError:
        return 0
