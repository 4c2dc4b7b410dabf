"""A service that kills itself with SIGKILL at its n-th step: before or after one of the things that it writes or does.

    python -m tests.processes.service DIRECTORY N

N counts the steps from 1; 0 is never. At the end, if it comes to that, it prints how many steps there were.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from join_stage.duckdb import DuckDBEngine
from mmqjp.engine import Session
from mmqjp.service.commands import CommandQueue
from mmqjp.service.loop import Service
from mmqjp.service.spool import Spool
from mmqjp.sinks.files import GrowingFile
from tests.support.faults import Point, kill, wrap
from tests.support.service import Directory, StopAfter

STEPS: list[Point] = [
    *((DuckDBEngine, name) for name in ("begin", "append", "join", "extend", "evict", "commit", "close")),
    (GrowingFile, "write"),
    (GrowingFile, "__init__"),
    (Spool, "answer"),
    (CommandQueue, "apply"),
    (Service, "_process"),
    (Service, "_commit_settings"),
    (Session, "process"),
    (os, "fsync"),
    (Path, "replace"),
    (Path, "unlink"),
]
"""What counts as a step, twice: before it and after it."""


def main(directory: str, at: str) -> None:
    place, last, count = Directory(Path(directory)), int(at), 0

    def step() -> None:
        nonlocal count
        count += 1
        if count == last:
            kill()

    for point in STEPS:
        wrap(point, step, step)
    with Session("duckdb", state=place.state, lateness=20_000_000) as engine:
        place.service(engine, batch_size=3).run(None, StopAfter(10**9))
    print(count)


if __name__ == "__main__":
    main(*sys.argv[1:])
