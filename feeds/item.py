"""An entry of a feed, whatever its format: its `<item>` document, its identity and its time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lxml import etree

from feeds.dates import iso_utc
from feeds.text import one_line, xml_text


@dataclass(frozen=True, slots=True)
class Entry:
    """The fields of an entry: plain text, except `content`, which is sanitised HTML. "" means absent.

    `date` is the entry's own date in microseconds (published, else updated), and `date_text` its spelling in the feed.
    `updated` is when the entry was last changed, as the feed tells it.
    """

    item_url: str = ""
    channel_url: str = ""
    title: str = ""
    date: int | None = None
    date_text: str = ""
    description: str = ""
    authors: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    guid: str = ""
    content: str = ""
    updated: int | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a feed came from: `source` is the feed's URL or name in a crawl, `name` the file it was read from.

    Times are microseconds: `fetched` is when the feed was fetched, if known, `modified` when the file was written.
    `base` is the address that answered, if it is not `source`; `content_type` is the answer's header.
    """

    name: str
    modified: int
    source: str = ""
    fetched: int | None = None
    base: str = ""
    content_type: str = ""


def item_xml(entry: Entry) -> bytes:
    """The entry as an `<item>`: the thesis' five leaves first (section 6.6.3), absent values absent."""
    item = etree.Element("item")
    leaves = [
        ("item_url", entry.item_url),
        ("channel_url", entry.channel_url),
        ("title", entry.title),
        ("timestamp", "" if entry.date is None else iso_utc(entry.date)),
        ("description", entry.description),
        *(("author", author) for author in entry.authors),
        *(("category", category) for category in entry.categories),
    ]
    for name, value in leaves:
        _leaf(item, name, value)
    for rel, href in entry.links:
        etree.SubElement(item, "link", rel=one_line(rel), href=one_line(href))
    _leaf(item, "guid", entry.guid)
    _leaf(item, "content", entry.content)
    return etree.tostring(item, encoding="utf-8")


def _leaf(item: etree._Element, name: str, value: str) -> None:
    if value:
        etree.SubElement(item, name).text = xml_text(value)


def entry_id(entry: Entry, source: str) -> str:
    """`source identity hash`, joined by blanks.

    An unchanged entry has the same id when it comes again; a changed one has a new id and the same guid.
    """
    return one_line(f"{source} {entry_identity(entry)} {entry_version(entry)}")


def entry_identity(entry: Entry) -> str:
    """What stays the same when an entry changes: the guid, else the link, else a hash of title and date."""
    return entry.guid or entry.item_url or _hash(entry.title, _dated(entry))


def entry_version(entry: Entry) -> str:
    """A hash of title, date, link, description and content."""
    return _hash(entry.title, _dated(entry), entry.item_url, entry.description, entry.content)


def _dated(entry: Entry) -> str:
    return entry.date_text if entry.date is None else iso_utc(entry.date)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:12]
