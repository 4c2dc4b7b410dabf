"""A subscription of event statements that fails leaves no trace, and what was there before goes on."""

from collections.abc import Callable

import pytest

from feeds.documents import Document
from tests.support.faults import FaultySession, Injected

POSTS = "DEFINE EVENT Post FROM S//x->x (k := x/k); FROM Post PUBLISH posts"
OTHER_POSTS = "DEFINE EVENT Post FROM S//x->x (j := x/j); FROM Post PUBLISH posts"


def seen(engine: FaultySession, number: int) -> list[str]:
    """The content of the outputs that another document releases."""
    xml = f"<x><k>k{number}</k><j>j{number}</j></x>"
    outputs = engine.process([Document(f"d{number}", xml, "S", number * 3_600_000_000)])
    return [one.xml.partition(">")[2].removesuffix("</match>") for one in outputs]


def fails(engine: FaultySession, call: Callable[[str], object], text: str) -> None:
    with engine.store.failing("commit"), pytest.raises(Injected):
        call(text)


def test_what_cannot_be_stored_is_not_done(engine: FaultySession):
    fails(engine, engine.subscribe, POSTS)
    events = engine.registry.events
    assert not engine.queries() and not engine.catalog.steps and not events.definitions and not events.running.forms
    engine.subscribe(POSTS)
    assert not seen(engine, 1)
    fails(engine, engine.subscribe, OTHER_POSTS)
    assert seen(engine, 2) == ["<k>k1</k>"]
    engine.subscribe(OTHER_POSTS)
    assert seen(engine, 3) == ["<j>j2</j>"]
    fails(engine, engine.unsubscribe, "posts")
    assert seen(engine, 4) == ["<j>j3</j>"]
    engine.unsubscribe("posts")
    fails(engine, engine.unsubscribe, "Post")
    assert list(events.definitions) == ["Post"]
    engine.unsubscribe("Post")
    assert not events.definitions and not seen(engine, 5)
