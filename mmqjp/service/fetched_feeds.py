"""The feeds of a fetch as people see them, where their state is, and which of them an address stands for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from common.private import make_inside
from feeds.credentials import refused, without_credentials
from feeds.fetch.failures import FetchError
from feeds.fetch.feed_state import FeedState
from feeds.fetch.lists import feed_of_address
from feeds.fetch.opml import ListedFeed, write_opml
from feeds.fetch.state import STATE_FILE, FetchStore
from mmqjp.state.ownership import OWNER_FILE

DROPS = "drops"
"""The folder of a state directory that a service fetches into."""


class NoSuchFeed(InputError, ValueError):
    """An address stands for no feed, or could stand for several."""


@dataclass(frozen=True, slots=True)
class FeedSummary:
    """A feed, without names and passwords in addresses. Times are microseconds since 1970, None for never.

    `url` is the address in the subscription, and `fetched_from` where it is fetched now. `changed_at` is when it last
    had something new; `errors` counts the failures since the last success.
    """

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

    @staticmethod
    def of(feed: FeedState) -> FeedSummary:
        """Returns what is told of a feed."""
        return FeedSummary(
            feed.shown,
            feed.title,
            feed.folders,
            without_credentials(feed.address or feed.url),
            feed.status or None,
            feed.stopped,
            feed.checked_at or None,
            feed.fetched_at or None,
            None if feed.stopped else feed.next_check or None,
            feed.errors,
            without_credentials(feed.last_error),
        )


def state_file(path: Path) -> Path:
    """The fetcher's state file for a path: the file itself, or the one in a directory of `fetch`, `run` or `stream`."""
    if not path.is_dir():
        return path
    here, below = path / STATE_FILE, path / DROPS / STATE_FILE
    return below if below.exists() and not here.exists() else here


def new_state_file(path: Path) -> Path:
    """The fetcher's state file for a path where there may be none yet. A missing path without a suffix is a directory
    to make. In a store of `run` or `stream`, it is where they fetch into. Raises OSError."""
    if not path.exists() and not path.suffix:
        return path / STATE_FILE
    if (path / OWNER_FILE).exists() and not (path / STATE_FILE).exists():
        return fetch_directory(path) / STATE_FILE
    return state_file(path)


def fetch_directory(state: Path) -> Path:
    """The folder that `run`, `stream` and `serve` with a state fetch into. It is made if it is missing, and feeds that
    were added before there was a store go there. Raises OSError, SourceError."""
    folder = make_inside(state, DROPS)
    if (early := _added_early(state)) is not None:
        with FetchStore(early, write=True):  # nobody adds feeds to it meanwhile
            early.replace(folder / STATE_FILE)
    return folder


def has_feeds(state: Path) -> bool:
    """Whether there are feeds to fetch into that folder. Raises SourceError."""
    return (state / DROPS / STATE_FILE).is_file() or _added_early(state) is not None


def _added_early(state: Path) -> Path | None:
    """The file of feeds that were added before there was a store. A crawl, of which something was fetched, stays where
    it is."""
    early = state / STATE_FILE
    if not early.is_file() or (state / DROPS / STATE_FILE).exists():
        return None
    return None if any(feed.checked_at for feed in known_feeds(early)) else early


def known_feeds(file: Path) -> list[FeedState]:
    """The feeds of a state file, in the order in which they were added. Raises SourceError."""
    with FetchStore(file) as store:
        return store.feeds()


def as_opml(feeds: Sequence[FeedState], *, passwords: bool = False) -> bytes:
    """Feeds as a list for other readers: those that have not stopped, under the addresses that they have moved to."""
    known = ((f.address or f.url, f) for f in feeds if not f.stopped)
    shown = ((url if passwords else without_credentials(url), f) for url, f in known)
    return write_opml(ListedFeed(url, f.title, folder) for url, f in shown for folder in f.folders or ("",))


def feed_named(address: str) -> FeedState:
    """The feed of an address, in its state before the first fetch. Raises NoSuchFeed if it is no web address."""
    try:
        return feed_of_address(address)
    except FetchError as error:
        raise NoSuchFeed(f"{without_credentials(str(error))}; name a feed by its http or https address") from None


def chosen_feeds(known: Sequence[FeedState], addresses: Sequence[str], where: str) -> list[FeedState]:
    """The feeds that addresses stand for: those that have them, or else have them with a name and password.

    `where` says in the error where the feeds are, and how they are listed. Raises NoSuchFeed for an address that is no
    feed's, or could be several feeds'.
    """
    chosen: dict[str, FeedState] = {}
    for address in addresses:
        spellings = {address}
        with suppress(FetchError):  # an address that cannot be fetched is no feed's
            spellings.add(feed_of_address(address).url)
        found = [feed for feed in known if feed.url in spellings] or [feed for feed in known if feed.shown in spellings]
        if len(found) > 1:
            cause = f"{_shown(address)} is the address of {len(found):,} feeds, with different names or passwords"
            raise NoSuchFeed(f"{cause}; write it with the name and password of one of them")
        if not found:
            raise NoSuchFeed(f"{_shown(address)} is not a feed of {where}")
        chosen |= {feed.url: feed for feed in found}
    return list(chosen.values())


def _shown(address: str) -> str:
    """An address as it was given, without name and password."""
    try:
        return feed_of_address(address).shown
    except FetchError:
        return refused(address)
