"""Answers requests for feeds: which document, with which entity tag, and what has moved, is gone or was revoked.

No server is here: a request is the path's parts and two headers, and an answer is a status, headers and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from hashlib import sha256

from mmqjp.present.item import line
from mmqjp.syndication.atom import MEDIA_TYPE, Feed, archive_document, feed_document
from mmqjp.syndication.entries import Entry
from mmqjp.syndication.links import Links, archive_path, feed_path
from mmqjp.syndication.store_feeds import Earlier, Gone, StoreFeeds

SECOND = 1_000_000

_NO_CACHE = "private, no-cache"
_FOR_GOOD = "private, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Request:
    """A request for the feed of a query, or for its archive of a number. `if_none_match` and `if_modified_since` are
    the headers of these names, "" if they are missing."""

    key: str
    name: str
    archive: int | None = None
    if_none_match: str = ""
    if_modified_since: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request. HEAD has the same without the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class FeedPages:
    """Answers requests. `url` is the address of the site, without a slash at its end, and `now` the clock in
    microseconds."""

    feeds: StoreFeeds
    links: Links
    url: str
    now: Callable[[], int]

    def answer(self, request: Request) -> Answer:
        """Returns the answer. Raises what the reader of the feeds raises."""
        made_at = self.links.revoked_before(request.name, request.key)
        if made_at is None:
            return _error(404, "there is no feed at this address")
        if made_at != self.feeds.revoked(request.name):
            return _error(410, "the link of this feed was revoked")
        return self._newest(request) if request.archive is None else self._archive(request, request.archive)

    def _newest(self, request: Request) -> Answer:
        found = self.feeds.newest(request.name)
        if found is None:
            return _error(404, "no query has this name")
        feed = self._feed(request, found.since)
        archive = None if found.archive is None else self._archive_address(request, found.archive)
        document = feed_document(feed, found.entries, archive)
        return _document(request, document, _modified(found.entries, found.since), _NO_CACHE, self.now())

    def _archive(self, request: Request, number: int) -> Answer:
        found = self.feeds.archive(request.name, number)
        if found is None:
            return _error(404, "there is no such archive, or not yet")
        if isinstance(found, Gone):
            return _error(410, "what stood in this archive was dropped")
        if isinstance(found, Earlier):
            address = self._archive_address(request, found.archive)
            return _error(301, "nothing is in this archive", {"Location": address})
        # The archive before it may be empty, and then leads to the next one that is not. Which one that is must not
        # stand here: it could not be told any more when that is dropped.
        previous = self._archive_address(request, number - 1) if found.more else None
        feed = self._feed(request, found.since)
        document = archive_document(feed, found.entries, self._archive_address(request, number), previous)
        return _document(request, document, _modified(found.entries, found.since), _FOR_GOOD, self.now())

    def _feed(self, request: Request, since: int) -> Feed:
        id = self.links.feed_id(request.name)
        return Feed(id, line(request.name), self.url + feed_path(request.key, request.name), since)

    def _archive_address(self, request: Request, number: int) -> str:
        return self.url + archive_path(request.key, request.name, number)


def is_unchanged(request: Request, tag: str, modified: str | None) -> bool:
    """Returns whether the reader has a document already, by its entity tag or, if it names none, by its date."""
    if request.if_none_match:
        known = [one.strip().removeprefix("W/") for one in request.if_none_match.split(",")]
        return tag in known or "*" in known
    return modified is not None and request.if_modified_since == modified


def http_date(microseconds: int) -> str | None:
    """Returns a time as HTTP has it, to the second; None outside of the years 1 to 9999."""
    try:
        return format_datetime(datetime.fromtimestamp(microseconds // SECOND, UTC), usegmt=True)
    except (OverflowError, ValueError, OSError):
        return None


def _modified(entries: tuple[Entry, ...], since: int) -> int:
    return entries[0].committed_at if entries else since


def _document(request: Request, document: bytes, modified: int, caching: str, now: int) -> Answer:
    """A document, or the news that it is the known one.

    In the second of a commit there may be another one, which the date would not tell apart: it is left out.
    """
    tag = f'"{sha256(document).hexdigest()[:32]}"'
    date = http_date(modified) if modified // SECOND < now // SECOND else None
    headers = {"ETag": tag, "Cache-Control": caching} | ({} if date is None else {"Last-Modified": date})
    if is_unchanged(request, tag, date):
        return Answer(304, headers)
    return Answer(200, {"Content-Type": f"{MEDIA_TYPE}; charset=utf-8"} | headers, document)


def _error(status: int, text: str, more: Mapping[str, str] | None = None) -> Answer:
    headers = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": _NO_CACHE} | dict(more or {})
    return Answer(status, headers, f"{text}\n".encode())
