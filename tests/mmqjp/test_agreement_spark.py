"""Spark against the oracle on random scripts and documents, in one shared session; and its state between runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from join_stage.protocol import DEFAULT_PLAN
from mmqjp.engine import Session
from tests.generate.once import with_once
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.evaluation import comparable
from tests.support.agreement import Delivery, as_row, assert_agrees
from tests.support.delivery import mark_delivered, undelivered
from tests.support.in_turn import in_turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES, FEW = 20, 8
DOCUMENTS = 12


def _delivery(seed: int) -> Delivery:
    rng = random.Random(seed)
    return Delivery(rng.choice([None, seed]), rng.choice([5, 7, 100]))


@pytest.mark.parametrize(("seed", "plan"), in_turn(seeds(1, 110, 5000), (DEFAULT_PLAN, "basic", "views")))
def test_spark_agrees_with_the_oracle(seed: int, plan: str, spark: SparkSession):
    script, documents = random_case(seed, QUERIES, DOCUMENTS)
    with Session(spark, plan=plan) as engine:
        assert_agrees(engine, script, documents, _delivery(seed))


@pytest.mark.parametrize("seed", seeds(1, 30, 7000))
def test_what_is_told_once_on_spark_agrees_with_the_oracle(seed: int, spark: SparkSession):
    script, documents = random_case(seed, FEW, DOCUMENTS)
    with Session(spark) as engine:
        assert_agrees(engine, with_once(random.Random(seed), script), documents, Delivery(seed, 5))


def test_half_and_half_with_state_on_spark_is_one_run_on_duckdb(spark: SparkSession, tmp_path: Path):
    script, documents = random_case(3, 8, 12)
    with Session("duckdb") as engine:
        engine.ensure(script)
        whole = [as_row(output) for output in engine.process(documents)]
    halves = []
    for half in (documents[:6], documents[6:]):
        with Session(spark, state=tmp_path) as engine:
            engine.ensure(script)
            assert sorted(o.xml for o in engine.process(half)) == sorted(o.xml for o in undelivered(engine))
            halves += [as_row(output) for output in undelivered(engine)]
            mark_delivered(engine)
    assert comparable(halves) == comparable(whole)
