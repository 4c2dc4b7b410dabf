"""The state of a feed between fetches, and how a fetch changes it: pure decisions."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from feeds.credentials import without_credentials
from feeds.fetch.failures import FetchedAlready, FetchError, Gone
from feeds.fetch.hints import Hints
from feeds.fetch.schedule import Pace, after_failure, after_success

_UNSAFE = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class FeedState:
    """A feed, by the address in its subscription. Times are microseconds of UTC, 0 for never.

    `url` and `address` may have a name and a password; `shown` never does.

    `title` is what the reader calls it, and `folder` has the paths of the reader's folders that it is in, one a line.
    `source` is its name in archives. `address` is where it is fetched now, after permanent redirects and its page.
    `errors` counts the failures since the last success. A feed that has `stopped` is not fetched again.
    """

    url: str
    source: str
    title: str = ""
    folder: str = ""
    address: str = ""
    etag: str = ""
    last_modified: str = ""
    next_check: int = 0
    checked_at: int = 0
    fetched_at: int = 0
    status: int = 0
    errors: int = 0
    last_error: str = ""
    sha256: str = ""
    hints: Hints = field(default_factory=Hints)
    stopped: bool = False

    @property
    def shown(self) -> str:
        """The address in the subscription, without name and password."""
        return without_credentials(self.url)

    @property
    def folders(self) -> tuple[str, ...]:
        """The paths of its folders."""
        return tuple(self.folder.splitlines())


def source_name(url: str) -> str:
    """The directory name of a feed: readable, safe on any file system, and unique.

    >>> source_name("https://example.org/feed.xml?tag=a")
    'example-org-feed-xml-tag-a-732f759c1067'
    """
    parts = urlsplit(url)
    readable = _UNSAFE.sub("-", f"{parts.hostname or ''} {parts.path} {parts.query}".lower()).strip("-")[:60]
    return f"{readable.rstrip('-')}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class Success:
    """What an answer says of a feed, new or unchanged. It is `fresh` for so long (microseconds)."""

    address: str
    status: int
    etag: str
    last_modified: str
    sha256: str
    hints: Hints
    fresh: int


def succeeded(feed: FeedState, success: Success, now: int, pace: Pace, random: float) -> FeedState:
    """The feed after an answer. If its body was new, it was kept at `now`."""
    return replace(
        feed,
        address=success.address,
        etag=success.etag,
        last_modified=success.last_modified,
        next_check=after_success(now, success.fresh, success.hints, pace, random),
        checked_at=now,
        fetched_at=feed.fetched_at if success.sha256 == feed.sha256 else now,
        status=success.status,
        errors=0,
        last_error="",
        sha256=success.sha256,
        hints=success.hints,
    )


def failed(feed: FeedState, error: FetchError, now: int, pace: Pace, random: float) -> FeedState:
    """The feed after a failure, stopped if it is gone for good."""
    errors = feed.errors + 1
    return replace(
        feed,
        next_check=after_failure(now, errors, error.not_before, feed.hints, pace, random),
        checked_at=now,
        status=error.status,
        errors=errors,
        last_error=without_credentials(str(error)),
        stopped=isinstance(error, Gone),
    )


def put_aside(feed: FeedState, already: FetchedAlready, now: int, pace: Pace, random: float) -> FeedState:
    """The feed while its address is fetched as another feed. A later visit checks whether that still holds."""
    return replace(
        feed,
        address=already.address,
        next_check=after_success(now, 0, Hints(), pace, random),
        checked_at=now,
        errors=0,
        last_error=without_credentials(str(already)),
    )
