from collections.abc import Iterator
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from feeds.documents import Document
from tests.generate.seeds import examples
from tests.generate.strategies import cases
from tests.support.conjuncts import conjuncts_of
from xpath_stage.binder import Node, PatternPath, PreparedNode, SideBinder, SideBinders, each_binding
from xpath_stage.documents import ParsedDocument, parse_document
from xscl.algebra.joins import PatternNode
from xscl.syntax import Script


def variable_paths(node: PatternNode, path: PatternPath = ()) -> Iterator[tuple[str, PatternPath]]:
    if node.var:
        yield node.var, path
    for place, child in enumerate(node.children):
        yield from variable_paths(child, (*path, place))


def found(binder: SideBinder, document: ParsedDocument, nodes: tuple[Node, ...]) -> tuple[list[tuple[Node, ...]], int]:
    steps: list[int] = []
    return binder.find(document, nodes, steps.append), sum(steps)


@given(st.lists(cases(max_queries=4, max_elements=12), min_size=1, max_size=3), st.randoms(use_true_random=False))
@examples(20, 2_000)
def test_bindings_by_shape_are_those_of_a_search_and_cost_the_same_steps(
    given: list[tuple[Script, list[Document]]], rng: Random
):
    patterns = [side.pattern for script, _ in given for one in conjuncts_of(script) for side in one.sides()]
    documents = [parse_document(document.xml_bytes()) for _, some in given for document in some]
    binders = SideBinders()
    for pattern in patterns:
        paths = dict(variable_paths(pattern))
        fixed = {var: path for var, path in paths.items() if rng.random() < 0.5}
        binder = binders.of(pattern, tuple(fixed.values()))
        for document in documents:
            everything = list(map(dict, each_binding(PreparedNode(pattern), document, {})))
            nowhere = tuple((rng.randrange(len(document.elements)), 0) for _ in fixed)
            choices = {nowhere, *(tuple(one[var] for var in fixed) for one in everything)}
            for nodes in sorted(choices):
                given_nodes = dict(zip(fixed.values(), nodes, strict=True))
                expected = [
                    tuple(n for _, n in one) for one in each_binding(PreparedNode(pattern), document, given_nodes)
                ]
                got, steps = found(binder, document, nodes)
                assert sorted(got) == sorted(expected)
                assert not got or got == binder.find(document, nodes, lambda _: None, has_some=True)
                fresh = SideBinders().of(pattern, tuple(fixed.values()))
                assert (got, steps) == found(fresh, document, nodes)
