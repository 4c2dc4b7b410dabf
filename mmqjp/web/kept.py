"""Keeps what is made of a store until it changes: a bounded number of values, each for a version of what it shows."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

from mmqjp.service.sql_question import MonotonicClock

Made = TypeVar("Made")

MOST, SECONDS = 2_000, 60.0
"""The most values that are kept, and for how long at most: documents are dropped now and then, which has no version."""


class Kept:
    """Values by key. Methods may be called in any thread."""

    def __init__(self, most: int = MOST, seconds: float = SECONDS, clock: MonotonicClock = time.monotonic) -> None:
        self._most, self._seconds, self._clock = most, seconds, clock
        self._lock = Lock()
        self._values: OrderedDict[Hashable, tuple[object, float, Any]] = OrderedDict()

    def get(self, key: Hashable, version: object, make: Callable[[], Made]) -> Made:
        """Returns the value of a key, which is made if it is not kept for this version."""
        now = self._clock()
        with self._lock:
            found = self._values.get(key)
            if found is not None and found[0] == version and now < found[1] + self._seconds:
                self._values.move_to_end(key)
                value: Made = found[2]
                return value
        value = make()
        with self._lock:
            self._values[key] = version, now, value
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value
