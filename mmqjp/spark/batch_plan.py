"""The read plan of a micro-batch: which splits of which files it reads. It is written to a file before Spark starts it.

The offset that Spark keeps for the source is the number of the last plan. So a micro-batch that is repeated after a
crash reads the same splits again. Once it is committed, its plan is removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from math import ceil
from operator import attrgetter
from pathlib import Path

from common.batches import in_batches
from common.whole_file import write_whole
from feeds.offsets import Positions
from feeds.splits import GRAIN, Split, splits_of
from feeds.tail import WaitingFile

LARGE = 64 << 20
"""Bytes of XML after which the rest of a file is left to a later micro-batch. So large a file ends its plan."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The splits that a micro-batch reads, in the order in which their documents are admitted.

    `time` is for documents that have none, in microseconds.
    """

    time: int
    splits: tuple[Split, ...] = ()


EMPTY = ReadPlan(0)


def next_plan(
    waiting: list[WaitingFile], positions: Positions, time: int, most: int, most_bytes: int, grain: int = GRAIN
) -> ReadPlan:
    """Plans the next micro-batch, of about `most` documents and `most_bytes` bytes.

    Files that the plan reads to the end are removed from the front of `waiting`.
    """
    splits: list[Split] = []
    documents = size = 0
    while waiting and documents < most and size < most_bytes:
        found = list(splits_of(waiting[0], positions, most - documents, most_bytes - size, grain))
        splits += found
        documents += sum(split.documents for split in found)
        size += sum(split.weight for split in found)
        if found and found[-1].end >= 0 and (documents >= most or size >= most_bytes):
            break  # there may be more lines
        del waiting[0]
        if size >= LARGE:
            waiting.clear()  # to be listed again once this file is read
    return ReadPlan(time, tuple(splits))


def plan_partitions(plan: ReadPlan, most: int, grain: int = GRAIN) -> Iterator[tuple[int, Sequence[Split]]]:
    """Cuts a plan into about `most` partitions of equal weight, but of at least `grain` bytes.

    Yields for each the number of its first split, and its splits.
    """
    aim = max(sum(split.weight for split in plan.splits) / most, grain)
    first = 0
    for splits in in_batches(plan.splits, len(plan.splits), ceil(aim), attrgetter("weight")):
        yield first, splits
        first += len(splits)


class PlanFiles:
    """The read plans in a directory, by number."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, number: int, plan: ReadPlan) -> None:
        """Writes a plan. It may replace one of the same number that Spark never started."""
        self._directory.mkdir(parents=True, exist_ok=True)
        # The keys must stay: an older version may have left plans that have them.
        content = {"time": plan.time, "parts": [astuple(split) for split in plan.splits]}
        write_whole(self._path(number), json.dumps(content))

    def read(self, number: int) -> ReadPlan:
        """Reads a plan. A missing one is empty: whatever it covered and is not committed is still waiting."""
        try:
            found = json.loads(self._path(number).read_text("utf-8"))
        except FileNotFoundError:
            return EMPTY
        return ReadPlan(found["time"], tuple(Split(*split) for split in found["parts"]))

    def drop_before(self, number: int) -> None:
        """Removes the plans before a number, which are committed."""
        for path in self._directory.glob("*.json"):
            if path.stem.isdecimal() and int(path.stem) < number:
                path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number}.json"
