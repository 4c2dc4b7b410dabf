"""Merges runs, and files of tables, on an executor, so that the driver has no part in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from py4j.protocol import Py4JError
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException

from common.whole_file import sync_directory
from join_stage.signature.disk.disk_run import DiskRun
from join_stage.signature.disk.merging import merged
from join_stage.signature.disk.paged_records import PagePool
from join_stage.signature.disk.run_file import RunFile
from join_stage.spark.spread.tasks import StoredRun
from join_stage.store.spark.data_files import Merging, merge_files
from join_stage.store.spark.manifests import DataFile

_FAILURES = (Py4JError, PySparkException, ConnectionError)


class SparkMerger:
    """A `Merger` whose merges are jobs of one task."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def merge(self, runs: Sequence[DiskRun], path: Path, is_stopped: Callable[[], bool]) -> None:
        inputs = [StoredRun(run.file.path, run.low) for run in runs]
        self._context.addJobTag(_tag(path))
        try:
            if not is_stopped():
                self._context.parallelize([path], 1).mapPartitions(partial(_merge, inputs)).collect()
        except _FAILURES as error:
            _remove_drafts(path)
            raise OSError(f"an executor did not merge runs: {error}") from error
        finally:
            self._context.removeJobTag(_tag(path))

    def stop(self, path: Path) -> None:
        self._context.cancelJobsWithTag(_tag(path))


def _tag(path: Path) -> str:
    return f"merge {path.name}"


def _merge(inputs: Sequence[StoredRun], paths: Iterator[Path]) -> Iterator[None]:
    """Merges runs. Each attempt writes a file of its own, which takes the name when it is whole."""
    runs = []
    for path, low in inputs:
        file = RunFile(path, PagePool())
        runs.append(DiskRun(file, np.zeros(len(file.head.classes), np.int64), low))
    for path in paths:
        with _draft_of(path) as draft:
            for _ in merged(runs, draft):
                pass
    return iter(())


@contextmanager
def _draft_of(path: Path) -> Iterator[Path]:
    """The path of a file that takes the name `path` at the end. Each attempt at a task has one of its own."""
    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    draft = path.with_suffix(f".{context.taskAttemptId()}")
    try:
        yield draft
        if path.exists():  # another attempt was as fast
            draft.unlink()
        else:
            draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _remove_drafts(path: Path) -> None:
    """Removes what attempts have left that were killed."""
    for draft in path.parent.glob(f"{path.stem}.*"):
        if draft.suffix != path.suffix:
            draft.unlink(missing_ok=True)


def merge_on_executor(context: SparkContext, merging: Merging) -> DataFile:
    """Does what `merge_files` does, on an executor; or here, if that fails."""
    try:
        (found,) = context.parallelize([merging], 1).mapPartitions(_merge_files).collect()
    except _FAILURES:
        _remove_drafts(merging.path)
        return merge_files(merging)
    file: DataFile = found
    return file


def _merge_files(given: Iterable[Merging]) -> Iterator[DataFile]:
    for merging in given:
        with _draft_of(merging.path) as draft:
            file = merge_files(merging._replace(path=draft))
        yield replace(file, name=merging.path.name)
