"""Feeds the service of `mmqjp bench cluster` with files, and kills its processes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cluster_workload import Ints, write_drop
from bench.latency_service import Place, ServiceFailed
from bench.spark_cluster import kill, processes_below, wait_until

QUIET = 12.0
"""Seconds without documents: Spark tells of triggers without any every ten seconds."""

AMID = 1.2
"""Seconds after which a file is being processed."""

PATIENCE = 600.0
"""Seconds that a file may take."""


@dataclass(frozen=True)
class Feeder:
    """Puts documents into the directory of a service, a file each time, as soon as all earlier ones were processed.
    They are numbered from `first` on."""

    place: Place
    files: Sequence[Ints] | Iterator[Ints]
    first: int
    after_a_kill: bool = False

    def feed(self, pid: Path) -> float:
        """Returns how many documents a second were processed. At its end, the driver, whose process the file `pid` is
        going to tell, is asked to end. Raises ServiceFailed."""
        wait_until(pid.exists, "the driver")
        try:
            started = self._events("started")
            wait_until(lambda: self._events("started") > started, "the service")
            self._wait_for_the_rest()
            begin, first = time.perf_counter(), self.first
            done = self._documents()
            for values in self.files:
                first = self._put(first, values)
                self._wait(done + first - self.first)
            rate = (first - self.first) / (time.perf_counter() - begin)
            time.sleep(QUIET)
            return rate
        finally:
            os.kill(int(pid.read_text()), signal.SIGTERM)

    def feed_and_kill(self, pid: Path, executors: Callable[[], Sequence[int]]) -> None:
        """Puts two files: amid the first, an executor is killed, and amid the second the driver, with its JVM."""
        wait_until(pid.exists, "the driver")
        started = self._events("started")
        wait_until(lambda: self._events("started") > started, "the service")
        one, other = self.files
        done, first = self._documents(), self._put(self.first, one)
        time.sleep(AMID)
        kill(executors()[0])
        self._wait(done + len(one))
        self._put(first, other)
        time.sleep(AMID)
        driver = int(pid.read_text())
        for process in [*processes_below(driver), driver]:
            kill(process)

    def _put(self, first: int, values: Ints) -> int:
        write_drop(self.place.drops / f"{first:012}.jsonl", first, values)
        return first + len(values)

    def _documents(self) -> int:
        return self._events("batch", "documents")

    def _wait(self, documents: int) -> None:
        until = time.monotonic() + PATIENCE
        while (now := self._documents()) < documents:
            if time.monotonic() > until or self._events("batch", "dead_letters"):
                raise ServiceFailed(f"the service has processed {now:,} of {documents:,} documents: {self._end()}")
            time.sleep(0.05)

    def _wait_for_the_rest(self) -> None:
        """Waits until a service that was killed has processed what was there."""
        if self.after_a_kill:
            size = -1
            while size != (size := self.place.log.stat().st_size):
                time.sleep(QUIET)

    def _events(self, name: str, field: str | None = None) -> int:
        """The number of events of a name, or the sum of a field of theirs."""
        if not self.place.log.exists():
            return 0
        lines = self.place.log.read_text("utf-8").splitlines()
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return sum(event[field] if field else 1 for event in events if event["event"] == name)

    def _end(self) -> str:
        return self.place.log.read_text("utf-8")[-2_000:]
