"""Runs work on strangers' input in a process of its own, which the system ends after a time limit.

Some libraries that read feeds, pages and robots.txt take quadratic time or worse if the input is written to hurt them.
A thread or a call cannot be ended from outside; a process can. Idle processes are kept for later calls.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import ceil
from threading import Lock
from typing import BinaryIO, TypeVar, cast

from common.errors import InputError

_T = TypeVar("_T")

SECONDS, BYTES_A_SECOND = 10, 256 * 1024
"""The seconds of processor time for a call, and the bytes that give it another second."""

MEMORY = 4 << 30
"""The most bytes of address space."""

ANSWER, ANSWER_PER_BYTE = 64 << 20, 16
"""The most bytes of an answer, and the bytes more that each byte of the input gives it. What comes from a stranger may
be written to grow, and here it is held whole."""

IDLE = 2
"""The number of processes that are kept for later calls, and of calls of event loops that run at once."""

_LENGTH = struct.Struct("<Q")


class ConfinedError(InputError, ValueError):
    """The work did not end within its limits. The message tells what happened."""


def seconds_for(size: int) -> int:
    """The seconds of processor time for work on so many bytes."""
    return SECONDS + size // BYTES_A_SECOND


def answer_for(size: int) -> int:
    """The most bytes of the answer of work on so many bytes."""
    return ANSWER + size * ANSWER_PER_BYTE


def confined(work: Callable[..., _T], *arguments: object, size: int) -> _T:
    """Calls a module's function with arguments that hold about `size` bytes from a stranger.

    Returns and raises what the function does, and ConfinedError if it passes the limits or ends its process.
    """
    return cast(_T, _asked(_Call(), work, arguments, size))


async def confined_aside(work: Callable[..., _T], *arguments: object, size: int) -> _T:
    """Like `confined`, while the event loop goes on. The work ends if the call is cancelled."""
    call = _Call()
    try:
        loop = asyncio.get_running_loop()
        return cast(_T, await loop.run_in_executor(_threads, _asked, call, work, arguments, size))
    except asyncio.CancelledError:
        call.cancel()
        raise


def prepare(work: Callable[..., object]) -> None:
    """Starts a process for later calls of a module's function. It loads the module while this process goes on."""
    _put_back(_Worker(f"import {work.__module__}; "))


class _Worker:
    """A process that does one call after the other. It runs `first` before them."""

    def __init__(self, first: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{first}from feeds.confined import serve_calls; serve_calls()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,  # Ctrl-C is for whoever asked
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        self._ended = False

    def is_well(self) -> bool:
        return not self._ended and self._process.poll() is None

    def ask(self, size: int, work: Callable[..., object], arguments: tuple[object, ...]) -> object:
        """Returns or raises what the work on so many bytes does."""
        seconds = seconds_for(size)
        request = pickle.dumps((seconds, answer_for(size), work, arguments), pickle.HIGHEST_PROTOCOL)
        try:
            with suppress(BrokenPipeError):  # its end tells more
                _write(self._to, request)
            answer = _read(self._from)
        except EOFError:
            raise ConfinedError(self._end(seconds)) from None
        succeeded, result = pickle.loads(answer)
        if succeeded:
            return result
        raise result

    def _end(self, seconds: int) -> str:
        status = self._process.wait()
        if status == -signal.SIGXCPU:
            return f"reading it takes more than {seconds} s"
        return f"reading it ended its process (status {status})"

    def end(self) -> None:
        self._ended = True
        self._process.kill()

    def leave(self) -> None:
        """Closes this process's ends of the pipes. The worker ends when all ends are closed."""
        for pipe in (self._to, self._from):
            with suppress(OSError):
                pipe.close()

    def finish(self) -> None:
        """Kills the process and waits for its end."""
        self.end()
        self._process.wait()
        self.leave()

    def forget(self) -> None:
        """For a fork of this process, whose child the worker is not."""
        self._process.returncode = 0
        self.leave()


class _Call:
    """A call that another thread may cancel. It has a worker only while that runs it."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._cancelled = False

    def begin(self, worker: _Worker) -> None:
        with _lock:
            self._worker = worker
            if self._cancelled:
                worker.end()

    def finish(self) -> None:
        with _lock:
            self._worker = None

    def cancel(self) -> None:
        with _lock:
            self._cancelled = True
            if self._worker is not None:
                self._worker.end()


_threads = ThreadPoolExecutor(IDLE, "confined")
_idle: list[_Worker] = []
_lock = Lock()


def _taken() -> _Worker:
    with _lock:
        while _idle:
            if (worker := _idle.pop()).is_well():
                return worker
            worker.finish()
    return _Worker()


def _asked(call: _Call, work: Callable[..., object], arguments: tuple[object, ...], size: int) -> object:
    worker = _taken()
    call.begin(worker)
    try:
        return worker.ask(size, work, arguments)
    except Exception:
        raise  # what the work raises, its process survives
    except BaseException:
        worker.end()
        raise
    finally:
        call.finish()
        _put_back(worker)


def _put_back(worker: _Worker) -> None:
    with _lock:
        if len(_idle) < IDLE:
            _idle.append(worker)
            return
    worker.finish()


def _finish_all() -> None:
    while _idle:
        _idle.pop().finish()


def _forget_all() -> None:
    global _threads, _lock
    _threads, _lock = ThreadPoolExecutor(IDLE, "confined"), Lock()
    while _idle:
        _idle.pop().forget()


atexit.register(_finish_all)
os.register_at_fork(after_in_child=_forget_all)


# ---------------------------------------------------------------- in that process


def serve_calls() -> None:
    """Runs the calls that come on standard input until that ends."""
    come, go = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the work prints is no answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_AS, MEMORY)
    while True:
        try:
            request = _read(come)
        except EOFError:
            return
        try:
            seconds, most, work, arguments = pickle.loads(request)
            used = resource.getrusage(resource.RUSAGE_SELF)
            _lower(resource.RLIMIT_CPU, ceil(used.ru_utime + used.ru_stime) + seconds)
            answer = pickle.dumps((True, work(*arguments)), pickle.HIGHEST_PROTOCOL)
            if len(answer) > most:
                raise ConfinedError(f"what is read of it takes more than {most:,} bytes")
        except Exception as error:
            answer = _failure(error)
        _write(go, answer)


def _failure(error: Exception) -> bytes:
    """The error as an answer: itself if it can be pickled, else its message."""
    try:
        answer = pickle.dumps((False, error))
        pickle.loads(answer)
    except Exception:
        return pickle.dumps((False, ValueError(f"{type(error).__name__}: {error}")))
    return answer


def _lower(kind: int, limit: int) -> None:
    most = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _write(pipe: BinaryIO, data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _read(pipe: BinaryIO) -> bytes:
    """Raises EOFError if there is less."""
    head = pipe.read(_LENGTH.size)
    data = pipe.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
    if not data:
        raise EOFError
    return data
