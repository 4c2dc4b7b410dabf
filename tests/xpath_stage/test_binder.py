"""The binder: what it binds is what the oracle does, and nodes that are given are held fixed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.generate.blocks import BlockMaker
from tests.generate.documents import NAMESPACE, document_xml
from tests.oracle.match import Matcher, Node, Tree
from xpath_stage.binder import bindings
from xpath_stage.documents import ParsedDocument, parse_document
from xscl.algebra.trees import PatternNode
from xscl.lower import PatternBuilder
from xscl.printer import to_xscl


@given(st.randoms(use_true_random=False), st.booleans())
def test_the_binder_agrees_with_the_oracle(rng: Random, namespaced: bool):
    xml = document_xml(rng, 12)
    block, names = BlockMaker(rng, namespaced).block("S", xml)
    other = document_xml(rng, 12)
    namespaces = {"p": NAMESPACE}
    pattern = PatternBuilder(namespaces).path(block.steps)
    variables = frozenset(name.var for name in names)
    for text in (xml, other):
        document, tree = parse_document(text), Tree(text)
        expected = {
            tuple(sorted(bound)) for _, bound in Matcher(tree, namespaces, variables).embeddings(None, block.steps)
        }
        found = {
            tuple(sorted((var, as_oracle(document, node)) for var, node in bound))
            for bound in bindings(pattern, document)
        }
        assert found == {tuple(sorted(bound, key=lambda pair: pair[0])) for bound in expected}, to_xscl(block)


@given(st.randoms(use_true_random=False))
def test_fixing_nodes_chooses_among_the_bindings(rng: Random):
    xml = document_xml(rng, 12)
    block, _ = BlockMaker(rng, False).block("S", xml)
    pattern, document = PatternBuilder({}).path(block.steps), parse_document(xml)
    found = bindings(pattern, document)
    paths = dict(variable_paths(pattern, ()))
    chosen = rng.sample(sorted(paths), rng.randint(1, len(paths)))
    somewhere = [node for bound in sorted(found) for node in bound] or [("", (0, 0))]
    fixed = {var: dict(rng.choice(sorted(found))).get(var, (0, 0)) if found else (0, 0) for var in chosen}
    fixed[chosen[0]] = rng.choice(somewhere)[1]
    expected = {bound for bound in found if fixed.items() <= dict(bound).items()}
    assert bindings(pattern, document, {paths[var]: node for var, node in fixed.items()}) == expected


def variable_paths(pattern: PatternNode, path: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    if pattern.var:
        yield pattern.var, path
    for i, child in enumerate(pattern.children):
        yield from variable_paths(child, (*path, i))


def as_oracle(document: ParsedDocument, node: tuple[int, int]) -> Node:
    element, place = node
    return Node(element, document.attribute(element, place)[0] if place else None)
