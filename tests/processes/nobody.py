"""Some code, as a program that the nursery runs as somebody who may not write: permissions mean nothing to root.

What the code needs is loaded before: nobody may not read it.
"""

import configparser  # noqa: F401
import encodings.idna  # noqa: F401
import fcntl  # noqa: F401
import os
import sqlite3  # noqa: F401
import sys

import rich.table  # noqa: F401

import mmqjp
import mmqjp.cli
import mmqjp.explain.explanation


def main(code: str, *arguments: str) -> None:
    """Runs code, with the arguments in `sys.argv[1:]`, as nobody, if that is not who we are."""
    with mmqjp.Engine("duckdb") as engine:  # which loads what is loaded when it is needed
        engine.subscribe("S/a->x FOLLOWED BY {x = y, 1} S/a->y PUBLISH a")
        engine.process([mmqjp.Document("a", "<a/>", time=1)])
        engine.sql("SELECT 1")
    os.environ |= {"HOME": "/nonexistent", "XDG_CONFIG_HOME": "/nonexistent"}
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    sys.argv[1:] = arguments
    exec(code, {"os": os, "sys": sys, "mmqjp": mmqjp})
