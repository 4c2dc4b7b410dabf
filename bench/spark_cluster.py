"""A Spark cluster on this machine: a standalone master and workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from urllib.request import urlopen

import pyspark

from bench.peer_protocol import process_file, process_tree
from join_stage.store.spark.java import java_home

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[1]  # where our packages are
SPARK = Path(pyspark.__file__).parent
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # options of JVMs that end before better compiled code pays
SETTINGS = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "480m",  # Spark refuses less than 450
    "spark.driver.defaultJavaOptions": SHORT_LIVED,
    "spark.executor.memory": "512m",
    "spark.executor.defaultJavaOptions": SHORT_LIVED,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.enabled": "false",
}
"""The settings of an application."""

PATIENCE = 300.0  # seconds of waiting until an error


class NotInTime(RuntimeError):
    """A deadline was missed."""


def wait_until(happened: Callable[[], bool], what: str, alive: Callable[[], bool] = lambda: True) -> None:
    """Polls. Raises NotInTime after PATIENCE, or if `alive` says that it cannot happen any more."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        if not alive():
            raise NotInTime(f"ended before {what}")
        if time.monotonic() > deadline:
            raise NotInTime(f"no sign of {what} within {PATIENCE:g} s")
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]


def processes_below(pid: int) -> list[int]:
    return [one for one in process_tree(pid) if one != pid]


def environment() -> dict[str, str]:
    return {
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": HOST,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
    }


class Cluster(AbstractContextManager["Cluster"]):
    def __init__(self, directory: Path, workers: int = 2) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        self._environment = {
            **os.environ,
            **environment(),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        }
        port, ui, *worker_uis = free_ports(2 + workers)
        self.url = f"spark://{HOST}:{port}"
        self._ui = f"http://{HOST}:{ui}/json/"
        deploy = "org.apache.spark.deploy"
        options = ["--host", HOST, "--port", str(port), "--webui-port", str(ui)]
        self._master = self.start("master", "spark-class", f"{deploy}.master.Master", *options)
        self.workers: list[subprocess.Popen[bytes]] = []
        try:
            for number, worker_ui in enumerate(worker_uis):
                options = ["--host", HOST, "--cores", "1", "--memory", "1g", "--webui-port", str(worker_ui)]
                options += ["--work-dir", str(directory / f"work{number}"), self.url]
                self.workers.append(self.start(f"worker{number}", "spark-class", f"{deploy}.worker.Worker", *options))
            wait_until(lambda: self._alive_workers() == workers, "the workers")
        except BaseException:
            self.__exit__()
            raise

    def start(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a program of Spark, whose log gets the name."""
        with (self.directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(SPARK / "bin" / program), *arguments], env=self._environment, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def _alive_workers(self) -> int:
        try:
            with urlopen(self._ui, timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError):
            return 0

    def executors(self) -> list[int]:
        below = [pid for worker in self.workers for pid in processes_below(worker.pid)]
        return [pid for pid in below if "CoarseGrainedExecutorBackend" in process_file(pid, "cmdline")]

    def __exit__(self, *_: object) -> None:
        started = [*self.workers, self._master]
        below = [pid for process in started for pid in processes_below(process.pid)]
        for pid in [*below, *(process.pid for process in started)]:
            kill(pid)
        for process in started:
            process.wait()


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
