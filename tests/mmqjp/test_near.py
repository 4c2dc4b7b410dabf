"""Queries with near() against the oracle: on both engines and with all plans, over batches, restarts and evictions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from join_stage import near
from join_stage.protocol import DEFAULT_PLAN, PLANS
from mmqjp.engine import Session
from tests.generate.near import near_case
from tests.generate.seeds import seeds
from tests.oracle.evaluation import comparable, evaluate
from tests.support.agreement import Delivery, arranged, as_row, assert_agrees
from tests.support.in_process import run_in_process
from tests.support.in_turn import in_turn
from xscl.printer import to_xscl

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


@pytest.mark.parametrize(
    "plan", [pytest.param(plan, marks=() if plan == DEFAULT_PLAN else pytest.mark.soak) for plan in PLANS]
)
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


@pytest.mark.parametrize(("seed", "plan"), in_turn(seeds(2, 30, 100), PLANS))
def test_near_over_restarts(seed: int, plan: str, tmp_path: Path):
    """Each batch is answered by another engine, which opens the store anew; queries come with the first."""
    script, documents = near_case(seed, documents=16)
    found = []
    for batch in arranged(documents, Delivery(seed, 4)):
        with Session("duckdb", state=tmp_path, plan=plan) as engine:
            engine.ensure(script)
            found += [as_row(output) for output in engine.process(batch)]
    assert comparable(found) == comparable(evaluate(script, documents))


@pytest.mark.parametrize("seed", seeds(1, 30, 200))
def test_near_among_kept_documents(seed: int):
    """Half of the documents come before the queries, which are answered over them first."""
    script, documents = near_case(seed, documents=16)
    batches = arranged(documents, Delivery(seed, 8))
    with Session("duckdb") as engine:
        engine.subscribe("//t->keeps JOIN {keeps = kept, INF} //t->kept PUBLISH keeping")
        engine.process(batches[0])
        engine.subscribe(to_xscl(script), backfill=True)
        for batch in batches[1:]:
            engine.process(batch)
        found = [as_row(output) for output in engine.outputs() if output.query != "keeping"]
    assert comparable(found) == comparable(evaluate(script, documents))
