"""Why documents give no output, against brute force: the stage that is named is the first that they do not pass."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random

import pytest

from mmqjp.documents.record import Record, record_of
from mmqjp.engine import Session
from mmqjp.explain.funnel import verdict
from mmqjp.present.query_lookup import known_queries
from mmqjp.present.why_not import explain_missing_output
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.bindings import Stored
from tests.oracle.evaluation import Evaluation
from tests.oracle.stages import Stages
from xscl.check_expressions import blocks, joined_inputs
from xscl.printer import to_xscl
from xscl.syntax import Query, SubQuery

Key = tuple[tuple[str, str], ...]
"""Documents, by their streams and ids."""

CHOICES = 40
"""So many choices of documents are tried for a query."""


STAGES = {"output", "stream", "pattern", "asked", "equality", "different", "order", "window", "residual", "mirror"}


@pytest.mark.parametrize("seed", seeds(1, 1500, first=20))
def test_the_stage_that_is_named_is_the_first_that_is_not_passed(seed: int):
    check(seed, Counter())


@pytest.mark.soak
def test_the_random_cases_have_all_stages():
    seen = Counter[str]()
    for seed in (0, 2, 9, 62):
        check(seed, seen)
    assert seen.keys() >= STAGES


def check(seed: int, seen: Counter[str]) -> None:
    rng = Random(seed)
    script, documents = random_case(seed, 4, 10)
    evaluation = Evaluation(script, documents)
    with Session("duckdb", max_outputs=None, max_matches=None, max_work=None) as engine:
        engine.subscribe(to_xscl(script))
        engine.process(documents)
        stored = [record_of(row) for row in engine.sql("SELECT * FROM documents WHERE kind <> 'hidden'").to_pylist()]
        names = dict.fromkeys(script.names())
        known = {one.query.text: one for name in names for one in known_queries(lambda sql: engine.sql(sql), name)}
        all_outputs = {output.id for output in engine.outputs()}
        for index, (query, name) in enumerate(zip(script.queries, script.names(), strict=True)):
            text = to_xscl(type(script)((query,), script.namespaces))
            if text not in known or script.queries[:index].count(query):
                continue  # an equal one has been looked at
            one = known[text]
            answers: dict[Key, set[str]] = {}
            for answer in evaluation.outputs(index):
                key = tuple((part.stream, part.id) for part in answer.inputs)
                answers.setdefault(key, set()).add(answer.stored.id)
            for chosen in choices(rng, query, stored, set(answers)):
                found = verdict(one.query, one.readable, chosen)
                key = tuple((record.stream, record.id) for record in chosen)
                if found.kind == "too large":
                    continue
                assert (found.kind == "output") == (key in answers), (text, key, found.kind, found.message)
                seen[found.kind] += 1
                if found.kind == "output":
                    assert {given.id for given in found.given} == answers[key]
                    assert query.once is not None or answers[key] <= all_outputs
                    continue
                assert found.message and found.stages[-1].kind == found.kind and not found.stages[-1].found
                if any(isinstance(leaf, SubQuery) for leaf in joined_inputs(query.source)):
                    continue
                expected = Stages(evaluation, query).first_failure([oracles(evaluation, record) for record in chosen])
                assert found.kind == expected, (text, key, found.stages, found.message)
            some = rng.sample(choices(rng, query, stored, set(answers)), 1)[0]
            if len({record.id for record in stored}) == len(stored):
                said = explain_missing_output(lambda sql: engine.sql(sql), name, [record.id for record in some])
                assert bool(said.outputs) == (said.kind == "output")
                assert set(said.outputs) <= all_outputs


def choices(rng: Random, query: Query, stored: list[Record], answers: set[Key]) -> list[list[Record]]:
    """Choices of documents for the blocks of a query: of its streams mostly, and some that give outputs."""
    by_key = {(record.stream, record.id): record for record in stored}
    of_blocks = [[record for record in stored if record.stream == block.stream] for block in blocks(query.source)]
    found = [[by_key[key] for key in keys] for keys in sorted(answers)[: CHOICES // 4]]
    every = list(product(*of_blocks)) if len(of_blocks) < 4 else []
    found += [list(some) for some in rng.sample(every, min(len(every), CHOICES - len(found)))]
    found.append([rng.choice(stored) for _ in of_blocks])
    return found


def oracles(evaluation: Evaluation, record: Record) -> Stored:
    """The oracle's document of a record."""
    (found,) = (one for one in evaluation._stream(record.stream) if one.id == record.id)
    return found
