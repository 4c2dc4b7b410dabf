"""Runs of postings on disk: paged arrays of records in an immutable file, with a description at its end. Groups are
sorted by value digest and path class, the postings of a group by time and instance, so one look-up reads one range. The
digests of every BLOCK-th group, the fences, locate the block of a value; a byte of each digest, the fingerprint, rules
out nearly all absent values. Numbers are little-endian and process-independent. Pages are read and cached rather than
mapped: a page fault costs several microseconds, a read one, and with 10 million documents a mapped batch took three
times as long and a gigabyte more. Each page has a checksum, which is compared whenever the page is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from weakref import WeakSet, finalize
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from common.arrays import IntLookup, Ints, bisect_ranges, distinct, expand_ranges
from common.files import open_like_directory, sync_directory, sync_file
from join_stage.signature.postings import (
    DROPPED,
    AskedValues,
    Digests,
    EdgeClass,
    PathClasses,
    PostingRun,
    TimeSpan,
    ValueDictionary,
)
from join_stage.store.protocol import DamagedRun

RecordArray = NDArray[Any]  # an array of records of one type

PAGE = 1_024  # approximate page size in bytes; pages have whole records

LIMIT = 48 << 20
"""Maximum bytes of cached pages. Past it all are dropped: the system caches them while it has room."""

CHECKED_AT_ONCE = 8 << 20  # bytes read at a time when a whole file is checked

AT_ONCE = LIMIT // PAGE // 4  # maximum number of look-ups at once: their pages stay below LIMIT


class PagePool:
    """Bounds the cached pages of several arrays together. For one thread."""

    def __init__(self) -> None:
        self.arrays: WeakSet[PagedRecords] = WeakSet()
        self._bytes = 0

    def has_room(self, size: int) -> bool:
        """Reserves `size` bytes. False if all pages had to be dropped, the caller's included."""
        has_room = self._bytes + size <= LIMIT
        if not has_room:
            for array in self.arrays:
                array.forget()
            self._bytes = 0
        self._bytes += size
        return has_room


def records_of_page(kind: np.dtype[Any], page: int) -> int:
    return max(1, page // kind.itemsize)


def page_sums(content: bytes | memoryview, size: int) -> list[int]:
    """The checksums of consecutive pages of `size` bytes; the last one may be shorter."""
    view = memoryview(content)
    return [crc32(view[at : at + size]) for at in range(0, len(view), size)]


class PageSums:
    """The stored checksums of a file's pages, read when the first page is compared. They detect damage, not malice."""

    def __init__(self, path: Path, handle: int, head: RunHead) -> None:
        self._path, self._handle, self._head = path, handle, head
        self._first = [sum(head.page_counts[:array]) for array in range(4)]
        self._sizes = [head.page_bytes(array) for array in range(4)]

    def check(self, array: int, pages: Ints, content: bytes) -> None:
        """Compares pages of an array, in ascending order. Raises DamagedRun."""
        found = page_sums(content, self._sizes[array])
        if found != (wanted := self._stored[pages + self._first[array]].tolist()):
            page = next(page for page, one, other in zip(pages, found, wanted, strict=True) if one != other)
            start = self._head.starts[array] + int(page) * self._sizes[array]
            raise DamagedRun(f"{self._path} is damaged between bytes {start:,} and {start + self._sizes[array]:,}")

    @cached_property
    def _stored(self) -> NDArray[np.uint32]:
        head = self._head
        content = os.pread(self._handle, head.counts[-1] * _SUM.itemsize, head.starts[-2])
        if crc32(content) != head.sums:
            raise DamagedRun(f"{self._path} is damaged: its checksums are not what was written")
        return np.frombuffer(content, _SUM)


_PageCheck = Callable[[Ints, bytes], None]  # compares pages, given their numbers and content


class PagedRecords:
    """An array of `count` records in an open file, from byte `start` on, in pages that are passed to `check` when they
    are read. Look-ups raise OSError, and what `check` raises."""

    def __init__(
        self,
        handle: int,
        start: int,
        count: int,
        kind: np.dtype[Any],
        pool: PagePool,
        page: int = 0,
        check: _PageCheck | None = None,
    ) -> None:
        self._handle, self._start, self._count, self._kind, self._pool = handle, start, count, kind, pool
        self._of_page, self._check = records_of_page(kind, page or PAGE), check
        self.forget()
        pool.arrays.add(self)

    def __len__(self) -> int:
        return self._count

    def forget(self) -> None:
        """Drops all cached pages."""
        self._slots: NDArray[np.int32] | None = None
        self._pages, self._used = np.zeros((0, self._of_page), self._kind), 0

    def range(self, first: int, end: int) -> RecordArray:
        """The records from `first` on and before `end`, uncached."""
        page = first // self._of_page
        past = max(page, -(-end // self._of_page))
        content = self._read_pages(page, past - page)
        if self._check is not None:
            self._check(np.arange(page, past), content)
        return np.frombuffer(content, self._kind, end - first, (first - page * self._of_page) * self._kind.itemsize)

    def at(self, places: Ints, name: str | None = None) -> NDArray[Any]:
        """The records at some places, or a field of them."""
        if len(places) > AT_ONCE:
            return np.concatenate([self.at(places[i : i + AT_ONCE], name) for i in range(0, len(places), AT_ONCE)])
        found = self._found(places)
        kept = self._pages.reshape(-1)
        return (kept if name is None else kept[name])[found]

    def _found(self, places: Ints) -> Ints:
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
        """Reads pages, in ascending order; neighbours are read together."""
        first = np.flatnonzero(np.diff(pages, prepend=-2) != 1)
        counts = np.diff(first, append=len(pages))
        ranges = zip(pages[first].tolist(), counts.tolist(), strict=True)
        content = b"".join([self._read_pages(*pair) for pair in ranges])
        if self._check is not None:
            self._check(pages, content)
        content = content.ljust(len(pages) * self._of_page * self._kind.itemsize, b"\0")
        end = self._used + len(pages)
        if end > len(self._pages):
            more = np.empty((max(end, 2 * len(self._pages)), self._of_page), self._kind)
            more[: self._used] = self._pages[: self._used]
            self._pages = more
        self._pages[self._used : end] = np.frombuffer(content, self._kind).reshape(-1, self._of_page)
        assert self._slots is not None, "whoever loads has made them"
        self._slots[pages] = np.arange(self._used, end)
        self._used = end

    def _read_pages(self, first: int, count: int) -> bytes:
        page = self._of_page * self._kind.itemsize
        start = self._start + first * page
        size = min(count * page, self._count * self._kind.itemsize - first * page)
        found = os.pread(self._handle, size, start)
        while len(found) < size:
            more = os.pread(self._handle, size - len(found), start + len(found))
            found += more or bytes(size - len(found))
        return found


class Field:
    """A field of records, as 64-bit numbers."""

    def __init__(self, records: PagedRecords, name: str) -> None:
        self._records, self._name = records, name

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, at: Ints) -> Ints:
        found = self._records.at(at, self._name)
        return found if found.dtype == np.uint64 else found.astype(np.int64, copy=False)


GROUP = np.dtype([("high", "<u8"), ("low", "<u8"), ("start", "<u4"), ("path_class", "<u4")])
"""A group: both halves of its digest, its first posting, and its class as an index into `RunHead.classes`."""

FENCE = np.dtype([("high", "<u8")])  # the high half of the digest of every BLOCK-th group, from the first on

BLOCK = 16  # number of groups between two fences

FINGERPRINTS = np.dtype([("fingerprints", "<u8", (BLOCK // 8,))])
"""The lowest digest bytes of the groups of a block, in eights, least significant byte first."""

MOST = (1 << 32) - 1  # maximum number of postings, and of instances, in a file

_SUM = np.dtype("<u4")  # the checksum of a page

FORMAT = 2  # since 2, files have checksums of their pages, and their name

_MAGIC = b"mmqjprun"
_ALIGNED = 64
_END = len(_MAGIC) + 16  # bytes of the end of a file: length of the description, checksum, magic number


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of a file's postings. `wide`: numbers take eight bytes, else four; `longest`: maximum number of inner
    nodes of a path; `lasting`: some documents end after they begin."""

    wide: bool
    longest: int
    lasting: bool

    @property
    def posting(self) -> np.dtype[Any]:
        """A posting, one record with all that a match needs: start of the document, docid relative to the file's
        `base`, instance, node, top of the path; if needed, the document's duration and the inner nodes."""
        number = "<i8" if self.wide else "<u4"
        fields: list[Any] = [("time", "<i8"), ("docid", number), ("instance", "<u4"), ("node", number), ("top", number)]
        fields += [("duration", number)] * self.lasting
        fields += [("inner", number, (self.longest,))] * (self.longest > 0)
        return np.dtype(fields, align=True)

    def __or__(self, other: Layout) -> Layout:
        longest = max(self.longest, other.longest)
        return Layout(self.wide or other.wide, longest, self.lasting or other.lasting)


NARROW = 1 << 32  # numbers below this take four bytes


@dataclass(frozen=True, slots=True)
class RunHead:
    """The description of a run file. Numbers of records, documents and instances; the layout; the docid `base` of its
    postings and the `end` after the greatest; when the `first` and `last` document begin, and `until` when any lasts,
    in microseconds; the path classes. `page` is the approximate size of a page in bytes, `sums` the checksum of the
    checksums of all pages, `name` the file's name without suffix. Files of format 1 have no checksums: `page` is 0."""

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
    page: int = 0
    sums: int = 0
    name: str = ""

    @property
    def types(self) -> tuple[np.dtype[Any], ...]:
        """The types of the arrays, in file order."""
        return self.layout.posting, GROUP, FENCE, FINGERPRINTS, _SUM

    @property
    def counts(self) -> tuple[int, ...]:
        """The lengths of the arrays, in file order."""
        return self.postings, self.groups, self.blocks, self.blocks, sum(self.page_counts)

    def page_bytes(self, array: int) -> int:
        return records_of_page(self.types[array], self.page) * self.types[array].itemsize

    @property
    def page_counts(self) -> tuple[int, ...]:
        """The numbers of pages of the arrays before the checksums."""
        counts = self.postings, self.groups, self.blocks, self.blocks
        pages = (-(-count // records_of_page(kind, self.page)) for count, kind in zip(counts, self.types, strict=False))
        return tuple(pages) if self.page else (0, 0, 0, 0)

    @property
    def blocks(self) -> int:
        return -(-self.groups // BLOCK)

    @property
    def starts(self) -> tuple[int, ...]:
        """The offsets of the arrays and of the description."""
        starts = [0]
        for count, kind in zip(self.counts, self.types, strict=True):
            starts.append(_aligned(starts[-1] + count * kind.itemsize))
        return tuple(starts)

    def to_json(self) -> bytes:
        sets = {edges: number for number, edges in enumerate({edges: None for c in self.classes for edges in c.groups})}
        described = {field.name: getattr(self, field.name) for field in fields(self)} | {
            "format": FORMAT,
            "layout": asdict(self.layout),
            "sets": [sorted(edges) for edges in sets],
            "classes": [([sets[edges] for edges in c.groups], c.same, c.stream) for c in self.classes],
        }
        return json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @staticmethod
    def from_json(text: bytes) -> RunHead:
        """Raises ValueError, KeyError or TypeError if this is no description."""
        described = json.loads(text.decode("utf-8", "surrogatepass"))
        if described.pop("format") not in (1, FORMAT):
            raise ValueError("of another format")
        sets = [frozenset((above, below) for above, below in edges) for edges in described.pop("sets")]
        classes = (EdgeClass(tuple(sets[n] for n in of), same, stream) for of, same, stream in described.pop("classes"))
        return RunHead(**described | {"layout": Layout(**described["layout"]), "classes": tuple(classes)})


@dataclass(frozen=True, slots=True)
class RunIndex:
    """Digest parts of consecutive blocks from `first` on: `fences` (blocks,) and `fingerprints` (blocks, BLOCK / 8)."""

    fences: RecordArray
    fingerprints: RecordArray
    first: int


class RunFile:
    """A run file, read on demand; `pool` counts the pages of `postings` and `groups`. Raises DamagedRun and OSError."""

    def __init__(self, path: Path, pool: PagePool) -> None:
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise DamagedRun(f"{path} is gone") from None
        finalize(self, os.close, self._handle)
        self.size = os.fstat(self._handle).st_size
        self.head = self._described()
        self._sums = PageSums(path, self._handle, self.head)
        self.postings, self.groups = self.arrays(pool)

    @cached_property
    def index(self) -> RunIndex:
        """The index of all blocks, read once."""
        return self._index(0, self.head.blocks)

    def index_between(self, first: int, end: int) -> RunIndex:
        """The index of the blocks that may have digests with `first` <= high half < `end`."""
        low, high = digests_between(Field(self._array(2, PagePool()), "high"), first, end)
        return self._index(max(low - 1, 0), min(high + 1, self.head.blocks))

    def _index(self, first: int, end: int) -> RunIndex:
        fences, fingerprints = (self._array(number, PagePool()).range(first, end) for number in (2, 3))
        return RunIndex(fences["high"], fingerprints["fingerprints"], first)

    def arrays(self, pool: PagePool) -> tuple[PagedRecords, PagedRecords]:
        """The arrays of postings and groups, with pages of their own."""
        return self._array(0, pool), self._array(1, pool)

    def _array(self, number: int, pool: PagePool) -> PagedRecords:
        head, check = self.head, partial(self._sums.check, number)
        place = head.starts[number], head.counts[number], head.types[number]
        return PagedRecords(self._handle, *place, pool, head.page, check if head.page else None)

    def check(self) -> None:
        """Compares all checksums. Raises DamagedRun."""
        for number, count in enumerate(self.head.counts[:-1]):
            array, step = self._array(number, PagePool()), CHECKED_AT_ONCE // self.head.types[number].itemsize
            for first in range(0, count, step):
                array.range(first, min(first + step, count))

    def _described(self) -> RunHead:
        end = os.pread(self._handle, _END, max(0, self.size - _END))
        size, checksum = int.from_bytes(end[:8], "little"), int.from_bytes(end[8:16], "little")
        at = self.size - _END - size
        text = os.pread(self._handle, size, at) if at >= 0 else b""
        try:
            if end[16:] != _MAGIC or crc32(text) != checksum:
                raise ValueError("no description")
            head = RunHead.from_json(text)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedRun(f"{self.path} is damaged: its description is not what was written") from error
        if head.starts[-1] != at or head.name not in ("", self.path.stem):
            raise DamagedRun(f"{self.path} is damaged: its description is that of another file")
        return head


def digests_between(highs: Field, first: int, end: int) -> tuple[int, int]:
    """The range of indices of sorted digests with `first` <= high half < `end`."""
    count = len(highs)
    bounds = np.array([first, min(end, (1 << 64) - 1)], np.uint64)
    low, high = bisect_ranges(highs, np.zeros(2, np.int64), np.full(2, count), bounds).tolist()
    return low, count if end == 1 << 64 else high


class RunWriter:
    """Writes a run file sequentially, of a given number of postings; invalid until `finish`. Raises OSError."""

    def __init__(self, path: Path, layout: Layout, postings: int, docids: range) -> None:
        self.path = path
        self._head = RunHead(postings, 0, 0, 0, layout, docids.start, docids.stop, 0, 0, 0, (), PAGE, 0, path.stem)
        self._sums, self._unsummed = ([b""], [b""]), [b"", b""]
        """Checksums of the pages of postings and groups, and the content behind them, less than a page."""
        self._next = list(self._head.starts[:2])
        self._groups = 0
        self._fences: list[RecordArray] = []
        self._fingerprints: list[RecordArray] = []
        self._file = open(path, "wb", opener=open_like_directory)  # noqa: SIM115, closed by `finish` or `abandon`

    def put_postings(self, records: RecordArray) -> None:
        self._put(0, records)

    def put_groups(self, records: RecordArray) -> None:
        self._fences.append(records["high"][-self._groups % BLOCK :: BLOCK].copy())
        self._fingerprints.append(records["low"].astype(np.uint8))
        self._groups += len(records)
        self._put(1, records)

    def _put(self, place: int, records: RecordArray) -> None:
        content = np.ascontiguousarray(records, self._head.types[place]).tobytes()
        self._next[place] = self._write(content, self._next[place])
        content = self._unsummed[place] + content
        whole = len(content) - len(content) % self._head.page_bytes(place)
        self._sums[place].append(self._summed(place, memoryview(content)[:whole]))
        self._unsummed[place] = content[whole:]

    def _summed(self, place: int, content: bytes | memoryview) -> bytes:
        return np.array(page_sums(content, self._head.page_bytes(place)), _SUM).tobytes()

    def _write(self, content: bytes, at: int) -> int:
        rest = memoryview(content)
        while rest:
            written = os.pwrite(self._file.fileno(), rest, at)
            at, rest = at + written, rest[written:]
        return at

    def finish(
        self, *, documents: int, instances: int, times: tuple[int, int, int], classes: Sequence[EdgeClass]
    ) -> None:
        """Completes and syncs the file. `times` are `first`, `last` and `until` of `RunHead`."""
        head = replace(self._head, groups=self._groups, documents=documents, instances=instances)
        head = replace(head, first=times[0], last=times[1], until=times[2], classes=tuple(classes))
        assert tuple(map(_aligned, self._next)) == head.starts[1:3], "as many records as were announced"
        sums = [part for place in (0, 1) for part in (*self._sums[place], self._summed(place, self._unsummed[place]))]
        for place, parts in enumerate((self._fences, self._fingerprints), 2):
            size = head.counts[place] * head.types[place].itemsize
            content = b"".join(part.tobytes() for part in parts).ljust(size, b"\0")
            self._write(content, head.starts[place])
            sums.append(self._summed(place, content))
        content = b"".join(sums)
        self._write(content, head.starts[4])
        text = replace(head, sums=crc32(content)).to_json()
        end = len(text).to_bytes(8, "little") + crc32(text).to_bytes(8, "little") + _MAGIC
        self._write(text + end, head.starts[-1])
        sync_file(self._file.fileno())
        self._file.close()
        sync_directory(self.path.parent)

    def abandon(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


def _aligned(place: int) -> int:
    return -(-place // _ALIGNED) * _ALIGNED


_SAMPLE = 1_000  # approximate number of postings in a sample

_ONES, _SIGNS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)


@dataclass(frozen=True, slots=True)
class Starts:
    """The first posting of each group, and at the end the total."""

    starts: Field
    count: int

    def __getitem__(self, at: Ints) -> Ints:
        last = len(self.starts) - 1
        return np.where(at > last, self.count, self.starts[np.minimum(at, last)])


class DiskRun:
    """Postings in a file, as `PostingRun`. `classes` has class numbers, or DROPPED; all before `low` is evicted."""

    def __init__(self, file: RunFile, classes: Ints, low: int | None = None) -> None:
        self.file, self.classes, self.low = file, classes, low
        self.start = Starts(Field(file.groups, "start"), len(self))
        self.time, self.instance = Field(file.postings, "time"), Field(file.postings, "instance")
        self._last_at: Ints | None = None
        self._last: RecordArray

    def __len__(self) -> int:
        return self.file.head.postings

    @property
    def span(self) -> TimeSpan:
        return TimeSpan(self.file.head.first, self.file.head.last, self.file.head.until)

    def path_classes(self, groups: Ints) -> Ints:
        found: Ints = self.classes[self.file.groups.at(groups, "path_class")]
        return found

    def ends(self, at: Ints) -> Ints:
        if not self.file.head.layout.lasting:
            return self.time[at]
        return self._column(at, "time") + self._column(at, "duration")

    def docids(self, at: Ints) -> Ints:
        return self._column(at, "docid") + self.file.head.base

    def nodes(self, at: Ints, depth: int | None = None) -> Ints:
        return self._column(at, "node" if depth is None else "inner" if depth else "top", depth)

    def _column(self, at: Ints, name: str, depth: int | None = None) -> Ints:
        """A field of some postings. Whole records are read, and those read last stay at hand."""
        if self._last_at is not at:
            self._last_at, self._last = at, self.file.postings.at(at)
        found = self._last[name]
        numbers: Ints = (found[:, depth - 1] if depth else found).astype(np.int64, copy=False)
        return numbers

    def groups_of(self, asked: AskedValues) -> tuple[Ints, Ints]:
        order, digests = asked.by_digest
        first, last = np.zeros((2, len(order)), np.int64)
        place, start, end = self.groups_with(digests, self.file.index)
        at = order[place]
        first[at], last[at] = start, end
        return first, last

    def groups_with(self, digests: Digests, index: RunIndex) -> tuple[Ints, Ints, Ints]:
        """The indices of sorted digests, within `index`, that the run has; and the starts and ends of their groups."""
        count = len(self.file.groups)
        place, block = _possible(digests, index)
        highs, lows = (Field(self.file.groups, name) for name in ("high", "low"))
        start = bisect_ranges(highs, block, np.minimum(block + BLOCK, count), digests[place, 0])
        met = np.flatnonzero((start < count) & (highs[np.minimum(start, count - 1)] == digests[place, 0]))
        place, start = place[met], start[met]
        high, low = digests[place].T
        until = _end_of_equal(highs, start, high)
        start = bisect_ranges(lows, start, until, low)
        end = bisect_ranges(lows, start, until, low, after=True)
        some = np.flatnonzero(start < end)
        return place[some], start[some], end[some]

    def of_instances(self, instance: Ints, time: Ints, group: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        # Postings of a group are sorted by time and instance.
        group, place = expand_ranges(group, end)
        instance, time = instance[place], time[place]
        first, last = self.start[group], self.start[group + 1]
        first = _bisect_two(self.time, self.instance, first, last, time, instance)
        has_any = first < last
        has_any[has_any] = self.instance[first[has_any]] == instance[has_any]
        some = np.flatnonzero(has_any)
        until = _bisect_two(self.time, self.instance, first[some], last[some], time[some], instance[some] + 1)
        at, which = expand_ranges(first[some], until)
        return at, group[some][which], place[some][which]

    @cached_property
    def is_mostly_evicted(self) -> bool:
        """Whether more than half of a sample of postings is evicted."""
        if self.low is None:
            return False
        times = self.time[np.arange(0, len(self), 1 + len(self) // _SAMPLE)]
        return 2 * int((times < self.low).sum()) > len(times)

    def renumbered(self, numbers: Mapping[int, int]) -> DiskRun:
        """The run with path classes renumbered by `numbers[old]`; a missing class is dropped."""
        classes = [numbers.get(number, DROPPED) for number in self.classes.tolist()]
        return DiskRun(self.file, np.array(classes, np.int64), self.low)

    def evicted(self, before: int) -> DiskRun:
        if before <= self.file.head.first:
            return self
        return DiskRun(self.file, self.classes, before if self.low is None else max(before, self.low))


SortedRun = PostingRun | DiskRun


def _possible(digests: Digests, index: RunIndex) -> tuple[Ints, Ints]:
    """Filters digests by fingerprint: sorted indices of all in the run and few others, and the group to begin at."""
    fences = index.fences
    high, low = digests.T
    fence = fences.searchsorted(high)
    at_fence = fences[np.minimum(fence, len(fences) - 1)] == high
    block = np.maximum(fence - 1, 0)
    # A byte of a word is zero where it is that of the digest.
    words = index.fingerprints[block] ^ ((low & np.uint64(0xFF)) * _ONES)[:, None]
    has_byte = ((words - _ONES) & ~words & _SIGNS).any(axis=1)
    place = np.flatnonzero(at_fence | has_byte)
    return place, (block[place] + index.first) * BLOCK


def _end_of_equal(ordered: Field, start: Ints, values: Ints) -> Ints:
    count = len(ordered)
    low, end, step = start.copy(), np.minimum(start + 1, count), 1
    growing = np.flatnonzero(end < count)
    while len(growing):
        growing = growing[ordered[end[growing]] == values[growing]]
        low[growing] = end[growing]
        step *= 2
        end[growing] = np.minimum(end[growing] + step, count)
        growing = growing[end[growing] < count]
    return bisect_ranges(ordered, low, end, values, after=True)


def _bisect_two(one: IntLookup, two: IntLookup, start: Ints, end: Ints, first: Ints, second: Ints) -> Ints:
    """The first index in each range with a pair not less than the given one, else its end; ranges are sorted."""
    start, end = start.copy(), end.copy()
    going = np.flatnonzero(start < end)
    while len(going):
        middle = (start[going] + end[going]) >> 1
        ours, wanted = one[middle], first[going]
        less = ours < wanted
        equal = ours == wanted
        less[equal] = two[middle[equal]] < second[going[equal]]
        start[going] = np.where(less, middle + 1, start[going])
        end[going] = np.where(less, end[going], middle)
        going = going[start[going] < end[going]]
    return start


def write_run(path: Path, run: PostingRun, values: ValueDictionary, classes: PathClasses) -> None:
    """Writes and syncs a run with at least one posting. Raises OSError."""
    base = int(run.docid.min())
    duration, docid = run.t1 - run.t0, run.docid - base
    wide = any(int(many.max(initial=0)) >= NARROW for many in (duration, docid, run.node, run.top, run.inner))
    layout = Layout(wide=wide, longest=run.inner.shape[1], lasting=bool(duration.any()))
    writer = RunWriter(path, layout, len(run), range(base, base + int(docid.max()) + 1))
    try:
        classes_of = distinct(run.path_class)
        code = classes_of.searchsorted(run.path_class)
        digests = values.digests(run.value)
        order = np.lexsort((code, digests[:, 1], digests[:, 0]))
        counted = np.diff(run.start)[order]
        at, group = expand_ranges(run.start[order], run.start[order] + counted)
        time = run.time[at]
        if ((time[1:] <= time[:-1]) & (group[1:] == group[:-1])).any():
            at = at[np.lexsort((run.instance[at], time, group))]
        document = run.documents[at]
        postings = np.zeros(len(run), layout.posting)
        postings["time"], postings["docid"] = run.time[at], docid[document]
        postings["instance"], postings["node"], postings["top"] = run.instance[at], run.node[at], run.nodes(at, 0)
        if layout.lasting:
            postings["duration"] = duration[document]
        if layout.longest:
            postings["inner"] = run.inner[at]
        writer.put_postings(postings)
        groups = np.zeros(len(order), GROUP)
        groups["high"], groups["low"] = digests[order].T
        groups["start"], groups["path_class"] = np.cumsum(counted) - counted, code[order]
        writer.put_groups(groups)
        writer.finish(
            documents=len(run.docid),
            instances=len(run.top),
            times=(int(run.time.min()), int(run.time.max()), int(run.t1.max())),
            classes=[classes.edges_of(number) for number in classes_of.tolist()],
        )
    except BaseException:
        writer.abandon()
        raise
