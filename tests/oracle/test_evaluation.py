"""The oracle against hand-checked cases: joins, published streams, output documents."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from lxml import etree

from tests.generate.blocks import BlockMaker
from tests.generate.documents import NAMESPACE, SECOND, document_xml
from tests.oracle.cases import answers, arriving, brief, cases, run
from tests.oracle.course import Course
from tests.oracle.evaluation import comparable
from tests.oracle.match import Matcher, Node, Tree
from tests.oracle.query_answers import evaluate_in_steps
from xscl.algebra.values import And, Expr, Rel, Step
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Block


@pytest.mark.parametrize(("script", "documents", "expected"), cases("joins"))
def test_joins(script: str, documents: str, expected: list[str]) -> None:
    assert answers(script, documents) == expected


@pytest.mark.parametrize(("script", "documents", "expected"), cases("published"))
def test_published_streams(script: str, documents: str, expected: list[str]) -> None:
    assert brief(run(script, documents)) == expected


@pytest.mark.parametrize(("script", "items", "expected"), cases("belated"))
def test_belated_documents(script: str, items: str, expected: list[str]) -> None:
    rows = evaluate_in_steps(parse_script(script), [arriving(items)], Course(2 * SECOND), finish=True)
    assert brief(rows) == expected


@pytest.mark.parametrize(("script", "documents", "expected"), cases("documents"))
def test_output_documents(script: str, documents: str, expected: list[str]) -> None:
    rows = run(script, documents)
    canonical = [etree.canonicalize(xml, rewrite_prefixes=True) for xml in (*(row.xml for row in rows), *expected)]
    assert canonical == [canonical[-1]] * 2


def test_comparable_is_equal_for_the_same_outputs_only() -> None:
    rows = run("//a->x", "d1@0 <r><a/><a xmlns:p='u:x' p:k='1'/></r>")
    spelt = [replace(row, xml=row.xml.replace("p:k", "q:k").replace("xmlns:p", "xmlns:q")) for row in reversed(rows)]
    assert comparable(rows) == comparable(spelt)
    assert comparable(rows) != comparable(rows[:1])
    assert comparable(rows) != comparable([*rows, rows[0]])
    assert comparable(rows) != comparable([rows[0], replace(rows[1], xml=rows[0].xml)])


@pytest.mark.parametrize(("script", "xml", "expected"), cases("blocks"))
def test_one_block(script: str, xml: str, expected: list[str]) -> None:
    assert answers(script, f"d1@0 {xml}") == [f"d1 | {nodes}" for nodes in expected]


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


NOT_XPATH = re.compile(
    r"\*:|ends-with|matches|has-(words|phrase)|(date|(low|upp)er-case|canonical-url|host|domain|words|year-month)\("
    r'|"2026-|"Thu'
)
"""What XPath 1.0 does not have in a block: names, functions, and comparisons with times."""


@st.composite
def xpath_blocks(draw: st.DrawFn) -> tuple[Block, list[bytes]]:
    """A block that is XPath 1.0, the document from which it was derived, and another document."""
    rng = draw(st.randoms(use_true_random=False))
    samples = [document_xml(rng), document_xml(rng)]
    block, _ = BlockMaker(rng, namespaced=True).block("S", samples[0])
    block = replace(block, steps=_unbound(block.steps))
    assume(not NOT_XPATH.search(to_xscl(block)))
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
