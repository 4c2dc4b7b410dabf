"""What was met of each entry so far: tells a new entry from a new version of one, and stops what changes for ever."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from feeds.item import Entry, Origin, entry_identity, entry_time, entry_version

Versions = Literal["keep", "ignore"]
"""Whether an entry that has changed is a document again."""

MOST_VERSIONS = 20
"""How many versions of an entry are documents, and how many entries of a feed that differ in their guids alone."""


@dataclass(slots=True)
class _Met:
    """An entry: the time of its last version that is a document, the hashes of all of them, and the time of the fetch
    since which its feed has been without it."""

    time: int
    versions: list[str]
    missing: int | None = None


@dataclass(slots=True)
class _Feed:
    """The entries of a feed that were met, and the time of the last fetch that was read to its end. `alike` counts the
    entries that have had each version."""

    listed: int | None = None
    entries: dict[str, _Met] = field(default_factory=dict)
    alike: Counter[str] = field(default_factory=Counter)

    def add(self, key: str, version: str, time: int) -> None:
        met = self.entries.setdefault(key, _Met(time, []))
        met.time = time
        met.versions.append(version)
        self.alike[version] += 1

    def drop(self, key: str) -> None:
        self.alike.subtract(self.entries.pop(key).versions)
        self.alike = +self.alike

    def to_json(self) -> str:
        entries = {key: [met.time, met.missing, *met.versions] for key, met in self.entries.items()}
        return json.dumps([self.listed, entries], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> _Feed:
        listed, entries = json.loads(text)
        met = {key: _Met(time, versions, missing) for key, (time, missing, *versions) in entries.items()}
        return cls(listed, met, Counter(version for entry in met.values() for version in entry.versions))


class History:
    """The entries of feeds, given in the order of their fetches: says which are documents, and of what time.

    `future` counts, for each feed, the entries that are dated after their fetch, whose time the fetch's is; `endless`
    those that are no documents because they, or their guids, have changed too often. Both count versions once.
    """

    def __init__(
        self,
        versions: Versions = "keep",
        most: int = MOST_VERSIONS,
        *,
        lateness: int | None = None,
        keep: int | None = None,
    ) -> None:
        """At the first fetch of a feed, entries that are older by more than `lateness`, microseconds, get the time of
        the fetch: else they would be late. What a feed has been without for `keep` microseconds is forgotten."""
        self._versions, self._most, self._lateness, self._keep = versions, most, lateness, keep
        self._feeds: dict[str, _Feed] = {}
        self._changed: set[str] = set()
        self.future: Counter[str] = Counter()
        self.endless: Counter[str] = Counter()

    def load(self, kept: Mapping[str, str]) -> None:
        """Takes over what `changed` gave of each feed the last time."""
        self._feeds |= {source: _Feed.from_json(text) for source, text in kept.items()}

    def changed(self) -> dict[str, str]:
        """What is to be kept, for a later history to load, of each feed of which that has changed since it was asked
        for."""
        texts = {source: self._feeds[source].to_json() for source in sorted(self._changed)}
        self._changed.clear()
        return texts

    def documents(self, entries: Sequence[Entry], source: str, origin: Origin) -> Iterator[int | None]:
        """For each entry of a fetch the time, in microseconds, of the document that it is; None where it is none,
        because this version was met before or is not wanted.

        The first version has the entry's time; a later one that of its change, as far as the feed tells it, else that
        of the fetch. What is met counts as soon as it is given. What is called by its file's name is met once only.
        """
        feed = _Feed() if source == origin.name else self._feeds.setdefault(source, _Feed())
        fetched = origin.modified if origin.fetched is None else origin.fetched
        archive = None if self._lateness is None or feed.listed is not None else fetched - self._lateness
        keys = list(_keys(entries))
        for entry, key in zip(entries, keys, strict=True):
            yield self._time(feed, entry, key, source, origin, archive)
        self._listed(feed, set(keys), fetched)
        if feed is self._feeds.get(source):
            self._changed.add(source)

    def _time(
        self, feed: _Feed, entry: Entry, key: str, source: str, origin: Origin, archive: int | None
    ) -> int | None:
        version = _hash(entry_version(entry))
        met = feed.entries.get(key)
        if met is not None and version in met.versions:
            return None
        if met is not None and self._versions == "ignore":
            return None
        if len(met.versions if met else ()) >= self._most or feed.alike[version] >= self._most:
            self.endless[source] += 1
            return None
        time = entry_time(entry, origin, archive) if met is None else _changed(entry, origin, met.time)
        feed.add(key, version, time)
        if feed is self._feeds.get(source):
            self._changed.add(source)
        if origin.fetched is not None and entry.date is not None and entry.date > origin.fetched:
            self.future[source] += 1
        return time

    def _listed(self, feed: _Feed, keys: set[str], fetched: int) -> None:
        """A fetch is read to its end: notes what the feed is without, and forgets what it has long been without."""
        if feed.listed is not None and fetched < feed.listed:
            return  # an older one that was found late tells nothing of what is there now
        feed.listed = fetched
        for key, met in list(feed.entries.items()):
            if key in keys:
                met.missing = None
            elif met.missing is None:
                met.missing = fetched
            elif self._keep is not None and met.missing < fetched - self._keep:
                feed.drop(key)


def _changed(entry: Entry, origin: Origin, before: int) -> int:
    """When an entry changed whose last version has the time `before`."""
    latest = origin.modified if origin.fetched is None else origin.fetched
    told = [date for date in (entry.updated, entry.date) if date is not None and before < date <= latest]
    return max(told, default=latest)


def _keys(entries: Sequence[Entry]) -> Iterator[str]:
    """What each entry is known by within its feed: its identity; where a feed repeats one, its link too, and then its
    place among those, counted from the oldest, because feeds grow at the top."""
    identities = [entry_identity(entry) for entry in entries]
    repeated = Counter(identities)
    left = Counter((identity, entry.item_url) for identity, entry in zip(identities, entries, strict=True))
    for identity, entry in zip(identities, entries, strict=True):
        if repeated[identity] == 1:
            yield _hash(identity)
        else:
            left[identity, entry.item_url] -= 1
            yield _hash(identity, entry.item_url, str(left[identity, entry.item_url]))


def _hash(*parts: str) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=8).hexdigest()
