"""The entries of a feed as they stand there: each entry's own element, with the feed's title and link added."""

from __future__ import annotations

from copy import deepcopy

from lxml import etree

from common.xml_parser import xml_parser
from feeds.bad_input import FeedError
from feeds.feed import Feed
from feeds.text import xml_text

_ITEMS = frozenset(
    {
        "item",
        "{http://purl.org/rss/1.0/}item",
        "{http://my.netscape.com/rdf/simple/0.9/}item",
        "{http://backend.userland.com/rss}item",
        "{http://backend.userland.com/rss2}item",
        "{http://blogs.law.harvard.edu/tech/rss}item",
        "entry",
        "{http://www.w3.org/2005/Atom}entry",
        "{http://purl.org/atom/ns#}entry",
    }
)


def raw_entries(data: bytes, feed: Feed) -> list[bytes]:
    """The `item` or `entry` elements of the feed's XML, in the order of `feed.entries`, as documents of their own.

    Each gets two last children in no namespace, `channel_title` and `channel_url`, if the feed has them. Raises
    FeedError if the XML is not well-formed (nothing is repaired here) or its entries are not those of `feed`.
    """
    try:
        # Blanks before the XML declaration are common and mean nothing.
        root = etree.fromstring(data.lstrip(), xml_parser())
    except etree.XMLSyntaxError as error:
        raise FeedError(f"raw entries need well-formed XML: {error.msg}") from None
    found = [element for element in root.iter() if element.tag in _ITEMS]
    if len(found) != len(feed.entries):
        raise FeedError(f"raw entries cannot be told apart: {len(found)} elements for {len(feed.entries)} entries")
    return [_document(element, feed) for element in found]


def _document(element: etree._Element, feed: Feed) -> bytes:
    copy = deepcopy(element)
    copy.tail = None
    for name, value in (("channel_title", feed.title), ("channel_url", feed.site_url or feed.self_url)):
        if value:
            # Parsed with an explicit xmlns="", because an element that lxml makes without a namespace
            # is written, and read again, in the default namespace of its parent.
            child = etree.fromstring(f'<{name} xmlns=""/>')
            child.text = xml_text(value)
            copy.append(child)
    return etree.tostring(copy, encoding="utf-8")
