"""Random small documents and document sets, made so that queries over them often match.

Everything is drawn from a `random.Random`: a seeded one for large cases, hypothesis' own for shrinkable ones
(`tests.generate.strategies`). The draws are written so that smaller ones mean simpler results.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from lxml import etree

from feeds.documents import Document

NAMESPACE = "u:x"
ROOT_TAGS = "aaaaaaaabbcd"
INNER_TAGS = "bbbbbbbcccad"
VALUES = ("1",) * 20 + ("2",) * 8 + ("u",) * 4 + ("10", "1.0", "", " ", " 1 ", "U", "x&y")
URLS = ("https://ex.org/p", "http://Ex.org/p/?utm_source=z", "http://ex.org:80/p#top", "https://www.ex.org/q?b=2&a=1")
TIMES = ("2026-07-16", "2026-07-16T08:30:00Z", "Thu, 16 Jul 2026 10:30:00 +0200", "2026-07-17T00:00:00.000001")
STREAMS = ("S",) * 6 + ("T",)
PUBLISHED = ("hits", "alerts", "news")
START = 1_136_214_245_000_000
SECOND = 1_000_000


def chance(rng: Random, percent: int) -> bool:
    return rng.randrange(100) >= 100 - percent


def value(rng: Random) -> str:
    """A text or attribute value: few, so that equal ones are common."""
    if chance(rng, 4):
        return rng.choice(URLS)
    return rng.choice(TIMES) if chance(rng, 4) else rng.choice(VALUES)


def _name(rng: Random, local: str, percent_namespaced: int) -> str:
    return f"{{{NAMESPACE}}}{local}" if chance(rng, percent_namespaced) else local


def document_xml(rng: Random, max_elements: int = 12, root: str | None = None) -> bytes:
    """A document of 1 to `max_elements` elements: nested and repeated labels, attributes, some mixed content."""
    top = etree.Element(root or _name(rng, rng.choice(ROOT_TAGS), 4))
    elements = [top]
    for _ in range(rng.choice((max_elements - 1, max_elements * 2 // 3, rng.randrange(max_elements)))):
        # Most elements are the root's children: records, with something deep here and there.
        parent = rng.choice(elements) if chance(rng, 35) else top
        elements.append(etree.SubElement(parent, _name(rng, rng.choice(INNER_TAGS), 4)))
    for element in elements:
        if chance(rng, 92 if not len(element) else 12):
            element.text = value(rng)
        if element is not top and chance(rng, 6):
            element.tail = value(rng)
        for attribute, percent in (("k", 40), ("m", 15)):
            if chance(rng, percent):
                element.set(_name(rng, attribute, 8), value(rng))
        if chance(rng, 3):
            element.insert(0, etree.Comment("1"))
    return etree.tostring(top)


def _changed(rng: Random, xml: bytes | str) -> bytes:
    """A document of the same shape with some other values, as a stream's documents have."""
    top = etree.fromstring(xml)
    for element in top.iter(etree.Element):
        if element.text and chance(rng, 30):
            element.text = value(rng)
    return etree.tostring(top)


def document_set(
    rng: Random, n_documents: int, max_elements: int = 12, streams: Sequence[str] = STREAMS, spread: int = 8
) -> list[Document]:
    """Documents with close and often equal times over about `spread` seconds, some intervals, a rare repeated id.

    A few documents arrive from outside on a stream that queries may PUBLISH.
    """
    documents: list[Document] = []
    for number in range(1, n_documents + 1):
        published = chance(rng, 5)
        stream = rng.choice(PUBLISHED) if published else rng.choice(streams)
        identity = rng.choice(documents).id if documents and chance(rng, 4) else f"d{number}"
        t0 = START + rng.randint(0, spread) * SECOND + rng.choice((0, 0, 0, 0, 1))
        t1 = t0 + rng.randint(0, 2) * SECOND if chance(rng, 8) else t0
        if documents and chance(rng, 30):
            xml = _changed(rng, rng.choice(documents).xml)
        else:
            xml = document_xml(rng, max_elements, "match" if published else None)
        documents.append(Document(identity, xml, stream, (t0, t1)))
    return documents
