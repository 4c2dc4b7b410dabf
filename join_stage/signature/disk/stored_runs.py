"""The runs of a store on disk: which they are, the merges under way, and the files that nothing names any more.

Files are written before the commit that names them, and removed after the one that no longer does. So whatever a killed
process leaves behind is a file that the manifest does not name; it is removed after the next commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from secrets import token_hex

import numpy as np

from join_stage.signature.disk.disk_run import DiskRun
from join_stage.signature.disk.merging import Merge, Merger, MergerHere
from join_stage.signature.disk.paged_records import PagePool
from join_stage.signature.disk.run_file import MOST, DamagedRun, EdgeClass, RunFile
from join_stage.signature.disk.write_run import write_run
from join_stage.signature.path_classes import PathClasses
from join_stage.signature.postings import PostingRun
from join_stage.signature.values import Values

MOST_RUNS = 32
"""If there are more runs, a batch waits for a merge to end."""

PARTS_OF_WINDOW = 8
"""Runs are merged if they cover at most this part of the widest window. What is evicted goes a whole run at a time."""

WIDER = 1.25
"""Runs that overlap in time are merged however much they cover, if together they cover at most so many times what one
of them does."""

_NAME = "{}-{}.run"
"""The name of a file: a number, and what no other store and no other process has. So there are never two files of one
name, and whoever has read one need not look again."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs on disk at some time, the oldest first. They have all documents up to docid `upto` that have
    postings."""

    runs: tuple[DiskRun, ...] = ()
    upto: int = -1


@dataclass(frozen=True, slots=True)
class _Named:
    """The same as a manifest tells it: the names of files, and the times before which their documents are evicted."""

    upto: int = -1
    runs: tuple[tuple[str, int | None], ...] = ()


_UNKNOWN = _Named(upto=-2)


def _named(runs: Runs) -> _Named:
    return _Named(runs.upto, tuple((run.file.path.name, run.low) for run in runs.runs))


class StoredRuns:
    """The runs in a directory, which is there. What changes them takes effect with the next commit of the store."""

    def __init__(self, directory: Path, merger: Merger | None = None) -> None:
        """`merger` does the merges; by default this process does."""
        self._merger = merger or MergerHere()
        self._directory, self._pool, self._own = directory, PagePool(), token_hex(4)
        self.now = Runs()
        """The runs, with the changes of the running batch."""
        self._merges: list[Merge] = []
        self._files: set[Path] = set()
        """The files of committed runs, and those written since."""
        self._next = 0
        self._committed: _Named | None = None
        """What the store has. None if that has not been read and must not change."""
        self._must_rest = False
        """Whether merging has failed."""
        self._has_others = False
        """Whether there may be files that neither this nor the running batch names."""

    # ------------------------------------------------------------ opening and committing

    def open(self, manifest: str | None, number_of: Callable[[EdgeClass], int]) -> bool:
        """Opens the runs that a manifest names. `number_of` numbers path classes.

        False, and there are no runs, if there is no manifest, or if one of its files is gone or damaged.
        """
        self._abandon(self._merges)
        self.now, self._committed = Runs(), _Named()
        is_whole = False
        if manifest is not None:
            told = json.loads(manifest)
            self._next = told["next"]
            self._committed = _Named(told["upto"], tuple((name, low) for name, low in told["runs"]))
            with suppress(DamagedRun):
                runs = [self._opened(self._directory / name, number_of, low) for name, low in self._committed.runs]
                kept = (run for run in runs if run.low is None or run.low <= run.file.head.last)
                self.now, is_whole = Runs(tuple(kept), told["upto"]), True
        self._files = set(self._directory.iterdir())
        self._next = max([self._next, *(number + 1 for number in map(_number, self._files))])
        self._has_others = True
        return is_whole

    @property
    def is_changed(self) -> bool:
        """Whether the manifest differs from the committed one."""
        return self._committed is not None and _named(self.now) != self._committed

    def manifest(self) -> str:
        """The manifest of the runs as they are now."""
        named = _named(self.now)
        return json.dumps({"upto": named.upto, "next": self._next, "runs": named.runs})

    def committed(self) -> None:
        """Removes the files that the committed manifest no longer names."""
        if self.is_changed or self._has_others:
            self._committed = _named(self.now)
            self._merges = [merge for merge in self._merges if not self._is_adopted(merge)]
            self._abandon([merge for merge in self._merges if len(self._inputs(merge)) < len(merge.files)])
            self._has_others = False
            self._remove_unnamed()

    def rolled_back(self, before: Runs) -> None:
        """Goes back to the runs as they were before the batch. Merges go on."""
        self.now, self._has_others = before, True

    def close(self) -> None:
        """Lets go of the runs: nobody knows what is committed. Only `open` and `clear` may follow."""
        self._abandon(self._merges)
        self.now, self._committed, self._has_others = Runs(), None, False

    def _remove_unnamed(self) -> None:
        named = {run.file.path for run in self.now.runs} | {merge.path for merge in self._merges}
        for path in self._files - named:
            with suppress(OSError):  # it is tried again when the store was opened anew
                path.unlink(missing_ok=True)
        self._files &= named

    # ------------------------------------------------------------ changes

    def add(self, run: PostingRun, values: Values, classes: PathClasses, upto: int) -> None:
        """Writes postings to a run, unless there are none: those of all documents up to `upto` that were in memory.
        Raises OSError."""
        runs = self.now.runs
        if len(run):
            path = self._path()
            write_run(path, run, values, classes)
            self._must_rest = False
            runs += (self._opened(path, lambda one: classes.number_of_edges(one.groups, one.same, one.stream)),)
        self.now = Runs(runs, upto)

    def clear(self) -> None:
        """Drops all runs, whether they were opened or not."""
        self._abandon(self._merges)
        self._committed = self._committed or _UNKNOWN
        self.now = Runs()

    def evict(self, before: int) -> None:
        """Drops the documents that begin before a time: whole runs, and the rest when it is merged."""
        runs = tuple(run.evicted(before) for run in self.now.runs if run.file.head.last >= before)
        self.now = Runs(runs, self.now.upto)

    def renumber(self, numbers: dict[int, int]) -> None:
        """Gives path classes other numbers: `numbers[old]`, none if the class is dropped."""
        self.now = Runs(tuple(run.renumbered(numbers) for run in self.now.runs), self.now.upto)

    # ------------------------------------------------------------ merging

    def merge(self, window: int, number_of: Callable[[EdgeClass], int]) -> None:
        """Takes over what was merged, and begins a merge that is due: one at a time, the shortest first. `window` is
        the widest of a query, in microseconds. Where there is no room for a merge, it is tried again after the next run
        was written."""
        self._adopt(number_of)
        if self._must_rest:
            return
        self._plan(window)
        going = [merge for merge in self._merges if not merge.is_done]
        started = [merge for merge in going if merge.is_started]
        if going and not started:
            shortest = min(going, key=lambda merge: sum(map(len, merge.runs)))
            shortest.start()
            started.append(shortest)
        for merge in started:
            if len(self.now.runs) > MOST_RUNS:
                merge.wait()
            if merge.error is not None:
                self._abandon(going)
                self._must_rest = True
                if not isinstance(merge.error, OSError):
                    raise merge.error

    @property
    def merges(self) -> int:
        """The number of merges that are due or under way."""
        return sum(not self._is_adopted(merge) for merge in self._merges)

    def _adopt(self, number_of: Callable[[EdgeClass], int]) -> None:
        """Replaces the runs that were merged, and abandons merges of runs that are gone."""
        for merge in [*self._merges]:
            ours = self._inputs(merge)
            if self._is_adopted(merge):
                continue
            if len(ours) < len(merge.files) or not _leaves_out_less(merge, ours):
                self._abandon([merge])
            elif merge.is_done:
                # If they differ by now, what is evicted from one run begins before all documents of the other.
                low = max((run.low for run in ours if run.low is not None), default=None)
                merged = self._opened(merge.path, number_of, low)
                at = self.now.runs.index(ours[0])
                rest = tuple(run for run in self.now.runs if run not in ours)
                self.now = Runs((*rest[:at], merged, *rest[at:]), self.now.upto)

    def _inputs(self, merge: Merge) -> list[DiskRun]:
        """The runs of a merge that are still there."""
        return [run for run in self.now.runs if run.file in merge.files]

    def _is_adopted(self, merge: Merge) -> bool:
        return any(run.file.path == merge.path for run in self.now.runs)

    def _plan(self, window: int) -> None:
        """Plans the merges that are due: of neighbours of about one length, and of runs most of which is evicted."""
        busy = {file for merge in self._merges for file in merge.files}
        newest = max((run.file.head.last for run in self.now.runs), default=0)
        for run in self.now.runs:
            if run.file not in busy and run.is_mostly_evicted:
                self._merges.append(Merge([run], self._path(), self._merger))
                busy.add(run.file)
        for older, newer in reversed([*pairwise(self.now.runs)]):
            if not busy.intersection((older.file, newer.file)) and _go_together(older, newer, window, newest):
                self._merges.append(Merge([older, newer], self._path(), self._merger))
                busy.update((older.file, newer.file))

    def _abandon(self, merges: Iterable[Merge]) -> None:
        for merge in [*merges]:
            self._merges.remove(merge)
            if not self._is_adopted(merge):  # else the store may name its file by now
                merge.abandon()

    def _path(self) -> Path:
        path = self._directory / _NAME.format(self._next, self._own)
        self._next += 1
        self._files.add(path)
        return path

    def _opened(self, path: Path, number_of: Callable[[EdgeClass], int], low: int | None = None) -> DiskRun:
        file = RunFile(path, self._pool)
        return DiskRun(file, _numbers(file, number_of)).evicted(file.head.first if low is None else low)


def evicted(manifest: str, before: int) -> str:
    """A manifest after documents that begin before a time were evicted."""
    told = json.loads(manifest)
    told["runs"] = [(name, before if low is None else max(low, before)) for name, low in told["runs"]]
    return json.dumps(told)


def _number(file: Path) -> int:
    """The number in the name of a file, -1 if it has none."""
    number = file.stem.partition("-")[0]
    return int(number) if number.isdecimal() else -1


def _numbers(file: RunFile, number_of: Callable[[EdgeClass], int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([number_of(one) for one in file.head.classes], np.int64)


def _leaves_out_less(merge: Merge, runs: Sequence[DiskRun]) -> bool:
    """Whether a merge leaves out no document that its runs have by now: an eviction may have been rolled back."""
    lows = {run.file: run.low for run in runs}
    return all(old.low is None or old.low <= (lows[old.file] or old.file.head.first) for old in merge.runs)


def _go_together(older: DiskRun, newer: DiskRun, window: int, newest: int) -> bool:
    """Whether two runs should become one. `newest` is when the last document of all begins."""
    one, other = older.file.head, newer.file.head
    if older.low != newer.low or len(older) >= 2 * len(newer):
        return False
    if max(one.postings + other.postings, one.instances + other.instances) > MOST:
        return False
    span = max(one.last, other.last) - min(one.first, other.first)
    if span <= window // PARTS_OF_WINDOW or span <= WIDER * max(one.last - one.first, other.last - other.first):
        return True
    return max(one.last, other.last) < newest - 2 * window  # no document that comes in time meets them
