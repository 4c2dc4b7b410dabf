"""Thousands of random patterns and documents: stage 1 finds the exact matches, however they come in batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import cast

import pytest

from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.support.conjuncts import conjuncts_of
from tests.support.witnessed import Stage
from xpath_stage.documents import Limits, StreamDocument, parse_document
from xpath_stage.evaluator import XPathStage
from xscl.algebra.joins import Conjunct

PAIRS = 1_000
"""Different pairs of a pattern and a document of its stream that are compared for a seed, at least."""

Batches = Sequence[Sequence[StreamDocument]]


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_witnesses_are_the_matches_in_any_batches(seed: int):
    rng, cacheable = Random(seed), seed % 2 == 1
    conjuncts, documents = workload(rng)
    if cacheable:
        conjuncts = [conjunct for conjunct in conjuncts if may_be_cached(conjunct)]
    pairs = compared(conjuncts, documents)
    assert pairs >= PAIRS
    matches, found = set[int](), []
    for max_shapes in (Limits().shapes, 0):
        stage = standing(conjuncts, max_shapes)
        matches.add(sum(map(stage.check, batches(documents, rng.choice((2, 9, 30))))))
        for size in (1, 17, len(documents)):
            stage = standing(conjuncts, max_shapes)
            found += [named(stage, batches(documents, size)) for _ in range(3 if max_shapes else 1)]
            hits = stage.stage.counters()["shape_hits"]
            assert (hits >= len(documents)) is (cacheable and max_shapes > 0)
            rng.shuffle(documents)
    assert len(matches) == 1
    assert matches.pop() > pairs / 4
    assert all(witnesses == found[0] for witnesses in found)


def workload(rng: Random) -> tuple[list[Conjunct], list[StreamDocument]]:
    """The queries of some random scripts, and all their documents mixed, on several streams."""
    conjuncts, samples = [], []
    for _ in range(5):
        script, documents = random_case(rng.randrange(10**6), 8, 8, 10)
        conjuncts += conjuncts_of(script)
        samples += [(document.stream, document.xml) for document in documents]
    rng.shuffle(samples)
    texts = [(stream, xml.encode() if isinstance(xml, str) else xml) for stream, xml in dict.fromkeys(samples)]
    return conjuncts, [StreamDocument(i, stream, 0, 0, parse_document(xml)) for i, (stream, xml) in enumerate(texts)]


def may_be_cached(conjunct: Conjunct) -> bool:
    """Whether the shape cache serves documents that the query reads: it has no condition in XPath or on attributes."""
    nodes = (node for side in conjunct.sides() for node in side.pattern.walk())
    conditions = ((node.test.kind, condition.xpath) for node in nodes for condition in node.conditions)
    return all(kind == "element" and xpath is None for kind, xpath in conditions)


def compared(conjuncts: Iterable[Conjunct], documents: Iterable[StreamDocument]) -> int:
    """How many different pairs of a pattern and a document `Stage.check` compares."""
    patterns = {(side.stream, str(side.pattern)) for conjunct in conjuncts for side in conjunct.sides()}
    return sum(stream == document.stream for stream, _ in patterns for document in documents)


def batches(documents: Sequence[StreamDocument], size: int) -> Batches:
    return [documents[start : start + size] for start in range(0, len(documents), size)]


def standing(conjuncts: Iterable[Conjunct], max_shapes: int) -> Stage:
    stage = Stage(XPathStage(limits=Limits(shapes=max_shapes)))
    stage.add(conjuncts)
    return stage


def named(stage: Stage, of: Batches) -> tuple[object, object]:
    """The witnesses of all batches, with variables by definition."""
    edges: dict[object, object] = {}
    values: dict[object, object] = {}
    for batch in of:
        some, theirs = cast("tuple[dict[object, object], dict[object, object]]", stage.named(stage.evaluate(batch)))
        edges |= some
        values |= theirs
    return edges, values
