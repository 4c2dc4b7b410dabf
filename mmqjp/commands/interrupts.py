"""Ctrl-C while a library works for us: each makes something else of it, and we need to know that it was one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt for any error that follows on Ctrl-C in the block.

    (DuckDB, interrupted in a query, raises a RuntimeError.) Where the signal has another handler than Python's own, or
    is ignored, it stays so.
    """
    seen = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread: signals do not come here
        yield
        return
    try:
        yield
    except Exception as error:
        if seen:
            raise KeyboardInterrupt from error
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # Spark sets a handler of its own
            signal.signal(signal.SIGINT, signal.default_int_handler)
