"""Starts Spark sessions, and recognises errors that mean Spark is gone."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from common.errors import InputError
from join_stage.store.protocol import DamagedRun, OtherSession, OutOfMemory, StoreError, telling
from join_stage.store.spark.java import heap_mb, java_home, memory_bytes, runs_in_submit

_Kind = TypeVar("_Kind", bound=Callable[..., Any])

ENDED = "Spark has ended, or its JVM was killed; the same command goes on from here"

_NO_MEMORY = ("OutOfMemoryError", "GC overhead limit", "SparkOutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY")

_STOPPED = ("SparkContext was shut down", "stopped SparkContext", "SparkContext is stopping", "SparkContext has been")

_LOST = (
    "ExecutorLostFailure",
    "ExecutorDeadException",
    "RejectedExecutionException",
    "Python worker exited",
    "executor lost",
)

_OURS = re.compile(r"^\s*join_stage\.[\w.]+\.(StoreError|DamagedRun): (.+)$", re.MULTILINE)
"""Matches one of our errors at the end of a task's traceback."""

_OTHER_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH|No module named '(?:common|feeds|mmqjp|\w+_stage|xscl)\b")


def telling_loss(kind: _Kind) -> _Kind:
    """Decorator: a function, or the public methods of a class, raise StoreError if Spark lacks processes or memory."""
    return telling(kind, (Py4JError, PySparkException, ConnectionError), loss)


def loss(error: BaseException) -> StoreError | None:
    """Translates an error of Spark; None if it is not about processes or memory."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return StoreError(ENDED)
    try:
        text = str(error.java_exception) + str(error) if isinstance(error, Py4JJavaError) else str(error)
    except (Py4JError, ConnectionError):  # it can no longer be asked
        return StoreError(ENDED)
    if any(word in text for word in _NO_MEMORY):
        return OutOfMemory(
            "Spark has too little memory for this batch: take smaller batches, or give it more with the setting "
            "spark.driver.memory, on a cluster spark.executor.memory"
        )
    if any(word in text for word in _STOPPED):
        return StoreError(ENDED)
    if messages := _OURS.findall(text):
        name, message = messages[-1]
        return (DamagedRun if name == DamagedRun.__name__ else StoreError)(message.strip())
    if _OTHER_PYTHON.search(text):
        return StoreError(
            "the workers of Spark run another Python, or lack this package: before the session starts, set "
            f"PYSPARK_PYTHON to a Python that has it, as {sys.executable} here"
        )
    for word in _LOST:
        if word in text:
            line = next(line for line in text.splitlines() if word in line)
            return StoreError(
                f"an executor of Spark has ended ({line.strip()[:200]}); the same command goes on from here"
            )
    return None


LOCAL_MASTER = "local[*]"

LOOPBACK = "127.0.0.1"

_LOOPBACK_HOST = re.compile(r"localhost|127(?:\.\d{1,3}){3}|\[::1\]", re.IGNORECASE)

_ADDRESS = "SPARK_LOCAL_IP"  # Spark's own variable for the address to which a process binds


class AddressNeeded(InputError, ValueError):
    """Executors on other machines could not reach this process, which binds to the loopback interface."""


def spark_session(master: str | None = None, *, warehouse: Path | None = None, app_name: str = "mmqjp") -> SparkSession:
    """The Spark session of this process, started with our settings if there is none. `master` is a Spark master URL;
    default is this machine, on the loopback interface, with all cores. `warehouse` holds managed tables. A running
    session is returned as it is, whoever started it; under spark-submit, its settings apply. Raises JavaNotFound if a
    Java is needed and none is usable, OtherSession if the running session has another master or warehouse,
    AddressNeeded for a cluster without SPARK_LOCAL_IP."""
    running = SparkSession.getActiveSession()
    if running is not None:
        session = running
    elif runs_in_submit(os.environ):
        SparkContext._ensure_initialized()  # connects to the JVM, whose settings SparkConf reads
        session = SparkSession.builder.config(conf=open_settings(SparkConf())).getOrCreate()
    else:
        session = _start(session_settings(master or LOCAL_MASTER, os.cpu_count() or 1, warehouse, app_name))
    _check("master", str(session.sparkContext.master), master)
    if warehouse is not None:
        actual = (session.conf.get("spark.sql.warehouse.dir") or "").removeprefix("file:")
        _check("warehouse", str(Path(actual)), str(warehouse.absolute()))
    return session


def session_settings(master: str, cores: int, warehouse: Path | None, app_name: str) -> dict[str, str]:
    """The configuration of a new session. Figures are medians for 20 five-way joins of 1,000 rows on 2 cores."""
    chosen = {
        "spark.master": master,
        "spark.app.name": app_name,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Small batches are nearly all overhead: 375 ms without adaptive execution, 445 ms with it. Whole-stage code
        # generation stays on (off: 707 ms); broadcasts, constraint propagation and CBO made no gain beyond noise.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(2 * cores),
        # Compiled code is kept for more stages than the 100 of Spark's: those of sixty templates were more, and each
        # batch compiled them all again.
        "spark.sql.codegen.cache.maxEntries": "5000",
        # Every broadcast table reserves whole pages. With Spark's sizes (1g, pages of several MB) the eighty of that
        # union ran out of memory, though the data was small.
        "spark.driver.memory": f"{heap_mb(memory_bytes())}m",
        # A process that waits for a core may take longer than Spark's 15 s to connect; nothing is lost by waiting.
        "spark.python.authenticate.socketTimeout": "600s",
        "spark.buffer.pageSize": "1m",
    }
    if is_local(master):
        chosen |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if warehouse is not None:
        chosen["spark.sql.warehouse.dir"] = str(warehouse.absolute())
    return chosen


_CLUSTER_DEFAULTS = {"PYSPARK_PYTHON": sys.executable, _ADDRESS: LOOPBACK}


def launch_environment(master: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables for the session's JVM, which is on the loopback interface unless SPARK_LOCAL_IP says
    another. Local workers run our interpreter. On a cluster an existing choice stands. Raises AddressNeeded."""
    if _ADDRESS not in environ and not is_local(master) and not _LOOPBACK_HOST.match(master.partition("://")[2]):
        raise AddressNeeded(
            f"executors of {master} could not reach this process, which binds to {LOOPBACK} only: set {_ADDRESS} to "
            f"the address of this machine that they reach, or to {LOOPBACK} if all of them run here"
        )
    added = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    if is_local(master):
        added |= {"PYSPARK_PYTHON": sys.executable, _ADDRESS: LOOPBACK}
    else:
        added |= {name: value for name, value in _CLUSTER_DEFAULTS.items() if name not in environ}
    if not runs_in_submit(environ):  # else spark-submit started us, and its JVM runs already
        added["JAVA_HOME"] = str(java_home(environ))
    return added


def use_own_python(session: SparkSession) -> None:
    """Lets workers of a local session, whoever started it, run our interpreter, unless another one is named."""
    context = session.sparkContext
    is_named = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if is_local(str(context.master)) and not is_named:
        context.pythonExec = sys.executable


def is_local(master: str) -> bool:
    """Whether a master URL means threads or processes of this machine."""
    return master.partition("[")[0] in ("local", "local-cluster")


@cache
def _temporary_directory() -> TemporaryDirectory[str]:
    """Spark's files of this process, which Spark itself would leave readable by everybody."""
    return TemporaryDirectory(prefix="mmqjp-spark-", ignore_cleanup_errors=True)


def open_settings(given: SparkConf) -> SparkConf:
    """Sets options that spark-submit did not get, so that its session is as private and quiet as one of our own."""
    given.setIfMissing("spark.ui.enabled", "false").setIfMissing("spark.log.level", "WARN")
    if is_local(given.get("spark.master") or LOCAL_MASTER):
        given.setIfMissing("spark.driver.host", LOOPBACK).setIfMissing("spark.driver.bindAddress", LOOPBACK)
    return given


def _start(config: Mapping[str, str]) -> SparkSession:
    temporary = _temporary_directory().name
    builder = SparkSession.builder.config("spark.local.dir", temporary)
    for key, value in config.items():
        builder = builder.config(key, value)
    with (
        as_file(files("join_stage.store.spark") / "log4j2.properties") as log,
        _environment(launch_environment(config["spark.master"], os.environ)),
    ):
        # A property and not setLogLevel: the noisiest messages come before there is a context to set the level of.
        builder = builder.config(
            "spark.driver.extraJavaOptions",
            f'"-Dlog4j2.configurationFile={log.as_uri()}" "-Djava.io.tmpdir={temporary}"',
        )
        return builder.getOrCreate()


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _check(what: str, actual: str, wanted: str | None) -> None:
    if wanted is not None and actual != wanted:
        raise OtherSession(
            f"a Spark session runs in this process already, with {what} {actual} and not {wanted}: "
            f"stop it first, or hand it to the engine as it is"
        )
