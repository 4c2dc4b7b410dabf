"""Statements in our language, over the events of a task: as a process of its own, or by a kernel in this one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import compute, csv

from bench.patterns_peer_task import COLUMNS, Task, finish, given_directory, read_task
from bench.patterns_thesis import Given, lowered
from bench.patterns_workload import SECOND
from common.arrays import Ints
from pattern_stage.columns import Columns
from pattern_stage.kernel import Kernel
from pattern_stage.values import Texts
from xscl.algebra.events import Schema, Stream

_SCHEMAS: dict[str, Schema] = {
    "A": (("k", "string"), ("x", "number")),
    "B": (("b", "string"), ("y", "number")),
}
INTERVAL = 5_000
"""Seconds that the events come at once for."""


class Parts:
    """The lineage of events whose parts are their numbers."""

    def ends(self, numbers: Ints) -> Ints:
        """Every statement sees all events, so nobody asks."""
        raise AssertionError("all statements see all events")

    def together(self, parts: Ints, groups: Ints) -> Ints:
        """Only AGGREGATE makes sets of events."""
        raise AssertionError("no statement has an AGGREGATE")


def statements(task: Task) -> list[str]:
    """The texts of the statements."""
    made = []
    for low, high in task.ranges:
        first = f"FILTER {{x >= {low!r} AND x < {high!r}}} A"
        if task.template == "first after":
            made.append(f"{first} NEXT {{k = b AND y > x}} B WITHIN 1 d")
        else:
            rising = f"{first} FOLD {{$2.k = $.k, $2.x > $.x, }} A NEXT {{$2.k = $1.k}} A WITHIN 1 d"
            made.append(f"FILTER {{x <= x_1}} ({rising})")
    return made


def streams(events: pa.Table) -> dict[str, Given]:
    """The events as the kernel's workloads give them."""
    made = {}
    for name, schema in _SCHEMAS.items():
        rows = events.filter(compute.equal(events["kind"], name))
        keys = np.array([int(key[1:]) for key in rows["k"].to_pylist()], np.int64)
        seconds, numbers = rows["t"].to_numpy(), rows["id"].to_numpy()
        made[name] = Given(schema, seconds, numbers, (keys, rows["x"].to_numpy()))
    return made


Ready = tuple[Kernel, dict[str, Columns]]
"""A kernel that has statements, and the events for it."""


def ready(asked: Sequence[Stream], given: dict[str, Given]) -> Ready:
    """A kernel with statements that has no event yet."""
    kernel = Kernel(Texts(), Parts())
    for place, stream in enumerate(asked):
        kernel.add(place, stream, -1)
    kernel.run({}, 0)
    return kernel, {name: events.take(kernel.texts) for name, events in given.items()}


def answered(prepared: Ready, interval: int) -> Ints:
    """The rows, from a kernel that gets the events of so many seconds at once."""
    kernel, columns = prepared
    last = max(int(events.t1[-1]) for events in columns.values())
    found = [np.zeros((0, 4), np.int64)]
    for low in range(0, last + 1, interval * SECOND):
        part = {}
        for name, events in columns.items():
            first, end = np.searchsorted(events.t1, (low, low + interval * SECOND)).tolist()
            part[name] = events.take(np.arange(first, end))
        for one in kernel.run(part, low + interval * SECOND):
            rows = np.zeros((len(one), 4), np.int64)
            rows[:, 0], rows[:, 1 : 1 + one.events.parts.shape[1]] = one.statements, one.events.parts[one.at]
            found.append(rows)
    return np.concatenate(found)


def _run(directory: Path) -> None:
    events = csv.read_csv(directory / "events.csv", csv.ReadOptions(column_names=list(COLUMNS)))
    given = streams(events)
    asked = lowered(statements(read_task(directory)), given)
    finish(directory, answered(ready(asked, given), INTERVAL).tolist())


if __name__ == "__main__":
    _run(given_directory())
