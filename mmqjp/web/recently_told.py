"""Keeps for a second what the service answered, so that many visitors cost it one question."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from mmqjp.service.sql_question import MonotonicClock
from mmqjp.web.readers import Ask

SECONDS = 1.0
"""So long an answer serves again."""

MOST = 100
"""The most answers that are kept."""


@dataclass(slots=True)
class _Told:
    """An answer, or who asks for it, and when that was."""

    asked_at: float
    answer: Future[Any] = field(default_factory=Future)


class RecentlyTold:
    """Puts questions that change nothing, and keeps their answers. Whoever asks while a question is under way gets its
    answer. Methods may be called in any thread."""

    def __init__(self, ask: Ask, clock: MonotonicClock = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self._lock = Lock()
        self._kept: OrderedDict[str, _Told] = OrderedDict()

    def ask(self, do: str, arguments: Mapping[str, Any]) -> Any:
        """Returns what the service answers, or answered within the last second: nobody may change it. Raises what
        asking raises, each time anew."""
        key, now = json.dumps([do, arguments], sort_keys=True), self._clock()
        with self._lock:
            told = self._kept.get(key)
            if is_asked := told is None or (told.answer.done() and now >= told.asked_at + SECONDS):
                told = self._kept[key] = _Told(now)
                self._kept.move_to_end(key)
                while len(self._kept) > MOST:
                    self._kept.popitem(last=False)
        assert told is not None
        if is_asked:
            try:
                told.answer.set_result(self._ask(do, arguments))
            except BaseException as error:  # whoever waits must learn of any error
                self._let_go(key, told)
                told.answer.set_exception(error)
        return told.answer.result()

    def forget(self) -> None:
        """Forgets all: something has changed. What is under way is not waited for any more."""
        with self._lock:
            self._kept.clear()

    def _let_go(self, key: str, told: _Told) -> None:
        with self._lock:
            if self._kept.get(key) is told:
                del self._kept[key]
