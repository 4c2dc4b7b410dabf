"""A question: it runs in its own thread and is interrupted when its time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any, Protocol

import pyarrow as pa

from join_stage.store.reading import Bounds, QuestionInterrupted
from mmqjp.loading import QUESTION_THREAD
from mmqjp.service.json_values import column_values
from mmqjp.service.spool import CommandResult

MAX_SECONDS, MAX_ROWS, MAX_BYTES = 30.0, 100_000, 64 << 20
"""The default limits of a question: its time in seconds, and the rows and bytes of its answer."""

GRACE = 5.0
"""Seconds that an interrupted question has to end. After that it is answered with an error and its thread abandoned."""

POLL = 0.1
"""Seconds between two looks at a running question."""

MonotonicClock = Callable[[], float]
"""Returns seconds since an arbitrary point, like `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class SqlQuestion:
    """A question and its limits: its time in seconds (None: no limit) and the size of its answer."""

    sql: str
    seconds: float | None = MAX_SECONDS
    bounds: Bounds = Bounds(MAX_ROWS, MAX_BYTES)  # frozen, as this is

    @staticmethod
    def of(arguments: Mapping[str, Any]) -> SqlQuestion:
        """The question that the arguments of a `query` command describe."""
        bounds = Bounds(arguments.get("most_rows", MAX_ROWS), arguments.get("most_bytes", MAX_BYTES))
        return SqlQuestion(arguments["sql"], arguments.get("seconds", MAX_SECONDS), bounds)


class Answering(Protocol):
    """What answers a question: a `Question` of a store, or anything else that may be interrupted."""

    def answer(self) -> Any:
        """Returns the answer, as rows or as JSON has it. Raises QuestionInterrupted soon after it was interrupted."""

    def interrupt(self) -> None:
        """Ends it. May be called from any thread, at any time, and repeatedly."""


class RunningQuestion:
    """A question that runs in its own thread. `report` receives its result or error, exactly once, from any thread."""

    def __init__(
        self,
        question: Answering,
        seconds: float | None,
        report: Callable[[CommandResult], object],
        clock: MonotonicClock = time.monotonic,
    ) -> None:
        self._question, self._seconds, self._report, self._clock = question, seconds, report, clock
        self._deadline = None if seconds is None else clock() + seconds
        self._ended_at: float | None = None
        self._reason = ""
        self._lock, self._is_reported = Lock(), False
        self._done = Event()
        self._thread = Thread(target=self._run, name=QUESTION_THREAD, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Waits up to `seconds` for the result. Returns whether it was reported."""
        return self._done.wait(seconds)

    def look(self) -> bool:
        """Interrupts the question if its time is over. Returns whether the result was reported."""
        if self._done.is_set():
            return True
        now = self._clock()
        if self._deadline is not None and now >= self._deadline:
            self.end(f"the question took more than {self._seconds:g} s: narrow it down, or give it more with --timeout")
        if self._ended_at is None:
            return False
        self._question.interrupt()  # again: it may have begun another statement since
        if now >= self._ended_at + GRACE:
            self._finish(CommandResult(error=self._reason))
        return self._done.is_set()

    def end(self, reason: str) -> None:
        """Interrupts the question. The first reason given is the one that is reported."""
        if self._ended_at is None:
            self._ended_at, self._reason = self._clock(), reason
        self._question.interrupt()

    def _run(self) -> None:
        try:
            result = CommandResult(_as_json(self._question.answer()))
        except QuestionInterrupted as error:
            result = CommandResult(error=self._reason or str(error))
        except Exception as error:  # whoever asked must learn of any error, and the service goes on
            result = CommandResult(error=str(error).strip() or type(error).__name__)
        self._finish(result)

    def _finish(self, result: CommandResult) -> None:
        with self._lock:
            first, self._is_reported = not self._is_reported, True
        if first:
            try:
                self._report(result)
            finally:
                self._done.set()


def answered(question: Answering, seconds: float | None, clock: MonotonicClock = time.monotonic) -> CommandResult:
    """Runs a question and returns its result. If this thread is interrupted, so is the question."""
    found: list[CommandResult] = []
    running = RunningQuestion(question, seconds, found.append, clock)
    try:
        while not running.wait(POLL):
            running.look()
    except BaseException:
        running.end("interrupted")
        running.wait(GRACE)
        raise
    return found[0]


def _as_json(found: Any) -> Any:
    """An answer as JSON can hold it: rows as lists. Two columns may have the same name."""
    if not isinstance(found, pa.Table):
        return found
    columns = [column_values(column) for column in found.columns]
    return {"columns": found.column_names, "rows": [list(row) for row in zip(*columns, strict=True)]}
