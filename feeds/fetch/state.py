"""The state of fetching in one SQLite file (feeds, hosts, the archive's mark), and the schedule of fetches.

Each outcome is one transaction, including the visit that the archive has yet to record. WAL mode lets `mmqjp feeds`
read during a fetch; a lock file admits one writer. Each row has a digest, because SQLite does not detect a changed
byte. Other processes change the feeds through files in a directory beside the state, named by time and renamed into
place; a running fetch applies them. Scheduling is pure: a state, an outcome and a random number give the next state. Of
feeds that moved to the same address, one is fetched and the others wait.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast
from urllib.parse import urlsplit
from uuid import uuid4

from common.dates import DAY, EPOCH, HOUR, MINUTE
from common.files import keep_private, lock, make_private_file, write_whole
from feeds.documents import Now, SourceError, now_us
from feeds.fetch.http import FetchedAlready, FetchError, Gone, Hints
from feeds.fetch.settings import NONE, NOTHING_SET, BadSettings, FeedSettings, SettingsOf, effective_settings
from feeds.history import NotedVisit
from feeds.items import without_credentials

JITTER = 0.1  # maximum fraction added to a wait, so that feeds do not remain synchronised

_EPOCH_WEEKDAY = EPOCH.weekday()


@dataclass(frozen=True, slots=True)
class Pace:
    """Fetch intervals in microseconds: `interval`, or more if the feed or its server demands it, up to `longest`. After
    consecutive failures: `backoff`, doubled each time, up to `longest`."""

    interval: int = HOUR
    longest: int = DAY
    backoff: int = 10 * MINUTE


def after_success(now: int, fresh: int, hints: Hints, pace: Pace, random: float) -> int:
    """The next check of a feed whose answer is fresh for `fresh` microseconds; `random` is in [0, 1). The wait is
    between `pace.interval` and `pace.longest` plus jitter, and longer only for skipped hours and days."""
    wait = min(max(pace.interval, fresh, hints.interval), max(pace.longest, pace.interval))
    return outside_skipped(now + _jittered(wait, random), hints, random)


def after_failure(now: int, errors: int, not_before: int | None, hints: Hints, pace: Pace, random: float) -> int:
    """The next check after `errors` consecutive failures (from 1), never before `not_before`."""
    wait = min(pace.backoff << min(errors - 1, 40), max(pace.longest, pace.backoff))
    soonest = now + _jittered(wait, random)
    return outside_skipped(max(soonest, not_before or soonest), hints, random)


def outside_skipped(moment: int, hints: Hints, random: float) -> int:
    """The moment, or one in the next hour that the feed does not skip. If it skips all hours, the moment."""
    if not _is_skipped(moment, hints):
        return moment
    start = moment - moment % HOUR
    open_hours = (hour for hour in range(start + HOUR, start + 7 * DAY + 1, HOUR) if not _is_skipped(hour, hints))
    return next((hour + int(random * 10 * MINUTE) for hour in open_hours), moment)


def _is_skipped(moment: int, hints: Hints) -> bool:
    weekday = (moment // DAY + _EPOCH_WEEKDAY) % 7
    return moment % DAY // HOUR in hints.skip_hours or weekday in hints.skip_days


def _jittered(wait: int, random: float) -> int:
    return wait + int(wait * JITTER * random)


_UNSAFE = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class FeedState:
    """A feed, by its subscribed address. Times are microseconds of UTC, 0 for never.

    `url` and `address` may contain credentials; `shown` never does. `title` is the user's, and `folder` has the paths
    of the user's folders, one per line. `source` is its name in archives. `address` is where it is fetched now, after
    permanent redirects and links from its page. `errors` counts failures since the last success. `stopped`: it is not
    fetched.
    """

    url: str
    source: str
    title: str = ""
    folder: str = ""
    address: str = ""
    etag: str = ""
    last_modified: str = ""
    next_check: int = 0
    checked_at: int = 0
    fetched_at: int = 0
    status: int = 0
    errors: int = 0
    last_error: str = ""
    sha256: str = ""
    hints: Hints = field(default_factory=Hints)
    stopped: bool = False

    @property
    def shown(self) -> str:
        return without_credentials(self.url)

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(self.folder.splitlines())

    def is_overdue(self, now: int) -> bool:
        """Whether readers must be asked to wait for it: it was never fetched successfully, or, without failing, not for
        more than twice its interval."""
        return not self.fetched_at or (not self.errors and now - self.checked_at > 2 * (self.hints.wait or HOUR))

    def ended(self, now: int) -> NotedVisit:
        """The visit that ends waiting for the feed: its first fetch failed, or it is no longer fetched."""
        return NotedVisit(self.shown, now, "ended", self.fetched_at or None)


def source_name(url: str) -> str:
    """The directory name of a feed: readable, safe on any file system, and unique.

    >>> source_name("https://example.org/feed.xml?tag=a")
    'example-org-feed-xml-tag-a-732f759c1067'
    """
    parts = urlsplit(url)
    readable = _UNSAFE.sub("-", f"{parts.hostname or ''} {parts.path} {parts.query}".lower()).strip("-")[:60]
    return f"{readable.rstrip('-')}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


def after_failed_visit(feed: FeedState, error: FetchError, now: int, pace: Pace, random: float) -> FeedState:
    errors = feed.errors + 1
    check = after_failure(now, errors, error.not_before, feed.hints, pace, random)
    failed = replace(feed, status=error.status, errors=errors, last_error=without_credentials(str(error)))
    return replace(failed, next_check=check, checked_at=now, stopped=isinstance(error, Gone))


def put_aside(feed: FeedState, already: FetchedAlready, now: int, pace: Pace, random: float) -> FeedState:
    """Postpones the feed while its address is fetched as another feed. A later visit checks again."""
    check, cause = after_success(now, 0, Hints(), pace, random), without_credentials(str(already))
    return replace(feed, address=already.address, next_check=check, checked_at=now, errors=0, last_error=cause)


STATE_FILE = "fetch.sqlite"
FORMAT = 2  # the file's format; rows have digests since 2

_NAMES = [field.name for field in fields(FeedState)]
_COLUMNS = ", ".join(_NAMES)
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
_PAGES = """CREATE TABLE IF NOT EXISTS page_chains (
    feed TEXT PRIMARY KEY, span INTEGER NOT NULL, since INTEGER NOT NULL, relation TEXT NOT NULL, next TEXT NOT NULL,
    pages INTEGER NOT NULL, bytes INTEGER NOT NULL, seen TEXT NOT NULL, failures INTEGER NOT NULL,
    next_check INTEGER NOT NULL, error TEXT NOT NULL, done INTEGER NOT NULL, digest INTEGER NOT NULL DEFAULT 0
)"""
_HUBS = """CREATE TABLE IF NOT EXISTS hub_subscriptions (
    token TEXT PRIMARY KEY, feed TEXT NOT NULL, hub TEXT NOT NULL, topic TEXT NOT NULL, callback TEXT NOT NULL,
    secret TEXT NOT NULL, mode TEXT NOT NULL, next_check INTEGER NOT NULL, until INTEGER NOT NULL,
    pushed_at INTEGER NOT NULL, failures INTEGER NOT NULL, error TEXT NOT NULL, digest INTEGER NOT NULL DEFAULT 0
)"""
_VISITS = """CREATE TABLE IF NOT EXISTS noted_visits (
    feed TEXT PRIMARY KEY, time INTEGER NOT NULL, outcome TEXT NOT NULL, since INTEGER, status INTEGER NOT NULL,
    error TEXT NOT NULL, address TEXT NOT NULL, digest INTEGER NOT NULL DEFAULT 0
)"""
_SETTINGS = """CREATE TABLE IF NOT EXISTS settings (
    scope TEXT NOT NULL, name TEXT NOT NULL, settings TEXT NOT NULL, digest INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope, name)
)"""
_ADDED = _VISITS, _PAGES, _HUBS, _SETTINGS  # older versions did not create these tables, and ignore them


@dataclass(frozen=True, slots=True)
class HostState:
    """When the last request to a host began or ended, until when it is paused, and its robots.txt (None if unknown, ""
    if missing) with the time of its fetch. Times are microseconds, 0 for never."""

    host: str
    asked_at: int = 0
    paused_until: int = 0
    robots: str | None = None
    robots_at: int = 0


SettingsScope = Literal["feed", "folder"]


@dataclass(frozen=True, slots=True)
class PageChain:
    """How far the older pages of a feed, by its subscribed address, were read (see `feeds.fetch.archives`). Wanted are
    the entries of the last `span` before the chain was begun, those after `since`. `relation` is that of the links
    followed, `next` the page to read next ("" if none), at `next_check`. `seen` holds digests of addresses and bodies.
    `failures` counts consecutive failures; `error` is the last one or, once `done`, why the chain ended early. Times
    are microseconds."""

    feed: str
    span: int
    since: int
    relation: str = ""
    next: str = ""
    pages: int = 0
    bytes: int = 0
    seen: str = ""
    failures: int = 0
    next_check: int = 0
    error: str = ""
    done: bool = False


@dataclass(frozen=True, slots=True)
class HubSubscription:
    """A subscription of `topic` at a WebSub hub for a feed (see `feeds.fetch.hubs`). `token` is the secret part of the
    address below `callback` that the hub calls, `secret` the key of its signatures. `mode` is the next request,
    "subscribe" or "unsubscribe", or "spare" while another hub of the feed is in use; it is due at `next_check`. `until`
    is the end of the lease, 0 before the hub has verified the subscription. `failures` counts consecutive failures, and
    `error` is the last one. Times are microseconds, 0 for never."""

    token: str
    feed: str
    hub: str
    topic: str
    callback: str
    secret: str
    mode: str = "subscribe"
    next_check: int = 0
    until: int = 0
    pushed_at: int = 0
    failures: int = 0
    error: str = ""


def find_subscription(path: Path, token: str) -> HubSubscription | None:
    """Looks up a subscription beside a running fetch. Skips the checks of the whole file, because anybody may trigger
    it. Raises sqlite3.Error."""
    if not path.is_file():
        return None
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        columns = f"{_names(HubSubscription)}, digest"
        try:
            rows = database.execute(f"SELECT {columns} FROM hub_subscriptions WHERE token = ?", (token,)).fetchall()
        except sqlite3.OperationalError:  # a file of an older version lacks the table
            return None
    return next((HubSubscription(*row) for *row, digest in rows if digest == _digest(row)), None)


class FetchIsRunning(SourceError):
    """Another process fetches with the same state."""


class FetchStore(AbstractContextManager["FetchStore"]):
    """The state file. Without `write` it must exist, and is read-only."""

    def __init__(self, path: Path, *, write: bool = False, now: Now = now_us) -> None:
        """Raises SourceError if the file is missing, is not ours, has another format, or is locked by a writer."""
        self._lock: BinaryIO | None = None
        self._now = now
        self._settings: SettingsOf | None = None
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path)
            make_private_file(path)
        elif not path.is_file():
            raise SourceError(str(path), "there is no state of a fetch", "mmqjp fetch creates one")
        self._path = path
        self._database = sqlite3.connect(path, isolation_level=None)
        try:
            with self._told():
                self._open()
        except SourceError:
            self.close()
            raise

    def _open(self) -> None:
        """Creates the tables in an empty file. Raises SourceError for a file that is not ours."""
        number = self._rows("PRAGMA user_version")[0][0]
        if number == 0 and self._lock is not None and not self._rows("SELECT 1 FROM sqlite_master"):
            self._rows("PRAGMA journal_mode = WAL")
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
        for table in _ADDED if self._lock is not None else ():
            self._rows(table)
        # A power failure may undo the last commits, in order: what they recorded is then fetched or found again.
        self._database.execute("PRAGMA synchronous = NORMAL")

    def _add_digests(self) -> None:
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
        try:
            yield
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
                raise SourceError(str(self._path), f"cannot be written: {error}", "free some disk space") from None
            raise self._damaged(str(error)) from None

    def _damaged(self, cause: str) -> SourceError:
        message = f"cannot be used as the state of a fetch: {' '.join(cause.split())}"
        return SourceError(str(self._path), message, "name another, or restore an older copy")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._told(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()
        if self._lock is not None:
            self._lock.close()

    def feeds(self) -> list[FeedState]:
        """All feeds in order of addition. Raises SourceError if a row is damaged."""
        return [_feed(row) for row in self._sealed(_COLUMNS, "feeds ORDER BY rowid")]

    def feed(self, url: str) -> FeedState | None:
        return next(map(_feed, self._sealed(_COLUMNS, "feeds WHERE url = ?", url)), None)

    def add(self, feeds: Iterable[FeedState]) -> None:
        """Adds unknown feeds. A known feed takes a new title and folders, if given."""
        with self._transaction():
            for feed in feeds:
                known = self._sealed(_COLUMNS, "feeds WHERE url = ?", feed.url)
                if not known:
                    marks = ", ".join("?" * (len(_NAMES) + 1))
                    self._rows(f"INSERT INTO feeds ({_COLUMNS}, digest) VALUES ({marks})", *_row(feed))
                elif feed.title or feed.folder:
                    before = _feed(known[0])
                    self._write(replace(before, title=feed.title or before.title, folder=feed.folder))

    def remove(self, urls: Iterable[str]) -> None:
        with self._transaction():
            for url in urls:
                known = map(_feed, self._sealed(_COLUMNS, "feeds WHERE url = ?", url))
                self._add_visits(feed.ended(self._now()) for feed in known)
                self._rows("DELETE FROM feeds WHERE url = ?", url)
                self._rows("DELETE FROM page_chains WHERE feed = ?", url)
                self._rows("DELETE FROM hub_subscriptions WHERE feed = ? AND mode = 'spare'", url)
                for one in self.subscriptions(url):
                    self._put("hub_subscriptions", replace(one, mode="unsubscribe", next_check=0, failures=0))
                self._rows("DELETE FROM settings WHERE scope = 'feed' AND name = ?", url)
                self._settings = None

    def settings(self) -> SettingsOf:
        """The settings of feeds and folders. Raises SourceError if a row is damaged."""
        if self._settings is None:
            self._settings = SettingsOf({}, {})
            if self._has("settings"):
                found: dict[str, dict[str, FeedSettings]] = {"feed": {}, "folder": {}}
                for scope, name, text in self._sealed("scope, name, settings", "settings ORDER BY scope, name"):
                    found[scope][name] = FeedSettings.from_json(text, f"{self._path}: settings of {name}: ")
                self._settings = SettingsOf(found["feed"], found["folder"])
        return self._settings

    def change_settings(self, scope: SettingsScope, name: str, table: Mapping[str, object]) -> None:
        """Sets keys of a feed (by address) or folder (by path); None unsets one. Raises BadSettings."""
        known = cast(dict[str, FeedSettings], self.settings().feeds if scope == "feed" else self.settings().folders)
        made = known.get(name, NONE).changed(table, _place(name))
        with self._transaction():
            self._rows("DELETE FROM settings WHERE scope = ? AND name = ?", scope, name)
            if made != NONE:
                row = scope, name, made.to_json()
                self._rows("INSERT INTO settings VALUES (?, ?, ?, ?)", *row, _digest(row))
        known[name] = made
        if made == NONE:
            del known[name]

    def commit(self, feed: FeedState, mark: str | None = None, visit: NotedVisit | None = None) -> None:
        with self._transaction():
            self._write(feed)
            if mark is not None:
                self._set_mark(mark)
            if visit is not None:
                self._add_visits([visit])

    def commit_all(self, feeds: Iterable[FeedState]) -> None:
        with self._transaction():
            for feed in feeds:
                self._write(feed)

    def visits(self) -> list[NotedVisit]:
        """The last visit of each feed that the archive has yet to record, in order."""
        return [NotedVisit(*row) for row in self._sealed(_names(NotedVisit), "noted_visits ORDER BY rowid")]

    def add_visits(self, visits: Iterable[NotedVisit]) -> None:
        with self._transaction():
            self._add_visits(visits)

    def drop_visits(self, mark: str | None) -> None:
        """Removes the visits, which the archive has recorded before `mark`."""
        with self._transaction():
            self._rows("DELETE FROM noted_visits")
            if mark is not None:
                self._set_mark(mark)

    def _add_visits(self, visits: Iterable[NotedVisit]) -> None:
        for visit in visits:
            row = astuple(visit)
            self._rows("INSERT OR REPLACE INTO noted_visits VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row, _digest(row))

    def chains(self) -> dict[str, PageChain]:
        """The chains of older pages, by feed."""
        rows = self._sealed(_names(PageChain), "page_chains") if self._has("page_chains") else []
        return {str(row[0]): replace(PageChain(*row), done=bool(row[-1])) for row in rows}

    def save_chain(self, chain: PageChain, mark: str | None = None) -> None:
        with self._transaction():
            self._put("page_chains", chain)
            if mark is not None:
                self._set_mark(mark)

    def subscriptions(self, feed: str | None = None) -> list[HubSubscription]:
        """The subscriptions at hubs, of one feed or of all."""
        if not self._has("hub_subscriptions"):
            return []
        where, values = ("WHERE feed = ?", (feed,)) if feed is not None else ("", ())
        found = self._sealed(_names(HubSubscription), f"hub_subscriptions {where} ORDER BY rowid", *values)
        return [HubSubscription(*row) for row in found]

    def save_subscriptions(self, *changed: HubSubscription) -> None:
        with self._transaction():
            for one in changed:
                self._put("hub_subscriptions", one)

    def drop_subscription(self, token: str) -> None:
        with self._told():
            self._rows("DELETE FROM hub_subscriptions WHERE token = ?", token)

    def _has(self, table: str) -> bool:
        """Whether a table exists that older versions did not create."""
        with self._told():
            return bool(self._rows("SELECT 1 FROM sqlite_master WHERE name = ?", table))

    def _put(self, table: str, one: PageChain | HubSubscription) -> None:
        row = astuple(one)
        self._rows(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * (len(row) + 1))})", *row, _digest(row))

    def archive_mark(self) -> str:
        return next((str(row[0]) for row in self._sealed("mark", "archive")), "")

    def save_mark(self, mark: str) -> None:
        with self._transaction():
            self._set_mark(mark)

    def _write(self, feed: FeedState) -> None:
        changes = ", ".join(f"{name} = ?" for name in (*_NAMES, "digest"))
        self._rows(f"UPDATE feeds SET {changes} WHERE url = ?", *_row(feed), feed.url)

    def _set_mark(self, mark: str) -> None:
        self._rows("DELETE FROM archive")
        self._rows("INSERT INTO archive VALUES (?, ?)", mark, _digest((mark,)))

    def host(self, host: str) -> HostState:
        rows = self._sealed("host, asked_at, paused_until, robots, robots_at", "hosts WHERE host = ?", host)
        return HostState(*rows[0]) if rows else HostState(host)

    def save_host(self, host: HostState) -> None:
        row = astuple(host)
        with self._told():
            self._rows("INSERT OR REPLACE INTO hosts VALUES (?, ?, ?, ?, ?, ?)", *row, _digest(row))

    def _rows(self, sql: str, *values: object) -> list[Any]:
        return self._database.execute(sql, values).fetchall()

    def _sealed(self, columns: str, where: str, *values: object) -> list[tuple[Any, ...]]:
        with self._told():
            rows = self._rows(f"SELECT {columns}, {'digest' if self._digests else 'NULL'} FROM {where}", *values)
        for *row, digest in rows:
            if digest is not None and digest != _digest(row):
                raise self._damaged(f"a row of {where.split()[0]} has a wrong digest")
        return [tuple(row) for *row, _ in rows]


def _names(kind: type) -> str:
    return ", ".join(field.name for field in fields(kind))


def _locked(path: Path) -> BinaryIO:
    beside = path.with_name(f"{path.name}.lock")
    make_private_file(beside)  # anybody who can open it can lock it
    file = beside.open("wb")
    try:
        if not lock(file.fileno()):
            raise FetchIsRunning(str(path), "another fetch is using this state", "wait for it, or end it")
    except BaseException:
        file.close()
        raise
    return file


def _row(feed: FeedState) -> tuple[object, ...]:
    """The columns of a feed and their digest."""
    row = [feed.hints.to_json() if name == "hints" else getattr(feed, name) for name in _NAMES]
    return (*row, _digest(row))


def _feed(row: tuple[Any, ...]) -> FeedState:
    *values, hints, stopped = row
    return FeedState(*(*values, Hints.from_json(hints), bool(stopped)))


def _digest(row: Iterable[object]) -> int:
    """A digest of a row as SQLite returns it, with 1 for true. It detects damage, not malice."""
    plain = [int(value) if isinstance(value, bool) else value for value in row]
    return zlib.crc32(json.dumps(plain).encode())


DIRECTORY = ".{}.changes"
"""The directory's name, from that of the state file. Readers of drops skip names with a leading dot."""

POLL = 0.05  # seconds between two polls for an applied change


@dataclass(frozen=True, slots=True)
class AddedFeed:
    """A feed to add, by its address as requested. A title or folder of "" keeps the known one. `settings` is JSON."""

    url: str
    title: str = ""
    folder: str = ""
    settings: str = ""


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """Settings to change for a feed or folder, as a JSON object; null unsets a key."""

    scope: SettingsScope
    name: str
    table: str


@dataclass(frozen=True, slots=True)
class FeedChange:
    """Feeds to add, addresses of feeds to remove or to make due now (even if stopped), and settings."""

    add: tuple[AddedFeed, ...] = ()
    remove: tuple[str, ...] = ()
    retry: tuple[str, ...] = ()
    settings: tuple[SettingsChange, ...] = ()

    @property
    def urls(self) -> frozenset[str]:
        of_feeds = (one.name for one in self.settings if one.scope == "feed")
        return frozenset((*(feed.url for feed in self.add), *self.remove, *self.retry, *of_feeds))

    @property
    def _settings(self) -> Iterator[SettingsChange]:
        yield from (SettingsChange("feed", added.url, added.settings) for added in self.add if added.settings)
        yield from self.settings

    def check(self, known: SettingsOf) -> None:
        """Raises BadSettings if keys contradict existing settings."""
        for one in self._settings:
            before = (known.feeds if one.scope == "feed" else known.folders).get(one.name, NONE)
            before.changed(json.loads(one.table), _place(one.name))

    def make(self, store: FetchStore) -> list[FeedState]:
        """Applies the change. Returns the feeds that were added, made due, or got other settings. Raises SourceError,
        or BadSettings with nothing changed."""
        self.check(store.settings())
        known = {feed.url: feed for feed in store.feeds()}
        before = SettingsOf(dict(store.settings().feeds), dict(store.settings().folders))
        folders = {one.url: one.folder or (known[one.url].folder if one.url in known else "") for one in self.add}
        store.add(FeedState(one.url, source_name(one.url), one.title, folders[one.url]) for one in self.add)
        store.remove(self.remove)
        for url in self.retry:
            if url in known and url not in self.remove:
                store.commit(replace(known[url], next_check=0, stopped=False))
                if (chain := store.chains().get(url)) is not None and chain.error and chain.next:
                    store.save_chain(replace(chain, failures=0, next_check=0, done=False))
        for one in self._settings:
            store.change_settings(one.scope, one.name, json.loads(one.table))
        wanted = self.urls.difference(self.remove)
        if store.settings() != before:
            wanted = wanted.union(_ask_anew(store, before))
        return [feed for feed in store.feeds() if feed.url in wanted]


def _place(name: str) -> str:
    return f"{without_credentials(name) or 'all feeds'}: "


def _ask_anew(store: FetchStore, before: SettingsOf) -> set[str]:
    """Reschedules feeds whose settings have changed, and returns their addresses. Validators are dropped, since answers
    may differ; failing feeds are retried; a shorter interval counts from the last visit; older pages are begun."""
    changed: list[FeedState] = []
    for feed in store.feeds():
        old, new = (effective_settings(feed.url, feed.folders, NOTHING_SET, one) for one in (before, store.settings()))
        if old != new:
            longest = min((one for one in (new.longest, new.interval) if one is not None), default=None)
            sooner = feed.next_check if longest is None else min(feed.next_check, feed.checked_at + longest)
            due = 0 if feed.errors or (new.history and new.history != old.history) else sooner
            changed.append(replace(feed, etag="", last_modified="", next_check=due))
    store.commit_all(changed)
    return {feed.url for feed in changed}


def change_feeds(
    state: Path, change: FeedChange, wait: float = 0.0, sleep: Callable[[float], object] = time.sleep
) -> bool:
    """Changes the feeds of a state file, creating it if needed. Returns whether the change was applied: if a fetch is
    running, that applies it, and this waits up to `wait` seconds. Raises SourceError, BadSettings, OSError."""
    waiting = ChangesOf(state)
    try:
        with FetchStore(state, write=True) as store:
            waiting.take(store)
            change.make(store)
            return True
    except FetchIsRunning:
        with FetchStore(state) as store:
            change.check(store.settings())
        path = waiting.ask(change)
    for _ in range(int(wait / POLL)):
        if path.exists():
            sleep(POLL)
    return not path.exists()


class ChangesOf:
    def __init__(self, state: Path) -> None:
        self.state = state
        self._directory = state.with_name(DIRECTORY.format(state.name))

    def ask(self, change: FeedChange) -> Path:
        """Leaves a change for the running fetch, which deletes the file once it is applied. Raises OSError."""
        self._directory.mkdir(0o700, exist_ok=True)
        keep_private(self._directory)  # addresses may have passwords
        path = self._directory / f"{now_us():019d}-{uuid4().hex}.json"
        write_whole(path, json.dumps(asdict(change)))
        return path

    def take(self, store: FetchStore, busy: Collection[str] = ()) -> tuple[list[FeedState], set[str]]:
        """Applies the pending changes, oldest first, stopping before one of a `busy` feed. Returns the feeds that are
        new or due now, and the addresses of removed ones. Raises SourceError."""
        changed: dict[str, FeedState] = {}
        removed: set[str] = set()
        for path in sorted(self._directory.glob("[!.]*.json")):
            if (change := _read(path)) is not None:
                if not change.urls.isdisjoint(busy):
                    break
                made: dict[str, FeedState] = {}
                with suppress(BadSettings):  # the sender has checked them
                    made = {feed.url: feed for feed in change.make(store)}
                removed = removed.union(change.remove).difference(made)
                changed = {url: feed for url, feed in (changed | made).items() if url not in removed}
            path.unlink(missing_ok=True)
        return list(changed.values()), removed


def _read(path: Path) -> FeedChange | None:
    try:
        found = json.loads(path.read_bytes())
        texts = tuple(map(str, found["remove"])), tuple(map(str, found["retry"]))
        added = tuple(AddedFeed(**one) for one in found["add"])
        return FeedChange(added, *texts, tuple(SettingsChange(**one) for one in found.get("settings", ())))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class AddressClaims:
    """Which feed is fetched at an address: the one subscribed under it, else the one already fetched there, else the
    first. A feed that fails or is gone for good gives up the address to the next."""

    def __init__(self, feeds: Iterable[FeedState]) -> None:
        self._order: dict[str, int] = {}
        self._feeds: dict[str, FeedState] = {}
        self._at: dict[str, set[str]] = {}
        self._claimed: dict[str, str] = {}
        self._claims: dict[str, set[str]] = {}
        for feed in feeds:
            self.update(feed)

    def update(self, feed: FeedState) -> None:
        before = self._feeds.get(feed.url)
        if before is not None:
            self._at[_current_address(before)].discard(feed.url)
        self._feeds[feed.url] = feed
        self._order.setdefault(feed.url, len(self._order))
        self._at.setdefault(_current_address(feed), set()).add(feed.url)

    def remove(self, url: str) -> None:
        if (before := self._feeds.pop(url, None)) is not None:
            self._at[_current_address(before)].discard(url)

    def claim(self, feed: FeedState, address: str) -> None:
        """Claims an address during the feed's visit. Raises FetchedAlready if another feed has it."""
        holder = self._claimed.get(address, feed.url)
        if holder == feed.url:
            there = map(self._feeds.__getitem__, self._at.get(address, ()))
            fit = (other.url for other in there if other.errors == 0 and not other.stopped)
            holder = min((feed.url, *fit), key=lambda url: self._rank(url, address))
        if holder != feed.url:
            raise FetchedAlready(holder, address)
        self._claimed[address] = feed.url
        self._claims.setdefault(feed.url, set()).add(address)

    @contextmanager
    def visited(self, feed: FeedState) -> Iterator[None]:
        try:
            yield
        finally:
            for address in self._claims.pop(feed.url, ()):
                del self._claimed[address]

    def _rank(self, url: str, address: str) -> tuple[bool, bool, int]:
        feed = self._feeds[url]
        return url != address, _current_address(feed) != address or not feed.fetched_at, self._order[url]


def _current_address(feed: FeedState) -> str:
    return feed.address or feed.url
