"""A subscription of event statements that fails leaves no trace, and what was there before goes on."""

import pytest

from feeds.documents import Document
from tests.support.faults import FaultySession, Injected

POSTS = "DEFINE EVENT Post FROM S//x->x (k := x/k); FROM Post PUBLISH posts"
OTHER_POSTS = "DEFINE EVENT Post FROM S//x->x (j := x/j); FROM Post PUBLISH posts"


def document(number: int) -> Document:
    return Document(f"d{number}", f"<x><k>k{number}</k><j>j{number}</j></x>", "S", number * 3_600_000_000)


def test_a_subscription_that_cannot_be_stored_is_not_made(engine: FaultySession):
    with engine.store.failing("commit"), pytest.raises(Injected):
        engine.subscribe(POSTS)
    events = engine.registry.events
    assert not engine.queries() and not engine.catalog.steps and not events.definitions and not events.running.forms
    engine.subscribe(POSTS)
    engine.process([document(1)])
    assert [one.xml.count("<k>k1</k>") for one in engine.process([document(2)])] == [1]


def test_a_change_of_a_definition_that_cannot_be_stored_is_not_made(engine: FaultySession):
    engine.subscribe(POSTS)
    engine.process([document(1)])
    with engine.store.failing("commit"), pytest.raises(Injected):
        engine.subscribe(OTHER_POSTS)
    assert [one.xml.count("<k>k1</k>") for one in engine.process([document(2)])] == [1]
    engine.subscribe(OTHER_POSTS)
    assert [one.xml.count("<j>j2</j>") for one in engine.process([document(3)])] == [1]


def test_an_unsubscription_that_cannot_be_stored_is_not_made(engine: FaultySession):
    engine.subscribe(POSTS)
    engine.process([document(1)])
    with engine.store.failing("commit"), pytest.raises(Injected):
        engine.unsubscribe("posts")
    assert [one.xml.count("<k>k1</k>") for one in engine.process([document(2)])] == [1]
    engine.unsubscribe("posts")
    with engine.store.failing("commit"), pytest.raises(Injected):
        engine.unsubscribe("Post")
    assert list(engine.registry.events.definitions) == ["Post"]
    engine.unsubscribe("Post")
    assert not engine.registry.events.definitions and not list(engine.process([document(3)]))
