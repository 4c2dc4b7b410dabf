"""The oracle's pattern matching against hand-checked cases, and against libxml2's XPath on random patterns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from lxml import etree

from tests.generate.blocks import BlockMaker
from tests.generate.documents import NAMESPACE, document_xml
from tests.oracle.cases import answers
from tests.oracle.match import Matcher, Node, Tree
from tests.oracle.values import number_text
from xscl.algebra.values import And, Expr, Rel, Step
from xscl.printer import to_xscl
from xscl.syntax import Block

ONE_BLOCK = [
    # script, document, nodes of the outputs
    ("/a", "<a><a/></a>", ["left=0"]),
    ("//a", "<a><a/></a>", ["left=0", "left=1"]),
    ("/b", "<a><b/></a>", []),
    ("S", "<a><b/></a>", ["left=0"]),
    ("S->x", "<a><b/></a>", ["x=0"]),
    ("T", "<a/>", []),
    ("//a//a", "<a><b><a/></b></a>", ["left=2"]),
    ("//a//a", "<a><a><a/></a></a>", ["left=1", "left=2"]),
    ("/a/*/a", "<a><b><a/></b><a/></a>", ["left=2"]),
    ("/@k", '<a k="1"/>', []),
    ("//@k", '<a k="1"><b m="" k="2"/></a>', ["left=0/@k", "left=1/@k"]),
    ("//a//@k", '<a k="1"><b k="2"/></a>', ["left=0/@k", "left=1/@k"]),
    ("//b//@*", '<a k="1"><b k="2"><c m="3"/></b></a>', ["left=1/@k", "left=2/@m"]),
    ("//a/@k", '<a k="1"><b k="2"/></a>', ["left=0/@k"]),
    # names and namespaces
    ("//a", '<a xmlns="u:x"/>', []),
    ("//*:a", '<a xmlns="u:x"><a xmlns=""/><b/></a>', ["left=0", "left=1"]),
    ("//*", '<a xmlns="u:x"/>', ["left=0"]),
    ('DECLARE NAMESPACE p = "u:x"; //p:a', '<r><a/><q:a xmlns:q="u:x"/><a xmlns="u:y"/></r>', ["left=2"]),
    ('DECLARE NAMESPACE p = "u:x"; //p:*', '<r><a/><q:b xmlns:q="u:x"/></r>', ["left=2"]),
    ('DECLARE NAMESPACE p = "u:x"; //@p:k', '<r xmlns:q="u:x" k="1" q:k="2"/>', ["left=0/@{u:x}k"]),
    ("//@k", '<a xmlns="u:x" xmlns:q="u:x" k="1" q:k="2"/>', ["left=0/@k"]),
    # filters exist or bind; SELECT * names roots only
    ("//a[./b]", "<a><b/><b/></a>", ["left=0"]),
    ("//a->x[./b->y]", "<a><b/><b/></a>", ["x=0"]),
    ("SELECT y FROM //a->x[./b->y]", "<a><b/><b/></a>", ["y=1", "y=2"]),
    ("SELECT x FROM //a->x[./b->y]", "<a><b/><b/></a>", ["x=0"]),
    ("SELECT y, z FROM //a[./b->y][./b->z]", "<a><b/><b/></a>", ["y=1 z=1", "y=1 z=2", "y=2 z=1", "y=2 z=2"]),
    ("SELECT y FROM //a[b->y and c = 1]", "<r><a><b/><c>1.0</c></a><a><b/><c>2</c></a></r>", ["y=2"]),
    ("SELECT y FROM //a[.//b->y[./c]]", "<a><b/><d><b><c/></b></d></a>", ["y=3"]),
    ("SELECT x, y FROM //a->x[./b[./c->y]]", "<a><b/><b><c/><c/></b></a>", ["x=0 y=3", "x=0 y=4"]),
    ("SELECT x, y FROM //a->x/b->y", "<a><a><b/></a><b/></a>", ["x=0 y=3", "x=1 y=2"]),
    ("SELECT x, y FROM //a->x//b->y", "<a><a><b/></a></a>", ["x=0 y=2", "x=1 y=2"]),
    ("//a[@k]", '<r><a/><a k=""/></r>', ["left=2"]),
    ("//@k[. = '1']", '<r k="1"><a k="2"/></r>', ["left=0/@k"]),
    ("//b[.]", "<a><b/></a>", ["left=1"]),
    ("//a[not(./b)]", "<a><b/><a/></a>", ["left=2"]),
    ("//a[./b or ./c]", "<r><a><b/></a><a><c/></a><a/></r>", ["left=1", "left=3"]),
    ("//a[./b and not(./c or ./d)]", "<r><a><b/><d/></a><a><b/></a></r>", ["left=4"]),
    # comparisons by XPath 1.0
    ('//b[. = "1"]', "<a><b>1</b><b>1.0</b></a>", ["left=1"]),
    ("//b[. = 1]", "<a><b>1</b><b>1.0</b><b> 1 </b><b>+1</b><b>x</b></a>", ["left=1", "left=2", "left=3"]),
    ("//b[. > '9']", "<a><b>10</b><b>8</b><b>x</b></a>", ["left=1"]),
    ("//b[. < 1]", "<a><b>x</b><b></b><b>-1</b></a>", ["left=3"]),
    ("//b[. != 1]", "<a><b>1.0</b><b>x</b></a>", ["left=2"]),
    ("//a[b != '1']", "<r><a><b>1</b><b>2</b></a><a><b>1</b></a><a/></r>", ["left=1"]),
    ("//a[not(b = '1')]", "<r><a><b>1</b><b>2</b></a><a/></r>", ["left=4"]),
    ("//a[b = c]", "<r><a><b>1</b><b>2</b><c>2</c></a><a><b>1</b><c>1.0</c></a><a/></r>", ["left=1"]),
    ("//a[b < c]", "<r><a><b>9</b><b>2</b><c>3</c></a><a><b>9</b><c>3</c></a></r>", ["left=1"]),
    # functions of filters: the string of a node set is its first node's
    ("//a[contains(b, 'x')]", "<r><a><b>yx</b></a><a><b>y</b><b>x</b></a><a/></r>", ["left=1"]),
    ("//a[starts-with(., 'x')]", "<r><a>xy</a><a>yx</a></r>", ["left=1"]),
    ("//a[ends-with(., 'x')]", "<r><a>xy</a><a>yx</a></r>", ["left=2"]),
    ("//a[matches(., '^[0-9]+$')]", "<r><a>12</a><a>1x</a><a/></r>", ["left=1"]),
    ("//a[count(b) > 1]", "<r><a><b/></a><a><b/><b/></a></r>", ["left=3"]),
    ("//a[count(.//b//c) = 1]", "<r><a><b><b><c/></b></b></a></r>", ["left=1"]),
    ("//a[string-length(.) = 2]", "<r><a>xy</a><a>x</a></r>", ["left=1"]),
    ("//a[normalize-space(b) = 'x y']", "<r><a><b>\n x  y </b></a><a><b>xy</b></a></r>", ["left=1"]),
    ("//a[number(b) = 1]", "<r><a><b>1.0</b><b>2</b></a><a><b>2</b><b>1</b></a></r>", ["left=1"]),
    ("//a[string(b) = '']", "<r><a/><a><b/></a><a><b>1</b></a></r>", ["left=1", "left=2"]),
    # string values
    ("//a[. = 'xyz']", "<r><a>x<b>y</b>z</a><a>x<!-- ! -->y<?p i?><![CDATA[z]]></a></r>", ["left=1", "left=3"]),
    ("//b", "<a><!-- one --><?two?><b/></a>", ["left=1"]),
    ("//a[. = 'x&y']", "<!DOCTYPE r [<!ENTITY e 'x&#38;amp;y'>]><r><a>&e;</a></r>", ["left=1"]),
    # SELECT
    ("SELECT x/c AS c FROM //a->x", "<r><a><c/><c/></a><a/></r>", ["c=2", "c=3"]),
    ("SELECT x, x/@k AS k FROM //a->x", '<r><a k="1"/><a/></r>', ["x=1 k=1/@k"]),
    ("SELECT lower-case(x/b) AS b FROM //a->x", "<a><b>X</b></a>", ["b=1"]),
    ("SELECT <o>{x/b}{x}{x/b}</o> FROM //a->x", "<a><b/><b/></a>", ["x/b=1 x=0", "x/b=2 x=0"]),
    ("SELECT <o>{x (: the root :)}</o> FROM //a->x", "<a/>", ["x=0"]),
    ("SELECT <o/> FROM //a", "<a><a/></a>", [""]),
    ("SELECT 'k' AS c, x FROM //a->x", "<a/>", ["x=0"]),
]


@pytest.mark.parametrize(("script", "xml", "expected"), ONE_BLOCK)
def test_one_block(script: str, xml: str, expected: list[str]) -> None:
    assert answers(script, f"d1@0 {xml}") == [f"d1 | {nodes}" for nodes in expected]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (1.5, "1.5"),
        (1e21, "1000000000000000000000"),
        (1e-7, "0.0000001"),
        (float("nan"), "NaN"),
    ],
)
def test_numbers_as_xpath_writes_them(value: float, text: str) -> None:
    assert number_text(value) == text


# ---------------------------------------------------------------- against another implementation


def _unbound(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same path without its bindings, so that it is XPath 1.0."""
    return tuple(replace(s, var=None, filters=tuple(map(_unbound_filter, s.filters))) for s in steps)


def _unbound_filter(expr: Expr) -> Expr:
    match expr:
        case Rel():
            return replace(expr, steps=_unbound(expr.steps))
        case And():
            return replace(expr, args=tuple(map(_unbound_filter, expr.args)))
    return expr


NOT_XPATH = (
    "*:",
    "ends-with",
    "matches",
    "date(",
    "lower-case(",
    "upper-case(",
    "canonical-url(",
    "host(",
    "domain(",
    "words(",
    "year-month(",
    '"2026-',
    '"Thu',
)
"""What XPath 1.0 does not have in a block: names, functions, and comparisons with times."""


@st.composite
def xpath_blocks(draw: st.DrawFn) -> tuple[Block, list[bytes]]:
    """A block that is XPath 1.0, the document from which it was derived, and another document."""
    rng = draw(st.randoms(use_true_random=False))
    samples = [document_xml(rng), document_xml(rng)]
    block, _ = BlockMaker(rng, namespaced=True).block("S", samples[0])
    block = replace(block, steps=_unbound(block.steps))
    assume(not any(word in to_xscl(block) for word in NOT_XPATH))
    return block, samples


@given(xpath_blocks())
def test_matching_agrees_with_libxml2(case: tuple[Block, list[bytes]]) -> None:
    block, samples = case
    xpath = to_xscl(block).removeprefix("S")
    for xml in samples:
        tree = Tree(xml)
        found = {node for node, _ in Matcher(tree, {"p": NAMESPACE}).embeddings(None, block.steps)}
        selected = etree.ElementTree(tree.elements[0]).xpath(xpath, namespaces={"p": NAMESPACE})
        numbers = {element: number for number, element in enumerate(tree.elements)}
        assert isinstance(selected, list)
        assert found == {_node(node, numbers) for node in selected}


def _node(selected: Any, numbers: dict[etree._Element, int]) -> Node:
    """What lxml's XPath selects: an element, or the value of an attribute with its owner."""
    if isinstance(selected, etree._Element):
        return Node(numbers[selected])
    return Node(numbers[selected.getparent()], selected.attrname)
