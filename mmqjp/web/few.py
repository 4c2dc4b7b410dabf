"""Keeps slow requests few, so that they leave enough threads for all other pages."""

from __future__ import annotations

from threading import BoundedSemaphore
from types import TracebackType

from mmqjp.web.readers import Busy

MOST_SLOW = 10
"""So many slow requests are answered at a time: a quarter of the threads that there are."""


class Few:
    """A context manager for slow requests, in any thread. Nobody waits to enter it: raises Busy if there are `most`."""

    def __init__(self, most: int = MOST_SLOW) -> None:
        self._places = BoundedSemaphore(most)

    def __enter__(self) -> None:
        if not self._places.acquire(blocking=False):
            raise Busy("too much is being looked for: try again in a moment")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._places.release()
