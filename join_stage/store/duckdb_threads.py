"""How many threads an instance of DuckDB has: only one while batches are small, because the others would just spin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import duckdb

SMALL_BATCHES = 10
"""After so many small batches in a row there is only one thread. Changing the number takes a millisecond."""


class Threads:
    """The threads of an instance. A worker that has no work looks for some for a while, again for each statement: in
    small batches that takes as much time as the work."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, most: int) -> None:
        self._connection, self._most = connection, most
        self._lock = Lock()
        self._now = most
        self._small = self._questions = 0

    def use_one(self) -> None:
        """Is told that a small batch is about to be written. Has one thread from now on if there were many of them and
        no question is being answered."""
        with self._lock:
            self._small += 1
            if self._small >= SMALL_BATCHES and not self._questions:
                self._set(self._connection, 1)

    def use_all(self) -> None:
        """Has all threads from now on: anything else is about to be done."""
        with self._lock:
            self._small = 0
            self._set(self._connection, self._most)

    @contextmanager
    def for_question(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """Has all threads while a question is answered, in any thread, over its own cursor."""
        with self._lock:
            self._questions += 1
            self._set(cursor, self._most)
        try:
            yield
        finally:
            with self._lock:
                self._questions -= 1

    def _set(self, connection: duckdb.DuckDBPyConnection, number: int) -> None:
        if self._now != number:
            connection.execute(f"SET threads = {number}")
            self._now = number
