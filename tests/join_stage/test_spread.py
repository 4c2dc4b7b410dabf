"""The join by tasks finds what the driver finds, whatever is in memory, rolled back, evicted and opened again."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from join_stage.signature import disk, join
from join_stage.spark import tasks
from join_stage.spark.tasks import SpreadMatches
from tests.generate.joins import SECOND, random_join_case, sorted_rows
from tests.generate.seeds import seeds
from tests.join_stage.test_stored_runs import expected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1, 200))
def test_tasks_find_what_the_embedded_engine_finds(
    seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from join_stage.spark.engine import SparkEngine

    rng = Random(seed)
    monkeypatch.setattr(disk, "PIECE", 16)
    monkeypatch.setattr(join, "MOST_IN_MEMORY", 0)
    case = random_join_case(seed, batches=6, in_order=seed % 2 == 0)
    evictions = [rng.choice([None, None, rng.randrange(30)]) for _ in case.batches]
    wanted = expected(case, evictions)
    at = spread_batches = 0
    while at < len(case.batches):
        engine = SparkEngine(spark, tmp_path, "signature")
        for template, rows in case.templates:
            engine.put_rows(template, rows)
        for _ in range(rng.randint(2, 4)):
            if at == len(case.batches):
                break
            # With 4 documents a batch, the driver joins some of them alone.
            monkeypatch.setattr(tasks, "LEAST_DOCUMENTS", rng.choice([1, 1, 1, 100]))
            first, batch = case.batches[at]
            for again in [*rng.choice([[], [], [True]]), False]:
                engine.begin()
                if (before := evictions[at]) is not None:
                    engine.evict(before * SECOND)
                found = engine.join(batch, first, case.scope)
                spread_batches += isinstance(found, SpreadMatches)
                assert sorted_rows(found) == wanted[at], (at, again)
                assert found.num_rows == len(wanted[at])
                engine.rollback() if again else engine.commit()
            at += 1
        engine.close()
    assert spread_batches
