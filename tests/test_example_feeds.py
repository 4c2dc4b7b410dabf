"""The feeds in `examples/` are sound, and each example query finds what it is there for."""

from collections import Counter

import pytest
from lxml import etree

from feeds.documents import Document
from feeds.tail import read_documents
from tests.oracle.evaluation import evaluate
from tests.support.places import ROOT
from xscl.parser import parse_script

EXAMPLES = ROOT / "examples"
SUBSCRIBED = [outline.get("xmlUrl") for outline in etree.parse(EXAMPLES / "feeds.opml").iter("outline")]


@pytest.fixture(scope="module")
def documents():
    return list(read_documents([EXAMPLES / "feeds"], feeds="item"))


def test_every_entry_is_a_document_of_a_feed_that_the_opml_file_names(documents):
    assert all(isinstance(document, Document) for document in documents)
    sources = Counter(document.id.split(" ")[0] for document in documents)
    assert sources.keys() == {address for address in SUBSCRIBED if address is not None}
    assert len({document.id for document in documents}) == len(documents) == 43


def test_some_entries_have_equal_times_and_all_are_past(documents):
    times = Counter(document.t0 for document in documents)
    assert max(times) < 1_760_000_000_000_000
    assert max(times.values()) > 1


def test_every_example_query_has_something_to_find(documents):
    found = Counter(row.query for row in evaluate(parse_script((EXAMPLES / "stories.xscl").read_text()), documents))
    assert found == {"same_story": 2, "retitled": 4, "mended": 3, "incident": 1}
