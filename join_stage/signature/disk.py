"""The runs of a store on disk: their manifest, their files, and the background merges. A merge reads and writes each
file sequentially, a piece at a time, and leaves out evicted documents; it gives files of format 1 their checksums.
Files are written before the commit that names them and removed after the commit that drops them; files that a killed
process leaves behind are not in the manifest and are removed after the next commit."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import or_
from pathlib import Path
from secrets import token_hex
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.arrays import Ints, bisect_ranges, expand_ranges, group_starts
from join_stage.signature import runs as run_files
from join_stage.signature.postings import EdgeClass, PathClasses, PostingRun, ValueDictionary
from join_stage.store.protocol import DamagedRun

_LOG = logging.getLogger("mmqjp")

PIECE = 100_000  # number of postings, or other records, moved at a time

STOPPED_AGAIN_AFTER = 0.5  # seconds after which a stop is sent again: the merger may have started after the first

_CLASS = np.uint64(0xFFFF)  # the bits of a digest that the class number replaces


class Merger:
    """Runs merges, each in its own thread; by default in this process."""

    def merge(self, runs: Sequence[run_files.DiskRun], path: Path, is_stopped: Callable[[], bool]) -> None:
        """Merges runs into a new file. Removes its output on failure or when stopped."""
        steps = merge_disk_runs(runs, path)
        for _ in steps:
            if is_stopped():
                steps.close()
                return

    def stop(self, path: Path) -> None:
        """Called when the merge into `path` was stopped."""


class Merge(Thread):
    """A merge of runs into one file, in a thread; the file is complete when it `is_done`; `error` is its failure."""

    def __init__(self, runs: Sequence[run_files.DiskRun], path: Path, merger: Merger) -> None:
        super().__init__(name="merge", daemon=True)
        self.runs, self.path, self._merger = tuple(runs), path, merger
        self.files = frozenset(run.file for run in runs)
        self.is_done = self._is_abandoned = False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._merger.merge(self.runs, self.path, lambda: self._is_abandoned)
            self.is_done = not self._is_abandoned
        except BaseException as error:
            if not self._is_abandoned:
                self.error = error

    def abandon(self) -> None:
        """Stops the merge and removes its output."""
        self._is_abandoned = True
        while self.is_alive():
            self._merger.stop(self.path)
            self.join(STOPPED_AGAIN_AFTER)
        for left in self.path.parent.glob(f"{self.path.stem}.*"):
            left.unlink(missing_ok=True)


def merge_disk_runs(runs: Sequence[run_files.DiskRun], path: Path) -> Generator[None]:
    """Merges runs into a new file, yielding between pieces; closing the generator, or a failure, removes the output."""
    heads = [run.file.head for run in runs]
    classes: dict[EdgeClass, int] = {}
    layout = reduce(or_, (head.layout for head in heads))
    docids = range(min(head.base for head in heads), max(head.end for head in heads))
    if len(docids) > run_files.NARROW:
        layout = replace(layout, wide=True)
    before = np.cumsum([0, *(head.instances for head in heads)]).tolist()
    inputs = [_Input(run, at, classes, layout.posting, docids.start) for run, at in zip(runs, before, strict=False)]
    count = 0
    for one in inputs:
        for kept in one.counts():
            count += kept
            yield
    writer = run_files.RunWriter(path, layout, count, docids)
    try:
        written, first, last = 0, [], []
        for piece in _pieces(inputs):
            moved = 0
            for postings, groups in piece.merged():
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
        writer.finish(
            documents=sum(head.documents for head in heads),
            instances=sum(head.instances for head in heads),
            times=(min(first), max(last), max(head.until for head in heads)),
            classes=list(classes),
        )
    except BaseException:
        writer.abandon()
        raise


class _Input:
    """An input run with offset instances and mapped classes; `posting` and `base` are those of the merged run."""

    def __init__(
        self, run: run_files.DiskRun, before: int, classes: dict[EdgeClass, int], posting: np.dtype[Any], base: int
    ) -> None:
        self.run, self._before, self.posting, self._base = run, np.uint32(before), posting, base
        self._low = None if run.low is None or run.low <= run.file.head.first else run.low
        file = run.file
        # Other threads use the run meanwhile.
        self._postings, self._groups = file.arrays(run_files.PagePool())
        self._classes = np.array([classes.setdefault(one, len(classes)) for one in file.head.classes], np.uint32)
        self.highs, self.times = run_files.Field(self._groups, "high"), run_files.Field(self._postings, "time")
        self.starts = run_files.Starts(run_files.Field(self._groups, "start"), len(run))

    def counts(self) -> Iterator[int]:
        if self._low is None:
            yield len(self.run)
            return
        for at in range(0, len(self.run), PIECE):
            some = self._postings.range(at, min(at + PIECE, len(self.run)))
            yield int((some["time"] >= self._low).sum())

    def moved_groups(self, first: int, end: int) -> run_files.RecordArray:
        """A range of groups, with their new class numbers."""
        groups = self._groups.range(first, end).copy()
        groups["path_class"] = self._classes[groups["path_class"]]
        return groups

    def moved_postings(self, first: int, end: int) -> tuple[run_files.RecordArray, NDArray[np.bool_]]:
        """A range of postings as in the merged run, and the mask of those that stay."""
        found = self._postings.range(first, end)
        if found.dtype == self.posting:
            records = found.copy()
        else:
            records = np.zeros(len(found), self.posting)
            for name in found.dtype.names or ():
                if name == "inner":
                    records["inner"][:, : found["inner"].shape[1]] = found["inner"]
                else:
                    records[name] = found[name]
        records["instance"] += self._before
        records["docid"] += records["docid"].dtype.type(self.run.file.head.base - self._base)
        stay = np.ones(len(records), np.bool_) if self._low is None else records["time"] >= self._low
        return records, stay


@dataclass(frozen=True, slots=True)
class _Piece:
    """Ranges of groups of the inputs, from `first` to `end`, with the same values; greater digests follow."""

    inputs: Sequence[_Input]
    first: Ints
    end: Ints

    def merged(self) -> Iterator[tuple[run_files.RecordArray, run_files.RecordArray | None]]:
        """Postings in order, and their groups, starting from 0. The groups of a large piece come at its end."""
        ranges = list(zip(self.inputs, self.first, self.end, strict=True))
        groups = np.concatenate([one.moved_groups(first, end) for one, first, end in ranges])
        source = np.arange(len(self.inputs)).repeat(self.end - self.first)
        start = groups["start"].astype(np.int64)
        end = np.concatenate([one.starts[np.arange(first, end) + 1] for one, first, end in ranges])
        order = _sorted(groups)
        groups, source, start, end = groups[order], source[order], start[order], end[order]
        new = group_starts(groups["high"], groups["low"], groups["path_class"])
        if (end - start).sum() <= 4 * PIECE:
            yield self._small(groups[new], new, source, start, end)
        else:
            yield from self._large(groups[new], new, source, start, end)

    def _small(
        self, groups: run_files.RecordArray, new: Ints, source: Ints, start: Ints, end: Ints
    ) -> tuple[run_files.RecordArray, run_files.RecordArray]:
        """Merges a piece that fits into memory. `groups` starts at the indices `new` of the sorted input groups, which
        come from run `source` and have postings from `start` to `end`."""
        parts, stays, shift = [], [], np.zeros(len(self.inputs), np.int64)
        before = 0
        for place, one in enumerate(self.inputs):
            low, high = (int(number) for number in one.starts[np.array([self.first[place], self.end[place]])])
            records, stay = one.moved_postings(low, high)
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
        self, groups: run_files.RecordArray, new: Ints, source: Ints, start: Ints, end: Ints
    ) -> Iterator[tuple[run_files.RecordArray, run_files.RecordArray | None]]:
        """Merges a piece with a value that very many documents share, by time."""
        counts = np.zeros(len(groups), np.int64)
        for group, (first, last) in enumerate(zip(new, np.append(new[1:], len(source)), strict=True)):
            inputs = [self.inputs[place] for place in source[first:last].tolist()]
            for ranges in _by_time(inputs, start[first:last], end[first:last]):
                found = [one.moved_postings(low, high) for one, (low, high) in zip(inputs, ranges, strict=True)]
                postings = np.concatenate([records[stay] for records, stay in found])
                postings = postings[np.lexsort((postings["instance"], postings["time"]))]
                counts[group] += len(postings)
                yield postings, None
        groups["start"] = np.cumsum(counts) - counts
        yield np.zeros(0, self.inputs[0].posting), groups[counts > 0]


def _sorted(groups: run_files.RecordArray) -> Ints:
    """The order of groups by digest and class; the input is a few sorted sequences, concatenated."""
    high, low, number = groups["high"], groups["low"], groups["path_class"]
    # Nearly always, the class distinguishes groups whose upper digest bits are equal. This is sorted in
    # linear time.
    order = np.argsort(high & ~_CLASS | number & _CLASS, kind="stable")
    high, low, number = high[order], low[order], number[order]
    same_high, same_low = high[1:] == high[:-1], low[1:] == low[:-1]
    wrong = (high[1:] < high[:-1]) | (same_high & (low[1:] < low[:-1]))
    wrong |= same_high & same_low & (number[1:] < number[:-1])
    return np.lexsort((groups["path_class"], groups["low"], groups["high"])) if wrong.any() else order


def _pieces(inputs: Sequence[_Input]) -> Iterator[_Piece]:
    first = np.zeros(len(inputs), np.int64)
    counts = np.array([len(one.highs) for one in inputs], np.int64)
    share = PIECE // len(inputs)
    while (open_ := np.flatnonzero(first < counts)).size:
        # The piece ends at a digest: that of the group with the first posting past each input's share.
        bounds = [1 << 64]
        for place in open_.tolist():
            one, at = inputs[place], first[place : place + 1]
            goal = one.starts[at] + share
            if goal[0] < len(one.run):
                past = bisect_ranges(one.starts, at, counts[place : place + 1], goal, after=True)
                bounds.append(int(one.highs[past - 1][0]))
        end = _before(inputs, first, counts, min(bounds))
        if (end == first).all():  # a single value exceeds it
            end = _before(inputs, first, counts, min(bounds) + 1)
        yield _Piece(inputs, first, end)
        first = end


def _before(inputs: Sequence[_Input], first: Ints, counts: Ints, bound: int) -> Ints:
    """The end of each input's groups, from `first` on, whose digests have a high half below a bound."""
    if bound >= 1 << 64:
        return counts
    return _bisected([one.highs for one in inputs], first, counts, np.array([bound], np.uint64))


def _bisected(columns: Sequence[run_files.Field], start: Ints, end: Ints, value: NDArray[np.integer]) -> Ints:
    """The first index in a range of each column whose element is at least a value."""
    places = range(len(columns))
    return np.concatenate([bisect_ranges(columns[i], start[i : i + 1], end[i : i + 1], value) for i in places])


def _by_time(inputs: Sequence[_Input], start: Ints, end: Ints) -> Iterator[list[tuple[int, int]]]:
    share, times = max(1, PIECE // len(inputs)), [one.times for one in inputs]
    while (open_ := np.flatnonzero(start < end)).size:
        reached = [int(inputs[i].times[np.minimum([start[i] + share], end[i] - 1)][0]) for i in open_.tolist()]
        if (start[open_] + share >= end[open_]).all():
            until = end
        else:
            until = _bisected(times, start, end, np.array([min(reached)]))
            if (until == start).all():  # a single time exceeds it
                until = _bisected(times, start, end, np.array([min(reached) + 1]))
        yield list(zip(start.tolist(), until.tolist(), strict=True))
        start = until


MOST_RUNS = 32  # with more runs than this, a batch waits for a merge to end

PARTS_OF_WINDOW = 8
"""Runs are merged if they cover at most this fraction of the widest window, because eviction drops whole runs."""

WIDER = 1.25
"""Runs that overlap in time are merged if together they cover at most this multiple of what one of them covers."""

_NAME = "{}-{}.run"
"""File name: a number and a globally unique token, so a name never refers to two contents and may be cached."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs on disk, oldest first. They have all documents up to docid `upto` that have postings."""

    runs: tuple[run_files.DiskRun, ...] = ()
    upto: int = -1


_Named = tuple[int, tuple[tuple[str, int | None], ...]]
"""`Runs` as in a manifest: `upto`, and of each run the file name and the time before which documents are evicted."""

_UNKNOWN: _Named = (-2, ())


def _named(runs: Runs) -> _Named:
    return runs.upto, tuple((run.file.path.name, run.low) for run in runs.runs)


BY_KEYS, BY_INDEX = "keys", "index"  # state for finding near texts, as in a manifest


class StoredRuns:
    """The runs in an existing directory, none without one. Changes take effect with the next commit of the store."""

    def __init__(self, directory: Path | None, merger: Merger | None = None) -> None:
        self._merger = merger or Merger()
        self.directory, self._pool, self._own = directory, run_files.PagePool(), token_hex(4)
        self.now = Runs()  # the runs, with the changes of the running batch
        self._merges: list[Merge] = []
        self._files: set[Path] = set()  # files of committed runs, and those written since
        self._next = 0
        self._committed: _Named | None = None  # the stored manifest; None if it has not been read and must not change
        self._must_rest = False  # set when merging has failed
        self._has_others = False
        """Whether there may be files that neither the committed state nor the running batch names."""
        self._is_trusted = True  # unset when a file was found damaged, until the runs are opened again
        self.texts = BY_INDEX
        self.rebuilt = 0  # number of times that damaged runs were replaced, ever

    # ------------------------------------------------------------ opening and committing

    def open(self, manifest: str | None, classes: PathClasses) -> bool:
        """Opens the runs of a manifest. False, with no runs, if there is no manifest, or a file is gone or damaged."""
        self._abandon(self._merges)
        self.now, self._committed = Runs(), _named(Runs())
        is_whole = False
        if manifest is not None and self.directory is not None:
            saved = json.loads(manifest)
            self._next, self.rebuilt = saved["next"], max(saved.get("rebuilt", 0), self.rebuilt)
            self._committed = saved["upto"], tuple((name, low) for name, low in saved["runs"])
            try:
                if self._is_trusted:
                    runs = [self._opened(self.directory / name, classes, low) for name, low in saved["runs"]]
                    kept = (run for run in runs if run.low is None or run.low <= run.file.head.last)
                    self.now, is_whole = Runs(tuple(kept), saved["upto"]), True
            except DamagedRun as error:
                self.distrust(error)
            self._is_trusted = True
        self._files = set() if self.directory is None else set(self.directory.iterdir())
        numbers = (path.stem.partition("-")[0] for path in self._files)
        self._next = max([self._next, *(int(number) + 1 for number in numbers if number.isdecimal())])
        self._has_others = True
        return is_whole

    def distrust(self, error: DamagedRun) -> None:
        """Marks the runs as damaged: the next `open` skips them, and they are rebuilt."""
        _LOG.warning("%s; the postings are rebuilt from the tables", error)
        self._is_trusted = False
        self.rebuilt += 1

    @property
    def is_changed(self) -> bool:
        """Whether the manifest differs from the committed one."""
        return self._committed is not None and _named(self.now) != self._committed

    def manifest(self) -> str:
        upto, runs = _named(self.now)
        more = {"rebuilt": self.rebuilt, "texts": self.texts}
        return json.dumps({"upto": upto, "next": self._next, "runs": runs} | more)

    def committed(self) -> None:
        """Removes files that the committed manifest no longer names."""
        if self.is_changed or self._has_others:
            self._committed = _named(self.now)
            self._merges = [merge for merge in self._merges if not self._is_adopted(merge)]
            self._abandon([merge for merge in self._merges if len(self._inputs(merge)) < len(merge.files)])
            self._has_others = False
            named = {run.file.path for run in self.now.runs} | {merge.path for merge in self._merges}
            for path in self._files - named:
                with suppress(OSError):  # retried when the store is opened again
                    path.unlink(missing_ok=True)
            self._files &= named

    def rolled_back(self, before: Runs) -> None:
        """Restores the runs from before the batch. Merges go on."""
        self.now, self._has_others = before, True

    def close(self) -> None:
        """Drops the runs in memory when the committed state is unknown. Only `open` and `clear` may follow."""
        self._abandon(self._merges)
        self.now, self._committed, self._has_others = Runs(), None, False

    # ------------------------------------------------------------ changes

    def add(self, run: PostingRun, values: ValueDictionary, classes: PathClasses, upto: int) -> None:
        """Writes postings, if any, to a run: those in memory of all documents up to `upto`. Raises OSError."""
        runs = self.now.runs
        if len(run):
            path = self._path()
            run_files.write_run(path, run, values, classes)
            self._must_rest = False
            runs += (self._opened(path, classes),)
        self.now = Runs(runs, upto)

    def clear(self) -> None:
        """Drops all runs, opened or not."""
        self._abandon(self._merges)
        self._committed = self._committed or _UNKNOWN
        self.now = Runs()

    def evict(self, before: int) -> None:
        """Drops documents that begin before a time: whole runs at once, the rest at their next merge."""
        runs = tuple(run.evicted(before) for run in self.now.runs if run.file.head.last >= before)
        self.now = Runs(runs, self.now.upto)

    def renumber(self, numbers: dict[int, int]) -> None:
        """Renumbers path classes by `numbers[old]`; a missing class is dropped."""
        self.now = Runs(tuple(run.renumbered(numbers) for run in self.now.runs), self.now.upto)

    # ------------------------------------------------------------ merging

    def merge(self, window: int, classes: PathClasses) -> None:
        """Adopts finished merges, and starts the shortest one due. `window` is the widest of a query, in microseconds.
        Without room on disk, merging is retried after the next run is written."""
        self._adopt(classes)
        if self._must_rest:
            return
        self._plan(window)
        going = [merge for merge in self._merges if not merge.is_done]
        started = [merge for merge in going if merge.ident is not None]
        if going and not started:
            shortest = min(going, key=lambda merge: sum(map(len, merge.runs)))
            shortest.start()
            started.append(shortest)
        for merge in started:
            if len(self.now.runs) > MOST_RUNS:
                merge.join()
            if merge.error is not None:
                self._abandon(going)
                self._must_rest = True
                if not isinstance(merge.error, OSError):
                    raise merge.error

    @property
    def merges(self) -> int:
        """Number of merges due or running."""
        return sum(not self._is_adopted(merge) for merge in self._merges)

    def _adopt(self, classes: PathClasses) -> None:
        for merge in [*self._merges]:
            ours = self._inputs(merge)
            if self._is_adopted(merge):
                continue
            lows = {run.file: run.low or run.file.head.first for run in ours}
            if len(ours) < len(merge.files) or any(
                old.low is not None and old.low > lows[old.file]
                for old in merge.runs  # it drops more
            ):
                self._abandon([merge])
            elif merge.is_done:
                # If they differ, documents evicted from one run begin before all documents of the other.
                low = max((run.low for run in ours if run.low is not None), default=None)
                merged = self._opened(merge.path, classes, low)
                at = self.now.runs.index(ours[0])
                rest = tuple(run for run in self.now.runs if run not in ours)
                self.now = Runs((*rest[:at], merged, *rest[at:]), self.now.upto)

    def _inputs(self, merge: Merge) -> list[run_files.DiskRun]:
        return [run for run in self.now.runs if run.file in merge.files]

    def _is_adopted(self, merge: Merge) -> bool:
        return any(run.file.path == merge.path for run in self.now.runs)

    def _plan(self, window: int) -> None:
        busy = {file for merge in self._merges for file in merge.files}
        newest = max((run.file.head.last for run in self.now.runs), default=0)
        for run in self.now.runs:
            if run.file not in busy and (not run.file.head.page or run.is_mostly_evicted):
                self._merges.append(Merge([run], self._path(), self._merger))
                busy.add(run.file)
        for older, newer in reversed([*pairwise(self.now.runs)]):
            if not busy.intersection((older.file, newer.file)) and _go_together(older, newer, window, newest):
                self._merges.append(Merge([older, newer], self._path(), self._merger))
                busy.update((older.file, newer.file))

    def _abandon(self, merges: Iterable[Merge]) -> None:
        for merge in [*merges]:
            self._merges.remove(merge)
            if not self._is_adopted(merge):  # otherwise the store may already name its file
                merge.abandon()

    def _path(self) -> Path:
        assert self.directory is not None, "there is a place for runs"
        path = self.directory / _NAME.format(self._next, self._own)
        self._next += 1
        self._files.add(path)
        return path

    def _opened(self, path: Path, classes: PathClasses, low: int | None = None) -> run_files.DiskRun:
        file = run_files.RunFile(path, self._pool)
        run = run_files.DiskRun(file, classes.numbers(file.head.classes))
        return run.evicted(file.head.first if low is None else low)


def values_of_texts(manifest: str) -> str:
    """The state for finding near texts in a manifest."""
    found: str = json.loads(manifest).get("texts", "")
    return found


def evicted(manifest: str, before: int) -> str:
    """Returns the manifest after the eviction of documents that begin before a time."""
    saved = json.loads(manifest)
    saved["runs"] = [(name, before if low is None else max(low, before)) for name, low in saved["runs"]]
    return json.dumps(saved)


def _go_together(older: run_files.DiskRun, newer: run_files.DiskRun, window: int, newest: int) -> bool:
    one, other = older.file.head, newer.file.head
    if older.low != newer.low or len(older) >= 2 * len(newer):
        return False
    if max(one.postings + other.postings, one.instances + other.instances) > run_files.MOST:
        return False
    span = max(one.last, other.last) - min(one.first, other.first)
    if span <= window // PARTS_OF_WINDOW or span <= WIDER * max(one.last - one.first, other.last - other.first):
        return True
    return max(one.last, other.last) < newest - 2 * window  # no document in time can join them
