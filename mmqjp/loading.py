"""Ctrl-C while modules are loaded, which takes a second: the process ends at once, in one line."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130


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


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"mmqjp: interrupted\n")
    os._exit(INTERRUPTED)
