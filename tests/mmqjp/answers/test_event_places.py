"""Wherever event queries are answered, outputs are the same: in the driver, on executors, and as SQL."""

import signal
from collections.abc import Iterable

import pytest

from common.errors import InvalidValue
from feeds.documents import Document
from mmqjp.answers.events_run import PLACES, check_place
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from pattern_stage.partition.kernel import SparkRunner
from tests.mmqjp.answers.event_world import END
from tests.processes import nursery
from tests.processes.event_engine import SETTLE, events_script, given, live
from tests.support.faults import Injected, fail

Told = list[tuple[int, str, str, tuple[str, ...]]]


def told(outputs: Iterable[Output]) -> Told:
    return [(one.seq, one.id, one.xml, one.documents) for one in outputs]


def ended(engine: Session) -> Told:
    engine.process([Document(f"last of {stream}", b"<none/>", stream, END) for stream in "ST"])
    return told(engine.outputs())


@pytest.fixture(autouse=True)
def few_events_are_worth_a_job(monkeypatch):
    defaults = SparkRunner.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "least", 0)


def undisturbed(seed: int) -> Told:
    with Session("duckdb", settle=SETTLE, quiet=True) as engine:
        engine.subscribe(events_script(seed))
        for batch in given(seed):
            engine.process(batch)
        return ended(engine)


@pytest.mark.soak
def test_a_store_may_be_opened_with_another_place(spark, tmp_path):
    seed, batches = 1, given(1)
    quarter = -(-len(batches) // 4)
    for number, place in enumerate(("executors", "driver", "executors", "executors")):
        with Session(spark, state=tmp_path, settle=SETTLE, patterns=place, quiet=True) as engine:
            if not number:
                engine.subscribe(events_script(seed))
            for batch in batches[number * quarter : (number + 1) * quarter]:
                engine.process(batch)
    with Session(spark, state=tmp_path, settle=SETTLE, patterns="driver", quiet=True) as engine:
        found = ended(engine)
    assert found == undisturbed(seed) != []


@pytest.mark.soak
@pytest.mark.parametrize("point", ["before", "after"])
def test_killed_amid_a_batch(point, spark, tmp_path):
    seed, batches = 2, given(2)
    killed = nursery.run(live, tmp_path, seed, point, 6)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = 5 if point == "before" else 6
    for place, some in (("executors", batches[done : done + 2]), ("driver", batches[done + 2 :])):
        with Session(spark, state=tmp_path, settle=SETTLE, patterns=place, quiet=True) as engine:
            assert engine.queries()
            for batch in some:
                engine.process(batch)
            found = told(engine.outputs())
    with Session(spark, state=tmp_path, settle=SETTLE, patterns="executors", quiet=True) as engine:
        found = ended(engine)
    assert found == undisturbed(seed) != []


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("duckdb", "sql"),
        pytest.param("spark", "sql", marks=[pytest.mark.spark, pytest.mark.soak]),
        pytest.param("spark", "executors", marks=pytest.mark.spark),
    ],
)
def test_a_finite_run(kind, place, request):
    engine = request.getfixturevalue("spark") if kind == "spark" else kind
    found = []
    for one, patterns in (("duckdb", "driver"), (engine, place)):
        with Session(one, settle=None, patterns=patterns, quiet=True) as opened:
            opened.subscribe(events_script(7))
            for number, batch in enumerate(given(7)):
                if number % 5 == 3:
                    with pytest.raises(Injected):
                        opened.process(batch, fail)
                opened.process(batch)
            found.append(told(opened.finish()))
    assert found[0] == found[1] != []


@pytest.mark.parametrize("place", PLACES)
def test_places_on_spark(place):
    check_place(place, on_spark=True, lasts=False, settle=None)


def test_places_that_cannot_be():
    for place, lasts, settle, message in (
        ("executors", False, None, "only Spark has executors"),
        ("sql", True, None, "keeps no state"),
        ("sql", False, 5, "settle be INF"),
        ("moon", False, None, "one of driver, executors, sql, not 'moon'"),
    ):
        with pytest.raises(InvalidValue, match=message):
            check_place(place, on_spark=False, lasts=lasts, settle=settle)


def test_an_engine_on_duckdb_has_no_executors():
    with pytest.raises(InvalidValue, match="only Spark has executors"):
        Session("duckdb", patterns="executors")
