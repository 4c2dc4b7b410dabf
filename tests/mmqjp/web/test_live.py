"""Outputs as they come, over a real server: each once, with its number, also after a client has gone and come back."""

import json
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.service.log import NullLog
from mmqjp.web.access import Hosts
from mmqjp.web.readers import FilesReader, StoredOutputs
from mmqjp.web.serving import Server, listen, make_app
from tests.mmqjp.web.conftest import NOW, QUERIES
from tests.support.stores import as_files
from tests.support.web import TOKEN, browser, site_of

HOSTILE = "<img src=x onerror=alert(1)> \u202e&amp; long" + "x" * 500


def blog(number, author="Ada", title="t"):
    text = title.replace("&", "&amp;").replace("<", "&lt;")
    return Document(f"b{number}", f"<blog><title>{text}</title><author>{author}</author></blog>", time=NOW + number)


@pytest.fixture
def server(site):
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        app = make_app(site, Hosts("127.0.0.1", port))
        with Server(app, listening, NullLog(), threading.Event()):
            client = httpx.Client(
                base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=20
            )
            with client:
                yield client
            site.hub.close()


def events(response: httpx.Response) -> Iterator[dict[str, str]]:
    found: dict[str, str] = {}
    for line in response.iter_lines():
        name, colon, value = line.partition(": ")
        if colon and name:
            found[name] = f"{found[name]}\n{value}" if name in found else value
        if not line and "id" in found:
            yield found
            found = {}


def test_outputs_are_told_once_in_order_with_their_numbers(server, engine):
    with server.stream("GET", "/api/v1/events?after=-1") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        told = events(response)
        first = next(told)
        assert (first["id"], first["event"], json.loads(first["data"])["query"]) == ("0", "output", "book_blog")
        engine.process([blog(1), blog(2)])
        assert [next(told)["id"] for _ in range(2)] == ["1", "2"]
    with server.stream("GET", "/events", headers={"Last-Event-ID": "1"}) as response:  # who comes back
        told = events(response)
        assert next(told)["id"] == "2"
        engine.process([blog(3)])
        assert next(told)["id"] == "3"
    assert httpx.get(f"{server.base_url}/api/v1/events").status_code == 401


def test_those_of_one_query_and_as_pieces_of_the_page(server, engine):
    engine.process([blog(1, "Nobody", HOSTILE)])
    with server.stream("GET", "/events?after=-1&query=nobody&form=html") as response:
        found = next(events(response))["data"]
    assert found.startswith('<li class="match">') and "<img" not in found and "&lt;img" in found
    assert "/q/nobody" in found


def test_a_gap_is_told(server, engine, monkeypatch):
    monkeypatch.setattr("mmqjp.web.site.MOST_BEHIND", 1)
    engine.process([blog(1), blog(2)])
    with server.stream("GET", "/events?after=-1") as response:
        found = next(events(response))
    assert (found["event"], found["id"], json.loads(found["data"])) == ("gap", "2", {"first": 0, "last": 2})


def test_too_many_listeners_are_told_to_come_later_and_the_server_ends_although_somebody_listens(
    server, site, monkeypatch
):
    with server.stream("GET", "/events?after=-1") as response:
        told = events(response)
        next(told)
        site.hub.close()
        assert list(told) == []
    monkeypatch.setattr("mmqjp.web.site.MOST_LISTENERS", 0)
    refused = server.get("/api/v1/events")
    assert refused.status_code == 503 and "retry-after" in refused.headers and "close one" in refused.json()["error"]


def test_the_page_shows_the_newest_first(engine):
    engine.process([blog(1, "Nobody", HOSTILE), blog(2)])
    client = browser(site_of(engine, now=lambda: NOW))
    text = client.get("/live").text
    assert text.index("/q/book_blog") < text.index("/q/nobody") and 'data-after="2"' in text
    assert "<img" not in text and 'dir="auto"' in text
    only = client.get("/live?query=nobody").text
    assert "/q/nobody" in only and "/q/book_blog" not in only
    assert "Nothing has matched yet" in client.get("/live?query=none").text


def test_the_outputs_by_their_numbers_are_those_of_the_engine(tmp_path):
    """Also those in files as Spark's."""
    with Session("duckdb", now=lambda: NOW, state=tmp_path / "duckdb") as engine:
        engine.subscribe(QUERIES)
        engine.process([Document("d1", "<book><author>Ada</author></book>", time=NOW)])
        authors = ["Ada", "Nobody", "Ada", "Bob", "Nobody"]
        engine.process([blog(number, author) for number, author in enumerate(authors, 1)])
        stored = StoredOutputs(site_of(engine).reader)
        assert stored.span() == (0, 3)
        known = [(one.seq, one.id, one.query, one.documents, one.xml) for one in engine.outputs()]
        for first in range(-1, 4):
            for last in range(first, 5):
                found = [match.output for match in stored.after(first, last)]
                assert [(one.seq, one.id, one.query, one.documents, one.xml) for one in found] == known[
                    first + 1 : last + 1
                ]
    as_files(tmp_path / "duckdb", tmp_path / "files", batches=2)
    reader = FilesReader(tmp_path / "files")
    stored = StoredOutputs(reader)
    try:
        matches = stored.after(-1, stored.span()[1])
    finally:
        reader.close()
    assert [(one.output.seq, one.output.id, one.output.query, one.output.xml) for one in matches] == [
        (seq, id, query, xml) for seq, id, query, _, xml in known
    ]
    assert all(match.reason is not None for match in matches)


def test_answers_are_not_held_back():
    """asyncio tells sockets to send at once only if they say that they are of TCP."""
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP
