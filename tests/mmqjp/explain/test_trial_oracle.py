"""What queries find in a sample, held against brute force on random queries and documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain

import pytest

from feeds.documents import Document
from mmqjp.explain.blocks import try_block
from mmqjp.explain.join_trial import try_joins
from mmqjp.explain.terms import Sample, sample_of
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.match import Matcher, Tree
from tests.oracle.values import apply, text_of
from xscl.algebra.values import And, Call, Compare, Expr, Or, Rel, String, VarPath
from xscl.check_expressions import blocks, joined_inputs
from xscl.parser import located_queries, parse_script
from xscl.printer import to_xscl
from xscl.syntax import Block, Join, Query

Values = dict[str, set[int]]
"""Texts, each with the numbers of the documents that have it."""


def case(seed: int) -> tuple[list[Query], dict[str, str], Sample, dict[str, list[Tree]]]:
    """Queries with spans, their namespaces, a sample, and the trees of the sample by stream."""
    script, documents = random_case(seed, 6, 12)
    text = to_xscl(script)
    queries = list(located_queries(text, range(len(script.queries))))
    sample = sample_of(documents, 100)
    trees: dict[str, list[Tree]] = defaultdict(list)
    for document in sample.documents:
        trees[document.stream].append(Tree(document.xml))
    return queries, dict(parse_script(text).namespaces), sample, trees


def test_each_stage_of_a_block_matches_as_many_documents_as_by_brute_force():
    matched = list(chain.from_iterable(map(checked_blocks, seeds(6, 2000))))
    assert sum(0 < one < documents for one, documents in matched) > 25
    assert sum(one == 0 < documents for one, documents in matched) > 1


def checked_blocks(seed: int) -> Iterator[tuple[int, int]]:
    """Checks the blocks of a case. Yields how many documents they match, of how many."""
    queries, namespaces, sample, trees = case(seed)
    for block in (block for query in queries for block in blocks(query.source)):
        found = try_block(block, sample.of(block.stream), namespaces)
        here = trees[block.stream]
        counts = [
            sum(bool(Matcher(tree, namespaces).embeddings(None, stage.steps)) for tree in here)
            for stage in found.stages
        ]
        assert found.counts == counts
        assert counts == sorted(counts, reverse=True)
        assert counts[-1] == sum(bool(Matcher(tree, namespaces).embeddings(None, block.steps)) for tree in here)
        assert (found.documents, found.left_out) == (len(here), 0)
        assert bool(found.hint) <= (0 in counts)
        yield found.matched, found.documents


@pytest.mark.parametrize("seed", seeds(6, 2000))
def test_values_of_both_sides_of_an_equality_are_those_found_by_brute_force(seed: int):
    queries, namespaces, sample, trees = case(seed)
    for query in queries:
        found = {join.span: join for join in try_joins(query.source, sample, namespaces)}
        of_var = {
            var: block for block in joined_inputs(query.source) if isinstance(block, Block) for var in bound(block)
        }
        for equality in equalities(query.source):
            sides = [unwrapped(operand) for operand in (equality.left, equality.right)]
            if {"date", "number"} & {call.name for calls, _ in sides for call in calls}:  # what is none equals nothing
                continue
            own = [of_var.get(path.var) for _, path in sides if isinstance(path, VarPath)]
            if len(own) < 2 or own[0] is None or own[1] is None or own[0] is own[1]:
                continue
            left = values(own[0], equality.left, trees, namespaces)
            right = values(own[1], equality.right, trees, namespaces)
            same_stream = own[0].stream == own[1].stream
            shared = [v for v in left.keys() & right.keys() if not same_stream or len(left[v] | right[v]) > 1]
            join = found[equality.span]
            assert (join.left, join.right, join.shared) == (len(left), len(right), len(shared))


def bound(block: Block) -> set[str]:
    names: set[str] = set()

    def walk(steps: tuple[object, ...]) -> None:
        for step in steps:
            names.update({step.var} - {None})  # type: ignore[attr-defined]  # a step
            for condition in step.filters:  # type: ignore[attr-defined]  # a step
                for arm in condition.args if isinstance(condition, And) else (condition,):
                    if isinstance(arm, Rel):
                        walk(arm.steps)

    walk(block.steps)
    return names


def equalities(source: object) -> Iterator[Compare]:
    if isinstance(source, Join):
        yield from equalities(source.left)
        yield from equalities(source.right)
        waiting: list[Expr] = [source.pred]
        while waiting:
            expr = waiting.pop()
            if isinstance(expr, And | Or):
                waiting += expr.args
            elif isinstance(expr, Compare) and expr.op == "=":
                yield expr


def unwrapped(operand: Expr) -> tuple[list[Call], Expr]:
    """The functions of an operand, the innermost first, and what they are of."""
    calls: list[Call] = []
    while isinstance(operand, Call):
        calls.insert(0, operand)
        operand = operand.args[0]
    return calls, operand


def values(block: Block, operand: Expr, trees: dict[str, list[Tree]], namespaces: dict[str, str]) -> Values:
    calls, operand = unwrapped(operand)
    assert isinstance(operand, VarPath)
    found: Values = defaultdict(set)
    for number, tree in enumerate(trees[block.stream]):
        matcher = Matcher(tree, namespaces, frozenset((operand.var,)))
        for _, bindings in matcher.embeddings(None, block.steps):
            for node in matcher.nodes(dict(bindings)[operand.var], operand.steps):
                text = tree.text(node)
                for call in calls:
                    more = (arg.value for arg in call.args[1:] if isinstance(arg, String))
                    text = text_of(apply(call.name, text, *more))
                found[text].add(number)
    return found


def test_a_document_met_again_and_one_that_cannot_be_read_are_left_out():
    documents = [Document("d", "<a/>"), Document("d", "<b/>"), Document("e", "<a"), Document("f", "<a/>")]
    sample = sample_of(documents, 2)
    assert ([d.id for d in sample.documents], sample.refused, len(sample.of("S"))) == (["d", "f"], 1, 2)
