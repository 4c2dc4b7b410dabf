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
from tests.oracle.cases import answers, cases
from tests.oracle.match import Matcher, Node, Tree
from tests.oracle.values import number_text
from xscl.algebra.values import And, Expr, Rel, Step
from xscl.printer import to_xscl
from xscl.syntax import Block


@pytest.mark.parametrize(("script", "xml", "expected"), cases("blocks"))
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
