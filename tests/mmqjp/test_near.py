"""Queries with near() against the oracle, on both engines and with all plans; in `test_live_model` over restarts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from join_stage import near
from join_stage.protocol import PLANS
from mmqjp.engine import Session
from tests.generate.near import near_case
from tests.generate.seeds import seeds
from tests.support.agreement import Delivery, assert_agrees
from tests.support.in_process import run_in_process
from tests.support.in_turn import in_turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of words is learnt from a few texts, so that it changes in the middle."""
    monkeypatch.setattr(near, "ENOUGH", 7)
    monkeypatch.setattr(near, "AGAIN", 2)


def _delivery(seed: int, batches: tuple[int, ...] = (1, 2, 3, 5, 100)) -> Delivery:
    rng = random.Random(seed)
    return Delivery(rng.choice([None, seed]), rng.choice(batches))


@pytest.mark.parametrize(("seed", "plan"), in_turn(seeds(2, 60), PLANS))
def test_near_agrees_with_the_oracle(seed: int, plan: str):
    script, documents = near_case(seed, documents=16)
    with Session("duckdb", plan=plan) as engine:
        assert assert_agrees(engine, script, documents, _delivery(seed))


@pytest.mark.soak
@pytest.mark.parametrize("plan", PLANS)
def test_near_agrees_with_the_oracle_on_spark(plan: str, spark: SparkSession):
    script, documents = near_case(11, queries=4, documents=12)
    with Session(spark, plan=plan) as engine:
        assert assert_agrees(engine, script, documents, _delivery(11, (7,)))


@pytest.mark.parametrize("seed", seeds(1, 100))
def test_executors_find_what_is_near(seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    context = run_in_process(monkeypatch, cores=3, seed=seed)
    monkeypatch.setattr(near, "MOST_HELD", 50)
    script, documents = near_case(seed, queries=8, documents=16)
    with Session(spark, state=tmp_path) as engine:
        assert assert_agrees(engine, script, documents, _delivery(seed, (3, 5)))
    assert context.jobs
