"""How the process begins and ends: Ctrl-C while modules are loaded, and queries that go on at the end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 130

QUESTION = "mmqjp question"
"""What the threads are called in which queries of others are answered."""


@contextmanager
def ending_when_interrupted() -> Iterator[None]:
    """Ctrl-C ends the process inside, where it has Python's own handler: nothing is open that would have to be closed,
    and a library that is being imported may make something else of a KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        signal.signal(signal.SIGINT, _end)
    except ValueError:  # not the main thread: signals do not come here
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_past_questions(status: int) -> None:
    """Ends the process at once if a thread called QUESTION is still in a query of DuckDB's that heeds no interrupt: if
    that returns while Python ends, it aborts the process."""
    if any(thread.name == QUESTION for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
                stream.flush()
        os._exit(status)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"mmqjp: interrupted\n")
    os._exit(INTERRUPTED)
