"""The items that reading gives: documents, rejects, and what a fetch of a feed shows, which a `History` judges
later."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from hashlib import blake2b

from feeds.document import DEFAULT_STREAM, Document, Reject
from feeds.item import Entry, entry_id, entry_identity, entry_version


@dataclass(frozen=True, slots=True)
class Fetch:
    """A fetch of a feed, by its address or name, in the file `name`. Times are microseconds: `fetched` if it is known,
    and `modified`, when the file was written."""

    feed: str
    name: str
    modified: int
    fetched: int | None

    @property
    def time(self) -> int:
        return self.modified if self.fetched is None else self.fetched

    @property
    def is_known_by_file(self) -> bool:
        """Whether the feed has no other name than that of the file."""
        return self.feed == self.name


@dataclass(frozen=True, slots=True)
class Sighting:
    """An entry as a fetch shows it. `key` identifies it within its feed; `version` is a hash of the content that makes
    a version. `date` and `updated` are the entry's own, in microseconds, None if it gives none."""

    id: str
    xml: bytes | str = field(repr=False)
    fetch: Fetch
    key: str
    version: str
    date: int | None
    updated: int | None

    def at(self, time: int) -> Document:
        """The document of the entry, at a time."""
        return Document(self.id, self.xml, DEFAULT_STREAM, time)


@dataclass(frozen=True, slots=True)
class EndOfFetch:
    """The end of a fetch, with the keys of all its entries."""

    fetch: Fetch
    keys: Collection[str]


Item = Document | Reject | Sighting | EndOfFetch
"""One of the things that a file holds."""


def size_of(item: Item) -> int:
    """The size of an item in a batch, about in bytes."""
    match item:
        case Document() | Sighting():
            return len(item.xml)
        case Reject():
            return len(item.raw)
        case EndOfFetch():
            return 0


def sightings(entries: Sequence[Entry], bodies: Sequence[bytes | str], fetch: Fetch) -> Iterator[Sighting | EndOfFetch]:
    """What a fetch shows, given its entries and the document of each: the sightings, and then the end."""
    keys = list(_keys(entries))
    for entry, body, key in zip(entries, bodies, keys, strict=True):
        version = _hash(entry_version(entry))
        yield Sighting(entry_id(entry, fetch.feed), body, fetch, key, version, entry.date, entry.updated)
    yield EndOfFetch(fetch, keys)


def to_json(shown: Sighting | EndOfFetch) -> str:
    """All of a sighting but its id and XML, or the end of a fetch, as JSON."""
    match shown:
        case Sighting():
            what: list[object] = [shown.key, shown.version, shown.date, shown.updated]
        case EndOfFetch():
            what = [sorted(shown.keys)]
    return json.dumps([astuple(shown.fetch), what], separators=(",", ":"))


def from_json(text: str, id: str, xml: bytes | str) -> Sighting | EndOfFetch:
    """The inverse of `to_json`. The end of a fetch needs no id and XML."""
    fetch, what = json.loads(text)
    if len(what) == 1:
        return EndOfFetch(Fetch(*fetch), what[0])
    return Sighting(id, xml, Fetch(*fetch), *what)


def fetch_in(text: str) -> Fetch:
    """The fetch in a text of `to_json`."""
    return Fetch(*json.loads(text)[0])


def _keys(entries: Sequence[Entry]) -> Iterator[str]:
    """The key of each entry within its feed: its identity. If a feed repeats an identity, the link too, and then the
    number among those with the same link, counted from the oldest, because feeds grow at the top."""
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
