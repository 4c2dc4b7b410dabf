"""The state of fetching, in one SQLite file: feeds, when hosts may be asked, and how far the archive is written.

Each outcome is one transaction. The file is in WAL mode, so that `mmqjp feeds` can read during a fetch. A lock on a
file beside it lets one process write. SQLite does not notice a byte that has changed in a value, so each row has a
digest.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

from common.lock import lock
from common.private import make_private_file
from feeds.bad_input import SourceError
from feeds.fetch.feed_state import FeedState
from feeds.fetch.hints import Hints

STATE_FILE = "fetch.sqlite"
FORMAT = 2
"""The format of the file. Rows have digests since 2."""

_COLUMNS = [field.name for field in fields(FeedState)]
_SCHEMA = """
CREATE TABLE feeds (
    url TEXT PRIMARY KEY, source TEXT NOT NULL UNIQUE, title TEXT NOT NULL, folder TEXT NOT NULL,
    address TEXT NOT NULL, etag TEXT NOT NULL, last_modified TEXT NOT NULL, next_check INTEGER NOT NULL,
    checked_at INTEGER NOT NULL, fetched_at INTEGER NOT NULL, status INTEGER NOT NULL, errors INTEGER NOT NULL,
    last_error TEXT NOT NULL, sha256 TEXT NOT NULL, hints TEXT NOT NULL, stopped INTEGER NOT NULL,
    digest INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE hosts (
    host TEXT PRIMARY KEY, asked_at INTEGER NOT NULL DEFAULT 0, paused_until INTEGER NOT NULL DEFAULT 0,
    robots TEXT, robots_at INTEGER NOT NULL DEFAULT 0, digest INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE archive (mark TEXT NOT NULL, digest INTEGER NOT NULL DEFAULT 0);
"""
_TABLES = {"feeds": "url", "hosts": "host", "archive": "mark"}
"""The tables, each with its key."""


@dataclass(frozen=True, slots=True)
class HostState:
    """When the last request to a host began or ended, until when it wants none, and its robots.txt at a time.

    `robots` is None if it is not known, "" if there is none. Times are microseconds, 0 for never.
    """

    host: str
    asked_at: int = 0
    paused_until: int = 0
    robots: str | None = None
    robots_at: int = 0


class FetchIsRunning(SourceError):
    """Another process is writing the state."""


class FetchStore:
    """The state file. Without `write` it must exist, and is only read."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        """Raises SourceError if the file is missing, is not ours, has another format, or is being written."""
        self._lock: BinaryIO | None = None
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path)
            make_private_file(path)
        elif not path.is_file():
            raise SourceError(str(path), "there is no state of a fetch", "mmqjp fetch makes one")
        self._path = path
        self._database = sqlite3.connect(path, isolation_level=None)
        try:
            with self._told():
                self._open()
        except SourceError:
            self.close()
            raise

    def _open(self) -> None:
        """Makes the tables in an empty file. Raises SourceError for a file that is not ours."""
        number = self._rows("PRAGMA user_version")[0][0]
        if number == 0 and self._lock is not None and not self._rows("SELECT 1 FROM sqlite_master"):
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")
            number = FORMAT
        if number not in (1, FORMAT):
            cause = f"the state has format {number}, and this version of mmqjp reads format {FORMAT}"
            raise SourceError(str(self._path), cause, "name another, or use the version that wrote it")
        if (found := self._rows("PRAGMA integrity_check(1)")[0][0]) != "ok":
            raise self._damaged(found)
        self._digests = number == FORMAT
        if not self._digests and self._lock is not None:
            self._add_digests()
        # A power failure may take back the last commits, in order: what they told is then fetched or found again.
        self._database.execute("PRAGMA synchronous = NORMAL")

    def _add_digests(self) -> None:
        """Brings a file of format 1 up to date."""
        with self._transaction():
            for table, key in _TABLES.items():
                rows = self._rows(f"SELECT * FROM {table}")
                self._database.execute(f"ALTER TABLE {table} ADD COLUMN digest INTEGER NOT NULL DEFAULT 0")
                place = [column[1] for column in self._rows(f"PRAGMA table_info({table})")].index(key)
                updates = [(_digest(row), row[place]) for row in rows]
                self._database.executemany(f"UPDATE {table} SET digest = ? WHERE {key} = ?", updates)
            self._database.execute(f"PRAGMA user_version = {FORMAT}")
        self._digests = True

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raises SourceError with the cause if SQLite cannot use the file."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
                raise SourceError(str(self._path), f"cannot be written: {error}", "make room on the disk") from None
            raise self._damaged(str(error)) from None

    def _damaged(self, cause: str) -> SourceError:
        message = f"cannot be used as the state of a fetch: {' '.join(cause.split())}"
        return SourceError(str(self._path), message, "name another, or take an older copy")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._told(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield

    def __enter__(self) -> FetchStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()
        if self._lock is not None:
            self._lock.close()

    def feeds(self) -> list[FeedState]:
        """All feeds, in the order in which they were added. Raises SourceError if one is damaged."""
        return [self._feed(row) for row in self._sealed(f"{', '.join(_COLUMNS)}", "feeds ORDER BY rowid")]

    def add(self, feeds: Iterable[FeedState]) -> None:
        """Adds the feeds that are not known. A known feed gets a new title, if there is one, with its folders."""
        with self._transaction():
            for feed in feeds:
                known = self._sealed(", ".join(_COLUMNS), "feeds WHERE url = ?", feed.url)
                if not known:
                    marks = ", ".join("?" * (len(_COLUMNS) + 1))
                    columns = ", ".join(_COLUMNS)
                    row = _row(feed)
                    self._database.execute(f"INSERT INTO feeds ({columns}, digest) VALUES ({marks})", _with_digest(row))
                elif feed.title or feed.folder:
                    before = self._feed(known[0])
                    self._write(replace(before, title=feed.title or before.title, folder=feed.folder))

    def remove(self, urls: Iterable[str]) -> None:
        """Forgets feeds."""
        with self._transaction():
            self._database.executemany("DELETE FROM feeds WHERE url = ?", [(url,) for url in urls])

    def commit(self, feed: FeedState, mark: str | None = None) -> None:
        """Writes a feed's new state and, with it, how far the archive is whole."""
        with self._transaction():
            self._write(feed)
            if mark is not None:
                self._set_mark(mark)

    def archive_mark(self) -> str:
        """The mark that was committed last."""
        return next((str(row[0]) for row in self._sealed("mark", "archive")), "")

    def save_mark(self, mark: str) -> None:
        """Commits a mark alone."""
        with self._transaction():
            self._set_mark(mark)

    def _write(self, feed: FeedState) -> None:
        changes = ", ".join(f"{name} = ?" for name in (*_COLUMNS, "digest"))
        self._database.execute(f"UPDATE feeds SET {changes} WHERE url = ?", (*_with_digest(_row(feed)), feed.url))

    def _set_mark(self, mark: str) -> None:
        self._database.execute("DELETE FROM archive")
        self._database.execute("INSERT INTO archive VALUES (?, ?)", _with_digest((mark,)))

    def host(self, host: str) -> HostState:
        rows = self._sealed("host, asked_at, paused_until, robots, robots_at", "hosts WHERE host = ?", host)
        return HostState(*rows[0]) if rows else HostState(host)

    def save_host(self, host: HostState) -> None:
        with self._told():
            self._database.execute(
                "INSERT OR REPLACE INTO hosts VALUES (?, ?, ?, ?, ?, ?)", _with_digest(astuple(host))
            )

    def _rows(self, sql: str, *values: object) -> list[Any]:
        return self._database.execute(sql, values).fetchall()

    def _sealed(self, columns: str, where: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of a table. Raises SourceError if one is damaged."""
        with self._told():
            rows = self._rows(f"SELECT {columns}, {'digest' if self._digests else 'NULL'} FROM {where}", *values)
        for *row, digest in rows:
            if digest is not None and digest != _digest(row):
                raise self._damaged(f"a row of {where.split()[0]} is not what was written")
        return [tuple(row) for *row, _ in rows]

    def _feed(self, row: tuple[Any, ...]) -> FeedState:
        values = dict(zip(_COLUMNS, row, strict=True))
        values["stopped"] = bool(values["stopped"])
        values["hints"] = Hints.from_json(values["hints"])
        return FeedState(**values)


def _locked(path: Path) -> BinaryIO:
    beside = path.with_name(f"{path.name}.lock")
    make_private_file(beside)  # whoever may open it may lock it
    file = beside.open("wb")
    try:
        if not lock(file.fileno()):
            raise FetchIsRunning(str(path), "another fetch is using this state", "wait for it, or end it")
    except BaseException:
        file.close()
        raise
    return file


def _row(feed: FeedState) -> tuple[object, ...]:
    return tuple(feed.hints.to_json() if name == "hints" else getattr(feed, name) for name in _COLUMNS)


def _with_digest(row: tuple[object, ...]) -> tuple[object, ...]:
    return (*row, _digest(row))


def _digest(row: Iterable[object]) -> int:
    """A digest of a row as SQLite gives it back, with 1 for true. It detects damage, not malice."""
    plain = [int(value) if isinstance(value, bool) else value for value in row]
    return zlib.crc32(json.dumps(plain).encode())
