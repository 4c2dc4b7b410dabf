"""The feeds of a state, which are read beside the fetch, and changes to them, which the fetch takes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.private import make_inside
from feeds.fetch.changes import Added, FeedChange, change_feeds
from feeds.fetch.feed_state import FeedState
from feeds.fetch.lists import read_feed_list
from feeds.fetch.state import STATE_FILE
from feeds.text import LONGEST_TITLE, one_line
from mmqjp.service.fetched_feeds import DROPS, FeedSummary, as_opml, chosen_feeds, feed_named, known_feeds
from mmqjp.web.cursors import cursor, place_of
from mmqjp.web.site import Site

ROWS = 100
"""The feeds on a page."""

WAIT = 3.0
"""Seconds to wait for a fetch that runs to take in a change."""

OVERDUE = 600_000_000
"""A feed that is due for so many microseconds shows that nobody fetches."""

Health = Literal["well", "new", "failing", "stopped"]
WantedFeeds = Literal["", "failing", "stopped"]


@dataclass(frozen=True, slots=True)
class FeedRow(FeedSummary):
    """A feed and its health: `new` before the first visit; `stopped` if it is gone for good and not fetched again."""

    health: Health


@dataclass(frozen=True, slots=True)
class FeedPage:
    """A page of feeds. `feeds`, `failing` and `stopped` count all. `overdue` says that some should have been fetched
    long ago: nobody fetches."""

    rows: tuple[FeedRow, ...]
    next: str | None
    feeds: int
    failing: int
    stopped: int
    overdue: bool


@dataclass(frozen=True, slots=True)
class FeedsChanged:
    """What was done: how many feeds it concerns, what was left out and why. `made` is false if the fetch that runs has
    not taken it in yet."""

    feeds: int
    made: bool
    complaints: tuple[str, ...] = ()


def feed_page(site: Site, wanted: WantedFeeds = "", after: str | None = None) -> FeedPage:
    """Returns the feeds of a health, from a place on. Raises SourceError."""
    known = _known(site)
    rows = [_row(feed) for feed in known]
    begin = place_of(after)
    first = 0 if begin is None else begin[0]
    shown = [row for row in rows[max(first, 0) :] if wanted in ("", row.health)]
    place = {row.url: number for number, row in enumerate(rows)}
    due = [row.next_check for row in rows if row.next_check is not None]
    return FeedPage(
        tuple(shown[:ROWS]),
        cursor(place[shown[ROWS].url], "") if len(shown) > ROWS else None,
        len(rows),
        sum(row.health == "failing" for row in rows),
        sum(row.health == "stopped" for row in rows),
        bool(due) and min(due) + OVERDUE < site.now(),
    )


def opml(site: Site) -> bytes:
    """Returns the feeds as a list for other readers, without names and passwords. Raises SourceError."""
    return as_opml(_known(site))


def add_feed(site: Site, address: str, title: str = "", folder: str = "") -> FeedsChanged:
    """Adds a feed. Raises NoSuchFeed for what is no web address, SourceError, OSError."""
    feed = feed_named(address.strip())
    added = Added(feed.url, one_line(title)[:LONGEST_TITLE], one_line(folder)[:LONGEST_TITLE])
    return FeedsChanged(1, _change(site, FeedChange(add=(added,))))


def add_list(site: Site, data: bytes) -> FeedsChanged:
    """Adds the feeds of a list, in OPML or with an address a line. Raises SourceError, OSError."""
    found, complaints = read_feed_list(data, "the list")
    added = tuple(Added(feed.url, feed.title, feed.folder) for feed in found)
    return FeedsChanged(len(added), _change(site, FeedChange(add=added)) if added else True, tuple(complaints))


def remove_feed(site: Site, address: str) -> FeedsChanged:
    """Removes a feed. Raises NoSuchFeed, SourceError, OSError."""
    urls = tuple(feed.url for feed in _chosen(site, [address]))
    return FeedsChanged(len(urls), _change(site, FeedChange(remove=urls)))


def retry_feeds(site: Site, addresses: Sequence[str]) -> FeedsChanged:
    """Makes feeds due now; without addresses, those that fail. Raises NoSuchFeed, SourceError, OSError."""
    failing = [feed for feed in _known(site) if feed.errors and not feed.stopped]
    urls = tuple(feed.url for feed in (_chosen(site, addresses) if addresses else failing))
    return FeedsChanged(len(urls), _change(site, FeedChange(retry=urls)) if urls else True)


def _known(site: Site) -> list[FeedState]:
    file = _file(site)
    return known_feeds(file) if file.is_file() else []


def _chosen(site: Site, addresses: Sequence[str]) -> list[FeedState]:
    return chosen_feeds(_known(site), addresses, "this state")


def _change(site: Site, change: FeedChange) -> bool:
    make_inside(site.state, DROPS)
    return change_feeds(_file(site), change, WAIT)


def _file(site: Site) -> Path:
    return site.state / DROPS / STATE_FILE


def _row(feed: FeedState) -> FeedRow:
    told = FeedSummary.of(feed)
    health: Health = "well"
    if told.stopped:
        health = "stopped"
    elif told.errors:
        health = "failing"
    elif told.checked_at is None:
        health = "new"
    return FeedRow(**{name: getattr(told, name) for name in FeedSummary.__dataclass_fields__}, health=health)
