"""A Spark cluster on this machine: a standalone master and workers, applications, and what these ran where."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyspark

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
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind((HOST, 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def processes_below(pid: int) -> dict[int, str]:
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], check=True, capture_output=True, text=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    children: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for row in rows:
        children[int(row[1])].append((int(row[0]), row[2] if len(row) > 2 else ""))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child, arguments in children[waiting.pop()]:
            found[child] = arguments
            waiting.append(child)
    return found


def environment() -> dict[str, str]:
    return {
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": HOST,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
    }


class Cluster:
    def __init__(self, directory: Path, workers: int = 2) -> None:
        self.directory = directory
        (directory / "events").mkdir(parents=True)
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
        self._master = self._start(
            "master", f"{deploy}.master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(ui)
        )
        self.workers: list[subprocess.Popen[bytes]] = []
        try:
            for number, worker_ui in enumerate(worker_uis):
                options = ["--host", HOST, "--cores", "1", "--memory", "1g", "--webui-port", str(worker_ui)]
                options += ["--work-dir", str(directory / f"work{number}"), self.url]
                self.workers.append(self._start(f"worker{number}", f"{deploy}.worker.Worker", *options))
            wait_until(lambda: self._alive_workers() == workers, "the workers")
        except BaseException:
            self.stop()
            raise

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(SPARK / "bin" / "spark-class"), *command], env=self._environment, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def _alive_workers(self) -> int:
        try:
            with urlopen(self._ui, timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError):
            return 0

    def submit(self, name: str, application: Path, arguments: Sequence[str | Path]) -> Application:
        settings = {
            **SETTINGS,
            "spark.log.level": "WARN",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{self.directory / 'events'}",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }
        command = [str(SPARK / "bin" / "spark-submit"), "--master", self.url]
        command += [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        log = self.directory / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, str(application), *map(str, arguments)], env=self._environment, stdout=file, stderr=file,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        return Application(process, log)

    def executors(self) -> list[int]:
        found = [processes_below(worker.pid) for worker in self.workers]
        return [pid for below in found for pid, text in below.items() if "CoarseGrainedExecutorBackend" in text]

    def stop(self) -> None:
        started = [*self.workers, self._master]
        below = [pid for process in started for pid in processes_below(process.pid)]
        for pid in [*below, *(process.pid for process in started)]:
            kill(pid)
        for process in started:
            process.wait()

    def workers_by_stage(self) -> dict[str, set[int]]:
        """On which workers, by the ports of their pages, tasks ended well: of stage 1, of the join."""
        found: dict[str, set[int]] = {"stage 1": set(), "join": set()}
        for path in (self.directory / "events").iterdir():
            for kind, ports in ran_on(path).items():
                found[kind] |= ports
        return found


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


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def running_cluster(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    cluster = Cluster(directory, workers)
    try:
        yield cluster
    finally:
        cluster.stop()


def ran_on(event_log: Path) -> dict[str, set[int]]:
    """For stage 1 and for the join the ports of the workers' pages on which tasks of an application ended well. Stage 1
    is in the stages with a MapInArrow in them, the join in the last stage of a statement that has one in its plan. The
    last line of the log of a killed application may be cut."""
    plans: dict[str, str] = {}
    statement_of: dict[int, str] = {}
    mapping: set[int] = set()
    page_of: dict[str, int] = {}
    ended: list[tuple[int, str]] = []
    for event in _events(event_log):
        name = event["Event"].rpartition(".")[2]
        if name == "SparkListenerSQLExecutionStart":
            plans[str(event["executionId"])] = event["physicalPlanDescription"]
        elif name == "SparkListenerJobStart":
            for stage in event["Stage Infos"]:
                statement_of[stage["Stage ID"]] = event.get("Properties", {}).get("spark.sql.execution.id", "")
                if any("MapInArrow" in rdd.get("Scope", "") for rdd in stage["RDD Info"]):
                    mapping.add(stage["Stage ID"])
        elif name == "SparkListenerExecutorAdded":
            page = event["Executor Info"]["Log Urls"]["stdout"]
            page_of[event["Executor ID"]] = int(page.split("/")[2].rpartition(":")[2])
        elif name == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
            ended.append((event["Stage ID"], event["Task Info"]["Executor ID"]))
    last = {statement: stage for stage, statement in sorted(statement_of.items())}
    joining = {last[statement] for statement, plan in plans.items() if "Join" in plan and statement in last}
    return {
        "stage 1": {page_of[executor] for stage, executor in ended if stage in mapping},
        "join": {page_of[executor] for stage, executor in ended if stage in joining - mapping},
    }


def _events(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return
