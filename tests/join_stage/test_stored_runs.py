"""Runs of postings on disk, after kills, full disks and damage. What is found with them: test_lives.py."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from join_stage.duckdb import DuckDBEngine
from join_stage.protocol import JoinEngine
from join_stage.signature import disk, join
from join_stage.signature.disk import MOST_RUNS, StoredRuns
from join_stage.signature.plan import SignaturePlan
from join_stage.signature.runs import RunWriter
from join_stage.store.protocol import StoreError
from join_stage.tables import RUNS
from templates.witness import NO_WITNESSES
from tests.generate.joins import SECOND, JoinCase, Result, random_join_case, run_case, sorted_rows
from tests.generate.seeds import at_length, seeds
from tests.join_stage.test_disk_run import random_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from join_stage.spark.engine import SparkEngine

DOCUMENTS = 4
"""The number of documents of a batch."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """All postings of a batch are written, and merged a few at a time."""
    monkeypatch.setattr(join, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr(disk, "PIECE", 16)


@contextmanager
def opened(case: JoinCase, directory: Path) -> Iterator[DuckDBEngine]:
    engine = DuckDBEngine(directory, "signature")
    for template, rows in case.templates:
        engine.put_rows(template, rows)
    try:
        yield engine
    finally:
        engine.close()


def stored(engine: SparkEngine) -> StoredRuns:
    assert isinstance(engine._plan, SignaturePlan)
    assert engine._plan._join._stored is not None
    return engine._plan._join._stored


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / RUNS).iterdir())


def expected(case: JoinCase) -> list[Result]:
    """What the plan `basic` finds for each batch."""
    engine = DuckDBEngine(plan="basic")
    try:
        return run_case(engine, case)
    finally:
        engine.close()


@pytest.mark.parametrize("seed", seeds(1, 200))
def test_whatever_a_killed_process_leaves_is_opened(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The state is copied in the middle of writing, merging and removing files, as a process that dies leaves it."""
    rng = Random(seed)
    case = random_join_case(seed, templates=3, batches=6, in_order=True)
    wanted = expected(case)
    copies: list[Path] = []

    def dies_now(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if rng.random() < 0.05:
                copies.append(tmp_path / f"copy{len(copies)}")
                shutil.copytree(tmp_path / "state", copies[-1])
            return function(*arguments, **named)

        return call

    with monkeypatch.context() as patched:
        for owner, name in ((RunWriter, "_write"), (RunWriter, "finish"), (Path, "unlink"), (StoredRuns, "committed")):
            patched.setattr(owner, name, dies_now(getattr(owner, name)))
        with opened(case, tmp_path / "state") as engine:
            run(engine, case, 0)
    assert copies
    for copy in copies:
        with opened(case, copy) as engine:
            done = (engine.highest("r_docts", "docid") + 1) // DOCUMENTS
            assert run(engine, case, done) == wanted[done:]
            engine.begin()
            engine.join(NO_WITNESSES, 10**6, case.scope)  # which opens the runs, if no batch was left
            engine.evict(10**9 * SECOND)
            engine.commit()
            assert files(copy) == []


def run(engine: JoinEngine, case: JoinCase, first_batch: int) -> list[Result]:
    """The results of the batches from `first_batch` on, each committed."""
    results = []
    for first, batch in case.batches[first_batch:]:
        engine.begin()
        results.append(sorted_rows(engine.join(batch, first, case.scope)))
        engine.commit()
    return results


@pytest.mark.parametrize("seed", seeds(1, 100))
def test_a_full_disk_stops_a_batch_and_loses_nothing(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = Random(seed)
    case = random_join_case(seed, templates=3, batches=6, in_order=True)
    wanted = expected(case)
    write = RunWriter._write
    full = False

    def may_fail(writer: RunWriter, content: bytes, at: int) -> int:
        if full and rng.random() < 0.5:
            raise OSError(28, "No space left on device")
        return write(writer, content, at)

    monkeypatch.setattr(RunWriter, "_write", may_fail)
    said = []
    with opened(case, tmp_path) as engine:
        for (first, batch), rows in zip(case.batches, wanted, strict=True):
            full = rng.random() < 0.7
            engine.begin()
            assert sorted_rows(engine.join(batch, first, case.scope)) == rows
            try:
                engine.commit()
                continue
            except StoreError as error:
                said.append(str(error))
                engine.rollback()
            full = False
            engine.begin()
            assert sorted_rows(engine.join(batch, first, case.scope)) == rows
            engine.commit()
    assert said
    assert all("No space left on device; make room" in text for text in said)


@pytest.mark.parametrize("harm", ["gone", "short", "turned"])
def test_damaged_runs_are_built_anew_from_the_tables(harm: str, tmp_path: Path):
    case = random_join_case(3, templates=3, batches=4, in_order=True)
    wanted = expected(case)
    with opened(case, tmp_path) as engine:
        for (first, batch), _ in zip(case.batches, range(3), strict=False):
            engine.begin()
            engine.join(batch, first, case.scope)
            engine.commit()
    for path in (tmp_path / RUNS).iterdir():
        content = path.read_bytes()
        if harm == "gone":
            path.unlink()
        else:
            path.write_bytes(content[:-1] if harm == "short" else content[:-40] + b"?" + content[-39:])
    with opened(case, tmp_path) as engine:
        assert run(engine, case, 3) == wanted[3:]


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_a_state_on_disk_is_the_state_on_spark(
    seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The driver reads the state in small parts, in which edges come in another order."""
    from join_stage.spark.engine import SparkEngine

    monkeypatch.setattr("join_stage.signature.plan.READ_DOCUMENTS", 3)
    case = random_join_case(seed, batches=8, in_order=True)
    wanted = expected(case)
    for at in (0, 3, 6):
        if at == 3:  # then all is read from the tables
            shutil.rmtree(tmp_path / RUNS)
        engine = SparkEngine(spark, tmp_path, "signature")
        for template, rows in case.templates:
            engine.put_rows(template, rows)
        for (first, batch), rows_of in list(zip(case.batches, wanted, strict=True))[at : at + 3]:
            engine.begin()
            assert sorted_rows(engine.join(batch, first, case.scope)) == rows_of
            engine.commit()
        assert stored(engine).now.runs
        engine.close()


@pytest.mark.parametrize("in_order", [pytest.param(True, marks=pytest.mark.soak), False])
def test_what_is_evicted_leaves_the_disk(in_order: bool, tmp_path: Path):
    """Documents of five or ten hours, with a window of one hour; one of them is dated a century ahead."""
    hour, count = 3_600_000_000, 200 if at_length() else 50
    rng, runs, most = np.random.default_rng(3), StoredRuns(tmp_path), 0
    runs.open(None, lambda one: 1)
    for number in range(count):
        run, values, classes = random_run(rng, 40, number * 40, 30)
        begin = number * hour // 20 if in_order else int(rng.integers(max(0, number - 15), number + 1)) * hour // 20
        if number == 5:
            begin += 100 * 365 * 24 * hour
        run = replace(run, time=run.time + begin, t0=run.t0 + begin, t1=run.t1 + begin)
        runs.add(run, values, classes, number * 40 + 39)
        runs.evict((number - 20) * hour // 20)
        runs.merge(hour, lambda one: 1)
        for merge in runs._merges:
            merge.wait()
        runs.committed()
        most = max(most, len(runs.now.runs))
    assert most <= MOST_RUNS
    alive = sum(
        int((run.file.postings.range(0, len(run))["time"] >= (count - 21) * hour // 20).sum()) for run in runs.now.runs
    )
    assert sum(map(len, runs.now.runs)) < 3 * alive
    named = {run.file.path.name for run in runs.now.runs} | {merge.path.name for merge in runs._merges}
    assert {path.name for path in tmp_path.iterdir()} <= named
