"""Entries of every feed format as item documents, or raw; their dates, their identity, and feeds that have none."""

import json
from dataclasses import replace
from random import Random

import pytest
from lxml import etree

from common.dates import parse_timestamp
from feeds import xml_feed
from feeds.decoding import codec_of, decode_text, mend_references
from feeds.documents import Document, FeedError, Reject, Visit
from feeds.feed import _repaired, load_json_feed, read_entries, read_feed
from feeds.fetch.http import body_hints
from feeds.fetch.lists import read_feed_list
from feeds.history import Fetch, History, Sighting, decode_sighting, encode_sighting
from feeds.items import Entry, Origin, entry_identity, entry_version, html_to_text, one_line
from feeds.xml_feed import feed_elements, read_elements
from tests.generate.seeds import seeds
from tests.support.cpu import printed
from tests.support.feed_texts import HERE, MTIME, atom, entries_of, json_feed, leaves, only, read, rss, values
from tests.support.files import NOON

DATE = "Wed, 06 May 2026 12:00:00 GMT"

RSS_2 = rss(
    "<item><title>One &amp;amp; &lt;i&gt;two&lt;/i&gt;</title><link>https://c.example/1</link>"
    '<guid isPermaLink="false">g-1</guid><pubDate>Wed, 06 May 2026 14:00:00 +0200</pubDate>'
    "<description><![CDATA[<p>A&nbsp;caf&eacute;</p><p>B</p>]]></description>"
    "<dc:creator>Ann</dc:creator><dc:creator>Bob</dc:creator><dc:creator>Ann</dc:creator>"
    "<category>news</category><category domain='x'>news</category><category>sport</category>"
    '<enclosure url="https://c.example/1.mp3" type="audio/mpeg" length="1"/>'
    "<content:encoded><![CDATA[<p onclick='x()'>Full <script>alert(1)</script>text</p>]]></content:encoded></item>"
)
RSS_1 = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/"
  xmlns:dc="http://purl.org/dc/elements/1.1/">
  <channel rdf:about="https://c.example/rdf"><title>C</title><link>https://c.example/</link>
  <dc:language>ko</dc:language></channel>
  <item rdf:about="https://c.example/1#it"><title>T</title><link>https://c.example/1</link>
  <dc:creator>Ann</dc:creator><dc:subject>s</dc:subject><dc:date>2026-05-06T14:00:00.5+02:00</dc:date></item></rdf:RDF>"""
ATOM_1 = atom(
    '<title type="text">a &lt;b> c</title><id>tag:e,1</id>'
    '<link href="https://f.example/1"/><link rel="related" href="https://g.example/2"/>'
    "<published>2026-05-06T12:00:00Z</published><updated>2026-05-08T12:00:00Z</updated>"
    '<category term="t" label="Tee"/><author><name>Ann</name><email>a@f.example</email></author>'
    '<summary type="html">&lt;b&gt;S&lt;/b&gt;um</summary>'
    '<content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml"><p>x <em>y</em></p></div></content>',
    '<link href="https://f.example/"/><link rel="self" href="https://f.example/a"/>',
)
ATOM_03 = """<feed version="0.3" xmlns="http://purl.org/atom/ns#" xml:lang="ja"><title>F</title>
  <link rel="alternate" type="text/html" href="https://f.example/"/>
  <entry><title>T</title><link rel="alternate" type="text/html" href="https://f.example/1"/><id>i</id>
  <issued>2004-05-06T12:00:00Z</issued><modified>2004-05-07T12:00:00Z</modified>
  <content type="text/html" mode="escaped">&lt;p&gt;c&lt;/p&gt;</content></entry></feed>"""
JSON_1 = json_feed(
    {
        "id": "j-1", "url": "https://j.example/1", "external_url": "https://g.example/2",
        "title": "a <b> & c\x0b", "summary": "S", "language": "en_US",
        "content_html": "<p onclick='x()'>h<script>alert(1)</script></p>", "tags": ["t", "t", 3, None],
        "date_published": "2026-05-06T14:00:00+02:00", "date_modified": "2026-05-07T14:00:00+02:00",
        "authors": [{"name": "Ann"}, {"url": "https://bob.example/"}, {}, "x"],
        "attachments": [{"url": "https://j.example/1.mp3", "mime_type": "audio/mpeg", "size_in_bytes": 12}],
    },
    home_page_url="https://j.example/", feed_url="https://j.example/feed.json", language="de",
)  # fmt: skip


@pytest.mark.parametrize(
    ("feed", "expected"),
    [
        (
            RSS_2,
            "item_url https://c.example/1 | channel_url https://c.example/ | title One & two | "
            "timestamp 2026-05-06T12:00:00Z | description A café B | feed_url dir/feed.xml | feed_title C | "
            "author Ann | author Bob | category news | category sport | link alternate https://c.example/1 | "
            "link enclosure https://c.example/1.mp3 | enclosure https://c.example/1.mp3 audio/mpeg 1 | guid g-1 | "
            "content <p>Full text</p>",
        ),
        (
            RSS_1,
            "item_url https://c.example/1 | channel_url https://c.example/ | title T | "
            "timestamp 2026-05-06T12:00:00.500000Z | feed_url dir/feed.xml | feed_title C | "
            "lang ko | updated 2026-05-06T12:00:00.500000Z | author Ann | category s | "
            "link alternate https://c.example/1 | guid https://c.example/1#it",
        ),
        (
            ATOM_1,
            "item_url https://f.example/1 | channel_url https://f.example/ | title a <b> c | "
            "timestamp 2026-05-06T12:00:00Z | description Sum | feed_url https://f.example/a | feed_title F | "
            "updated 2026-05-08T12:00:00Z | author Ann | category t | link alternate https://f.example/1 | "
            "link related https://g.example/2 | guid tag:e,1 | content <p>x <em>y</em></p>",
        ),
        (
            ATOM_03,
            "item_url https://f.example/1 | channel_url https://f.example/ | title T | "
            "timestamp 2004-05-06T12:00:00Z | feed_url dir/feed.xml | feed_title F | "
            "lang ja | updated 2004-05-07T12:00:00Z | link alternate https://f.example/1 | guid i | content <p>c</p>",
        ),
        (
            JSON_1,
            "item_url https://j.example/1 | channel_url https://j.example/ | title a <b> & c | "
            "timestamp 2026-05-06T12:00:00Z | description S | feed_url https://j.example/feed.json | feed_title J | "
            "lang en-us | updated 2026-05-07T12:00:00Z | author Ann | author https://bob.example/ | category t | "
            "category 3 | link alternate https://j.example/1 | link related https://g.example/2 | "
            "link enclosure https://j.example/1.mp3 | enclosure https://j.example/1.mp3 audio/mpeg 12 | guid j-1 | "
            "content <p>h</p>",
        ),
    ],
    ids=["RSS 2", "RSS 1", "Atom 1", "Atom 0.3", "JSON Feed 1.1"],
)
def test_an_entry_of_each_format(feed, expected):
    assert " | ".join(f"{name} {text}" for name, text in only(feed)) == expected


SITE = "<title>C</title>"
SELF = SITE + '<atom:link rel="self" href="https://c.example/rss"/>'
CONTENT = "<content:encoded>&lt;a href='2'>l&lt;/a></content:encoded>"
SVG = '<content type="image/svg+xml"><svg xmlns="http://www.w3.org/2000/svg" onload="x()"/></content>'


def item(fields="", channel="<title>C</title><link>https://c.example/</link>"):
    return rss(f"<item><title>T</title>{fields}</item>", channel)


def titled(title):
    return rss(f"<item><title>{title}</title></item>")


@pytest.mark.parametrize(
    ("feed", "name", "expected"),
    [
        # A feed without a site is named by itself, then by its source.
        *((item("", SELF), "channel_url", "https://c.example/rss"), (item("", SITE), "channel_url", "dir/feed.xml")),
        # The author of an Atom feed is that of its entries, the editor of an RSS feed is not.
        (atom("<title>T</title>", "<author><name>Ann</name></author>"), "author", "Ann"),
        (item("", SITE + "<managingEditor>ed@c.example (Ed)</managingEditor>"), "author", None),
        # Mail addresses are authors only where there is no name.
        (item("<author>a@c.example (Ann &lt;b&gt;Lee&lt;/b&gt;)</author>"), "author", "Ann Lee"),
        (item("<author>a@c.example</author>"), "author", "a@c.example"),
        (item("<author>Ann Lee &lt;a@c.example&gt;</author>"), "author", "Ann Lee"),
        (item("<author>a@c.example (Ann)</author><dc:creator>Bob</dc:creator>"), "author", "Bob"),
        (item("<itunes:author>Ann</itunes:author>"), "author", "Ann"),
        (json_feed({"id": 7}, version="https://jsonfeed.org/version/1", author={"name": "Z"}), "author", "Z"),
        (item("<itunes:keywords>a, b ,a</itunes:keywords>"), "category", "b"),
        # A guid is an item_url where it is an address.
        (item("<guid>123</guid>"), "item_url", None),
        (atom("<title>T</title><id>https://f.example/1</id>"), "item_url", "https://f.example/1"),
        # A description is never a copy of the content.
        *((item(CONTENT), "description", None), (atom("<title>T</title>" + SVG), "content", None)),
        # Stray tags and controls go, and comparisons stay.
        *((titled("Big&lt;br&gt;news"), "title", "Big news"), (titled("1 &lt; 2 &gt; 1"), "title", "1 < 2 > 1")),
        (titled("AT&amp;amp;T &amp;mdash; up"), "title", "AT&T \u2014 up"),
        (titled("<![CDATA[A <em>b</em>\n\n c]]>"), "title", "A b c"),
        (rss("<item><title>One</title></item><item><title>Tw & o</title>")[:-16], "title", "Tw & o"),
    ],
)
def test_values(feed, name, expected):
    assert dict(leaves(read(feed)[-1])).get(name) == expected


def test_external_and_exploding_entities_are_not_expanded_and_bytes_that_name_a_file_not_opened(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(rss("<item><title>secret-text</title></item>"))
    doctype = f'<!DOCTYPE rss [<!ENTITY x SYSTEM "{secret.as_uri()}"><!ENTITY a "aaaaaaaaaa">'
    doctype += "".join(f'<!ENTITY {c} "{f"&{p};" * 10}">' for p, c in zip("abcdefgh", "bcdefghi", strict=True)) + "]>"
    for form in ("item", "raw"):
        feed = doctype + rss("<item><title>t &x; &i;</title></item>")
        for found in read(feed, form=form):
            assert b"secret-text" not in (found.xml if isinstance(found, Document) else b"")
            assert not isinstance(found, Document) or len(found.xml) < 10_000
    (reject,) = read(str(secret))
    assert isinstance(reject, Reject)


def test_raw_entries_keep_their_elements_and_namespaces():
    feed = rss("<item><title>T</title><dc:creator>Ann</dc:creator><x:y xmlns:x='u:x' x:z='1'/></item>")
    (document,) = read("\n" + feed, form="raw")
    root = etree.fromstring(document.xml)
    creator = "{http://purl.org/dc/elements/1.1/}creator"
    assert [child.tag for child in root] == ["title", creator, "{u:x}y", "channel_title", "channel_url"]
    assert root[2].get("{u:x}z") == "1" and document.id == read(feed)[0].id
    (of_atom,) = read(atom("<title>T</title>", '<link href="https://f.example/"/>'), form="raw")
    entry = etree.fromstring(of_atom.xml)
    assert entry.tag == "{http://www.w3.org/2005/Atom}entry"
    assert [(one.findtext("channel_title"), one.findtext("channel_url")) for one in (root, entry)] == [
        ("C", "https://c.example/"), ("F", "https://f.example/"),
    ]  # fmt: skip


def test_html_to_text():
    for markup, text in (
        *(("a<br/>b", "a b"), ("<b>bo</b>ld", "bold"), ("&lt;b&gt; &amp;amp; &#8212;", "<b> &amp; \u2014")),
        *(("x<style>p{}</style><script>1<2</script>y", "xy"), ("<![if lt IE 6]>x<![endif]>", "x"), ("a < b", "a < b")),
        *(("<p>unclosed <em", "unclosed <em"), ("\u00a0a\u2003\n b\x00\ufffe", "a b")),
    ):
        assert html_to_text(markup) == text
    assert one_line("\U0001f600\ud800\x1f\x85 \t x") == "\U0001f600 x"


def test_dates_in_any_zone_and_of_the_future_and_what_stands_for_broken_ones():
    for date, seconds in (
        *(("Wed, 06 May 2026 08:00:00 EDT", 0), (DATE, 0), ("Wed, 6 May 26 05:00:00 PDT", 0)),
        *(("06 May 2026 17:30:00 +0530", 0), ("2026-05-06T12:00:00", 0), ("2026-05-06 12:00:30", 30)),
    ):
        (document,) = read(item(f"<pubDate>{date}</pubDate>"))
        assert document.t0 == document.t1 == NOON + seconds * 1_000_000
    # What is after the fetch is the fetch.
    feed, fetched = item(f"<pubDate>{DATE}</pubDate>"), 1_700_000_000_000_000
    (document,) = read(feed, Origin("n", MTIME, "https://u.example/", fetched))
    assert document.t0 == fetched and ("timestamp", "2026-05-06T12:00:00Z") in leaves(document)
    assert read(feed, Origin("n", 1))[0].t0 == NOON  # a file's time proves nothing
    # Published, updated, fetch, file.
    both = atom("<title>T</title><published>never</published><updated>2026-05-06T12:00:00Z</updated>")
    none = item("<pubDate>32 Foo 2026</pubDate>")
    assert [read(both)[0].t0, read(none)[0].t0] == [NOON, MTIME]
    assert read(none, Origin("n", MTIME, fetched=5))[0].t0 == 5 and values(none, "timestamp") == []


def test_ids_stay_while_nothing_changes_and_the_guid_stays_in_them():
    same = {"title": "T", "link": "https://c.example/", "description": "d", "pubDate": DATE, "guid": "g"}
    changes = [{}, {"title": "U"}, {"link": "https://c.example/x"}, {"description": "e"}]
    changes.append({"pubDate": DATE.replace("6", "7")})
    feeds = [rss("<item>" + "".join(f"<{k}>{v}</{k}>" for k, v in (same | one).items()) + "</item>") for one in changes]
    assert read(feeds[0])[0].id == read(feeds[0], Origin(HERE.name, 1))[0].id
    ids = {read(feed)[0].id for feed in feeds}
    assert len(ids) == 5 and {id.rsplit(" ", 1)[0] for id in ids} == {"dir/feed.xml g"}
    # Without a guid the link is the identity, then a hash of title and date; a repeated guid is one document a content.
    assert read(item("<link>https://c.example/1</link>"))[0].id.startswith("dir/feed.xml https://c.example/1 ")
    bare = [read(titled(title))[0].id.split(" ") for title in "TTU"]
    assert bare[0] == bare[1] != bare[2] and [len(part) for part in bare[0][1:]] == [12, 12]
    documents = read(rss("".join(f"<item><title>{title}</title><guid>g</guid></item>" for title in "aba")))
    assert len(documents) == 3 and len({document.id for document in documents}) == 2


def test_what_is_no_feed_is_a_reject_and_an_empty_one_nothing():
    neither = "neither RSS, Atom nor JSON Feed"
    for form, feed, cause in (
        *(("item", "<html><body>404</body></html>", neither), ("item", "<rss><channel>", "not a feed")),
        *(("item", "", "it is empty"), ("raw", "\n", "it is empty"), ("item", "{", "not JSON")),
        *(
            ("item", "hello", f"read: it is {neither}"),
            ("item", '"x"', neither),
            ("item", "<a", "read: unclosed token"),
        ),
        *(("item", '{"version": 1}', "not a JSON Feed"), ("item", '{"a":' * 100_000, "nested")),
        ("item", '{"version": "https://jsonfeed.org/version/1"}', "without a list of items"),
        # Raw entries are not mended.
        *(("raw", titled("One")[:-8], "well-formed"), ("raw", json_feed({"id": "1"}), "JSON")),
    ):
        (reject,) = read(feed, form=form)
        assert isinstance(reject, Reject)
        assert (reject.id, reject.stream, reject.time) == ("dir/feed.xml", "S", MTIME)
        assert reject.reason.startswith("dir/feed.xml: ") and cause in reject.reason
    assert read(rss("")) == read('<feed xmlns="http://www.w3.org/2005/Atom"><title>F</title></feed>') == []
    assert read('{"version": "https://jsonfeed.org/version/1", "items": []}') == []


# ---------------------------------------------------------------- an entry's own fields

OWN = (
    "<title>T</title><link>https://c.example/1</link><description>D</description><author>Ann</author>"
    "<category>K</category><guid isPermaLink='false'>g</guid><pubDate>2026-05-06T12:00:00Z</pubDate>"
    "<enclosure url='https://c.example/1.mp3' type='audio/mpeg' length='1'/>"
)
OF_RSS = [
    "title T", "description D", "author Ann", "category K", "guid g", "timestamp 2026-05-06T12:00:00Z",
    "item_url https://c.example/1", "enclosure https://c.example/1.mp3 audio/mpeg 1",
]  # fmt: skip
INSIDE = (
    "<title>X</title><link>https://x.example/</link><url>https://x.example/i</url><description>X</description>"
    "<name>X</name><guid>X</guid><pubDate>1999-01-01</pubDate><category>X</category><id>X</id>"
    "<summary>X</summary><author>X</author><enclosure url='https://x.example/x'/>"
)
MODULES = (
    "xmlns:media='http://search.yahoo.com/mrss/' xmlns:og='https://ogp.me/ns#' "
    "xmlns:gml='http://www.opengis.net/gml' xmlns:georss='http://www.georss.org/georss' "
    "xmlns:podcast='https://podcastindex.org/namespace/1.0' xmlns:foaf='http://xmlns.com/foaf/0.1/'"
)
HOLDERS = (
    "image source textInput textinput og place media:group media:content media:thumbnail itunes:owner atom:source "
    "atom:contributor podcast:person contributor georss:where"
)


def shown(feed):
    return {f"{name} {text}" for name, text in only(feed)}


@pytest.mark.parametrize("holder", HOLDERS.split())
def test_elements_inside_of_others_are_not_the_entry_s(holder):
    inside = f"<{holder} {MODULES}>{INSIDE}<{holder}>{INSIDE}</{holder}></{holder}>"
    empty = f"<{holder} {MODULES}><title/><link/><name/></{holder}>"
    for item in (inside + OWN, OWN + inside, OWN + empty, empty + OWN):
        assert shown(rss(f"<item>{item}</item>")) >= set(OF_RSS)
        assert not any("X" in one or "x.example" in one for one in shown(rss(f"<item>{item}</item>")))
    # What the entry does not say is absent, whatever others say.
    alone = {name for name, _ in only(rss(f"<item>{inside}<guid>g</guid></item>"))}
    assert alone == {"channel_url", "feed_url", "feed_title", "guid"}


@pytest.mark.parametrize(
    "other",
    [
        *(f"<media:{name}>X</media:{name}>" for name in ("title", "description", "credit", "keywords", "category")),
        *(f"<itunes:{name}>X</itunes:{name}>" for name in ("title", "subtitle", "summary", "episode")),
        *(f"<og:{name}>X</og:{name}>" for name in ("title", "link", "author", "pubDate", "guid")),
        *(f"<atom:{name}>X</atom:{name}>" for name in ("title", "id", "published", "summary")),
        "<atom:link rel='alternate' href='https://x.example/amp'/>", "<gml:pos>45 7</gml:pos>",
        "<georss:where srsName='X'><gml:Point srsName='X'><gml:pos>1 2</gml:pos></gml:Point></georss:where>",
        "<media:content url='https://x.example/v.mp4' type='video/mp4'/>", "<dc:date>1999</dc:date>",
        "<published>2 January</published>", "<dc:title>X</dc:title>", "<comments>https://x.example/</comments>",
    ],
)  # fmt: skip
def test_elements_of_modules_do_not_replace_the_entry_s(other):
    own = f"<x {MODULES}/>" + OWN
    for item in (own + other.replace(" ", f" {MODULES} ", 1), other + own):
        feed = rss(f"<item>{item}</item>").replace("<rss ", f"<rss {MODULES} ").replace(f" {MODULES} srs", " srs")
        root = etree.fromstring(feed, etree.XMLParser(recover=True))
        assert shown(etree.tostring(root, encoding="unicode")) >= set(OF_RSS)


META, XHTML = "&lt;meta content=0&gt;", "<div xmlns='http://www.w3.org/1999/xhtml'>"
IANA, PAGE = "http://www.iana.org/assignments/relation/", "https://f.example/1"
ALTERNATE = f"<link rel='alternate' type='application/json' href='https://f.example/j'/><link href='{PAGE}'/>"

OF_ITEMS = [
    ("<link uri='at://did:plc:a/b'>https://c.example/1</link>", {"item_url": "https://c.example/1"}),
    ("<link href='https://c.example/1'/>", {"item_url": "https://c.example/1"}),
    ("<link/><guid isPermaLink='false'>https://c.example/1</guid>", {"item_url": None}),
    ("<guid>https://c.example/1</guid>", {"item_url": "https://c.example/1"}),
    ("<atom:link href='https://c.example/1'/>", {"item_url": "https://c.example/1"}),
    ("<author><name>Ann</name><link>https://x.example/</link></author>", {"author": "Ann", "item_url": None}),
    ("<description>D</description><itunes:summary>S</itunes:summary>", {"description": "D"}),
    ("<description/><itunes:summary>S</itunes:summary>", {"description": "S"}),
    ("<itunes:summary>S</itunes:summary><content:encoded>C</content:encoded>", {"description": "S", "content": "C"}),
    ("<enclosure url='https://c.example/a.mp3'/>", {"enclosure": "https://c.example/a.mp3"}),
    ("<dc:title>T</dc:title>", {"title": "T"}),
    ("<title>Why Ã© and Â£5 show</title>", {"title": "Why Ã© and Â£5 show"}),
    ("<title>a &lt;query, word&gt; b</title>", {"title": "a <query, word> b"}),
    ("<title>A <b>bold</b><image>X</image> one</title>", {"title": "A bold X one"}),
    ("<pubDate>2026-05-06</pubDate><pubDate>never</pubDate>", {"timestamp": "2026-05-06T00:00:00Z"}),
    ("<pubDate>never</pubDate><dc:date>2026-05-06</dc:date>", {"timestamp": "2026-05-06T00:00:00Z"}),
    ("<category>K<image>X</image></category>", {"category": "K"}),
]
OF_ENTRIES = [
    ("<link rel='enclosure' href='https://f.example/a.mp3'/>", {"enclosure": "https://f.example/a.mp3"}),
    (ALTERNATE, {"item_url": PAGE}),
    (f"<link rel='{IANA}alternate' href='{PAGE}'/>", {"item_url": PAGE, "link": f"alternate {PAGE}"}),
    (f"<link rel='{IANA}enclosure' href='{PAGE}'/>", {"item_url": None, "enclosure": PAGE}),
    (f"<link rel='https://x.example/rel' href='{PAGE}'/>", {"link": f"https://x.example/rel {PAGE}"}),
    ("<content type='text'>use &lt;b&gt; &amp;amp;</content>", {"content": "use &lt;b&gt; &amp;amp;"}),
    ("<summary>a &lt;b&gt;c&lt;/b&gt;</summary>", {"description": "a <b>c</b>"}),
    ("<source><title>X</title><author><name>Eve</name></author></source>", {"title": None, "author": "Eve"}),
    ("<source><id>x</id></source>", {"guid": None}),
    ("<contributor><name>X</name></contributor>", {"author": None}),
    ("<author><name>Ann</name><uri>https://x.example/</uri></author>", {"author": "Ann"}),
    (f"<title>On {META}</title>", {"title": "On <meta content=0>"}),
    (f"<title type='html'>On {META}</title>", {"title": "On"}),
    (f"<title type='html'>On {META.replace('&', '&amp;')}</title>", {"title": "On <meta content=0>"}),
    (f"<title type='xhtml'>{XHTML}On <meta content='0'/><b>it</b></div></title>", {"title": "On it"}),
    ("<category term='a &lt;b&gt;' label='X'/>", {"category": "a <b>"}),
]


def item_of(inside):
    return rss(f"<item>{inside}</item>")


@pytest.mark.parametrize(
    ("form", "inside", "expected"), [*((item_of, *row) for row in OF_ITEMS), *((atom, *row) for row in OF_ENTRIES)]
)
def test_fields(form, inside, expected):
    found = dict(only(form(inside)))
    assert {name: found.get(name) for name in expected} == expected


def test_an_id_is_compared_as_it_is_and_addresses_have_their_bases():
    feed = atom("<id>e1</id><link href='x'/><content type='xhtml'><div xmlns='http://www.w3.org/1999/xhtml' "
                "xml:base='c/'><a href='y'>l</a><p xml:base='d/'><img src='z'/></p></div></content>")  # fmt: skip
    found = dict(only(feed.replace("<feed", "<feed xml:base='https://c.example/b/'")))
    assert (found["guid"], found["item_url"]) == ("e1", "https://c.example/b/x")
    assert found["content"] == ('<a href="https://c.example/b/c/y">l</a><p><img src="https://c.example/b/c/d/z"></p>')


PIECES = {
    "title": ["<title>{}</title>", "<title>A &amp; {}</title>", "<title><![CDATA[{} <i>x</i>]]></title>"],
    "link": ["<link>https://c.example/{}</link>"],
    "guid": ["<guid isPermaLink='false'>{}</guid>"],
    "author": ["<author>{}</author>", "<dc:creator>{}</dc:creator>", "<author>a@c.example ({})</author>"],
    "category": ["<category>{}</category>", "<category domain='d'>{}</category>"],
    "pubDate": ["<pubDate>Wed, 06 May 2026 1{}:00:00 GMT</pubDate>"],
    "description": [
        "<description>&lt;p&gt;{} &lt;a href='/x'&gt;l&lt;/a&gt;&lt;/p&gt;</description>",
        "<description>{}</description>",
    ],
    "content": ["<content:encoded>&lt;p&gt;{} &lt;img src='i.png'&gt;&lt;/p&gt;</content:encoded>"],
    "enclosure": ["<enclosure url='/{}.mp3' type='audio/mpeg' length='1'/>"],
}


@pytest.mark.parametrize("seed", seeds(3, 30))
def test_what_feedparser_reads_of_flat_feeds_is_what_we_read(seed):
    rng = Random(seed)
    items = []
    for number in range(20):
        names = rng.sample(list(PIECES), rng.randrange(1, len(PIECES) + 1))
        items.append("".join(rng.choice(PIECES[name]).format(number % 10) for name in names))
    text = rss("".join(f"<item>{item}</item>" for item in items))
    elements = feed_elements(etree.fromstring(text))
    assert elements is not None
    ours, theirs = (read_elements(one, "https://base.example/") for one in (elements, _repaired(text)))
    fields = "item_url", "title", "date", "description", "authors", "categories", "guid", "enclosures", "mentions"
    for (_, one), (_, other), item in zip(ours.entries, theirs.entries, items, strict=True):
        for name in fields:
            assert getattr(one, name) == getattr(other, name), (name, item)


# ---------------------------------------------------------------- one entry costs one entry


def test_an_entry_that_cannot_be_read_costs_that_entry(monkeypatch):
    real = xml_feed._Reader.entry

    def entry(self, element, feed):
        if element.findtext("title") == "bad":
            raise KeyError("where")
        return real(self, element, feed)

    monkeypatch.setattr(xml_feed._Reader, "entry", entry)
    monkeypatch.setattr("feeds.feed.confined", lambda work, *arguments, size: work(*arguments))
    feed = rss("".join(f"<item><title>{title}</title></item>" for title in ("a", "bad", "c")))
    for form in ("item", "raw"):
        reject, *documents = read(feed, form=form)
        assert isinstance(reject, Reject) and reject.id == "dir/feed.xml: entry 2"
        assert reject.reason == "dir/feed.xml: entry 2 cannot be read: 'where'"
        assert [etree.fromstring(one.xml).findtext("title") for one in documents] == ["a", "c"]


def test_what_feedparser_fails_at_is_read_without_it(monkeypatch):
    def fail(*arguments, **options):
        raise KeyError("where")

    ill = rss("<item><title>Depot</title></item><item><title>B</title></item>").replace("</rss>", "")
    monkeypatch.setattr("feedparser.parse", fail)
    assert [entry.title for entry in entries_of(ill.encode())] == ["Depot", "B"]
    with pytest.raises(FeedError, match="the feed cannot be read: 'where'"):
        read_feed(b"<html><p>", HERE, "item")


def test_json_feeds():
    text = "use <b> &amp; 'x'"
    item = dict.fromkeys(("title", "summary", "content_text"), text) | {"tags": [text], "authors": [{"name": text}]}
    found = dict(only(json_feed(item | {"id": 1.5, "date_published": 1704153600, "date_modified": None})))
    assert {found[name] for name in ("title", "description", "author", "category")} == {text}
    assert found["content"] == "use &lt;b&gt; &amp;amp; 'x'" and found["guid"] == "1.5"
    assert "timestamp" not in found
    for value in json.loads("[true, [], {}, null, 3.5e300]"):
        assert read(json_feed({"id": "1", "title": "T", "date_published": value, "tags": value, "authors": value}))
    for bad in ("[]", "[1]", "7x", '{"items": []}', '{"version": "https://www.jsonfeed.org/version/1.1", "items": []}'):
        assert isinstance(read(bad)[0], Reject)
    long = load_json_feed('{"version": "https://jsonfeed.org/version/1", "items": [{"id": %s}]}' % ("9" * 5_000))
    assert long["items"][0]["id"] == "9" * 5_000


# ---------------------------------------------------------------- bytes

LABELS = """
    utf-8 unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8; cp866 866 cp866 csibm866 ibm866;
    iso8859-2 csisolatin2 iso-ir-101 iso_8859-2 iso_8859-2:1987 l2 latin2; iso8859-3 csisolatin3 l3 latin3; iso8859-4
    csisolatin4 l4 latin4; iso8859-5 csisolatincyrillic cyrillic; iso8859-6 arabic asmo-708 csiso88596e csiso88596i
    ecma-114 iso-8859-6-e iso-8859-6-i; iso8859-7 csisolatingreek ecma-118 elot_928 greek greek8 sun_eu_greek; iso8859-8
    csiso88598e csisolatinhebrew hebrew iso-8859-8-e visual csiso88598i iso-8859-8-i logical; iso8859-10 csisolatin6 l6
    latin6; iso8859-15 csisolatin9 l9; iso8859-16 iso-8859-16; koi8-r cskoi8r koi koi8 koi8-r koi8_r; koi8-u koi8-ru
    koi8-u; mac-roman csmacintosh mac macintosh x-mac-roman; cp874 dos-874 iso-8859-11 iso8859-11 iso885911 tis-620
    windows-874; cp1252 ansi_x3.4-1968 ascii cp819 csisolatin1 ibm819 iso-8859-1 iso8859-1 iso88591 iso_8859-1 l1 latin1
    us-ascii; cp1254 csisolatin5 iso-8859-9 iso8859-9 iso88599 l5 latin5; mac-cyrillic x-mac-cyrillic x-mac-ukrainian;
    gb18030 chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk gb18030; big5hkscs big5
    big5-hkscs cn-big5 csbig5 x-x-big5; euc_jp cseucpkdfmtjapanese euc-jp x-euc-jp; iso2022_jp csiso2022jp iso-2022-jp;
    cp932 csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis; cp949 cseuckr csksc56011987 euc-kr
    iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 windows-949
"""


def test_labels_are_those_of_browsers():
    known = [(codec, label) for codec, *labels in map(str.split, LABELS.split(";")) for label in labels]
    for number in (*range(2, 9), 10, 13, 14, 15):
        known += [(f"iso8859-{number}", f"iso{middle}{number}") for middle in ("-8859-", "8859-", "8859")]
    known += [(f"cp{n}", f"{start}{n}") for n in range(1250, 1259) for start in ("cp", "windows-", "x-cp")]
    for codec, label in known:
        assert codec_of(label) == codec_of(f" {label.upper()}\n") == codec, label
    for label in ("", "utf-16", "utf-7", "rot13", "punycode", "unicode_escape", "nothing", "x" * 10_000, "\0"):
        assert codec_of(label) is None


@pytest.mark.parametrize(
    ("declared", "codec", "title"),
    [
        ("Shift_JIS", "cp932", "①日本"), ("EUC-KR", "cp949", "똠방각하"), ("GB2312", "gb18030", "朱镕基 €"),
        ("ISO-8859-1", "cp1252", "“a” €"), ("big5", "big5hkscs", "中文"), ("utf-16", "utf-8", "é"),
        ("UTF-16", "utf-16", "é"), ("utf-8", "utf-16-be", "é"), ("windows-1251", "cp1251", "Новости"),
        ("iso-8859-9", "cp1254", "Şehir"), ("nonsense", "utf-8", "é"), ("nonsense", "cp1252", "é è"),
        ("utf-8", "cp1252", "naïve café"), ("EUC-JP", "euc_jp", "日本"), ("koi8-r", "koi8-r", "Новости"),
    ],
)  # fmt: skip
def test_feeds_and_lists_are_read_in_their_encoding(declared, codec, title):
    declaration = f"<?xml version='1.0' encoding='{declared}'?>"
    feed = declaration + rss(f"<item><title>{title}</title></item>")
    assert values(feed.encode(codec), "title") == [title]
    outline = f"<opml><body><outline text='{title} A&B' xmlUrl='https://a.example/'/></body></opml>"
    ((listed,), complaints, *_) = read_feed_list((declaration + outline).encode(codec), "l")
    assert (listed.title, complaints) == (f"{title} A&B", [])


def test_a_bad_byte_costs_one_character():
    for declared in ("<?xml version='1.0' encoding='utf-8'?>", "<?xml version='1.0'?>", ""):
        feed = declared.encode() + rss("<item><title>Café déjà vu €5 !</title></item>").encode().replace(b"!", b"\x92")
        assert values(feed, "title") == ["Café déjà vu €5 \ufffd"]
        (document,) = read(json_feed({"id": "1", "title": "é à !"}).encode().replace(b"!", b"\xff"))
        assert "timestamp" not in dict(leaves(document))
    assert decode_text(f"<a>{'日本語' * 9}@</a>".encode().replace(b"@", b"\xe6")) == f"<a>{'日本語' * 9}\ufffd</a>"
    assert decode_text(b"<a>\xef\xbf\xbd caf\xc3\xa9 \xff</a>") == "<a>\ufffd café \ufffd</a>"
    assert decode_text(b"caf\xe9 d\xe9j\xe0") == "café déjà"
    # EUC-JP is that of Windows.
    head = b'<?xml version="1.0" encoding="EUC-JP"?>'
    assert decode_text(head + b"<a>\xad\xa1\xad\xea\xa1\xc1\xff\xc6</a>").endswith("<a>①㈱～\ufffd\ufffd</a>")
    assert decode_text("é".encode("utf-16")) == decode_text("<a>é".encode("utf-16-le"))[3:] == "é"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("AT&T and R&D", "AT&T and R&D"), ("Smith & Sons", "Smith & Sons"), ("a&b;", "a&b;"),
        ("1 < 2 && 3<4", "1 < 2 && 3<4"),
        ("&eacute;&nbsp;&hellip;", "é …"), ("&copy 2026", "© 2026"), ("&unknown; &#xZ;", "&unknown; &#xZ;"),
        ("&#55357;&#56832;", "\U0001f600"), ("&#xD83D; x", "\ufffd x"),
        ("&#0; &#x110000; &#99999999999;", "\ufffd \ufffd \ufffd"),
        ("&#11;x\x0by", "\ufffdxy"), ("<![CDATA[a & b <i>c</i>]]> & d", "a & b c & d"), ("&#151; x", "— x"),
        ("&amp;amp; &", "& &"), ("&ampx", "&x"), ("I <3 U", "I <3 U"),
    ],
)  # fmt: skip
def test_references_are_read_as_browsers_read_them(written, meant):
    title, link = f"<title>{written}</title>", "<link>https://c.example/?a=1&copy=2&b=3</link>"
    found = dict(only(rss(f"<item>{title}{link}<enclosure url='/x?a=1&reg=2&copyright'/></item>")))
    assert (found["title"], found["item_url"]) == (meant, "https://c.example/?a=1&copy=2&b=3")
    assert found["enclosure"].endswith("/x?a=1&reg=2&copyright")


def test_entities_of_a_dtd_are_known_without_loading_it():
    old = '<!DOCTYPE rss PUBLIC "-//Netscape Communications//DTD RSS 0.91//EN" "http://nowhere.example/rss-0.91.dtd">'
    feed = rss("<item><title>Caf&eacute; &copy; &ouml;</title><link>https://c.example/&#233;</link></item>")
    assert values(old + feed, "title") == ["Café © ö"]
    own = "<!DOCTYPE rss [<!ENTITY me 'Ann &amp; I'><!ENTITY copy '(c)'><!ENTITY out SYSTEM 'file:///etc/passwd'>]>"
    feed = rss("<item><title>&me; &copy; &reg; &out;.</title></item>")
    assert values(own + feed, "title") == ["Ann & I (c) ® ."]
    for before in ('<!ENTITY m "a]b">', "<!-- ] it's -->", "<?x ]> ?>"):
        dtd = f'<!DOCTYPE a [{before}<!ENTITY n "N">]>'
        assert mend_references(f"{dtd}<a>&n;&eacute;</a>") == f"{dtd}<a>&n;é</a>"
    for text in ("<a b='&'>&</a>", "<a>&nbsp;&lt;</a>", "<a>1 < 2</a>", "<a>\x01</a>", "<!-- & --><a>&amp;</a>"):
        etree.fromstring(mend_references(text))
    # So are the usual prefixes where none is declared.
    feed = "<rss><channel><item><title>T</title><dc:creator>Ann</dc:creator><x:y>1</x:y></item></channel></rss>"
    assert values(feed, "author") == ["Ann"]


LINEAR = """
import gzip, zstandard
from common.dates import parse_timestamp
from feeds.decoding import declare_prefixes, decode_text, mend_references, windows_references
from feeds.documents import Document
from feeds.feed import read_feed
from feeds.fetch.http import DecodeError, decode, fresh_for, retry_after
from feeds.fetch.lists import read_opml
from feeds.files import kind_of_body
from feeds.items import Origin, is_harmless
for start in (b"<!DOCTYPE ", b"<!DOCTYPE a [", b"<?", b"<!--", b"<feed ", b"<feed version ", b"<a:"):
    kind_of_body(start * 10_000), kind_of_body(start + b"a" * 65_000), kind_of_body(start + b" " * 65_000)
    kind_of_body(start + b"]" * 65_000), kind_of_body(b"<a>" + start * 10_000)
decode_text(b"<?xml " + b"encoding " * 1_000_000), decode_text(b" " * 8_000_000)
Document("i", "<?xml " + " encoding='" * 1_000_000).xml_bytes()
for many in (gzip.compress(b"") * 999, zstandard.compress(b"") * 999):
    for coding in ("gzip", "zstd"):
        try: decode(many + bytes(15_000_000), coding, 15_000_000)
        except DecodeError: pass
outline = "<outline " + " ".join(f"a{i}=''" for i in range(400_000)) + "/>"
read_opml(f"<opml><body>{outline}</body></opml>".encode())
for text in ("max-age " * 20_000, "max-age=" + " " * 99_999, "no-" * 40_000, "," * 99_999, "9" * 99_999):
    fresh_for({"Cache-Control": text, "Expires": text, "Age": text}, 0)
    retry_after({"Retry-After": text}, 0)
is_harmless("javascript" * 1_000_000), is_harmless(" \\n" * 4_000_000)
for piece in ("&", "<", "<![CDATA[", "<!--", '<a b="', "<a '\\"", "&a", "&#1", "<!DOCTYPE [<!ENTITY ", "x:"):
    mend_references(piece * 200_000), declare_prefixes("<a " + piece * 200_000, {}), windows_references(piece * 200_000)
decode_text(b"<?xml " + b"encoding=" * 200_000), decode_text(b"<?xml encoding='" + b"a" * 1_000_000)
for inside in ("<author>" + "a" * 800_000 + "</author>", "<title/>" * 100_000, "<link>x</link>" * 20_000):
    list(read_feed(f"<rss><channel><item>{inside}</item></channel></rss>".encode(), Origin("f", 0), "item")[1])
parse_timestamp("1 " * 1_000_000), parse_timestamp(" " * 1_000_000 + "2026-07-16")
print("done")
"""


def test_hostile_text_takes_linear_time():
    assert printed(LINEAR) == "done\n"


# ---------------------------------------------------------------- dates that cannot be read, identity and versions


def test_dates_that_cannot_be_read_are_counted():
    feed = rss("".join(f"<item><title>{d}</title><pubDate>{d}</pubDate></item>" for d in ("soon", "2026-05-06", "")))
    history = History()
    for _ in range(2):
        found = list(history.settle(read_entries(feed.encode(), Origin("n", 5, "https://c.example/rss", 5))))
    assert found == [Visit("https://c.example/rss", 5)] and history.undated == {"https://c.example/rss": 1}
    hints = body_hints(feed.encode())
    assert hints.undated == 1 and type(hints).from_json(hints.to_json()) == hints
    assert type(hints).from_json("[0, [], []]").undated == 0
    for zone in (" (CEST)", " (Tokyo)", "[Europe/Berlin]"):
        assert parse_timestamp(f"2025-09-02T10:00:00{zone}") is None, "it is not UTC"


def story(url="", guid="", content="", title="T"):
    return Entry(item_url=url, guid=guid, content=content, title=title)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (story("http://c.example/1"), story("https://c.example/1")),
        (story("https://c.example/1?utm_source=a"), story("https://c.example/1?utm_source=b&utm_medium=c")),
        (story("https://c.example/1?a=1&fbclid=2"), story("https://C.example/1/?a=1")),
        (story(guid="http://c.example/1"), story(guid="https://c.example/1/")),
        (story("http://c.example/1", "g"), story("https://c.example/1", "g")),
        (story(content='<a href="http://c.example/1">'), story(content='<a href="https://c.example/1">')),
        (story(content='<a href="/1?a=1&amp;utm_x=1">'), story(content='<a href="/1?a=1&amp;utm_x=2">')),
        (story(content='<a href="https://a/?UTM_Source=x">'), story(content='<a href="https://a/?UTM_Source=y">')),
        (story(content='<a href="https://a/?FBCLID=x">'), story(content='<a href="https://a/?FBCLID=y">')),
    ],
)
def test_links_that_canonical_url_finds_equal_make_no_new_entries(one, other):
    assert entry_identity(one) == entry_identity(other) and entry_version(one) == entry_version(other)
    assert entry_version(one) != entry_version(story(title="U"))
    assert entry_identity(one) != entry_identity(replace(one, item_url="https://c.example/1#1", guid=""))


def test_a_history_written_before_knows_its_entries():
    def sighting(text):
        return next(one for one in read_entries(text.encode(), origin) if isinstance(one, Sighting))

    origin = Origin("n", 5, "https://c.example/rss", 5)
    item = "<item><title>T</title><link>{}://c.example/1/</link><description>d</description>{}</item>"
    seen = sighting(rss(item.format("http", "")))
    before = Sighting(seen.id, b"<item/>", seen.fetch, seen.former_key, seen.former_version, None, None)
    history = History()
    assert isinstance(history.judge(before), Document)
    later = History()
    later.load(history.changed())
    assert later.judge(seen) is None and later.judge(sighting(rss(item.format("https", "")))) is None
    changed = sighting(rss(item.format("https", "").replace("<title>T", "<title>U")))
    assert isinstance(later.judge(changed), Document)
    assert decode_sighting(encode_sighting(seen), seen.id, seen.xml) == seen
    assert seen.fetch == Fetch("https://c.example/rss", "n", 5, 5)


def test_raw_entries_are_in_utf_8_whatever_the_feed_was_in():
    declared = "<?xml version='1.0' encoding='Shift_JIS'?>" + rss("<item><title>①</title></item>")
    (one,) = read_feed(declared.encode("cp932"), HERE, "raw")[1]
    assert etree.fromstring(one[1]).findtext("title") == "①"
