"""Entries of every feed format as item documents, or raw; their dates, their identity, and feeds that have none."""

import pytest
from lxml import etree

from feeds.documents import Document, Reject
from feeds.items import Origin, html_to_text, one_line
from tests.support.feed_texts import HERE, MTIME, atom, json_feed, leaves, only, read, rss, values

NOON = 1_778_068_800_000_000
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
