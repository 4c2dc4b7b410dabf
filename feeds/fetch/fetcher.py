"""Fetches due feeds, once or continually, and stores new versions in an archive. Each outcome is one commit.

It is polite to hosts: robots.txt, limited concurrency, a delay between requests, and pauses on demand. An archive is a
drop directory, or WARC files with a response record per version, and a revisit record if a feed is unchanged. Readers
learn from it how far each feed was visited; so it also records feeds that are about to be visited for the first time,
and feeds that readers need not wait for. Older pages of a feed are stored beside its versions; they are not visits."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import sqlite3
from abc import ABC, abstractmethod
from base64 import b32encode
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

import httpx
from protego import Protego
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from common.dates import DAY, HOUR, MINUTE, SECOND, iso_utc
from common.errors import InputError
from common.files import drafts, sync_directory, write_whole
from feeds.confined import ConfinedError, confined_aside
from feeds.documents import SourceError
from feeds.fetch import archives, http
from feeds.fetch.hubs import SLOWER, HubMailbox, Hubs, OnEvent
from feeds.fetch.settings import (
    NONE,
    NOTHING_SET,
    FeedAccess,
    FeedSettings,
    SecretValue,
    SettingsOf,
    access_of,
    effective_settings,
    no_secret,
)
from feeds.fetch.state import (
    STATE_FILE,
    AddressClaims,
    ChangesOf,
    FeedChange,
    FeedState,
    FetchStore,
    HostState,
    Pace,
    PageChain,
    SettingsChange,
    after_failed_visit,
    after_success,
    put_aside,
)
from feeds.files import FEED_SUFFIX, SIDECAR_SUFFIX, VISITS_SUFFIX, WARC_SUFFIX
from feeds.history import NotedVisit
from feeds.items import one_line, without_credentials
from feeds.readers import (
    ADDRESS,
    FINAL_URI,
    FOLDER,
    LONGEST_ERROR,
    PAGE,
    READING,
    TITLE,
    VISITS,
    VISITS_URI,
    Sidecar,
    drop_stem,
    read_stem,
    sidecar_json,
    visits_text,
)
from feeds.rules import ReadingRules


@dataclass(frozen=True, slots=True)
class Capture:
    """A fetched feed: facts about the fetch, its name in archives, and the answer's headers and decoded body."""

    about: Sidecar
    source: str
    headers: Sequence[tuple[str, str]]
    body: bytes = field(repr=False)

    @property
    def stem(self) -> str:
        return drop_stem(self.fetched, self.about.sha256)

    @property
    def fetched(self) -> int:
        assert self.about.fetched is not None, "a fetched feed has a time"
        return self.about.fetched


class Archive(ABC):
    """Stores each version of a feed once. What `keep` has written survives a kill once the store has committed `mark`.
    After an earlier kill, an archive either finds the version again (`newest`) or truncates it on opening."""

    @property
    def mark(self) -> str | None:
        """The archive's durable position, for the store to commit with the feed's state; None if it needs none."""
        return None

    def newest(self, source: str) -> tuple[int, str] | None:
        """The time and hash of the last stored version of a feed; None if only the store knows them."""
        return None

    def body(self, source: str) -> bytes:
        """The last stored version of a feed; b"" if that cannot be read here."""
        return b""

    @abstractmethod
    def keep(self, capture: Capture) -> None:
        """Writes a version. After a kill, readers see all of it or nothing."""

    def met_again(self, capture: Capture, since: int) -> NotedVisit | None:
        """Records that a feed is unchanged since its last version, stored at `since` (microseconds), or returns the
        visit for a later `note`."""
        return NotedVisit(capture.about.url, capture.fetched, "complete", since, address=capture.about.address)

    @abstractmethod
    def note(self, visits: Sequence[NotedVisit], now: int) -> None:
        """Records visits as durably as a version. After a kill the same visits may be recorded again."""

    def finish(self) -> None:  # noqa: B027  # optional
        """Makes all stored versions readable. Call once they are committed."""

    def close(self) -> None:  # noqa: B027  # optional
        """Closes open files."""


class DropArchive(Archive):
    """An archive with one file per version. It needs no mark: the directory is its own index."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._noted: tuple[int, str] | None = None
        """The time and hash of the last file of visits. Cached, because a directory may have very many."""
        directory.mkdir(parents=True, exist_ok=True)
        for folder in directory.iterdir():
            for draft in drafts(folder):
                if read_stem(draft.name.split(".")[1]):  # left by a killed fetch
                    draft.unlink()

    def newest(self, source: str) -> tuple[int, str] | None:
        return self._newest(source, FEED_SUFFIX)

    def body(self, source: str) -> bytes:
        if (newest := self.newest(source)) is None:
            return b""
        try:
            return (self._directory / source / f"{drop_stem(*newest)}{FEED_SUFFIX}").read_bytes()
        except OSError:
            return b""

    def _newest(self, folder: str, suffix: str) -> tuple[int, str] | None:
        try:
            names = list((self._directory / folder).iterdir())
        except FileNotFoundError:
            return None
        return max(filter(None, (read_stem(path.stem) for path in names if path.suffix == suffix)), default=None)

    def _folder(self, name: str) -> Path:
        directory = self._directory / name
        if not directory.is_dir():
            directory.mkdir(self._directory.stat().st_mode & 0o777)
            sync_directory(self._directory)
        return directory

    def note(self, visits: Sequence[NotedVisit], now: int) -> None:
        content = visits_text(visits)
        sha256 = hashlib.sha256(content).hexdigest()
        written, known = self._noted or self._newest(VISITS, VISITS_SUFFIX) or (0, "")
        if known != sha256:  # otherwise a kill came before the store's commit
            # Names sort in the order of writing, and after the versions that the visits refer to, even if the clock is
            # set back.
            written = max(now, written + 1, *(visit.time for visit in visits))
            write_whole(self._folder(VISITS) / f"{drop_stem(written, sha256)}{VISITS_SUFFIX}", content)
        self._noted = written, sha256

    def keep(self, capture: Capture) -> None:
        directory = self._folder(capture.source)
        # In this order, so that a feed never appears without its sidecar.
        write_whole(directory / f"{capture.stem}{SIDECAR_SUFFIX}", sidecar_json(capture.about))
        write_whole(directory / f"{capture.stem}{FEED_SUFFIX}", capture.body)


OLDER = "-older"  # suffix of the folders of older pages, which are beside those of the versions


def remove_read(directory: Path, read: Container[str], before: int) -> None:
    """Removes the versions and files of visits in `read` (names below the directory) that were written before a time in
    microseconds, with their sidecars. Keeps the newest version of each feed and the newest visits."""
    folders = directory.iterdir() if directory.is_dir() else ()
    for source, suffix in product(folders, (FEED_SUFFIX, VISITS_SUFFIX)):
        paths = source.glob(f"*{suffix}") if source.is_dir() else ()
        versions = sorted((*stem, path) for path in paths if (stem := read_stem(path.stem)) is not None)
        for fetched, _, path in versions if source.name.endswith(OLDER) else versions[:-1]:
            if fetched < before and f"{source.name}/{path.name}" in read:
                # In this order: an orphaned sidecar would never be removed.
                path.with_suffix(SIDECAR_SUFFIX).unlink(missing_ok=True)
                path.unlink(missing_ok=True)


FILE_BYTES = 1024 * 1024 * 1024  # size at which the next file is started
FILE_AGE = 3600 * 1_000_000  # age of a file's first record, in microseconds, at which the next file is started
_OPEN = ".open"  # Suffix of a growing file. Readers skip it, and read the file once it is complete.
_PHRASES = {status.value: f" {status.phrase}" for status in HTTPStatus}
_OF_THE_TRANSFER = frozenset({"content-encoding", "content-length", "transfer-encoding", "connection"})


class WarcArchive(Archive):
    """An archive of WARC files, each named by the time of its first record, with each record compressed separately.

    `mark` is the last file's name and its committed size. Bytes after it are truncated when the archive is opened, and
    fetched again. `announce` commits a mark before its file is created, so that no other file is ever touched. A file
    gets its final name when the next one starts or the archive is finished.
    """

    def __init__(
        self, directory: Path, mark: str, announce: Callable[[str], None], file_bytes: int = FILE_BYTES
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._announce, self._file_bytes = directory, announce, file_bytes
        self._file: BinaryIO | None = None
        self._name, _, offset = mark.rpartition(" ")
        if self._name and (path := self._growing()).is_file():
            os.truncate(path, min(int(offset), path.stat().st_size))
            self._file = path.open("ab")

    @property
    def mark(self) -> str | None:
        return None if self._file is None else f"{self._name} {self._file.tell()}"

    def keep(self, capture: Capture) -> None:
        self._write(capture, "response", {})

    def met_again(self, capture: Capture, since: int) -> None:
        refers = {
            "WARC-Profile": "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest",
            "WARC-Refers-To-Target-URI": capture.about.url,
            "WARC-Refers-To-Date": iso_utc(since),
        }
        self._write(capture, "revisit", refers)

    def note(self, visits: Sequence[NotedVisit], now: int) -> None:
        content = visits_text(visits)
        file = self._room(now, drop_stem(now, hashlib.sha256(content).hexdigest()))
        writer = WARCWriter(file, gzip=True, warc_version="1.1")
        record = writer.create_warc_record(
            VISITS_URI, "metadata", io.BytesIO(content), len(content), warc_content_type="application/x-ndjson",
            warc_headers_dict={"WARC-Date": iso_utc(now)},
        )  # fmt: skip
        self._append(writer, record)

    def finish(self) -> None:
        if self._file is not None:
            empty = not self._file.tell()
            self._file.close()
            self._file = None
            if empty:  # nothing in it was committed
                self._growing().unlink()
            else:
                self._growing().rename(self._directory / self._name)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _growing(self) -> Path:
        return self._directory / f"{self._name}{_OPEN}"

    def _write(self, capture: Capture, kind: str, fields: dict[str, str]) -> None:
        file, about = self._room(capture.fetched, capture.stem), capture.about
        writer = WARCWriter(file, gzip=True, warc_version="1.1")
        kept = [(name, value) for name, value in capture.headers if name.lower() not in _OF_THE_TRANSFER]
        body = capture.body if kind == "response" else b""
        status = f"{about.status}{_PHRASES.get(about.status, '')}"
        digest = f"sha256:{b32encode(bytes.fromhex(about.sha256)).decode()}"
        fixed = {"WARC-Date": iso_utc(capture.fetched), FINAL_URI: about.final_url, "WARC-Payload-Digest": digest}
        fixed[ADDRESS] = about.address
        fixed |= {PAGE: "older"} if about.page else {}
        headers = StatusAndHeaders(status, kept, protocol="HTTP/1.1")
        payload = io.BytesIO(body), len(body)
        record = writer.create_warc_record(
            about.url, kind, *payload, http_headers=headers, warc_headers_dict=fixed | fields
        )
        titles = [one for one in ((TITLE, about.title), (READING, about.reading.to_json())) if one[1]]
        for name, value in [*titles, *((FOLDER, folder) for folder in about.folders)]:
            record.rec_headers.add_header(name, value)
        self._append(writer, record)

    def _append(self, writer: WARCWriter, record: Any) -> None:
        assert self._file is not None, "there is room"
        writer.write_record(record)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _room(self, time: int, stem: str) -> BinaryIO:
        """The file to append to. Everything written before is committed."""
        begun = read_stem(self._name.removesuffix(WARC_SUFFIX))
        is_old = begun is not None and time - begun[0] >= FILE_AGE
        if self._file is not None and (is_old or self._file.tell() >= self._file_bytes):
            self.finish()
        if self._file is None:
            self._name = f"{stem}{WARC_SUFFIX}"
            self._announce(f"{self._name} 0")
            self._file = self._growing().open("ab")
        return self._file


@dataclass(frozen=True, slots=True)
class Settings:
    """How feeds are fetched, unless a feed's own settings differ. `agent` is the User-Agent. `spacing` is microseconds
    between requests. `callback` is the address below which hubs call us, "" if they cannot. `feeds` are the settings of
    the configuration file; `secret` resolves the names of secrets in them."""

    agent: str
    limits: http.ReplyLimits = http.ReplyLimits()
    pace: Pace = Pace()
    robots: bool = False
    concurrency: int = 16
    per_host: int = 1
    spacing: int = SECOND
    allow_private: bool = False
    callback: str = ""
    feeds: SettingsOf = NOTHING_SET
    secret: SecretValue = no_secret


class HostGates:
    """Admits requests to hosts, saving their times first, so that a process after a killed one keeps the delay."""

    def __init__(self, store: FetchStore, clock: http.Clock, settings: Settings) -> None:
        self._store, self._clock, self._settings = store, clock, settings
        self._all = asyncio.Semaphore(settings.concurrency)
        self._hosts: dict[str, tuple[asyncio.Semaphore, asyncio.Lock]] = {}

    @asynccontextmanager
    async def turn(self, host: str, spacing: int = 0) -> AsyncIterator[None]:
        """A block in which one request to a host may be made: `spacing` microseconds, or the settings', after the last
        one ended, or began if it is under way. Raises HostPaused."""
        slots, order = self._hosts.setdefault(host, (asyncio.Semaphore(self._settings.per_host), asyncio.Lock()))
        async with slots, AsyncExitStack() as held:
            async with order:
                last = min(self._free(host).asked_at, self._clock.now())  # the clock may have been set back
                await self._clock.sleep_until(last + max(spacing, self._settings.spacing))
                await held.enter_async_context(self._all)
                self._store.save_host(replace(self._free(host), asked_at=self._clock.now()))
            try:
                yield
            finally:
                # The time that a request takes to reach the host must not shorten the pause.
                self._store.save_host(replace(self._store.host(host), asked_at=self._clock.now()))

    def _free(self, host: str) -> HostState:
        state = self._store.host(host)
        if state.paused_until > self._clock.now():
            raise http.HostPaused(state.paused_until)
        return state

    def pause(self, host: str, until: int) -> None:
        state = self._store.host(host)
        self._store.save_host(replace(state, paused_until=max(until, state.paused_until)))


LONGEST = 512 * 1024  # bytes read of a robots.txt, as RFC 9309 allows
LONGEST_DELAY = MINUTE  # maximum `Crawl-delay`

_AGENT = "mmqjp"


def crawl_delay(rules: str, url: str) -> float | None:
    """Seconds between our requests; None if disallowed. Slow on hostile rules: see `feeds.confined`."""
    parsed = Protego.parse(rules)
    return float(parsed.crawl_delay(_AGENT) or 0) if parsed.can_fetch(url, _AGENT) else None


class Robots:
    """The rules of hosts, fetched once a day and stored in the state."""

    def __init__(self, store: FetchStore, clock: http.Clock) -> None:
        self._store, self._clock = store, clock
        self._asking: dict[str, asyncio.Lock] = {}

    async def delay(self, url: httpx.URL, host: str, get: Callable[[httpx.URL], Awaitable[http.Reply]]) -> int:
        """Microseconds between requests that the rules, fetched with `get`, demand; 0 if none. Raises FetchError if the
        address is disallowed, or the rules are unavailable (which RFC 9309 treats as disallowing everything)."""
        async with self._asking.setdefault(host, asyncio.Lock()):
            state = self._store.host(host)
            if state.robots is None or state.robots_at + DAY <= self._clock.now():
                state = await self._asked(url, host, get)
        text = state.robots
        later = self._clock.now() + DAY
        try:
            seconds = await confined_aside(crawl_delay, text, str(url), size=len(text)) if text else 0
        except ConfinedError as error:
            raise http.FetchError(f"its robots.txt: {error}", not_before=later) from None
        if seconds is None:
            raise http.FetchError(f"robots.txt of {host} does not allow it", not_before=later)
        return min(int(seconds * SECOND), LONGEST_DELAY)

    async def _asked(self, url: httpx.URL, host: str, get: Callable[[httpx.URL], Awaitable[http.Reply]]) -> HostState:
        try:
            reply = await get(url.copy_with(path="/robots.txt", query=None, fragment=None))
            if reply.status >= 500 or reply.status == 429:
                raise http.FetchError(f"the server answered {reply.status}", reply.status)
        except http.FetchError as error:
            later = self._clock.now() + HOUR
            raise http.FetchError(f"its robots.txt cannot be fetched: {error}", error.status, later) from None
        text = reply.body[:LONGEST].decode("utf-8", "replace") if reply.status == 200 else ""
        state = replace(self._store.host(host), robots=text, robots_at=self._clock.now())
        self._store.save_host(state)
        return state


LOST = 3  # consecutive failures after which a moved feed is tried at its original address again
GIVEN_UP = 8  # consecutive failures (about a day) after which readers no longer wait for a feed
LONGEST_VALIDATOR = 1000  # maximum number of characters of an ETag or a Last-Modified


class Outcome(Enum):
    NEW = "new"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    STOPPED = "stopped"
    PUT_OFF = "put off"
    PAGE = "older page"


def own_agent() -> str:
    return f"mmqjp/{version('mmqjp')} (feed fetcher)"


@dataclass(frozen=True, slots=True)
class Asker:
    """Makes the requests of one visit of a feed."""

    settings: FeedSettings
    client: httpx.AsyncClient
    access: FeedAccess


@dataclass
class Visitor:
    """Fetches single feeds. `random` gives numbers in [0, 1), for the jitter. `open` opens a client for the route of
    one feed, `open_public` one that connects to private addresses only where the route allows it."""

    client: httpx.AsyncClient
    store: FetchStore
    archive: Archive
    claims: AddressClaims
    clock: http.Clock
    random: Callable[[], float]
    settings: Settings
    open: Callable[[http.Route], httpx.AsyncClient]
    open_public: Callable[[http.Route], httpx.AsyncClient]
    mailbox: HubMailbox | None = None
    event: OnEvent = lambda name, **fields: None

    def __post_init__(self) -> None:
        self.gates = HostGates(self.store, self.clock, self.settings)
        self.robots = Robots(self.store, self.clock) if self.settings.robots else None
        usual = FeedAccess(httpx.URL("http://localhost/"), http.DIRECT_ROUTE, self.settings.agent)
        self.usual = Asker(NONE, self.client, usual)
        post, callback, pace = self._post, self.settings.callback, self.settings.pace
        self.hubs = Hubs(self.store, self.mailbox, callback, post, self.clock, self.random, pace, self.event)
        self.chains: dict[str, PageChain] = {}
        self.pages = 0  # number of older pages read
        self.searched: set[str] = set()
        """Feeds that were searched for a hub since the fetch began."""
        self.reading: set[str] = set()
        """Feeds with an older page read since the fetch began."""
        self.reload()

    def shown(self, feed: FeedState, outcome: Outcome) -> FeedState:
        """The feed to report after a visit; after that of an older page, with the page's error."""
        chain = self.chains.get(feed.url)
        return replace(feed, last_error=chain.error) if outcome is Outcome.PAGE and chain is not None else feed

    def reload(self) -> None:
        """Call after another process has changed the state."""
        self.chains = self.store.chains()
        self.hubs.reload()

    def due_at(self, feed: FeedState) -> int:
        """When the feed or the next of its older pages is to be fetched."""
        chain = self.chains.get(feed.url)
        return feed.next_check if chain is None or chain.done else min(feed.next_check, chain.next_check)

    def is_page_due(self, feed: FeedState) -> bool:
        """Whether a visit reads an older page. The first visit of a feed comes after its older pages, so that its
        stream waits for them, but not for the retry of a failed page."""
        chain, now = self.chains.get(feed.url), self.clock.now()
        if chain is None or chain.done or chain.next_check > now:
            return False
        return not feed.fetched_at or feed.next_check > now

    def settings_of(self, feed: FeedState) -> FeedSettings:
        return effective_settings(feed.url, feed.folders, self.settings.feeds, self.store.settings(), feed.shown)

    @asynccontextmanager
    async def asking(self, feed: FeedState, settings: FeedSettings) -> AsyncIterator[Asker]:
        """Raises FetchError if the feed cannot be requested with its settings."""
        try:
            access = access_of(settings, feed.url, self.settings.agent, self.settings.secret)
        except InputError as error:
            raise http.FetchError(str(error)) from None
        async with AsyncExitStack() as held:
            is_usual = access.route == http.DIRECT_ROUTE
            client = self.client if is_usual else await held.enter_async_context(self.open(access.route))
            yield Asker(settings, client, access)

    def _wants_pages(self, feed: FeedState, settings: FeedSettings) -> int | None:
        """How far back to read the older pages of a feed; None if none should be requested now."""
        span, chain = settings.history, self.chains.get(feed.url)
        return span if span and (chain is None or (chain.done and chain.span < span)) else None

    async def visit(self, feed: FeedState) -> tuple[FeedState, Outcome]:
        """Fetches a feed, or one of its older pages, once and commits the outcome. Nothing is awaited between the
        answer and the commit, so a visit is cancelled either completely or not at all."""
        if self.is_page_due(feed):
            return await self._visit_page(feed, self.chains[feed.url])
        visit = chain = page = None
        settings = self.settings_of(feed)
        try:
            with self.claims.visited(feed), _failures_of_the_feed():
                async with self.asking(feed, settings) as asker:
                    reply, address, seen = await self._ask(feed, asker)
                span = self._wants_pages(feed, settings)
                page = await self._links(reply, seen) if span or self.hubs.is_on else None
                if self.hubs.is_on and page is None and not self.hubs.has(feed.url):
                    page = await self._stored_links(feed, reply)
                pace = self._pace(feed, settings)
                after = self._judged(replace(feed, address=address), reply, seen, pace)
            if span and page is not None:
                known = self.chains.get(feed.url)
                chain = archives.begun(feed.url, span, page, reply, after.sha256, self.clock.now(), known)
            if chain is not None and not chain.done and not feed.fetched_at:
                # This is only the feed's first page: storing it as a version would make the visit complete.
                self.reading.add(feed.url)
                self._keep_page(feed, reply, after.sha256, settings.reading)
                self._save_chain(chain)
                return feed, Outcome.PAGE
            after, outcome, visit = self._archived(feed, after, reply, settings.reading)
            if outcome is Outcome.UNCHANGED and self.hubs.is_lagging(feed.url):
                after = replace(after, next_check=min(after.next_check, self.clock.now() + self.hubs.gap))
        except http.HostPaused as pause:
            after, outcome = replace(feed, next_check=max(feed.next_check, pause.until)), Outcome.PUT_OFF
        except http.FetchedAlready as already:
            after = put_aside(feed, already, self.clock.now(), self.settings.pace, self.random())
            outcome, visit = Outcome.PUT_OFF, after.ended(after.checked_at)
        except http.FetchError as error:
            after = after_failed_visit(feed, error, self.clock.now(), self.settings.pace, self.random())
            outcome = Outcome.STOPPED if after.stopped else Outcome.FAILED
            is_over = after.stopped or after.errors >= GIVEN_UP or feed.is_overdue(after.checked_at)
            if is_over or (feed.status, feed.last_error) != (after.status, after.last_error) or not feed.errors:
                visit = replace(after.ended(after.checked_at), outcome="ended" if is_over else "failed")
                visit = replace(visit, status=after.status, error=after.last_error[:LONGEST_ERROR])
        now, found = self.clock.now(), outcome in (Outcome.NEW, Outcome.UNCHANGED)
        if visit is None and not found and feed.is_overdue(now):
            visit = feed.ended(now)
        self.store.commit(after, self.archive.mark, visit)
        self.claims.update(after)
        if chain is not None:
            self._save_chain(chain)
        if outcome is Outcome.STOPPED:
            self.hubs.end(feed.url)
        elif page is not None and found:
            self.hubs.found(after, page, reply, wanted=settings.hub is not False)
        return after, outcome

    async def _visit_page(self, feed: FeedState, chain: PageChain) -> tuple[FeedState, Outcome]:
        """Fetches the next older page of a feed, like `visit`. Errors are recorded in the chain."""
        self.reading.add(feed.url)
        settings = self.settings_of(feed)
        if not settings.history:
            self._save_chain(archives.unwanted(chain))
            return feed, Outcome.PAGE
        try:
            with _failures_of_the_feed():
                async with self.asking(feed, settings) as asker:
                    get = partial(self._get_page, asker, httpx.URL(feed.address or feed.url))
                    reply, _ = await http.follow_redirects(get, chain.next, self.settings.limits.hops)
                if reply.status != 200:
                    raise http.FetchError(f"the server answered {reply.status}", reply.status, self._pause(reply))
                seen = await _looked_at(reply)
                if seen is None or seen.kind != "feed":
                    raise http.FetchError("the answer is not a feed", reply.status)
                page = await self._links(reply, seen, dated=True) or archives.PageLinks()
                after, wanted = archives.after_page(chain, reply, page, seen.sha256)
            if wanted:
                self._keep_page(feed, reply, seen.sha256, settings.reading)
                self.pages += 1
        except http.HostPaused as pause:
            after = replace(chain, next_check=pause.until)
        except http.FetchError as error:
            pace = self.settings.pace
            after = archives.after_failed_page(chain, error, self.clock.now(), pace, self.random())
        self._save_chain(after)
        return feed, Outcome.PAGE

    def _save_chain(self, chain: PageChain) -> None:
        self.store.save_chain(chain, self.archive.mark)
        self.chains[chain.feed] = chain

    async def _stored_links(self, feed: FeedState, reply: http.Reply) -> archives.PageLinks | None:
        """The links in the last version of an unchanged feed, once per run: `callback` may be newer than it."""
        if reply.status != 304 or feed.url in self.searched or not (body := self.archive.body(feed.source)):
            return None
        self.searched.add(feed.url)
        return await self._links(replace(reply, status=200, body=body), http.BodySummary("feed"))

    async def _links(
        self, reply: http.Reply, seen: http.BodySummary | None, *, dated: bool = False
    ) -> archives.PageLinks | None:
        if reply.status != 200 or seen is None or seen.kind != "feed":
            return None
        body, kind = reply.body, reply.headers.get("Content-Type", "")
        try:
            answer = await confined_aside(archives.find_links, body, reply.url, kind, dated, size=len(body))
        except ConfinedError as error:
            raise http.FetchError(str(error), reply.status) from None
        return archives.PageLinks.of_answer(reply, answer)

    async def _ask(self, feed: FeedState, asker: Asker) -> tuple[http.Reply, str, http.BodySummary | None]:
        sent: dict[str, str] = {}
        # The new address may be dead, and the original one may redirect elsewhere by now.
        address = feed.url if feed.errors >= LOST else feed.address or feed.url
        # After a kill the archive may be ahead of the state, whose validators then belong to an older version.
        newest = self.archive.newest(feed.source)
        # The links to older pages are in the body.
        if (newest is None or newest[1] == feed.sha256) and not self._wants_pages(feed, asker.settings):
            validators = {"If-None-Match": feed.etag, "If-Modified-Since": feed.last_modified}
            sent = {name: value for name, value in validators.items() if value}
        reply, address = await self._followed(feed, asker, address, sent)
        seen = await _looked_at(reply)
        if seen is not None and seen.kind == "page":
            if not seen.feeds:
                raise http.FetchError("it is a web page that links to no feed", 200)
            reply, address = await self._followed(feed, asker, seen.feeds[0], {})
            seen = await _looked_at(reply)
        return reply, address, seen

    async def _followed(
        self, feed: FeedState, asker: Asker, address: str, headers: dict[str, str]
    ) -> tuple[http.Reply, str]:
        get, claim = partial(self.get, asker, headers=headers), partial(self.claims.claim, feed)
        reply, address = await http.follow_redirects(get, address, self.settings.limits.hops, claim)
        if reply.status == 410:
            raise http.Gone("the server says that it is gone for good (410)", 410)
        if reply.status != 200 and not (reply.status == 304 and headers):
            raise http.FetchError(f"the server answered {reply.status}", reply.status, self._pause(reply))
        return reply, address

    def _pause(self, reply: http.Reply) -> int | None:
        if reply.status not in (429, 503):
            return None
        until = http.retry_after(reply.headers, self.clock.now())
        if until is not None:
            self.gates.pause(_host(httpx.URL(reply.url)), min(until, self.clock.now() + DAY))
        return until

    async def get(self, asker: Asker, url: httpx.URL, headers: Mapping[str, str] = {}) -> http.Reply:
        """GETs an address for a feed once its host admits it. Raises FetchError, HostPaused."""
        delay = 0
        if self.robots:
            delay = await self.robots.delay(url, _host(url), partial(self._get_robots, asker))
        return await self._exchange(asker, url, headers, delay)

    async def _get_page(self, asker: Asker, feed: httpx.URL, url: httpx.URL) -> http.Reply:
        """Fetches an older page. On a host other than the feed's, it may have a private address only if the feed's
        settings allow it."""
        if (url.host, url.port) == (feed.host, feed.port) or asker.access.route.proxy:
            return await self.get(asker, url)
        async with self.open_public(asker.access.route) as client:
            return await self.get(replace(asker, client=client), url)

    async def _post(self, url: str, hub: httpx.URL, form: Mapping[str, str]) -> http.Reply:
        """Sends a form to the hub of a feed, on the feed's route as long as the feed exists."""
        feed = self.store.feed(url)
        with _failures_of_the_feed():
            async with AsyncExitStack() as held:
                asker = self.usual
                if feed is not None:
                    asker = await held.enter_async_context(self.asking(feed, self.settings_of(feed)))
                post, hops = partial(self._exchange, asker, form=form), self.settings.limits.hops
                reply, _ = await http.follow_redirects(post, str(hub), hops)
        self._pause(reply)
        return reply

    async def _get_robots(self, asker: Asker, url: httpx.URL) -> http.Reply:
        exchange = partial(self._exchange, asker)
        reply, _ = await http.follow_redirects(exchange, str(url), self.settings.limits.hops)
        return reply

    async def _exchange(
        self,
        asker: Asker,
        url: httpx.URL,
        headers: Mapping[str, str] = {},
        delay: int = 0,
        form: Mapping[str, str] | None = None,
    ) -> http.Reply:
        access, limits = asker.access, self.settings.limits
        async with self.gates.turn(_host(url), delay):
            sent = {**access.headers(url), **headers}
            return await http.exchange(asker.client, url, sent, limits, access.auth_for(url), form)

    def _judged(self, feed: FeedState, reply: http.Reply, seen: http.BodySummary | None, pace: Pace) -> FeedState:
        """Updates the feed from an answer. Raises FetchError if the body is not a feed."""
        now = max(self.clock.now(), feed.fetched_at + 1)
        if seen is None:
            etag, changed, sha256, hints = feed.etag, feed.last_modified, feed.sha256, feed.hints
        elif seen.kind != "feed":
            raise http.FetchError("the answer is not a feed", reply.status)
        else:
            etag, changed, sha256, hints = "", "", seen.sha256, seen.hints
        etag, changed = _validator(reply, "ETag") or etag, _validator(reply, "Last-Modified") or changed
        fetched = feed.fetched_at if sha256 == feed.sha256 else now
        check = after_success(now, http.fresh_for(reply.headers, now), hints, pace, self.random())
        hints = replace(hints, wait=check - now)
        found = replace(feed, etag=etag, last_modified=changed, fetched_at=fetched, sha256=sha256, hints=hints)
        return replace(found, next_check=check, checked_at=now, status=reply.status, errors=0, last_error="")

    def _pace(self, feed: FeedState, settings: FeedSettings) -> Pace:
        """The pace of a feed: slower if its hub pushes, unless its interval is set."""
        usual = self.settings.pace
        slower = SLOWER if self.hubs.is_active(feed.url) else 1
        interval = slower * usual.interval if settings.interval is None else settings.interval
        if settings.longest is None:
            return replace(usual, interval=interval)
        return replace(usual, interval=min(interval, settings.longest), longest=settings.longest)

    def _keep_page(self, feed: FeedState, reply: http.Reply, sha256: str, reading: ReadingRules) -> None:
        """Stores an older page, apart from the versions of the feed."""
        now = max(self.clock.now(), feed.fetched_at + 1)
        capture = _capture(replace(feed, checked_at=now, sha256=sha256), reply, reading)
        self.archive.keep(
            replace(capture, about=replace(capture.about, page=True, address=""), source=f"{feed.source}{OLDER}")
        )

    def _archived(
        self, feed: FeedState, found: FeedState, reply: http.Reply, reading: ReadingRules
    ) -> tuple[FeedState, Outcome, NotedVisit | None]:
        capture = _capture(found, reply, reading)
        since, sha256 = self.archive.newest(feed.source) or (feed.fetched_at, feed.sha256)
        if reply.status == 200 and found.sha256 != sha256:
            self.archive.keep(capture)
            return found, Outcome.NEW, None
        return replace(found, fetched_at=since), Outcome.UNCHANGED, self.archive.met_again(capture, since)


def _capture(feed: FeedState, reply: http.Reply, reading: ReadingRules) -> Capture:
    """Bundles an answer for the archive; `feed` is the state after this visit."""
    etag, changed, kind = (reply.headers.get(name, "") for name in ("ETag", "Last-Modified", "Content-Type"))
    facts = without_credentials(reply.url), reply.status, etag, changed, kind
    address = without_credentials(feed.address or feed.url)
    shown = feed.title, feed.folders, address
    about = Sidecar(feed.shown, feed.checked_at, *facts, feed.sha256, *shown, reading=reading)
    return Capture(about, feed.source, reply.headers.multi_items(), reply.body)


async def _looked_at(reply: http.Reply) -> http.BodySummary | None:
    if reply.status != 200:
        return None
    try:
        return http.BodySummary.from_json(await confined_aside(http.look, reply.body, reply.url, size=len(reply.body)))
    except ValueError as error:
        raise http.FetchError(str(error), reply.status) from None


def _validator(reply: http.Reply, name: str) -> str:
    value = reply.headers.get(name, "")
    return value if value.isascii() and value.isprintable() and len(value) <= LONGEST_VALIDATOR else ""


@contextmanager
def _failures_of_the_feed() -> Iterator[None]:
    """Turns errors caused by a server or feed into that feed's failure; errors of our own state propagate."""
    try:
        yield
    except http.InsideError as error:
        advice = "if it is yours, mmqjp feeds set ADDRESS (or --all) --allow-private HOST allows it"
        raise http.FetchError(f"{error}; {advice}", error.status) from None
    except (http.FetchError, http.FetchedAlready, http.HostPaused, SourceError, sqlite3.Error):
        raise
    except Exception as error:
        raise http.FetchError(f"unexpected {type(error).__name__}: {one_line(str(error))}") from error


def _host(url: httpx.URL) -> str:
    return url.netloc.decode("ascii")


@dataclass(frozen=True, slots=True)
class World:
    """Replaceable dependencies of fetching: the clock, random numbers, the resolver."""

    clock: http.Clock = field(default_factory=http.Clock)
    random: Callable[[], float] = field(default_factory=lambda: Random().random)
    resolve: http.Resolve = http.resolve_host


@dataclass(slots=True)
class FetchReport:
    """Counts of outcomes, the feeds that failed last, and the number of older pages read."""

    counts: Counter[Outcome] = field(default_factory=Counter)
    failures: dict[str, FeedState] = field(default_factory=dict)
    pages: int = 0

    def add(self, feed: FeedState, outcome: Outcome) -> None:
        if outcome is Outcome.PAGE:  # not a visit, and possibly a failure
            return
        self.counts[outcome] += 1
        if outcome in (Outcome.FAILED, Outcome.STOPPED):
            self.failures[feed.url] = feed
        else:
            self.failures.pop(feed.url, None)


NOTE_INTERVAL = 10 * SECOND  # between two notes in the archive while feeds are visited


class VisitNotes:
    """Writes pending visits to an archive in batches, or immediately if readers are waiting for them."""

    def __init__(self, store: FetchStore, archive: Archive, clock: http.Clock) -> None:
        self._store, self._archive, self._clock = store, archive, clock
        self._noted: int | None = None

    def expect(self, due: Iterable[FeedState]) -> None:
        """Records feeds that are about to be visited for the first time, or after a gap so long that readers no longer
        wait for them: the streams of other feeds must not get ahead of their entries."""
        now = self._clock.now()
        if awaited := [feed for feed in due if feed.is_overdue(now)]:
            self._store.add_visits(NotedVisit(feed.shown, now, "awaited") for feed in awaited)
            self.write()

    def write(self) -> None:
        now = self._clock.now()
        if visits := self._store.visits():
            self._archive.note(visits, now)
            self._store.drop_visits(self._archive.mark)
        self._noted = now

    def turn(self, *, is_round_over: bool) -> None:
        """Writes visits if that is due. Call often."""
        is_due = self._noted is None or not 0 <= self._clock.now() - self._noted < NOTE_INTERVAL
        if is_due or (is_round_over and any(visit.outcome != "complete" for visit in self._store.visits())):
            self.write()


LOOK = 1.0  # seconds between two polls for changes

OnVisit = Callable[[FetchReport, FeedState, Outcome], None]
"""Called after each visit with the report so far, the feed's new state and the outcome."""


async def fetch_feeds(
    feeds: Collection[FeedState],
    store: FetchStore,
    archive: Archive,
    settings: Settings,
    changes: ChangesOf | None = None,
    stop: asyncio.Event | None = None,
    on_visit: OnVisit | None = None,
    world: World | None = None,
    event: OnEvent = lambda name, **fields: None,
) -> FetchReport:
    """Visits each due feed once. With `changes`, visits feeds whenever they are due, until `stop` is set, and applies
    changes by other processes, even without feeds. `stop` cancels visits under way: each was either committed or did
    not happen. `on_visit` is called after every visit, `event` after requests to and calls from hubs."""
    world = world or World()
    stop = stop or asyncio.Event()
    report = FetchReport()
    waiting = {feed.url: feed for feed in feeds if not feed.stopped}
    open_client = partial(http.open_client, settings.allow_private, settings.concurrency, world.resolve)
    client = open_client(http.DIRECT_ROUTE)
    open_public = partial(http.open_client, False, settings.concurrency, world.resolve)
    claims = AddressClaims(feeds)
    mailbox = None if changes is None else HubMailbox(changes.state)
    around = world.clock, world.random, settings
    visitor = Visitor(client, store, archive, claims, *around, open_client, open_public, mailbox, event)
    notes = VisitNotes(store, archive, world.clock)
    notes.write()  # left over from a killed process, unchanged
    busy: set[str] = set()

    async def visit(feed: FeedState) -> None:
        try:
            more = True
            while more:
                feed, outcome = await visitor.visit(feed)
                report.add(feed, outcome)
                report.pages = visitor.pages
                if on_visit is not None:
                    on_visit(report, visitor.shown(feed, outcome), outcome)
                # A single run (without `changes`) also reads the older pages now, and then the feed.
                more = changes is None and not feed.stopped and visitor.due_at(feed) <= world.clock.now()
        finally:
            busy.discard(feed.url)
        if changes is not None and not feed.stopped:
            waiting[feed.url] = feed

    under_way: set[asyncio.Task[Any]] = set()
    stopped: asyncio.Task[Any] = asyncio.create_task(stop.wait())
    async with client:
        try:
            while True:
                if changes is not None:
                    changed, removed = changes.take(store, busy)
                    for url in removed:
                        claims.remove(url)
                        waiting.pop(url, None)
                        report.failures.pop(url, None)
                    for feed in changed:
                        claims.update(feed)
                        waiting[feed.url] = feed
                    if changed or removed:
                        notes.write()
                        visitor.reload()
                    for feed in visitor.hubs.take(busy):
                        claims.update(feed)
                        waiting[feed.url] = feed
                    visitor.hubs.count()
                    under_way |= {asyncio.create_task(visitor.hubs.ask(one)) for one in visitor.hubs.due()}
                now = world.clock.now()
                # The longest overdue first: a killed process left them.
                due = sorted((f for f in waiting.values() if visitor.due_at(f) <= now), key=visitor.due_at)
                notes.expect(feed for feed in due if feed.url not in visitor.reading)
                for feed in due:
                    busy.add(feed.url)
                    under_way.add(asyncio.create_task(visit(waiting.pop(feed.url))))
                if changes is None:
                    waiting.clear()
                    if not under_way:
                        notes.write()
                        return report
                notes.turn(is_round_over=not under_way)
                next_checks = list(map(visitor.due_at, waiting.values()))
                if (asked := visitor.hubs.next_check()) is not None:
                    next_checks.append(asked)
                alarm = {asyncio.create_task(world.clock.sleep_until(min(next_checks)))} if next_checks else set()
                longest, tasks = None if changes is None else LOOK, under_way | alarm | {stopped}
                done, _ = await asyncio.wait(tasks, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
                await _ended(alarm)
                for finished in done & under_way:
                    under_way.discard(finished)
                    finished.result()  # an error that is not a single feed's ends the fetch
                if stopped in done:
                    notes.write()
                    return report
        finally:
            await _ended(under_way | {stopped})


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Job:
    """Fetches `feeds`, by default all in the state, into the directory `out`, which also holds `state` by default.
    `listed` are settings from lists: they replace those keys in the state, before pending changes by others apply."""

    feeds: Sequence[FeedState]
    out: Path
    settings: Settings
    warc: bool = False
    state: Path | None = None
    listed: tuple[SettingsChange, ...] = ()

    async def run(
        self,
        *,
        watch: bool = False,
        stop: asyncio.Event | None = None,
        on_visit: OnVisit | None = None,
        world: World | None = None,
        event: OnEvent = lambda name, **fields: None,
    ) -> tuple[FetchReport, list[FeedState]]:
        """Runs `fetch_feeds`. Returns the report, and the feeds as they were before. Raises SourceError if the state
        cannot be used, BadSettings for invalid settings of lists, OSError if a version cannot be written."""
        state = self.state or self.out / STATE_FILE
        changes = ChangesOf(state)
        with FetchStore(state, write=True) as store:
            store.add(self.feeds)
            FeedChange(settings=self.listed).make(store)
            changes.take(store)
            wanted = {feed.url for feed in self.feeds}
            known = [feed for feed in store.feeds() if not wanted or feed.url in wanted]
            mark = store.archive_mark()
            archive = WarcArchive(self.out, mark, store.save_mark) if self.warc else DropArchive(self.out)
            with closing(archive):
                applied = changes if watch else None
                report = await fetch_feeds(known, store, archive, self.settings, applied, stop, on_visit, world, event)
                archive.finish()
            return report, known
