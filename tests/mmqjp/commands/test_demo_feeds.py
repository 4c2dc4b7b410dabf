"""The packaged feeds are sound: every entry is read, dated within one fortnight, no two at the same time."""

from collections import Counter
from pathlib import Path

import pytest
from lxml import etree

import mmqjp.demo
from feeds.documents import Document
from feeds.tail import read_documents
from tests.oracle.evaluation import evaluate
from xscl.parser import parse_script

DEMO = Path(mmqjp.demo.__file__).parent
FEEDS = {
    "https://gazette.example/rss.xml": 8,
    "https://northline.example/wire.atom": 5,
    "lantern-press.rdf": 3,
    "https://marginalia.example/feed.json": 4,
    "https://tinkervale.example/shop.rss": 4,
    "https://workbench.example/reviews.atom": 2,
    "https://gatehouse.example/notices.atom": 6,
}


@pytest.fixture(scope="module")
def documents():
    return list(read_documents([DEMO], feeds="item"))


def test_every_entry_of_every_feed_is_a_document(documents):
    assert all(isinstance(document, Document) for document in documents)
    counts = {source: sum(d.id.startswith(f"{source} ") for d in documents) for source in FEEDS}
    assert counts == FEEDS
    assert len({document.id for document in documents}) == len(documents) == sum(FEEDS.values())


def test_all_of_it_happens_in_one_fortnight_one_after_another(documents):
    times = [document.t0 for document in documents]
    assert max(times) - min(times) < 14 * 86_400_000_000
    assert len(set(times)) == len(times)


def test_every_entry_has_the_thesis_leaves_that_queries_join_on(documents):
    for document in documents:
        item = etree.fromstring(document.xml)
        assert [child.tag for child in item][:4] == ["item_url", "channel_url", "title", "timestamp"], document.id


def test_every_demo_query_has_something_to_find(documents):
    script = parse_script((DEMO / "demo.xscl").read_text())
    found = Counter(row.query for row in evaluate(script, documents))
    assert found == {
        "same_story": 2,
        "nearly_same": 1,
        "follow_up": 3,
        "book_blog": 2,
        "retitled": 1,
        "correction": 1,
        "new_from_author": 3,
        "bargain": 1,
        "silent": 2,
        "first_cut": 1,
    }


def test_the_sample_queries_for_real_feeds_are_well_formed():
    sample = DEMO / "reader.xscl"
    assert len(parse_script(sample.read_text()).queries) == 10
