"""Ctrl-C in the main thread, put off while a batch is committed. Raised between the commit and the end of what follows
it in memory, KeyboardInterrupt would let a program go on that knows less than its store has."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_outermost: object = None
_handler: Callable[[int, FrameType | None], Any] | None = None
_has_come = False


@contextmanager
def interrupts_last() -> Iterator[None]:
    """Ctrl-C that comes after `hold_interrupts` in the block takes effect at the end of the outermost such block."""
    global _outermost
    is_outermost = _outermost is None and threading.current_thread() is threading.main_thread()
    try:
        if is_outermost:
            _outermost = object()
        yield
    finally:
        if is_outermost:
            _outermost = None
            _release()


def hold_interrupts() -> None:
    """Without a block around it, in another thread, or if Python does not handle Ctrl-C, this does nothing."""
    global _handler
    if _outermost is not None and _handler is None and threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            _handler = handler
            signal.signal(signal.SIGINT, _note)


def _note(number: int, frame: FrameType | None) -> None:
    global _has_come
    _has_come = True


def _release() -> None:
    global _handler, _has_come
    handler, has_come = _handler, _has_come
    _handler, _has_come = None, False
    if handler is not None:
        signal.signal(signal.SIGINT, handler)
        if has_come:
            handler(signal.SIGINT, None)
