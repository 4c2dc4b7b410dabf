"""Interrupts questions that take too long. One thread watches all: to start one for each would take as long as most."""

from __future__ import annotations

import time
from threading import Condition, Thread

from join_stage.store.reading import Question

IDLE = 30.0
"""Seconds without a question after which the thread ends."""

AGAIN = 0.5
"""Seconds after which a question is interrupted again: it may have begun another statement since."""


class Deadlines:
    """Questions that run. Methods may be called in any thread."""

    def __init__(self) -> None:
        self._changed, self._deadlines = Condition(), dict[Question, float]()
        self._watcher: Thread | None = None
        self._wakes_at = 0.0

    def add(self, question: Question, seconds: float) -> None:
        """Has a question interrupted after so many seconds."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._deadlines[question] = deadline
            if self._watcher is None:
                self._wakes_at = deadline
                self._watcher = Thread(target=self._watch, name="mmqjp deadlines", daemon=True)
                self._watcher.start()
            elif deadline < self._wakes_at:
                self._changed.notify()

    def remove(self, question: Question) -> None:
        """Is told that a question has ended."""
        with self._changed:
            self._deadlines.pop(question, None)

    def interrupt(self) -> bool:
        """Interrupts all questions. Returns whether there were any."""
        with self._changed:
            running = list(self._deadlines)
        for question in running:
            question.interrupt()
        return bool(running)

    def _watch(self) -> None:
        with self._changed:
            idle_since = time.monotonic()
            while (now := time.monotonic()) < idle_since + IDLE:
                for question, deadline in self._deadlines.items():
                    if now >= deadline:
                        question.interrupt()
                        self._deadlines[question] = now + AGAIN
                if self._deadlines:
                    idle_since = now
                self._wakes_at = min(self._deadlines.values(), default=now + IDLE)
                self._changed.wait(self._wakes_at - now)
            self._watcher = None
