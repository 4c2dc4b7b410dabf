"""What queries find in a sample, held against brute force on random queries and documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

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


@pytest.mark.parametrize("seed", seeds(8, 2000))
def test_each_stage_of_a_block_matches_as_many_documents_as_by_brute_force(seed: int):
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


@pytest.mark.parametrize("seed", seeds(8, 2000))
def test_values_of_both_sides_of_an_equality_are_those_found_by_brute_force(seed: int):
    queries, namespaces, sample, trees = case(seed)
    for query in queries:
        found = {join.span: join for join in try_joins(query.source, sample, namespaces)}
        of_var = {
            var: block for block in joined_inputs(query.source) if isinstance(block, Block) for var in bound(block)
        }
        for equality in equalities(query.source):
            one, other = variable(equality.left), variable(equality.right)
            if {"date", "number"} & functions_of(equality):  # what is none equals nothing
                continue
            if one not in of_var or other not in of_var or of_var[one] is of_var[other]:
                continue
            left, right = (
                values(of_var[var], operand, trees, namespaces)
                for var, operand in ((one, equality.left), (other, equality.right))
            )
            same_stream = of_var[one].stream == of_var[other].stream
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


def functions_of(equality: Compare) -> set[str]:
    found: set[str] = set()
    for operand in (equality.left, equality.right):
        while isinstance(operand, Call):
            found.add(operand.name)
            operand = operand.args[0]
    return found


def variable(operand: Expr) -> str:
    while isinstance(operand, Call):
        operand = operand.args[0]
    return operand.var if isinstance(operand, VarPath) else ""


def values(block: Block, operand: Expr, trees: dict[str, list[Tree]], namespaces: dict[str, str]) -> Values:
    functions: list[tuple[str, list[str]]] = []
    while isinstance(operand, Call):
        functions.insert(0, (operand.name, [arg.value for arg in operand.args[1:] if isinstance(arg, String)]))
        operand = operand.args[0]
    assert isinstance(operand, VarPath)
    found: Values = defaultdict(set)
    for number, tree in enumerate(trees[block.stream]):
        matcher = Matcher(tree, namespaces, frozenset((operand.var,)))
        for _, bindings in matcher.embeddings(None, block.steps):
            for node in matcher.nodes(dict(bindings)[operand.var], operand.steps):
                text = tree.text(node)
                for name, more in functions:
                    text = text_of(apply(name, text, *more))
                found[text].add(number)
    return found


def test_the_random_cases_have_blocks_that_match_some_documents_and_none():
    counts = []
    for seed in range(12):
        queries, namespaces, sample, _ = case(seed)
        for block in (block for query in queries for block in blocks(query.source)):
            trial = try_block(block, sample.of(block.stream), namespaces)
            counts.append((trial.matched, trial.documents))
    assert sum(0 < matched < documents for matched, documents in counts) > 50
    assert sum(matched == 0 < documents for matched, documents in counts) > 3


def test_a_document_met_again_and_one_that_cannot_be_read_are_left_out():
    documents = [Document("d", "<a/>"), Document("d", "<b/>"), Document("e", "<a"), Document("f", "<a/>")]
    sample = sample_of(documents, 2)
    assert ([d.id for d in sample.documents], sample.refused, len(sample.of("S"))) == (["d", "f"], 1, 2)
