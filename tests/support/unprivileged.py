"""Runs the command line, or some code, as a user who may not write. Root may write regardless of permissions."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.processes import nursery
from tests.processes.programs import nobody


def as_nobody(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs code as the user nobody, if this process is root. `sys.argv[1:]` has the arguments."""
    return nursery.run(nobody, code, *arguments)


def command_as_nobody(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return as_nobody("mmqjp.cli.main(sys.argv[1:])", *arguments)


@contextmanager
def open_directory() -> Iterator[Path]:
    """A temporary directory that everybody may enter, unlike those of pytest."""
    with TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path
        take_back(path)


def give_to_all(path: Path) -> None:
    """Lets everybody read a directory and everything in it. Only root may write."""
    for found in [path, *path.rglob("*")]:
        found.chmod(0o555 if found.is_dir() else 0o444)


def take_back(path: Path) -> None:
    for found in [path, *path.rglob("*")]:
        found.chmod(0o755 if found.is_dir() else 0o644)
