"""What an `<item>` says of its feed, language, changes, files and the pages that it mentions."""

import json
import re
import tracemalloc
from contextlib import suppress
from dataclasses import fields, replace
from itertools import product
from random import Random
from urllib.parse import urljoin
from xml.sax.saxutils import escape, quoteattr

import pytest
from lxml import etree

from feeds import confined
from feeds import items as feed_items
from feeds.documents import Document, FeedError, Reject
from feeds.feed import MOST_UNREAD, entry_rows, read_entries
from feeds.history import Sighting
from feeds.items import LONGEST_ADDRESS, LONGEST_TITLE, Enclosure, Entry, Origin, entry_version, is_harmless, item_xml
from feeds.xml_feed import MOST_AUTHORS
from tests.generate.seeds import seeds
from tests.oracle.values import canonical_url
from tests.support.feed_texts import HERE, atom, json_feed, leaves, only, read, rss, values
from tests.support.places import ROOT

BASE = "https://base.example/blog/feed.xml"
ENTRY = "<title>T</title><id>1</id>"
THERE = Origin("dir/feed.xml", HERE.modified, BASE, HERE.modified)


def mentioned(feed, origin=THERE):
    return [text.removeprefix("mention ") for tag, text in only(feed, origin) if text.startswith("mention ")]


def with_content(html):
    return atom(f"<title>T</title><id>i</id><content type='html'>{escape(html)}</content>")


# ---------------------------------------------------------------- all fields


def test_the_fields_are_all_children_that_an_item_may_have_in_their_order():
    full = Entry(
        item_url="u", channel_url="c", title="t", date=0, date_text="d", description="d", authors=("a", "b"),
        categories=("a", "b"), links=(("via", "l"),), guid="g", content="c", updated=0, lang="en",
        enclosures=(Enclosure("e", "t", "1"),), mentions=("m",),
    )  # fmt: skip
    empty = Entry()
    assert all(getattr(full, field.name) != getattr(empty, field.name) for field in fields(Entry))
    item = etree.fromstring(item_xml(full, "f", "t", ("a/b",)))
    assert tuple(dict.fromkeys(child.tag for child in item)) == feed_items.FIELDS
    told = {child.tag: tuple(child.attrib) for child in item if child.attrib}
    assert told == feed_items.ATTRIBUTES
    assert etree.tostring(etree.fromstring(item_xml(empty))) == b"<item/>"


def test_the_documentation_describes_all_fields_in_their_order_and_its_example_is_what_comes_out():
    page = (ROOT / "docs" / "items.md").read_text("utf-8")
    assert tuple(re.findall(r"^\| `(\w+)`\*? \|", page, re.M)) == feed_items.FIELDS
    feed, item = re.findall(r"```xml\n(.*?)```", page, re.S)
    address = "https://coast.example/science.rss"
    (document,) = read(feed, Origin("n", 1, address, title="Coast: science", folders=("News/Science",)))
    shown = etree.fromstring(item, etree.XMLParser(remove_blank_text=True))
    assert document.xml.decode() == etree.tostring(shown, encoding="unicode")


# ---------------------------------------------------------------- where it is from


def test_the_feed_is_named_by_its_subscription_then_by_itself_then_by_its_file():
    entry = "<item><title>T</title></item>"
    own = rss(entry, '<title>C</title><atom:link rel="self" href="https://c.example/rss"/>')
    moved = Origin("n", 1, "https://old.example/rss", 1, "https://new.example/rss")
    for origin, expected in ((moved, moved.source), (HERE, "https://c.example/rss")):
        assert dict(only(own, origin))["feed_url"] == expected
    assert values(rss(entry), "feed_url") == [HERE.name]
    assert "feed_url" not in dict(only(own, Origin("n", 1, "javascript:x")))
    # The reader's title goes before the feed's.
    feed = rss(entry, "<title>The &amp;lt;b&gt;Times&lt;/b&gt;\n News</title>")
    assert dict(only(feed))["feed_title"] == "The <b>Times News"
    assert dict(only(feed, Origin("n", 1, title="My news")))["feed_title"] == "My news"
    assert "feed_title" not in dict(only(rss(entry, "<link>https://c.example/</link>")))
    # And none of that makes a new version.
    one = read(rss(entry), Origin("n", 1, "https://c.example/rss"))
    two = read(rss(entry, "<title>D</title>"), Origin("n", 1, "https://c.example/rss", title="X", folders=("F",)))
    assert one[0].id == two[0].id and one[0].xml != two[0].xml


def test_enclosures():
    item = "<item><title>T</title><enclosure {}/></item>"
    for attributes, expected in (
        ("url='/1.mp3' type='audio/mpeg' length='12'", {"type": "audio/mpeg", "length": "12"}),
        ("url='/1.mp3' length='unknown'", {}),
        (f"url='/1.mp3' length='{'9' * 100}' type='{'x' * 1_000}'", {}),
        ("url='javascript:alert(1)' type='audio/mpeg'", None),
        ("type='audio/mpeg'", None),
    ):
        (document,) = read(rss(item.format(attributes)), THERE)
        found = [dict(one.attrib) for one in etree.fromstring(document.xml).iter("enclosure")]
        assert found == ([] if expected is None else [expected | {"href": "https://base.example/1.mp3"}])


def test_folders_are_paths_and_outer_ones_come_first():
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    for given, folders in (
        (("News/World", "Daily", "News/Sport"), ["News", "News/World", "Daily", "News/Sport"]),
        (("/".join(alphabet), "Z", ""), ["/".join(alphabet[: n + 1]) for n in range(feed_items.MOST_FOLDERS)]),
    ):
        found = only(rss("<item><title>T</title></item>"), Origin("n", 1, folders=given))
        assert [text for tag, text in found if tag == "folder"] == folders


def test_identities_are_those_of_stores_that_were_written_before_there_were_such_fields():
    item = (
        "<item><title>T</title><link>https://c.example/1</link><guid isPermaLink='false'>g</guid>"
        "<pubDate>Wed, 06 May 2026 12:00:00 GMT</pubDate><description>a &lt;a href='https://o.example/x'&gt;l&lt;/a&gt;"
        "</description><enclosure url='https://c.example/1.mp3' type='audio/mpeg' length='1'/></item>"
    )
    feed = atom(
        '<title>T</title><id>tag:e,1</id><link href="https://f.example/1"/><published>2026-05-06T12:00:00Z</published>'
        "<updated>2026-05-08T12:00:00Z</updated>"
        '<content type="html">&lt;a href="https://o.example/x"&gt;l&lt;/a&gt;</content>'
    )
    assert read(rss(item))[0].id == "dir/feed.xml g 538a5f824b04"
    assert read(feed)[0].id == "dir/feed.xml tag:e,1 33068182d94b"
    entry = Entry(guid="g", title="T", date=0, content="c", description="d", item_url="u")
    assert entry_version(entry) == "46866c44460c"
    (seen,) = [one for one in read_entries(feed.encode(), HERE) if isinstance(one, Sighting)]
    assert (seen.key, seen.version) == ("0b77044dcaf865e5", "de6436d5f6f00c54")


# ---------------------------------------------------------------- language

T, EN = "<item><title>T</title></item>", "<language>en</language>"
SV = atom(ENTRY).replace("<feed", "<feed xml:lang='sv'")


@pytest.mark.parametrize(
    ("feed", "expected"),
    [
        (rss(T, "<language>en-US</language>"), ["en-us"]),
        (rss(T, "<dc:language>fr</dc:language>"), ["fr"]),
        (rss(T, attributes='version="2.0" xml:lang="de"'), ["de"]),
        (rss(T.replace("</item>", "<dc:language>pt_BR</dc:language></item>"), EN), ["pt-br"]),
        (rss(T.replace("<title>", "<title xml:lang='it'>"), EN), ["it"]),
        (rss(T.replace("<item>", "<item xml:lang='es'>"), EN), ["es"]),
        *((rss(T), []), (rss(T, "<language>English, mostly</language>"), [])),
        (rss(T, f"<language>{'x' * 1_000}</language>"), []),
        *((SV, ["sv"]), (SV.replace("<entry", "<entry xml:lang='nb-NO'"), ["nb-no"])),
        (json_feed({"id": "1", "title": "T"}, language="ru"), ["ru"]),
        (json_feed({"id": "1", "title": "T", "language": "uk"}, language="ru"), ["uk"]),
        (json_feed({"id": "1", "title": "T", "language": ["uk"]}, language=7), []),
    ],
)
def test_the_language_of_the_entry_else_of_the_feed(feed, expected):
    assert values(feed, "lang") == expected


# ---------------------------------------------------------------- mentions


def test_links_of_the_text_are_mentions_in_any_format():
    link = "<a href='HTTP://Other.example:80/a/?utm_source=x&b=2&a=1#top'>l</a> <a href=../b>m</a>"
    expected = ["https://other.example/a?a=1&b=2", "https://base.example/b"]
    assert mentioned(with_content(link)) == expected
    for name in ("description", "content:encoded"):
        assert mentioned(rss(f"<item><title>T</title><{name}>{escape(link)}</{name}></item>")) == expected
    assert mentioned(json_feed({"id": "1", "content_html": link})) == expected
    xhtml = '<div xmlns="http://www.w3.org/1999/xhtml"><a href="https://other.example/a">l</a></div>'
    assert mentioned(atom(f'{ENTRY}<content type="xhtml">{xhtml}</content>')) == ["https://other.example/a"]
    # The base of an entry goes before that of the feed.
    based = '<content type="html" xml:base="https://deep.example/x/">&lt;a href="y">l&lt;/a></content>'
    assert mentioned(atom(ENTRY + based)) == ["https://deep.example/x/y"]
    # Plain text mentions nothing.
    assert mentioned(json_feed({"id": "1", "content_text": link})) == []
    assert mentioned(atom(f"{ENTRY}<summary>&lt;a href='https://o.example/'>l&lt;/a></summary>")) == []
    many = "".join(f"<a href='https://o.example/{n}'>l</a>" for n in range(feed_items.MOST_MENTIONS + 50))
    assert mentioned(with_content(many)) == [f"https://o.example/{n}" for n in range(feed_items.MOST_MENTIONS)]


def test_the_item_s_own_links_are_no_mentions_and_those_to_others_are():
    own = (
        '<link href="https://f.example/1"/><link rel="enclosure" href="https://f.example/1.mp3"/>'
        '<link rel="related" href="https://g.example/2"/><id>https://f.example/id</id><title>T</title>'
    )
    hrefs = "http://f.example/1/#more https://f.example/1.mp3 https://g.example/2 https://f.example/id #n1"
    content = "".join(f'&lt;a href="{href}">l&lt;/a>' for href in hrefs.split())
    assert mentioned(atom(f'{own}<content type="html">{content}</content>')) == ["https://g.example/2"]
    # What is no page is not a mention.
    others = ["javascript:alert(1)", "mailto:a@b.example", "data:text/html,x", "ftp://f.example/", "https://", ""]
    others += ["http://[::1", f"https://f.example/{'x' * LONGEST_ADDRESS}", "magnet:?xt=1", "\ud800"]
    for href in others:
        assert mentioned(json_feed({"id": "1", "content_html": f'<a href="{href}">l</a>'})) == [], href


@pytest.mark.parametrize("seed", seeds(4, 200))
def test_mentions_are_what_another_parser_and_the_oracle_s_addresses_give(seed):
    rng = Random(seed)
    hosts = ["o.example", "O.Example:443", "base.example", "b\u00fccher.example"]
    paths = ["", "/", "/a", "/a/?b=1&a=%7e", "/\u00e9"]
    html = ""
    for _ in range(rng.randrange(12)):
        absolute = rng.choice(["http://", "https://", "//"]) + rng.choice(hosts) + rng.choice(paths)
        relative = rng.choice(["x", "../y?utm_medium=1", "?q=1", "/r#s", "#t", "mailto:a@b.example"])
        tag = rng.choice(["<a href='{}'>l</a>", '<p><A title="1 > 0" HREF="{}">l</A>', "<img src='{}'>"])
        html += tag.format(rng.choice([absolute, relative]).replace("&", "&amp;"))
    anchors = etree.fromstring(f"<div>{html}</div>", etree.HTMLParser()).iter("a")
    addresses = [urljoin(BASE, anchor.get("href", "")) for anchor in anchors]
    expected = dict.fromkeys(canonical_url(address) for address in addresses if address.startswith("http"))
    assert mentioned(with_content(html)) == [address for address in expected if address != canonical_url(BASE)]


# ---------------------------------------------------------------- addresses that act

BASED = Origin(HERE.name, HERE.modified, base="https://base.example/feed")

BAD = (
    "javascript:alert(1)", "JavaScript:alert(1)", " javascript:alert(1)", "java\nscript:alert(1)", "java\tscript:x",
    "java\r\nscript:x", "javascript\n:x", "\u00a0javascript:x", "java\u200bscript:x", "java\u00adscript:x",
    "vbscript:x",
    "data:text/html,<script>alert(1)</script>", "DATA:text/html;base64,PHNjcmlwdD4=", "file:///etc/passwd", "blob:x",
    "view-source:https://a.example/", "chrome://settings", "about:blank", "jar:https://a.example!/",
    "\u2028javascript:x",
    "javascript://a.example/%0aalert(1)", "feed:javascript:x", "x-unknown:y",
)  # fmt: skip
GOOD = ("https://a.example/1", "HTTP://A.example/x:y", "mailto:a@a.example", "magnet:?xt=urn:btih:1", "/a:b", "?c=d:e")


def as_rss(address):
    text, quoted = escape(address, {"\r": "&#13;"}), quoteattr(address)
    enclosure = f"<enclosure url={quoted} type='audio/mpeg'/>"
    return rss(f"<item><link>{text}</link><title>t</title>{enclosure}</item>", f"<link>{text}</link>")


def as_atom(address):
    quoted = quoteattr(address)
    links = (f"<link href={quoted} rel='{rel}'/>" for rel in ("alternate", "enclosure", "related", "via"))
    content = f'<a href="{address}">x</a><img src="{address}"><blockquote cite="{address}">y</blockquote>'
    entry = f"<title>t</title>{''.join(links)}<content type='html'>{escape(content)}</content>"
    return atom(entry, f"<link href={quoted}/><link href={quoted} rel='self'/>")


def as_json(address):
    item = {"id": "1", "title": "t", "url": address, "external_url": address, "attachments": [{"url": address}]}
    return json_feed(item, home_page_url=address, feed_url=address)


def addresses(feed: str, origin: Origin = BASED) -> list[str]:
    (document,) = read(feed, origin)
    assert isinstance(document, Document), document
    item = etree.fromstring(document.xml_bytes())
    found = [item.findtext(name) for name in ("item_url", "channel_url")]
    found += [link.get("href") for link in item.iter("link", "enclosure")]
    content = etree.fromstring(f"<x>{item.findtext('content', '')}</x>", etree.HTMLParser())
    found += [str(value) for value in content.xpath("//@href | //@src | //@cite")]  # type: ignore[union-attr]
    return [address for address in found if address]


@pytest.mark.parametrize("form", [as_rss, as_atom, as_json])
def test_what_acts_is_left_out_and_what_leads_somewhere_comes_out(form):
    for address, base in product(BAD, (BASED.base, "")):
        found = addresses(form(address), replace(BASED, base=base))
        assert [one for one in found if not one.startswith((BASED.name, "https://base.example/"))] == [], address
    # Where a feed came from is its channel only if it leads there.
    feed = '<rss version="2.0"><channel><item><title>t</title></item></channel></rss>'
    for source, expected in (("javascript:x", []), ("https://s.example/", ["https://s.example/"])):
        assert addresses(feed, Origin(f"{source} 2026", 0, source)) == expected
    for address in GOOD:
        found = addresses(form(address))
        assert len(found) >= 3 and all(one.lower().endswith(address.lower()) for one in found), address


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_no_spelling_of_a_scheme_gets_through(seed: int):
    """What browsers make of an address: they cut off control characters and blanks, and drop tabs and ends of lines."""
    rng = Random(seed)
    for _ in range(2_000):
        word = "".join(rng.choice((one, one.upper())) for one in "javascript:")
        for _ in range(rng.randrange(4)):
            place = rng.randrange(len(word))
            word = word[:place] + rng.choice("\n\r\t") * rng.randrange(1, 3) + word[place:]
        word = "".join(chr(rng.randrange(33)) for _ in range(rng.randrange(3))) + word
        assert not is_harmless(word + "alert(1)"), repr(word)


# ---------------------------------------------------------------- hostile feeds


def test_the_feed_s_addresses_and_authors_stay_if_they_are_not_too_long():
    address = "https://e.example/".ljust(LONGEST_ADDRESS, "a")
    names = [str(n).rjust(3, "0").ljust(LONGEST_TITLE, "x") for n in range(MOST_AUTHORS)]
    own = "".join(f"<author><name>{name}</name></author>" for name in [*names, "one more"])
    (document,) = read(atom("<title>T</title>", f"<link rel='self' href='{address}'/>{own}"), Origin("n", 1))
    told = leaves(document)
    assert {("channel_url", address), ("feed_url", address)} <= set(told) and document.id.startswith(f"{address} ")
    assert values(rss(T, f"<title>{'x' * 2_000_000}</title>"), "feed_title") == ["x" * LONGEST_TITLE], "all repeat it"
    assert [text for name, text in told if name == "author"] == names
    assert [text for name, text in only(atom(own)) if name == "author"] == [*names, "one more"]


# ------------------------- what is made of a feed is linear in its size: no long value is copied to each of its uses

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


def json_feed_of(place: str, n: int) -> bytes:
    value = "http://a.example/" + "v" * 100 * n
    told = {"author": {"name": value}, "authors": [{"name": value}] * 2}.get(place, value)
    items = [{"id": str(number), "url": f"/{number}"} for number in range(n)]
    return json.dumps({"version": "https://jsonfeed.org/version/1.1", place: told, "items": items}).encode()


FEEDS = [*product([atom_feed], PLACES, USES), *product([json_feed_of], OF_JSON)]


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
    (found,) = read(atom("<title>T</title>"), replace(FROM, source=FROM.source.ljust(LONGEST_ADDRESS + 1, "a")))
    assert found.reason == "f: the feed's address has more than 2,000 characters"
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
    found = list(read_entries(json_feed_of("title", 0).replace(b"[]", b"[" + b"1," * 500_000 + b"{}]"), HERE))
    refused = [one for one in found if isinstance(one, Reject)]
    assert len(refused) == MOST_UNREAD and len(found) == MOST_UNREAD + 2
    assert refused[0].reason == "dir/feed.xml: entry 1 cannot be read: it is no JSON object"
    assert refused[-1].reason.endswith(
        "entry 20 cannot be read: it is no JSON object; and 499,980 others cannot be read"
    )
