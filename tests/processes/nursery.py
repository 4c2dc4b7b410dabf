"""Starts programs as forks of a process that has imported what they need (`tests.processes.__main__`): they start at
once. A program is a function of a module. What is about the start of a process starts another one."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO

from tests.support.places import ROOT

SIZE = 8
"""The bytes of a number on a socket."""


@dataclass(frozen=True, slots=True)
class Order:
    """A program, its surroundings and its limits: the greatest file in bytes, and the processor time in seconds."""

    program: Callable[..., object]
    arguments: tuple[object, ...]
    kill: tuple[str, int] | None
    most: int | None
    seconds: int | None
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    directory: str = field(default_factory=os.getcwd)


class Program:
    """A running program, with the methods of `subprocess.Popen` that tests need."""

    def __init__(self, order: Order, out: IO[bytes] | None, err: IO[bytes] | None) -> None:
        """Starts it. Its output goes to `out` or nowhere, its errors to `err` or into a pipe."""
        self.stderr: TextIOWrapper | None = None
        self.returncode: int | None = None
        self._socket, theirs = socket.socketpair()
        with theirs, Path(os.devnull).open("r+b") as null:
            written = err.fileno() if err is not None else self._pipe()
            files = [theirs.fileno(), null.fileno(), (out or null).fileno(), written]
            data, nursery = pickle.dumps(order), _nursery()
            socket.send_fds(nursery, [len(data).to_bytes(SIZE, "big")], files)
            nursery.sendall(data)
        if err is None:
            os.close(written)
        self.pid = self._number()

    def _pipe(self) -> int:
        reader, writer = os.pipe()
        self.stderr = os.fdopen(reader, encoding="utf-8")
        return writer

    def _number(self) -> int:
        data = self._socket.recv(SIZE, socket.MSG_WAITALL)
        assert data, "the nursery has ended"
        return int.from_bytes(data, "big", signed=True)

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

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            self.kill()
        self.wait()
        if self.stderr is not None:
            self.stderr.close()


def start(
    program: Callable[..., object], *arguments: object, kill: tuple[str, int] | None = None, most: int | None = None,
    seconds: int | None = None, out: IO[bytes] | None = None, err: IO[bytes] | None = None,
) -> Program:  # fmt: skip
    """Starts a program. It is killed at a moment of `tests.processes.kills` when that comes for the n-th time."""
    return Program(Order(program, arguments, kill, most, seconds), out, err)


def run(
    program: Callable[..., object], *arguments: object, kill: tuple[str, int] | None = None, most: int | None = None,
    seconds: int | None = None,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    with TemporaryFile() as out, TemporaryFile() as err:
        with start(program, *arguments, kill=kill, most=most, seconds=seconds, out=out, err=err) as started:
            status = started.wait()
        printed = [os.pread(file.fileno(), 1 << 30, 0).decode() for file in (out, err)]
        return subprocess.CompletedProcess([program.__name__, *map(str, arguments)], status, *printed)


def run_killed(program: Callable[..., object], *arguments: object, at: str, calls: int = 1) -> None:
    """Runs a program, which must be killed at a moment when that comes for the n-th time."""
    done = run(program, *arguments, kill=(at, calls))
    assert done.returncode == -signal.SIGKILL, f"{at}: status {done.returncode}\n{done.stderr}"


@cache
def _nursery() -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen([sys.executable, "-m", "tests.processes"], cwd=ROOT, stdin=theirs.fileno())
    return ours
