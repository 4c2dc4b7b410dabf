from collections import defaultdict
from random import Random

import pytest
from lxml import etree

from common.tools import Memo
from tests.generate.documents import document_xml
from tests.generate.seeds import seeds
from tests.support.fuzz_stage1 import QUERIES, mutated
from tests.support.witnessed import Stage
from xpath_stage import documents as documents_module
from xpath_stage.documents import (
    MOST_TAGS,
    PAUSE,
    RUN,
    TRIAL,
    ElementColumns,
    Outlines,
    ParsedDocument,
    StreamDocument,
    parse_document,
    parse_documents,
    skeleton_of,
)

TEXTS = ("", " ", *"1<>&", "2 ", "&lt;", "&amp;amp;", "]]>", '"', "'", "='", "a\r\nb\tc", "\u00e9", "\U0001f600")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes an outline of the first document that has it."""
    monkeypatch.setattr(documents_module, "RUN", 1)


def parsed(xmls: list[bytes]) -> list[ParsedDocument]:
    """Those that can be read, parsed together where possible."""
    return [one for one in parse_documents(xmls) if isinstance(one, ParsedDocument)]


def columns(*, attributes: bool = False, values: bool = False) -> ElementColumns:
    owned = defaultdict[str, bool](lambda: True) if attributes else None
    return ElementColumns(owned, defaultdict(lambda: values), Memo(str, 1_000), keeps_trees=False)


def check(documents: list[ParsedDocument], *, attributes: bool = False, values: bool = False) -> int:
    """Holds what columns read by outlines to what they read from trees. Returns how many documents had an outline."""
    known, count = Outlines(), 0
    ours, theirs = (columns(attributes=attributes, values=values) for _ in range(2))
    for document in documents:
        theirs.hold(document)
        if known.hold("S", document, ours):
            count += 1
            assert document.outline is not None
            assert (ours.tags, ours.counts, ours.owners) == (theirs.tags, theirs.counts, theirs.owners)
            leaves = [(text or "") for text, children in zip(theirs.texts, theirs.counts, strict=True) if not children]
            assert [text for text, children in zip(ours.texts, ours.counts, strict=True) if not children] == leaves
            assert document.parent == parse_document(document.xml().encode(), trusted=True).parent
    return count


def rewritten(rng: Random, xml: bytes) -> bytes:
    """The document with other texts and values of attributes, and perhaps another namespace or name."""
    top = etree.fromstring(xml)
    for element in top.iter():
        if element.text is None or rng.random() < 0.8:
            element.text = rng.choice(TEXTS)
        element.tail = rng.choice(TEXTS) if element is not top and rng.random() < 0.2 else element.tail
        for name in element.attrib:
            element.set(name, rng.choice(TEXTS))
    written = etree.tostring(top)
    return written.replace(b"u:x", rng.choice((b"u:x", b"u:y", b"u:x='1'"))) if rng.random() < 0.3 else written


def similar(rng: Random, number: int) -> list[bytes]:
    """Documents of which many have the tags of others."""
    models = [document_xml(rng) for _ in range(3)]
    return [rewritten(rng, rng.choice(models)) for _ in range(number)]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_documents_with_the_tags_of_others_and_mutated_ones(seed: int):
    rng = Random(seed)
    assert sum(check(parsed(similar(rng, 30))) for _ in range(10)) > 50
    for number in range(40):
        check(parsed(similar(rng, 4)), attributes=number % 2 > 0, values=number % 4 > 1)
    check(parsed([mutated(rng) for _ in range(500)]))


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_what_is_read_by_outlines_binds_as_before(seed: int):
    rng = Random(seed)
    xmls = similar(rng, 60)
    stages = Stage(), Stage()
    for stage in stages:
        stage.add(QUERIES[1])
    for _ in range(3):
        together, alone = parsed(xmls), [parse_document(xml) for xml in xmls]
        found = [
            stage.named(stage.evaluate([StreamDocument(i, "S", i, i, one) for i, one in enumerate(documents)]))
            for stage, documents in zip(stages, (together, alone), strict=True)
        ]
        assert found[0] == found[1]
        for stage in stages:
            stage.remove(0)
        xmls = [rewritten(rng, xml) for xml in xmls]


def flat(number: int, tag: str = "b") -> bytes:
    return f"<a><{tag}>{number}</{tag}><c k='{number}'/></a>".encode()


def test_an_outline_is_made_when_enough_documents_in_a_row_had_it():
    forty = parsed([flat(number) for number in range(40)])
    assert check(forty) == 40 - RUN + 1
    assert check(parsed([flat(number, "bc"[number % 2]) for number in range(40)])) == 0
    # Those that were parsed alone have none, and those of which attributes matter, or values of inner elements.
    assert check([parse_document(flat(number)) for number in range(40)]) == 0
    assert check(forty, attributes=True) == check(forty, values=True) == 0
    # None is looked for while few documents have the one before.
    mixed = parsed([flat(number, f"t{number % 10}") for number in range(TRIAL)])
    assert check(mixed + parsed([flat(number) for number in range(PAUSE + 40)])) == 40 - RUN + 1


@pytest.mark.usefixtures("at_once")
def test_a_namespace_is_part_of_the_skeleton_and_large_documents_have_none():
    one, other = (f'<a xmlns="u:{uri}" k="{uri}">1<b/></a>' for uri in "xy")
    assert skeleton_of(one) != skeleton_of(other)
    assert skeleton_of(one) == skeleton_of(one.replace('k="x"', 'k="xmlns=&quot;"'))
    xmls = [b"<a>" + b"<b/>" * number + b"</a>" for number in (MOST_TAGS - 2, MOST_TAGS - 1)] * 2
    assert check(parsed(xmls)) == 2


def test_each_stream_has_its_own():
    known, ours = Outlines(), columns()
    documents = [(f"S{number % 2}", parsed([flat(number, "bc"[number % 2])] * 2)[0]) for number in range(40)]
    assert sum(known.hold(stream, document, ours) for stream, document in documents) == 40 - 2 * (RUN - 1)
