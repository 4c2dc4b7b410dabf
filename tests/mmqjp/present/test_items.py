"""Items: what is shown of documents of all kinds."""

import pytest

from mmqjp.present.item import ShownItem, is_web_address, item_of, missing_item, truncate


def item(xml):
    return item_of("d", "S", 5, xml)


def test_an_item_of_a_feed_has_title_site_link_and_the_title_of_its_feed():
    xml = """<item><item_url>https://www.news.example/a?b=1&amp;c=2</item_url><channel_url>https://feeds.example/x</channel_url>
<title> A
 headline </title><feed_title>News</feed_title></item>"""
    expected = ShownItem(
        "d", "S", 5, "item", "A headline", "news.example", "News", "https://www.news.example/a?b=1&c=2"
    )
    assert item(xml) == expected


def test_without_a_link_the_site_is_that_of_the_feed():
    found = item("<item><channel_url>https://feeds.example/x</channel_url><title>A</title></item>")
    assert (found.site, found.link) == ("feeds.example", "")


@pytest.mark.parametrize(
    ("xml", "title", "link"),
    [
        (
            '<entry xmlns="http://www.w3.org/2005/Atom"><title>A</title><link rel="self" href="https://e.example/self"/>'
            '<link href="https://e.example/1"/></entry>',
            "A",
            "https://e.example/1",
        ),
        ("<item><title>A</title><link>https://e.example/2</link></item>", "A", "https://e.example/2"),
        ("<book><author>Ada</author><title>A <i>b</i></title></book>", "A b", ""),
    ],
)
def test_entries_as_feeds_have_them_have_titles_and_links_too(xml, title, link):
    assert (item(xml).title, item(xml).link) == (title, link)


def test_documents_without_a_title_are_shown_by_their_first_texts_or_their_id():
    found = item('<order n="7"><by>Ada</by><p>x</p><p> y\n z</p><p>w</p></order>')
    assert (found.kind, found.title) == ("order", "7 · Ada · x · y z")
    assert item("<a><b/></a>").title == "d"
    gone = missing_item("feed https://a.example/1 0f", "S")
    assert (gone.title, gone.is_kept, gone.link) == ("feed https://a.example/1 0f", False, "")


NO_LINKS = (
    "javascript:alert(1)", "JavaScript:alert(1)//https://a.example", "data:text/html,x", "https:///path", "//a.example",
    "https://a.example/ b", "https://a.example/\nb", 'https://a.example/"onmouseover=x', "https://a.example/<b>",
    "https://[bad", "https://a.example/\u202eb", "",
)  # fmt: skip


def test_only_whole_web_addresses_are_links():
    assert [one for one in NO_LINKS if is_web_address(one)] == []
    assert is_web_address("https://a.example/b?c=d#e") and is_web_address("HTTP://A.example:80/ü")


def test_long_titles_are_cut():
    assert truncate("abcd", 4) == "abcd" and truncate("abc de", 5) == "abc…"
    assert len(item(f"<a><title>{'x' * 5_000}</title></a>").title) == 300


def test_control_characters_do_not_reach_a_terminal():
    assert item("<a><title>a\u009b31m b\u202e c</title></a>").title == "a\ufffd31m b\ufffd c"
