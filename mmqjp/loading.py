"""Ends the process: at Ctrl-C while modules are loaded, while queries still run, and without freeing its memory."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from common.unneeded import hidden

INTERRUPTED = 130

QUESTION_THREAD = "mmqjp question"
"""The name of threads that answer queries of other processes."""


@contextmanager
def ending_when_interrupted() -> Iterator[None]:
    """Makes Ctrl-C end the process at once inside, if Python's own handler is installed.

    Nothing is open yet that must be closed, and a library that is being imported may swallow a KeyboardInterrupt.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        signal.signal(signal.SIGINT, _end)
    except ValueError:  # signals only arrive in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def without_pandas() -> None:
    """Has pyarrow look for pandas, which it does once, while pandas is hidden (see `common.unneeded`)."""
    with hidden("pandas"):
        import pyarrow

        pyarrow.array([])


def end_past_questions(status: int) -> None:
    """Ends the process at once if a thread named QUESTION_THREAD still runs a DuckDB query that ignores interrupts.

    If the query returned while Python shuts down, it would abort the process.
    """
    if any(thread.name == QUESTION_THREAD for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
                stream.flush()
        os._exit(status)


def end_without_freeing(status: int) -> None:
    """Ends the process as Python does, but does not free its objects one by one.

    The objects of very many queries refer to each other. Finding out that nothing needs them takes up to a quarter of
    the time that it took to register the queries. Returns if a thread still runs, or if output cannot be written.
    """
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


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"mmqjp: interrupted\n")
    os._exit(INTERRUPTED)
