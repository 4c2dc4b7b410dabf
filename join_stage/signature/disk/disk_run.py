"""A run on disk as the join sees it: records are read from the file where they are looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from join_stage.arrays import Column, Composed, Ints, bisect_ranges, expand_ranges
from join_stage.signature.disk.paged_records import Field, PagedRecords, Records
from join_stage.signature.disk.run_file import BLOCK, RunFile, RunIndex
from join_stage.signature.path_classes import DROPPED
from join_stage.signature.run import AskedValues, Span
from join_stage.signature.values import Digests

_SAMPLE = 1_000
"""About the number of postings in a sample."""

_ONES, _SIGNS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)


class _WholeRecords:
    """Records of a file. Of those that were looked up last, several fields are looked up at once."""

    def __init__(self, records: PagedRecords) -> None:
        self._records = records
        self._last: tuple[Ints, Records] | None = None

    def __getitem__(self, at: Ints) -> Records:
        if self._last is None or self._last[0] is not at:
            self._last = at, self._records.at(at)
        return self._last[1]


@dataclass(frozen=True, slots=True)
class _Part:
    """A field of records."""

    records: _WholeRecords
    name: str

    def __getitem__(self, at: Ints) -> Ints:
        found: Ints = self.records[at][self.name].astype(np.int64, copy=False)
        return found


@dataclass(frozen=True, slots=True)
class Starts:
    """The first posting of each group, and at the end their number."""

    starts: Field
    count: int

    def __getitem__(self, at: Ints) -> Ints:
        last = len(self.starts) - 1
        return np.where(at > last, self.count, self.starts[np.minimum(at, last)])


@dataclass(frozen=True, slots=True)
class _Sum:
    """The sums of two columns."""

    one: Column
    other: Column

    def __getitem__(self, at: Ints) -> Ints:
        return self.one[at] + self.other[at]


@dataclass(frozen=True, slots=True)
class _Plus:
    """A column with a number added."""

    column: Column
    number: int

    def __getitem__(self, at: Ints) -> Ints:
        return self.column[at] + self.number


@dataclass(frozen=True, eq=False)
class DiskRun:
    """A `Run` in a file. `classes` has the number of each path class of the file, DROPPED if no row can ask for it any
    more. Documents that begin before `low` are evicted."""

    file: RunFile
    classes: Ints
    low: int | None = None

    def __len__(self) -> int:
        return self.file.head.postings

    @property
    def span(self) -> Span:
        return Span(self.file.head.first, self.file.head.last, self.file.head.until)

    @cached_property
    def path_class(self) -> Column:
        return Composed(Field(self.file.groups, "path_class"), self.classes)

    @cached_property
    def start(self) -> Column:
        return Starts(Field(self.file.groups, "start"), len(self))

    @cached_property
    def time(self) -> Column:
        return Field(self.file.postings, "time")

    @cached_property
    def instance(self) -> Column:
        return Field(self.file.postings, "instance")

    @cached_property
    def _postings(self) -> _WholeRecords:
        return _WholeRecords(self.file.postings)

    @property
    def ends(self) -> Column:
        if not self.file.head.layout.lasting:
            return self.time
        return _Sum(_Part(self._postings, "time"), _Part(self._postings, "duration"))

    @property
    def docids(self) -> Column:
        return _Plus(_Part(self._postings, "docid"), self.file.head.base)

    @property
    def tops(self) -> Column:
        return _Part(self._postings, "top")

    @property
    def node(self) -> Column:
        return _Part(self._postings, "node")

    def inner_node(self, at: Ints, depth: int) -> Ints:
        found: Ints = self._postings[at]["inner"][:, depth - 1].astype(np.int64)
        return found

    def groups_of(self, asked: AskedValues) -> tuple[Ints, Ints]:
        order, digests = asked.by_digest
        first, last = np.zeros((2, len(order)), np.int64)
        place, start, end = self.groups_with(digests, self.file.index)
        at = order[place]
        first[at], last[at] = start, end
        return first, last

    def groups_with(self, digests: Digests, index: RunIndex) -> tuple[Ints, Ints, Ints]:
        """The indices of the digests that the run has, and the ranges of the groups that have them: starts and ends.
        `digests` are sorted, and in blocks of `index`."""
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
        """Whether more than half of the postings are evicted, by a sample."""
        if self.low is None:
            return False
        times = self.time[np.arange(0, len(self), 1 + len(self) // _SAMPLE)]
        return 2 * int((times < self.low).sum()) > len(times)

    def renumbered(self, numbers: Mapping[int, int]) -> DiskRun:
        """The run after path classes got other numbers: `numbers[old]`, none if the class is dropped."""
        classes = [numbers.get(number, DROPPED) for number in self.classes.tolist()]
        return DiskRun(self.file, np.array(classes, np.int64), self.low)

    def evicted(self, before: int) -> DiskRun:
        """The run without the documents that begin before a time."""
        if before <= self.file.head.first:
            return self
        return DiskRun(self.file, self.classes, before if self.low is None else max(before, self.low))


def _possible(digests: Digests, index: RunIndex) -> tuple[Ints, Ints]:
    """The indices of the digests that a run may have, and the first group of the block where each begins: all digests
    that it has, and few others. They are sorted."""
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
    """The end of the elements that equal the value, from each start on, where there is one."""
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


def _bisect_two(one: Column, two: Column, start: Ints, end: Ints, first: Ints, second: Ints) -> Ints:
    """The first index in each range whose pair of elements is not less than a pair; the end of the range if none is.
    Ranges are sorted by both columns."""
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
