"""OPML, in which feed readers exchange lists of feeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import cast

from lxml import etree

from common.errors import InvalidValue
from common.prolog import read_prolog
from common.xml_parser import xml_parser
from feeds.text import LONGEST_TITLE, NESTED, one_line

_USED = frozenset({"title", "text", "xmlurl"})


@dataclass(frozen=True, slots=True)
class ListedFeed:
    """A feed of a list: its address as it is written there, title and folder ("" if it has none), and the line."""

    url: str
    title: str = ""
    folder: str = ""
    line: int = 0


def read_opml(data: bytes) -> list[ListedFeed]:
    """The feeds of a list, at any depth, in its order. Raises InvalidValue if it is not XML or not OPML."""
    if refused := read_prolog(data.lstrip()).refused:
        raise InvalidValue(refused)
    try:
        root = etree.fromstring(data.lstrip(), xml_parser(elements_only=True))
    except etree.XMLSyntaxError as error:
        raise InvalidValue(f"not well-formed: {error.msg}") from None
    body = next((child for child in root if _name(child) == "body"), None)
    if _name(root) != "opml" or body is None:
        raise InvalidValue("XML, but not OPML: it has no <opml> with a <body>")
    return list(_feeds(body))


def _feeds(body: etree._Element) -> Iterator[ListedFeed]:
    # A stack of ours, because outlines may be nested more deeply than functions may call each other.
    # `full`: a name around the outline had no room in the path, so those inside are left out too.
    waiting = [(child, "", False) for child in reversed(body)]
    while waiting:
        outline, folder, full = waiting.pop()
        if _name(outline) != "outline":
            continue
        # By name: to get the values of all takes lxml time in the square of their number.
        used = [str(name) for name in outline.keys() if str(name).lower() in _USED]  # noqa: SIM118
        values = {name.lower(): one_line(outline.get(name, "")) for name in used}
        title = (values.get("title") or values.get("text", ""))[:LONGEST_TITLE].strip()
        inside = folder
        if values.get("xmlurl"):
            yield ListedFeed(values["xmlurl"], title, folder, cast(int, outline.sourceline))
        elif title and not full:
            path = f"{folder}{NESTED}{title}" if folder else title
            full = len(path) > LONGEST_TITLE
            inside = folder if full else path
        waiting += [(child, inside, full) for child in reversed(outline)]


def _name(element: etree._Element) -> str:
    return etree.QName(element).localname.lower()


def write_opml(feeds: Iterable[ListedFeed]) -> bytes:
    """A list of feeds, in an outline for each folder."""
    root = etree.Element("opml", version="2.0")
    etree.SubElement(etree.SubElement(root, "head"), "title").text = "Feeds"
    body = etree.SubElement(root, "body")
    for folder, inside in groupby(sorted(feeds, key=lambda feed: feed.folder), key=lambda feed: feed.folder):
        holder = body
        for name in filter(None, folder.split(NESTED)):
            last = holder[-1] if len(holder) else None
            known = last is not None and last.get("text") == name and last.get("xmlUrl") is None
            holder = last if known and last is not None else etree.SubElement(holder, "outline", text=name, title=name)
        for feed in inside:
            title = feed.title or feed.url
            etree.SubElement(holder, "outline", type="rss", text=title, title=title, xmlUrl=feed.url)
    return etree.tostring(root, encoding="utf-8", xml_declaration=True, pretty_print=True)
