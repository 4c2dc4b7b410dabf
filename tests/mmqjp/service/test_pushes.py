"""Documents that clients push: each once whatever is killed or sent again, what became of it, and bounds."""

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from common.errors import InvalidValue
from mmqjp.engine import Session
from mmqjp.service import pushes as module
from mmqjp.service.pushes import FEED, LINES, XML, PushClient, PushRefused, read_push
from mmqjp.service.spool import Command
from tests.processes import nursery
from tests.support.feed_server import rss
from tests.support.service import PAIRS, Directory, Events, StopAfter

SECOND = 1_000_000


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def lines(**documents: str) -> bytes:
    rows = ({"id": id, "time": int(id[1:]) * SECOND, "xml": xml} for id, xml in documents.items())
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


Request = tuple[Mapping[str, str], bytes]

REQUESTS: list[Request] = [
    ({"kind": LINES}, lines(d1="<a>v</a>", d2="<a>v</a>", d3="<a>") + b"[]\n"),
    ({"kind": XML, "id": "d4", "time": "4000000"}, b"<a>v</a>"),
    ({"kind": FEED, "type": "application/rss+xml"}, rss("one", "two").encode()),
    ({"kind": LINES}, lines(d1="<a>w</a>", d5="<a>v</a>")),
    ({"kind": XML}, b"<a"),
]
OUTCOMES = [*2 * ["accepted"], *2 * ["dead-letter"], *3 * ["accepted"], "duplicate", "accepted", "dead-letter"]


def serve(path: Path) -> None:
    place = Directory(path)
    with Session("duckdb", state=place.state) as engine:
        place.service(engine).run(None, StopAfter(10**9))


def push(place: Directory, *requests: Request) -> list[Command]:
    return [place.pushes.submit("push", arguments, body) for arguments, body in requests]


def outcomes(place: Directory, asked: list[Command]) -> list[str]:
    return [document["outcome"] for one in asked for document in place.answer(one).result["documents"]]


def kept(place: Directory) -> dict[str, Any]:
    with Session("duckdb", state=place.state) as engine:
        documents = engine.sql("SELECT id, xml FROM documents ORDER BY id", trusted=True).to_pylist()
        found = {row["id"]: row["xml"] for row in documents}
        assert len(found) == len(documents)
        return {"documents": found, "dead": Counter((row["id"], row["raw"]) for row in engine.dead_letters())}


@pytest.mark.parametrize("batch_size", [1, 100])
def test_each_document_is_told_what_became_of_it_and_one_sent_again_is_a_duplicate(place: Directory, batch_size: int):
    place.run(PAIRS)
    asked, events = push(place, *REQUESTS), Events()
    place.run(events=events, batch_size=batch_size)
    assert len(events.named("batch")) == (5 if batch_size == 1 else 1)
    told = [document for one in asked for document in place.answer(one).result["documents"]]
    assert [document["outcome"] for document in told] == OUTCOMES
    assert [document["id"] for document in told[:5]] == ["d1", "d2", "d3", told[3]["id"], "d4"]
    assert "line 4: not a JSON object" in told[3]["reason"] and "Premature end" in told[2]["reason"]
    before = kept(place)
    assert before["dead"].total() == 3 and len(before["documents"]) == 6 and before["documents"]["d1"] == "<a>v</a>"
    assert len(place.pairs()) == 6
    again = [outcome if outcome == "dead-letter" else "duplicate" for outcome in OUTCOMES]
    for _ in range(2):  # and after a restart
        asked = push(place, *REQUESTS)
        place.run()
        assert outcomes(place, asked) == again and kept(place) == before
    (asked_otherwise,) = push(place, ({"kind": LINES}, lines(d3="<a>")))
    place.run()
    assert outcomes(place, [asked_otherwise]) == ["dead-letter"] and kept(place)["dead"].total() == 4


MOMENTS = """before Session.process
before DuckDBEngine.commit
after DuckDBEngine.commit
before Spool.answer
after Spool.answer
after Session.process, before Path.replace
after Session.process, before Path.unlink"""


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    """A service that nobody kills."""
    place = Directory(tmp_path_factory.mktemp("calm"))
    place.run(PAIRS)
    push(place, *REQUESTS)
    place.run()
    return place


@pytest.mark.parametrize("moment", MOMENTS.splitlines())
def test_who_got_no_reply_sends_again_and_nothing_is_lost_or_repeated(place: Directory, calm: Directory, moment: str):
    place.run(PAIRS)
    asked = push(place, *REQUESTS)
    nursery.run_killed(serve, place.path, at=moment)
    replied = [one for one in asked if place.pushes.has_result(one)]
    assert outcomes(place, replied) == OUTCOMES[: 4 if replied else 0]
    again = push(place, *(request for request, one in zip(REQUESTS, asked, strict=True) if one not in replied))
    place.run()
    assert all(place.answer(one).error is None for one in again)
    assert kept(place) == kept(calm) and Counter(place.pairs()) == Counter(calm.pairs())


@pytest.mark.parametrize(
    ("arguments", "body", "cause"),
    [
        ({"kind": XML, "time": "soon"}, b"<a/>", "'soon' is not an ISO-8601 date"),
        ({"kind": XML, "time": "1760000000"}, b"<a/>", "looks like Unix seconds"),
        ({"kind": XML, "stream": "mmqjp:visits"}, b"<a/>", "reserved"),
        ({"kind": XML, "time": "9" * 20}, b"<a/>", "must fit in 64 bits"),
    ],
)
def test_a_request_that_cannot_be_used_is_refused_as_a_whole(place: Directory, arguments, body, cause):
    asked = push(place, (arguments, body), ({"kind": XML, "id": "d1"}, b"<a/>"))
    place.run()
    refused, taken = map(place.answer, asked)
    assert cause in str(refused.error) and taken.result["accepted"] == 1


@pytest.mark.parametrize(
    ("arguments", "body", "found"),
    [
        ({"kind": XML, "charset": "cp1252"}, "<?xml version='1.0' encoding='utf-8'?><a>é</a>".encode("cp1252"), "é"),
        ({"kind": XML, "charset": "utf-8"}, b"<a>\xe9</a>", "utf-8"),
        ({"kind": "json"}, b'{"a": "\xff"}', "not UTF-8: invalid start byte at byte 7"),
        ({"kind": "json"}, b'{"a": ', "not JSON"),
        ({"kind": "json"}, b'{"a": "x"}', "<json><a>x</a></json>"),
        ({"kind": "json", "types": "true"}, b'{"a": 1}', '<a type="number">1</a>'),
        ({"kind": LINES}, b'\n{"id": "d", "json": {"a": 1}}\n', "<a>1</a>"),
        ({"kind": LINES}, b"\xff", "line 1: 'utf-8' codec"),
        ({"kind": FEED, "type": "application/feed+json"}, b"{}", "not a JSON Feed"),
        ({"kind": FEED, "type": "", "feed": "https://a.example/f"}, rss("one").encode(), "<feed_url>https://a.example/f<"),
    ],
)  # fmt: skip
def test_a_body_is_read_by_its_kind(arguments: dict[str, str], body: bytes, found: str):
    (item,) = read_push(Command("1", "push", arguments, body))
    assert found in str(getattr(item, "xml", None) or getattr(item, "reason", "")).replace("b'", "")


REFUSED = [
    (b"x" * 11, "", XML, "a request has at most 10 bytes"),
    (gzip.compress(b"x" * 10_000, mtime=0), "gzip", XML, "a request has at most 10 bytes"),
    (b"\n" * 3, "", LINES, "a request has at most 2 lines"),
    (b"rubbish", "gzip", XML, "the body is not gzip"),
    (gzip.compress(b"x" * 9, mtime=0)[:-9], "gzip", XML, "the body is not gzip: it ends too early"),
    (b"rubbish", "rot13", XML, "the content coding 'rot13' is not known"),
    (b" ", "", XML, "the request has no body"),
    (b"<a/>", "", XML, "too many documents wait"),
]


@pytest.mark.parametrize(("body", "coding", "kind", "cause"), REFUSED)
def test_what_is_too_much_is_refused(place: Directory, monkeypatch, body: bytes, coding: str, kind: str, cause: str):
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    monkeypatch.setattr(module, "MOST_DOCUMENTS", 2)
    monkeypatch.setattr(module, "MOST_SPOOLED", 1)
    push(place, REQUESTS[1])
    with pytest.raises((InvalidValue, PushRefused), match=cause):
        asyncio.run(PushClient(place.state, lambda: True).push(body, coding, {"kind": kind}))
    assert place.pushes.size()[0] == 1


def test_many_requests_and_large_ones_at_once_are_put_off(place: Directory, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 10)
    monkeypatch.setattr(module, "PUSH_BURST", 3.0)
    monkeypatch.setattr(module, "PUSH_RATE", 0.0)
    monkeypatch.setattr(module, "REPLY_SECONDS", 0.0)

    async def ask() -> None:
        client = PushClient(place.state, lambda: False)
        waits = pytest.raises(PushRefused, match="too many documents wait")
        with client.admitted("a", 50), waits, client.admitted("a", 1):  # one is taken in any case
            pass
        with client.admitted("a", 5), client.admitted("b", 5), waits as full, client.admitted("b", 0):
            pass
        assert (full.value.status, full.value.wait) == (503, 1)
        with pytest.raises(PushRefused) as fast, client.admitted("a", 1):
            pass
        assert fast.value.status == 429
        with pytest.raises(PushRefused, match="no service runs") as nobody:
            await client.push(b"<a/>", "", {"kind": XML})
        assert nobody.value.status == 503
        client = PushClient(place.state, lambda: True)
        with pytest.raises(PushRefused, match="has not answered within 0 s: what was sent will be processed"):
            await client.push(b"<a/>", "", {"kind": XML})

    asyncio.run(ask())
    assert place.pushes.size()[0] == 1
