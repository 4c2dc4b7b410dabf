"""Runs of postings on disk: any state that is written, merged, evicted and reopened answers as the plan `basic` does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from join_stage.duckdb_engine import DuckDBEngine
from join_stage.joiner import JoinEngine
from join_stage.signature import join
from join_stage.signature.disk import merging
from join_stage.state_tables import RUNS, runs_manifest
from tests.generate.joins import SECOND, JoinCase, Result, random_join_case, sorted_rows
from tests.generate.seeds import seeds


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """All postings of a batch are written, and merged a few at a time."""
    monkeypatch.setattr(join, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr(merging, "PIECE", 16)


@contextmanager
def opened(case: JoinCase, directory: Path | None, plan: str) -> Iterator[JoinEngine]:
    engine: JoinEngine = DuckDBEngine(directory, plan)
    for template, rows in case.templates:
        engine.put_rows(template, rows)
    try:
        yield engine
    finally:
        engine.close()


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / RUNS).iterdir())


def expected(case: JoinCase, evictions: list[int | None]) -> list[Result]:
    """What the plan `basic` finds for each batch; before each, some documents may be evicted."""
    results = []
    with opened(case, None, "basic") as engine:
        for (first, batch), before in zip(case.batches, evictions, strict=True):
            engine.begin()
            if before is not None:
                engine.evict(before * SECOND)
            results.append(sorted_rows(engine.join(batch, first, case.scope)))
            engine.commit()
    return results


@pytest.mark.parametrize("seed", seeds(40, 600))
def test_a_state_on_disk_is_the_state(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = Random(seed)
    monkeypatch.setattr(join, "MOST_IN_MEMORY", rng.choice([0, 0, 40, 200]))
    case = random_join_case(seed, batches=rng.choice([4, 9]), in_order=seed % 2 == 0)
    evictions = [rng.choice([None, None, rng.randrange(30)]) for _ in case.batches]
    wanted = expected(case, evictions)
    at = 0
    while at < len(case.batches):  # until it is closed and opened again, perhaps with another plan
        plan = rng.choice(["signature"] * 4 + ["views"])
        with opened(case, tmp_path, plan) as engine:
            for _ in range(rng.randint(1, 4)):
                if at == len(case.batches):
                    break
                first, batch = case.batches[at]
                for again in rng.choice([[], [], [True]]) + [False]:
                    engine.begin()
                    if (before := evictions[at]) is not None:
                        engine.evict(before * SECOND)
                    found = sorted_rows(engine.join(batch, first, case.scope))
                    assert found == wanted[at], (plan, at, again)
                    engine.rollback() if again else engine.commit()
                at += 1
    with opened(case, tmp_path, "signature") as engine:
        engine.begin()
        engine.evict(-1)  # which opens the runs
        engine.commit()
        manifest = runs_manifest(engine)
        named = set() if manifest is None else {name for name, _ in json.loads(manifest)["runs"]}
        assert named <= set(files(tmp_path)), "files are removed after the commit that no longer names them"
