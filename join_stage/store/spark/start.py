"""Starts the Spark session that the engine, the tests and the benchmarks use."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

from pyspark.sql import SparkSession

from join_stage.store.protocol import OtherSession
from join_stage.store.spark.java import java_home
from join_stage.store.spark.machine import heap_mb, memory_bytes
from join_stage.store.spark.running import runs_in_submit

LOCAL_MASTER = "local[*]"
LOOPBACK = "127.0.0.1"


def spark_session(master: str | None = None, *, warehouse: Path | None = None, app_name: str = "mmqjp") -> SparkSession:
    """The Spark session of this process, started with our settings if there is none yet.

    `master` is a Spark master URL; by default Spark runs on this machine, on the loopback interface, with all cores.
    `warehouse` is where managed tables lie. A process has one session: where one runs already it is returned as it is,
    whoever started it and with whatever settings. Where spark-submit started this process, its settings are the
    session's.

    Raises JavaNotFound when a Java must be started and none is usable, and OtherSession when the session that runs has
    another master or warehouse than those asked for.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        session = running
    elif runs_in_submit(os.environ):
        session = SparkSession.builder.getOrCreate()
    else:
        session = _start(settings(master or LOCAL_MASTER, os.cpu_count() or 1, warehouse, app_name))
    _check("master", str(session.sparkContext.master), master)
    if warehouse is not None:
        actual = (session.conf.get("spark.sql.warehouse.dir") or "").removeprefix("file:")
        _check("warehouse", str(Path(actual)), str(warehouse.absolute()))
    return session


def settings(master: str, cores: int, warehouse: Path | None, app_name: str) -> dict[str, str]:
    """The configuration of a new session.

    The figures beside a choice are medians for one union of 20 five-way joins over tables of 1,000 rows, on 2 cores.
    """
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


def launch_environment(master: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables to add while the session starts: its JVM inherits them.

    Local workers run the interpreter we run on. On a cluster its path may not exist, so a choice already made stands.
    """
    added = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    if is_local(master):
        added |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOOPBACK}
    elif "PYSPARK_PYTHON" not in environ:
        added["PYSPARK_PYTHON"] = sys.executable
    if not runs_in_submit(environ):  # else spark-submit started us, and its JVM runs already
        added["JAVA_HOME"] = str(java_home(environ))
    return added


def is_local(master: str) -> bool:
    """Whether a master URL means threads of this machine rather than a cluster."""
    return master.partition("[")[0] == "local"


def _start(config: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for key, value in config.items():
        builder = builder.config(key, value)
    with (
        as_file(files("join_stage.store.spark") / "log4j2.properties") as log,
        _environment(launch_environment(config["spark.master"], os.environ)),
    ):
        # A property and not setLogLevel: the noisiest messages come before there is a context to set the level of.
        builder = builder.config("spark.driver.extraJavaOptions", f'"-Dlog4j2.configurationFile={log.as_uri()}"')
        return builder.getOrCreate()


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Environment variables of this process for a while; the old values come back, also after an error."""
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
