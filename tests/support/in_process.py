"""Spark's tasks run in this process: what a step asks of a context, so that tests can count, fail and repeat them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from random import Random
from typing import Any

import pytest
from pyspark import TaskContext, cloudpickle


class Broadcasted:
    def __init__(self, value: Any) -> None:
        self._pickled = pickle.dumps(value)
        self._value: Any = None

    @property
    def value(self) -> Any:
        if self._value is None:
            self._value = pickle.loads(self._pickled)
        return self._value

    def __getstate__(self) -> dict[str, Any]:
        return {"_pickled": self._pickled, "_value": None}

    def destroy(self) -> None:
        """Nobody may ask for it any more."""
        self._pickled = b""


Partition = Callable[[], list[Any]]


class Rows:
    """Partitions that are computed each time they are asked for, as after the loss of what was kept. What goes through
    a shuffle, or to the driver, is pickled, and comes in any order."""

    def __init__(self, context: Context, partitions: list[Partition]) -> None:
        self._context, self._partitions = context, partitions

    def _then(self, function: Callable[[int, Iterator[Any]], Iterable[Any]]) -> Rows:
        function = cloudpickle.loads(cloudpickle.dumps(function))

        def computed(number: int, partition: Partition) -> Partition:
            return lambda: self._context.attempted(lambda: list(function(number, iter(partition()))))

        return Rows(self._context, [computed(number, one) for number, one in enumerate(self._partitions)])

    def flatMap(self, function: Callable[[Any], Iterable[Any]]) -> Rows:  # noqa: N802  # Spark's name
        return self._then(lambda _, rows: (made for row in rows for made in function(row)))

    def mapPartitionsWithIndex(self, function: Callable[[int, Iterator[Any]], Iterable[Any]]) -> Rows:  # noqa: N802  # Spark's name
        return self._then(function)

    def mapPartitions(self, function: Callable[[Iterator[Any]], Iterable[Any]]) -> Rows:  # noqa: N802  # Spark's name
        return self._then(lambda _, rows: function(rows))

    def union(self, other: Rows) -> Rows:
        return Rows(self._context, self._partitions + other._partitions)

    def partitionBy(self, count: int, function: Callable[[Any], int]) -> Rows:  # noqa: N802  # Spark's name
        def partition(number: int) -> list[Any]:
            rows = [row for row in self.collect() if function(row[0]) % count == number]
            self._context.random.shuffle(rows)
            return rows

        return Rows(self._context, [lambda number=number: partition(number) for number in range(count)])  # type: ignore[misc]  # mypy infers no type for a default

    def persist(self, *_: object) -> Rows:
        return self

    def unpersist(self) -> None:
        """Does nothing: nothing was kept."""

    def collect(self) -> list[Any]:
        return [pickle.loads(pickle.dumps(row)) for partition in self._partitions for row in partition()]

    def toLocalIterator(self) -> Iterator[Any]:  # noqa: N802  # Spark's name
        return iter(self.collect())

    def sum(self) -> int:
        return sum(self.collect())


class Context:
    """Stands for a SparkContext with some cores. `attempted` runs a task; tests may replace it."""

    def __init__(self, cores: int, seed: int = 0) -> None:
        self.defaultParallelism = cores
        self.random = Random(seed)
        self.master = "local[2]"
        self.jobs = 0
        self._active_spark_context = self

    def parallelize(self, rows: Iterable[Any], count: int) -> Rows:
        every = list(rows)
        self.jobs += 1
        return Rows(self, [lambda n=n: every[n::count] for n in range(count)])  # type: ignore[misc]  # of a default

    def broadcast(self, value: Any) -> Broadcasted:
        return Broadcasted(value)

    def addJobTag(self, tag: str) -> None:  # noqa: N802  # Spark's name
        """Does nothing: jobs are not cancelled."""

    removeJobTag = cancelJobsWithTag = addJobTag  # noqa: N815  # Spark's names

    def attempted(self, task: Callable[[], list[Any]]) -> list[Any]:
        return task()


def run_in_process(monkeypatch: pytest.MonkeyPatch, cores: int, seed: int = 0) -> Context:
    context, attempts = Context(cores, seed), count()

    class Attempt:
        def taskAttemptId(self) -> int:  # noqa: N802  # Spark's name
            return next(attempts)

    monkeypatch.setattr("join_stage.spark.engine.SparkEngine.context", context)
    monkeypatch.setattr("join_stage.spark.tasks.LEAST_DOCUMENTS", 1)
    monkeypatch.setattr(TaskContext, "get", Attempt)
    return context
