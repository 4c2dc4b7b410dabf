"""Reasons of outputs against brute force: nodes of one joint binding, whose values are equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from mmqjp.engine import Session
from mmqjp.explain.terms import Operand
from mmqjp.present.output_why import why_output
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.bindings import Match, Stored, Value
from tests.oracle.evaluation import Evaluation, mentioned
from tests.oracle.match import Matcher
from tests.oracle.values import apply, text_of
from xscl.algebra.values import VarPath
from xscl.check_expressions import blocks
from xscl.printer import to_xscl
from xscl.syntax import Block, Input, Join, SelectItems, SubQuery

Place = tuple[Stored, int | str]


@pytest.mark.parametrize("seed", seeds(1, 1500, first=14))
def test_the_nodes_are_those_of_a_joint_binding(seed: int):
    check(seed, Counter())


@pytest.mark.soak
def test_the_random_cases_have_joins_chains_and_filters():
    checked = Counter[str]()
    for seed in range(30):
        check(seed, checked)
    assert min(checked[kind] for kind in ("joined", "chain", "filters", "fed")) > 3


def check(seed: int, checked: Counter[str]) -> None:
    script, documents = random_case(seed, 4, 10)
    evaluation = Evaluation(script, documents)
    of_query: dict[int, list[Match]] = {}
    with Session("duckdb", max_outputs=None, max_matches=None) as engine:
        engine.subscribe(to_xscl(script))
        engine.process(documents)
        outputs = list(engine.outputs())[:20]
        found = [why_output(lambda sql: engine.question(sql).answer(), output.id) for output in outputs]
    for why in found:
        output, reason = why.match.output, why.match.reason
        assert reason is not None
        index, answer = next(
            (index, one)
            for index, name in enumerate(script.names())
            if name == output.query
            for one in evaluation.outputs(index)
            if one.stored.id == output.id
        )
        query = script.queries[index]
        if index not in of_query:
            of_query[index] = evaluation._matches(query.source, frozenset(mentioned(query)), is_whole=True)
        matches = [match for match in of_query[index] if match.inputs == answer.inputs]
        sources = [source for stored in answer.inputs for source in stored.externals]
        for joined in reason.joined:
            assert value_of(joined.left) == value_of(joined.right)
        operands = [operand for joined in reason.joined for operand in (joined.left, joined.right)]
        assert any(
            all(is_among(operand, sources, match, places) for operand in operands)
            for match in matches
            for places in [set(nodes_of(query.source, match, evaluation))]
        )
        fed = [stored.id for stored in answer.inputs if len(stored.externals) > 1 or stored.id not in dict(sources)]
        assert set(fed) <= {one.id for one in why.fed} <= {stored.id for stored in answer.inputs}
        assert len(reason.timings) == len(answer.inputs) - 1
        for timing in reason.timings:
            assert timing.window is None or timing.distance <= timing.window
            assert timing.op != "FOLLOWED BY" or timing.gap > 0
        checked["joined"] += len(reason.joined)
        checked["chain"] += len(answer.inputs) > 2
        checked["filters"] += len(reason.filters)
        checked["fed"] += len(why.fed)


def value_of(operand: Operand) -> str:
    value = operand.text
    for name in operand.functions:
        value = text_of(apply(name, value))
    return value


def is_among(operand: Operand, sources: list[tuple[str, str]], match: Match, places: set[Place]) -> bool:
    """Whether an operand is a node that the match binds, with the text that this has."""
    assert operand.node is not None
    source = None if operand.document is None else sources[operand.document]
    for stored, label in places:
        if label == operand.node and (source is None or (stored.id, stored.stream) == source):
            element, _, attribute = str(label).partition("/@")
            node = stored.tree.elements[int(element)]
            text = str(node.attrib[attribute]) if attribute else "".join(map(str, node.itertext()))
            if text == operand.text:
                return True
    return False


def nodes_of(source: Input, match: Match, evaluation: Evaluation) -> Iterator[Place]:
    """The nodes that names stand for, and paths on them, anywhere in the joins of a source."""
    paths = {repr(path.steps): path.steps for path in paths_in(source)}
    for value in [*match.visible.values(), *inner_values(source, match, evaluation)]:
        if value.document is None or value.node is None:
            continue
        yield value.document, value.node.label()
        matcher = Matcher(value.document.tree, evaluation._namespaces)
        for steps in paths.values():
            if steps:
                yield from ((value.document, node.label()) for node in matcher.nodes(value.node, steps))


def inner_values(source: Input, match: Match, evaluation: Evaluation) -> Iterator[Value]:
    """The values of all names of the blocks, in the documents of the match."""
    needed = frozenset(mentioned(source))
    for block, stored in zip(blocks(source), match.inputs, strict=True):
        for found in evaluation._in_document(block, needed, stored):
            yield from found.visible.values()


def paths_in(part: object) -> Iterator[VarPath]:
    match part:
        case Join():
            yield from paths_in(part.left)
            yield from paths_in(part.right)
            yield from paths_in(part.pred)
        case SubQuery():
            yield from paths_in(part.source)
            if isinstance(part.select, SelectItems):
                yield from (path for item in part.select.items for path in paths_in(item.operand))
        case Block():
            return
        case VarPath():
            yield part
        case _:
            for name in ("args", "left", "right", "arg"):
                inner = getattr(part, name, ())
                for one in inner if isinstance(inner, tuple) else (inner,):
                    yield from paths_in(one)
