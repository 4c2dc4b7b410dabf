"""What a fetch of a feed shows: its entries, and then that there are no more; a `History` judges it, also elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass
from hashlib import blake2b
from typing import NamedTuple

from feeds.document import DEFAULT_STREAM, Document, Reject
from feeds.item import Entry, entry_identity, entry_version


@dataclass(frozen=True, slots=True)
class Fetch:
    """A fetch of the feed that is known as `feed`, in a file called `name`. Times are microseconds: `fetched` if that
    is known, `modified` when the file was written."""

    feed: str
    name: str
    modified: int
    fetched: int | None

    @property
    def time(self) -> int:
        return self.modified if self.fetched is None else self.fetched

    @property
    def is_known_by_file(self) -> bool:
        """Whether nothing tells that another file is of the same feed."""
        return self.feed == self.name


class Sighting(NamedTuple):
    """An entry: what it is known by within its feed, a hash of what makes it a version, and the dates that it has."""

    key: str
    version: str
    date: int | None
    updated: int | None


class SeenEntry(Document):
    """An entry that may be a document, until that is settled with the time of its fetch."""

    __slots__ = ("fetch", "sighting")
    fetch: Fetch
    sighting: Sighting

    def __init__(self, id: str, xml: bytes | str, fetch: Fetch, sighting: Sighting) -> None:
        super().__init__(id, xml, DEFAULT_STREAM, fetch.time)
        object.__setattr__(self, "fetch", fetch)
        object.__setattr__(self, "sighting", sighting)

    def at(self, time: int) -> Document:
        """The document, with its time."""
        return Document(self.id, self.xml, self.stream, time)


class Listed(Reject):
    """The end of a fetch, with the keys of all its entries: there may be something to be said of it."""

    __slots__ = ("fetch", "keys")
    fetch: Fetch
    keys: Collection[str]

    def __init__(self, fetch: Fetch, keys: Collection[str]) -> None:
        super().__init__(fetch.name, DEFAULT_STREAM, fetch.fetched, "", b"")
        object.__setattr__(self, "fetch", fetch)
        object.__setattr__(self, "keys", keys)


def sightings(entries: Sequence[Entry]) -> list[Sighting]:
    """The entries of a fetch as they are judged."""
    return [
        Sighting(key, _hash(entry_version(entry)), entry.date, entry.updated)
        for entry, key in zip(entries, _keys(entries), strict=True)
    ]


def to_json(seen: SeenEntry | Listed) -> str:
    """What is to be known of a place of a fetch, besides id and XML."""
    what = seen.sighting if isinstance(seen, SeenEntry) else [sorted(seen.keys)]
    return json.dumps([astuple(seen.fetch), what], separators=(",", ":"))


def from_json(text: str, id: str, xml: bytes | str) -> SeenEntry | Listed:
    """What `to_json` made a text of; a `Listed` needs no id and XML."""
    fetch, what = json.loads(text)
    if len(what) == 1:
        return Listed(Fetch(*fetch), what[0])
    return SeenEntry(id, xml, Fetch(*fetch), Sighting(*what))


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
