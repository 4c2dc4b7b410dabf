"""A feed's bytes to documents: one for each entry, as an `<item>` or raw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from common.prolog import read_prolog
from feeds.bad_input import FeedError
from feeds.charset import as_told
from feeds.confined import confined
from feeds.document import DEFAULT_STREAM, Document, Reject
from feeds.feed import Feed, parse_feed
from feeds.files import RAW_KEPT
from feeds.history import History, Unsettled
from feeds.item import Origin, entry_id, item_xml
from feeds.json_feed import json_feed_to_atom, load_json_feed
from feeds.links import is_url
from feeds.raw import raw_entries
from feeds.sightings import Fetch, Listed, SeenEntry, sightings

EntryForm = Literal["item", "raw"]

Item = Document | Reject | None
"""What a place of a file holds: None for nothing that is new."""

_BLANKS = b"\xef\xbb\xbf \t\r\n"


def read_entries(
    data: bytes, origin: Origin, form: EntryForm = "item", history: History | Unsettled | None = None
) -> Iterator[Item]:
    """The entries of a feed as documents of stream S, in the feed's order, None for each that is none; one Reject where
    it cannot be read.

    A feed that is well-formed and empty gives nothing; of an ill-formed one comes what can be read. `history` knows
    what earlier fetches had: without it each entry is taken for a new one.
    """
    try:
        feed, bodies = confined(read_feed, data, origin, form, size=len(data))
    except ValueError as error:
        when = origin.modified if origin.fetched is None else origin.fetched
        yield Reject(origin.name, DEFAULT_STREAM, when, f"{origin.name}: {error}", data[:RAW_KEPT])
        return
    fetch = Fetch(origin.source or feed.self_url or origin.name, origin.name, origin.modified, origin.fetched)
    history = history or History()
    seen = sightings(feed.entries)
    for entry, body, sighting in zip(feed.entries, bodies, seen, strict=True):
        yield history.judge(SeenEntry(entry_id(entry, fetch.feed), body, fetch, sighting))
    if (last := history.judge(Listed(fetch, [sighting.key for sighting in seen]))) is not None:
        yield last


def read_feed(data: bytes, origin: Origin, form: EntryForm) -> tuple[Feed, list[bytes]]:
    """A feed, and the document of each of its entries; FeedError where it cannot be read.

    It may have been written to take long: see `feeds.confined`.
    """
    data = as_told(data, origin.content_type)
    if read_prolog(data.lstrip(b" \t\r\n")).defaults:
        raise FeedError("the DOCTYPE gives attributes defaults, which are not read")
    base = next(filter(is_url, (origin.base, origin.source)), "")
    if data.lstrip(_BLANKS).startswith(b"{"):
        if form == "raw":
            raise FeedError("raw entries need a feed in XML, and this is JSON: read it without --feeds=raw")
        data = json_feed_to_atom(load_json_feed(data))
    feed = parse_feed(data, base, origin.source or origin.name)
    if form == "raw":
        return feed, raw_entries(data, feed)
    return feed, [item_xml(entry) for entry in feed.entries]
