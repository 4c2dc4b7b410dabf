"""The work of parts as tasks on the executors of Spark."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from py4j.protocol import Py4JError
from pyspark import Broadcast, SparkContext

from pattern_stage.partition.work import Done, Told, Work, Worker

LEAST = 10_000
"""Fewer events than this are worth no job: what a job takes alone, this process needs for so many."""

_WORKER = Worker()
"""That of this process, if it is one of an executor."""


class SparkRunner:
    """Implements `pattern_stage.partition.runner.Runner`: a task for each part. A task that is repeated elsewhere finds
    the same, as all that it needs comes with it."""

    def __init__(self, context: SparkContext, parts: int | None = None, *, least: int = LEAST) -> None:
        """Without `parts`, there are as many as tasks run at the same time. Work of fewer than `least` events is done
        here."""
        self._context, self._least = context, least
        self.parts = parts or context.defaultParallelism
        self._here = Worker()
        self._told: tuple[str, Broadcast[Told]] | None = None

    def run(self, told: Told, works: Sequence[Work]) -> list[Done]:
        """Does the work of some parts."""
        if sum(work.events for work in works) < self._least:
            return [self._here.work(told, work) for work in works]
        if self._told is None or self._told[0] != told.version:
            self.close()
            self._told = told.version, self._context.broadcast(told)
        pickled = [pickle.dumps(work, pickle.HIGHEST_PROTOCOL) for work in works]
        tasks = self._context.parallelize(pickled, len(pickled)).map(partial(_work, self._told[1]))
        return [pickle.loads(done) for done in tasks.collect()]

    def close(self) -> None:
        """Has the executors forget the statements."""
        told, self._told = self._told, None
        if told is not None:
            with suppress(Py4JError, ConnectionError):  # if Spark has ended, they have forgotten them
                told[1].destroy()


# ------------------------------------------------------------ on executors


def _work(told: Broadcast[Told], work: bytes) -> bytes:
    return pickle.dumps(_WORKER.work(told.value, pickle.loads(work)), pickle.HIGHEST_PROTOCOL)
