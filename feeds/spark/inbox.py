"""The inbox of a stream of live feeds: segments of rows that are read and that Spark has not committed.

It is one SQLite file in the state directory. A segment is written in one transaction with the offsets of the files and
the history of entries. So a batch that Spark plans again has the same rows, and no entry comes twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from common.private import make_private_file
from feeds.document import Document, Reject
from feeds.history import History
from feeds.offsets import ALL_READ, Offset
from feeds.spark.document_rows import SCHEMA, row_batches
from feeds.tail import ReadItem, Tail, waiting_files
from feeds.waiting import judged, read_waiting

FILE = "read.sqlite"
DOCUMENTS = 1_000
"""The most documents of a segment."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS segments (number INTEGER PRIMARY KEY AUTOINCREMENT, rows BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS files (source TEXT, file TEXT, position INTEGER NOT NULL, PRIMARY KEY (source, file));
CREATE TABLE IF NOT EXISTS history (feed TEXT PRIMARY KEY, entries TEXT NOT NULL);
"""


class Inbox:
    """The segments of a state directory, numbered from 1. One process at a time uses them."""

    def __init__(self, directory: Path) -> None:
        make_private_file(directory / FILE)
        self._database = sqlite3.connect(directory / FILE, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        self._database.close()

    def take(self, tail: Tail, history: History) -> None:
        """Makes segments of what a source has that was not read yet, judged by a history, which is loaded here. Files
        that cannot be read wait."""
        history.load(dict(self._database.execute("SELECT feed, entries FROM history")))
        rows = self._database.execute("SELECT source, file, position FROM files").fetchall()
        positions = {(source, file): Offset(source, file, position) for source, file, position in rows}
        items = judged(read_waiting(waiting_files([tail], positions), lambda waiting, cause: None), history)
        while segment := list(islice(items, DOCUMENTS)):
            self._commit(segment, history)

    def _commit(self, items: Sequence[ReadItem[Document | Reject]], history: History) -> None:
        data = _to_bytes(row_batches(read.item for read in items if read.item is not None))
        offsets = {(read.offset.source, read.offset.file): read.offset.position for read in items}
        with self._database:
            self._database.execute("BEGIN")
            if data:
                self._database.execute("INSERT INTO segments (rows) VALUES (?)", (data,))
            files = [(*key, position) for key, position in offsets.items()]
            self._database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", files)
            self._database.executemany("INSERT OR REPLACE INTO history VALUES (?, ?)", history.changed().items())

    def newest(self) -> int:
        """The number of the newest segment; 0 if none was made."""
        rows = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'segments'").fetchall()
        return int(rows[0][0]) if rows else 0

    def segments(self, start: int, end: int) -> list[bytes]:
        """The segments with numbers above `start` and up to `end` that are still there."""
        sql = "SELECT rows FROM segments WHERE number > ? AND number <= ? ORDER BY number"
        return [row[0] for row in self._database.execute(sql, (start, end))]

    def drop(self, end: int) -> None:
        """Removes the segments up to a number."""
        self._database.execute("DELETE FROM segments WHERE number <= ?", (end,))

    def read_files(self, source: str) -> set[str]:
        """The files of a source that are all read."""
        sql = "SELECT file FROM files WHERE source = ? AND position = ?"
        return {row[0] for row in self._database.execute(sql, (source, ALL_READ))}

    def forget_files(self, source: str, there: set[str] | None) -> None:
        """Removes the offsets of files of a source that have gone. None: it is not known which are there."""
        gone = [(source, file) for file in self.read_files(source) - there] if there is not None else []
        self._database.executemany("DELETE FROM files WHERE source = ? AND file = ?", gone)


def _to_bytes(batches: Iterator[pa.RecordBatch]) -> bytes:
    """The batches in Arrow's format for streams; b"" for none."""
    found = list(batches)
    if not found:
        return b""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, SCHEMA) as writer:
        for batch in found:
            writer.write_batch(batch)
    return bytes(out.getvalue().to_pybytes())


def from_bytes(data: bytes) -> Iterator[pa.RecordBatch]:
    """The batches of a segment."""
    with pa.ipc.open_stream(data) as reader:
        yield from reader
