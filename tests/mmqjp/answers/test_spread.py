"""Answers that executors find and write are those of the embedded engine, to the number; whatever is paused, lost,
repeated or rolled back. The tasks run in this process."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from join_stage.signature import join
from mmqjp.answers.fan_out import Outputs
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from tests.generate.once import with_once
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.mmqjp.answers.test_bounds import assert_is_the_model
from tests.support.agreement import Delivery, arranged, assert_agrees
from tests.support.in_process import run_in_process

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("seed", seeds(1, 300))
def test_executors_agree_with_the_oracle(seed, spark, tmp_path, monkeypatch):
    context = run_in_process(monkeypatch, cores=1 + seed % 4, seed=seed)
    if seed % 2:
        monkeypatch.setattr(join, "MOST_IN_MEMORY", 0)
    rng = Random(seed)
    script, documents = random_case(seed, 12, 12)
    script = with_once(rng, script, rng.choice([0, 50]))
    with Session(spark, state=tmp_path) as engine:
        assert_agrees(engine, script, documents, Delivery(rng.choice([None, seed]), rng.choice([3, 5, 100])))
    assert context.jobs


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100))
def test_executors_keep_to_bounds(seed, spark, tmp_path, monkeypatch):
    context = run_in_process(monkeypatch, cores=3, seed=seed)

    def make(matches: int, in_all: int) -> Session:
        return Session(spark, state=tmp_path, max_matches=matches, max_outputs=in_all)

    assert_is_the_model(make, seed, monkeypatch, 10)
    assert context.jobs


def named(state: Path) -> set[str]:
    """Those that a manifest names."""
    manifests = [json.loads(path.read_text()) for path in (state / "manifests").glob("*.json")]
    return {file["name"] for manifest in manifests for files in manifest["tables"].values() for file in files}


def told(outputs: list[Output]) -> list[tuple[object, ...]]:
    return [(o.seq, o.id, o.query, o.documents, tuple(o.nodes.items()), o.xml) for o in outputs]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(14, 414))
def test_outputs_have_the_same_numbers_as_on_the_embedded_engine(seed, spark, tmp_path, monkeypatch):
    context = run_in_process(monkeypatch, cores=1 + seed % 3, seed=seed)
    rng = Random(seed)
    if seed % 2:  # tasks are tried again, or are tried twice at the same time
        attempts = Random(seed)
        monkeypatch.setattr(context, "attempted", lambda task: (task() if attempts.random() < 0.3 else None, task())[1])
    script, documents = random_case(seed, 12, 24)
    script = with_once(rng, script, 40)
    batches = arranged(documents, Delivery(None, 6))
    options: dict[str, Any] = rng.choice([{}, {}, {"max_matches": 3}, {"max_work": 60}])
    paused = rng.sample(range(len(batches)), 2)
    with Session("duckdb", **options) as ours, Session(spark, state=tmp_path, **options) as theirs:
        every: list[list[Output]] = [[], []]
        before: list[list[Outputs]] = []
        for engine in (ours, theirs):
            names = engine.ensure(script)
        for number, batch in enumerate(batches):
            if number in paused:
                for engine in (ours, theirs):
                    (engine.pause if number == min(paused) else engine.resume)(names[1])
            # The driver joins some batches alone.
            monkeypatch.setattr("join_stage.spark.tasks.LEAST_DOCUMENTS", rng.choice([1, 1, 1, 100]))
            monkeypatch.setattr("join_stage.spark.tasks.MOST_INDEX", rng.choice([0, 1 << 20, 1 << 20]))
            got = [engine.process(batch) for engine in (ours, theirs)]
            assert told(list(got[1])) == told(list(got[0]))
            assert len(got[1]) == len(got[0])
            lines = [b"".join(some.text for some in outputs.lines()) for outputs in got]
            assert lines[1] == lines[0]
            assert sum(some.count for some in got[1].lines()) == len(got[0])
            before += [got]
            for place, outputs in enumerate(got):
                every[place] += outputs
            written = {path.name for path in tmp_path.glob("*/*.parquet")}
            assert written <= named(tmp_path), "what an attempt wrote in vain is gone"
        assert {s.name: s.paused for s in ours.registry.subscriptions.values()} == {
            s.name: s.paused for s in theirs.registry.subscriptions.values()
        }
        assert told(list(theirs.outputs())) == told(every[0])
        for ours_then, theirs_then in before:  # whose files were merged, or removed
            assert told(list(theirs_then)) == told(list(ours_then))
            assert b"".join(x.text for x in theirs_then.lines()) == b"".join(x.text for x in ours_then.lines())
        for table in ("matches", "output_matches", "answers"):
            sql = f"SELECT count(*) AS n FROM {table}"
            assert theirs.sql(sql).to_pylist() == ours.sql(sql).to_pylist(), table
    assert context.jobs
