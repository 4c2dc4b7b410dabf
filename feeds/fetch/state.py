"""What fetching remembers, in one SQLite file: the feeds, the hosts' politeness, and how far the archive is written.

Each outcome is one transaction. The file is in WAL mode, so that `mmqjp feeds` can read while a fetch goes on. One
process writes: a lock on a file beside it sees to that.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from feeds.errors import SourceError
from feeds.fetch.feed_state import FeedState
from feeds.fetch.hints import Hints
from feeds.private import own

STATE_FILE = "fetch.sqlite"
FORMAT = 1

_COLUMNS = [field.name for field in fields(FeedState)]
_SCHEMA = """
CREATE TABLE feeds (
    url TEXT PRIMARY KEY, source TEXT NOT NULL UNIQUE, title TEXT NOT NULL, folder TEXT NOT NULL,
    address TEXT NOT NULL, etag TEXT NOT NULL, last_modified TEXT NOT NULL, next_check INTEGER NOT NULL,
    checked_at INTEGER NOT NULL, fetched_at INTEGER NOT NULL, status INTEGER NOT NULL, errors INTEGER NOT NULL,
    last_error TEXT NOT NULL, sha256 TEXT NOT NULL, hints TEXT NOT NULL, stopped INTEGER NOT NULL
);
CREATE TABLE hosts (
    host TEXT PRIMARY KEY, asked_at INTEGER NOT NULL DEFAULT 0, paused_until INTEGER NOT NULL DEFAULT 0,
    robots TEXT, robots_at INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE archive (mark TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class HostState:
    """When a request to a host last began or ended, until when it wants none, and its robots.txt as of a time.

    `robots` is None where it is not known, "" where there is none. Times are microseconds, 0 for never.
    """

    host: str
    asked_at: int = 0
    paused_until: int = 0
    robots: str | None = None
    robots_at: int = 0


class FetchStore:
    """The state file. Without `write` it is only read, and must be there."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        """SourceError for a file that is missing, is not ours, is of another format, or is being written."""
        self._lock: BinaryIO | None = None
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path)
            own(path)
        elif not path.is_file():
            raise SourceError(str(path), "there is no state of a fetch", "mmqjp fetch makes one")
        self._database = sqlite3.connect(path, isolation_level=None)
        try:
            self._open(path)
        except sqlite3.DatabaseError as error:
            self.close()
            raise SourceError(str(path), f"cannot be used as the state of a fetch: {error}", "name another") from None
        except SourceError:
            self.close()
            raise

    def _open(self, path: Path) -> None:
        """Makes the tables in an empty file; raises for one that is not ours."""
        number = self._rows("PRAGMA user_version")[0][0]
        if number == 0 and self._lock is not None and not self._rows("SELECT 1 FROM sqlite_master"):
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")
            number = FORMAT
        if number != FORMAT:
            cause = f"the state has format {number}, and this version of mmqjp reads format {FORMAT}"
            raise SourceError(str(path), cause, "name another, or use the version that wrote it")
        # A power failure may take back the last commits, in order: what they told is then fetched or found again.
        self._database.execute("PRAGMA synchronous = NORMAL")

    def __enter__(self) -> FetchStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()
        if self._lock is not None:
            self._lock.close()

    def feeds(self) -> list[FeedState]:
        """All feeds, in the order in which they were added."""
        return [_feed(row) for row in self._rows(f"SELECT {', '.join(_COLUMNS)} FROM feeds ORDER BY rowid")]

    def add(self, feeds: Iterable[FeedState]) -> None:
        """Takes in the feeds that are not known; of known ones, only a title, with its folder."""
        marks = ", ".join("?" * len(_COLUMNS))
        titled = "DO UPDATE SET title = excluded.title, folder = excluded.folder WHERE excluded.title <> ''"
        with self._database:
            self._database.execute("BEGIN")
            self._database.executemany(
                f"INSERT INTO feeds VALUES ({marks}) ON CONFLICT (url) {titled}", map(_row, feeds)
            )

    def commit(self, feed: FeedState, mark: str | None = None) -> None:
        """Writes a feed's new state and, with it, how far the archive is whole."""
        changes = ", ".join(f"{name} = ?" for name in _COLUMNS)
        with self._database:
            self._database.execute("BEGIN")
            self._database.execute(f"UPDATE feeds SET {changes} WHERE url = ?", (*_row(feed), feed.url))
            if mark is not None:
                self._set_mark(mark)

    def archive_mark(self) -> str:
        """What was last committed as `mark`."""
        return next((row[0] for row in self._rows("SELECT mark FROM archive")), "")

    def save_mark(self, mark: str) -> None:
        """Commits a mark on its own."""
        with self._database:
            self._database.execute("BEGIN")
            self._set_mark(mark)

    def _set_mark(self, mark: str) -> None:
        self._database.execute("DELETE FROM archive")
        self._database.execute("INSERT INTO archive VALUES (?)", (mark,))

    def host(self, host: str) -> HostState:
        rows = self._rows("SELECT * FROM hosts WHERE host = ?", host)
        return HostState(*rows[0]) if rows else HostState(host)

    def save_host(self, host: HostState) -> None:
        self._database.execute("INSERT OR REPLACE INTO hosts VALUES (?, ?, ?, ?, ?)", astuple(host))

    def _rows(self, sql: str, *values: object) -> list[Any]:
        return self._database.execute(sql, values).fetchall()


def _locked(path: Path) -> BinaryIO:
    lock = path.with_name(f"{path.name}.lock")
    own(lock)  # whoever may open it may lock it
    file = lock.open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise SourceError(str(path), "another fetch is using this state", "wait for it, or end it") from None
    return file


def _row(feed: FeedState) -> tuple[object, ...]:
    return tuple(feed.hints.to_json() if name == "hints" else getattr(feed, name) for name in _COLUMNS)


def _feed(row: tuple[Any, ...]) -> FeedState:
    values = dict(zip(_COLUMNS, row, strict=True))
    values["stopped"] = bool(values["stopped"])
    values["hints"] = Hints.from_json(values["hints"])
    return FeedState(**values)
