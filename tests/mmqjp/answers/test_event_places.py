"""Wherever event queries are answered, they tell the same: in the driver, on executors, and as SQL."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from common.errors import InvalidValue
from feeds.documents import Document
from mmqjp.answers.events import Patterns
from mmqjp.answers.events_run import PLACES, check_place, kernels
from mmqjp.answers.kernels import MakeKernel, PatternKernel
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from pattern_stage.lineage import Lineage
from pattern_stage.partition.kernel import HereRunner, PartitionedKernel, SparkRunner
from pattern_stage.values import Texts
from tests.generate.documents import SECOND, chance
from tests.generate.event_worlds import world
from tests.generate.pattern_worlds import pattern_world
from tests.generate.seeds import seeds
from tests.mmqjp.answers import test_event_worlds as worlds
from tests.mmqjp.answers.test_event_queries import END, Fault
from tests.oracle.pattern_world import PatternWorld
from tests.processes import nursery
from tests.processes.event_engine import SETTLE, events_script, given
from tests.support.pattern_outputs import assert_told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Told = list[tuple[int, str, str, tuple[str, ...]]]


def told(outputs: Iterable[Output]) -> Told:
    return [(one.seq, one.id, one.xml, one.documents) for one in outputs]


def ended(engine: Session) -> Told:
    engine.process([Document(f"last of {stream}", b"<none/>", stream, END) for stream in "ST"])
    return told(engine.outputs())


@pytest.fixture(autouse=True)
def little_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot comes after few batches, and few events are worth a job."""
    for method, name, value in ((Patterns.__init__, "snapshot_every", 4), (SparkRunner.__init__, "least", 0)):
        defaults = method.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, name, value)


def undisturbed(seed: int) -> Told:
    with Session("duckdb", settle=SETTLE, quiet=True) as engine:
        engine.subscribe(events_script(seed))
        for batch in given(seed):
            engine.process(batch)
        return ended(engine)


def in_parts(parts: int) -> MakeKernel:
    def make(texts: Texts, lineage: Lineage) -> PatternKernel:
        return PartitionedKernel(texts, lineage, HereRunner(parts))

    return make


@pytest.mark.parametrize("seed", [*seeds(2, 10, first=100), *seeds(2, 500, first=1000)])
def test_worlds_in_parts(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each restart, and each failed batch, there may be other parts, or none."""
    rng, found = Random(seed), some_world(seed)
    makers = [in_parts(1), in_parts(3), in_parts(7), kernels("driver", None)]
    monkeypatch.setattr("mmqjp.engine.kernels", lambda place, session, quota: rng.choice(makers))

    def opened() -> Session:
        return Session("duckdb", state=tmp_path, settle=worlds.SETTLE, quiet=True)

    engine = opened()
    names = engine.subscribe(worlds.script(found), add=True)
    for batch in worlds.batches(rng, worlds.documents(found)):
        if chance(rng, 20):
            with pytest.raises(Fault):
                engine.process(batch, fault)  # type: ignore[arg-type]  # it returns nothing
        engine.process(batch)
        if chance(rng, 30):
            engine.close()
            engine = opened()
    end = 10**6 * SECOND
    engine.process([Document(f"end {name}", "<end/>", f"documents_{name}", (end, end)) for name in found.given])
    outputs = list(engine.outputs())
    engine.close()
    assert_told(outputs, names, found)


def some_world(seed: int) -> PatternWorld:
    """A world without PATTERN statements, or, from 1000 on, with some."""
    if seed >= 1000:
        return pattern_world(seed)
    made = world(seed)
    return PatternWorld(made.schemas, made.given, made.statements)


def fault(_: object) -> None:
    raise Fault


@pytest.mark.soak
def test_a_store_may_be_opened_with_another_place(spark: SparkSession, tmp_path: Path) -> None:
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
    assert found == undisturbed(seed)
    assert found


@pytest.mark.parametrize("point", [pytest.param("before", marks=pytest.mark.soak), "after"])
def test_killed_amid_a_batch(point: str, spark: SparkSession, tmp_path: Path) -> None:
    seed, batches = 2, given(2)
    killed = nursery.run("tests.processes.event_engine", tmp_path, seed, point, 5)
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
    assert found == undisturbed(seed)
    assert found


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("duckdb", "sql"),
        pytest.param("spark", "sql", marks=[pytest.mark.spark, pytest.mark.soak]),
        pytest.param("spark", "executors", marks=pytest.mark.spark),
    ],
)
def test_a_finite_run(kind: str, place: str, request: pytest.FixtureRequest) -> None:
    engine = request.getfixturevalue("spark") if kind == "spark" else kind
    found = []
    for one, patterns in (("duckdb", "driver"), (engine, place)):
        with Session(one, settle=None, patterns=patterns, quiet=True) as opened:
            opened.subscribe(events_script(7))
            for number, batch in enumerate(given(7)):
                if number % 5 == 3:
                    with pytest.raises(Fault):
                        opened.process(batch, fault)  # type: ignore[arg-type]  # it returns nothing
                opened.process(batch)
            found.append(told(opened.finish()))
    assert found[0] == found[1]
    assert found[0]


@pytest.mark.parametrize("seed", [*seeds(2, 8, first=200), *seeds(1, 500, first=2000)])
def test_worlds_as_sql(seed: int) -> None:
    rng, made = Random(seed), some_world(seed)
    with Session("duckdb", settle=None, patterns="sql", quiet=True) as engine:
        names = engine.subscribe(worlds.script(made), add=True)
        for batch in worlds.batches(rng, worlds.documents(made)):
            engine.process(batch)
        outputs = list(engine.finish())
        assert not list(engine.finish())
    assert_told(outputs, names, made)


def test_places_that_can_be() -> None:
    for place in PLACES:
        check_place(place, on_spark=True, lasts=False, settle=None)


@pytest.mark.parametrize(
    ("place", "lasts", "settle", "message"),
    [
        ("executors", False, None, "only Spark has executors"),
        ("sql", True, None, "keeps no state"),
        ("sql", False, 5, "settle be INF"),
        ("moon", False, None, "one of driver, executors, sql, not 'moon'"),
    ],
)
def test_places_that_cannot_be(place: str, lasts: bool, settle: int | None, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        check_place(place, on_spark=False, lasts=lasts, settle=settle)


def test_an_engine_on_duckdb_has_no_executors() -> None:
    with pytest.raises(InvalidValue, match="only Spark has executors"):
        Session("duckdb", patterns="executors")
