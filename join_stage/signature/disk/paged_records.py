"""Arrays of records in a file. What is looked up is read a page at a time, and is kept in memory while it is little.

The files could be mapped into memory instead. But a look-up then costs a page fault, which takes several microseconds
where a read takes one; and the system maps far more than was asked for, so that the process soon has whole files in
memory. With 10 million documents, a batch took three times as long and a gigabyte more.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from common.distinct import distinct
from join_stage.arrays import Ints

Records = NDArray[Any]
"""An array of records of one type."""

PAGE = 1_024
"""About the bytes of a page. It has whole records."""

LIMIT = 48 << 20
"""The bytes of pages that are kept. Past it, all are let go of: the system has them, as long as it has room."""

AT_ONCE = LIMIT // PAGE // 4
"""The number of look-ups that are made at once. Together their pages are less than LIMIT."""


class PagePool:
    """The pages of some arrays, which together are bounded. It belongs to one thread."""

    def __init__(self) -> None:
        self._arrays: WeakSet[PagedRecords] = WeakSet()
        self._bytes = 0

    def add(self, array: PagedRecords) -> None:
        """Counts the pages of an array from now on."""
        self._arrays.add(array)

    def has_room(self, size: int) -> bool:
        """Counts so many bytes more. False if all pages had to go, those of the one that asks included."""
        has_room = self._bytes + size <= LIMIT
        if not has_room:
            for array in self._arrays:
                array.forget()
            self._bytes = 0
        self._bytes += size
        return has_room


class PagedRecords:
    """An array of `count` records of a type in an open file, from byte `start` on. Look-ups raise OSError."""

    def __init__(self, handle: int, start: int, count: int, kind: np.dtype[Any], pool: PagePool) -> None:
        self._handle, self._start, self._count, self._kind, self._pool = handle, start, count, kind, pool
        self._of_page = max(1, PAGE // kind.itemsize)
        self.forget()
        pool.add(self)

    def __len__(self) -> int:
        return self._count

    def forget(self) -> None:
        """Lets go of all pages."""
        self._slots: NDArray[np.int32] | None = None
        self._pages, self._used = np.zeros((0, self._of_page), self._kind), 0

    def range(self, first: int, end: int) -> Records:
        """The records from `first` on and before `end`, which are read and not kept."""
        size = self._kind.itemsize
        return np.frombuffer(self._read(self._start + first * size, (end - first) * size), self._kind)

    def at(self, places: Ints) -> Records:
        """The records at some places."""
        if len(places) <= AT_ONCE:
            found = self._found(places)
            return self._kept()[found]
        return np.concatenate([self.at(places[i : i + AT_ONCE]) for i in range(0, len(places), AT_ONCE)])

    def field(self, name: str, places: Ints) -> NDArray[Any]:
        """A field of the records at some places."""
        if len(places) <= AT_ONCE:
            found = self._found(places)
            return self._kept()[name][found]
        return np.concatenate([self.field(name, places[i : i + AT_ONCE]) for i in range(0, len(places), AT_ONCE)])

    def _kept(self) -> Records:
        """All records that are kept, page after page."""
        return self._pages.reshape(-1)

    def _found(self, places: Ints) -> Ints:
        """Where the records at some places are among those that are kept."""
        page, inside = np.divmod(places, self._of_page)
        if self._slots is None:
            self._slots = np.full(-(-self._count // self._of_page), -1, np.int32)
        slot = self._slots[page]
        if (missing := slot < 0).any():
            wanted = distinct(page[missing])
            if not self._pool.has_room(len(wanted) * self._of_page * self._kind.itemsize):
                wanted = distinct(page)
                self._slots = np.full(-(-self._count // self._of_page), -1, np.int32)
            self._load(wanted)
            slot = self._slots[page]
        found: Ints = slot.astype(np.int64) * self._of_page + inside
        return found

    def _load(self, pages: Ints) -> None:
        """Reads pages, given in ascending order. Those that follow each other are read together."""
        size = self._of_page * self._kind.itemsize
        first = np.flatnonzero(np.diff(pages, prepend=-2) != 1)
        counts = np.diff(first, append=len(pages))
        starts = (self._start + pages[first] * size).tolist()
        content = b"".join(
            [self._read(start, count * size) for start, count in zip(starts, counts.tolist(), strict=True)]
        )
        end = self._used + len(pages)
        if end > len(self._pages):
            more = np.empty((max(end, 2 * len(self._pages)), self._of_page), self._kind)
            more[: self._used] = self._pages[: self._used]
            self._pages = more
        self._pages[self._used : end] = np.frombuffer(content, self._kind).reshape(-1, self._of_page)
        assert self._slots is not None, "whoever loads has made them"
        self._slots[pages] = np.arange(self._used, end)
        self._used = end

    def _read(self, start: int, size: int) -> bytes:
        """Reads bytes. Behind the last page, the file has something else, or nothing."""
        found = os.pread(self._handle, size, start)
        while len(found) < size:
            more = os.pread(self._handle, size - len(found), start + len(found))
            found += more or bytes(size - len(found))
        return found


class Field:
    """A field of records, as numbers of 64 bits."""

    def __init__(self, records: PagedRecords, name: str) -> None:
        self._records, self._name = records, name

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, at: Ints) -> Ints:
        found = self._records.field(self._name, at)
        return found if found.dtype == np.uint64 else found.astype(np.int64, copy=False)
