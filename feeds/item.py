"""An entry of a feed, whatever its format: its `<item>` document and its identity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import islice

from lxml import etree

from feeds.dates import iso_utc
from feeds.text import LONGEST_TITLE, NESTED, one_line, xml_text

FIELDS = (
    "item_url", "channel_url", "title", "timestamp", "description",
    "feed_url", "feed_title", "folder", "lang", "updated",
    "author", "category", "link", "enclosure", "guid", "content",
)  # fmt: skip
"""The names of all children that an `<item>` may have, in their order. The thesis' five leaves (section 6.6.3) are
first."""

ATTRIBUTES = {"link": ("rel", "href"), "enclosure": ("href", "type", "length")}
"""The attributes of the children that have any. These have no text."""

MENTION = "mention"
"""The `rel` of links that stand in the text of an entry."""

MOST_FOLDERS = 20
"""The most folders of an item."""


@dataclass(frozen=True, slots=True)
class Enclosure:
    """A file that belongs to an entry. `type` is its media type and `length` its size in bytes; "" means absent."""

    href: str
    type: str = ""
    length: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """The fields of an entry: plain text, except `content`, which is sanitised HTML. "" means absent.

    `date` is the entry's own date in microseconds (published, else updated), and `date_text` its spelling in the feed.
    `updated` is when the entry was last changed, as the feed tells it. `lang` is a language tag. `mentions` are the
    canonical addresses of the pages that its text links to.
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
    lang: str = ""
    enclosures: tuple[Enclosure, ...] = ()
    mentions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Membership:
    """The feed that an entry is in: its address or name, its title, and the paths of its folders."""

    url: str = ""
    title: str = ""
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a feed came from: `source` is the feed's URL or name in a crawl, `name` the file it was read from.

    Times are microseconds: `fetched` is when the feed was fetched, if known, `modified` when the file was written.
    `base` is the address that answered, if it is not `source`; `content_type` is the answer's header. `title` and
    `folders` are what the reader of the feed calls it, and where it is in the reader's list.
    """

    name: str
    modified: int
    source: str = ""
    fetched: int | None = None
    base: str = ""
    content_type: str = ""
    title: str = ""
    folders: tuple[str, ...] = ()


def item_xml(entry: Entry, feed: Membership | None = None) -> bytes:
    """The entry as an `<item>`, with FIELDS in their order. Absent values are absent."""
    feed = feed or Membership()
    item = etree.Element("item")
    leaves = [
        ("item_url", entry.item_url),
        ("channel_url", entry.channel_url),
        ("title", entry.title),
        ("timestamp", _iso(entry.date)),
        ("description", entry.description),
        ("feed_url", feed.url),
        # In each entry of the feed, so not as long as its writer likes.
        ("feed_title", feed.title[:LONGEST_TITLE].strip()),
        *(("folder", folder) for folder in folder_paths(feed.folders)),
        ("lang", entry.lang),
        ("updated", _iso(entry.updated)),
        *(("author", author) for author in entry.authors),
        *(("category", category) for category in entry.categories),
    ]
    for name, value in leaves:
        _leaf(item, name, value)
    for rel, href in (*entry.links, *((MENTION, page) for page in entry.mentions)):
        etree.SubElement(item, "link", rel=one_line(rel), href=one_line(href))
    for enclosure in entry.enclosures:
        told = {name: one_line(value) for name, value in asdict(enclosure).items() if value}
        etree.SubElement(item, "enclosure", told)
    _leaf(item, "guid", entry.guid)
    _leaf(item, "content", entry.content)
    return etree.tostring(item, encoding="utf-8")


def folder_paths(folders: Iterable[str]) -> tuple[str, ...]:
    """The paths of folders and of those that they are in, outer ones first, each once, at most MOST_FOLDERS.

    >>> folder_paths(["News/World", "News/Sport"])
    ('News', 'News/World', 'News/Sport')
    """
    found: dict[str, None] = {}
    for folder in bounded_folders(folders):
        names = folder.split(NESTED, MOST_FOLDERS)
        for depth in range(1, len(names) + 1):
            if len(found) < MOST_FOLDERS and (path := NESTED.join(names[:depth])):
                found[path] = None
    return tuple(found)


def bounded_folders(folders: Iterable[str]) -> tuple[str, ...]:
    """The first MOST_FOLDERS paths of folders. Of one that is too long, the inner folders are left out."""
    return tuple(_bounded(folder) for folder in islice(folders, MOST_FOLDERS))


def _bounded(path: str) -> str:
    if len(path) <= LONGEST_TITLE:
        return path
    return path[: LONGEST_TITLE + 1].rpartition(NESTED)[0] or path[:LONGEST_TITLE]


def _iso(moment: int | None) -> str:
    return "" if moment is None else iso_utc(moment)


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
