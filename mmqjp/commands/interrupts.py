"""Handles Ctrl-C, SIGTERM and SIGHUP: as interrupts of a library call, and as requests to stop or to reopen files."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt on Ctrl-C or SIGTERM in the block, and instead of any error that follows.

    (DuckDB raises a RuntimeError if it is interrupted in a query.) If Ctrl-C is ignored, or has a handler other than
    Python's, both signals keep their handlers.
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
    except ValueError:  # not the main thread: it receives no signals
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
            if signal.getsignal(number) is note:  # Spark may have set its own handler
                signal.signal(number, handler)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C or SIGTERM sets. A second signal ends the process as usual."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    try:
        for number in before:
            signal.signal(number, note)
    except ValueError:  # not the main thread: it receives no signals
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def hangups(stop: threading.Event) -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether SIGHUP has arrived since it was last called.

    If SIGHUP arrives because the terminal of the process was closed, `stop` is set. If SIGHUP is ignored, as under
    nohup, it stays ignored.
    """
    terminal = next((number for number in range(3) if os.isatty(number)), None)
    before = signal.getsignal(signal.SIGHUP)
    arrived = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal arrived
        arrived = True
        if terminal is not None and not os.isatty(terminal):
            stop.set()

    def has_arrived() -> bool:
        nonlocal arrived
        result, arrived = arrived, False
        return result

    try:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, note)
    except ValueError:  # not the main thread: it receives no signals
        before = signal.SIG_IGN
    try:
        yield has_arrived
    finally:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, before)
