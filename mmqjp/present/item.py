"""A document as a person sees it: a title, a site, a link; or, for XML that has none of these, its first texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from urllib.parse import urlsplit

from lxml import etree

from mmqjp.text import printable_line
from xpath_stage.parse import parse_document, text_of

MOST_TEXTS = 4
"""So many texts of a document without a title stand in for one."""

MOST_CHARACTERS = 300
"""Longer titles and texts are cut short, in characters."""


@dataclass(frozen=True, slots=True)
class Item:
    """What is shown of a document. `time` is its t0 in microseconds; None if the document is no longer stored.

    `kind` is the name of its root element. `site` is the host of its link or of its feed, `feed` the title of its feed;
    `link` is an http(s) address. Each is "" if there is none. `title` is never empty: it is the id if all else fails.
    """

    id: str
    stream: str
    time: int | None = None
    kind: str = ""
    title: str = ""
    site: str = ""
    feed: str = ""
    link: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the document is still stored."""
        return self.time is not None


def item_of(id: str, stream: str, time: int, xml: str) -> Item:
    """Returns what is shown of a document of the store."""
    root = parse_document(xml.encode(), trusted=True).root
    fields: dict[str, str] = {}
    for child in root.iterchildren(tag=etree.Element):
        name = local_name(child)
        if name in _FIELDS and name not in fields and (text := line(text_of(child))):
            fields[name] = text
    link = next((found for found in _links(root, fields) if is_web_address(found)), "")
    title = fields.get("title") or " · ".join(islice(_texts(root), MOST_TEXTS)) or id
    site = host(link) or host(fields.get("channel_url", "")) or host(fields.get("feed_url", ""))
    return Item(id, stream, time, local_name(root), clipped(title), site, clipped(fields.get("feed_title", "")), link)


def missing_item(id: str, stream: str) -> Item:
    """Returns what is shown of a document that is no longer stored."""
    return Item(id, stream, title=clipped(line(id)) or "?")


_UNSAFE = re.compile(r'[\s<>"\\`{}|^]')

_FIELDS = frozenset(("title", "item_url", "channel_url", "feed_url", "feed_title"))


def _links(root: etree._Element, fields: dict[str, str]) -> Iterator[str]:
    """Yields what may be the address of a document: that of an `<item>`, or what Atom and RSS call `link`."""
    yield fields.get("item_url", "")
    for child in root.iterchildren(tag=etree.Element):
        if local_name(child) == "link" and child.get("rel", "alternate") == "alternate":
            yield (child.get("href") or child.text or "").strip()


def _texts(root: etree._Element) -> Iterator[str]:
    """Yields the texts of the elements and attributes of a document."""
    for element in root.iter(tag=etree.Element):
        for text in (*map(str, element.attrib.values()), element.text or ""):
            if shown := line(text[: 2 * MOST_CHARACTERS]):
                yield shown


def local_name(element: etree._Element) -> str:
    """Returns the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


def line(text: str) -> str:
    """Returns a text on one line, without control characters."""
    return printable_line(text)


def clipped(text: str, most: int = MOST_CHARACTERS) -> str:
    """Returns a text of at most `most` characters. One that was cut ends in an ellipsis."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def is_web_address(text: str) -> bool:
    """Returns whether a text is an http(s) address that is safe to show as a link."""
    if not text.isprintable() or _UNSAFE.search(text):
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def host(address: str) -> str:
    """Returns the host of an http(s) address without "www.", or ""."""
    return (urlsplit(address).hostname or "").removeprefix("www.") if is_web_address(address) else ""
