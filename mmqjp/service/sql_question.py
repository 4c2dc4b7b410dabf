"""Questions that a service answers beside its batches, each in its own thread with limits on time and size. They are
SQL over the store, why and why-not, and back-tests in a process of their own. QuestionRunner
starts them from the spool and interrupts those that exceed their time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from threading import Event, Lock, Thread
from typing import Any

import pyarrow as pa

from join_stage.store.protocol import UNBOUNDED, Bounds, Question, QuestionInterrupted
from mmqjp.backtest import backtest_store, prepared
from mmqjp.engine import Session
from mmqjp.present.output_why import why_output
from mmqjp.present.why_not import explain_missing_output, query_funnel
from mmqjp.process import QUESTION_THREAD
from mmqjp.service.log import Log, column_values
from mmqjp.service.spool import BadCommand, Command, CommandResult, Spool, text_argument

BACKTEST, WHY, WHY_NOT, QUERY = "backtest", "why", "why-not", "query"
"""The commands for a back-test, for an output or a missing one to be explained, and for a question in SQL."""

HOLD, HOLD_SECONDS = "hold", 3600.0
"""The command of a backup, which holds checkpoints as long as it waits in the spool, and the most seconds of that."""

LOGGED = ("sql", "id", "query", "documents")  # the arguments of questions that are logged

MOST_ROWS, MOST_BYTES = 100_000, 256 << 20
"""Maximum size of one SELECT's result, so that a question cannot exhaust the service's memory."""

MOST_DOCUMENTS = 20  # maximum number of documents named in a question


class SelectQuestion:
    """A question of BESIDE, in any thread. It may be interrupted between and within SELECTs, which sets `stop`."""

    def __init__(self, engine: Session, command: Command) -> None:
        self.engine, self._command, self.stop = engine, command, Event()
        # A back-test reads by pages.
        self._bounds = UNBOUNDED if command.do == BACKTEST else Bounds(MOST_ROWS, MOST_BYTES)
        self._running: Question | None = None

    def answer(self) -> Any:
        """Returns the answer as JSON. Raises QuestionInterrupted, and errors of the question."""
        return BESIDE[self._command.do](self, self._command.arguments)

    def interrupt(self) -> None:
        """Interrupts the current or next SELECT."""
        self.stop.set()
        if (running := self._running) is not None:
            running.interrupt()

    def select(self, sql: str) -> pa.Table:
        self._running = question = self.engine.question(sql, self._bounds, own=True)
        if self.stop.is_set():
            raise QuestionInterrupted("the question was interrupted")
        return question.answer()


def _backtest(asked: SelectQuestion, arguments: Mapping[str, Any]) -> object:
    """Back-tests the argument `text` over stored documents. With `script_only`, only prepares it."""
    script = prepared(text_argument(arguments, "text"), asked.engine.registry)
    if arguments.get("script_only"):
        return script.to_dict()
    return backtest_store(script, asked.select, asked.stop).to_dict()


def _why(asked: SelectQuestion, arguments: Mapping[str, Any]) -> object:
    """Explains an output by its `id`, a unique prefix of that, or its number as text; the result is an `OutputWhy`."""
    return why_output(asked.select, text_argument(arguments, "id")).to_dict()


def _why_not(asked: SelectQuestion, arguments: Mapping[str, Any]) -> object:
    """Explains why `documents` (ids, or URLs or titles that only one stored document has, one per block or fewer) give
    no output of the query named `query`, as a `WhyNot`; without documents, returns the query's `QueryFunnels`."""
    documents = arguments.get("documents") or []
    if not isinstance(documents, list) or not all(isinstance(one, str) for one in documents):
        raise BadCommand("the documents of the question are not a list of texts")
    if len(documents) > MOST_DOCUMENTS:
        raise BadCommand(f"{len(documents)} documents are named, and {MOST_DOCUMENTS} are looked at")
    name = text_argument(arguments, "query")
    if not documents:
        return query_funnel(asked.select, name).to_dict()
    return explain_missing_output(asked.select, name, documents).to_dict()


def _hold(asked: SelectQuestion, arguments: Mapping[str, Any]) -> None:
    with asked.engine.checkpoints_held():
        asked.stop.wait()


BESIDE: Mapping[str, Callable[[SelectQuestion, Mapping[str, Any]], object]] = {
    BACKTEST: _backtest, WHY: _why, WHY_NOT: _why_not, HOLD: _hold,
}  # fmt: skip
"""The questions that are not in SQL."""


MAX_SECONDS, MAX_ROWS, MAX_BYTES = 30.0, 100_000, 64 << 20
"""The default limits of a question: seconds, and rows and bytes of its answer."""

GRACE, POLL = 5.0, 0.1
"""Seconds that an interrupted question has until it is abandoned, and between two polls of a running one."""

MonotonicClock = Callable[[], float]  # returns seconds since an arbitrary point, like `time.monotonic`


class RunningQuestion:
    """A question in its own thread. `report` receives its result or error, exactly once, from any thread."""

    def __init__(
        self,
        question: Question | SelectQuestion,
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
        """Waits up to `seconds`. Returns whether the result was reported."""
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
        """Interrupts the question. Only the first reason is reported."""
        if self._ended_at is None:
            self._ended_at, self._reason = self._clock(), reason
        self._question.interrupt()

    def _run(self) -> None:
        try:
            found = self._question.answer()
            if isinstance(found, pa.Table):  # with rows as lists, as columns may share a name
                columns = map(column_values, found.columns)
                found = {"columns": found.column_names, "rows": list(map(list, zip(*columns, strict=True)))}
            result = CommandResult(found)
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


def answer_question(
    question: Question | SelectQuestion, seconds: float | None, clock: MonotonicClock = time.monotonic
) -> CommandResult:
    """Runs a question and returns its result. Interrupting this thread interrupts the question."""
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


FOR_PAGE = "for_page"
"""The argument of questions for a page that another process serves. These are not logged: they are many and private."""

RUN_BESIDE = (QUERY, *BESIDE)  # the commands run here
APART: Mapping[str, float | None] = {BACKTEST: None, HOLD: HOLD_SECONDS}
"""Those that run beside the others, with limits of their own, in seconds."""

MAX_RUNNING = 2
"""Default maximum of concurrent questions. The others wait."""

ABANDONED = "nobody waits for the answer any more"
ENDING = "the service is stopping: ask again later"
MEMORY_NEEDED = "a batch needs the memory: ask again later, or for less"


def question_of(engine: Session, command: Command) -> tuple[Question | SelectQuestion, float | None]:
    """Returns a question and its limit in seconds (None: none, or its own). Raises KeyError, TypeError, ValueError."""
    given = command.arguments
    if command.do in BESIDE:
        return SelectQuestion(engine, command), APART.get(command.do, given.get("seconds", MAX_SECONDS))
    bounds = Bounds(given.get("most_rows", MAX_ROWS), given.get("most_bytes", MAX_BYTES))
    return engine.confined_question(given["sql"], bounds), given.get("seconds", MAX_SECONDS)


class QuestionRunner:
    """A context manager that answers the questions of a spool. `max_seconds` caps the time of each question (None: no
    cap). At most `max_running` run at once, and beside them one back-test, and backups, with limits of their own. `log`
    must be thread-safe."""

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
        self._apart: dict[str, str] = {}  # those that do not count: a back-test, and backups, by id
        self._stop = Event()
        self._thread = Thread(target=self._run, name="mmqjp questions", daemon=True)

    def __enter__(self) -> QuestionRunner:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._end_all(ENDING)

    def free_memory(self) -> bool:
        """Ends all questions when a batch runs out of memory. Returns whether there were any."""
        return self._end_all(MEMORY_NEEDED)

    def step(self) -> None:
        """Starts waiting questions and ends those that timed out or were withdrawn. A command counts as withdrawn when
        it is missed twice: some file systems miss a file while another is removed."""
        missed: set[str] = set()
        waiting = {command.id: command for command in self._spool.waiting(*RUN_BESIDE)}
        for id, question in list(self._running.items()):
            if question.look():
                del self._running[id]
                self._apart.pop(id, None)
            elif id not in waiting and not self._spool.is_waiting(id):
                missed.add(id)
                if id in self._missed:
                    question.end(ABANDONED)
        self._missed = missed
        for id, command in waiting.items():
            has_room = len(self._running) - len(self._apart) < self._max_running
            if command.do in APART:
                has_room = command.do == HOLD or command.do not in self._apart.values()
            if has_room and id not in self._running:
                self._begin(command)

    def _begin(self, command: Command) -> None:
        report = partial(self._report, command)
        try:
            question, asked_seconds = question_of(self._engine, command)
            limits = [seconds for seconds in (asked_seconds, self._max_seconds) if seconds is not None]
            most = asked_seconds if command.do in APART else min(limits, default=None)
            self._running[command.id] = RunningQuestion(question, most, report, self._clock)
            if command.do in APART:
                self._apart[command.id] = command.do
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
