"""A process that is killed about the time when it learns the order of words, by which near() finds texts: what goes on
finds all, whether the order is there or not, and whatever plan goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from join_stage import near
from join_stage.protocol import PLANS
from mmqjp.engine import Session
from tests.generate.seeds import seeds
from tests.oracle.evaluation import comparable, evaluate
from tests.processes import nursery
from tests.processes.near_engine import AGAIN, ENOUGH, POINTS, case
from tests.support.agreement import as_row


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("seed", seeds(1, 60))
def test_killed_as_the_order_of_words_is_learnt(
    seed: int, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near, "ENOUGH", ENOUGH)
    monkeypatch.setattr(near, "AGAIN", AGAIN)
    killed = nursery.run("tests.processes.near_engine", tmp_path, seed, point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    script, batches = case(seed)
    plan = PLANS[seed % 7 % len(PLANS)] if seed else "signature"
    with Session("duckdb", state=tmp_path, plan=plan) as engine:
        is_there = engine.sql("SELECT version FROM word_order").num_rows == 1
        assert is_there == (point in ("committed", "used"))
        for batch in batches:
            engine.process(batch)
        outputs = list(engine.outputs())
    assert len({output.id for output in outputs}) == len(outputs)
    documents = [document for batch in batches for document in batch]
    assert comparable(map(as_row, outputs)) == comparable(evaluate(script, documents)) != []
