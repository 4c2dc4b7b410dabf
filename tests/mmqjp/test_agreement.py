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
from xscl.parser import parse_script
from xscl.syntax import Script

SETS = 40
VIEWS = 16
BOUNDS = (CACHE_BYTES, 2_000, 20_000)
QUERIES = 20
DOCUMENTS = 12


def _delivery(seed: int) -> Delivery:
    rng = random.Random(seed)
    return Delivery(rng.choice([None, seed]), rng.choice([1, 2, 3, 5, 100]))


@pytest.mark.parametrize("seed", seeds(4, SETS))
def test_duckdb_agrees_with_the_oracle(seed: int):
    script, documents = random_case(seed, QUERIES, DOCUMENTS)
    with Session("duckdb", plan="basic" if seed % 4 == 0 else "signature") as engine:
        assert_agrees(engine, script, documents, _delivery(seed))


@pytest.mark.parametrize("seed", seeds(2, 300))
def test_what_is_told_once_agrees_with_the_oracle(seed: int):
    script, documents = random_case(seed, QUERIES, DOCUMENTS)
    with Session("duckdb", plan=PLANS[seed % len(PLANS)]) as engine:
        assert_agrees(engine, with_once(random.Random(seed), script), documents, _delivery(seed))


@pytest.mark.parametrize("seed", seeds(2, VIEWS, 200))
def test_duckdb_with_views_agrees_with_the_oracle(seed: int):
    script, documents = random_case(seed, QUERIES, DOCUMENTS)
    with Session("duckdb", plan="views", cache_bytes=BOUNDS[seed % len(BOUNDS)]) as engine:
        assert_agrees(engine, script, documents, _delivery(seed))


@pytest.mark.soak
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("seed", range(SETS, 1_100))
def test_duckdb_agrees_with_the_oracle_at_length(seed: int, plan: str):
    script, documents = random_case(seed, QUERIES, DOCUMENTS)
    with Session("duckdb", plan=plan) as engine:
        assert_agrees(engine, script, documents, _delivery(seed))


@given(cases(max_queries=3, max_documents=6), st.integers(0, 99))
@examples(12, 20)
def test_duckdb_agrees_with_the_oracle_on_cases_that_shrink(case: tuple[Script, list[Document]], seed: int):
    script, documents = case
    with Session("duckdb") as engine:
        assert_agrees(engine, script, documents, _delivery(seed))


def test_two_equal_hidden_inputs_are_different_documents():
    script = parse_script("(S/a->x JOIN {x = y, INF} S/a->y) JOIN {x = z, INF} (S/a->z JOIN {z = w, INF} S/a->w)")
    documents = docs("d1@0 <a>1</a> | d2@1 <a>1</a> | d3@2 <a>2</a>")
    with Session("duckdb") as engine:
        assert assert_agrees(engine, script, documents, Delivery(None, 1)) == 4


def test_constants_of_an_inner_select_can_be_compared_and_shown():
    script = parse_script('(SELECT x, "1" AS one FROM S/a->x) JOIN {x = y AND one = y, INF} S/b->y')
    documents = docs("d1@0 <a>1</a> | d2@1 <b>1</b> | d3@2 <a>2</a> | d4@3 <b>2</b>")
    with Session("duckdb") as engine:
        assert assert_agrees(engine, script, documents, Delivery(None, 2)) == 1


@pytest.mark.soak
def test_the_lifelike_workload_agrees_with_the_oracle():
    script, documents = parse_script(queries(60)), list(items(150))
    for plan in PLANS:
        with Session("duckdb", plan=plan) as engine:
            assert assert_agrees(engine, script, documents, Delivery(5, 40)) > 5
