"""A process that has imported what the programs of the tests need, and is forked for each of them: they start at once.

A program is a module with a function `main`, which is given the arguments. `python -m tests.processes.nursery` is that
process; it takes orders, lines of JSON, on standard input, and ends with it. It opens no store: its copies do.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from tests.support.places import ROOT


def run(program: str, *arguments: object, most: int | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, in a process of its own, which may write no file of more than `most` bytes. The
    status is minus the signal that killed it."""
    given = [str(argument) for argument in arguments]
    with TemporaryDirectory() as directory:
        out, err = Path(directory) / "out", Path(directory) / "err"
        order = {"program": program, "arguments": given, "out": str(out), "err": str(err), "most": most}
        nursery = _nursery()
        assert nursery.stdin is not None and nursery.stdout is not None
        nursery.stdin.write(json.dumps(order) + "\n")
        nursery.stdin.flush()
        answer = nursery.stdout.readline()
        assert answer, "the nursery has ended"
        return subprocess.CompletedProcess([program, *given], int(answer), out.read_text(), err.read_text())


@cache
def _nursery() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.processes.nursery"]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


# ---------------------------------------------------------------- in that process


def serve() -> None:
    """Does what it is told until there is nothing more."""
    _warm()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _become(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


def _warm() -> None:
    """Loads what is loaded when it is first needed."""
    from mmqjp.cli import main
    from templates.catalog import Catalog
    from tests.support.conjuncts import conjuncts_of
    from xscl.parser import parse_script

    for name in ("engine", "event_life", "fetch", "nobody", "output", "service", "sinks", "stream"):
        import_module(f"tests.processes.{name}")
    list(main.commands.values())
    for number, query in enumerate(conjuncts_of(parse_script("S//a->x JOIN {x = y, 1} S//b->y"))):
        Catalog().add(query, number, True)


def _become(program: str, arguments: list[str], out: str, err: str, most: int | None) -> NoReturn:
    """Runs the program and ends with its status."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if most is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    status = 0
    try:
        import_module(program).main(*arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    serve()
