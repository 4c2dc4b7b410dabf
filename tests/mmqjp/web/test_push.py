"""Documents by HTTP: who may push them, in which forms, and what a client is told."""

import gzip
import json
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from mmqjp.engine import Session
from mmqjp.service import pushes
from mmqjp.service.spool import Spool
from mmqjp.web.guard import PUSH_PATH
from mmqjp.web.site import PUSH_TOKEN, Access, token_of
from tests.mmqjp.web.conftest import QUERIES
from tests.support.feed_server import rss
from tests.support.service import Directory, StopAfter
from tests.support.web import TOKEN, site_of, stranger

PUSHER = "a-token-that-only-pushes"


@pytest.fixture
def client(tmp_path, monkeypatch) -> Iterator[TestClient]:
    """A program with the token that may only push, to a service that takes what is submitted at once."""
    place, submit = Directory(tmp_path), Spool.submit
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(QUERIES)
        service = place.service(engine)

        def submit_and_serve(spool, *command):
            submitted = submit(spool, *command)
            service._take_pushes(StopAfter(100))
            return submitted

        monkeypatch.setattr(Spool, "submit", submit_and_serve)
        found = stranger(site_of(engine, place.state, access=Access(TOKEN, push_token=PUSHER)))
        found.headers["Authorization"] = f"Bearer {PUSHER}"
        yield found


LINE = json.dumps({"id": "d1", "xml": "<book><author>Ada</author></book>"}).encode()
NDJSON = LINE + b"\n" + LINE.replace(b"book>", b"blog>").replace(b"d1", b"d2") + b'\n{"id": "d3", "xml": "<a"}\n'
FEED = json.dumps({"version": "https://jsonfeed.org/version/1.1", "items": [{"id": "1", "content_text": "x"}]}).encode()

TAKEN = [
    ("application/xml", "?id=x&stream=T&time=2026-05-04T10:30:00Z", b"<a/>", [("x", "T", "accepted")]),
    ("text/xml; charset=ISO-8859-1", "?id=x", b"<a>\xe9</a>", [("x", "S", "accepted")]),
    ("application/xml", "?id=x", b"<a>", [("x", "S", "dead-letter")]),
    ("application/x-ndjson", "", NDJSON,
     [("d1", "S", "accepted"), ("d2", "S", "accepted"), ("d3", "S", "dead-letter")]),
    ("application/json", "?id=x&types=1", b'{"a": [1, 2]}', [("x", "S", "accepted")]),
    ("application/json", "?id=x", b'{"a": [1, 2}', [("x", "S", "dead-letter")]),
    ("application/rss+xml", "", rss("one", "two").encode(), 2 * [(None, "S", "accepted")]),
    ("application/atom+xml", "?feed=https://a.example/", rss("one").encode(), [(None, "S", "accepted")]),
    ("application/feed+json", "", FEED, [(None, "S", "accepted")]),
    ("application/feed+json", "", b"{}", [(None, "S", "dead-letter")]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "query", "body", "told"), TAKEN)
@pytest.mark.parametrize("coding", ["", "gzip"])
def test_documents_come_in_many_forms(client, kind, query, body, told, coding):
    headers = {"Content-Type": kind} | ({"Content-Encoding": coding} if coding else {})
    content = gzip.compress(body) if coding else body
    found = client.post(PUSH_PATH + query, content=content, headers=headers)
    assert found.status_code == 200 and found.headers["cache-control"] == "no-store", found.text
    report = found.json()
    shown = [
        (id and one["id"], one["stream"], one["outcome"])
        for (id, *_), one in zip(told, report["documents"], strict=True)
    ]
    assert shown == told and all(("reason" in one) == (one["outcome"] == "dead-letter") for one in report["documents"])
    assert report["accepted"] == sum(outcome == "accepted" for *_, outcome in told)
    again = client.post(PUSH_PATH + query, content=content, headers=headers).json()
    assert (again["duplicates"], again["dead_letters"]) == (report["accepted"], report["dead_letters"])


def test_a_document_is_named_by_headers_too_or_by_its_content(client):
    about = {"Document-Id": "h", "Document-Stream": "T", "Document-Time": "5"}
    kind = {"Content-Type": "application/xml"}
    first = client.post(PUSH_PATH, content=b"<a/>", headers=kind | about).json()
    assert first["documents"] == [{"id": "h", "stream": "T", "outcome": "accepted"}]
    for outcome in ("accepted", "duplicate"):
        (told,) = client.post(PUSH_PATH, content=b"<a/>", headers={"Content-Type": "application/xml"}).json()[
            "documents"
        ]
        assert told["id"].startswith("sha256:") and told["outcome"] == outcome


REFUSED = [
    ({"Content-Type": "text/plain"}, "", b"<a/>", 415, "are not known: send application/xml"),
    ({}, "", b"<a/>", 415, "are not known"),
    ({"Content-Type": "application/xml; charset=zip"}, "", b"<a/>", 415, "the charset 'zip' is not known"),
    ({"Content-Type": "application/xml", "Content-Encoding": "rot13"}, "", b"rubbish", 400, "'rot13' is not known"),
    ({"Content-Type": "application/xml"}, "", b"", 400, "no body"),
    ({"Content-Type": "application/xml"}, "?time=1760000000", b"<a/>", 400, "looks like Unix seconds"),
    ({"Content-Type": "application/xml"}, "?id=" + "x" * 3_000, b"<a/>", 400, "is malformed"),
    ({"Content-Type": "application/x-ndjson"}, "?id=x", LINE, 400, "id is for a single document"),
    ({"Content-Type": "application/x-ndjson"}, "", b"\n" * 6_000, 413, "at most 5,000 lines"),
    ({"Content-Type": "application/xml"}, "", b" " * ((16 << 20) + 1), 413, "at most 16,777,216 bytes"),
    ({"Content-Type": "application/xml", "Content-Encoding": "gzip"}, "",
     gzip.compress(b" " * (17 << 20), mtime=0), 413, "also when it is decoded"),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "query", "body", "status", "cause"), REFUSED)
def test_what_cannot_be_used_is_refused(client, headers, query, body, status, cause):
    found = client.post(PUSH_PATH + query, content=body, headers=headers)
    assert (found.status_code, cause in found.json()["error"]) == (status, True), found.text


@pytest.mark.parametrize(
    ("bound", "value", "status", "wait"),
    [("PUSH_BURST", 0.0, 429, "1"), ("MOST_WAITING", 0, 503, "1"), ("MOST_SPOOLED", 0, 503, "5"),
     ("REPLY_SECONDS", 0.0, 503, "5")],
)  # fmt: skip
def test_who_sends_too_much_is_told_when_to_come_again(client, monkeypatch, bound, value, status, wait):
    monkeypatch.setattr(pushes, bound, value)
    monkeypatch.setattr(pushes, "PUSH_RATE", 0.0)
    found = client.post(PUSH_PATH, content=b"<a/>", headers={"Content-Type": "application/xml"})
    assert (found.status_code, found.headers["retry-after"]) == (status, wait)


def test_the_token_that_pushes_does_nothing_else(client, tmp_path):
    for method, path in (("GET", "/"), ("GET", PUSH_PATH), ("GET", "/api/v1/queries"), ("POST", "/api/v1/queries")):
        found = client.request(method, path)
        assert found.status_code == 403 and "only push" in found.text
    for token, status in (("wrong", 401), (TOKEN, 200)):
        headers = {"Content-Type": "application/xml", "Authorization": f"Bearer {token}"}
        assert client.post(PUSH_PATH, content=b"<a/>", headers=headers).status_code == status
    made = token_of(tmp_path, PUSH_TOKEN)
    assert made == token_of(tmp_path, PUSH_TOKEN) != token_of(tmp_path)
    assert (tmp_path / "secrets" / "push-token").stat().st_mode & 0o777 == 0o600


def test_the_description_says_how_to_push(api):
    described = api.get("/api/v1/openapi.json").json()["paths"][PUSH_PATH]["post"]
    assert set(pushes.KINDS) == set(described["requestBody"]["content"])
    assert {"200", "400", "413", "415", "429", "503"} <= set(described["responses"])
    assert {"id", "stream", "time", "feed", "types", "Document-Id"} <= {one["name"] for one in described["parameters"]}
