"""A batch, a subscription or a script that fails leaves no trace in an engine."""

import pytest

from feeds.documents import Document
from templates.catalog import Catalog
from tests.support.faults import FaultySession, Injected, armed, fail
from tests.support.pairs import PAIRS, doc, pairs


def test_a_batch_that_fails_leaves_no_trace(engine: FaultySession):
    engine.subscribe(PAIRS)
    engine.process([doc(1)])
    before = engine.counters()
    with engine.store.failing("commit"), pytest.raises(Injected):
        engine.process([doc(2), doc(3)])
    assert engine.counters() == before
    assert pairs(engine.process([doc(2), doc(3)])) == [("d1", "d2"), ("d1", "d3"), ("d2", "d3")]
    assert engine.sql("SELECT count(*) AS n FROM outputs")["n"][0].as_py() == 3


def test_a_failed_batch_can_bring_shapes_that_were_new_with_it(engine: FaultySession):
    engine.subscribe("S//a->x FOLLOWED BY {x = y, 10} S//a->y")
    nested = Document("nested", "<b><a>v</a></b>", time=0)
    with engine.store.failing("commit"), pytest.raises(Injected):
        engine.process([nested])
    engine.process([nested])
    assert pairs(engine.process([Document("again", "<b><a>v</a></b>", time=1)])) == [("nested", "again")]


def test_a_subscription_that_cannot_be_stored_is_not_made(engine: FaultySession):
    with engine.store.failing("commit"), pytest.raises(Injected):
        engine.subscribe(PAIRS + " PUBLISH p")
    assert not engine.queries() and not engine.catalog.steps
    engine.subscribe(PAIRS + " PUBLISH p")
    assert pairs(engine.process([doc(1), doc(2)])) == [("d1", "d2")]


def test_a_script_that_cannot_be_registered_leaves_nothing(engine: FaultySession):
    with armed((Catalog, "add"), fail, calls=2), pytest.raises(Injected):
        engine.subscribe("S/a PUBLISH one; S/b PUBLISH two")
    assert not engine.queries() and not engine.catalog.steps and not engine.process([doc(1)])
    engine.subscribe("S/a PUBLISH one")
    assert [o.query for o in engine.process([doc(2)])] == ["one"]


def test_a_commit_that_fails_in_the_database_is_taken_back(engine: FaultySession):
    engine.subscribe(PAIRS)

    def taken_back() -> None:
        engine.store.rollback()
        raise Injected

    with engine.store.failing("commit", call=taken_back), pytest.raises(Injected):
        engine.process([doc(1), doc(2)])
    assert pairs(engine.process([doc(1), doc(2)])) == [("d1", "d2")]
