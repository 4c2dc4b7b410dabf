"""Keeps the pages of mapped files that are in this process's memory few, however much of the files is looked at."""

from __future__ import annotations

import mmap
from pathlib import Path
from weakref import WeakKeyDictionary

LIMIT = 320 << 20
"""If more bytes of mapped files than this are in memory, they are let go of. The system keeps them as long as it has
room; to have one page back takes some microseconds."""

LOOKED_UP = 1_000
"""The bytes are counted after so many look-ups."""

_STATM = Path("/proc/self/statm")
_SHARED = 2


class MappedPages:
    """The pages of some mapped files that are only read."""

    def __init__(self) -> None:
        self._mapped: WeakKeyDictionary[_Mapping, int] = WeakKeyDictionary()
        self._looked_up = 0
        self._before = _mapped_bytes()

    def map(self, handle: int) -> mmap.mmap:
        """Maps a whole file. Raises OSError, and ValueError if the file is empty."""
        mapped = _Mapping(handle, 0, access=mmap.ACCESS_READ)
        self._mapped[mapped] = len(mapped)
        return mapped

    def keep_from(self, mapped: mmap.mmap, place: int) -> None:
        """Has what lies in a file from a place on stay in memory."""
        assert isinstance(mapped, _Mapping), "it was mapped here"
        self._mapped[mapped] = place - place % mmap.PAGESIZE

    def looked_up(self, count: int) -> None:
        """Is told of so many look-ups in any of the files."""
        self._looked_up += count
        if self._looked_up > LOOKED_UP:
            self._looked_up = 0
            if _mapped_bytes() - self._before > LIMIT:
                self.release()

    def release(self) -> None:
        """Lets go of all pages but those to keep."""
        for mapped, end in list(self._mapped.items()):  # another thread may map a file
            if end and hasattr(mapped, "madvise"):
                mapped.madvise(mmap.MADV_DONTNEED, 0, end)


class _Mapping(mmap.mmap):
    """A mapped file, to which there may be weak references."""

    __hash__ = object.__hash__


def _mapped_bytes() -> int:
    """How much of mapped files is in memory, with programs and libraries; 0 where the system does not say."""
    try:
        return int(_STATM.read_bytes().split()[_SHARED]) * mmap.PAGESIZE
    except OSError:
        return 0
