"""Runs work on untrusted input in a separate process with little memory, which the system kills after a time limit.

Some libraries that read feeds, pages and robots.txt take quadratic time or worse on hostile input. A thread or a call
cannot be stopped from outside; a process can. It answers with data only (a line of JSON for each value), so that an
attacker who takes over such a process gets no further. Idle processes are reused.
"""

from __future__ import annotations

import asyncio
import atexit
import io
import json
import os
import pickle
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import ceil
from pathlib import Path
from threading import Lock, Timer
from typing import Any, BinaryIO, cast

from common import child
from common.errors import InputError, InvalidValue, OperationalError

SECONDS, BYTES_A_SECOND = 10, 256 * 1024  # CPU seconds that a call may take, and input bytes that add another second
STUCK = 30  # a process that uses no CPU is killed after this multiple of its CPU seconds

MEMORY, LEAST_MEMORY = 512 << 20, 128 << 20
"""Default and least maximum of the memory (address space) of a process, in bytes."""

MEMORY_VARIABLE = "MMQJP_FEED_MEMORY"
"""The environment variable with that maximum; child processes and executors inherit it."""

ANSWER, ANSWER_PER_BYTE = 64 << 20, 16
"""Maximum size of an answer, and what each byte of input adds to it: untrusted input may be made to expand."""

IDLE = 2  # number of idle processes kept for later calls, and of concurrent calls of event loops

_HEAD = struct.Struct("<QB")
"""The length of a message, and these flags in an answer (0 in a request)."""

_FAILED, _MANY, _FILLED = 1, 2, 4

_LONGEST_MESSAGE = 1_000

_NONSENSE = "its process gave an invalid answer"


class ConfinedError(InputError, ValueError):
    """The work raised an error, exceeded its limits or ended its process; the message says which."""


class HurriedError(OperationalError, RuntimeError):
    """The work takes longer than `hurried` allows; it may be tried again with more time."""


_hurry: ContextVar[int | None] = ContextVar("hurry", default=None)


@contextmanager
def hurried(seconds: int | None) -> Iterator[None]:
    """Limits the CPU seconds of calls (None: by input size); beyond that they raise HurriedError."""
    token = _hurry.set(seconds)
    try:
        yield
    finally:
        _hurry.reset(token)


def seconds_for(size: int) -> int:
    return SECONDS + size // BYTES_A_SECOND


def answer_for(size: int) -> int:
    return ANSWER + size * ANSWER_PER_BYTE


def confined(work: Callable[..., Any], *arguments: object, size: int) -> Any:
    """Calls a module's function on about `size` bytes of untrusted input in a confined process. Returns its result
    after a round trip through JSON; an iterator's values are decoded lazily. Raises ConfinedError, with the message, if
    the function raises, exceeds the limits or ends its process."""
    return _asked(_Call(), work, arguments, size)


async def confined_aside(work: Callable[..., Any], *arguments: object, size: int) -> Any:
    """Async `confined`. Cancelling the call ends the work."""
    call = _Call()
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, _asked, call, work, arguments, size)
    except asyncio.CancelledError:
        call.cancel()
        raise


def memory_limit() -> int:
    """Raises InvalidValue if the variable's value is not a number of bytes, or is too small."""
    text = os.environ.get(MEMORY_VARIABLE, "")
    if not text:
        return MEMORY
    if not (text.isascii() and text.isdecimal() and int(text[:20]) >= LEAST_MEMORY):
        cause = f"{MEMORY_VARIABLE} is {text!r:.80}"
        raise InvalidValue(f"{cause}: write a number of bytes, {LEAST_MEMORY:,} or more")
    return int(text[:20])


def prepare(work: Callable[..., object]) -> None:
    """Starts a process for later calls of a module's function; it imports the module in the background."""
    _put_back(_Worker(f"import {work.__module__}; "))


class _Worker:
    def __init__(self, first: str = "") -> None:
        self._memory = memory_limit()
        code = f"{first}from feeds.confined import serve_calls; serve_calls({self._memory})"
        self._process = child.start([sys.executable, "-c", code])
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        self._ended = self._retired = False

    def is_well(self) -> bool:
        return not (self._ended or self._retired) and self._memory == memory_limit() and self._process.poll() is None

    def ask(self, size: int, work: Callable[..., object], arguments: tuple[object, ...]) -> Any:
        seconds, most, hurry = seconds_for(size), answer_for(size), _hurry.get()
        allowed = seconds if hurry is None else min(hurry, seconds)
        stuck = Timer(allowed * STUCK, self.end)
        stuck.daemon = True
        stuck.start()
        try:
            with suppress(BrokenPipeError):  # its exit status says more
                _write(self._to, [pickle.dumps((allowed, most, work, arguments), pickle.HIGHEST_PROTOCOL)])
            flags, answer = _read(self._from, most + _LONGEST_MESSAGE * 8)
        except EOFError:
            status = self._process.wait()
            if status == -signal.SIGXCPU or self._ended:
                late = HurriedError if allowed < seconds else ConfinedError
                raise late(f"reading it takes more than {allowed * (STUCK if self._ended else 1):g} s") from None
            memory = f"{self._memory >> 20:,} MiB"
            may_be = f", as it may if {memory} of memory do not suffice" if status < 0 else ""
            raise ConfinedError(f"reading it ended its process (status {status}){may_be}") from None
        except OverflowError:
            self._retired = True
            raise ConfinedError(_NONSENSE) from None
        finally:
            stuck.cancel()
        if flags & _FILLED:  # too little memory is left for another call
            self._retired = True
        values = self._decoded(answer)
        if flags & _MANY and not flags & _FAILED:
            return values
        for value in values:
            if flags & _FAILED:
                raise ConfinedError(str(value))
            return value
        self._retired = True
        raise ConfinedError(_NONSENSE)

    def _decoded(self, answer: bytes) -> Iterator[Any]:
        for line in io.BytesIO(answer):
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                self._retired = True  # it may be exiting already, which the next input must not be blamed for
                raise ConfinedError(_NONSENSE) from None

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
        """Call in a fork of this process: the worker is not its child."""
        self._process.returncode = 0
        self.leave()


class _Call:
    """A call that another thread may cancel. It holds a worker only while running."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._cancelled = False

    def hold(self, worker: _Worker | None) -> None:
        with _lock:
            self._worker = worker
            if self._cancelled and worker is not None:
                worker.end()

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


def _asked(call: _Call, work: Callable[..., object], arguments: tuple[object, ...], size: int) -> Any:
    worker = _taken()
    call.hold(worker)
    try:
        return worker.ask(size, work, arguments)
    except Exception:
        raise  # the process survives errors of the work
    except BaseException:
        worker.end()
        raise
    finally:
        call.hold(None)
        _put_back(worker)


def _put_back(worker: _Worker) -> None:
    with _lock:
        if worker.is_well() and len(_idle) < IDLE:
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


# ---------------------------------------------------------------- in the confined process


def serve_calls(memory: int) -> None:
    come, go = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that prints of the work do not mix with answers
    child.lower(resource.RLIMIT_CORE, 0)
    child.lower(resource.RLIMIT_AS, memory)
    while True:
        try:
            _, request = _read(come)
        except EOFError:
            return
        flags, lines = _answer(request, memory)
        _write(go, lines, flags | (_FILLED if _is_filled(memory) else 0))


def _answer(request: bytes, memory: int) -> tuple[int, list[bytes]]:
    lines: list[bytes] = []
    flags = _FAILED
    try:
        seconds, most, work, arguments = pickle.loads(request)
        used = resource.getrusage(resource.RUSAGE_SELF)
        child.lower(resource.RLIMIT_CPU, ceil(used.ru_utime + used.ru_stime) + seconds)
        found = work(*arguments)
        is_many, size = isinstance(found, Iterator), 0
        for value in found if is_many else (found,):
            lines.append(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
            size += len(lines[-1])
            if size > most:
                raise ConfinedError(f"its content takes more than {most:,} bytes")
        return _MANY if is_many else 0, lines
    except MemoryError:
        text, flags = f"reading it takes more than {memory >> 20:,} MiB of memory", _FAILED | _FILLED
    except ValueError as error:
        text = str(error) or type(error).__name__
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    lines.clear()
    return flags, [json.dumps(text[:_LONGEST_MESSAGE]).encode()]


def _is_filled(memory: int) -> bool:
    """Whether this process has grown so much that the next input may not fit through no fault of its own."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return False
    return pages * resource.getpagesize() > memory // 3


def _write(pipe: BinaryIO, pieces: list[bytes], flags: int = 0) -> None:
    pipe.write(_HEAD.pack(sum(map(len, pieces)), flags))
    pipe.writelines(pieces)
    pipe.flush()


def _read(pipe: BinaryIO, most: int | None = None) -> tuple[int, bytes]:
    """The flags of a message and the message. Raises EOFError if the pipe ends, OverflowError beyond `most` bytes."""
    head = pipe.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise EOFError
    size, flags = _HEAD.unpack(head)
    if most is not None and size > most:
        raise OverflowError
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return flags, data
