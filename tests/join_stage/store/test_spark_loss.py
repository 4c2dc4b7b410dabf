"""The memory that Spark is given, and what is said when it ends or has too little."""

from __future__ import annotations

from pathlib import Path

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from join_stage.store.protocol import OutOfMemory, StoreError
from join_stage.store.spark.java import heap_mb, memory_bytes
from join_stage.store.spark.session import loss, telling_loss

GB = 1 << 30


def no_container(path: Path) -> str:
    raise FileNotFoundError(path)


def test_the_heap_is_a_quarter_of_the_memory_within_bounds():
    assert [heap_mb(memory) for memory in (None, GB, 16 * GB, 24 * GB, 256 * GB)] == [4096, 1024, 4096, 6144, 16384]


def test_a_container_may_have_less_memory_than_its_machine():
    machine = memory_bytes(no_container)
    assert machine is not None
    assert memory_bytes(lambda path: "max\n") == machine
    assert memory_bytes(lambda path: f"{machine // 2}\n") == machine // 2
    assert memory_bytes(lambda path: f"{machine * 2}\n") == machine


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), StoreError, "Spark has ended, or its JVM was killed"),
        (ConnectionRefusedError(111, "Connection refused"), StoreError, "Spark has ended, or its JVM was killed"),
        (PySparkException("Job 3 cancelled because SparkContext was shut down"), StoreError, "Spark has ended"),
        (PySparkException("java.lang.OutOfMemoryError: Java heap space"), OutOfMemory, "spark.driver.memory"),
        (PySparkException("a\nExecutorLostFailure (executor 1 exited)\nb"), StoreError, "(ExecutorLostFailure (exec"),
        (PySparkException("Python worker exited unexpectedly (crashed)"), StoreError, "an executor of Spark has ended"),
    ],
)
def test_what_is_lost_is_told_in_one_line(error: Exception, kind: type, said: str):
    found = loss(error)
    assert type(found) is kind
    assert said in str(found)
    assert "\n" not in str(found)


def test_other_errors_stay_what_they_are():
    @telling_loss
    class Store:
        def select(self, error: Exception) -> None:
            raise error

    bad = PySparkException("[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELCT'")
    with pytest.raises(PySparkException) as raised:
        Store().select(bad)
    assert raised.value is bad
    with pytest.raises(Py4JError):
        Store().select(Py4JError("An error occurred while calling o1.x"))
    with pytest.raises(StoreError, match="goes on from here") as told:
        Store().select(ConnectionResetError())
    assert isinstance(told.value.__cause__, ConnectionResetError)
