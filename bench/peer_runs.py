"""Runs one peer over one case in a process of its own, and measures its memory. All that it started is ended."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.peer_worker import Report, Row, Work, write_work
from bench.process_tree import resident_bytes
from join_stage.store.spark.java import JavaNotFound, java_home

LONG = 900.0
"""Seconds after which a peer is ended."""
EVERY = 0.2
"""Seconds between two looks at the memory."""


class PeerFailed(RuntimeError):
    """A peer did not finish."""


@dataclass(frozen=True)
class System:
    """A peer: its name, its module in `bench`, what must be importable, whether it needs Java, and whether it uses
    mmqjp, so that it cannot have an interpreter of its own."""

    name: str
    module: str
    needs: str
    java: bool = False
    uses_ours: bool = False

    def lacking(self, python: str) -> str:
        """What it lacks to run with an interpreter; "" if nothing."""
        if self.java and not _java():
            return "it needs Java, and none was found"
        look = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
        try:
            found = subprocess.run([python, "-c", look, self.needs], capture_output=True, timeout=60, check=False)
        except OSError as error:
            return f"{python} cannot be run: {error.strerror}"
        return f"{self.needs} is not installed for {python}" if found.returncode else ""


SYSTEMS = {
    system.name: system
    for system in (
        System("mmqjp", "peer_ours", "mmqjp", uses_ours=True),
        System("flink", "peer_flink", "pyflink", java=True),
        System("pathway", "peer_pathway", "pathway"),
        System("spark", "peer_spark", "pyspark", java=True, uses_ours=True),
    )
}


@dataclass(frozen=True)
class Ran:
    """What a peer found, what it reports, and the most bytes of memory that its processes had."""

    rows: frozenset[Row]
    report: Report
    resident: int


def run(system: System, work: Work, batches: Path, python: str = sys.executable, long: float = LONG) -> Ran:
    """Runs a peer over the batches in a directory. Raises PeerFailed with the end of what it said."""
    with TemporaryDirectory(prefix=f"mmqjp-peers-{system.name}-") as made:
        directory = Path(made)
        for name in work.batches:
            (directory / name).symlink_to(batches / name, target_is_directory=True)
        write_work(replace(work, launched=time.time()), directory)
        report, resident = reported(system, directory, python, long)
        with (directory / "rows.csv").open(newline="", encoding="utf-8") as lines:
            rows = frozenset((name, int(left), int(right)) for name, left, right in csv.reader(lines))
        return Ran(rows, Report(**report), resident)


def reported(system: System, directory: Path, python: str, long: float = LONG) -> tuple[dict[str, Any], int]:
    """Runs the program of a system over a directory. Returns its report, and the most bytes of memory that it had.

    Raises PeerFailed with the end of what it said."""
    environment = os.environ | {"PYTHONPATH": _code(system, directory)} | _java()
    errors = directory / "errors"
    with errors.open("wb") as said:
        process = subprocess.Popen(
            [python, "-m", f"bench.{system.module}", str(directory)],
            stdin=subprocess.PIPE, stdout=said, stderr=said, env=environment, cwd=directory,
            start_new_session=True,
        )  # fmt: skip
        resident = _watched(process, long)
    report = directory / "report.json"
    if not report.exists():
        ended = f"status {process.returncode}" if process.returncode != -signal.SIGKILL else f"more than {long:.0f} s"
        raise PeerFailed(f"{system.name} ended with {ended}: {_tail(errors)}")
    return json.loads(report.read_text("utf-8")), resident


def _watched(process: subprocess.Popen[bytes], long: float) -> int:
    """Waits for a process and ends its group in any case. Returns the most memory that it had with its descendants."""
    most, ended = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not ended.wait(EVERY):
            most = max(most, resident_bytes(process.pid))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        process.wait(long)
    except subprocess.TimeoutExpired:
        pass  # The report is missing, which says it.
    finally:
        ended.set()
        watcher.join()
        with suppress(ProcessLookupError):  # A JVM may outlive the Python that started it.
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return most


def _code(system: System, directory: Path) -> str:
    """Where a peer finds `bench`: with an interpreter of its own it must not find our libraries beside it."""
    package = Path(__file__).parent
    if system.uses_ours:
        return str(package.parent)
    copied = directory / "code" / "bench"
    copied.mkdir(parents=True)
    for name in ("__init__", "process_tree", "peer_worker", "peer_files", "patterns_peer_task", system.module):
        shutil.copy(package / f"{name}.py", copied)
    return str(copied.parent)


def _java() -> dict[str, str]:
    """The variable that says where Java is; empty if there is none."""
    try:
        return {"JAVA_HOME": str(java_home())}
    except JavaNotFound:
        return {}


def _tail(errors: Path) -> str:
    return errors.read_text("utf-8", errors="replace")[-2000:].strip() or "it said nothing"
