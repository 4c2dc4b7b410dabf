"""Keeps for a moment what the service answered, so that many visitors cost it one question."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any

from mmqjp.service.sql_question import MonotonicClock
from mmqjp.web.readers import Ask

SECONDS, LATE = 1.0, 10.0
"""So long an answer serves again, and so long while a newer one is under way."""

MOST = 100
"""The most answers that are kept."""


@dataclass(slots=True)
class _Told:
    """An answer, or who asks for it, and when that was; and whether it is being asked for again."""

    asked_at: float
    answer: Future[Any] = field(default_factory=Future)
    is_renewed: bool = False


class RecentlyTold:
    """Puts questions that change nothing, and keeps their answers. Whoever asks while a question is under way gets its
    answer. Methods may be called in any thread."""

    def __init__(self, ask: Ask, clock: MonotonicClock = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self._lock = Lock()
        self._kept: OrderedDict[str, _Told] = OrderedDict()

    def ask(self, do: str, arguments: Mapping[str, Any]) -> Any:
        """Returns what the service answers, or answered within the last second, or within LATE if it is asked again
        meanwhile: nobody may change it. Raises what asking raises, each time anew."""
        key, now = json.dumps([do, arguments], sort_keys=True), self._clock()
        with self._lock:
            told = self._kept.get(key)
            age = 0.0 if told is None or not told.answer.done() else now - told.asked_at
            is_asked = told is None or age >= LATE
            if told is None or is_asked:
                told = self._kept[key] = _Told(now)
                self._kept.move_to_end(key)
                while len(self._kept) > MOST:
                    self._kept.popitem(last=False)
            is_renewed = age >= SECONDS and not is_asked and not told.is_renewed
            told.is_renewed = told.is_renewed or is_renewed
        if is_asked:
            self._put(key, told, do, arguments)
        elif is_renewed:
            Thread(target=self._renew, args=(key, told, now, do, arguments), name="mmqjp told", daemon=True).start()
        return told.answer.result()

    def _renew(self, key: str, before: _Told, now: float, do: str, arguments: Mapping[str, Any]) -> None:
        new = _Told(now)
        self._put(key, new, do, arguments)
        with self._lock:
            if self._kept.get(key) is not before:
                return  # it was forgotten
            if new.answer.exception() is None:
                self._kept[key] = new
            else:
                before.is_renewed = False

    def _put(self, key: str, new: _Told, do: str, arguments: Mapping[str, Any]) -> None:
        try:
            new.answer.set_result(self._ask(do, arguments))
        except BaseException as error:  # whoever waits must learn of any error
            self._let_go(key, new)
            new.answer.set_exception(error)

    def forget(self) -> None:
        """Forgets all: something has changed. What is under way is not waited for any more."""
        with self._lock:
            self._kept.clear()

    def _let_go(self, key: str, told: _Told) -> None:
        with self._lock:
            if self._kept.get(key) is told:
                del self._kept[key]
