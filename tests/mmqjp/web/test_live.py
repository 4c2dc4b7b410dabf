import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import duckdb
import httpx
import pytest

from common.dates import HOUR
from common.files import make_inside
from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.explain.plan import summarise_sharing
from mmqjp.present.item import ShownMatch
from mmqjp.present.newest import NewestMatches, shown_outputs
from mmqjp.present.recent import RecentAnswers
from mmqjp.service.commands import page_of_matches
from mmqjp.service.log import NullLog
from mmqjp.web.areas.engine import HOURS
from mmqjp.web.areas.live import latest
from mmqjp.web.readers import FilesReader
from mmqjp.web.serving import app_served, listen
from mmqjp.web.site import MOST_BEHIND, MOST_LISTENERS, PAGE, Hosts, Hub, OutputGap, ServerSentEvents, TooManyListeners
from tests.mmqjp.web.conftest import NOW, QUERIES
from tests.support.places import ROOT
from tests.support.stores import as_files
from tests.support.web import TOKEN, app_of, browser, script, site_of, stranger

HOSTILE = "<img src=x onerror=alert(1)> \u202e&amp; long" + "x" * 500


def blog(number, author="Ada", title="t"):
    text = title.replace("&", "&amp;").replace("<", "&lt;")
    return Document(f"b{number}", f"<blog><title>{text}</title><author>{author}</author></blog>", time=NOW + number)


@pytest.fixture
def server(site):
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        app = app_of(site, Hosts("127.0.0.1", port))
        with app_served(app, listening, NullLog(), threading.Event()):
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


def test_the_client_of_the_documentation_goes_on_where_it_was_whoever_is_killed(site, engine, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "push.md").read_text("utf-8"), re.DOTALL)
    make_inside(tmp_path, "state", "secrets").joinpath("token").write_text(TOKEN)

    @contextmanager
    def start() -> Iterator[subprocess.Popen[str]]:
        here = code.replace("8765", str(port)).replace("sleep(3)", "sleep(0.01)")
        with subprocess.Popen([sys.executable, "-c", here], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as client:
            try:
                yield client
            finally:
                client.kill()

    def told(client: subprocess.Popen[str]) -> int:
        assert client.stdout is not None
        return int(json.loads(client.stdout.readline())["seq"])

    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        app = app_of(site, Hosts("127.0.0.1", port))
        with app_served(app, listening, NullLog(), threading.Event()), start() as client:
            assert told(client) == 0
            engine.process([blog(1), blog(2)])
            assert told(client) == 1
        site.hub.close()
    seen = int((tmp_path / "last-event-id").read_text())
    vars(site).pop("hub")
    with start() as client:  # nobody listens yet
        with listen("127.0.0.1", port) as listening, app_served(app, listening, NullLog(), threading.Event()):
            engine.process([blog(3)])
            assert [told(client) for _ in range(3 - seen)] == [*range(seen + 1, 4)]
        site.hub.close()


def test_those_of_one_query_and_as_pieces_of_the_page(server, engine):
    engine.process([blog(1, "Nobody", HOSTILE)])
    with server.stream("GET", "/events?after=-1&query=nobody&form=html") as response:
        found = next(events(response))["data"]
    assert found.startswith('<li class="match">') and "<img" not in found and "&lt;img" in found
    assert "/q/nobody" in found


HIDDEN = """
SELECT a/title AS t FROM S//blog->a[./author->x] FOLLOWED BY {x = y, 7 d} S//blog->b[./author->y] PUBLISH pairs HIDDEN;
FROM pairs/match->m PUBLISH read ONCE PER (m/t);
DEFINE EVENT Post FROM S//blog->b (who := b/author);
FROM Post NEXT {$1.who = $2.who} Post PUBLISH q7 HIDDEN;
FROM q7 PUBLISH again
"""


def test_what_hidden_queries_make_goes_to_other_queries_only(tmp_path):
    with Session("duckdb", state=tmp_path, settle=None) as engine:
        assert engine.subscribe(HIDDEN) == ["pairs", "read", "q7", "again"]
    with Session("duckdb", state=tmp_path, settle=None) as engine:
        assert {one.name: (one.publishes, one.is_hidden) for one in engine.registry.subscriptions.values()} == {
            "pairs": (True, True), "read": (True, False), "q7": (True, True), "again": (True, False)
        }  # fmt: skip
        told = engine.process([blog(n) for n in range(3)])
        assert (len(told), told.numbered, {one.query for one in told}) == (1, 4, {"read"})
        last = list(engine.finish())
        assert {one.query for one in last} == {"again"} and engine.last_seq == 7
        both = [*told, *last]
        assert list(engine.outputs()) == both and sorted(engine.lines(), key=lambda one: one.seq) == both
        assert engine.count_delivered(-1) == len(both) and len(list(engine.outputs(both[0].seq))) == len(both) - 1
        page = page_of_matches(engine, {"name": None, "since": None, "after": -1})
        assert [one["seq"] for one in page["matches"]] == [one.seq for one in both] and page["after"] is None
        site = site_of(engine)
        assert [match.output.seq for match in latest(site, "").matches][::-1] == [one.seq for one in both]
        pages = browser(site)
        for name, hidden in (("pairs", True), ("again", False), ("q7", True), ("read", False)):
            rows = pages.get(f"/api/v1/queries?search={name}").json()["rows"]
            found = pages.get(f"/api/v1/queries/{name}/outputs").json()
            assert rows[0]["total"] == len(found["outputs"]) > 0, "counted, and shown where it is asked for by name"
            assert pages.get(f"/api/v1/outputs/{found['outputs'][0]['id']}").json()["query"] == name
            link = pages.get(f"/api/v1/queries/{name}/feed").json()["url"]
            assert pages.get(link[link.index("/f/") :]).status_code == (404 if hidden else 200)
            assert ("In a feed reader" in pages.get(f"/q/{name}").text) is not hidden


def test_a_gap_is_told(server, engine, monkeypatch):
    monkeypatch.setattr("mmqjp.web.site.MOST_BEHIND", 1)
    monkeypatch.setattr("mmqjp.web.site.PAGE", 1)
    engine.process([blog(1), blog(2)])
    with server.stream("GET", "/events?after=-1") as response:
        found = next(events(response))
    assert (found["event"], found["id"], json.loads(found["data"])) == ("gap", "1", {"first": 0, "last": 1})


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


def test_the_page_shows_the_newest_first(engine, pages):
    engine.process([blog(1, "Nobody", HOSTILE), blog(2)])
    text = pages.get("/live").text
    assert text.index("/q/book_blog") < text.index("/q/nobody") and 'data-after="2"' in text
    assert "<img" not in text and 'dir="auto"' in text
    only = pages.get("/live?query=nobody").text
    assert "/q/nobody" in only and "/q/book_blog" not in only
    assert "Nothing has matched yet" in pages.get("/live?query=none").text


def test_the_outputs_by_their_numbers_are_those_of_the_engine(tmp_path):
    with Session("duckdb", now=lambda: NOW, state=tmp_path / "duckdb") as engine:
        engine.subscribe(QUERIES)
        long = f"<book><author>Ada</author>{'<p>text</p>' * 20_000}</book>"
        engine.process([Document("d1", long, time=NOW)])
        authors = ["Ada", "Nobody", "Ada", "Bob", "Nobody"]
        engine.process([blog(number, author) for number, author in enumerate(authors, 1)])
        stored = site_of(engine).matches
        assert stored.span() == (0, 3)
        known = fields(engine.outputs())
        for first in range(-1, 4):
            for last in range(first, 5):
                found = fields(match.output for match in stored.between(first, last))
                assert found == known[first + 1 : last + 1]
    as_files(tmp_path / "duckdb", tmp_path / "files", batches=2)
    reader = FilesReader(tmp_path / "files")
    stored = NewestMatches(RecentAnswers(lambda sql: reader.select(sql, 1_000, 10.0), reader.version))
    try:
        matches = stored.between(-1, stored.span()[1])
    finally:
        reader.close()
    assert fields(match.output for match in matches) == known
    assert all(match.reason is not None for match in matches)


@pytest.mark.parametrize("version", [4, 5, 6])
def test_outputs_of_earlier_formats_are_shown_as_others_are(version, tmp_path):
    with duckdb.connect(str(tmp_path / "mmqjp.duckdb")) as connection:
        connection.execute(Path(f"tests/data/store_v{version}.sql").read_text("utf-8"))
    with Session("duckdb", state=tmp_path) as engine:
        site, outputs = site_of(engine), list(engine.outputs())
        assert site.matches.between(-1, len(outputs)) == tuple(shown_outputs(engine, outputs)) != ()
        assert not any(match.output.xml for match in site.matches._kept._values.values())  # it may be long
        client = browser(site)
        for name in engine.queries():
            own = [output for output in outputs if output.query == name][::-1]
            shown = client.get(f"/api/v1/queries/{name}/outputs?limit=100").json()["outputs"]
            assert [(one["id"], one["seq"], one["xml"]) for one in shown] == [(o.id, o.seq, o.xml) for o in own]
            feed = site.feeds.newest(name)
            assert feed is not None and len(feed.entries) == len(own)


def test_answers_are_not_held_back():
    """asyncio tells sockets to send at once only if they say that they are of TCP."""
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Numbers:
    """A store with outputs of these numbers, of which every n-th one is `shown`. `asked` has what was read."""

    def __init__(self, count=0, oldest=0, shown=1):
        self.count, self.oldest, self.shown, self.asked, self.spans = count, oldest, shown, [], 0
        self.fails = False

    def version(self):
        return self.count

    def span(self):
        if self.fails:
            raise OSError("the disk is gone")
        self.spans += 1
        return (self.oldest, self.count - 1) if self.count > self.oldest else (0, -1)

    def numbers(self, seq, until):
        return [n for n in range(seq + 1, until + 1) if n % self.shown == 0]

    def between(self, seq, until):
        self.asked.append((seq, until))
        return [ShownMatch(Output("q", 0, 0, (), (), {}, "", str(n), n), ()) for n in self.numbers(seq, until)]


def fields(outputs):
    return [(one.seq, one.id, one.query, one.documents, one.xml) for one in outputs]


def hub(store):
    return Hub(cast(NewestMatches, store), look=0.001)


async def take(events, count):
    found = []
    async with asyncio.timeout(20):
        async for event in events:
            if event is not None:
                found.append(event if isinstance(event, OutputGap) else event.output.seq)
            if len(found) == count:
                break
    return found


async def begun(made, *streams):
    tasks = [asyncio.ensure_future(anext(stream)) for stream in streams]
    async with asyncio.timeout(20):
        while made.listeners < len(streams) or not made._outputs.spans:
            await asyncio.sleep(0)
    return tasks


@pytest.mark.anyio
async def test_listeners_get_what_they_missed_and_what_comes_from_now_on():
    store = Numbers(5)
    made = hub(store)
    streams = [made.listen(None, 20.0) for _ in range(2)]
    firsts = await begun(made, *streams)
    store.count = 8
    for stream, first in zip(streams, firsts, strict=True):
        assert [(await first).output.seq, *await take(stream, 2)] == [5, 6, 7]
    assert store.asked == [(4, 7)], "once for all"
    for stream in streams:
        await stream.aclose()
    assert made.listeners == 0
    store = Numbers(300)
    stream = hub(store).listen(9, 20.0)
    assert await take(stream, 290) == list(range(10, 300))
    store.count = 303
    stream = hub(store).listen(297, 20.0)
    assert await take(stream, 5) == [298, 299, 300, 301, 302]


@pytest.mark.parametrize(
    ("oldest", "seen", "expected"),
    [
        (0, 10, OutputGap(11, 2999 - PAGE)),  # too far behind: it goes on with the newest
        (2500, 2400, OutputGap(2401, 2499)),  # what it missed is not kept any more
        (0, 3000 - MOST_BEHIND - 1, 3000 - MOST_BEHIND),
        (0, 5000, None),  # another store
    ],
)
@pytest.mark.anyio
async def test_what_cannot_be_told_is_a_gap(oldest, seen, expected):
    store = Numbers(3000, oldest)
    made = hub(store)
    stream = made.listen(seen, 20.0)
    if expected is None:
        (first,) = await begun(made, stream)
        store.count += 1
        assert (await first).output.seq == 3000
    else:
        assert await take(stream, 1) == [expected]
    await stream.aclose()


@pytest.mark.anyio
async def test_a_flood_is_told_in_part_and_costs_little():
    store = Numbers(1)
    made = hub(store)
    stream = made.listen(None, 20.0)
    (first,) = await begun(made, stream)
    store.count = 100_001
    assert await first == OutputGap(1, 100_000 - PAGE)
    assert await take(stream, PAGE) == list(range(100_001 - PAGE, 100_001))
    assert sum(until - after for after, until in store.asked) == PAGE
    await stream.aclose()
    assert await take(hub(Numbers(9_000, shown=300)).listen(0, 20.0), 29) == list(range(300, 9_000, 300)), "others hide"


@pytest.mark.anyio
async def test_a_slow_listener_holds_up_nobody():
    store = Numbers(1)
    made = hub(store)
    slow, quick = made.listen(None, 20.0), made.listen(None, 20.0)
    first, other = await begun(made, slow, quick)
    store.count = 2 * PAGE
    assert [(await other).output.seq, *await take(quick, 2 * PAGE - 2)] == list(range(1, 2 * PAGE))
    await first
    store.count = 2 * PAGE + MOST_BEHIND
    assert await take(slow, PAGE) == [*range(2, PAGE + 1), OutputGap(PAGE + 1, MOST_BEHIND + PAGE - 1)]
    for stream in (slow, quick):
        await stream.aclose()


@pytest.mark.anyio
async def test_there_are_so_many_listeners_and_no_more():
    made = hub(Numbers())
    streams = [made.listen(None, 20.0) for _ in range(MOST_LISTENERS)]
    tasks = await begun(made, *streams)
    with pytest.raises(TooManyListeners):
        await anext(made.listen(None, 20.0))
    made.close()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.anyio
async def test_ends_of_listeners_and_silence():
    made = hub(Numbers(3))
    (first,) = await begun(made, made.listen(None, 20.0))
    await asyncio.to_thread(made.close)
    with pytest.raises(StopAsyncIteration):
        await first
    assert await take(made.listen(0, 20.0), 10) == []
    store = Numbers(3)
    made = hub(store)
    (first,) = await begun(made, made.listen(None, 20.0))
    store.fails, store.count = True, 4
    with pytest.raises(OSError, match="the disk is gone"):
        await first
    store.fails = False
    assert await take(made.listen(2, 20.0), 1) == [3]
    stream = hub(Numbers(3)).listen(None, 0.001)
    assert [await anext(stream) for _ in range(3)] == [None] * 3
    await stream.aclose()


class Client:
    """The server's side of a response; notes when the messages end."""

    def __init__(self, *, takes: bool) -> None:
        self.takes, self.sent, self.ended = takes, asyncio.Event(), False

    async def messages(self):
        try:
            yield b"data: x\n\n"
            await asyncio.Event().wait()
        finally:
            self.ended = True

    async def send(self, message):
        if b"data" in message.get("body", b""):
            self.sent.set()
            if not self.takes:
                await asyncio.Event().wait()

    async def receive(self):
        await self.sent.wait()
        if not self.takes:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.anyio
async def test_a_client_that_goes_or_takes_nothing_is_left(monkeypatch, takes):
    monkeypatch.setattr("mmqjp.web.site.SEND_SECONDS", 60 if takes else 0.01)
    client = Client(takes=takes)
    async with asyncio.timeout(20):
        await ServerSentEvents(client.messages())({"type": "http"}, client.receive, client.send)
    assert client.ended


def test_the_numbers_are_those_of_the_engine(api, pages, engine):
    found = api.get("/api/v1/engine").json()
    assert (found["status"]["documents"], found["status"]["outputs"], found["status"]["queries"]) == (2, 1, 2)
    assert found["lag_us"] == 1 and found["counters"]["stage1"] == engine.stage1_counters()
    assert found["plan"] == "signature"
    hours = found["hours"]
    assert len(hours) == HOURS and [hour["begin"] % HOUR for hour in hours] == [0] * HOURS
    assert (sum(hour["documents"] for hour in hours), sum(hour["outputs"] for hour in hours)) == (2, 1)
    text = pages.get("/engine").text
    assert "Documents per hour" in text and "Watermark" in text and "<rect" in text
    assert {pages.post(path).status_code for path in ("/engine", "/api/v1/engine")} == {405}, "it only reads"


def test_the_documentation_lists_every_path(api):
    text = (ROOT / "docs" / "web.md").read_text("utf-8")
    described = api.get("/api/v1/openapi.json").json()
    assert all(path.startswith("/api/v1/") for path in described["paths"])
    for path, operations in described["paths"].items():
        named = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), path.removeprefix("/api/v1"))
        parts = named.split("/")
        for method in operations:
            ways = (f"{method.upper()} {named}`", f"…/{parts[-1]}`", f"…/{'/'.join(parts[-2:])}`")
            assert any(way in text for way in ways), f"{method.upper()} {named} is not in docs/web.md"


def test_the_page_shows_what_the_queries_share(site, api, pages, engine):
    more = "FROM S//book->x1[./author->x2] FOLLOWED BY {x2 = x5, 1 d} S//blog->x4[./author->x5] PUBLISH also"
    engine.subscribe(more)
    found, expected = api.get("/api/v1/sharing").json(), summarise_sharing(engine).to_dict()
    for key in ("queries", "forms", "rows", "templates", "subscribers"):
        assert found[key] == expected[key]
    assert (found["queries"], found["rows"], found["templates"]) == (3, 2, 2)
    text = pages.get("/sharing").text
    assert "<svg" in text and 'href="/q/also"' in text and 'href="/q/book_blog"' in text
    assert "style=" not in text and "<style" not in text  # which the policy of the page would refuse
    assert stranger(site).get("/api/v1/sharing").status_code == 401


def test_a_new_store_says_what_to_do():
    with Session("duckdb") as engine:
        site = site_of(engine)
        found = script(site).get("/api/v1/engine").json()
        assert (found["documents_a_second"], found["lag_us"], found["last_batch"]) == (None, None, None)
        text = browser(site).get("/engine").text + browser(site).get("/sharing").text
    for told in ("No document has come yet", "No batch has been committed yet", "Nothing to share yet", "/new"):
        assert told in text
