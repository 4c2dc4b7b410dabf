"""The feeds in `examples/` and of the demo are sound, and each of their queries finds what it is there for."""

from collections import Counter
from pathlib import Path

import pytest
from lxml import etree

import mmqjp.demo
from feeds.documents import Document
from feeds.tail import read_documents
from tests.oracle.evaluation import evaluate
from tests.support.places import ROOT
from xscl.parser import parse_script

EXAMPLES, DEMO = ROOT / "examples", Path(mmqjp.demo.__file__).parent
SUBSCRIBED = {str(outline.get("xmlUrl")) for outline in etree.parse(EXAMPLES / "feeds.opml").iter("outline")} - {"None"}
OF_DEMO = {
    "https://gazette.example/rss.xml": 8,
    "https://northline.example/wire.atom": 5,
    "lantern-press.rdf": 3,
    "https://marginalia.example/feed.json": 4,
    "https://tinkervale.example/shop.rss": 4,
    "https://workbench.example/reviews.atom": 2,
    "https://gatehouse.example/notices.atom": 6,
}
FOUND = {
    EXAMPLES / "stories.xscl": {"same_story": 2, "retitled": 4, "mended": 3, "incident": 1},
    DEMO / "demo.xscl": {
        "same_story": 2, "nearly_same": 1, "follow_up": 3, "book_blog": 2, "retitled": 1, "correction": 1,
        "new_from_author": 3, "bargain": 1, "silent": 2, "first_cut": 1,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def documents():
    """The documents of the examples and of the demo, by the directory of their queries."""
    places = {EXAMPLES: EXAMPLES / "feeds", DEMO: DEMO}
    return {place: list(read_documents([feeds], feeds="item")) for place, feeds in places.items()}


def test_every_entry_of_every_feed_is_a_document(documents):
    sources = {}
    for place, found in documents.items():
        assert all(isinstance(document, Document) for document in found)
        assert len({document.id for document in found}) == len(found)
        sources[place] = Counter(document.id.split(" ")[0] for document in found)
    assert sources[EXAMPLES].keys() == SUBSCRIBED and sources[EXAMPLES].total() == 43
    assert sources[DEMO] == OF_DEMO


def test_the_demo_happens_in_one_fortnight_and_has_the_leaves_that_queries_join_on(documents):
    times = [document.t0 for document in documents[DEMO]]
    assert max(times) - min(times) < 14 * 86_400_000_000
    assert len(set(times)) == len(times)
    for document in documents[DEMO]:
        item = etree.fromstring(document.xml)
        assert [child.tag for child in item][:4] == ["item_url", "channel_url", "title", "timestamp"], document.id


@pytest.mark.parametrize("script", FOUND, ids=lambda path: path.stem)
def test_every_query_has_something_to_find(documents, script):
    queries = parse_script(script.read_text())
    assert Counter(row.query for row in evaluate(queries, documents[script.parent])) == FOUND[script]


def test_the_sample_queries_for_real_feeds_are_well_formed():
    assert len(parse_script((DEMO / "reader.xscl").read_text()).queries) == 10
