"""Which feeds a page names."""

from __future__ import annotations

from urllib.parse import urljoin

from lxml import etree

from feeds.links import is_url

_FEED_TYPES = frozenset(
    {"application/rss+xml", "application/atom+xml", "application/feed+json", "application/rdf+xml"}
    | {"application/json", "application/xml", "text/xml"}
)


def feeds_of_page(body: bytes, url: str) -> list[str]:
    """The http(s) addresses in a page's `<link rel=alternate>` elements of a feed's type, in page order. Feeds of
    comments come last."""
    parser = etree.HTMLParser(no_network=True, huge_tree=False)
    try:
        page = etree.fromstring(body, parser)
    except (etree.XMLSyntaxError, ValueError):
        return []
    if page is None:  # the recovering parser has found nothing at all
        return []
    base = _joined(url, next((element.get("href", "") for element in page.iter("base")), ""))
    found = []
    for link in page.iter("link"):
        kind = link.get("type", "").partition(";")[0].strip().lower()
        if "alternate" in link.get("rel", "").lower().split() and kind in _FEED_TYPES and link.get("href"):
            found.append((_joined(base, link.get("href", "")), "comment" in link.get("title", "").lower()))
    return list(dict.fromkeys(address for address, _ in sorted(found, key=lambda named: named[1]) if is_url(address)))


def _joined(base: str, address: str) -> str:
    try:
        return urljoin(base, address.strip())
    except ValueError:  # no address at all
        return ""
