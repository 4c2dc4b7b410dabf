"""How the page reads a store: in the process that holds it, from the files of Spark, or through the spool."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import BoundedSemaphore, Condition, Lock
from typing import Any, Protocol

import pyarrow as pa

from common.errors import OperationalError
from join_stage.duckdb_files import DuckDBFilesReader
from join_stage.store.following import Committed, Following
from join_stage.store.protocol import SPARK_MANIFESTS
from join_stage.store.reading import Bounds, Question, QuestionInterrupted
from mmqjp.present.committed_news import FOLLOWED
from mmqjp.service.question_runner import FOR_PAGE, QUERY
from mmqjp.service.sql_question import MAX_BYTES, MonotonicClock
from mmqjp.session import Session
from mmqjp.tables.store_schema import SCHEMA
from mmqjp.web.deadlines import Deadlines

Ask = Callable[[str, Mapping[str, Any]], Any]
"""Puts a command to whoever holds the store and returns its result. Raises CommandError, StoreError, OSError."""

RUNNING = 1
"""So many questions run at the same time: the engine works beside them, and each takes a processor from it."""

KEPT_SECONDS = 1.0
"""For so long an answer of another process serves again, and the newest batch is taken to be the newest."""

KEPT_ANSWERS = 100
"""The most answers of another process that are kept."""


class Busy(OperationalError, RuntimeError):
    """There are too many questions at the moment."""

    def __init__(self, text: str = "the store is busy with other questions: try again in a moment") -> None:
        super().__init__(text)


class TooSlow(OperationalError, TimeoutError):
    """A question took too long."""


class StoreReader(Protocol):
    """Reads the tables of a store. SQL is taken as untrusted, and judged as that of `mmqjp query` is, unless it is our
    own."""

    def select(self, sql: str, limit: int, seconds: float, *, asked: bool = False, own: bool = False) -> pa.Table:
        """Returns the rows of a SELECT, as of one committed batch. It may have up to `limit` rows and take so many
        seconds. `asked` are questions that people wrote: one at a time is answered, and pages never wait for it.
        `own` are those that the page writes: they only read, and need not be judged.
        Raises QuestionRefused for other SQL and for more rows, Busy, TooSlow and StoreError."""

    def version(self) -> object:
        """Returns something that is another once there is a newer batch."""

    def committed(self, mark: int) -> Committed | None:
        """Returns the rows that were committed to the tables FOLLOWED since a look that returned a mark, the last one.
        None if it cannot tell."""

    def refresh(self) -> None:
        """Is told that this process has just changed the store: what is read from now on must show that."""

    def close(self) -> None:
        """Ends what is being read."""


class Selects(Protocol):
    """What a part of the page needs of a reader."""

    def select(self, sql: str, limit: int, seconds: float) -> pa.Table:
        """Returns the rows of a SELECT."""

    def version(self) -> object:
        """Returns something that is another once there is a newer batch."""


@dataclass(frozen=True, slots=True)
class OwnQuestions:
    """Asks a reader what pages ask: SQL that we wrote."""

    reader: StoreReader

    def select(self, sql: str, limit: int, seconds: float) -> pa.Table:
        """Returns the rows of a SELECT."""
        return self.reader.select(sql, limit, seconds, own=True)

    def version(self) -> object:
        """Returns something that is another once there is a newer batch."""
        return self.reader.version()


class Running:
    """Questions that run in the threads of their callers, each with its own limit of time."""

    def __init__(self, most: int = RUNNING) -> None:
        self._slots, self._asked = BoundedSemaphore(most), BoundedSemaphore()
        self._deadlines = Deadlines()

    def answer(self, question: Callable[[], Question], seconds: float, *, asked: bool = False) -> pa.Table:
        """Runs a question. Raises Busy if no other one ends in its time, and TooSlow. Those that people `asked` are not
        always quick to end when they are interrupted: they have a place of their own."""
        slots = self._asked if asked else self._slots
        if not slots.acquire(timeout=seconds):
            raise Busy
        try:
            begun = question()
            self._deadlines.add(begun, seconds)
            try:
                return begun.answer()
            except QuestionInterrupted:
                raise TooSlow(f"the question took more than {seconds:g} s, or the engine needs the memory") from None
            finally:
                self._deadlines.remove(begun)
        finally:
            slots.release()

    def interrupt(self) -> bool:
        """Ends all questions. Returns whether there were any."""
        return self._deadlines.interrupt()


class CursorReader:
    """Reads a store on DuckDB in the process that holds it, beside the engine."""

    def __init__(self, engine: Session) -> None:
        self._engine, self._running = engine, Running()

    @cached_property
    def _following(self) -> Following | None:
        return self._engine.follow(FOLLOWED)

    def select(self, sql: str, limit: int, seconds: float, *, asked: bool = False, own: bool = False) -> pa.Table:
        """Returns the rows of a SELECT."""
        bounds = Bounds(limit, MAX_BYTES)
        return self._running.answer(lambda: self._engine.question(sql, bounds, own=own), seconds, asked=asked)

    def version(self) -> object:
        """Returns the number of the next batch."""
        return self._engine.batch

    def committed(self, mark: int) -> Committed | None:
        """Returns what was committed since a look."""
        return None if self._following is None else self._following.since(mark)

    def refresh(self) -> None:
        """Needs nothing: each question sees the newest batch."""

    def free_memory(self) -> bool:
        """Ends all questions, for a batch that has run out of memory. Returns whether there were any."""
        return self._running.interrupt()

    def close(self) -> None:
        """Ends all questions."""
        self._running.interrupt()


class FilesReader:
    """Reads a store of Spark from its files, in any process, as of the newest batch."""

    def __init__(self, state: Path, clock: MonotonicClock = time.monotonic) -> None:
        self._state, self._clock, self._running = state, clock, Running()
        self._changed = Condition()
        self._opened: DuckDBFilesReader | None = None
        self._opened_at: object = None
        self._looked_at, self._newest = float("-inf"), ""
        self._users: dict[DuckDBFilesReader, int] = {}

    def select(self, sql: str, limit: int, seconds: float, *, asked: bool = False, own: bool = False) -> pa.Table:
        """Returns the rows of a SELECT."""
        with self._reader() as reader:

            def question() -> Question:
                with self._changed:  # it makes views, over the one connection
                    return reader.question(sql, Bounds(limit, MAX_BYTES), own=own)

            return self._running.answer(question, seconds, asked=asked)

    def version(self) -> object:
        """Returns the name of the newest manifest, which is looked for at most once in KEPT_SECONDS."""
        now = self._clock()
        if now >= self._looked_at + KEPT_SECONDS:
            self._newest = max((path.name for path in (self._state / SPARK_MANIFESTS).glob("*.json")), default="")
            self._looked_at = now
        return self._newest

    def committed(self, mark: int) -> None:
        """Cannot tell: it reads files."""

    def refresh(self) -> None:
        """Looks for a newer manifest the next time."""
        self._looked_at = float("-inf")

    @contextmanager
    def _reader(self) -> Iterator[DuckDBFilesReader]:
        """The reader of the newest batch. An older one is closed when nobody uses it any more."""
        newest = self.version()
        with self._changed:
            if self._opened is None or newest != self._opened_at:
                before, self._opened = self._opened, DuckDBFilesReader(SCHEMA, self._state)
                self._opened_at, self._users[self._opened] = newest, 0
                self._let_go(before)
            reader = self._opened
            self._users[reader] += 1
        try:
            yield reader
        finally:
            with self._changed:
                self._users[reader] -= 1
                if reader is not self._opened:
                    self._let_go(reader)

    def _let_go(self, reader: DuckDBFilesReader | None) -> None:
        if reader is not None and not self._users.get(reader, 1):
            del self._users[reader]
            reader.close()

    def close(self) -> None:
        """Ends all questions, and closes the files."""
        self._running.interrupt()
        with self._changed:
            before, self._opened = self._opened, None
            self._let_go(before)


class SpoolReader:
    """Asks the process that holds a store on DuckDB, whose file no other process can open."""

    def __init__(self, ask: Ask, clock: MonotonicClock = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self._lock, self._changes = Lock(), 0
        self._kept: OrderedDict[tuple[str, int], tuple[float, pa.Table]] = OrderedDict()

    def select(self, sql: str, limit: int, seconds: float, *, asked: bool = False, own: bool = False) -> pa.Table:
        """Returns the rows of a SELECT. An answer serves again for KEPT_SECONDS."""
        key, now = (sql, limit), self._clock()
        with self._lock:
            if (kept := self._kept.get(key)) is not None and now < kept[0] + KEPT_SECONDS:
                return kept[1]
        question = {"sql": sql, "seconds": seconds, "most_rows": limit, "most_bytes": MAX_BYTES, FOR_PAGE: True}
        found = self._ask(QUERY, question)
        columns = zip(*found["rows"], strict=True) if found["rows"] else ([] for _ in found["columns"])
        table = pa.Table.from_arrays([_array(list(column)) for column in columns], names=found["columns"])
        with self._lock:
            self._kept[key] = (now, table)
            while len(self._kept) > KEPT_ANSWERS:
                self._kept.popitem(last=False)
        return table

    def version(self) -> object:
        """Returns something else each KEPT_SECONDS."""
        return int(self._clock() / KEPT_SECONDS), self._changes

    def committed(self, mark: int) -> None:
        """Cannot tell: it asks through the spool."""

    def refresh(self) -> None:
        """Forgets all answers."""
        with self._lock:
            self._kept.clear()
            self._changes += 1

    def close(self) -> None:
        """Has nothing to end: who is asked ends what nobody waits for."""


def _array(values: list[object]) -> pa.Array:
    """A column of values that JSON holds. Mixed ones become text."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
