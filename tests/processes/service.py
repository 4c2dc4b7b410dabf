"""A service that kills itself with SIGKILL at its n-th step: before or after one of the things that it writes or does.

    python -m tests.processes.service DIRECTORY N

N counts the steps from 1; 0 is never. At the end, if it comes to that, it prints how many steps there were.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from join_stage.duckdb_engine import DuckDBEngine
from mmqjp.service.commands import CommandQueue
from mmqjp.service.loop import Service
from mmqjp.service.spool import Spool
from mmqjp.session import Session
from mmqjp.sinks.lines import GrowingFile
from tests.support.service import Directory, StopAfter

STEPS: list[tuple[Any, str]] = [
    *((DuckDBEngine, name) for name in ("begin", "append", "join", "extend", "evict", "commit", "close")),
    (GrowingFile, "write"),
    (GrowingFile, "__init__"),
    (Spool, "answer"),
    (CommandQueue, "apply"),
    (Service, "_process"),
    (Service, "_settle"),
    (Session, "process"),
    (os, "fsync"),
    (Path, "replace"),
    (Path, "unlink"),
]
"""What counts as a step, twice: before it and after it."""


class Counter:
    """Counts steps, and kills the process at one of them."""

    def __init__(self, last: int) -> None:
        self.count, self.last = 0, last

    def step(self) -> None:
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.step()
            result = method(*arguments, **options)
            self.step()
            return result

        return call


def main() -> None:
    place, counter = Directory(Path(sys.argv[1])), Counter(int(sys.argv[2]))
    for owner, name in STEPS:
        setattr(owner, name, counter.around(getattr(owner, name)))
    with Session("duckdb", state=place.state, lateness=20_000_000) as engine:
        place.service(engine, batch_size=3).run(None, StopAfter(10**9))
    print(counter.count)


if __name__ == "__main__":
    main()
