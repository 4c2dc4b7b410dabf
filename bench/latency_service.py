"""A service in a process of its own, whose lines and log are read while it runs: for the benchmarks of services."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

READ_EVERY = 0.001
"""Seconds between two looks at the output file: as exact as latencies are."""
LOOK_EVERY = 0.01
"""Seconds between two looks at the log."""
PATIENCE = 60.0
"""Seconds until a process that was asked to end is killed."""


class ServiceFailed(RuntimeError):
    """The process has ended, or has not done in time what was waited for. The message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Place:
    """The files of a service: its queries, the directory that it watches, and what it writes."""

    directory: Path

    @property
    def queries(self) -> Path:
        return self.directory / "queries.xscl"

    @property
    def drops(self) -> Path:
        return self.directory / "drops"

    @property
    def lines(self) -> Path:
        return self.directory / "lines.jsonl"

    @property
    def log(self) -> Path:
        return self.directory / "log.jsonl"


def mmqjp(*arguments: object) -> list[str]:
    """The command line of mmqjp, with the Python of this process."""
    return [sys.executable, "-m", "mmqjp", *map(str, arguments)]


class RunningService:
    """`mmqjp stream`, or `serve` without output lines, over the drops of a place, with `options`. A context manager; at
    its end the process has ended."""

    def __init__(self, place: Place, options: Sequence[object], command: str = "stream") -> None:
        self._place, self._documents, self._read = place, 0, 0
        line = mmqjp(command, "--source", place.drops, "--queries", place.queries)
        line += ["--output", str(place.lines)] if command == "stream" else []
        with place.log.open("wb") as log:
            self._process = subprocess.Popen([*line, *map(str, options), "--log", "json"], stderr=log)

    def __enter__(self) -> RunningService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def wait_until_ready(self, seconds: float) -> None:
        """Waits until the service reads its sources. Raises ServiceFailed."""
        self.wait_until(lambda: b'"event": "started"' in self._place.log.read_bytes(), seconds, "start")

    def wait_until(self, is_done: Callable[[], bool], seconds: float, what: str) -> None:
        """Waits until something is done. Raises ServiceFailed if it takes too long, or if the process has ended."""
        until = time.monotonic() + seconds
        while not is_done():
            if self._process.poll() is not None:
                raise ServiceFailed(f"the service has ended with status {self._process.returncode}: {self._end()}")
            if time.monotonic() > until:
                raise ServiceFailed(f"the service did not {what} within {seconds:,.0f} s: {self._end()}")
            time.sleep(LOOK_EVERY)

    def documents(self) -> int:
        """How many documents have been processed, as the log says."""
        with self._place.log.open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                if not line.startswith(b"{"):  # the link of `serve`
                    continue
                event = json.loads(line)
                self._documents += event["documents"] if event["event"] == "batch" else 0
        return self._documents

    def stop(self) -> None:
        """Asks the process to end, and waits for that. Raises ServiceFailed if it ends with an error."""
        self._process.terminate()
        try:
            status = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise ServiceFailed(f"the service did not end within {PATIENCE:g} s: {self._end()}") from None
        if status:
            raise ServiceFailed(f"the service has ended with status {status}: {self._end()}")

    def _end(self) -> str:
        return self._place.log.read_bytes()[-2_000:].decode("utf-8", "replace")


class LineTimes:
    """A context manager: inside it, a thread notes when each part of a growing file arrives. It keeps no line: they may
    be more than fit in memory."""

    def __init__(self, path: Path) -> None:
        self._path, self._stop = path, Event()
        self._times: list[float] = []
        self._ends: list[int] = []
        self._thread = Thread(target=self._work, name="arrivals", daemon=True)

    def __enter__(self) -> LineTimes:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def is_at_end(self) -> bool:
        """Whether all that the file has by now has been noted."""
        size = self._path.stat().st_size if self._path.exists() else 0
        return size == (self._ends[-1] if self._ends else 0)

    def lines(self) -> Iterator[tuple[float, bytes]]:
        """Each line of the file, with the time (of `time.perf_counter`) at which all of it was there to be read."""
        end = 0
        with self._path.open("rb") as file:
            for line in file:
                end += len(line)
                yield self._times[bisect_left(self._ends, end)], line

    def _work(self) -> None:
        while not self._path.exists():
            if self._stop.wait(READ_EVERY):
                return
        with self._path.open("rb", buffering=0) as file:
            while not self._stop.wait(READ_EVERY):
                while part := file.read(1 << 20):
                    self._times.append(time.perf_counter())
                    self._ends.append((self._ends[-1] if self._ends else 0) + len(part))
