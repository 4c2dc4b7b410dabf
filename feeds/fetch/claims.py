"""Feeds that have moved to the same address: one of them is fetched there, and the others wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from feeds.fetch.failures import FetchedAlready
from feeds.fetch.feed_state import FeedState


class AddressClaims:
    """Which feed is fetched at an address: the one that is subscribed to by it, else the one that was fetched there,
    else the first. A feed that fails or is gone for good leaves the address to the next."""

    def __init__(self, feeds: Iterable[FeedState]) -> None:
        self._order: dict[str, int] = {}
        self._feeds: dict[str, FeedState] = {}
        self._at: dict[str, set[str]] = {}
        self._claimed: dict[str, str] = {}
        self._claims: dict[str, set[str]] = {}
        for feed in feeds:
            self.update(feed)

    def update(self, feed: FeedState) -> None:
        """Takes note of a feed's new state."""
        before = self._feeds.get(feed.url)
        if before is not None:
            self._at[_address(before)].discard(feed.url)
        self._feeds[feed.url] = feed
        self._order.setdefault(feed.url, len(self._order))
        self._at.setdefault(_address(feed), set()).add(feed.url)

    def remove(self, url: str) -> None:
        """Forgets a feed that is not visited."""
        if (before := self._feeds.pop(url, None)) is not None:
            self._at[_address(before)].discard(url)

    def claim(self, feed: FeedState, address: str) -> None:
        """Claims an address for as long as the feed is visited. FetchedAlready if it is another feed's."""
        holder = self._claimed.get(address, feed.url)
        if holder == feed.url:
            fit = (url for url in self._at.get(address, ()) if self._is_well(url))
            holder = min((feed.url, *fit), key=lambda url: self._rank(url, address))
        if holder != feed.url:
            raise FetchedAlready(holder, address)
        self._claimed[address] = feed.url
        self._claims.setdefault(feed.url, set()).add(address)

    @contextmanager
    def visited(self, feed: FeedState) -> Iterator[None]:
        """A visit of a feed. The feed's claims end with it."""
        try:
            yield
        finally:
            for address in self._claims.pop(feed.url, ()):
                del self._claimed[address]

    def _is_well(self, url: str) -> bool:
        return self._feeds[url].errors == 0 and not self._feeds[url].stopped

    def _rank(self, url: str, address: str) -> tuple[bool, bool, int]:
        feed = self._feeds[url]
        return url != address, _address(feed) != address or not feed.fetched_at, self._order[url]


def _address(feed: FeedState) -> str:
    return feed.address or feed.url
