"""How the page reads a store: in the process that holds it, from Spark's files, through the spool, or over a pipe.
Limits concurrent slow requests, interrupts questions at their deadlines, caches values per version and replies for a
moment, and serves the previous version until new data is loaded (stale-while-revalidate). The pipe leads from the
process that renders pages, which exists because of Python's global lock, to the one that holds the DuckDB store; only
SQL runs in that. A message is a number, a JSON object, and rows in Arrow."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, count, pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from threading import BoundedSemaphore, Event, Lock, Thread, local
from typing import Any, Protocol, TypeVar
from weakref import finalize

import pyarrow as pa

from common.arrays import packed, unpacked
from common.errors import OperationalError
from common.tools import LruCache
from join_stage.duckdb import DuckDBFilesReader
from join_stage.store import protocol
from mmqjp.engine import Session
from mmqjp.present.recent import FOLLOWED
from mmqjp.service.spool import SendCommand
from mmqjp.service.sql_question import FOR_PAGE, MAX_BYTES, QUERY, MonotonicClock
from mmqjp.state.sql_worker import ParquetSource, SqlWorkers
from mmqjp.tables.schema import SCHEMA

AGAIN = 0.5  # seconds until a question is interrupted again, since it may have started another statement
RUNNING = 1  # maximum number of concurrent questions; each takes a core from the engine

KEPT_SECONDS, KEPT_ANSWERS = 1.0, 100
"""Seconds for which replies of the other process and the version are cached, and maximum number of replies."""


class Busy(OperationalError, RuntimeError):
    """There are too many questions at the moment."""


class TooSlow(OperationalError, TimeoutError):
    """A question took too long."""


class StoreReader(Protocol):
    """Reads the tables of a store. SQL is untrusted, and judged as in `mmqjp query`, unless it is our own."""

    def select(self, sql: str, limit: int, seconds: float, *, own: bool = False) -> pa.Table:
        """Returns the rows of a SELECT, as of one committed batch, up to `limit` rows within `seconds`. `own` marks
        queries of pages, which need no check. Queries written by users run one at a time, and pages never wait for
        them. Raises QuestionRefused for other SQL and for more rows, Busy, TooSlow and StoreError."""

    def version(self) -> object:
        """Returns a value that changes with each batch."""

    def committed(self, mark: int) -> protocol.Committed | None:
        """Returns the rows committed to FOLLOWED since a mark (the last one returned); None if that is unknown."""
        return None

    def refresh(self) -> None:
        """Call after this process changes the store: later reads must show the change."""
        return

    def close(self) -> None:
        """Ends running reads."""
        return


class RunningQuestions:
    """Questions that run in their callers' threads, each with a time limit."""

    def __init__(self, most: int = RUNNING) -> None:
        self._slots, self._asked = BoundedSemaphore(most), BoundedSemaphore()
        self._lock, self._running = Lock(), set[protocol.Question]()

    def answer(self, question: Callable[[], protocol.Question], seconds: float, *, asked: bool = False) -> pa.Table:
        """Runs a question. Raises TooSlow, and Busy if no slot is free in time. Questions that users `asked` have their
        own slot, since they may be slow to end when interrupted."""
        slots = self._asked if asked else self._slots
        if not slots.acquire(timeout=seconds):
            raise Busy("the store is busy with other questions: try again in a moment")
        try:
            begun, is_over = question(), Event()

            def interrupt_in_time() -> None:
                wait = seconds
                while not is_over.wait(wait):
                    begun.interrupt()
                    wait = AGAIN

            with self._lock:
                self._running.add(begun)
            Thread(target=interrupt_in_time, name="mmqjp deadline", daemon=True).start()
            try:
                return begun.answer()
            except protocol.QuestionInterrupted:
                raise TooSlow(f"the question took more than {seconds:g} s, or the engine needs the memory") from None
            finally:
                is_over.set()
                with self._lock:
                    self._running.discard(begun)
        finally:
            slots.release()

    def interrupt(self) -> bool:
        """Interrupts all questions. Returns whether there were any."""
        with self._lock:
            running = list(self._running)
        for question in running:
            question.interrupt()
        return bool(running)


class CursorReader(StoreReader):
    """Reads a DuckDB store in the process that holds it, beside the engine."""

    def __init__(self, engine: Session) -> None:
        self._engine, self._running = engine, RunningQuestions()

    @cached_property
    def _following(self) -> protocol.Following | None:
        return self._engine.follow(FOLLOWED)

    def select(self, sql: str, limit: int, seconds: float, *, own: bool = False) -> pa.Table:
        ask = partial(self._engine.question, own=True) if own else self._engine.confined_question
        return self._running.answer(lambda: ask(sql, protocol.Bounds(limit, MAX_BYTES)), seconds, asked=not own)

    def version(self) -> object:
        return self._engine.batch

    def committed(self, mark: int) -> protocol.Committed | None:
        return None if self._following is None else self._following.since(mark)

    def free_memory(self) -> bool:
        """Ends all questions when a batch runs out of memory. Returns whether there were any."""
        return self._running.interrupt()

    def close(self) -> None:
        self._running.interrupt()


class _Opened:
    """The files of a store as of a version, closed after their last use."""

    def __init__(self, state: Path, version: object) -> None:
        self.reader, self.version, self.making = DuckDBFilesReader(SCHEMA, state), version, Lock()
        finalize(self, self.reader.close)


class FilesReader(StoreReader):
    """Reads a Spark store from its files, in any process, as of the newest batch."""

    def __init__(self, state: Path, clock: MonotonicClock = time.monotonic) -> None:
        self._state, self._clock, self._running = state, clock, RunningQuestions()
        self._workers = SqlWorkers(ParquetSource(state))
        self._lock = Lock()
        self._opened: _Opened | None = None
        self._looked_at, self._newest = float("-inf"), 0

    def select(self, sql: str, limit: int, seconds: float, *, own: bool = False) -> pa.Table:
        bounds = protocol.Bounds(limit, MAX_BYTES)
        if not own:
            return self._running.answer(lambda: self._workers.question(sql, bounds), seconds, asked=True)
        newest = self.version()
        with self._lock:
            if self._opened is None or newest != self._opened.version:
                self._opened = _Opened(self._state, newest)
            opened = self._opened

        def question() -> protocol.Question:
            with opened.making:  # it creates views, on a shared connection
                return opened.reader.question(sql, bounds, own=True)

        return self._running.answer(question, seconds)

    def version(self) -> object:
        """Returns the newest batch, 0 for none, refreshed at most once in KEPT_SECONDS."""
        now = self._clock()
        if now >= self._looked_at + KEPT_SECONDS:
            self._newest = max(protocol.manifest_batches(self._state), default=0)
            self._looked_at = now
        return self._newest

    def refresh(self) -> None:
        self._looked_at = float("-inf")

    def close(self) -> None:
        self._running.interrupt()
        self._workers.close()
        self._opened = None


class SpoolReader(StoreReader):
    """Queries the process that holds a DuckDB store, whose file no other process can open."""

    def __init__(self, ask: SendCommand, clock: MonotonicClock = time.monotonic) -> None:
        self._ask, self._clock, self._changes = ask, clock, 0
        self._kept = SharedCache(KEPT_ANSWERS, KEPT_SECONDS, KEPT_SECONDS, clock)

    def select(self, sql: str, limit: int, seconds: float, *, own: bool = False) -> pa.Table:
        """Caches replies for KEPT_SECONDS."""
        return self._kept.get((sql, limit), self._changes, lambda: self._answer(sql, limit, seconds))

    def _answer(self, sql: str, limit: int, seconds: float) -> pa.Table:
        question = {"sql": sql, "seconds": seconds, "most_rows": limit, "most_bytes": MAX_BYTES, FOR_PAGE: True}
        found = self._ask(QUERY, question)
        columns = zip(*found["rows"], strict=True) if found["rows"] else ([] for _ in found["columns"])
        return pa.Table.from_arrays([_array(list(column)) for column in columns], names=found["columns"])

    def version(self) -> object:
        return int(self._clock() / KEPT_SECONDS), self._changes

    def refresh(self) -> None:
        self._changes += 1


def _array(values: list[object]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())


_Made = TypeVar("_Made")

MAX_CACHED_PAGES, PAGE_CACHE_SECONDS = 2_000, 60.0
"""Maximum number of cached values, and their maximum age, as deletions of documents have no version."""


@dataclass(slots=True)
class _Entry:
    """A value or its pending computation, its version and time, and whether it is being computed again."""

    version: object
    made_at: float
    value: Future[Any] = field(default_factory=Future)
    is_renewed: bool = False


class SharedCache:
    """Values by key. Concurrent callers share one computation. A value is fresh for `fresh` seconds, and served up to
    the age of `stale` seconds while it is recomputed. Thread-safe."""

    def __init__(
        self,
        most: int = MAX_CACHED_PAGES,
        fresh: float = PAGE_CACHE_SECONDS,
        stale: float = PAGE_CACHE_SECONDS,
        clock: MonotonicClock = time.monotonic,
    ) -> None:
        self._fresh, self._stale, self._clock = fresh, stale, clock
        self._lock = Lock()
        self._entries = LruCache[Hashable, _Entry](most)

    def get(self, key: Hashable, version: object, make: Callable[[], _Made]) -> _Made:
        """Returns a value, computing it if not cached for this version. Errors of `make` are raised, not cached."""
        now = self._clock()
        with self._lock:
            entry = self._entries.get(key)
            age = 0.0 if entry is None or not entry.value.done() else now - entry.made_at
            if is_new := entry is None or entry.version != version or age >= self._stale:
                entry = _Entry(version, now)
                self._entries.put(key, entry)
            assert entry is not None, "it was put there"
            is_renewed = not is_new and age >= self._fresh and not entry.is_renewed
            entry.is_renewed = entry.is_renewed or is_renewed
        if is_new:
            self._compute(key, entry, make)
        elif is_renewed:
            Thread(target=self._renew, args=(key, entry, now, make), name="mmqjp renewal", daemon=True).start()
        value: _Made = entry.value.result()
        return value

    def clear(self) -> None:
        """Drops all values. Pending ones are still returned to current callers, but not to later ones."""
        self._entries.clear()

    def _compute(self, key: Hashable, entry: _Entry, make: Callable[[], object]) -> None:
        try:
            entry.value.set_result(make())
        except BaseException as error:  # waiting callers must get any error
            with self._lock:
                if self._entries.get(key) is entry:
                    self._entries.pop(key)
            entry.value.set_exception(error)

    def _renew(self, key: Hashable, before: _Entry, now: float, make: Callable[[], object]) -> None:
        entry = _Entry(before.version, now)
        self._compute(key, entry, make)
        with self._lock:
            before.is_renewed = False
            if self._entries.get(key) is before and entry.value.exception() is None:
                self._entries.put(key, entry)


STORE_STALE_SECONDS = 10.0  # maximum staleness in seconds: after that, a page waits for the newer batch


class SteadyReader:
    """A `StoreReader` around another that serves the previous version until `prepare` has loaded the new one. `prepare`
    runs in its own thread, which sees the newest version. Versions are growing numbers."""

    def __init__(self, reader: StoreReader, clock: MonotonicClock = time.monotonic) -> None:
        self._reader, self._clock = reader, clock
        self._prepare: Callable[[], object] | None = None
        self._lock, self._own = Lock(), local()
        self._known: object = None
        self._newest = self._shown = 0
        self._looked_at = self._newer_since = float("-inf")
        self._is_preparing = False

    def prepare_by(self, prepare: Callable[[], object]) -> None:
        self._prepare = prepare

    def begin(self) -> None:
        self.version()
        with self._lock:
            self._begin()

    def select(self, sql: str, limit: int, seconds: float, *, own: bool = False) -> pa.Table:
        return self._reader.select(sql, limit, seconds, own=own)

    def version(self) -> int:
        """Returns the version shown; in the preparing thread, the newest."""
        with self._lock:
            looked_at, self._looked_at = self._looked_at, self._clock()
            if (version := self._reader.version()) != self._known:
                if self._shown == self._newest:
                    self._newer_since = looked_at  # no poll happened in between
                self._known = version
                self._newest += 1
            if getattr(self._own, "prepares", False):
                return self._newest
            if self._prepare is None or self._looked_at >= self._newer_since + STORE_STALE_SECONDS:
                self._shown = self._newest
            elif self._shown < self._newest and not self._is_preparing:
                self._begin()
            return self._shown

    def committed(self, mark: int) -> protocol.Committed | None:
        return self._reader.committed(mark)

    def refresh(self) -> None:
        self._reader.refresh()
        with self._lock:
            self._known = self._reader.version()
            self._newest += 1
            self._shown = self._newest

    def close(self) -> None:
        self._reader.close()

    def _begin(self) -> None:
        self._is_preparing = True
        Thread(target=self._run, args=(self._newest,), name="mmqjp news", daemon=True).start()

    def _run(self, newest: int) -> None:
        self._own.prepares = True
        began_at = self._clock()
        try:
            assert self._prepare is not None
            with suppress(OperationalError, protocol.StoreError, OSError):  # a later reader gets the error itself
                self._prepare()
        finally:
            with self._lock:
                self._shown = max(self._shown, newest)
                self._newer_since = began_at
                self._is_preparing = False


GRACE, LOOK = 10.0, 0.1
"""Extra seconds that a question waits for its answer, and seconds between two polls for a newer batch."""

EVERY = 1.0
"""Minimum seconds between two announcements of newer batches: each invalidates all pages. Also their maximum age."""

LARGEST = MAX_BYTES + (16 << 20)  # maximum size of a message, in bytes

_HEAD = struct.Struct("<QI")

_ERRORS: dict[str, type[Exception]] = {
    "refused": protocol.QuestionRefused, "busy": Busy, "slow": TooSlow, "store": protocol.StoreError,
}  # fmt: skip


class StoreProcessGone(OperationalError, ConnectionError):
    """The process that holds the store has ended."""

    def __init__(self, text: str = "the service has stopped: start mmqjp serve again") -> None:
        super().__init__(text)


def _message(number: int, said: dict[str, Any], rows: bytes | memoryview = b"") -> bytes:
    text = json.dumps(said).encode()
    text += b" " * (-(_HEAD.size + len(text)) % 8)  # Arrow warns of rows that are not aligned
    return b"".join((_HEAD.pack(number, len(text)), text, rows))


def _read(message: bytes) -> tuple[int, dict[str, Any], memoryview]:
    number, length = _HEAD.unpack_from(message)
    end = _HEAD.size + length
    return number, json.loads(message[_HEAD.size : end]), memoryview(message)[end:]


class QuestionServer:
    """Answers questions over a pipe, with limited concurrency, until the other end is closed."""

    def __init__(self, pipe: Connection, reader: CursorReader | None, clock: MonotonicClock = time.monotonic) -> None:
        """Without a reader, it only keeps the pipe open as a sign of life."""
        self._pipe, self._reader, self._clock = pipe, reader, clock
        self._lock = Lock()
        self._told: object = None
        self._told_at = float("-inf")

    def run(self) -> None:
        """Returns when the other process closes its end, or ends."""
        own, of_people = ThreadPoolExecutor(RUNNING, "mmqjp page"), ThreadPoolExecutor(1, "mmqjp page SQL")
        try:
            with suppress(EOFError, OSError):
                while True:
                    while not self._pipe.poll(LOOK):
                        self._tell_version()
                    self._tell_version()  # even if questions are always waiting
                    number, question, _ = _read(self._pipe.recv_bytes(LARGEST))
                    if "since" in question:
                        self._tell_committed(number, question["since"])
                    elif question:
                        pool = own if question["own"] else of_people
                        pool.submit(self._answer, number, question)
                    else:
                        self._tell_version(number)
        finally:
            if self._reader is not None:
                self._reader.close()
            for pool in (own, of_people):  # some questions ignore interrupts
                pool.shutdown(wait=False, cancel_futures=True)

    def _tell_version(self, number: int = 0) -> None:
        """Announces the number of the next batch, if new."""
        now = self._clock()
        if now < self._told_at + EVERY and not number:
            return
        version = None if self._reader is None else self._reader.version()
        if version != self._told or number:
            self._told, self._told_at = version, now
            self._send(_message(number, {"version": version}))

    def _tell_committed(self, number: int, mark: int) -> None:
        """Sends what was committed since a mark: the rows of all tables, in sequence."""
        found = None if self._reader is None else self._reader.committed(mark)
        if found is None or found.rows is None:
            self._send(_message(number, {"mark": None if found is None else found.mark, "sizes": None}))
            return
        parts = {name: packed(rows) for name, rows in found.rows.items()}
        sizes = {name: len(rows) for name, rows in parts.items()}
        self._send(_message(number, {"mark": found.mark, "sizes": sizes}, b"".join(parts.values())))

    def _answer(self, number: int, question: dict[str, Any]) -> None:
        rows: bytes | memoryview = b""
        try:
            if self._reader is None:
                raise protocol.StoreError("the store is read from its files")
            rows = packed(self._reader.select(**question))
            said: dict[str, Any] = {}
        except Exception as error:  # the caller must get any error, and the service continues
            kind = next((kind for kind, known in _ERRORS.items() if isinstance(error, known)), "store")
            said = {"error": kind, "message": str(error).strip() or type(error).__name__}
        self._send(_message(number, said, rows))

    def _send(self, message: bytes) -> None:
        with self._lock, suppress(OSError):  # the caller no longer waits
            self._pipe.send_bytes(message)


class PipeReader:
    """A `StoreReader` of the store at the other end of a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._numbers = count(1)
        self._lock, self._waiting = Lock(), dict[int, Future[tuple[dict[str, Any], memoryview]]]()
        self._version: object = None
        self._is_gone = False
        self._thread = Thread(target=self._receive, name="mmqjp answers", daemon=True)
        self._thread.start()

    def select(self, sql: str, limit: int, seconds: float, *, own: bool = False) -> pa.Table:
        question = {"sql": sql, "limit": limit, "seconds": seconds, "own": own}
        said, rows = self._ask(question, 2 * seconds + GRACE)
        if (kind := said.get("error")) is not None:
            raise _ERRORS[kind](said["message"])
        return unpacked(rows)

    def version(self) -> object:
        """Returns the number of the next batch, as of LOOK seconds ago."""
        return self._version

    def committed(self, mark: int) -> protocol.Committed | None:
        said, rows = self._ask({"since": mark}, GRACE)
        if said["mark"] is None or said["sizes"] is None:
            return None if said["mark"] is None else protocol.Committed(said["mark"], None)
        parts = pairwise(accumulate(said["sizes"].values(), initial=0))
        tables = {name: unpacked(rows[begin:end]) for name, (begin, end) in zip(said["sizes"], parts, strict=True)}
        return protocol.Committed(said["mark"], tables)

    def refresh(self) -> None:
        with suppress(StoreProcessGone, TooSlow):
            self._ask({}, GRACE)

    def wait(self) -> None:
        self._thread.join()

    def close(self) -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(self._pipe.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)  # closing it is not enough while a thread reads from it
        self._thread.join()
        self._pipe.close()

    def _ask(self, asked: dict[str, Any], seconds: float) -> tuple[dict[str, Any], memoryview]:
        future: Future[tuple[dict[str, Any], memoryview]] = Future()
        with self._lock:
            if self._is_gone:
                raise StoreProcessGone
            number = next(self._numbers)
            self._waiting[number] = future
            try:
                self._pipe.send_bytes(_message(number, asked))
            except OSError:
                raise StoreProcessGone from None
        try:
            return future.result(seconds)
        except TimeoutError:
            raise TooSlow("the service does not answer: try again in a moment") from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def _receive(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, said, rows = _read(self._pipe.recv_bytes())
                if "version" in said:
                    self._version = said["version"]
                with self._lock:
                    waiting = self._waiting.pop(number, None)
                if waiting is not None:
                    waiting.set_result((said, rows))
        with self._lock:
            self._is_gone = True
            left, self._waiting = list(self._waiting.values()), {}
        for future in left:
            future.set_exception(StoreProcessGone())
