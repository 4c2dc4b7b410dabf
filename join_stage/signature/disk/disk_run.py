"""A run on disk as the join sees it: records are read from the mapped file where they are looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from join_stage.signature.arrays import Column, Ints, bisect_ranges, expand_ranges
from join_stage.signature.disk.run_file import BLOCK, Records, RunFile
from join_stage.signature.path_classes import DROPPED
from join_stage.signature.run import AskedValues
from join_stage.signature.values import Digests

_SAMPLE = 1_000
"""About the number of documents in a sample."""


_ONES, _SIGNS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)


class Field:
    """A field of the records of a file."""

    def __init__(self, file: RunFile, records: Records, name: str) -> None:
        self._pages, self._column = file.pages, records[name]

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, at: Ints) -> Ints:
        found = self._column[at]
        self._pages.looked_up(len(at))
        return found if found.dtype == np.uint64 else found.astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True)
class _Composed:
    """Numbers looked up by way of another column."""

    inner: Column
    outer: Column

    def __getitem__(self, at: Ints) -> Ints:
        return self.outer[self.inner[at]]


@dataclass(frozen=True, slots=True)
class _Starts:
    """The first posting of each group, and at the end their number."""

    starts: Field
    count: int

    def __getitem__(self, at: Ints) -> Ints:
        last = len(self.starts) - 1
        return np.where(at > last, self.count, self.starts[np.minimum(at, last)])


@dataclass(frozen=True, eq=False)
class DiskRun:
    """A `Run` in a file. `classes` has the number of each path class of the file, DROPPED if no row can ask for it any
    more. Documents that begin before `low` are evicted."""

    file: RunFile
    classes: Ints
    low: int | None = None

    def __len__(self) -> int:
        return self.file.head.postings

    @cached_property
    def path_class(self) -> Column:
        return _Composed(Field(self.file, self.file.groups, "path_class"), self.classes)

    @cached_property
    def start(self) -> Column:
        return _Starts(Field(self.file, self.file.groups, "start"), len(self))

    @cached_property
    def time(self) -> Column:
        return Field(self.file, self.file.postings, "time")

    @cached_property
    def node(self) -> Column:
        return Field(self.file, self.file.postings, "node")

    @cached_property
    def instance(self) -> Column:
        return Field(self.file, self.file.postings, "instance")

    @cached_property
    def top(self) -> Column:
        return Field(self.file, self.file.instances, "top")

    @cached_property
    def documents(self) -> Column:
        return _Composed(self.instance, Field(self.file, self.file.instances, "document"))

    @cached_property
    def docid(self) -> Column:
        return Field(self.file, self.file.documents, "docid")

    @cached_property
    def t0(self) -> Column:
        return Field(self.file, self.file.documents, "t0")

    @cached_property
    def t1(self) -> Column:
        return Field(self.file, self.file.documents, "t1")

    def groups_of(self, asked: AskedValues) -> tuple[Ints, Ints]:
        order, digests = asked.by_digest
        high, low = digests.T
        highs, lows = Field(self.file, self.file.groups, "high"), Field(self.file, self.file.groups, "low")
        count = len(highs)
        place = self._possible(high, low)
        high, low, order = high[place], low[place], order[place]
        fence = self.file.fences.searchsorted(high)
        start = bisect_ranges(highs, np.maximum((fence - 1) * BLOCK, 0), np.minimum(fence * BLOCK, count), high)
        met = np.flatnonzero((start < count) & (highs[np.minimum(start, count - 1)] == high))
        begin, high, low = start[met], high[met], low[met]
        until = _end_of_equal(highs, begin, high)
        first, last = np.zeros((2, len(digests)), np.int64)
        at = order[met]
        first[at] = begin = bisect_ranges(lows, begin, until, low)
        last[at] = bisect_ranges(lows, begin, until, low, after=True)
        return first, last

    def _possible(self, high: Digests, low: Digests) -> Ints:
        """The indices of the digests that the run may have, given by their halves: all that it has, and few others."""
        fences, prints = self.file.fences, self.file.prints
        fence = fences.searchsorted(high)
        at_fence = fences[np.minimum(fence, len(fences) - 1)] == high
        byte = (low & np.uint64(0xFF)) * _ONES
        # A byte of a word is zero where it is that of the digest.
        words = prints[np.maximum(fence - 1, 0)] ^ byte[:, None]
        has_byte = ((words - _ONES) & ~words & _SIGNS).any(axis=1)
        return np.flatnonzero(at_fence | has_byte)

    def inner_node(self, at: Ints, depth: int) -> Ints:
        found: Ints = self.file.postings["inner"][at, depth - 1].astype(np.int64)
        self.file.pages.looked_up(len(at))
        return found

    def of_instances(self, instance: Ints, group: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        group, place = expand_ranges(group, end)
        instance = instance[place]
        # Postings of a group are sorted by time and instance, and those of an instance have the time of its document.
        document = Field(self.file, self.file.instances, "document")[instance]
        time = self.t0[document]
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
        """Whether more than half of the documents are evicted, by a sample."""
        if self.low is None:
            return False
        starts = self.file.documents["t0"][:: 1 + self.file.head.documents // _SAMPLE]
        return 2 * int((starts < self.low).sum()) > len(starts)

    def renumbered(self, numbers: Mapping[int, int]) -> DiskRun:
        """The run after path classes got other numbers: `numbers[old]`, none if the class is dropped."""
        classes = [numbers.get(number, DROPPED) for number in self.classes.tolist()]
        return DiskRun(self.file, np.array(classes, np.int64), self.low)

    def evicted(self, before: int) -> DiskRun:
        """The run without the documents that begin before a time."""
        if before <= self.file.head.first:
            return self
        return DiskRun(self.file, self.classes, before if self.low is None else max(before, self.low))


def _end_of_equal(ordered: Field, start: Ints, values: Ints) -> Ints:
    """The end of the elements that equal the value, from each start on, where there is one."""
    end, step = start + 1, 1
    count = len(ordered)
    low = start.copy()
    growing = np.arange(len(start))
    while len(growing):
        at = np.minimum(end[growing], count - 1)
        more = (ordered[at] == values[growing]) & (end[growing] < count)
        growing = growing[more]
        low[growing] = end[growing]
        step *= 2
        end[growing] = np.minimum(end[growing] + step, count)
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
