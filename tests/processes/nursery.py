"""Starts programs as forks of a process that has imported what they need (`tests.processes.__main__`): they start at
once. A program is a function of a module. What is about the start of a process starts another one."""

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Self

from tests.support.places import ROOT

MOST = 1 << 17  # bytes of a message


@dataclass(frozen=True, slots=True)
class Order:
    """A program, when it is killed, its limits (the greatest file in bytes, the processor time in seconds), and its
    surroundings."""

    program: Callable[..., object]
    arguments: tuple[object, ...]
    kill: tuple[str, int] | None = None
    most: int | None = None
    seconds: int | None = None
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    directory: str = field(default_factory=os.getcwd)


class Program:
    """A running program, with the methods of `subprocess.Popen` that tests need."""

    def __init__(self, order: Order, out: IO[bytes] | None, err: IO[bytes] | None) -> None:
        """Starts it. Its output goes to `out` or nowhere, its errors to `err` or into a pipe."""
        self.stderr: TextIOWrapper | None = None
        self.returncode: int | None = None
        self._socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with ExitStack() as stack:
            null = stack.enter_context(Path(os.devnull).open("r+b"))
            if err is None:
                reader, writer = os.pipe()
                self.stderr, err = os.fdopen(reader, encoding="utf-8"), stack.enter_context(os.fdopen(writer, "wb"))
            files = [file.fileno() for file in (stack.enter_context(theirs), null, out or null, err)]
            socket.send_fds(_nursery(), [pickle.dumps(order)], files)
        self.pid = self._number()

    def _number(self) -> int:
        data = self._socket.recv(MOST)
        assert data, "the nursery has ended"
        number: int = pickle.loads(data)
        return number

    def poll(self) -> int | None:
        """The exit status, or minus the signal that killed it; None while it runs."""
        if self.returncode is None and select.select([self._socket], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._socket.settimeout(timeout)
            self.returncode = self._number()
            self._socket.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.kill()
        self.wait()
        if self.stderr is not None:
            self.stderr.close()


def start(
    program: Callable[..., object], *arguments: object, out: IO[bytes] | None = None, err: IO[bytes] | None = None,
    **how: Any,
) -> Program:  # fmt: skip
    """Starts a program, with the limits of an `Order`, or killed at a moment of `tests.processes.kills` when that comes
    for the n-th time."""
    return Program(Order(program, arguments, **how), out, err)


def run(program: Callable[..., object], *arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
    with TemporaryFile() as out, TemporaryFile() as err:
        with start(program, *arguments, out=out, err=err, **how) as started:
            status = started.wait()
        printed = [os.pread(file.fileno(), 1 << 30, 0).decode() for file in (out, err)]
        return subprocess.CompletedProcess([program.__name__, *map(str, arguments)], status, *printed)


def run_killed(program: Callable[..., object], *arguments: object, at: str, calls: int = 1) -> None:
    """Runs a program, which must be killed at a moment when that comes for the n-th time."""
    done = run(program, *arguments, kill=(at, calls))
    assert done.returncode == -signal.SIGKILL, f"{at}: status {done.returncode}\n{done.stderr}"


@cache
def _nursery() -> socket.socket:
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen([sys.executable, "-m", "tests.processes"], cwd=ROOT, stdin=theirs.fileno())
    return ours
