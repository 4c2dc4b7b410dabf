"""What did not come in a crawl of real feeds, against a plain program: MMQJP_TESTS_CRAWL names a directory of drops."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest
from lxml import etree

from feeds.documents import Document
from feeds.tail import read_documents
from mmqjp.engine import Session

CRAWL = os.environ.get("MMQJP_TESTS_CRAWL", "")
DAY = 86_400_000_000

pytestmark = pytest.mark.skipif(not CRAWL, reason="MMQJP_TESTS_CRAWL names no crawl")

SCRIPT = """
S//item->a[./channel_url->c1] NOT FOLLOWED BY {c1 = c2, 21 d} S//item->b[./channel_url->c2] PUBLISH silent;
S//item->a[./title->t1] NOT PRECEDED BY {lower-case(t1) = lower-case(t2), 7 d} S//item->b[./title->t2] PUBLISH first
"""


def values(documents: list[Document], name: str) -> dict[str, list[tuple[int, str]]]:
    """When documents came, and their ids, by each value of an element."""
    found = defaultdict(list)
    for document in documents:
        root = etree.fromstring(document.xml)
        for element in {str(one.xpath("string()")) for one in root.iter(name)}:
            found[element].append((document.t0, document.id))
    return found


def test_what_fell_silent_and_what_is_the_first_of_its_kind():
    documents = [one for one in read_documents([Path(CRAWL)], feeds="item") if isinstance(one, Document)]
    documents = list({one.id: one for one in reversed(documents)}.values())
    silent = {
        id
        for some in values(documents, "channel_url").values()
        for time, id in some
        if not any(time < other <= time + 21 * DAY for other, _ in some)
    }
    by_title: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for title, some in values(documents, "title").items():
        by_title[title.lower()] += some
    first = {
        id
        for some in by_title.values()
        for time, id in some
        if not any(time - 7 * DAY <= other < time for other, _ in some)
    }
    assert silent and first and len(first) < len(documents)
    with Session("duckdb", quiet=True) as engine:
        engine.subscribe(SCRIPT)
        for start in range(0, len(documents), 500):
            engine.process(documents[start : start + 500])
        engine.finish()
        found: dict[str, set[str]] = defaultdict(set)
        for output in engine.outputs():
            found[output.query].add(output.documents[0])
    assert found["silent"] == silent
    assert found["first"] == first
