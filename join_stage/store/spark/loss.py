"""Reports as StoreError, in one line, that Spark is gone, has lost an executor, or has no memory left."""

from __future__ import annotations

import re
from typing import TypeVar

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from join_stage.store.protocol import OutOfMemory, StoreError
from join_stage.store.telling import telling

_Kind = TypeVar("_Kind", bound=type)

ENDED = "Spark has ended, or its JVM was killed; the same command goes on from here"

_NO_MEMORY = ("OutOfMemoryError", "GC overhead limit", "SparkOutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY")
_STOPPED = ("SparkContext was shut down", "stopped SparkContext", "SparkContext is stopping", "SparkContext has been")
_LOST = (
    "ExecutorLostFailure",
    "ExecutorDeadException",
    "RejectedExecutionException",
    "Python worker exited",
    "executor lost",
)


_OURS = re.compile(r"^\s*join_stage\.[\w.]+\.(?:StoreError|DamagedRun): (.+)$", re.MULTILINE)
"""An error of ours, as the traceback of a task ends."""


def telling_loss(kind: _Kind) -> _Kind:
    """A class decorator: public methods raise StoreError if Spark fails for want of processes or memory."""
    return telling(kind, (Py4JError, PySparkException, ConnectionError), loss)


def loss(error: BaseException) -> StoreError | None:
    """What to tell of an error of Spark's: None if it is not about processes or memory."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return StoreError(ENDED)
    try:
        text = str(error.java_exception) + str(error) if isinstance(error, Py4JJavaError) else str(error)
    except (Py4JError, ConnectionError):  # it can no longer be asked
        return StoreError(ENDED)
    if any(word in text for word in _NO_MEMORY):
        return OutOfMemory(
            "Spark has too little memory for this batch: take smaller batches, or give it more with the setting "
            "spark.driver.memory, on a cluster spark.executor.memory"
        )
    if any(word in text for word in _STOPPED):
        return StoreError(ENDED)
    if told := _OURS.search(text):
        return StoreError(told[1].strip())
    for word in _LOST:
        if word in text:
            line = next(line for line in text.splitlines() if word in line)
            return StoreError(
                f"an executor of Spark has ended ({line.strip()[:200]}); the same command goes on from here"
            )
    return None
