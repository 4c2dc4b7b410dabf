"""Reads the entries in a feed's bytes, each with its document: an `<item>`, or the entry as it stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from common.prolog import read_prolog
from feeds.bad_input import FeedError
from feeds.charset import as_told
from feeds.confined import confined
from feeds.document import DEFAULT_STREAM, Reject
from feeds.feed import Feed, parse_feed
from feeds.files import RAW_KEPT
from feeds.item import Membership, Origin, item_xml
from feeds.json_feed import json_feed_to_atom, load_json_feed
from feeds.links import harmless, is_url
from feeds.markup import LONGEST_ADDRESS
from feeds.raw import raw_entries
from feeds.sightings import EndOfFetch, Fetch, Sighting, sightings

EntryForm = Literal["item", "raw"]

_BLANKS = b"\xef\xbb\xbf \t\r\n"


def read_entries(data: bytes, origin: Origin, form: EntryForm = "item") -> Iterator[Sighting | EndOfFetch | Reject]:
    """The entries of a feed in its order, and the end of the fetch; one Reject if it cannot be read.

    A well-formed, empty feed has only an end. From an ill-formed one comes what can be read.
    """
    try:
        feed, bodies = confined(read_feed, data, origin, form, size=len(data))
    except ValueError as error:
        when = origin.modified if origin.fetched is None else origin.fetched
        yield Reject(origin.name, DEFAULT_STREAM, when, f"{origin.name}: {error}", data[:RAW_KEPT])
        return
    fetch = Fetch(_name(origin, feed), origin.name, origin.modified, origin.fetched)
    yield from sightings(feed.entries, bodies, fetch)


def read_feed(data: bytes, origin: Origin, form: EntryForm) -> tuple[Feed, list[bytes]]:
    """A feed, and the document of each of its entries. Raises FeedError if it cannot be read.

    It may be written to take long: see `feeds.confined`.
    """
    data = as_told(data, origin.content_type)
    if read_prolog(data.lstrip(b" \t\r\n")).defaults:
        raise FeedError("the DOCTYPE gives attributes defaults, which are not read")
    base = next((url for url in (origin.base, origin.source) if is_url(url) and len(url) <= LONGEST_ADDRESS), "")
    if data.lstrip(_BLANKS).startswith(b"{"):
        if form == "raw":
            raise FeedError("raw entries need a feed in XML, and this is JSON: read it without --feeds=raw")
        data = json_feed_to_atom(load_json_feed(data))
    feed = parse_feed(data, base, origin.source or origin.name)
    if form == "raw":
        return feed, raw_entries(data, feed)
    member = Membership(harmless(_name(origin, feed)), origin.title or feed.title, origin.folders)
    return feed, [item_xml(entry, member) for entry in feed.entries]


def _name(origin: Origin, feed: Feed) -> str:
    """The feed's address, or its name in a crawl."""
    return origin.source or feed.self_url or origin.name
