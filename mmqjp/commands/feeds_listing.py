"""How fetched feeds are listed: for people, with addresses that can be copied, and as JSON lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from feeds.credentials import without_credentials
from feeds.dates import iso_utc
from feeds.fetch.feed_state import FeedState
from mmqjp.service.fetched_feeds import FeedSummary
from mmqjp.text import json_line, printable_line

_ROW = "{:<8} {:<17} {:<17} {:>6}  {}"
_INDENT = " " * 9


def listed(feeds: Iterable[FeedState], width: int) -> Iterator[str]:
    """The lines of a table. The address of a feed ends its line and is never cut. What we call the feed and what went
    wrong with it are on lines of their own, of at most `width` columns where words allow it."""
    yield _ROW.format("status", "checked", "next check", "errors", "feed")
    for feed in feeds:
        status = "stopped" if feed.stopped else str(feed.status or "-")
        due = "-" if feed.stopped else _minute(feed.next_check)
        yield _ROW.format(status, _minute(feed.checked_at), due, feed.errors, printable_line(feed.shown))
        for text in (_called(feed), without_credentials(feed.last_error)):
            yield from textwrap.wrap(
                printable_line(text), max(width, len(_INDENT) + 1), initial_indent=_INDENT, subsequent_indent=_INDENT,
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip


def listed_as_json(feeds: Iterable[FeedState]) -> Iterator[bytes]:
    """A line of JSON for each feed. Times are ISO 8601 in UTC, and null for never."""
    for feed in feeds:
        told = asdict(FeedSummary.of(feed))
        yield json_line(told | {key: _iso(told[key]) for key in ("checked_at", "changed_at", "next_check")})


def _called(feed: FeedState) -> str:
    return " ".join(filter(None, (feed.title, f"({', '.join(feed.folders)})" if feed.folders else "")))


def _minute(moment: int) -> str:
    return iso_utc(moment)[:16].replace("T", " ") if moment else "-"


def _iso(moment: int | None) -> str | None:
    return None if moment is None else iso_utc(moment)
