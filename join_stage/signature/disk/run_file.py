"""The file of a run: arrays of records, and a description at its end.

Groups are sorted by the digest of their value and their path class; the postings of a group follow each other, by time
and instance. So what a batch looks up lies together: a group in one record, its postings in one range. Apart from them
lie the digests of some groups, the fences, which tell in which block to look for a value; and a byte of each digest,
which tells in nearly all cases that the value is not there. A file never changes. All numbers are little-endian, and
mean the same to every process and machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize
from zlib import crc32

import numpy as np

from common.private import open_like_directory
from common.whole_file import sync_directory, sync_file
from join_stage.arrays import bisect_ranges
from join_stage.signature.disk.paged_records import Field, PagedRecords, PagePool, Records
from join_stage.store.protocol import StoreError
from templates.catalog import Edge

GROUP = np.dtype([("high", "<u8"), ("low", "<u8"), ("start", "<u4"), ("path_class", "<u4")])
"""A group: the halves of its digest, its first posting, and its class, by index in `RunHead.classes`."""

FENCE = np.dtype([("high", "<u8")])
"""The high half of the digest of every BLOCK-th group, from the first on."""

BLOCK = 16
"""The number of groups between two fences."""

FINGERPRINTS = np.dtype([("fingerprints", "<u8", (BLOCK // 8,))])
"""The lowest bytes of the digests of the groups of a block, in eights, each from the least significant byte on."""

MOST = (1 << 32) - 1
"""The largest number of postings, and of instances, in a file."""

FORMAT = 1
_MAGIC = b"mmqjprun"
_ALIGNED = 64
_END = len(_MAGIC) + 16
"""The bytes of the end of a file: the length of the description, its checksum, and the magic number."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the postings of a file have. Their numbers take eight bytes if they are `wide`, and else four. The `longest`
    path has so many nodes between its first and its last. If they are `lasting`, some documents end after they
    begin."""

    wide: bool
    longest: int
    lasting: bool

    @property
    def posting(self) -> np.dtype[Any]:
        """The type of a posting: when its document begins, and its docid from the file's `base` on; the number of its
        instance; its node, and the one that its path starts from. If they are needed, how long the document lasts, and
        the nodes inside the path. So whatever a match needs is in one record."""
        number = "<i8" if self.wide else "<u4"
        fields: list[Any] = [("time", "<i8"), ("docid", number), ("instance", "<u4"), ("node", number), ("top", number)]
        fields += [("duration", number)] * self.lasting
        fields += [("inner", number, (self.longest,))] * (self.longest > 0)
        return np.dtype(fields, align=True)

    def __or__(self, other: Layout) -> Layout:
        """The layout for the postings of both."""
        longest = max(self.longest, other.longest)
        return Layout(self.wide or other.wide, longest, self.lasting or other.lasting)


NARROW = 1 << 32
"""Numbers below this take four bytes."""


@dataclass(frozen=True, slots=True)
class EdgeClass:
    """A path class whose groups are told by their edges: numbers of groups are those of one run of the program."""

    groups: tuple[frozenset[Edge], ...]
    same: bool
    stream: str


@dataclass(frozen=True, slots=True)
class RunHead:
    """What the file of a run says about it.

    The numbers of its records, and of the documents and instances that they are about; the layout of its postings; the
    docid `base` from which on these count docids, and the `end` after the greatest; when its `first` and its `last`
    document begin, and `until` when any lasts, in microseconds; and its path classes.
    """

    postings: int
    groups: int
    documents: int
    instances: int
    layout: Layout
    base: int
    end: int
    first: int
    last: int
    until: int
    classes: tuple[EdgeClass, ...]

    @property
    def types(self) -> tuple[np.dtype[Any], ...]:
        """The types of the arrays, in their order in the file."""
        return self.layout.posting, GROUP, FENCE, FINGERPRINTS

    @property
    def counts(self) -> tuple[int, ...]:
        """The lengths of the arrays, in their order in the file."""
        return self.postings, self.groups, self.blocks, self.blocks

    @property
    def blocks(self) -> int:
        return -(-self.groups // BLOCK)

    @property
    def starts(self) -> tuple[int, ...]:
        """Where the arrays start, and where the description does."""
        starts = [0]
        for count, kind in zip(self.counts, self.types, strict=True):
            starts.append(_aligned(starts[-1] + count * kind.itemsize))
        return tuple(starts)

    def to_json(self) -> bytes:
        sets = {edges: number for number, edges in enumerate({edges: None for c in self.classes for edges in c.groups})}
        told = {field.name: getattr(self, field.name) for field in fields(self)} | {
            "format": FORMAT,
            "layout": asdict(self.layout),
            "sets": [sorted(edges) for edges in sets],
            "classes": [([sets[edges] for edges in c.groups], c.same, c.stream) for c in self.classes],
        }
        return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @staticmethod
    def from_json(text: bytes) -> RunHead:
        """Raises ValueError, KeyError or TypeError if this is no description."""
        told = json.loads(text.decode("utf-8", "surrogatepass"))
        if told.pop("format") != FORMAT:
            raise ValueError("of another format")
        sets = [frozenset((above, below) for above, below in edges) for edges in told.pop("sets")]
        classes = (
            EdgeClass(tuple(sets[number] for number in numbers), same, stream)
            for numbers, same, stream in told.pop("classes")
        )
        return RunHead(**told | {"layout": Layout(**told["layout"]), "classes": tuple(classes)})


class DamagedRun(StoreError):
    """The file of a run is gone, or is not what was written."""


@dataclass(frozen=True, slots=True)
class RunIndex:
    """Parts of the digests of consecutive blocks, in memory: `fences` of shape (blocks,), and `fingerprints` of shape
    (blocks, BLOCK / 8). `first` is the number of the first block."""

    fences: Records
    fingerprints: Records
    first: int


class RunFile:
    """A file of a run, which is read where something is looked up. Raises DamagedRun and OSError.

    `postings` and `groups` are its arrays of records, whose pages are counted in `pool`.
    """

    def __init__(self, path: Path, pool: PagePool) -> None:
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise DamagedRun(f"{path} is gone") from None
        finalize(self, os.close, self._handle)
        self.size = os.fstat(self._handle).st_size
        self.head = self._described()
        self.postings, self.groups = self.arrays(pool)

    @cached_property
    def index(self) -> RunIndex:
        """That of all blocks. It is read when it is first asked for, and kept."""
        return self._index(0, self.head.blocks)

    def index_between(self, first: int, end: int) -> RunIndex:
        """That of the blocks where digests may be whose high half is at least `first` and less than `end`."""
        blocks = self.head.blocks
        fences = Field(PagedRecords(self._handle, self.head.starts[2], blocks, FENCE, PagePool()), "high")
        bounds = np.array([first, min(end, (1 << 64) - 1)], np.uint64)
        low, high = bisect_ranges(fences, np.zeros(2, np.int64), np.full(2, blocks), bounds).tolist()
        return self._index(max(low - 1, 0), min(high + 1, blocks) if end < 1 << 64 else blocks)

    def _index(self, first: int, end: int) -> RunIndex:
        *_, fences, fingerprints = zip(self.head.types, self.head.starts, strict=False)
        return RunIndex(
            self._whole(*fences, first, end)["high"], self._whole(*fingerprints, first, end)["fingerprints"], first
        )

    def arrays(self, pool: PagePool) -> tuple[PagedRecords, PagedRecords]:
        """The arrays of postings and of groups, with pages of their own."""
        head = self.head
        (one, other, *_), (count, groups, *_), (start, at, *_) = head.types, head.counts, head.starts
        return PagedRecords(self._handle, start, count, one, pool), PagedRecords(self._handle, at, groups, other, pool)

    def _whole(self, kind: np.dtype[Any], start: int, first: int, end: int) -> Records:
        size = kind.itemsize
        return np.frombuffer(os.pread(self._handle, (end - first) * size, start + first * size), kind)

    def _described(self) -> RunHead:
        """The description at the end."""
        end = os.pread(self._handle, _END, max(0, self.size - _END))
        size, checksum = int.from_bytes(end[:8], "little"), int.from_bytes(end[8:16], "little")
        at = self.size - _END - size
        text = os.pread(self._handle, size, at) if at >= 0 else b""
        try:
            if end[16:] != _MAGIC or crc32(text) != checksum:
                raise ValueError("no description")
            head = RunHead.from_json(text)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedRun(f"{self.path} is damaged") from error
        if head.starts[-1] != at:
            raise DamagedRun(f"{self.path} is damaged")
        return head


class RunWriter:
    """Writes the file of a run, each array from its start to its end. The number of postings must be known before.

    Until `finish`, the file is not one of a run. Raises OSError.
    """

    def __init__(self, path: Path, layout: Layout, postings: int, docids: range) -> None:
        self.path = path
        self._head = RunHead(postings, 0, 0, 0, layout, docids.start, docids.stop, 0, 0, 0, ())
        self._next = list(self._head.starts[:2])
        self._groups = 0
        self._fences: list[Records] = []
        self._fingerprints: list[Records] = []
        self._file = open(path, "wb", opener=open_like_directory)  # noqa: SIM115, closed by `finish` or `abandon`

    def put_postings(self, records: Records) -> None:
        self._put(0, records)

    def put_groups(self, records: Records) -> None:
        self._fences.append(records["high"][-self._groups % BLOCK :: BLOCK].copy())
        self._fingerprints.append(records["low"].astype(np.uint8))
        self._groups += len(records)
        self._put(1, records)

    def _put(self, place: int, records: Records) -> None:
        content = np.ascontiguousarray(records, self._head.types[place]).tobytes()
        self._next[place] = self._write(content, self._next[place])

    def _write(self, content: bytes, at: int) -> int:
        """Writes bytes at a place, and returns where they end."""
        rest = memoryview(content)
        while rest:
            written = os.pwrite(self._file.fileno(), rest, at)
            at, rest = at + written, rest[written:]
        return at

    def finish(
        self, *, documents: int, instances: int, times: tuple[int, int, int], classes: Sequence[EdgeClass]
    ) -> None:
        """Completes the file, which survives a power failure from then on. `RunHead` tells what is given; `times` are
        `first`, `last` and `until`."""
        head = replace(self._head, groups=self._groups, documents=documents, instances=instances)
        head = replace(head, first=times[0], last=times[1], until=times[2], classes=tuple(classes))
        assert tuple(map(_aligned, self._next)) == head.starts[1:3], "as many records as were announced"
        self._write(b"".join(fences.tobytes() for fences in self._fences), head.starts[2])
        self._write(b"".join(some.tobytes() for some in self._fingerprints), head.starts[3])
        text = head.to_json()
        end = len(text).to_bytes(8, "little") + crc32(text).to_bytes(8, "little") + _MAGIC
        self._write(text + end, head.starts[-1])
        sync_file(self._file.fileno())
        self._file.close()
        sync_directory(self.path.parent)

    def abandon(self) -> None:
        """Closes and removes the file."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def _aligned(place: int) -> int:
    return -(-place // _ALIGNED) * _ALIGNED
