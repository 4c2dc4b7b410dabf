"""Runs the command line, or some code, as somebody who may not write: permissions mean nothing to root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.processes import nursery


def as_nobody(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs code, with arguments in `sys.argv[1:]`, as nobody, if that is not who we are."""
    return nursery.run("tests.processes.nobody", code, *arguments)


def command_as_nobody(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Calls the command line as nobody."""
    return as_nobody("mmqjp.cli.main(sys.argv[1:])", *arguments)


@contextmanager
def open_directory() -> Iterator[Path]:
    """A temporary directory that everybody may enter, which those of pytest are not."""
    with TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path
        take_back(path)


def give_to_all(path: Path) -> None:
    """Lets everybody read a directory and all in it, and nobody but root write it."""
    for found in [path, *path.rglob("*")]:
        found.chmod(0o555 if found.is_dir() else 0o444)


def take_back(path: Path) -> None:
    """Lets its owner write a directory and all in it again."""
    for found in [path, *path.rglob("*")]:
        found.chmod(0o755 if found.is_dir() else 0o644)
