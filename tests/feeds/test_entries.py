"""Entries of feeds: their dates, their identity, and feeds that have none."""

import json

import pytest

from feeds.documents import Reject
from feeds.items import Origin
from tests.support.feed_texts import HERE, MTIME, atom, leaves, read, rss, values


@pytest.mark.parametrize(
    ("date", "seconds"),
    [
        ("Wed, 06 May 2026 08:00:00 EDT", 0),
        ("Wed, 06 May 2026 12:00:00 GMT", 0),
        ("Wed, 6 May 26 05:00:00 PDT", 0),
        ("06 May 2026 17:30:00 +0530", 0),
        ("2026-05-06T12:00:00", 0),
        ("2026-05-06 12:00:30", 30),
    ],
)
def test_time_zones(date, seconds):
    (document,) = read(rss(f"<item><title>T</title><pubDate>{date}</pubDate></item>"))
    assert document.t0 == document.t1 == 1_778_068_800_000_000 + seconds * 1_000_000


def test_broken_dates_fall_back_published_updated_fetch_file():
    both = atom("<title>T</title><published>never</published><updated>2026-05-06T12:00:00Z</updated>")
    assert read(both)[0].t0 == 1_778_068_800_000_000
    none = rss("<item><title>T</title><pubDate>32 Foo 2026</pubDate></item>")
    assert read(none)[0].t0 == MTIME
    assert read(none, Origin("n", MTIME, fetched=5))[0].t0 == 5
    assert values(none, "timestamp") == []


def test_a_date_after_the_fetch_is_the_fetch():
    feed = rss("<item><title>T</title><pubDate>Wed, 06 May 2026 12:00:00 GMT</pubDate></item>")
    early = Origin("n", MTIME, "https://u.example/", 1_700_000_000_000_000)
    (document,) = read(feed, early)
    assert document.t0 == 1_700_000_000_000_000
    assert ("timestamp", "2026-05-06T12:00:00Z") in leaves(document)
    assert read(feed, Origin("n", 1))[0].t0 == 1_778_068_800_000_000  # a file's time proves nothing


def test_ids_stay_while_nothing_changes_and_the_guid_stays_in_them():
    item = (
        "<item><title>{}</title><guid>g</guid><link>{}</link><description>{}</description><pubDate>{}</pubDate></item>"
    )
    day, next_day = "Wed, 06 May 2026 12:00:00 GMT", "Thu, 07 May 2026 12:00:00 GMT"
    same = [read(rss(item.format("T", "https://c.example/", "d", day)), o)[0].id for o in (HERE, Origin(HERE.name, 1))]
    assert same[0] == same[1]
    changed = {
        read(rss(item.format(*parts)))[0].id
        for parts in [
            ("T", "https://c.example/", "d", day),
            ("U", "https://c.example/", "d", day),
            ("T", "https://c.example/x", "d", day),
            ("T", "https://c.example/", "e", day),
            ("T", "https://c.example/", "d", next_day),
        ]
    }
    assert len(changed) == 5
    assert {id.rsplit(" ", 1)[0] for id in changed} == {"dir/feed.xml g"}


def test_identity_is_guid_then_link_then_a_hash_of_title_and_date():
    assert read(rss("<item><title>T</title><link>https://c.example/1</link></item>"))[0].id.split(" ")[:2] == [
        "dir/feed.xml",
        "https://c.example/1",
    ]
    bare = [read(rss(f"<item><title>{t}</title></item>"))[0].id.split(" ") for t in ("T", "T", "U")]
    assert bare[0] == bare[1] != bare[2]
    assert [len(part) for part in bare[0][1:]] == [12, 12]


def test_a_guid_repeated_in_a_feed_is_one_document_for_each_content():
    item = "<item><title>{}</title><guid>g</guid></item>"
    documents = read(rss(item.format("a") + item.format("b") + item.format("a")))
    assert len(documents) == 3
    assert len({document.id for document in documents}) == 2


def test_an_empty_feed_gives_nothing_and_what_is_no_feed_a_reject():
    assert read(rss("")) == []
    assert read('<feed xmlns="http://www.w3.org/2005/Atom"><title>F</title></feed>') == []
    assert read(json.dumps({"version": "https://jsonfeed.org/version/1", "items": []})) == []
    for broken, cause in [
        ("<html><body>404</body></html>", "neither RSS nor Atom"),
        ("<rss><channel>", "not a feed"),
        ("", "neither RSS nor Atom"),
        ("\n", "not a feed"),
        ("{", "not JSON"),
        ('{"version": 1}', "not a JSON Feed"),
        ('{"version": "https://jsonfeed.org/version/1"}', "without a list of items"),
        ('{"a":' * 100_000, "nested"),
    ]:
        (reject,) = read(broken)
        assert isinstance(reject, Reject)
        assert (reject.id, reject.stream, reject.time) == ("dir/feed.xml", "S", MTIME)
        assert reject.reason.startswith("dir/feed.xml: ")
        assert cause in reject.reason, broken[:40]


def test_an_ill_formed_feed_gives_what_can_be_read():
    feed = rss("<item><title>One</title></item><item><title>Tw & o</title>")[:-16]
    assert [dict(leaves(document))["title"] for document in read(feed)] == ["One", "Tw & o"]
