"""Sanitises the HTML of entries, and finds the pages that it links to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import urljoin

import nh3

from common.urls import canonical_url
from feeds.links import SCHEMES, is_harmless, is_url
from feeds.text import xml_text

MOST_MENTIONS = 200
"""The most pages that an entry mentions. The first ones in its text count."""

LONGEST_ADDRESS = 2_000
"""The most characters of an address in a text, and of one that a feed gives for all its entries. Longer ones count for
nothing."""

_ADDRESSES = frozenset({"cite", "href", "src"})
_ANCHOR = re.compile(r"<a\s", re.IGNORECASE)


def sanitised(html: str) -> tuple[str, list[str]]:
    """HTML without what acts, and the addresses of its links, as they are written there, each once."""
    links: dict[str, None] = {}

    def checked(tag: str, name: str, value: str) -> str | None:
        # nh3 itself looks at the addresses in `href` and `src` only, and not as closely.
        if name not in _ADDRESSES:
            return value
        if not is_harmless(value):
            return None
        if tag == "a" and name == "href":
            links[value] = None
        return value

    clean = nh3.clean(html, link_rel=None, url_schemes=set(SCHEMES), attribute_filter=checked)
    return clean, list(links)


def links_of(html: str) -> list[str]:
    """The addresses of the links in HTML."""
    return sanitised(html)[1] if _ANCHOR.search(html) else []


def mentions(links: Sequence[str], base: str, own: Iterable[str]) -> tuple[str, ...]:
    """The pages that links lead to, in their canonical spelling, each once, and at most MOST_MENTIONS.

    Relative links are resolved against `base`. Only web addresses count, and none of those in `own`.
    """
    left_out = {canonical_url(address) for address in own if links}
    found: dict[str, None] = {}
    for link in links:
        address = _page(link, base)
        if address and address not in left_out:
            found[address] = None
            if len(found) == MOST_MENTIONS:
                break
    return tuple(found)


def _page(link: str, base: str) -> str:
    """The canonical address that a link leads to; "" if that is no web address, or too long."""
    if len(link) > LONGEST_ADDRESS:
        return ""
    try:
        address = canonical_url(urljoin(base, link.strip()))
    except ValueError:
        return ""
    return address if is_url(address) and xml_text(address) == address and len(address) <= LONGEST_ADDRESS else ""
