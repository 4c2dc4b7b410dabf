"""Runs the questions put to a service, in SQL and others, beside its loop and each in its own thread."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from types import TracebackType

from mmqjp.service.backtest_question import BACKTEST, BacktestQuestion
from mmqjp.service.beside import BESIDE, LOGGED, Beside
from mmqjp.service.log import Log
from mmqjp.service.spool import Command, CommandResult, Spool
from mmqjp.service.sql_question import MAX_SECONDS, POLL, Answering, MonotonicClock, RunningQuestion, SqlQuestion
from mmqjp.session import Session

QUERY = "query"
"""The command that is a question in SQL."""

FOR_PAGE = "for_page"
"""The argument of questions of a page that another process serves. They are not logged: each page asks some, and what
people ask there is theirs."""

RUN_BESIDE = (QUERY, BACKTEST, *BESIDE)
"""The commands that this runs."""

MAX_RUNNING = 2
"""How many questions run at the same time by default. The others wait."""

ABANDONED = "nobody waits for the answer any more"
ENDING = "the service is stopping: ask again later"
MEMORY_NEEDED = "a batch needs the memory: ask again later, or for less"


def question_of(engine: Session, command: Command) -> tuple[Answering, float | None]:
    """Returns the question that a command puts, and its time in seconds (None: no limit). Raises KeyError, TypeError or
    ValueError if it is none."""
    if command.do == BACKTEST:
        return BacktestQuestion(engine, command.arguments), None
    if command.do in BESIDE:
        return Beside(engine, BESIDE[command.do], command.arguments), command.arguments.get("seconds", MAX_SECONDS)
    asked = SqlQuestion.of(command.arguments)
    return engine.question(asked.sql, asked.bounds), asked.seconds


class QuestionRunner:
    """A context manager: inside it, the commands of a spool that are questions are answered.

    No question may take more than `max_seconds`, whatever it asks for (None: as long as it asks for). At most
    `max_running` run at the same time, and one back-test beside them, which has limits of its own. `log`
    must be safe to call from several threads.
    """

    def __init__(
        self,
        engine: Session,
        spool: Spool,
        log: Log,
        max_seconds: float | None = None,
        clock: MonotonicClock = time.monotonic,
        *,
        max_running: int = MAX_RUNNING,
    ) -> None:
        self._engine, self._spool, self._log, self._clock = engine, spool, log, clock
        self._max_seconds, self._max_running = max_seconds, max_running
        self._running: dict[str, RunningQuestion] = {}
        self._missed: set[str] = set()
        self._backtests: set[str] = set()
        """Those that are running which are back-tests."""
        self._stop = Event()
        self._thread = Thread(target=self._run, name="mmqjp questions", daemon=True)

    def __enter__(self) -> QuestionRunner:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._end_all(ENDING)

    def free_memory(self) -> bool:
        """Ends all questions, for a batch that has run out of memory. Returns whether there were any."""
        return self._end_all(MEMORY_NEEDED)

    def step(self) -> None:
        """Starts waiting questions, and ends those that took too long or that nobody waits for.

        A command has gone when it was missed twice: some file systems miss a file while another one is removed.
        """
        missed: set[str] = set()
        waiting = {command.id: command for command in self._spool.waiting_of(*RUN_BESIDE)}
        for id, question in list(self._running.items()):
            if question.look():
                del self._running[id]
                self._backtests.discard(id)
            elif id not in waiting and not self._spool.is_waiting(id):
                missed.add(id)
                if id in self._missed:
                    question.end(ABANDONED)
        self._missed = missed
        for id, command in waiting.items():
            if id not in self._running and self._has_room(command):
                self._begin(command)

    def _has_room(self, command: Command) -> bool:
        if command.do == BACKTEST:
            return not self._backtests
        return len(self._running) - len(self._backtests) < self._max_running

    def _begin(self, command: Command) -> None:
        report = partial(self._report, command)
        try:
            question, asked_seconds = question_of(self._engine, command)
            limits = [seconds for seconds in (asked_seconds, self._max_seconds) if seconds is not None]
            most = None if command.do == BACKTEST else min(limits, default=None)
            self._running[command.id] = RunningQuestion(question, most, report, self._clock)
            if command.do == BACKTEST:
                self._backtests.add(command.id)
        except (KeyError, TypeError, ValueError) as error:
            report(CommandResult(error=f"not a question: {error}"))

    def _report(self, command: Command, result: CommandResult) -> None:
        error = {} if result.error is None else {"error": result.error}
        try:
            self._spool.answer(command, result)
        except OSError as failure:  # such as a full disk: whoever asked times out, and the service goes on
            error = {"error": str(failure)}
            with suppress(OSError):
                self._spool.withdraw(command)
        if command.arguments.get(FOR_PAGE):
            return
        asked = {key: value for key, value in command.arguments.items() if key in LOGGED}
        self._log.event("command", do=command.do, **asked, **error)

    def _run(self) -> None:
        while not self._stop.wait(POLL):
            with suppress(OSError):  # what cannot be read now may be readable next time
                self.step()

    def _end_all(self, reason: str) -> bool:
        running = list(self._running.values())
        for question in running:
            question.end(reason)
        for question in running:
            while not question.wait(POLL) and not question.look():
                pass
        return bool(running)
