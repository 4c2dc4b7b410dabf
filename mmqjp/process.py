"""Process-level helpers: exit, and single-line text. The process can end on Ctrl-C during imports, while queries still
run, and without freeing memory. Text is formatted for single lines of a terminal or JSON. Standard output is also a
file of bytes, and may be closed or go away."""

from __future__ import annotations

import atexit
import errno
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import BinaryIO

from common.tools import hidden

INTERRUPTED = 130

QUESTION_THREAD = "mmqjp question"  # name of threads that answer other processes' queries


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handles signals inside, in the main thread: others receive none."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers:
            signal.signal(number, handler)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for number, previous in before.items():
            if signal.getsignal(number) in (handler, signal.SIG_DFL, signal.default_int_handler):  # not one of Spark's
                signal.signal(number, previous)


@contextmanager
def ending_when_interrupted() -> Iterator[None]:
    """Makes Ctrl-C end the process at once inside, if Python's own handler is installed. Nothing is open yet, and a
    library being imported may swallow a KeyboardInterrupt."""

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, b"mmqjp: interrupted\n")
        os._exit(INTERRUPTED)

    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with handling(end, signal.SIGINT) if is_ours else nullcontext():
        yield


def without_pandas() -> None:
    """Lets pyarrow look up pandas, once, while pandas is hidden (see `common.tools`)."""
    with hidden("pandas"):
        import pyarrow

        pyarrow.array([])


def end_past_questions(status: int) -> None:
    """Exits at once if a QUESTION_THREAD still runs a DuckDB query that ignores interrupts; returning during Python's
    shutdown, it would abort the process."""
    if any(thread.name == QUESTION_THREAD for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
                stream.flush()
        os._exit(status)


def end_without_freeing(status: int) -> None:
    """Exits as Python does, but without freeing objects one by one: for many queries, that takes up to a quarter of
    their registration time. Returns if a thread still runs or output cannot be written."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        return
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(status)


def pluralise(number: int, noun: str, several: str | None = None) -> str:
    """`1 feed`, `2 feeds`; `several` is an irregular plural."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def printable_line(text: str) -> str:
    """Removes line breaks and other control characters."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in line)


def printable_text(text: str) -> str:
    """Returns the text with all its spaces, without control characters, and with line breaks and tabs as escapes.

    >>> print(printable_text("a  b\\n"))
    a  b\\n
    """
    escapes = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(char if char.isprintable() else escapes.get(char, "\ufffd") for char in text)


def json_line(values: Mapping[str, object]) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"


class _Closed(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise OSError(errno.EBADF, "closed", "standard output")


def reserve_standard_files() -> None:
    """Opens closed standard files, so that no other file gets their numbers. Printing to a closed standard output is an
    error; to a closed standard error it is not."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", write_through=True)
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Closed()), "utf-8", write_through=True)


def standard_output() -> BinaryIO:
    """Returns standard output as a binary file. Raises OSError if it is closed."""
    raw = getattr(sys.stdout.buffer, "raw", None)
    if isinstance(raw, _Closed):
        raw.write(b"")
    return sys.stdout.buffer


def flush_standard_output() -> None:
    """Flushes it. On failure, raises OSError and replaces the stream, so that Python does not fail again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")
        raise
