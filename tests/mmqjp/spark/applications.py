"""Applications on a Spark cluster of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.spark_cluster import SETTINGS, Cluster, kill, processes_below, wait_until


class Application:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    def runs(self) -> bool:
        return self.process.poll() is None

    def said(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def kill(self) -> None:
        below = processes_below(self.process.pid)
        for pid in [*below, self.process.pid]:
            kill(pid)
        self.process.wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), "the end of the driver")


def submit(cluster: Cluster, name: str, program: Path, arguments: Sequence[str | Path]) -> Application:
    settings = {**SETTINGS, "spark.log.level": "WARN"}
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    process = cluster.start(name, "spark-submit", "--master", cluster.url, *options, str(program), *map(str, arguments))
    return Application(process, cluster.directory / f"{name}.log")
