"""Documents as they are shown: numbers of elements, shapes, and text that is fit for a terminal."""

from __future__ import annotations

import re
from random import Random

import pytest
from lxml import etree

from mmqjp.explain.automaton import Shapes, document_shape
from mmqjp.explain.svg import SHORT_LINES, document_lines
from tests.generate.documents import document_xml
from tests.generate.seeds import seeds
from tests.oracle.match import Tree
from xpath_stage.documents import parse_document


def shown(xml: str, *, full: bool = True) -> list[str]:
    return [line.plain for line in document_lines(parse_document(xml.encode()).root, full=full)]


def test_elements_have_their_numbers_and_texts_stand_in_their_places():
    assert shown("<a k='1'> <b>x</b> tail <c/><d>t<e>u</e>v</d>\n</a>") == [
        '0  <a k="1">',
        "1    <b>x</b>",
        "      tail ",
        "2    <c/>",
        "3    <d>",
        "       t",
        "4      <e>u</e>",
        "       v",
        "     </d>",
        "   </a>",
    ]


def test_namespaces_are_declared_where_they_begin():
    assert shown('<p:a xmlns:p="urn:p" xmlns="urn:d" p:k="1"><b xml:lang="en"/><c xmlns=""/></p:a>') == [
        '0  <p:a xmlns:p="urn:p" xmlns="urn:d" p:k="1">',
        '1    <b xml:lang="en"/>',
        '2    <c xmlns=""/>',
        "   </p:a>",
    ]


@pytest.mark.parametrize("seed", seeds(5, 1000))
def test_numbers_and_names_are_those_of_brute_force(seed: int):
    xml = document_xml(Random(seed), 30)
    lines = shown(xml.decode())
    found = [(int(m[1]), m[2]) for line in lines if (m := re.match(r" *([0-9]+)  +<(?:\w+:)?(\w+)", line))]
    elements = Tree(xml).elements
    assert found == [(number, etree.QName(element).localname) for number, element in enumerate(elements)]


@pytest.mark.parametrize("seed", seeds(2, 500))
def test_documents_have_one_shape_if_they_have_the_same_paths(seed: int):
    rng = Random(seed)
    documents = [document_xml(rng, 4) for _ in range(30)]
    paths = [all_paths(xml) for xml in documents]
    shapes = [document_shape(parse_document(xml).root) for xml in documents]
    for one, of_one in zip(paths, shapes, strict=True):
        for other, of_other in zip(paths, shapes, strict=True):
            assert (one == other) is (of_one == of_other)
    counted = Shapes()
    numbers = [counted.number(parse_document(xml).root) for xml in documents]
    assert sum(counted.met.values()) == 30 and len(set(numbers)) == len(set(shapes))


def all_paths(xml: bytes) -> frozenset[tuple[str, ...]]:
    tree = Tree(xml)
    found: set[tuple[str, ...]] = set()
    for element in tree.elements:
        path = tuple(str(up.tag) for up in (*reversed(list(element.iterancestors())), element))
        found.add(path)
        found.update((*path, "@" + str(name)) for name in element.attrib)
    return frozenset(found)


def test_what_could_change_a_terminal_is_replaced():
    lines = shown("<a k='&#x9b;1m&#10;'>\u009b31mred\u202e &lt;b&gt; &amp; line&#10;tab&#9;</a>")
    assert lines == ['0  <a k="\ufffd1m↵">\ufffd31mred\ufffd &lt;b&gt; &amp; line↵tab⇥</a>']


def test_long_texts_and_documents_are_shortened_unless_asked_for_in_full():
    xml: str = f"<a>{'<b>y</b>' * 200}</a>"
    short, long = shown(xml, full=False), shown(xml)
    assert len(long) == 202
    assert len(short) == SHORT_LINES + 1 and short[-1].strip() == "… the rest is left out"
    assert shown(f"<a>{'x' * 1234}</a>", full=False) == [f"0  <a>{'x' * 160}… (1,234 characters)</a>"]


def test_a_deep_document_is_shown():
    assert len(shown("<a>" * 200 + "</a>" * 200)) == 399
