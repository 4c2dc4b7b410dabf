"""Merges on executors: what fails there is done here, or later, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError

from join_stage.signature import disk
from join_stage.signature.disk import StoredRuns
from join_stage.signature.runs import RunWriter
from join_stage.spark.tasks import SparkMerger, merge_on_executor
from join_stage.store.protocol import StoreError
from join_stage.store.spark.manifests import Merging, read_rows, write_data_file
from join_stage.store.spark.session import loss
from tests.join_stage.test_disk_run import random_run
from tests.support.in_process import Context, run_in_process

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Context:
    return run_in_process(monkeypatch, cores=2)


def fail(*_: object) -> list[object]:
    raise Py4JError("an executor was lost")


def runs_of(tmp_path: Path, context: Context, count: int) -> StoredRuns:
    runs, rng = StoredRuns(tmp_path, SparkMerger(context)), np.random.default_rng(5)  # type: ignore[arg-type]  # which stands for one
    runs.open(None, lambda one: 1)
    for number in range(count):
        run, values, classes = random_run(rng, 40, number * 40, 30)
        runs.add(run, values, classes, number * 40 + 39)
    return runs


def wait(runs: StoredRuns) -> None:
    for merge in [*runs._merges]:
        merge.wait()


def test_runs_are_merged_by_a_task(tmp_path: Path, context: Context):
    runs = runs_of(tmp_path, context, 2)
    postings = sum(len(run) for run in runs.now.runs)
    for _ in range(2):
        runs.merge(1 << 60, lambda one: 1)
        wait(runs)
    runs.committed()
    assert [len(run) for run in runs.now.runs] == [postings]
    assert len(list(tmp_path.iterdir())) == 1 and context.jobs == 1


def test_a_merge_that_a_task_does_not_finish_is_tried_after_the_next_run(
    tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch
):
    runs = runs_of(tmp_path, context, 2)
    with monkeypatch.context() as patch:
        patch.setattr(context, "attempted", fail)
        for _ in range(3):  # and no batch fails
            runs.merge(1 << 60, lambda one: 1)
            wait(runs)
            runs.committed()
    assert len(runs.now.runs) == 2 and len(list(tmp_path.iterdir())) == 2
    run, values, classes = random_run(np.random.default_rng(6), 300, 80, 30)
    runs.add(run, values, classes, 379)
    for _ in range(6):
        runs.merge(1 << 60, lambda one: 1)
        wait(runs)
        runs.committed()
    assert len(runs.now.runs) == 1 and len(list(tmp_path.iterdir())) == 1


def test_a_task_that_is_killed_leaves_nothing_for_good(
    tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(disk, "PIECE", 16)
    runs = runs_of(tmp_path, context, 2)

    def half(*_: object) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "put_groups", half)
        runs.merge(1 << 60, lambda one: 1)
        wait(runs)
        runs.merge(1 << 60, lambda one: 1)
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "9-x.77").write_text("of a killed process")
    runs._merges.clear()
    runs.open(runs.manifest(), lambda one: 1)
    runs.committed()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_files_of_tables_are_merged_there_or_here(
    fails: bool, tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch
):
    if fails:
        monkeypatch.setattr(context, "attempted", fail)
    inputs = []
    for number in range(3):
        rows = pa.table({"n": [number, number + 10], "text": ["x", None]}, SCHEMA)
        inputs.append(tmp_path / f"{number}.parquet")
        write_data_file(inputs[-1], [rows], SCHEMA)
    file = merge_on_executor(context, Merging(tmp_path / "all.parquet", tuple(inputs), SCHEMA, 1, None, None))  # type: ignore[arg-type]  # which stands for one
    assert (file.name, file.rows, file.level) == ("all.parquet", 6, 1)
    assert read_rows(tmp_path / "all.parquet", SCHEMA)["n"].to_pylist() == [0, 10, 1, 11, 2, 12]
    assert len(list(tmp_path.iterdir())) == 4


def test_an_error_of_ours_in_a_task_is_told_as_it_is():
    text = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "kept.py", line 3, in open
join_stage.store.protocol.StoreError: 7.run is gone, for an executor of Spark: name a directory that all see

	at org.apache.spark.api.python.BasePythonRunner"""
    told = loss(Py4JError(text))
    assert isinstance(told, StoreError)
    assert str(told) == "7.run is gone, for an executor of Spark: name a directory that all see"
