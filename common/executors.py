"""Work on the executors of a Spark session: a function runs over parts, a task each, with what all tasks share."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast
from uuid import uuid4

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


_MOST_HELD = 8

_held: OrderedDict[str, tuple[int, Any]] = OrderedDict()
"""The values that tasks of this process used last: by the id of what shipped them, the version and the value."""


@dataclass(frozen=True)
class Shipment(Generic[_Value]):
    """A version of a value that was broadcast."""

    _shipped: str
    _version: int
    broadcast: Broadcast[_Value]

    def unpacked(self) -> _Value:
        """The value, which this process keeps. Spark would drop it before a task that does not need it, and load it
        again for the next that does: 10,000 queries in 0.4 s."""
        version, value = _held.get(self._shipped, (-1, None))
        if version != self._version:
            value = self.broadcast.value
            _held[self._shipped] = self._version, value
        _held.move_to_end(self._shipped)
        if len(_held) > _MOST_HELD:
            _held.popitem(last=False)
        return cast("_Value", value)


class Shipped(Generic[_Value]):
    """A value that executors have in its last version. `count` says how often it was broadcast."""

    def __init__(self, context: SparkContext) -> None:
        self._context, self._id = context, uuid4().hex
        self._kept: tuple[Hashable, Shipment[_Value]] | None = None
        self.count = 0

    def of(self, version: Hashable, make: Callable[[], _Value]) -> Shipment[_Value]:
        """The value of a version, which `make` returns if executors have another one or none."""
        if self._kept is None or self._kept[0] != version:
            self.drop()
            self.count += 1
            self._kept = version, Shipment(self._id, self.count, self._context.broadcast(make()))
        return self._kept[1]

    def drop(self) -> None:
        """Has the executors drop it. With a context that was stopped, it has gone: its number may be in use again."""
        from py4j.protocol import Py4JError

        kept, self._kept = self._kept, None
        if kept is not None and self._context._active_spark_context is self._context:
            with suppress(Py4JError, ConnectionError):  # Spark has ended
                kept[1].broadcast.destroy()


def with_shipped(function: Callable[..., _Result], value: Shipment[Any], *arguments: Any) -> Callable[..., _Result]:
    """The function with a value and other arguments before those of a task."""
    return partial(_with_shipped, function, value, *arguments)


def _with_shipped(function: Callable[..., _Result], value: Shipment[Any], *arguments: Any) -> _Result:
    return function(value.unpacked(), *arguments)


def run_tasks(context: SparkContext, function: Callable[[_Part], _Result], parts: Sequence[_Part]) -> list[_Result]:
    """The results of a function for some parts, a task each. Raises Spark's errors."""
    pickled = [pickle.dumps(part, pickle.HIGHEST_PROTOCOL) for part in parts]
    tasks = context.parallelize(pickled, len(pickled)).mapPartitions(partial(_run, function))
    return [pickle.loads(result) for result in tasks.collect()]


@in_task
def _run(function: Callable[[_Part], _Result], pickled: Iterator[bytes]) -> Iterator[bytes]:
    for part in pickled:
        yield pickle.dumps(function(pickle.loads(part)), pickle.HIGHEST_PROTOCOL)
