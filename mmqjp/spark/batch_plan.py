"""The plan of a micro-batch: which splits of which files it reads, fixed in a file before Spark hears of it.

Spark knows of the source only the number of its last plan. A micro-batch that comes again after a crash reads what it
read before; once it is done its plan goes.
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
"""Bytes of XML after which a file is read on in a later micro-batch. Nothing comes behind so large a file in a plan."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a micro-batch reads, in the order in which it is admitted; `time`, microseconds, is that of documents which
    have none."""

    time: int
    splits: tuple[Split, ...] = ()


NOTHING = Plan(0)


def next_plan(
    waiting: list[WaitingFile], positions: Positions, time: int, most: int, most_bytes: int, grain: int = GRAIN
) -> Plan:
    """The plan of the next micro-batch, about `most` documents and `most_bytes` large. Takes from the front of
    `waiting` the files of which it needs no more."""
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
            waiting.clear()  # to be found again once that is read
    return Plan(time, tuple(splits))


def shares(plan: Plan, most: int, grain: int = GRAIN) -> Iterator[tuple[int, Sequence[Split]]]:
    """The plan cut into at most about `most` shares of the same weight, of `grain` bytes at the least, each with the
    number of its first split."""
    aim = max(sum(split.weight for split in plan.splits) / most, grain)
    first = 0
    for splits in in_batches(plan.splits, len(plan.splits), ceil(aim), attrgetter("weight")):
        yield first, splits
        first += len(splits)


class PlanFiles:
    """The plans in a directory, by their numbers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, number: int, plan: Plan) -> None:
        """Keeps a plan, in place of another that nobody has heard of."""
        self._directory.mkdir(parents=True, exist_ok=True)
        # The keys are those of plans that an older version may have left.
        content = {"time": plan.time, "parts": [astuple(split) for split in plan.splits]}
        write_whole(self._path(number), json.dumps(content))

    def read(self, number: int) -> Plan:
        """A plan; one that is gone is of nothing: what it read and is not committed waits still."""
        try:
            found = json.loads(self._path(number).read_text("utf-8"))
        except FileNotFoundError:
            return NOTHING
        return Plan(found["time"], tuple(Split(*split) for split in found["parts"]))

    def drop_before(self, number: int) -> None:
        """Removes plans that are done."""
        for path in self._directory.glob("*.json"):
            if path.stem.isdecimal() and int(path.stem) < number:
                path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number}.json"
