"""What a stream of live feeds has read and Spark has not committed: segments of rows, each made once.

One SQLite file in the state directory: a segment is written in one transaction with how far the files were read and
what is known of entries. So a batch that Spark plans again has the same rows, and no entry comes again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from common.private import own
from feeds.document import Document, Reject
from feeds.history import History
from feeds.offsets import ALL_READ, Offset
from feeds.spark.document_rows import SCHEMA, row_batches
from feeds.tail import ReadItem, Tail, waiting_files
from feeds.waiting import judged, read_waiting

FILE = "read.sqlite"
DOCUMENTS = 1_000
"""A segment has at most so many documents."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS segments (number INTEGER PRIMARY KEY AUTOINCREMENT, rows BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS files (source TEXT, file TEXT, position INTEGER NOT NULL, PRIMARY KEY (source, file));
CREATE TABLE IF NOT EXISTS history (feed TEXT PRIMARY KEY, entries TEXT NOT NULL);
"""


class Inbox:
    """The segments of a state directory, numbered from 1. One process at a time."""

    def __init__(self, directory: Path) -> None:
        own(directory / FILE)
        self._database = sqlite3.connect(directory / FILE, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        self._database.close()

    def take(self, tail: Tail, history: History) -> None:
        """Makes segments of what a source has that was not read yet, as a history judges it that is empty before; what
        cannot be read waits."""
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
        """The number of the last segment that was made; 0 if none was."""
        rows = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'segments'").fetchall()
        return int(rows[0][0]) if rows else 0

    def segments(self, start: int, end: int) -> list[bytes]:
        """The segments after one, up to another, that are still there."""
        sql = "SELECT rows FROM segments WHERE number > ? AND number <= ? ORDER BY number"
        return [row[0] for row in self._database.execute(sql, (start, end))]

    def drop(self, end: int) -> None:
        """Lets go of the segments up to one."""
        self._database.execute("DELETE FROM segments WHERE number <= ?", (end,))

    def read_files(self, source: str) -> set[str]:
        """The files of a source that are read to their ends."""
        sql = "SELECT file FROM files WHERE source = ? AND position = ?"
        return {row[0] for row in self._database.execute(sql, (source, ALL_READ))}

    def forget_files(self, source: str, there: set[str] | None) -> None:
        """Lets go of what is noted of files of a source that are gone; None: it is not known which are there."""
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
