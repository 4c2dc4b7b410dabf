"""Feeds and files as inputs of a service. A thread fetches feeds into the drop directory, which is a source and is
swept once read; StreamingService reads sources by one Structured Streaming query, evaluates documents on Spark
executors, and commits them in this process with file offsets and the micro-batch number, so that a repeated micro-batch
skips what was committed. Rereading skips files unchanged since an earlier run."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from hashlib import blake2b, file_digest
from pathlib import Path
from threading import Event
from time import time_ns
from typing import NamedTuple
from urllib.parse import urlsplit

from common.dates import HOUR
from common.errors import InputError, InvalidValue
from common.files import make_inside
from common.tools import in_batches
from feeds.documents import Document, Now, SourceItem, now_us
from feeds.feed import EntryForm
from feeds.fetch.archives import chain_text
from feeds.fetch.fetcher import FetchReport, Job, Outcome, remove_read
from feeds.fetch.http import FetchError, is_allowed, is_inside
from feeds.fetch.hubs import subscription_text
from feeds.fetch.lists import ListedFeed, feed_of_address, write_opml
from feeds.fetch.settings import NONE, NOTHING_SET, FeedSettings, SettingsOf, effective_settings
from feeds.fetch.state import STATE_FILE, FeedState, FetchStore
from feeds.history import History, InputItem, Sighting, size_of
from feeds.items import redact_userinfo, without_credentials
from feeds.readers import ALL_READ, Offset, or_reject, sidecar_path
from feeds.tail import SourceFile, Tail
from mmqjp.documents.admission import BATCH_BYTES
from mmqjp.engine import Session
from mmqjp.service.log import Log, in_background
from mmqjp.service.loop import listing
from mmqjp.sinks.secrets import Secrets
from mmqjp.state.engine_choice import OWNER_FILE
from mmqjp.tables.schema import CommitMetadata, MetadataOf

FETCHED = "#fetched"
"""The source's name in stored offsets, which survives moving the state. Others are named by their absolute paths."""


class DropDirectory:
    """A directory of fetched feed versions. Those that were read are kept for `keep` microseconds (None: for ever)."""

    def __init__(self, directory: Path, keep: int | None, now: Now = now_us) -> None:
        self.directory, self._keep, self._now = directory, keep, now
        self._swept: int | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def tail(self, feeds: EntryForm) -> Tail:
        return Tail(self.directory, feeds=feeds, name=FETCHED)

    def sweep(self, engine: Session) -> None:
        """At most hourly, removes old versions read and committed, but each feed's newest, which a fetch needs."""
        now = self._now()
        if self._keep is None or (self._swept is not None and now - self._swept < min(self._keep, HOUR)):
            return
        self._swept = now
        offsets = engine.ledger.offsets().items()
        read = {file for (source, file), offset in offsets if source == FETCHED and offset.position == ALL_READ}
        remove_read(self.directory, read, now - self._keep)


DROPS = "drops"  # the folder of a state directory that a service fetches into


class FeedNotes(NamedTuple):
    """What is said of a feed's older pages, and of its subscription at a hub; "" if there is nothing. `pushed`:
    whether the hub pushes now; None without one."""

    older: str = ""
    hub: str = ""
    pushed: bool | None = None


class NoSuchFeed(InputError, ValueError):
    """An address matches no feed, or several."""


@dataclass(frozen=True, slots=True)
class FeedSummary:
    """A feed, with addresses stripped of names and passwords. Times are microseconds since 1970, None for never. `url`
    is the subscribed address, `fetched_from` the current one. `changed_at` is the last time with new entries; `errors`
    counts failures since the last success, `undated` the entries of its last version whose dates cannot be read.
    `interval` is the time, in microseconds, from its last complete visit to the next one, None if unknown. `older` says
    how far its older pages were read, `hub` whether a hub pushes it, and why not; "" for nothing. `pushed` is None
    without a hub."""

    url: str
    title: str
    folders: tuple[str, ...]
    fetched_from: str
    status: int | None
    stopped: bool
    checked_at: int | None
    changed_at: int | None
    next_check: int | None
    errors: int
    last_error: str
    undated: int
    interval: int | None
    older: str
    hub: str
    pushed: bool | None

    @staticmethod
    def of(feed: FeedState, notes: Mapping[str, FeedNotes] = {}) -> FeedSummary:
        fetched_from, last_error = map(without_credentials, (feed.address or feed.url, feed.last_error))
        next_check = None if feed.stopped else feed.next_check or None
        return FeedSummary(
            feed.shown, feed.title, feed.folders, fetched_from, feed.status or None, feed.stopped,
            feed.checked_at or None, feed.fetched_at or None, next_check, feed.errors, last_error, feed.hints.undated,
            feed.hints.wait or None, *notes.get(feed.url, FeedNotes()),
        )  # fmt: skip


def state_file(path: Path) -> Path:
    """Returns the fetcher's state file for a path: itself, or the one in a directory of `fetch`, `run` or `stream`."""
    if not path.is_dir():
        return path
    here, below = path / STATE_FILE, path / DROPS / STATE_FILE
    return below if below.exists() and not here.exists() else here


def new_state_file(path: Path) -> Path:
    """Returns the path of a state file that may not exist yet. A missing path without a suffix becomes a directory; a
    store of `run` or `stream` has its drop directory. Raises OSError."""
    if not path.exists() and not path.suffix:
        return path / STATE_FILE
    if (path / OWNER_FILE).exists() and not (path / STATE_FILE).exists():
        return fetch_directory(path) / STATE_FILE
    return state_file(path)


def fetch_directory(state: Path) -> Path:
    """Returns the folder that `run`, `stream` and `serve` fetch into. Creates it if missing, and moves feeds there that
    were added before the store existed. Raises OSError, SourceError."""
    folder = make_inside(state, DROPS)
    if (early := _added_early(state)) is not None:
        with FetchStore(early, write=True):  # nobody adds feeds to it meanwhile
            early.replace(folder / STATE_FILE)
    return folder


def has_feeds(state: Path) -> bool:
    """Whether there are feeds to fetch into that folder. Raises SourceError."""
    return (state / DROPS / STATE_FILE).is_file() or _added_early(state) is not None


def _added_early(state: Path) -> Path | None:
    """The file of feeds added before there was a store. A crawl that has fetched something stays where it is."""
    early = state / STATE_FILE
    if not early.is_file() or (state / DROPS / STATE_FILE).exists():
        return None
    return None if any(feed.checked_at for feed in known_feeds(early)) else early


def known_feeds(file: Path) -> list[FeedState]:
    """Returns the feeds of a state file in insertion order. Raises SourceError."""
    with FetchStore(file) as store:
        return store.feeds()


def noted_feeds(file: Path, now: int) -> tuple[list[FeedState], Mapping[str, FeedNotes]]:
    """Returns the feeds of a state file in insertion order, and notes about some by their addresses. Raises
    SourceError."""
    with FetchStore(file) as store:
        older = {url: chain_text(chain) for url, chain in store.chains().items()}
        wanted = [one for one in store.subscriptions() if one.mode == "subscribe"]
        hubs = {one.feed: (subscription_text(one, now), one.until > now) for one in wanted}
        notes = {url: FeedNotes(older.get(url, ""), *hubs.get(url, ())) for url in {**older, **hubs}}
        return store.feeds(), notes


def as_opml(feeds: Sequence[FeedState], settings: SettingsOf, *, passwords: bool = False) -> bytes:
    """Exports feeds that have not stopped as OPML, under their current addresses, with what is set of them and of
    folders."""
    shown = str if passwords else without_credentials
    listed = (
        ListedFeed(shown(feed.address or feed.url), feed.title, folder, settings=settings.feeds.get(feed.url, NONE))
        for feed in feeds if not feed.stopped for folder in feed.folders or ("",)
    )  # fmt: skip
    return write_opml(listed, settings.folders)


def feed_named(address: str) -> FeedState:
    """Returns a new feed of an address. Raises NoSuchFeed if it is not a web address."""
    try:
        return feed_of_address(address)
    except FetchError as error:
        raise NoSuchFeed(f"{without_credentials(str(error))}; name a feed by its http or https address") from None


def secrets_home(file: Path) -> Path:
    """Returns the directory below which the secrets of a fetcher's state file are."""
    return file.parent.parent if file.parent.name == DROPS else file.parent


def secret_value(secrets: Secrets, name: str) -> str:
    """Returns the value of a secret. Raises SecretError, InvalidValue."""
    if name not in secrets.names():  # the name is not shown, which may be the secret itself
        known = ", ".join(secrets.names()) or "none"
        advice = "mmqjp feeds secret NAME stores one, and [secrets] of the configuration names others"
        raise InvalidValue(f"a secret is named that is not known (known: {known}); {advice}")
    return secrets.value(name)


def without_private(
    feeds: Iterable[FeedState], known: Iterable[FeedState], given: FeedSettings, settings: SettingsOf
) -> tuple[list[FeedState], list[str]]:
    """Returns the feeds without new ones whose hosts are inside the network and not allowed, and why those are left
    out."""
    there, kept, refused = {feed.url for feed in known}, [], []
    for feed in feeds:
        host = urlsplit(feed.url).hostname or ""
        allowed = given.or_else(effective_settings(feed.url, feed.folders, NOTHING_SET, settings)).allow_private
        if feed.url in there or not is_inside(host) or is_allowed(host, host, allowed):
            kept.append(feed)
        else:
            advice = f"if it is yours, --allow-private {host} of mmqjp feeds add allows it"
            refused.append(f"{feed.shown}: {host} is not a public address, and only those are fetched from; {advice}")
    return kept, refused


MOST_COMPARED = 10_000  # maximum number of feeds among which the one with the nearest address is sought


def chosen_feeds(known: Sequence[FeedState], addresses: Sequence[str], where: str) -> list[FeedState]:
    """Returns the feeds with these addresses, compared exactly or else without name and password.

    `where` tells in the error where feeds are listed. Raises NoSuchFeed if an address matches no feed, or several.
    """
    chosen: dict[str, FeedState] = {}
    for address in addresses:
        spellings, shown = {address}, redact_userinfo(address)
        with suppress(FetchError):  # an address that cannot be fetched is not a feed's
            feed = feed_of_address(address)
            spellings, shown = {address, feed.url}, feed.shown
        found = [feed for feed in known if feed.url in spellings] or [feed for feed in known if feed.shown in spellings]
        if len(found) > 1:
            cause = f"{shown} is the address of {len(found):,} feeds, with different names or passwords"
            raise NoSuchFeed(f"{cause}; write it with the name and password of one of them")
        if not found:
            near = get_close_matches(shown, [feed.shown for feed in known[:MOST_COMPARED]], 1, 0.9)
            advice = f"; did you mean {near[0]}?" if near else ""
            raise NoSuchFeed(f"{shown} is not a feed of {where}{advice}")
        chosen |= {feed.url: feed for feed in found}
    return list(chosen.values())


@contextmanager
def fetching(job: Job, log: Log, stop: Event, *, watch: bool) -> Iterator[None]:
    """Runs a fetch job in a thread: with `watch` until the end of the block, fetching feeds whenever due; otherwise
    once, before the block. Errors of single feeds are logged; one of the job itself, such as a full disk or a locked
    state, ends everything (see `in_background`)."""
    end = asyncio.Event()

    def log_visit(report: FetchReport, feed: FeedState, outcome: Outcome) -> None:
        why = {"reason": feed.last_error} if feed.last_error else {}
        log.event("fetch", feed=feed.shown, outcome=outcome.value, status=feed.status, **why)

    async def fetch() -> None:
        report, feeds = await job.run(watch=watch, stop=end, on_visit=log_visit, event=log.event)
        counts = {one.value.replace(" ", "_"): report.counts[one] for one in Outcome if one is not Outcome.PAGE}
        pages = {"older_pages": report.pages} if report.pages else {}
        log.event("fetch-ended", feeds=len(feeds), visits=report.counts.total(), **counts, **pages)

    with closing(asyncio.new_event_loop()) as loop:
        work, ends = partial(loop.run_until_complete, fetch()), partial(loop.call_soon_threadsafe, end.set)
        with in_background("fetch", work, ends, log, "fetch-failed", stop) as thread:
            while not watch and thread.is_alive() and not stop.is_set():
                thread.join(0.1)  # in short steps, so that signals are handled between them
            yield


FILES, HISTORY = "files ", "documents-history "
"""Prefixes of sources and of settings with feeds' history; a digest of the options that affect reading follows."""


def reading_of(*options: object) -> str:
    """Returns a digest of the options that affect reading."""
    return blake2b(repr(options).encode(), digest_size=6).hexdigest() + " "


@dataclass(frozen=True, slots=True)
class _Read:
    """An item before and after the history judged it; None at the end of the file."""

    item: SourceItem | None
    source: str
    file: str
    seen: InputItem | None = None


class Rereading:
    """The documents of tails whose names begin with FILES. A file's stamp is stored after the batch with its last
    document. A file gets no stamp, and so is read by each run, if one of its entries became a dead letter, if it
    changed while it was read, or if it shares its name, as text, with another. Of `waiting` files, `unchanged` were
    skipped and `read` were read."""

    def __init__(self, engine: Session, tails: Sequence[Tail], history: History, reading: str, batch_size: int) -> None:
        self._engine, self._tails, self._history = engine, tails, history
        self._prefix, self._batch_size = HISTORY + reading, batch_size
        self._kept = engine.ledger.offsets()
        self._stamps: dict[tuple[str, str], tuple[Path, Stamp | None]] = {}
        self._bad: set[tuple[str, str]] = set()
        self._ready: list[Offset] = []
        self.unchanged = self.read = self.waiting = 0
        self.told: Callable[[], object] = lambda: None  # called before each file
        history.load(engine.ledger.settings(self._prefix))

    def batches(self) -> Iterator[tuple[Sequence[SourceItem], MetadataOf]]:
        """Yields batches of new items. Each must be committed before the next is taken."""
        for batch in in_batches(self._items(), self._batch_size, BATCH_BYTES, lambda read: size_of(read.item)):
            yield [read.item for read in batch if read.item is not None], partial(self._metadata, batch)
            self._committed(batch)
        if self._ready:
            self._engine.commit_metadata(CommitMetadata(tuple(self._ready)))
            self._ready.clear()

    def listing(self) -> tuple[list[str], set[tuple[str, str]]]:
        return listing(self._tails)

    def _items(self) -> Iterator[_Read]:
        for tail in self._tails:
            for file, items in tail.drain(partial(self._is_new, tail)):
                self.told()
                self.read += 1
                self._compare((tail.name, file))  # another file may have been there when the stamp was taken
                for item in or_reject(items, file):
                    if (settled := self._history.judge(item)) is not None:
                        yield _Read(settled, tail.name, file, item)
                self._compare((tail.name, file))
                yield _Read(None, tail.name, file)

    def _is_new(self, tail: Tail, file: SourceFile) -> bool:
        key = tail.name, file.name
        kept, path = self._kept.get(key), file.path.absolute()
        stamp = stamp_of(path, "" if kept is None else kept.fingerprint, time_ns())
        if self._stamps.setdefault(key, (path, stamp))[0] != path:
            self._bad.add(key)  # their names differ in bytes that no text can hold
        if stamp is not None and kept is not None and kept.fingerprint.endswith(f" {stamp.digest}"):
            self.unchanged += 1
            if kept.fingerprint != str(stamp):
                self._ready.append(Offset(*key, ALL_READ, str(stamp)))
            return False
        self.waiting += 1
        return True

    def _compare(self, key: tuple[str, str]) -> None:
        path, stamp = self._stamps[key]
        if stamp is None or not is_still(path, stamp, time_ns()):
            self._bad.add(key)

    def _metadata(self, batch: Sequence[_Read], fates: Sequence[str | None]) -> CommitMetadata:
        for read, fate in zip((read for read in batch if read.item is not None), fates, strict=True):
            if fate:
                self._bad.add((read.source, read.file))
                if isinstance(read.item, Document) and isinstance(read.seen, Sighting):
                    self._history.refuse(read.seen, read.item.t0)
        known = {self._prefix + feed: text for feed, text in self._history.changed().items()}
        metadata = CommitMetadata(tuple(self._ready), known)
        self._ready.clear()
        return metadata

    def _committed(self, batch: Sequence[_Read]) -> None:
        for read in batch:
            key = read.source, read.file
            stamp = self._stamps[key][1]
            if read.item is None and key not in self._bad and stamp is not None:
                self._ready.append(Offset(*key, ALL_READ, str(stamp)))


SETTLED = 2 * 10**9
"""Nanoseconds after which a change certainly alters a file's times: some file systems round to two seconds."""


class Stamp(NamedTuple):
    """`times` (with sizes; empty if too recent to rely on) and content `digest` of a file and its sidecar."""

    times: str
    digest: str

    def __str__(self) -> str:
        return f"{self.times} {self.digest}"


def stamp_of(path: Path, known: str, now: int) -> Stamp | None:
    """The current stamp of a file and its sidecar; None if they cannot be read or are not regular files. Given the text
    of an earlier stamp, the file is read only if its size or times have changed. `now` is in nanoseconds."""
    known_times, _, known_digest = known.partition(" ")
    try:
        sidecar = sidecar_path(path)
        paths = [path] if sidecar is None else [path, sidecar]
        found = [one.stat() for one in paths]
        if not all(stat.S_ISREG(one.st_mode) for one in found):
            return None
        newest = max(max(one.st_mtime_ns, one.st_ctime_ns) for one in found)
        times = ",".join(f"{one.st_size}:{one.st_mtime_ns}:{one.st_ctime_ns}" for one in found)
        if known_digest and known_times == times:
            return Stamp(times, known_digest)
        return Stamp(times if newest + SETTLED < now else "", _digest(paths))
    except OSError:
        return None


def is_still(path: Path, stamp: Stamp, now: int) -> bool:
    """Whether a file has the times of a stamp or, if the stamp has none, its digest. `now` is in nanoseconds."""
    found = stamp_of(path, str(stamp), now)
    return found is not None and found.digest == stamp.digest and stamp.times in ("", found.times)


def _digest(paths: list[Path]) -> str:
    found = blake2b(digest_size=16)
    for path in paths:
        with path.open("rb") as file:
            file_digest(file, lambda: found)
            found.update(file.tell().to_bytes(8, "little"))  # which tells where one file ends
    return found.hexdigest()
