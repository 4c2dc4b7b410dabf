"""What is made of a feed is linear in its size: a long value in one place is not copied to each place that uses it."""

import json
import tracemalloc
from contextlib import suppress
from itertools import product

import pytest

from feeds import confined
from feeds.documents import Document, FeedError, Reject
from feeds.feed import MOST_UNREAD, entry_rows, read_entries
from feeds.items import LONGEST_ADDRESS, Origin
from tests.support.feed_texts import HERE, atom, read

FROM = Origin("f", 0, "https://f.example/")

PLACES = {
    "a base": ("xml:base='http://a.example/{}/'", "", ""),
    "an empty base": ("xml:base=' {:1}'", "", ""),
    "a language": ("xml:lang='{}'", "", ""),
    "a namespace": ("xmlns:x='{}'", "", ""),
    "a prefix": ("xmlns:{}='urn:x'", "", ""),
    "an unknown attribute": ("of='{}'", "", ""),
    "a title": ("", "<title>{}</title>", ""),
    "an author": ("", "<author><name>{}</name></author>", ""),
    "an address": ("", "<link rel='self' href='http://a.example/{}'/><link href='http://b.example/{}'/>", ""),
    "a category": ("", "<category term='{}'/>", ""),
    "another base": ("xml:base='http://a.example/'", "", "xml:base='{}/'"),
    "a language of an entry": ("", "", "xml:lang='{}'"),
}
"""Where Atom has a value: in the attributes of the feed, in its head, in the attributes of an entry."""

USES = {
    "entries": "</entry><entry>",
    "links": "<link rel='r{0}' href='{0}'/>",
    "enclosures": "<link rel='enclosure' href='{0}'/>",
    "anchors": "<content type='html'>&lt;a href='{0}'&gt;{0}&lt;/a&gt;</content></entry><entry>",
    "pages": "<content type='xhtml'><div xmlns='http://www.w3.org/1999/xhtml'><img src='{0}'/></div></content>",
    "texts": "<title>{0}</title><summary>{0}</summary><dc:language xmlns:dc='http://purl.org/dc/elements/1.1/'/>",
    "sources": "<source><author><name>{0}</name></author><link href='{0}'/></source>",
    "names": "<x:y/><x:z{0}/>",
}


def atom_feed(place: str, use: str, n: int) -> bytes:
    attributes, head, of_entry = (text.format("v" * 100 * n, "v" * 100 * n) for text in PLACES[place])
    uses = "".join(USES[use].format(number) for number in range(n))
    prefix = "" if place == "a namespace" else "xmlns:x='urn:x'"
    feed = f"<feed xmlns='http://www.w3.org/2005/Atom' {prefix} {attributes}>{head}"
    return f"{feed}<entry {of_entry}>{uses}</entry></feed>".encode()


OF_JSON = ("title", "home_page_url", "feed_url", "language", "author", "authors", "icon", "description")


def json_feed(place: str, n: int) -> bytes:
    value = "http://a.example/" + "v" * 100 * n
    told = {"author": {"name": value}, "authors": [{"name": value}] * 2}.get(place, value)
    items = [{"id": str(number), "url": f"/{number}"} for number in range(n)]
    return json.dumps({"version": "https://jsonfeed.org/version/1.1", place: told, "items": items}).encode()


FEEDS = [*product([atom_feed], PLACES, USES), *product([json_feed], OF_JSON)]


def cost(feed: bytes) -> tuple[int, int]:
    """The bytes of what is made of a feed, and those of the texts that this takes in between."""
    tracemalloc.start()
    try:
        size = 0
        with suppress(FeedError):
            size = sum(len(json.dumps(row)) for row in entry_rows(feed, FROM, "item"))
        return size, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("feed", FEEDS)
def test_what_is_made_of_a_feed_is_linear_in_its_size(feed):
    """Values and uses are four times as many: what is copied to each use would be sixteen times as much."""
    make, *arguments = feed
    few, many = (cost(make(*arguments, n)) for n in (16, 64))
    for one, other in zip(few, many, strict=True):
        assert other <= 6 * one + 50_000
    assert many[0] < 40 * len(make(*arguments, 64))


def read_with(attributes: str, inside: str) -> Document | Reject | None:
    feed = f"<feed xmlns='http://www.w3.org/2005/Atom' {attributes}><entry>{inside}</entry></feed>"
    found: Document | Reject | None
    (found,) = read(feed, FROM)
    return found


def test_a_base_or_a_language_that_is_too_long_is_none_and_a_namespace_is_refused():
    inside = "<title>T</title><link href='x'/><content type='html'>&lt;img src='y'&gt;</content>"
    for longest, base in ((LONGEST_ADDRESS - 1, None), (LONGEST_ADDRESS, FROM.source)):
        told = "https://a.example/".ljust(longest, "a") + "/"
        xml = getattr(read_with(f"xml:base='{told}' xml:lang='{told}'", inside), "xml", b"").decode()
        assert f'href="{base or told}x"' in xml and f'src="{base or told}y"' in xml.replace("&lt;", "<")
        assert "<lang>" not in xml
    space = "u" * LONGEST_ADDRESS
    declared = "<!DOCTYPE feed [<!ENTITY e '<x:y xmlns:x=&#34;{}&#34;/>'>]>"
    for long in ("", "u"):
        refused = "the address of a namespace has more than 2,000 characters" if long else ""
        for feed in (
            atom(f"<title>T</title><x xmlns='{space}{long}'/>"),
            atom(f'<title>T</title><x xmlns:y = "{space}{long}"/>'),
            declared.format(space + long) + atom("<title>T</title>&e;"),
        ):
            (found,) = read(feed)
            assert refused in found.reason if long else not isinstance(found, Reject)


def test_what_bases_add_is_bounded_and_told():
    """A base of 1,900 characters may still be 100 times as long as a link."""
    base = "https://a.example/".ljust(1_900, "a") + "/"
    anchors = "".join(f"&lt;a href='{n}'&gt;{n}" for n in range(6_000))
    of_links = (use * 6_000 for use in ("<link href='x'/>", "<link href='x'/></entry><entry>"))
    for many in (*of_links, f"<content type='html'>{anchors}</content>", f"<summary type='html'>{anchors}</summary>"):
        found = read_with(f"xml:base='{base}'", many)
        assert isinstance(found, Reject)
        assert "relative addresses take more than" in found.reason and "shorten the xml:base" in found.reason


def test_the_documents_of_a_feed_are_bounded_by_its_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(confined, "ANSWER", 1 << 20)
    monkeypatch.setattr("feeds.feed.confined", lambda work, *arguments, size: work(*arguments))
    authors = "".join(f"<author><name>{str(n).ljust(1_000, 'a')}</name></author>" for n in range(20))
    feed = f"<feed xmlns='http://www.w3.org/2005/Atom'>{authors}{'<entry/>' * 200}</feed>"
    most = (1 << 20) + 16 * len(feed)
    (found,) = read(feed)
    assert found.reason == f"dir/feed.xml: the documents of its entries take more than {most:,} bytes"


def test_unreadable_entries_are_few_dead_letters_that_count_the_others():
    found = list(read_entries(json_feed("title", 0).replace(b"[]", b"[" + b"1," * 500_000 + b"{}]"), HERE))
    refused = [one for one in found if isinstance(one, Reject)]
    assert len(refused) == MOST_UNREAD and len(found) == MOST_UNREAD + 2
    assert refused[0].reason == "dir/feed.xml: entry 1 cannot be read: it is no JSON object"
    assert refused[-1].reason.endswith(
        "entry 20 cannot be read: it is no JSON object; and 499,980 others cannot be read"
    )


def test_a_feed_s_own_address_may_not_be_longer_than_any_that_is_fetched():
    (found,) = read(atom("<title>T</title>"), Origin("f", 0, "https://f.example/".ljust(LONGEST_ADDRESS + 1, "a")))
    assert isinstance(found, Reject) and found.reason == "f: the feed's address has more than 2,000 characters"
