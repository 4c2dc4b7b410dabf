"""A question in SQL, answered in a thread of its own for as long as it may take, and interrupted then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any

import pyarrow as pa

from join_stage.store.reading import Bounds, Question, QuestionInterrupted
from mmqjp.loading import QUESTION_THREAD
from mmqjp.service.spool import Answer
from mmqjp.session import Session

SECONDS, ROWS, SIZE = 30.0, 100_000, 64 << 20
"""How long a question may take, how many rows its answer may have, and how many bytes, if nothing else is said."""

PATIENCE = 5.0
"""Seconds that a question has to end after it was interrupted. It is answered then, and its thread left to itself."""

POLL = 0.1
"""Seconds between looks at questions."""


Seconds = Callable[[], float]
"""A clock, in seconds from whenever."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A question, with how many seconds it may take (None: as many as it likes) and how large its answer may be."""

    sql: str
    seconds: float | None = SECONDS
    bounds: Bounds = Bounds(ROWS, SIZE)  # frozen, as this is

    @staticmethod
    def of(arguments: Mapping[str, Any]) -> Asking:
        """What the arguments of a command `query` say."""
        bounds = Bounds(arguments.get("most_rows", ROWS), arguments.get("most_bytes", SIZE))
        return Asking(arguments["sql"], arguments.get("seconds", SECONDS), bounds)


class Asked:
    """A question that is being answered. `told` gets the answer, or the error, once, in whichever thread."""

    def __init__(
        self,
        question: Question,
        seconds: float | None,
        told: Callable[[Answer], object],
        clock: Seconds = time.monotonic,
    ) -> None:
        self._question, self._seconds, self._told, self._clock = question, seconds, told, clock
        self._deadline = None if seconds is None else clock() + seconds
        self._ended: float | None = None
        self._reason = ""
        self._lock, self._is_told = Lock(), False
        self._done = Event()
        self._thread = Thread(target=self._answer, name=QUESTION_THREAD, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Waits so long for the answer at the most; whether it is told."""
        return self._done.wait(seconds)

    def look(self) -> bool:
        """Interrupts the question if its time is over; whether the answer is told."""
        if self._done.is_set():
            return True
        now = self._clock()
        if self._deadline is not None and now >= self._deadline:
            self.end(f"the question took more than {self._seconds:g} s: narrow it down, or give it more with --timeout")
        if self._ended is None:
            return False
        self._question.interrupt()  # again: it may have begun something else meanwhile
        if now >= self._ended + PATIENCE:
            self._tell(Answer(error=self._reason))
        return self._done.is_set()

    def end(self, reason: str) -> None:
        """Interrupts the question for a reason, if it was not for another."""
        if self._ended is None:
            self._ended, self._reason = self._clock(), reason
        self._question.interrupt()

    def _answer(self) -> None:
        try:
            answer = Answer(_plain(self._question.answer()))
        except QuestionInterrupted as error:
            answer = Answer(error=self._reason or str(error))
        except Exception as error:  # whatever it is, whoever asked is to know, and the service goes on
            answer = Answer(error=str(error).strip() or type(error).__name__)
        self._tell(answer)

    def _tell(self, answer: Answer) -> None:
        with self._lock:
            first, self._is_told = not self._is_told, True
        if first:
            try:
                self._told(answer)
            finally:
                self._done.set()


def answered(engine: Session, asking: Asking, clock: Seconds = time.monotonic) -> Answer:
    """The answer to a question, once it is there; it is interrupted if this thread is."""
    found: list[Answer] = []
    asked = Asked(engine.question(asking.sql, asking.bounds), asking.seconds, found.append, clock)
    try:
        while not asked.wait(POLL):
            asked.look()
    except BaseException:
        asked.end("interrupted")
        asked.wait(PATIENCE)
        raise
    return found[0]


def _plain(found: pa.Table) -> dict[str, Any]:
    """An answer as it is written down. Columns may have the same name."""
    columns = [column.to_pylist() for column in found.columns]
    return {"columns": found.column_names, "rows": [list(row) for row in zip(*columns, strict=True)]}
