"""A batch, a subscription or a script that fails leaves no trace in an engine."""

import pytest

from feeds.document import Document
from mmqjp.session import Session
from tests.support.pairs import PAIRS, doc, pairs


def test_a_batch_that_fails_leaves_no_trace(engine: Session, monkeypatch: pytest.MonkeyPatch):
    engine.subscribe(PAIRS)
    engine.process([doc(1)])
    before = engine.counters()
    with monkeypatch.context() as patched:
        patched.setattr(engine._store, "commit", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.process([doc(2), doc(3)])
    assert engine.counters() == before
    assert pairs(engine.process([doc(2), doc(3)])) == [("d1", "d2"), ("d1", "d3"), ("d2", "d3")]
    assert engine.sql("SELECT count(*) AS n FROM outputs")["n"][0].as_py() == 3


def test_a_failed_batch_can_bring_shapes_that_were_new_with_it(engine: Session, monkeypatch: pytest.MonkeyPatch):
    engine.subscribe("S//a->x FOLLOWED BY {x = y, 10} S//a->y")
    nested = Document("nested", "<b><a>v</a></b>", time=0)
    with monkeypatch.context() as patched:
        patched.setattr(engine._store, "commit", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.process([nested])
    engine.process([nested])
    assert pairs(engine.process([Document("again", "<b><a>v</a></b>", time=1)])) == [("nested", "again")]


def test_a_subscription_that_cannot_be_stored_is_not_made(engine: Session, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patched:
        patched.setattr(engine._store, "commit", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.subscribe(PAIRS + " PUBLISH p")
    assert not engine.queries() and not engine.catalog.steps
    engine.subscribe(PAIRS + " PUBLISH p")
    assert pairs(engine.process([doc(1), doc(2)])) == [("d1", "d2")]


def test_a_script_that_cannot_be_registered_leaves_nothing(engine: Session, monkeypatch: pytest.MonkeyPatch):
    add = engine.catalog.add
    calls = iter([add])
    monkeypatch.setattr(type(engine.catalog), "add", lambda _self, *given: next(calls, lambda *_: 1 / 0)(*given))
    with pytest.raises(ZeroDivisionError):
        engine.subscribe("S/a PUBLISH one; S/b PUBLISH two")
    monkeypatch.undo()
    assert not engine.queries() and not engine.catalog.steps and not engine.process([doc(1)])
    engine.subscribe("S/a PUBLISH one")
    assert [o.query for o in engine.process([doc(2)])] == ["one"]


def test_a_commit_that_fails_in_the_database_is_taken_back(engine: Session, monkeypatch: pytest.MonkeyPatch):
    engine.subscribe(PAIRS)

    def fail() -> None:
        engine._store.rollback()
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(engine._store, "commit", fail)
        with pytest.raises(ZeroDivisionError):
            engine.process([doc(1), doc(2)])
    assert pairs(engine.process([doc(1), doc(2)])) == [("d1", "d2")]
