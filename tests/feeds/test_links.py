from itertools import product
from random import Random
from xml.sax.saxutils import escape, quoteattr

import pytest
from lxml import etree

from feeds.documents import Document
from feeds.items import Origin, is_harmless
from tests.generate.seeds import seeds
from tests.support.feed_texts import atom, json_feed, read, rss

HERE = Origin("dir/feed.xml", 1_800_000_000_000_000, base="https://base.example/feed")

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


def addresses(feed: str, origin: Origin = HERE) -> list[str]:
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
    for address, base in product(BAD, (HERE.base, "")):
        found = addresses(form(address), Origin(HERE.name, HERE.modified, base=base))
        assert [one for one in found if not one.startswith((HERE.name, "https://base.example/"))] == [], address
    for address in GOOD:
        found = addresses(form(address))
        assert len(found) >= 3 and all(one.lower().endswith(address.lower()) for one in found), address


def test_where_a_feed_came_from_is_its_channel_only_if_it_leads_there():
    feed = '<rss version="2.0"><channel><item><title>t</title></item></channel></rss>'
    for source, expected in (("javascript:x", []), ("https://s.example/", ["https://s.example/"])):
        assert addresses(feed, Origin(f"{source} 2026", 0, source)) == expected


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
