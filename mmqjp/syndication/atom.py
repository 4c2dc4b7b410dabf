"""Atom documents (RFC 4287) of entries: a feed, and archives of it (RFC 5005)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmqjp.syndication.entries import Entry, escaped, timestamp

MEDIA_TYPE = "application/atom+xml"

HISTORY = "http://purl.org/syndication/history/1.0"
"""The namespace of RFC 5005."""


@dataclass(frozen=True, slots=True)
class Feed:
    """What all documents of a feed share. `address` is that of the feed, `id` and `title` its own for good, and
    `since` the time, in microseconds, that it was last changed if it has no entries."""

    id: str
    title: str
    address: str
    since: int = 0


def feed_document(feed: Feed, entries: Sequence[Entry], prev_archive: str | None) -> bytes:
    """Returns the feed with some entries, newest first. `prev_archive` is the address of the newest archive, if there
    is any."""
    return _document(feed, entries, [("self", feed.address), *_previous(prev_archive)], archive=False)


def archive_document(feed: Feed, entries: Sequence[Entry], address: str, prev_archive: str | None) -> bytes:
    """Returns the archive at an address. `prev_archive` is the address of the archive before it, if there is any."""
    links = [("self", address), ("current", feed.address), *_previous(prev_archive)]
    return _document(feed, entries, links, archive=True)


def _once(entries: Sequence[Entry]) -> Iterator[str]:
    """Yields the entries as XML, of those with the same id the first."""
    known = set()
    for entry in entries:
        if entry.id not in known:
            known.add(entry.id)
            yield entry.xml


def _previous(address: str | None) -> list[tuple[str, str]]:
    return [] if address is None else [("prev-archive", address)]


def _document(feed: Feed, entries: Sequence[Entry], links: Sequence[tuple[str, str]], *, archive: bool) -> bytes:
    updated = entries[0].committed_at if entries else feed.since

    def lines() -> Iterator[str]:
        history = f' xmlns:fh="{HISTORY}"' if archive else ""
        yield '<?xml version="1.0" encoding="utf-8"?>'
        yield f'<feed xmlns="http://www.w3.org/2005/Atom"{history}>'
        yield f"<id>{escaped(feed.id)}</id>"
        yield f"<title>{escaped(feed.title)}</title>"
        yield f"<updated>{timestamp(updated)}</updated>"
        yield "<author><name>mmqjp</name></author>"
        yield from (f'<link rel="{rel}" href="{escaped(address)}"/>' for rel, address in links)
        if archive:
            yield "<fh:archive/>"
        yield from _once(entries)
        yield "</feed>\n"

    return "\n".join(lines()).encode()
