"""Statements with a range of their own over two streams in one table, which other systems answer too.

Uses the standard library only, because a system may have an interpreter of its own. The directory of a task holds
`task.json` and `events.csv`; the program of a system writes `rows.csv` and, last, `report.json` there.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.peer_worker import end_with_parent
from bench.process_tree import processor_seconds

TEMPLATES = ("first after", "rising runs")
COLUMNS = ("id", "t", "kind", "k", "x")
"""Of an event: its number, its time in seconds, A or B, its key, and its value."""

Row = tuple[int, int, int, int]
"""A statement and the numbers of its events, 0 where there is none."""


@dataclass(frozen=True)
class Task:
    """Statement i begins with an event of A whose x is at least `ranges[i][0]` and less than `ranges[i][1]`.

    first after: it is followed by the first event of B of its key with a greater x. rising runs: it is followed by
    events of A of its key as long as their x rises, by one at least, and by the next one, with which it no longer does.
    """

    template: str
    ranges: Sequence[tuple[float, float]]

    def write(self, directory: Path) -> None:
        """Writes `task.json`."""
        (directory / "task.json").write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_task(directory: Path) -> Task:
    """The task of a directory."""
    found = json.loads((directory / "task.json").read_text("utf-8"))
    return Task(found["template"], [(low, high) for low, high in found["ranges"]])


def ranges(count: int) -> list[tuple[float, float]]:
    """A tenth of all values of x, from 0 to 100, for each of so many statements."""
    return [(90 * place / count, 90 * place / count + 10) for place in range(count)]


def given_directory() -> Path:
    """The directory of the task, by the arguments of this process, which ends with its parent."""
    end_with_parent()
    return Path(sys.argv[1])


def finish(directory: Path, rows: Iterable[Sequence[object]]) -> None:
    """Writes the rows and the report: the processor time of this process, and of all that it has started, so far."""
    with (directory / "rows.csv").open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows(rows)
    ready = directory / "report.part"
    ready.write_text(json.dumps({"processor": processor_seconds(os.getpid())}), encoding="utf-8")
    ready.rename(directory / "report.json")


def read_rows(directory: Path) -> set[Row]:
    """The rows that a program has written."""
    with (directory / "rows.csv").open(newline="", encoding="utf-8") as lines:
        return {(int(n), int(a), int(b), int(c)) for n, a, b, c in csv.reader(lines)}
