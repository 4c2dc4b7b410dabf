"""Runs work on untrusted input in a separate process, which the system kills after a time limit.

Some libraries that read feeds, pages and robots.txt take quadratic time or worse on hostile input. A thread or a call
cannot be stopped from outside; a process can. Idle processes are kept for later calls.
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
"""Processor seconds of a call, and the bytes of input that add a second."""

MEMORY = 4 << 30
"""Maximum address space in bytes."""

ANSWER, ANSWER_PER_BYTE = 64 << 20, 16
"""Maximum size of an answer, plus the bytes that each byte of input adds: untrusted input may be built to grow."""

IDLE = 2
"""Number of idle processes kept for later calls, and of concurrent calls of event loops."""

_LENGTH = struct.Struct("<Q")


class ConfinedError(InputError, ValueError):
    """The work exceeded its limits or ended its process; the message says which."""


def seconds_for(size: int) -> int:
    return SECONDS + size // BYTES_A_SECOND


def answer_for(size: int) -> int:
    return ANSWER + size * ANSWER_PER_BYTE


def confined(work: Callable[..., _T], *arguments: object, size: int) -> _T:
    """Calls a module's function with about `size` bytes of untrusted input, in a confined process. Returns and raises
    what the function does, and ConfinedError if it exceeds the limits or ends its process."""
    return cast(_T, _asked(_Call(), work, arguments, size))


async def confined_aside(work: Callable[..., _T], *arguments: object, size: int) -> _T:
    """Async `confined`. Cancelling the call ends the work."""
    call = _Call()
    try:
        loop = asyncio.get_running_loop()
        return cast(_T, await loop.run_in_executor(_threads, _asked, call, work, arguments, size))
    except asyncio.CancelledError:
        call.cancel()
        raise


def prepare(work: Callable[..., object]) -> None:
    """Starts a process for later calls of a module's function; it imports the module in the background."""
    _put_back(_Worker(f"import {work.__module__}; "))


class _Worker:
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
        self.end()
        self._process.wait()
        self.leave()

    def forget(self) -> None:
        """For a fork of this process, whose child the worker is not."""
        self._process.returncode = 0
        self.leave()


class _Call:
    """A call that another thread may cancel. It holds a worker only while running."""

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
    """Runs the calls from standard input until it ends."""
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
    """Raises EOFError if the pipe ends early."""
    head = pipe.read(_LENGTH.size)
    data = pipe.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
    if not data:
        raise EOFError
    return data
