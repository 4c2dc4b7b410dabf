"""A process killed with SIGKILL in the middle of its work: what a second run finds is whole, nothing lost or twice."""

import json
import signal
from pathlib import Path

import pytest

from mmqjp.engine import Session
from tests.generate.strategies import random_case
from tests.oracle.evaluation import comparable
from tests.processes import nursery
from tests.support.agreement import as_row
from tests.support.delivery import undelivered


@pytest.mark.parametrize("after", [pytest.param(0, marks=pytest.mark.soak), 2, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("point", ["before commit", "after commit", "after join", "before append"])
def test_a_killed_run_is_taken_up_again(point: str, after: int, tmp_path: Path):
    seed = 7
    script, documents = random_case(seed, 10, 12)
    assert nursery.run("tests.processes.engine", tmp_path, seed, point, after).returncode == -signal.SIGKILL
    with Session("duckdb", state=tmp_path) as engine:
        engine.ensure(script)
        for start in range(0, 12, 4):
            engine.process(documents[start : start + 4])
        got = comparable(as_row(output) for output in undelivered(engine))
    with Session("duckdb") as undisturbed:
        undisturbed.ensure(script)
        expected = comparable(as_row(output) for output in undisturbed.process(documents))
    assert expected, json.dumps(seed)
    assert got == expected
