"""Ctrl-C, SIGTERM and SIGHUP: while a library works for us, which makes something else of them, and as wishes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt on Ctrl-C or SIGTERM in the block, and for any error that follows on it.

    (DuckDB, interrupted in a query, raises a RuntimeError.) Where Ctrl-C has another handler than Python's own, or is
    ignored, both stay as they are.
    """
    seen = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    before = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, note)
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
        for number, handler in before.items():
            if signal.getsignal(number) is note:  # Spark sets a handler of its own
                signal.signal(number, handler)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets in the block; a second one ends the process as if there were no block."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    try:
        for number in before:
            signal.signal(number, note)
    except ValueError:  # not the main thread: signals do not come here
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def hangups(stop: threading.Event) -> Iterator[Callable[[], bool]]:
    """Whether SIGHUP has come in the block since that was last asked. If it came because the terminal has gone that the
    process was started in, it sets `stop`. Where it is ignored, as under nohup, it stays so."""
    terminal = next((number for number in range(3) if os.isatty(number)), None)
    before = signal.getsignal(signal.SIGHUP)
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if terminal is not None and not os.isatty(terminal):
            stop.set()

    def has_come() -> bool:
        nonlocal asked
        had, asked = asked, False
        return had

    try:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, note)
    except ValueError:  # not the main thread: signals do not come here
        before = signal.SIG_IGN
    try:
        yield has_come
    finally:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, before)
