"""The driver of `mmqjp bench cluster`, in a process of its own: `mmqjp stream` on a cluster, observed from inside."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.latency_service import Place
from bench.process_tree import processor_seconds
from bench.spark_cluster import SETTINGS, environment
from mmqjp.commands.serve import stream
from mmqjp.documents.admission import Admission
from mmqjp.engine import Session
from mmqjp.service.drops import StreamingService

Measures = dict[str, float]


@dataclass(frozen=True)
class Case:
    """A service on the cluster at `url`, whose workers are the processes `workers`, over the files in a directory, in
    batches of at most `batch_size`. `name` tells it from other ones of the directory."""

    url: str
    workers: tuple[int, ...]
    directory: Path
    batch_size: int
    name: str

    @property
    def pid(self) -> Path:
        """The file that says which process the driver is."""
        return self.directory / f"{self.name}.pid"


@dataclass
class Driven:
    """What was measured: of each batch, its documents, processor seconds of the executors and of the driver for stage 2
    and delivery; the seconds of the last micro-batches, and of triggers without documents; the most memory of the
    driver's two processes, in bytes."""

    batches: list[Measures]
    seconds: list[float]
    empty: list[float]
    python: int
    jvm: int


def drive(case: Case) -> Driven:
    """Runs the service until this process gets SIGTERM."""
    with (case.directory / "driver.log").open("ab") as log:
        os.dup2(log.fileno(), 2)  # what its JVM says is not for the terminal
    os.environ.update(environment())
    builder = SparkSession.builder.master(case.url)
    settings = {
        **SETTINGS,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    place = Place(case.directory)
    observer = _Observer(case.workers)
    case.pid.write_text(str(os.getpid()))
    with observer.observing(), place.log.open("a", buffering=1) as events:
        sys.stderr = events
        stream.main(
            [
                *("--engine", "spark", "--master", case.url, "--source", str(place.drops), "--log", "json"),
                *("--queries", str(place.queries), "--state", str(case.directory / "state")),
                *("--output", str(place.lines), "--trigger", "100ms", "--lateness", "INF", "--max-ahead", "INF"),
                *("--batch-size", str(case.batch_size), "--batch-bytes", str(64 << 20)),
            ],
            standalone_mode=False,
        )
        sys.stderr = sys.__stderr__
    driven = observer.driven()
    session.stop()
    return driven


class _Observer:
    """Measures processor time from the end of stage 1 to the end of a batch, without admission."""

    def __init__(self, workers: tuple[int, ...]) -> None:
        self._workers = workers
        self._batches: list[Measures] = []
        self._query: StreamingQuery | None = None
        self._since: tuple[float, float] | None = None
        self._admission = 0.0

    def _now(self) -> tuple[float, float]:
        return sum(map(processor_seconds, self._workers)), processor_seconds(os.getpid())

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Wraps what a service calls."""
        observer = self

        def after_stage1(method: Any) -> Any:
            def evaluate(*arguments: Any) -> Any:
                found = method(*arguments)
                observer._since = observer._now()
                return found

            return evaluate

        def to_the_end(method: Any) -> Any:
            def process(service: StreamingService, read: Any) -> Any:
                before = observer._since or observer._now()  # one data frame may be several batches
                observer._since, observer._admission = None, 0.0
                found = method(service, read)
                executors, driver = (now - then for now, then in zip(observer._now(), before, strict=True))
                driver -= observer._admission
                observer._batches.append({"documents": len(read.items), "executors": executors, "driver": driver})
                return found

            return process

        def admission(method: Any) -> Any:
            def admit(*arguments: Any) -> Any:
                begin = time.thread_time()
                try:
                    return method(*arguments)
                finally:
                    observer._admission += time.thread_time() - begin

            return admit

        def start(method: Any) -> Any:
            def started(*arguments: Any) -> Any:
                observer._query = method(*arguments)
                return observer._query

            return started

        wrapped = [
            (Session, "evaluate", after_stage1),
            (StreamingService, "_process", to_the_end),
            (Admission, "admit", admission),
            (StreamingService, "_start", start),
        ]
        before = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in wrapped]
        for owner, name, wrap in wrapped:
            setattr(owner, name, wrap(getattr(owner, name)))
        try:
            yield
        finally:
            for owner, name, method in before:
                setattr(owner, name, method) if method is not None else delattr(owner, name)

    def driven(self) -> Driven:
        """What was measured."""
        progress = [(p["numInputRows"], p["durationMs"]["triggerExecution"] / 1e3) for p in self._progress()]
        jvms = [child for child in _children(os.getpid()) if Path(f"/proc/{child}/exe").resolve().name == "java"]
        return Driven(
            self._batches,
            [seconds for rows, seconds in progress if rows],
            [seconds for rows, seconds in progress if not rows],
            _peak(os.getpid()),
            max(map(_peak, jvms)),
        )

    def _progress(self) -> list[dict[str, Any]]:
        assert self._query is not None, "the service has started"
        return [json.loads(progress.json) for progress in self._query.recentProgress]


def _peak(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())
