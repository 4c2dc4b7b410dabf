"""What was met of each entry so far: tells a new entry from a new version of one, and stops what changes for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Literal

from feeds.item import Entry, Origin, entry_identity, entry_time, entry_version

Versions = Literal["keep", "ignore"]
"""Whether an entry that has changed is a document again."""

MOST_VERSIONS = 20
"""How many versions of an entry are documents, and how many entries of a feed that differ in their guids alone."""


class History:
    """The entries of feeds, given in the order of their fetches: says which are documents, and of what time.

    `future` counts, for each feed, the entries that are dated after their fetch, whose time the fetch's is; `endless`
    those that are no documents because they, or their guids, have changed too often. Both count versions once.
    """

    def __init__(self, versions: Versions = "keep", most: int = MOST_VERSIONS) -> None:
        self._versions, self._most = versions, most
        # By the entry: the time of its last version that is a document, and the hashes of all of them.
        self._met: dict[bytes, tuple[int, frozenset[bytes]]] = {}
        self._guids: Counter[bytes] = Counter()
        self.future: Counter[str] = Counter()
        self.endless: Counter[str] = Counter()

    def documents(self, entries: Sequence[Entry], source: str, origin: Origin) -> Iterator[tuple[int, int]]:
        """The places of the entries of one fetch that are documents, and their times in microseconds.

        A version that was met before is told again, with the time of the last: who keeps documents knows its id. The
        first version has the entry's time; a later one that of its change, as far as the feed tells it, else that of
        the fetch.
        """
        for place, (entry, key) in enumerate(zip(entries, _keys(entries, source), strict=True)):
            version = _hash(source, entry_version(entry))
            time, known = self._met.get(key, (0, frozenset[bytes]()))
            if version not in known:
                if not self._is_wanted(source, version, len(known)):
                    continue
                time = _changed(entry, origin, time) if known else entry_time(entry, origin)
                self._met[key] = time, known | {version}
                if origin.fetched is not None and entry.date is not None and entry.date > origin.fetched:
                    self.future[source] += 1
            yield place, time

    def _is_wanted(self, source: str, version: bytes, known: int) -> bool:
        """Whether a version that was not met is a document, when so many others of its entry are."""
        if known and self._versions == "ignore":
            return False
        self._guids[version] += not known
        if known < self._most and self._guids[version] <= self._most:
            return True
        self.endless[source] += 1
        return False


def _changed(entry: Entry, origin: Origin, before: int) -> int:
    """When an entry changed whose last version has the time `before`."""
    latest = origin.modified if origin.fetched is None else origin.fetched
    told = [date for date in (entry.updated, entry.date) if date is not None and before < date <= latest]
    return max(told, default=latest)


def _keys(entries: Sequence[Entry], source: str) -> Iterator[bytes]:
    """What each entry is known by: its identity; where a feed repeats one, its link too, and then its place among
    those, counted from the oldest, because feeds grow at the top."""
    identities = [entry_identity(entry) for entry in entries]
    repeated = Counter(identities)
    left = Counter((identity, entry.item_url) for identity, entry in zip(identities, entries, strict=True))
    for identity, entry in zip(identities, entries, strict=True):
        if repeated[identity] == 1:
            yield _hash(source, identity)
        else:
            left[identity, entry.item_url] -= 1
            yield _hash(source, identity, entry.item_url, str(left[identity, entry.item_url]))


def _hash(*parts: str) -> bytes:
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=12).digest()
