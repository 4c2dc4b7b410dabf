"""Atom documents: valid, read back whole by feedparser and by our own reader, whatever the documents hold."""

from datetime import datetime

import feedparser
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree, html

from feeds.documents import from_datetime
from mmqjp.answers.output import Output
from mmqjp.explain.terms import JoinedValue, Operand, Reason
from mmqjp.present.item import ShownMatch, is_web_address, item_of, missing_item
from mmqjp.syndication.atom import AtomFeed, entry_of, feed_document, timestamp
from tests.support.atom import ATOM, ids_of, is_archive, link, validated
from tests.support.feed_texts import entries_of

FEED = AtomFeed("urn:uuid:00000000-0000-4000-8000-000000000000", "stories", "https://a.example/f/k/stories.atom", 5)
NOON = 1_784_200_000_123_456

TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(("", "<b>&amp;</b>", "]]>", "-->", "\x00\x0b\ufffe", "عنوان من اليمين", "\u202eabc", "a" * 5000)),
)
TIMES = st.one_of(st.integers(0, NOON), st.sampled_from((-(10**17), -(2**62), 2**62, 1)))


def xml_of(title, url):
    """A document as the store has it: XML without what XML forbids."""
    root = etree.Element("item")
    for name, text in (("title", title), ("item_url", url)):
        allowed = "".join(char if char.isprintable() else " " for char in text)
        etree.SubElement(root, name).text = allowed
    return etree.tostring(root, encoding="unicode")


URLS = st.one_of(
    TEXTS,
    st.sampled_from(('https://b.example/?a=1&b="2"\'<', "javascript:alert(1)", "http://ü.example/ä#&amp;", "//x")),
)

NAMES = st.text('abc_é&<"ع', min_size=1)


@st.composite
def matches(draw):
    seq = draw(st.integers(0, 10**6))
    items = []
    for number in range(draw(st.integers(1, 3))):
        kept = draw(st.integers(0, 3))
        xml = xml_of(draw(TEXTS), draw(URLS))
        items.append(item_of(f"d{number}", "S", draw(TIMES), xml) if kept else missing_item(draw(TEXTS), "S"))
    documents = tuple(item.id for item in items)
    output = Output(draw(NAMES), 0, draw(TIMES), documents, ("S",) * len(items), {}, "<match/>", f"{seq:032x}", seq)
    reason = Reason((JoinedValue(Operand("title", draw(TEXTS)), Operand("title", draw(TEXTS))),))
    selected = draw(st.lists(st.tuples(TEXTS, TEXTS), max_size=2))
    return ShownMatch(output, tuple(items), draw(st.sampled_from((None, reason))), tuple(selected))


def plain_match(seq=0, title="A title", query="q", items=None, selected=()):
    found = items or (item_of("d0", "S", NOON, xml_of(title, "https://a.example/0")),)
    names = tuple(item.id for item in found)
    output = Output(query, 0, NOON, names, ("S",) * len(names), {}, "<match/>", f"{seq:032x}", seq)
    return ShownMatch(output, found, None, selected)


@given(st.lists(matches(), max_size=4, unique_by=lambda match: match.output.seq), TIMES)
def test_documents_are_valid_and_read_back(found, time):
    entries = [entry_of(match, time) for match in found]
    document = feed_document(FEED, entries, None)
    assert ids_of(document) == [
        f"urn:uuid:{match.output.id[:8]}-0000-0000-0000-{match.output.id[-12:]}" for match in found
    ]
    root = validated(document)
    assert link(root, "self") == FEED.address and link(root, "prev-archive") is None and not is_archive(root)
    for match, element, read in zip(found, root.iter(f"{ATOM}entry"), feedparser.parse(document).entries, strict=True):
        assert element.findtext(f"{ATOM}title"), "no title is empty"
        addresses = {one.get("href") for one in element.iter(f"{ATOM}link")}
        assert addresses == {item.link for item in match.items if item.link}
        assert all(address and is_web_address(address) for address in addresses)
        (tag,) = read.tags
        assert tag.term == match.output.query
        content = html.fragment_fromstring(element.findtext(f"{ATOM}content"))
        assert {one.tag for one in content.iter()} <= {"dl", "dt", "dd", "a"}
        assert {one.get("href") for one in content.iter("a")} == {item.link for item in match.items if item.link}
        told = content.text_content()
        assert all(text in told for item in match.items if (text := item.title) and text.isprintable())


def test_an_entry_tells_times_title_and_links():
    items = tuple(item_of(f"d{n}", "S", NOON, xml_of(f"Title {n}", f"https://a.example/{n}")) for n in (1, 2))
    document = feed_document(FEED, [entry_of(plain_match(items=items), NOON + 1)], None)
    (entry,) = feedparser.parse(document).entries
    assert entry.title == "Title 1" and entry.link == "https://a.example/1"
    links = [("alternate", "https://a.example/1"), ("related", "https://a.example/2")]
    assert [(one.rel, one.href) for one in entry.links] == links
    assert entry.published == timestamp(NOON) and entry.updated == timestamp(NOON + 1)
    (own,) = entries_of(document)
    assert (own.title, own.item_url) == ("Title 1", "https://a.example/1")


def test_titles_and_ids_of_stores_of_older_formats():
    for items, selected, title in (
        ((missing_item("d1", "S"),), (("who", "Ada"), ("what", "b")), "q: Ada, b"),
        ((missing_item("d1", "S"),), (), "q"),
        ((missing_item("d1", "S"), item_of("d2", "S", 1, "<item><title>B</title></item>")), (), "B"),
        ((item_of("d2", "S", 1, f"<item><title>{'x' * 900}</title></item>"),), (), f"{'x' * 299}…"),
    ):
        document = feed_document(FEED, [entry_of(plain_match(items=items, selected=selected), NOON)], None)
        assert feedparser.parse(document).entries[0].title == title
    match = plain_match()
    odd = ShownMatch(Output("q", 0, 0, ("d0",), ("S",), {}, "", "no digest", 1), match.items)
    first, again = entry_of(odd, 0), entry_of(odd, 0)
    assert first == again and "<id>urn:uuid:" in first.xml


@given(TIMES)
def test_times_are_those_of_rfc_3339(time):
    moment = datetime.fromisoformat(timestamp(time))
    assert from_datetime(moment) == time or moment.year in (1, 9999)
