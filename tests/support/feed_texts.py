"""Short feeds, and what their entries contain."""

import json

from lxml import etree

from feeds.documents import Document, Visit
from feeds.feed import read_entries, read_feed
from feeds.history import History
from feeds.items import Origin

MTIME = 1_800_000_000_000_000
HERE = Origin("dir/feed.xml", MTIME)


def read(feed, origin=HERE, form="item"):
    items = read_entries(feed.encode() if isinstance(feed, str) else feed, origin, form)
    return [item for item in History().settle(items) if not isinstance(item, Visit)]


def leaves(document):
    """The item's children as (name, text), those that have attributes with their values: (link, rel href)."""
    assert isinstance(document, Document), document
    root = etree.fromstring(document.xml)
    assert root.tag == "item"
    return [(child.tag, " ".join(map(str, child.attrib.values())) or child.text) for child in root]


def only(feed, origin=HERE):
    (document,) = read(feed, origin)
    return leaves(document)


def values(feed, name):
    return [text for tag, text in only(feed) if tag == name]


def rss(item, channel="<title>C</title><link>https://c.example/</link>", attributes='version="2.0"'):
    return (
        f'<rss {attributes} xmlns:dc="http://purl.org/dc/elements/1.1/" '
        'xmlns:content="http://purl.org/rss/1.0/modules/content/" xmlns:atom="http://www.w3.org/2005/Atom" '
        'xmlns:itunes="http://www.itunes.com/dtds/podcast-1.0.dtd">'
        f"<channel>{channel}{item}</channel></rss>"
    )


def atom(entry, head=""):
    return f'<feed xmlns="http://www.w3.org/2005/Atom"><title>F</title><id>f</id>{head}<entry>{entry}</entry></feed>'


def json_feed(item, **feed):
    return json.dumps({"version": "https://jsonfeed.org/version/1.1", "title": "J", "items": [item], **feed})


def entries_of(feed):
    """What our reader makes of the entries of a feed."""
    return [one[0] for one in read_feed(feed, HERE, "item")[1] if not isinstance(one, str)]
