"""The engine against the oracle on random scripts and documents, whatever the batches and the order of arrival."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.workload import items, queries
from feeds.documents import Document
from join_stage.protocol import PLANS
from join_stage.views import CACHE_BYTES
from mmqjp.engine import Session
from tests.generate.once import with_once
from tests.generate.seeds import examples, seeds
from tests.generate.strategies import cases, random_case
from tests.oracle.cases import docs
from tests.support.agreement import Delivery, assert_agrees
from tests.support.in_turn import in_turn
from xscl.parser import parse_script
from xscl.syntax import Script

BOUNDS = (CACHE_BYTES, 2_000, 20_000)
"""Of the cache of the plan views."""
QUERIES = 20
DOCUMENTS = 12


def _delivery(seed: int) -> Delivery:
    rng = random.Random(seed)
    return Delivery(rng.choice([None, seed]), rng.choice([1, 2, 3, 5, 100]))


@pytest.mark.parametrize(("seed", "plan"), in_turn(seeds(6, 1_100), PLANS))
def test_duckdb_agrees_with_the_oracle(seed: int, plan: str):
    script, documents = random_case(seed, QUERIES, DOCUMENTS)
    with Session("duckdb", plan=plan, cache_bytes=BOUNDS[seed % len(BOUNDS)]) as engine:
        assert_agrees(engine, script, documents, _delivery(seed))


@pytest.mark.parametrize("seed", seeds(2, 300))
def test_what_is_told_once_agrees_with_the_oracle(seed: int):
    script, documents = random_case(seed, QUERIES, DOCUMENTS)
    with Session("duckdb", plan=PLANS[seed % len(PLANS)]) as engine:
        assert_agrees(engine, with_once(random.Random(seed), script), documents, _delivery(seed))


@given(cases(max_queries=3, max_documents=6), st.integers(0, 99))
@examples(8, 20)
def test_duckdb_agrees_with_the_oracle_on_cases_that_shrink(case: tuple[Script, list[Document]], seed: int):
    script, documents = case
    with Session("duckdb") as engine:
        assert_agrees(engine, script, documents, _delivery(seed))


@pytest.mark.parametrize(
    ("text", "given", "count"),
    [
        (  # two equal hidden inputs are different documents
            "(S/a->x JOIN {x = y, INF} S/a->y) JOIN {x = z, INF} (S/a->z JOIN {z = w, INF} S/a->w)",
            "d1@0 <a>1</a> | d2@1 <a>1</a> | d3@2 <a>2</a>",
            4,
        ),
        (  # constants of an inner SELECT can be compared and shown
            '(SELECT x, "1" AS one FROM S/a->x) JOIN {x = y AND one = y, INF} S/b->y',
            "d1@0 <a>1</a> | d2@1 <b>1</b> | d3@2 <a>2</a> | d4@3 <b>2</b>",
            1,
        ),
    ],
)
def test_examples_agree_with_the_oracle(text: str, given: str, count: int):
    with Session("duckdb") as engine:
        assert assert_agrees(engine, parse_script(text), docs(given), Delivery(None, 2)) == count


@pytest.mark.soak
def test_the_lifelike_workload_agrees_with_the_oracle():
    script, documents = parse_script(queries(60)), list(items(150))
    for plan in PLANS:
        with Session("duckdb", plan=plan) as engine:
            assert assert_agrees(engine, script, documents, Delivery(5, 40)) > 5
