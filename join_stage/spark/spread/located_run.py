"""A run on disk in which other tasks have looked up the groups of a batch's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from join_stage.arrays import Ints
from join_stage.signature.disk.disk_run import DiskRun
from join_stage.signature.disk.run_file import RunFile
from join_stage.signature.run import AskedValues


class Located(NamedTuple):
    """Groups of the run number `run` that have the values of groups of the batch: for each index of a group of the
    batch, in ascending order, the `start` and the `end` of a range of groups. All arrays have one length."""

    run: int
    group: Ints
    start: Ints
    end: Ints


class LocatedRun(DiskRun):
    """A `DiskRun` that needs no index in memory: where the groups are is known. `asked` has the groups of the batch
    that ask, in ascending order, as indices in the whole batch."""

    def __init__(self, file: RunFile, classes: Ints, low: int | None, located: Sequence[Located], asked: Ints) -> None:
        super().__init__(file, classes, low)
        first, last = np.zeros((2, len(asked)), np.int64)
        for part in located:
            at = np.minimum(asked.searchsorted(part.group), len(asked) - 1)
            met = asked[at] == part.group
            first[at[met]], last[at[met]] = part.start[met], part.end[met]
        object.__setattr__(self, "_ranges", (first, last))

    def groups_of(self, asked: AskedValues) -> tuple[Ints, Ints]:
        ranges: tuple[Ints, Ints] = self.__dict__["_ranges"]
        return ranges
