"""The questions that are put to a service, answered beside its loop, each in a thread of its own."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from types import TracebackType

from mmqjp.service.asking import POLL, Asked, Asking, Seconds
from mmqjp.service.log import Log
from mmqjp.service.spool import Answer, Command, Spool
from mmqjp.session import Session

QUERY = "query"
"""The command that is a question in SQL."""

AT_ONCE = 2
"""So many questions are answered at a time, if nothing else is said; the others wait."""

GIVEN_UP = "nobody waits for the answer any longer"
ENDING = "the service ends: ask again later"
NEEDED = "a batch needs the memory: ask again later, or for less"


class Questions:
    """Answers the commands `query` of a spool while it is entered. `most` seconds is what any of them may take,
    whatever it asks for (None: as long as it asks for). `log` must stand several threads."""

    def __init__(
        self,
        engine: Session,
        spool: Spool,
        log: Log,
        most: float | None = None,
        clock: Seconds = time.monotonic,
        *,
        at_once: int = AT_ONCE,
    ) -> None:
        self._engine, self._spool, self._log, self._most, self._clock = engine, spool, log, most, clock
        self._at_once = at_once
        self._running: dict[str, Asked] = {}
        self._stop = Event()
        self._thread = Thread(target=self._run, name="mmqjp questions", daemon=True)

    def __enter__(self) -> Questions:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._end_all(ENDING)

    def make_room(self) -> bool:
        """Ends all questions for a batch that has run out of memory; whether there were any."""
        return self._end_all(NEEDED)

    def step(self) -> None:
        """Takes up what is asked, and ends what took too long or nobody waits for."""
        waiting = {command.id: command for command in self._spool.asked(QUERY)}
        for id, asked in list(self._running.items()):
            if asked.look():
                del self._running[id]
            elif id not in waiting:
                asked.end(GIVEN_UP)
        for id, command in waiting.items():
            if id not in self._running and len(self._running) < self._at_once:
                self._begin(command)

    def _begin(self, command: Command) -> None:
        told = partial(self._told, command)
        try:
            asking = Asking.of(command.arguments)
            given = [seconds for seconds in (asking.seconds, self._most) if seconds is not None]
            question = self._engine.question(asking.sql, asking.bounds)
            self._running[command.id] = Asked(question, min(given, default=None), told, self._clock)
        except (KeyError, TypeError, ValueError) as error:
            told(Answer(error=f"it is no question: {error}"))

    def _told(self, command: Command, answer: Answer) -> None:
        error = {} if answer.error is None else {"error": answer.error}
        try:
            self._spool.answer(command, answer)
        except OSError as failure:  # the disk is full: whoever asked gives up, and the service goes on
            error = {"error": str(failure)}
            with suppress(OSError):
                self._spool.withdraw(command)
        self._log.event("command", do=command.do, sql=command.arguments.get("sql"), **error)

    def _run(self) -> None:
        while not self._stop.wait(POLL):
            with suppress(OSError):  # what cannot be read now may be the next time
                self.step()

    def _end_all(self, reason: str) -> bool:
        running = list(self._running.values())
        for asked in running:
            asked.end(reason)
        for asked in running:
            while not asked.wait(POLL) and not asked.look():
                pass
        return bool(running)
