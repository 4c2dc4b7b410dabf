"""What `mmqjp check` and `mmqjp run` take for a file of very many queries, as whole commands: time and peak memory.

`run` gets one pair of documents, on DuckDB: without a state, with a new one, and again with that state, which must give
no output that it has given before. Times are seconds of CPU, which other programs disturb less, and of the clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.registration_scripts import WRONG, documents, script
from bench.stage2_report import Line
from join_stage.protocol import DEFAULT_PLAN


@dataclass(frozen=True)
class Taken:
    """What a command took and printed."""

    status: int
    cpu: float
    wall: float
    rss_mib: int
    output: str
    errors: str


def measure_commands(kind: str, number: int) -> Iterator[Line]:
    """Runs the commands over a file of queries. Raises AssertionError if one does something else than it should."""
    with tempfile.TemporaryDirectory(prefix="mmqjp-registration-") as name:
        directory = Path(name)
        (directory / "queries.xscl").write_text(script(kind, number), encoding="utf-8")
        with (directory / "documents.jsonl").open("w", encoding="utf-8") as lines:
            for one in documents(1):
                lines.write(json.dumps({"id": one.id, "stream": one.stream, "time": one.t0, "xml": one.xml}) + "\n")
        checked = taken(directory, "check", "queries.xscl")
        yield _line("check", kind, number, checked)
        if kind in WRONG:
            assert checked.status == 1 and "error: " in checked.errors, f"{kind}: the mistakes are not found"
            return
        assert f": {number:,} quer" in checked.output, f"{kind}: check says {checked.output[:200]!r}"
        outputs = []
        for what, *options in (
            ("run", "--output", "plain"),
            ("run, new state", "--output", "kept", "--state", "state"),
            ("run, that state", "--output", "kept", "--state", "state"),
        ):
            command = ["run", "--engine", "duckdb", "--queries", "queries.xscl", "--documents", "documents.jsonl"]
            run = taken(directory, *command, *options)
            assert run.status == 0, f"{kind}: {run.errors[-500:]}"
            outputs.append(sorted(json.loads(line)["id"] for line in (directory / options[1]).open("rb")))
            yield _line(what, kind, number, run)
        assert outputs[0] == outputs[1] == outputs[2], f"{kind}: a run with a state writes other outputs"


def taken(directory: Path, *arguments: str) -> Taken:
    """Runs a command of ours in a directory."""
    command = [sys.executable, "-m", "mmqjp", *arguments]
    with (directory / "stdout").open("w+b") as out, (directory / "stderr").open("w+b") as err:
        begin = time.monotonic()
        process = subprocess.Popen(command, cwd=directory, env=os.environ | _here(), stdout=out, stderr=err)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = [(directory / stream).read_text("utf-8") for stream in ("stdout", "stderr")]
    return Taken(process.returncode, used.ru_utime + used.ru_stime, wall, used.ru_maxrss >> 10, texts[0], texts[1])


def _here() -> dict[str, str]:
    """The modules that this process imports."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _line(what: str, kind: str, number: int, command: Taken) -> Line:
    about = {"what": what, "kind": kind, "queries": number}
    details = {
        "queries_a_second": number / command.cpu,
        "wall_seconds": command.wall,
        "rss_mib": command.rss_mib,
    }
    return Line("registration", about, "duckdb", DEFAULT_PLAN, command.cpu, number, None, None, details=details)
