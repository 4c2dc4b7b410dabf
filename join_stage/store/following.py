"""What was committed to some tables since somebody looked: whoever keeps up with a store need not ask it then."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

import pyarrow as pa

MOST_BYTES = 64 << 20
"""So much is kept until somebody looks; then nothing is."""


class Committed(NamedTuple):
    """What was committed up to a mark: the rows that were appended to tables, by name. None if not all of them were
    kept, or if some were dropped: then the store is to be asked."""

    mark: int
    rows: dict[str, pa.Table] | None


class Following:
    """Follows some tables of a store for one reader. Batches are written in one thread; `since` is called in any."""

    def __init__(self, tables: Iterable[str]) -> None:
        self._tables = frozenset(tables)
        self._batch: dict[str, list[pa.Table]] | None = None
        self._lock = Lock()
        self._rows: dict[str, list[pa.Table]] = {}
        self._size = self._mark = 0
        self._is_whole = False

    def since(self, mark: int) -> Committed:
        """Returns what was committed since a look that returned a mark, the last one, and lets it go."""
        with self._lock:
            rows, is_whole = self._rows, self._is_whole and mark == self._mark
            self._rows, self._size, self._is_whole = {}, 0, True
            self._mark += 1
            committed = self._mark
        return Committed(committed, {name: pa.concat_tables(some) for name, some in rows.items()} if is_whole else None)

    # ------------------------------------------------------------ what a store tells

    def begin(self) -> None:
        """Is told that a batch begins."""
        self._batch = {}

    def append(self, table: str, rows: pa.Table) -> None:
        """Is told that rows were appended. Without a batch they are committed."""
        if table in self._tables and len(rows):
            if self._batch is None:
                self._lose()
            else:
                self._batch.setdefault(table, []).append(rows)

    def drop(self, table: str) -> None:
        """Is told that rows of a table were dropped."""
        if table in self._tables:
            if self._batch is None:
                self._lose()
            self._batch = None

    def commit(self) -> None:
        """Is told that the batch was committed."""
        batch, self._batch = self._batch, None
        if batch is None:
            self._lose()
            return
        with self._lock:
            for table, some in batch.items() if self._is_whole else ():
                self._rows.setdefault(table, []).extend(some)
                self._size += sum(rows.nbytes for rows in some)
        if self._size > MOST_BYTES:
            self._lose()

    def rollback(self) -> None:
        """Is told that the batch is not committed."""
        self._batch = None

    def _lose(self) -> None:
        with self._lock:
            self._rows, self._size, self._is_whole = {}, 0, False
