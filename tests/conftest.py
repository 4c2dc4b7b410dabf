"""What tests share: the property-test profiles, the one Spark session, a server of feeds."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import settings

from tests.generate.seeds import AT_LENGTH
from tests.support.feed_server import FeedServer, Fetching, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARVING = 5
"""With so many processes to a core a machine is said to be starved."""

# Tables are as wide as where nothing says how wide: the readline of the main process tells its workers a width.
os.environ.pop("COLUMNS", None)

# A JVM of the tests ends before what it compiles with more care pays: that took a fifth of its time. And it need not
# verify the classes of Spark.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK)

settings.register_profile("ci", deadline=None, print_blob=True, max_examples=25)
settings.register_profile("soak", settings.get_profile("ci"), max_examples=AT_LENGTH)
settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sends all tests that use Spark to the same worker: one session serves them, and two would fight for the cores."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(autouse=True)
def no_session_but_of_tests_that_ask(request: pytest.FixtureRequest) -> Iterator[None]:
    """A worker has one Spark session for many tests: to others it would say that Spark is the engine to choose."""
    with pytest.MonkeyPatch.context() as patch:
        if "spark" not in request.fixturenames:
            patch.setattr("mmqjp.state.engine_choice.has_session", lambda: False)
        yield


STARVED = ("SocketTimeoutException", "failed to connect back", "timed out", "TimeoutError", "TimeoutExpired")
"""What failures of tests say that had to wait too long for a core."""


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Says of failures that may come of a machine with too much to do that they may."""
    failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    waited = [report.nodeid for report in failed if any(sign in report.longreprtext for sign in STARVED)]
    load, cores = os.getloadavg()[1], os.cpu_count() or 1
    if not waited and not (failed and load > STARVING * cores):
        return
    terminalreporter.section("a starved machine?", yellow=True)
    terminalreporter.line(
        f"{len(failed)} failed, {len(waited)} after waiting too long; the load was {load:.0f} on {cores} cores. "
        "Where other programs take the cores, Spark's processes may not answer each other in time, which says nothing "
        "about the code. End the other programs and run these tests again:"
    )
    for nodeid in waited or [report.nodeid for report in failed]:
        terminalreporter.line(f"  {nodeid}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The Spark session of this test worker, local, with a warehouse of its own."""
    from join_stage.store.spark.session import spark_session

    session = spark_session(warehouse=tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()


@pytest.fixture
def server() -> Iterator[FeedServer]:
    """A server on loopback for feeds."""
    with running_server() as server:
        yield server


@pytest.fixture
def fetching(tmp_path: Path) -> Fetching:
    """A fetch in this process, which keeps what it gets in a directory of its own."""
    return Fetching(tmp_path)
