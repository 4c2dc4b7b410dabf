"""Runs the command line, or some code, as somebody who may not write: permissions mean nothing to root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_BECOME = """
import os, sys
import configparser, encodings.idna, fcntl, rich.table, sqlite3
import join_stage.duckdb_reader, mmqjp, mmqjp.cli, mmqjp.explain.plan
with mmqjp.Engine("duckdb") as engine:  # which loads what is loaded when it is needed
    engine.subscribe("S/a->x FOLLOWED BY {x = y, 1} S/a->y PUBLISH a")
    engine.process([mmqjp.Document("a", "<a/>", time=1)])
    engine.sql("SELECT 1")
list(mmqjp.cli.main.commands.values())
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""


def as_nobody(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs code, with arguments in `sys.argv[1:]`, as nobody, if that is not who we are. What it needs is imported
    before: nobody may not read it."""
    environment = {**os.environ, "HOME": "/nonexistent", "XDG_CONFIG_HOME": "/nonexistent"}
    command = [sys.executable, "-c", _BECOME + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)


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
