"""Atom documents judged by others: the schema of RFC 4287, what RFC 5005 adds, feedparser, and our own reader."""

from functools import cache

import feedparser
import rnc2rng
from lxml import etree

from tests.support.feed_texts import entries_of
from tests.support.places import ROOT

ATOM, HISTORY = "{http://www.w3.org/2005/Atom}", "{http://purl.org/syndication/history/1.0}"


@cache
def schema() -> etree.RelaxNG:
    """The schema of RFC 4287, appendix B."""
    text = rnc2rng.dumps(rnc2rng.load(str(ROOT / "tests/data/atom.rnc")))
    return etree.RelaxNG(etree.fromstring(text.replace(' xmlns:local=""', "").encode()))  # a name that XML forbids


def validated(document: bytes) -> etree._Element:
    """The root of a feed that is valid, apart from what a schema cannot say: that is checked here."""
    root = etree.fromstring(document)
    schema().assertValid(root)
    entries = root.findall(f"{ATOM}entry")
    assert root.find(f"{ATOM}author") is not None or all(entry.find(f"{ATOM}author") is not None for entry in entries)
    ids = [entry.findtext(f"{ATOM}id") for entry in entries]
    assert len(set(ids)) == len(ids)
    for entry in entries:
        assert len(entry.findall(f"{ATOM}link[@rel='alternate']")) <= 1
        assert [content.get("type") for content in entry.iter(f"{ATOM}content")] == ["html"]
    return root


def link(root: etree._Element, rel: str) -> str | None:
    found = root.find(f"{ATOM}link[@rel='{rel}']")
    return None if found is None else found.get("href")


def is_archive(root: etree._Element) -> bool:
    return root.find(f"{HISTORY}archive") is not None


def ids_of(document: bytes) -> list[str]:
    """The ids of a valid feed's entries, on which feedparser and our own reader agree."""
    root = validated(document)
    ids = [entry.findtext(f"{ATOM}id") or "" for entry in root.findall(f"{ATOM}entry")]
    parsed = feedparser.parse(document)
    assert not parsed.bozo, parsed.get("bozo_exception")
    assert [entry.id for entry in parsed.entries] == ids
    if ids:
        assert [entry.guid for entry in entries_of(document)] == ids
    return ids
