"""SQL questions of the process that serves the page to the process that holds the DuckDB store, over a pipe. Pages are
rendered in another process because of Python's global lock; only SQL runs in the engine's. A message is a number, a
JSON object, and rows in Arrow."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate, count, pairwise
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import Any

import pyarrow as pa

from common.arrays import packed, unpacked
from common.errors import OperationalError
from join_stage.store.protocol import Committed, QuestionRefused, StoreError
from mmqjp.service.sql_question import MAX_BYTES, MonotonicClock
from mmqjp.web.readers import RUNNING, Busy, CursorReader, TooSlow

GRACE, LOOK = 10.0, 0.1
"""Extra seconds that a question waits for its answer, and seconds between two polls for a newer batch."""

EVERY = 1.0
"""Minimum seconds between two announcements of newer batches, and so the maximum age of a page: each one invalidates
all pages, and an engine may commit many times a second."""

LARGEST = MAX_BYTES + (16 << 20)
"""Maximum size of a message, in bytes."""

_HEAD = struct.Struct("<QI")

_ERRORS: dict[str, type[Exception]] = {
    "refused": QuestionRefused, "busy": Busy, "slow": TooSlow, "store": StoreError,
}  # fmt: skip


class StoreProcessGone(OperationalError, ConnectionError):
    """The process that holds the store has ended."""

    def __init__(self, text: str = "the service has stopped: start mmqjp serve again") -> None:
        super().__init__(text)


def _message(number: int, said: dict[str, Any], rows: bytes | memoryview = b"") -> bytes:
    text = json.dumps(said).encode()
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
                    self._tell_version()  # some questions may always wait
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
            for pool in (own, of_people):  # some questions do not notice when they are interrupted
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
                raise StoreError("the store is read from its files")
            rows = packed(self._reader.select(**question))
            said: dict[str, Any] = {}
        except Exception as error:  # whoever asked must learn of any error, and the service goes on
            kind = next((kind for kind, known in _ERRORS.items() if isinstance(error, known)), "store")
            said = {"error": kind, "message": str(error).strip() or type(error).__name__}
        self._send(_message(number, said, rows))

    def _send(self, message: bytes) -> None:
        with self._lock, suppress(OSError):  # nobody waits for it any more
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

    def committed(self, mark: int) -> Committed | None:
        said, rows = self._ask({"since": mark}, GRACE)
        if said["mark"] is None or said["sizes"] is None:
            return None if said["mark"] is None else Committed(said["mark"], None)
        parts = pairwise(accumulate(said["sizes"].values(), initial=0))
        told = {name: unpacked(rows[begin:end]) for name, (begin, end) in zip(said["sizes"], parts, strict=True)}
        return Committed(said["mark"], told)

    def refresh(self) -> None:
        with suppress(StoreProcessGone, TooSlow):
            self._ask({}, GRACE)

    def wait(self) -> None:
        self._thread.join()

    def close(self) -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(self._pipe.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)  # to close it is not enough while a thread reads from it
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
