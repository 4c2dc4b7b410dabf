"""Programs that tests start in processes of their own."""

import configparser  # noqa: F401
import encodings.idna  # noqa: F401
import fcntl  # noqa: F401
import os
import sqlite3  # noqa: F401
import sys
import time
from functools import partialmethod

import anyio._backends._asyncio  # noqa: F401
import rich.table  # noqa: F401

import mmqjp
import mmqjp.cli
import mmqjp.explain.explanation
from feeds.documents import now_us
from mmqjp.sinks.webhook import CommandReceiver, MailReceiver, WebhookReceiver

SILENCE, ATTEMPT = 1.5, 4.0
"""Real seconds in which a receiver must say something, and have said all, where the clock is fast."""


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


def hurried(factor: int, *arguments: object) -> None:
    """The command line with a fast clock: waits of hours are over soon, and silent receivers are soon given up."""
    now_us.__globals__.update(speed=factor, begun=time.time_ns() // 1000)
    now_us.__code__ = (lambda: begun + (clock.time_ns() // 1000 - begun) * speed).__code__  # type: ignore[name-defined]  # noqa: F821  # globals of its module
    patience = {"silence": SILENCE, "attempt": ATTEMPT}
    kinds = {WebhookReceiver: patience, MailReceiver: patience, CommandReceiver: {"seconds": ATTEMPT}}
    for kind, limits in kinds.items():
        kind.__init__ = partialmethod(kind.__init__, **limits)  # type: ignore[misc]  # a seam for tests
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
