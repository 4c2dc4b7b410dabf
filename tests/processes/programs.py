"""Programs that tests start in processes of their own."""

import configparser  # noqa: F401
import encodings.idna  # noqa: F401
import fcntl  # noqa: F401
import os
import sqlite3  # noqa: F401
import sys

import anyio._backends._asyncio  # noqa: F401
import rich.table  # noqa: F401

import mmqjp
import mmqjp.cli
import mmqjp.explain.explanation


def command(*arguments: object) -> None:
    sys.argv = ["mmqjp", *map(str, arguments)]
    mmqjp.cli.main(sys.argv[1:], prog_name="mmqjp")


def without_files(first: int, last: int, *arguments: object) -> None:
    """The command line as Python starts it where some of its standard files are closed."""
    os.closerange(first, last)
    for name in ("stdin", "stdout", "stderr")[first:last]:
        setattr(sys, name, None)
    command(*arguments)


def in_terminal(name: str, *arguments: object) -> None:
    """The command line in a session of its own, with a terminal as its standard input."""
    os.setsid()
    os.dup2(os.open(name, os.O_RDWR), 0)
    command(*arguments)


def nobody(code: str, *arguments: object) -> None:
    """Runs code, with the arguments in `sys.argv[1:]`, as a user who may not write: root may."""
    with mmqjp.Engine("duckdb") as engine:  # which loads what is loaded when it is needed
        engine.subscribe("S/a->x FOLLOWED BY {x = y, 1} S/a->y PUBLISH a")
        engine.process([mmqjp.Document("a", "<a/>", time=1)])
        engine.sql("SELECT 1")
    os.environ |= {"HOME": "/nonexistent", "XDG_CONFIG_HOME": "/nonexistent"}
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    sys.argv[1:] = map(str, arguments)
    exec(code, {"os": os, "sys": sys, "mmqjp": mmqjp})
