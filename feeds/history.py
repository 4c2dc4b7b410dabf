"""The history of feed entries: distinguishes new entries from new versions, and stops entries that change endlessly.

Readers yield documents, rejects, and sightings of entries in a fetch; a `History` turns the latter into documents and a
visit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from hashlib import blake2b
from html import escape
from typing import Any, Literal, NamedTuple

from common.dates import iso_utc
from common.tools import decrease
from common.urls import canonical_url
from feeds.documents import (
    DEFAULT_STREAM,
    VISITS_STREAM,
    Document,
    Reject,
    SourceItem,
    Visit,
    VisitOutcome,
    change_time,
    first_time,
)
from feeds.items import Entry, entry_identity, entry_version, one_line

Versions = Literal["keep", "ignore"]  # whether a changed entry becomes a document again


@dataclass(frozen=True, slots=True)
class Fetch:
    """A fetch of a feed, by address or name, from file `name`; times (fetch if known, file) are microseconds. `page`:
    an older page of the feed, which only adds unknown entries."""

    feed: str
    name: str
    modified: int
    fetched: int | None
    page: bool = False

    @property
    def time(self) -> int:
        return self.modified if self.fetched is None else self.fetched

    @property
    def is_known_by_file(self) -> bool:
        return self.feed == self.name

    @property
    def visited(self) -> str:
        """The feed if it was visited at a known time, which advances its stream; else ""."""
        return "" if self.fetched is None or self.is_known_by_file else self.feed


@dataclass(frozen=True, slots=True)
class Sighting:
    """An entry as seen in a fetch. `key` identifies it within its feed; `version` hashes the content that makes a
    version. `date` and `updated` are the entry's own, in microseconds, None if missing. A history written before
    addresses were canonicalised knows the entry by `former_key` and `former_version`. `undated`: its date cannot be
    read. `name` is its guid, else its link, as in its document. `versions` is its feed's setting, "" if unset."""

    id: str
    xml: bytes | str = field(repr=False)
    fetch: Fetch
    key: str
    version: str
    date: int | None
    updated: int | None
    former_key: str = ""
    former_version: str = ""
    undated: bool = False
    name: str = ""
    versions: Versions | Literal[""] = ""

    def at(self, time: int) -> Document:
        return Document(self.id, self.xml, DEFAULT_STREAM, time, feed=self.fetch.visited)


@dataclass(frozen=True, slots=True)
class EndOfFetch:
    """The end of a fetch, with the keys of all its entries; None if the feed could not be read, for the reason `error`.
    `address` is where the feed will be fetched from now on, "" if unknown."""

    fetch: Fetch
    keys: Collection[str] | None
    address: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class NotedVisit:
    """A visit without a new version, as a crawl records it (see `Visit`). It counts once the version fetched at `since`
    has been read, so that the order of files does not matter. Without `since`, a complete visit counts once any version
    was read, and any other immediately. Times are microseconds. A failed one has its `error`, with the HTTP `status` if
    there was an answer. `address` is where the feed will be fetched from now on, "" if unknown."""

    feed: str
    time: int
    outcome: VisitOutcome = "complete"
    since: int | None = None
    status: int = 0
    error: str = ""
    address: str = ""


InputItem = Document | Reject | Sighting | EndOfFetch | NotedVisit


def size_of(item: InputItem | Visit | None) -> int | None:
    """The approximate size of an item in bytes, for batching; None if it does not count."""
    match item:
        case None | Visit():
            return None
        case Document() | Sighting():
            return len(item.xml)
        case Reject():
            return len(item.raw)
        case EndOfFetch() | NotedVisit():
            return 0


def sightings(found: Iterable[tuple[Entry, bytes | str, str]], fetch: Fetch) -> Iterator[Sighting]:
    """The sightings of a fetch, from its entries, their documents, and their identities by the reading rules ("" for
    the default). All are read before the first sighting is yielded, since a key depends on repeated identities. An id
    combines the feed, the identity and a hash of the version, so that a changed entry gets a new one."""
    rows: list[tuple[Any, ...]] = []
    identities: tuple[list[tuple[str, str]], list[tuple[str, str]]] = [], []
    for entry, body, chosen in found:
        known = replace(entry, guid=chosen) if chosen else entry
        identity, version = entry_identity(known), entry_version(entry)
        id, name = one_line(f"{fetch.feed} {identity} {version}"), one_line(entry.guid or entry.item_url)
        former = _hash(entry_version(entry, canonical=False))
        undated = entry.date is None and entry.date_text != ""
        rows.append((id, body, _hash(version), entry.date, entry.updated, former, undated, name))
        identities[0].append((identity, canonical_url(entry.item_url)))
        identities[1].append((entry_identity(known, canonical=False), entry.item_url))
    keys = zip(*map(_keys, identities), strict=True)
    rows.reverse()
    for key, former_key in keys:
        id, body, version, date, updated, former, undated, name = rows.pop()  # which frees the memory
        yield Sighting(id, body, fetch, key, version, date, updated, former_key, former, undated, name)


def encode_sighting(shown: Sighting | EndOfFetch | NotedVisit) -> str:
    """Encodes a sighting (without id and XML), the end of a fetch, or a noted visit as JSON."""
    match shown:
        case NotedVisit():
            return json.dumps([None, astuple(shown)], separators=(",", ":"))
        case Sighting():
            what: list[object] = [shown.key, shown.version, shown.date, shown.updated]
            what += [shown.former_key, shown.former_version, shown.undated, shown.name, shown.versions]
        case EndOfFetch():
            what = [None if shown.keys is None else sorted(shown.keys), shown.address, shown.error]
    return json.dumps([astuple(shown.fetch), what], separators=(",", ":"))


def decode_sighting(text: str, id: str, xml: bytes | str) -> Sighting | EndOfFetch | NotedVisit:
    """The inverse of `encode_sighting`. Only a sighting needs id and XML."""
    fetch, what = json.loads(text)
    if fetch is None:
        return NotedVisit(*what)
    if len(what) <= _PARTS_OF_AN_END:
        return EndOfFetch(Fetch(*fetch), *what)
    return Sighting(id, xml, Fetch(*fetch), *what)


_PARTS_OF_AN_END = 3  # a sighting has more


def fetched_feed(text: str) -> str:
    """The feed of an encoded sighting or end of a fetch; "" for a noted visit."""
    fetch, _ = json.loads(text)
    return "" if fetch is None else Fetch(*fetch).feed


def _keys(entries: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The key of each entry within its feed, given identities and links: its identity. A repeated identity is qualified
    by the link, and by a number among entries with that link, counted from the oldest because feeds grow at the top."""
    repeated, left = Counter(identity for identity, _ in entries), Counter(entries)
    for identity, link in entries:
        if repeated[identity] == 1:
            yield _hash(identity)
        else:
            left[identity, link] -= 1
            yield _hash(identity, link, str(left[identity, link]))


def _hash(*parts: str) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=8).hexdigest()


MOST_VERSIONS = 20
"""Maximum number of versions of an entry that become documents, and of entries that differ in their guids alone."""


@dataclass(slots=True)
class _Met:
    """The time and version hashes of an entry's documents, and the time of its feed's first fetch without it. The time
    of the first document and the name (see `Sighting`) are missing in older histories."""

    time: int
    versions: list[str]
    missing: int | None = None
    first: int | None = None
    name: str = ""

    @property
    def appeared(self) -> int:
        return self.time if self.first is None else self.first

    def to_json(self) -> list[object]:
        missing = self.missing if self.first is None and not self.name else [self.missing, self.first, self.name]
        return [self.time, missing, *self.versions]

    @classmethod
    def from_json(cls, found: list[Any]) -> _Met:
        time, missing, *versions = found
        return cls(time, versions, *(missing if isinstance(missing, list) else [missing]))


class FeedNews(NamedTuple):
    """The latest report on a feed in the stream of visits: its `error` ("" after a success), the address that it is
    fetched from ("" if unknown), the number of its entries, and the time."""

    error: str
    address: str
    entries: int
    time: int


@dataclass(slots=True)
class _Feed:
    """The known entries of a feed, and the time of its last complete fetch. `alike` counts the entries of each version.
    `left_out` has the last version of each listed entry that changes endlessly; `refused` has the times of versions
    that became dead letters in earlier runs, by entry and version, `refused_now` those of this run. `noted` has, for
    each version still to be read, the visits since then without a new version: the last one, and the failed ones before
    it. `news` is the latest report on the feed."""

    listed: int | None = None
    entries: dict[str, _Met] = field(default_factory=dict)
    alike: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)
    refused: dict[str, dict[str, int]] = field(default_factory=dict)
    refused_now: dict[str, dict[str, int]] = field(default_factory=dict)
    noted: dict[int, list[NotedVisit]] = field(default_factory=dict)
    news: FeedNews | None = None

    def add(self, key: str, version: str, time: int, name: str) -> None:
        met = self.entries.setdefault(key, _Met(time, [], None, time, name))
        met.time = time
        met.versions.append(version)
        self.alike[version] += 1

    def take_over(self, seen: Sighting) -> None:
        """Replaces the former key and hash of an entry and its version by today's."""
        holders: list[dict[str, Any]] = [self.entries, self.left_out, self.refused, self.refused_now]
        for known in holders:
            if seen.former_key in known and seen.key not in known:
                known[seen.key] = known.pop(seen.former_key)
        met = self.entries.get(seen.key)
        if met is not None and seen.former_version in met.versions and seen.version not in met.versions:
            met.versions[met.versions.index(seen.former_version)] = seen.version
            self.alike += Counter({seen.version: 1})
            self.alike -= Counter({seen.former_version: 1})

    def take_refused(self, key: str, version: str) -> int | None:
        """The time of a version refused in an earlier run, once; else None."""
        times = self.refused.get(key, {})
        time = times.pop(version, None)
        if not times:
            self.refused.pop(key, None)
        return time

    def drop(self, key: str) -> None:
        self.refused.pop(key, None)
        self.refused_now.pop(key, None)
        for version in self.entries.pop(key).versions:
            decrease(self.alike, version)

    def take_noted(self) -> list[NotedVisit]:
        """Takes the visits noted since versions that have now been read, in order, from the last version on."""
        if (listed := self.listed) is None:
            return []
        due = [one for since in list(self.noted) if since <= listed for one in self.noted.pop(since)]
        return sorted((one for one in due if one.time > listed), key=lambda one: (one.time, one.outcome))

    def hold(self, visit: NotedVisit, since: int) -> None:
        held = sorted([*self.noted.get(since, ()), visit], key=lambda one: (one.time, one.outcome))
        last = next((one for one in reversed(held) if not one.error), None)
        self.noted[since] = [one for one in dict.fromkeys(held) if one.error or one is last]

    def to_json(self) -> str:
        entries = {key: met.to_json() for key, met in self.entries.items()}
        refused = dict(self.refused)
        for key, times in self.refused_now.items():
            refused[key] = refused.get(key, {}) | times
        noted = [[since, *astuple(one)[1:3], *astuple(one)[4:]] for since, some in self.noted.items() for one in some]
        rest: list[object] = [self.left_out, refused, noted, self.news]
        while rest and not rest[-1]:
            rest.pop()
        return json.dumps([self.listed, entries, *rest], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> _Feed:
        listed, entries, *rest = json.loads(text)
        kept: list[Any] = [*rest, *[{}, {}, [], None][len(rest) :]]
        left_out, refused, noted, news = kept
        met = {key: _Met.from_json(one) for key, one in entries.items()}
        alike = Counter(version for entry in met.values() for version in entry.versions)
        feed = cls(listed, met, alike, left_out, refused, news=news and FeedNews(*news))
        for since, time, outcome, *about in noted:
            feed.noted.setdefault(since, []).append(NotedVisit("", time, outcome, since, *about))
        return feed


class History:
    """Decides which entries of feeds become documents, and with what time. Fetches must come in order. By feed,
    `future` counts versions dated after their fetch and `undated` those with unreadable dates; both get its time."""

    def __init__(self, versions: Versions = "keep", most: int = MOST_VERSIONS, *, keep: int | None = None) -> None:
        """Up to `most` versions of an entry become documents, and as many entries of a feed that differ in their guids
        alone; others are dead letters. An entry is forgotten once its feed has lacked it for `keep` microseconds."""
        self._versions, self._most, self._keep = versions, most, keep
        self._feeds: dict[str, _Feed] = {}
        self._files: dict[str, _Feed] = {}
        self._changed: set[str] = set()
        self.future: Counter[str] = Counter()
        self.undated: Counter[str] = Counter()

    def load(self, kept: Mapping[str, str]) -> None:
        self._feeds |= {source: _Feed.from_json(text) for source, text in kept.items()}

    def changed(self) -> dict[str, str]:
        """The state, for a later `load`, of each feed that has changed since the last call."""
        texts = {source: self._feeds[source].to_json() for source in sorted(self._changed)}
        self._changed.clear()
        return texts

    def refuse(self, seen: Sighting, time: int) -> None:
        """Records that a judged document with this time became a dead letter: a later history that loads this one turns
        the version into that document again, once."""
        if not seen.fetch.is_known_by_file:
            self._feed(seen.fetch).refused_now.setdefault(seen.key, {})[seen.version] = time
            self._note(seen.fetch)

    def settle(self, items: Iterable[InputItem]) -> Iterator[SourceItem]:
        for item in items:
            if (settled := self.judge(item)) is not None:
                yield settled

    def judge(self, item: InputItem) -> SourceItem | None:
        """Turns an item into a document, or the end of a fetch into a visit; None for a known or unwanted version; a
        dead letter if the entry changes endlessly. Items of a fetch must come in order.

        An entry's first version gets the entry's time, a later one the time of the change if the feed gives it, else
        that of the fetch. Judging an item records it. A feed known only by its file's name is not recorded.
        """
        match item:
            case Sighting():
                return self._entry(item)
            case EndOfFetch():
                return self._end(item)
            case NotedVisit():
                return self._noted(item)
            case Document() | Reject():
                return item

    def _feed(self, fetch: Fetch) -> _Feed:
        known = self._files if fetch.is_known_by_file else self._feeds
        return known.setdefault(fetch.feed, _Feed())

    def _entry(self, seen: Sighting) -> Document | Reject | None:
        fetch, key, version, date = seen.fetch, seen.key, seen.version, seen.date
        feed = self._feed(fetch)
        feed.take_over(seen)
        if (time := feed.take_refused(key, version)) is not None:
            self._note(fetch)
            return seen.at(time)
        met = feed.entries.get(key)
        ignores = (seen.versions or self._versions) == "ignore" or fetch.page
        if met is not None and (version in met.versions or ignores):
            return None
        changes = len(met.versions if met else ()) >= self._most
        if changes or feed.alike[version] >= self._most:
            return self._without_end(seen, feed, "it changes" if changes else "its guid changes")
        if met is None:
            time = first_time(date, fetch.fetched, fetch.modified)
        else:
            time = change_time((seen.updated, seen.date), met.time, fetch.time)
        feed.add(key, version, time, seen.name)
        if fetch.page:  # it is older than the feed's window, so its absence there is no withdrawal
            feed.entries[key].missing = fetch.time
        self._note(fetch)
        if fetch.fetched is not None and date is not None and date > fetch.fetched:
            self.future[fetch.feed] += 1
        self.undated[fetch.feed] += seen.undated
        return seen.at(time)

    def _without_end(self, seen: Sighting, feed: _Feed, cause: str) -> Reject | None:
        fetch = seen.fetch
        if feed.left_out.get(seen.key) == seen.version:
            return None
        feed.left_out[seen.key] = seen.version
        self._note(fetch)
        guid = seen.id.removeprefix(f"{fetch.feed} ").rpartition(" ")[0]
        message = f"the entry {guid} of {fetch.feed} is left out, because {cause} without end"
        advice = f"at most {self._most} versions are taken; --most-versions raises the limit"
        return Reject(seen.id, DEFAULT_STREAM, fetch.time, f"{fetch.name}: {message}: {advice}", seen.xml)

    def _note(self, fetch: Fetch) -> None:
        if not fetch.is_known_by_file:
            self._changed.add(fetch.feed)

    def _end(self, end: EndOfFetch) -> Visit | None:
        fetch = end.fetch
        if fetch.is_known_by_file:
            self._files.pop(fetch.feed, None)
            return None
        visited, feed = fetch.visited, self._feed(fetch)
        is_newest = feed.listed is None or fetch.time >= feed.listed
        if (
            end.keys is None
        ):  # a feed that was readable before may be again; any other would hold its stream for nothing
            if not visited:
                return None
            outcome: VisitOutcome = "ended" if feed.listed is None else "failed"
            return self._told(feed, NotedVisit(visited, fetch.time, outcome, None, 0, end.error)) if is_newest else None
        self._note(fetch)
        # An older fetch found late says nothing about the present.
        withdrawn = self._list(feed, fetch, set(end.keys)) if is_newest else []
        noted = feed.take_noted()
        if not visited:
            return None
        own = NotedVisit(visited, fetch.time, "complete", None, 0, "", end.address)
        found = [self._news(feed, own, len(end.keys), withdrawn)] if is_newest else []
        found += [self._news(feed, replace(one, feed=visited)) for one in noted]
        last = max((one for one in noted if one.outcome != "failed"), key=lambda one: one.time, default=own)
        documents = tuple(document for some in found for document in some)
        return Visit(visited, last.time, last.outcome, documents=documents)

    def _news(
        self, feed: _Feed, visit: NotedVisit, entries: int | None = None, withdrawn: Sequence[str] = ()
    ) -> tuple[Document, ...]:
        """The document of VISITS_STREAM about a visit, if it changed the report on the feed."""
        before = feed.news or FeedNews("", visit.feed, -1, visit.time - 1)
        if visit.time <= before.time or (visit.outcome != "complete" and not visit.error):
            return ()
        count = before.entries if entries is None else entries
        news = FeedNews(visit.error, visit.address or before.address, count, visit.time)
        if feed.news is not None and news[:-1] == before[:-1] and not withdrawn:
            return ()
        feed.news = news
        self._feeds[visit.feed] = feed
        self._changed.add(visit.feed)
        time, moved = iso_utc(visit.time), news.address if news.address != before.address else ""
        status = visit.status or ("" if visit.error else 200)
        found = {"feed": visit.feed, "time": time, "status": status, "error": visit.error, "moved": moved}
        parts = [f"<{name}>{escape(one_line(str(text)))}</{name}>" for name, text in found.items() if text]
        if not visit.error and count >= 0:
            parts.append(f"<entries>{count}</entries>")
        parts += [f"<withdrawn>{escape(name)}</withdrawn>" for name in withdrawn]
        xml = f"<visit>{''.join(parts)}</visit>".encode()
        return (Document(f"{visit.feed} {time}", xml, VISITS_STREAM, visit.time, feed=visit.feed),)

    def _noted(self, noted: NotedVisit) -> Visit | None:
        feed = self._feeds.get(noted.feed, _Feed())
        if feed.listed is not None and noted.time <= feed.listed:
            return None
        if noted.since is None:
            counts = noted.outcome != "complete" or feed.listed is not None
        else:
            counts = feed.listed is not None and noted.since <= feed.listed
            if not counts:
                feed.hold(noted, noted.since)
                self._feeds[noted.feed] = feed
                self._changed.add(noted.feed)
        return self._told(feed, noted) if counts else None

    def _told(self, feed: _Feed, noted: NotedVisit) -> Visit | None:
        documents = self._news(feed, noted)
        if noted.outcome == "failed" and not documents:
            return None
        return Visit(noted.feed, noted.time, noted.outcome, documents=documents)

    def _list(self, feed: _Feed, fetch: Fetch, there: set[str]) -> list[str]:
        """Records which entries are in the feed now. Returns the names of withdrawn ones: they are gone although older
        entries are still listed."""
        feed.listed = fetch.time
        oldest = min((met.appeared for key, met in feed.entries.items() if key in there), default=fetch.time)
        withdrawn: list[str] = []
        feed.left_out = {key: version for key, version in feed.left_out.items() if key in there}
        for key, met in list(feed.entries.items()):
            if key in there:
                met.missing = None
            elif met.missing is None:
                met.missing = fetch.time
                if met.appeared > oldest:
                    withdrawn.append(met.name)
            elif self._keep is not None and met.missing < fetch.time - self._keep:
                feed.drop(key)
        return withdrawn
