"""Work on the executors of a Spark session: a function runs over parts, a task each, with what all tasks share."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from common.tools import gc_paused

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext

_Value = TypeVar("_Value")
_Part = TypeVar("_Part")
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


def in_task(work: Callable[_Arguments, Iterator[_Result]]) -> Callable[_Arguments, Iterator[_Result]]:
    """Decorator of a generator function that tasks run. Python workers of Spark scan their whole heap after each task:
    65 ms of CPU, with our modules, for tasks that take 20. So nothing is collected inside, and survivors are frozen."""

    @wraps(work)
    def run(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> Iterator[_Result]:
        with gc_paused(frozen=True):
            yield from work(*arguments, **named)

    return run


class Shipped(Generic[_Value]):
    """A value that executors have in its last version. `count` says how often it was broadcast."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._kept: tuple[Hashable, Broadcast[_Value]] | None = None
        self.count = 0

    def of(self, version: Hashable, make: Callable[[], _Value]) -> Broadcast[_Value]:
        """The value of a version, which `make` returns if executors have another one or none."""
        if self._kept is None or self._kept[0] != version:
            self.drop()
            self._kept = version, self._context.broadcast(make())
            self.count += 1
        return self._kept[1]

    def drop(self) -> None:
        """Has the executors drop it. With a context that was stopped, it has gone: its number may be in use again."""
        from py4j.protocol import Py4JError

        kept, self._kept = self._kept, None
        if kept is not None and self._context._active_spark_context is self._context:
            with suppress(Py4JError, ConnectionError):  # Spark has ended
                kept[1].destroy()


def with_shipped(function: Callable[..., _Result], value: Broadcast[Any], *arguments: Any) -> Callable[..., _Result]:
    """The function with a value and other arguments before those of a task."""
    return partial(_with_shipped, function, value, *arguments)


def _with_shipped(function: Callable[..., _Result], value: Broadcast[Any], *arguments: Any) -> _Result:
    return function(value.value, *arguments)


def run_tasks(context: SparkContext, function: Callable[[_Part], _Result], parts: Sequence[_Part]) -> list[_Result]:
    """The results of a function for some parts, a task each. Raises Spark's errors."""
    pickled = [pickle.dumps(part, pickle.HIGHEST_PROTOCOL) for part in parts]
    tasks = context.parallelize(pickled, len(pickled)).mapPartitions(partial(_run, function))
    return [pickle.loads(result) for result in tasks.collect()]


@in_task
def _run(function: Callable[[_Part], _Result], pickled: Iterator[bytes]) -> Iterator[bytes]:
    for part in pickled:
        yield pickle.dumps(function(pickle.loads(part)), pickle.HIGHEST_PROTOCOL)
