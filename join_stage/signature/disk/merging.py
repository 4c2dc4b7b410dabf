"""Merges runs on disk into one, a piece at a time, beside the batches.

A merge reads and writes each file from start to end, and has one piece in memory. What is evicted is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from join_stage.arrays import Ints, bisect_ranges, expand_ranges, group_starts
from join_stage.signature.disk.disk_run import DiskRun, Starts
from join_stage.signature.disk.paged_records import Field, PagePool, Records
from join_stage.signature.disk.run_file import NARROW, EdgeClass, RunWriter

PIECE = 100_000
"""The number of postings, or of other records, that are moved at a time."""

STOPPED_AGAIN_AFTER = 0.5
"""Seconds after which a merger is told again that it is stopped: it may have begun only then."""

_CLASS = np.uint64(0xFFFF)
"""The bits in which the number of a class takes the place of those of a digest."""


class Merger(Protocol):
    """Does merges, each in a thread that waits for it."""

    def merge(self, runs: Sequence[DiskRun], path: Path, is_stopped: Callable[[], bool]) -> None:
        """Merges runs into a new file. Removes what it wrote if it fails, or is stopped."""

    def stop(self, path: Path) -> None:
        """Is told that a merge, by the path of its new file, is stopped by now."""


class MergerHere:
    """Does merges in this process."""

    def merge(self, runs: Sequence[DiskRun], path: Path, is_stopped: Callable[[], bool]) -> None:
        steps = merged(runs, path)
        for _ in steps:
            if is_stopped():
                steps.close()
                return

    def stop(self, path: Path) -> None:
        """Does nothing: the merge looks whether it is stopped."""


class Merge:
    """The merge of some runs into the file of one, in a thread. The file is whole when it `is_done`; `error` has what
    went wrong."""

    def __init__(self, runs: Sequence[DiskRun], path: Path, merger: Merger) -> None:
        self.runs, self.path, self._merger = tuple(runs), path, merger
        self.files = frozenset(run.file for run in runs)
        self.is_done = False
        self.error: BaseException | None = None
        self._thread: Thread | None = None
        self._stopped = False

    def start(self) -> None:
        """Begins."""
        self._thread = Thread(target=self._run, name="merge", daemon=True)
        self._thread.start()

    @property
    def is_started(self) -> bool:
        """Whether it was begun."""
        return self._thread is not None

    def wait(self) -> None:
        """Waits until it has ended, if it was begun."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._merger.merge(self.runs, self.path, lambda: self._stopped)
            self.is_done = not self._stopped
        except BaseException as error:
            if not self._stopped:
                self.error = error

    def abandon(self) -> None:
        """Ends the work, and removes what was written."""
        self._stopped = True
        while self._thread is not None and self._thread.is_alive():
            self._merger.stop(self.path)
            self._thread.join(STOPPED_AGAIN_AFTER)
        for left in self.path.parent.glob(f"{self.path.stem}.*"):
            left.unlink(missing_ok=True)


def merged(runs: Sequence[DiskRun], path: Path) -> Generator[None]:
    """Merges runs into a new file. Yields between the pieces: if it is closed there, or fails, nothing is left."""
    heads = [run.file.head for run in runs]
    classes: dict[EdgeClass, int] = {}
    inputs: list[_Input] = []
    for run in runs:
        inputs.append(_Input(run, sum(head.instances for head in heads[: len(inputs)]), classes))
    count = 0
    for one in inputs:
        for kept in one.counts():
            count += kept
            yield
    layout = reduce(or_, (head.layout for head in heads))
    docids = range(min(head.base for head in heads), max(head.end for head in heads))
    if len(docids) > NARROW:
        layout = replace(layout, wide=True)
    writer = RunWriter(path, layout, count, docids)
    try:
        times = yield from _moved(inputs, writer, _Target(layout.posting, docids.start))
        writer.finish(
            documents=sum(head.documents for head in heads),
            instances=sum(head.instances for head in heads),
            times=(*times, max(head.until for head in heads)),
            classes=list(classes),
        )
    except BaseException:
        writer.abandon()
        raise


def _moved(inputs: Sequence[_Input], writer: RunWriter, target: _Target) -> Generator[None, None, tuple[int, int]]:
    """Writes all postings and groups. Returns when the first and the last document begin."""
    written, first, last = 0, [], []
    for piece in _pieces(inputs):
        moved = 0
        for postings, groups in piece.merged(target):
            writer.put_postings(postings)
            if groups is not None:
                groups["start"] += np.uint32(written)
                writer.put_groups(groups)
            if len(postings):
                first.append(int(postings["time"].min()))
                last.append(int(postings["time"].max()))
            moved += len(postings)
            yield
        written += moved
    return min(first), max(last)


@dataclass(frozen=True, slots=True)
class _Target:
    """The type of the merged postings, and the docid from which on they count docids."""

    posting: np.dtype[Any]
    base: int


class _Input:
    """A run that is merged. The numbers of its instances grow by `before`, and its path classes get those in
    `classes`."""

    def __init__(self, run: DiskRun, before: int, classes: dict[EdgeClass, int]) -> None:
        self.run, self._before = run, np.uint32(before)
        self._low = None if run.low is None or run.low <= run.file.head.first else run.low
        file = run.file
        # Others look into the run meanwhile.
        self._postings, self._groups = file.arrays(PagePool())
        self._classes = np.array([classes.setdefault(one, len(classes)) for one in file.head.classes], np.uint32)
        self.highs, self.times = Field(self._groups, "high"), Field(self._postings, "time")
        self.starts = Starts(Field(self._groups, "start"), len(run))

    def counts(self) -> Iterator[int]:
        """The numbers of postings that stay."""
        if self._low is None:
            yield len(self.run)
            return
        for at in range(0, len(self.run), PIECE):
            some = self._postings.range(at, min(at + PIECE, len(self.run)))
            yield int((some["time"] >= self._low).sum())

    def moved_groups(self, first: int, end: int) -> Records:
        """A range of groups, with the new numbers of their classes."""
        groups = self._groups.range(first, end).copy()
        groups["path_class"] = self._classes[groups["path_class"]]
        return groups

    def moved_postings(self, first: int, end: int, target: _Target) -> tuple[Records, NDArray[np.bool_]]:
        """A range of postings as they are in the merged run, and which of them stay."""
        found = self._postings.range(first, end)
        if found.dtype == target.posting:
            records = found.copy()
        else:
            records = np.zeros(len(found), target.posting)
            for name in found.dtype.names or ():
                if name == "inner":
                    records["inner"][:, : found["inner"].shape[1]] = found["inner"]
                else:
                    records[name] = found[name]
        records["instance"] += self._before
        records["docid"] += records["docid"].dtype.type(self.run.file.head.base - target.base)
        stay = np.ones(len(records), np.bool_) if self._low is None else records["time"] >= self._low
        return records, stay


@dataclass(frozen=True, slots=True)
class _Piece:
    """Ranges of groups of the inputs, from `first` to `end`, that have the same values: what follows has greater
    digests."""

    inputs: Sequence[_Input]
    first: Ints
    end: Ints

    def merged(self, target: _Target) -> Iterator[tuple[Records, Records | None]]:
        """Postings in their order, and their groups, which start from 0. The groups of a large piece come at its
        end."""
        groups = np.concatenate(
            [one.moved_groups(first, end) for one, first, end in zip(self.inputs, self.first, self.end, strict=True)]
        )
        source = np.arange(len(self.inputs)).repeat(self.end - self.first)
        start = groups["start"].astype(np.int64)
        ends = [
            one.starts[np.arange(first, end) + 1]
            for one, first, end in zip(self.inputs, self.first, self.end, strict=True)
        ]
        end = np.concatenate(ends)
        order = _sorted(groups)
        groups, source, start, end = groups[order], source[order], start[order], end[order]
        new = group_starts(groups["high"], groups["low"], groups["path_class"])
        if (end - start).sum() <= 4 * PIECE:
            yield self._small(target, groups[new], new, source, start, end)
        else:
            yield from self._large(target, groups[new], new, source, start, end)

    def _small(
        self, target: _Target, groups: Records, new: Ints, source: Ints, start: Ints, end: Ints
    ) -> tuple[Records, Records]:
        """The postings and groups of a piece that fits into memory. `groups` starts at the indices `new` of the sorted
        groups of the inputs, which come from the run `source` and have postings from `start` to `end`."""
        parts, stays, shift = [], [], np.zeros(len(self.inputs), np.int64)
        before = 0
        for place, one in enumerate(self.inputs):
            low, high = (int(number) for number in one.starts[np.array([self.first[place], self.end[place]])])
            records, stay = one.moved_postings(low, high, target)
            parts.append(records)
            stays.append(stay)
            shift[place] = before - low
            before += len(records)
        at, of = expand_ranges(start + shift[source], end + shift[source])
        number = np.repeat(np.arange(len(new)), np.diff(new, append=len(source)))[of]
        stay = np.concatenate(stays)[at]
        postings, number = np.concatenate(parts)[at[stay]], number[stay]
        time = postings["time"]
        if ((time[1:] < time[:-1]) & (number[1:] == number[:-1])).any():
            order = np.lexsort((postings["instance"], time, number))
            postings, number = postings[order], number[order]
        counts = np.bincount(number, minlength=len(groups))
        groups["start"] = np.cumsum(counts) - counts
        return postings, groups[counts > 0]

    def _large(
        self, target: _Target, groups: Records, new: Ints, source: Ints, start: Ints, end: Ints
    ) -> Iterator[tuple[Records, Records | None]]:
        """The same for a piece with a value that very many documents share: its groups are merged by time."""
        counts = np.zeros(len(groups), np.int64)
        for group, (first, last) in enumerate(zip(new, np.append(new[1:], len(source)), strict=True)):
            inputs = [self.inputs[place] for place in source[first:last].tolist()]
            for ranges in _by_time(inputs, start[first:last], end[first:last]):
                found = [one.moved_postings(low, high, target) for one, (low, high) in zip(inputs, ranges, strict=True)]
                postings = np.concatenate([records[stay] for records, stay in found])
                postings = postings[np.lexsort((postings["instance"], postings["time"]))]
                counts[group] += len(postings)
                yield postings, None
        groups["start"] = np.cumsum(counts) - counts
        yield np.zeros(0, target.posting), groups[counts > 0]


def _sorted(groups: Records) -> Ints:
    """The order of groups by digest and class. They are a few sorted sequences, one after the other."""
    high, low, number = groups["high"], groups["low"], groups["path_class"]
    # Nearly always, the classes of a value tell apart what the upper bits of its digest do not. This is sorted in
    # linear time.
    order = np.argsort(high & ~_CLASS | number & _CLASS, kind="stable")
    high, low, number = high[order], low[order], number[order]
    same_high, same_low = high[1:] == high[:-1], low[1:] == low[:-1]
    wrong = (high[1:] < high[:-1]) | (same_high & (low[1:] < low[:-1]))
    wrong |= same_high & same_low & (number[1:] < number[:-1])
    return np.lexsort((groups["path_class"], groups["low"], groups["high"])) if wrong.any() else order


def _pieces(inputs: Sequence[_Input]) -> Iterator[_Piece]:
    """All groups of the inputs, in the order of their digests."""
    first = np.zeros(len(inputs), np.int64)
    counts = np.array([len(one.highs) for one in inputs], np.int64)
    share = PIECE // len(inputs)
    while (open_ := np.flatnonzero(first < counts)).size:
        # Each input has its share up to a digest: that of the group which has the first posting past the share.
        bounds = [1 << 64]
        for place in open_.tolist():
            one, at = inputs[place], first[place : place + 1]
            goal = one.starts[at] + share
            if goal[0] < len(one.run):
                past = bisect_ranges(one.starts, at, counts[place : place + 1], goal, after=True)
                bounds.append(int(one.highs[past - 1][0]))
        end = _before(inputs, first, counts, min(bounds))
        if (end == first).all():  # a single value has more
            end = _before(inputs, first, counts, min(bounds) + 1)
        yield _Piece(inputs, first, end)
        first = end


def _before(inputs: Sequence[_Input], first: Ints, counts: Ints, bound: int) -> Ints:
    """The end of the groups of each input, from `first` on, whose digests have a high half less than a bound."""
    if bound >= 1 << 64:
        return counts
    wanted = np.array([bound], np.uint64)
    found = [
        bisect_ranges(one.highs, first[place : place + 1], counts[place : place + 1], wanted)
        for place, one in enumerate(inputs)
    ]
    return np.concatenate(found)


def _by_time(inputs: Sequence[_Input], start: Ints, end: Ints) -> Iterator[list[tuple[int, int]]]:
    """Ranges of postings, sorted by time, as consecutive ranges of each input that cover the same times."""
    share = max(1, PIECE // len(inputs))
    while (open_ := np.flatnonzero(start < end)).size:
        reached = [int(inputs[i].times[np.minimum([start[i] + share], end[i] - 1)][0]) for i in open_.tolist()]
        if (start[open_] + share >= end[open_]).all():
            until = end
        else:
            until = _until(inputs, start, end, min(reached))
            if (until == start).all():  # a single time has more
                until = _until(inputs, start, end, min(reached) + 1)
        yield list(zip(start.tolist(), until.tolist(), strict=True))
        start = until


def _until(inputs: Sequence[_Input], start: Ints, end: Ints, time: int) -> Ints:
    wanted = np.array([time], np.int64)
    found = [bisect_ranges(one.times, start[i : i + 1], end[i : i + 1], wanted) for i, one in enumerate(inputs)]
    return np.concatenate(found)
